//! Metadata of a run.

use crate::memtable::RangeSet;
use bytes::Bytes;
use std::collections::BTreeMap;
use stele_types::size::RECORD_OVERHEAD_BYTES;
use stele_types::{FileId, Locator, RunId, varint};

/// Live data of a value file: what runs reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Number of referenced values.
    pub records: u64,
    /// Their keys, values and record overhead, in bytes.
    pub bytes: u64,
}

impl Live {
    /// Adds one reference.
    pub fn add(&mut self, key_len: usize, at: &Locator) {
        self.records += 1;
        self.bytes += key_len as u64 + u64::from(at.length) + RECORD_OVERHEAD_BYTES;
    }

    /// Removes one reference.
    pub fn remove(&mut self, key_len: usize, at: &Locator) {
        let bytes = key_len as u64 + u64::from(at.length) + RECORD_OVERHEAD_BYTES;
        self.records = self.records.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Adds all references of `other`.
    pub fn add_all(&mut self, other: &Self) {
        // Saturates, because the numbers come from footers that are not checked yet.
        self.records = self.records.saturating_add(other.records);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// Upper bound of ages, with room above the age of any tier: new ages count up from the newest.
pub(crate) const AGE_MAX: u64 = 1 << 62;

/// Fields of a footer that the creator of a run supplies: enough to rebuild a lost manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunExtra {
    /// The tier's age; larger is newer.
    pub age: u64,
    /// Number of the job that wrote the run; later jobs have larger ones.
    pub job: u64,
    /// Position of the run among the outputs of its job.
    pub part: u32,
    /// Whether this is the job's last output.
    pub last_part: bool,
    /// Runs that the job's outputs replace.
    pub replaces: Vec<RunId>,
    /// The encoded checkpoint that is durable with this run; opaque here.
    pub checkpoint: Vec<u8>,
    /// Range tombstones for all strictly older tiers; they hide nothing in this run.
    pub ranges: RangeSet,
}

/// Metadata of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunMeta {
    /// Number of the run.
    pub id: RunId,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Lowest key; empty when there is no entry.
    pub first_key: Bytes,
    /// Highest key; empty when there is no entry.
    pub last_key: Bytes,
    /// Entries, tombstones included.
    pub entries: u64,
    /// Tombstones among the entries.
    pub tombstones: u64,
    /// Entries with an inline value.
    pub inline: u64,
    /// Entries with an expiry.
    pub expiring: u64,
    /// Earliest expiry in Unix seconds; `u64::MAX` if no entry expires, 0 if it is unknown: runs of
    /// format 1 do not state it.
    pub earliest_expiry_s: u64,
    /// Bytes of all keys.
    pub key_bytes: u64,
    /// References of the entries by value file; exact.
    pub refs: BTreeMap<FileId, Live>,
    /// Fields that the creator supplied.
    pub extra: RunExtra,
}

impl RunMeta {
    pub(super) fn empty(id: RunId) -> Self {
        Self {
            id,
            bytes: 0,
            first_key: Bytes::new(),
            last_key: Bytes::new(),
            entries: 0,
            tombstones: 0,
            inline: 0,
            expiring: 0,
            earliest_expiry_s: u64::MAX,
            key_bytes: 0,
            refs: BTreeMap::new(),
            extra: RunExtra::default(),
        }
    }

    pub(super) fn count_expiry(&mut self, expires_at_s: u64) {
        self.expiring += 1;
        self.earliest_expiry_s = self.earliest_expiry_s.min(expires_at_s);
    }

    /// Returns the earliest expiry as a number; 0 if there is none or it is unknown.
    pub(super) fn encoded_expiry(&self) -> u64 {
        if self.earliest_expiry_s == u64::MAX { 0 } else { self.earliest_expiry_s }
    }

    /// Sets the earliest expiry from the number of [`RunMeta::encoded_expiry`].
    pub(super) fn decode_expiry(&mut self, encoded: u64) {
        let has_none = encoded == 0 && self.expiring == 0;
        self.earliest_expiry_s = if has_none { u64::MAX } else { encoded };
    }

    /// Appends all but `bytes` and the earliest expiry: numbers as varints, byte strings
    /// length-prefixed, in this order: id, entries, tombstones, inline, expiring, key bytes, first
    /// key, last key, refs {count, (file, records, bytes)*}, age, job, part, last part, replaces
    /// {count, id*}, checkpoint, range tombstones.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let numbers =
            [self.id.0, self.entries, self.tombstones, self.inline, self.expiring, self.key_bytes];
        numbers.into_iter().for_each(|n| varint::put(out, n));
        varint::put_bytes(out, &self.first_key);
        varint::put_bytes(out, &self.last_key);
        varint::put(out, self.refs.len() as u64);
        for (file, live) in &self.refs {
            [u64::from(file.0), live.records, live.bytes]
                .into_iter()
                .for_each(|n| varint::put(out, n));
        }
        let extra = &self.extra;
        let numbers = [extra.age, extra.job, u64::from(extra.part), u64::from(extra.last_part)];
        numbers.into_iter().for_each(|n| varint::put(out, n));
        varint::put(out, extra.replaces.len() as u64);
        extra.replaces.iter().for_each(|id| varint::put(out, id.0));
        varint::put_bytes(out, &extra.checkpoint);
        extra.ranges.encode(out);
    }

    /// Decodes the output of [`RunMeta::encode`] and removes it from the front; `bytes` is the size
    /// of the file.
    pub(super) fn decode(from: &mut &[u8], bytes: u64) -> Option<Self> {
        let mut meta = Self::empty(RunId(varint::take(from)?));
        meta.bytes = bytes;
        meta.entries = varint::take(from)?;
        meta.tombstones = varint::take(from)?;
        meta.inline = varint::take(from)?;
        meta.expiring = varint::take(from)?;
        meta.key_bytes = varint::take(from)?;
        meta.first_key = Bytes::copy_from_slice(varint::take_bytes(from)?);
        meta.last_key = Bytes::copy_from_slice(varint::take_bytes(from)?);
        for _ in 0..varint::take(from)? {
            let file = FileId(u32::try_from(varint::take(from)?).ok()?);
            let live = Live { records: varint::take(from)?, bytes: varint::take(from)? };
            meta.refs.insert(file, live);
        }
        meta.extra.age = varint::take(from).filter(|age| *age <= AGE_MAX)?;
        meta.extra.job = varint::take(from)?;
        meta.extra.part = u32::try_from(varint::take(from)?).ok()?;
        meta.extra.last_part = varint::take(from)? != 0;
        for _ in 0..varint::take(from)? {
            meta.extra.replaces.push(RunId(varint::take(from)?));
        }
        meta.extra.checkpoint = varint::take_bytes(from)?.to_vec();
        meta.extra.ranges = RangeSet::decode(from)?;
        Some(meta)
    }
}
