//! Target for the objects of a backup.

use crate::{Bound, Target};
use bytes::Bytes;
use stele_backup::format::{
    Base, BaseSeq, Chunk, ChunkName, ChunkRef, Cut, Family, LogObject, LogSeq, Moment, Pair, Part,
    Record, RunId, Write,
};
use stele_types::checksum::Crc32c;
use stele_types::{KeyRange, LogIndex, MomentId, RegionId, Term};

/// A deflate stream has at least a thousandth of the bytes that it inflates to, and a pair of an empty key takes some
/// tens of bytes for three.
const INFLATED: Bound = Bound { bytes: 1 << 20, per_byte: 128 << 10 };

/// Place of all objects of the target.
const RUN: RunId = RunId(3);
const NUMBER: u64 = 4;

pub(super) const OBJECT: Target = Target {
    name: "backup-object",
    run: object,
    seeds: objects,
    fix_checksums: Some(|input| fix_checksum(input)),
    bound: INFLATED,
};

/// Decodes an input as each kind of object. What is decoded must be encoded and decoded to the same.
fn object(input: &[u8]) {
    if let Ok(log) = LogObject::decode(RUN, LogSeq(NUMBER), input) {
        let again = log.encode().unwrap();
        assert_eq!(LogObject::decode(RUN, LogSeq(NUMBER), &again).unwrap(), log);
    }
    if let Ok(base) = Base::decode(RUN, BaseSeq(NUMBER), input) {
        let again = base.encode().unwrap();
        assert_eq!(Base::decode(RUN, BaseSeq(NUMBER), &again).unwrap(), base);
    }
    if let Ok(moment) = Moment::decode(RUN, MomentId(NUMBER), input) {
        let again = moment.encode().unwrap();
        assert_eq!(Moment::decode(RUN, MomentId(NUMBER), &again).unwrap(), moment);
    }
    if let Ok(name) = ChunkName::of_object(input)
        && let Ok(chunk) = Chunk::decode(&name, input)
    {
        let (name, again) = chunk.encode().unwrap();
        assert_eq!(Chunk::decode(&name, &again).unwrap(), chunk);
    }
}

fn pair(key: &'static [u8]) -> Pair {
    Pair { key: Bytes::from_static(key), value: vec![7; 200].into(), expires_at_s: 1 << 33 }
}

fn objects() -> Vec<Vec<u8>> {
    let chunk = Chunk { pairs: vec![pair(b""), pair(b"a"), pair(b"b")] };
    let (name, of_chunk) = chunk.encode().unwrap();
    let writes = [
        Write::Put(pair(b"key")),
        Write::Delete(Bytes::from_static(b"key")),
        Write::DeleteRange(KeyRange::new("a", "")),
    ];
    let record =
        |write| Record { region: RegionId(1), index: LogIndex(300), family: Family::Lock, write };
    let log = LogObject {
        run: RUN,
        seq: LogSeq(NUMBER),
        records: writes.into_iter().map(record).collect(),
        token_after: Bytes::from_static(b"token"),
        moment: Some(MomentId(9)),
    };
    let reference = ChunkRef { name, first_key: Bytes::new(), pairs: 3, bytes: 700 };
    let part = Part {
        family: Family::Write,
        range: KeyRange::all(),
        region: RegionId(1),
        index: LogIndex(7),
        chunks: vec![reference],
    };
    let base = Base {
        run: RUN,
        seq: BaseSeq(NUMBER),
        log_complete: LogSeq(5),
        parts: vec![part],
        settings: vec![("name".to_owned(), "value".to_owned())],
        access: Some("{}".to_owned()),
        ..Base::default()
    };
    let cut =
        Cut { range: KeyRange::all(), region: RegionId(1), term: Term(2), index: LogIndex(3) };
    let moment = Moment {
        number: MomentId(NUMBER),
        run: RUN,
        last_log: LogSeq(6),
        vector: vec![cut],
        clocks_unix_ms: vec![(1, 1_700_000_000_000)],
        program: "0.2.0".to_owned(),
        level: 2,
    };
    vec![of_chunk, log.encode().unwrap(), base.encode().unwrap(), moment.encode().unwrap()]
}

/// Corrects the checksum of an object (`backup/format/envelope.rs`).
fn fix_checksum(input: &mut [u8]) {
    let Some((header, stored)) = input.split_at_mut_checked(16) else { return };
    let crc = Crc32c::new().update(&header[..12]).update(stored).finish();
    header[12..].copy_from_slice(&crc.to_le_bytes());
}
