//! Values on their way from the source to the target: a value is one part, or several if it is large.

use super::endpoint::Database;
use bytes::Bytes;
use std::sync::Arc;

/// Members of a part at most: those of one HSET or SADD.
pub(super) const PART_MEMBERS_MAX: usize = 512;
/// Bytes of a part after which it gets no more members.
const PART_BYTES: u64 = 256 << 10;
/// Bytes of a string in memory beside its content.
const OVERHEAD_BYTES: u64 = 64;

/// Type of a value, as the target stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    Text,
    Hash,
    Set,
    /// The value vanished after a part of it was sent.
    Gone,
}

impl ValueKind {
    /// Number of strings of a member.
    pub(super) fn width(self) -> usize {
        if self == Self::Hash { 2 } else { 1 }
    }

    /// Returns the name that TYPE answers.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Text => "string",
            Self::Hash => "hash",
            Self::Set => "set",
            Self::Gone => "none",
        }
    }
}

/// A value without its members. Two values are the same one if they have the same address.
#[derive(Debug)]
pub(super) struct SourceValue {
    /// Database of the source.
    pub database: Database,
    pub name: Bytes,
    pub kind: ValueKind,
    /// Unix milliseconds.
    pub expires_at_ms: Option<u64>,
}

/// Consecutive members of a value.
#[derive(Clone, Debug)]
pub(super) struct ValuePart {
    pub value: Arc<SourceValue>,
    /// Strings of the members; of a hash fields and values in turn.
    pub strings: Vec<Bytes>,
    pub is_first: bool,
    /// Number of members of the whole value, in the last part.
    pub total: Option<u64>,
}

impl ValuePart {
    /// Returns a part by which the target forgets a value that vanished.
    pub(super) fn gone(database: Database, name: Bytes) -> Self {
        let value = SourceValue { database, name, kind: ValueKind::Gone, expires_at_ms: None };
        Self { value: Arc::new(value), strings: Vec::new(), is_first: true, total: Some(0) }
    }

    pub(super) fn is_last(&self) -> bool {
        self.total.is_some()
    }

    /// Whether the part is a whole value.
    pub(super) fn is_whole(&self) -> bool {
        self.is_first && self.is_last()
    }

    /// Returns its bytes in memory.
    pub(super) fn bytes(&self) -> u64 {
        let strings = self.strings.iter().map(|it| it.len() as u64 + OVERHEAD_BYTES);
        self.value.name.len() as u64 + OVERHEAD_BYTES + strings.sum::<u64>()
    }

    /// Returns the bytes that a client of the target counts.
    pub(super) fn content_bytes(&self) -> u64 {
        let name = if self.is_first { self.value.name.len() } else { 0 };
        (name + self.strings.iter().map(Bytes::len).sum::<usize>()) as u64
    }
}

/// Divides the members of a value into parts.
pub(super) struct Cutter {
    value: Arc<SourceValue>,
    strings: Vec<Bytes>,
    bytes: u64,
    members: u64,
    is_first: bool,
}

impl Cutter {
    pub(super) fn new(value: SourceValue) -> Self {
        Self { value: Arc::new(value), strings: Vec::new(), bytes: 0, members: 0, is_first: true }
    }

    pub(super) fn value(&self) -> &SourceValue {
        &self.value
    }

    /// Whether no part was returned yet.
    pub(super) fn has_sent_nothing(&self) -> bool {
        self.is_first
    }

    /// Whether no member was pushed.
    pub(super) fn is_empty(&self) -> bool {
        self.members == 0
    }

    /// Adds a member; returns a part if it is full.
    pub(super) fn push(&mut self, member: impl IntoIterator<Item = Bytes>) -> Option<ValuePart> {
        for string in member {
            self.bytes += string.len() as u64;
            self.strings.push(string);
        }
        self.members += 1;
        let strings_max = PART_MEMBERS_MAX * self.value.kind.width();
        let is_full = self.strings.len() >= strings_max || self.bytes >= PART_BYTES;
        (is_full && self.value.kind != ValueKind::Text).then(|| self.part(None))
    }

    /// Returns the last part, of a value with so many members; by default as many as were pushed.
    pub(super) fn finish(mut self, total: Option<u64>) -> ValuePart {
        let total = total.unwrap_or(self.members);
        self.part(Some(total))
    }

    fn part(&mut self, total: Option<u64>) -> ValuePart {
        self.bytes = 0;
        let strings = std::mem::take(&mut self.strings);
        let is_first = std::mem::take(&mut self.is_first);
        ValuePart { value: self.value.clone(), strings, is_first, total }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cutter(kind: ValueKind) -> Cutter {
        let value =
            SourceValue { database: Database(0), name: "n".into(), kind, expires_at_ms: None };
        Cutter::new(value)
    }

    #[test]
    fn a_small_value_is_one_part_and_a_large_one_several() {
        let mut small = cutter(ValueKind::Set);
        assert!(small.push([Bytes::from("a")]).is_none());
        let part = small.finish(None);
        assert!(part.is_whole() && part.total == Some(1));
        let mut large = cutter(ValueKind::Hash);
        let mut parts = Vec::new();
        for field in 0..1200 {
            parts.extend(large.push([Bytes::from(field.to_string()), Bytes::from("v")]));
        }
        parts.push(large.finish(None));
        let strings: Vec<usize> = parts.iter().map(|part| part.strings.len()).collect();
        assert_eq!(strings, [1024, 1024, 352]);
        let firsts: Vec<bool> = parts.iter().map(|part| part.is_first).collect();
        assert_eq!(firsts, [true, false, false]);
        let totals: Vec<Option<u64>> = parts.iter().map(|part| part.total).collect();
        assert_eq!(totals, [None, None, Some(1200)]);
    }

    #[test]
    fn large_members_end_a_part_early_and_a_string_is_never_divided() {
        let big = Bytes::from(vec![0; 300 << 10]);
        assert!(cutter(ValueKind::Set).push([big.clone()]).is_some());
        assert!(cutter(ValueKind::Text).push([big]).is_none());
    }
}
