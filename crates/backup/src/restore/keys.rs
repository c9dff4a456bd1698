//! Keys that a restore writes and deletes.

use bytes::Bytes;
use stele_types::redis_key::{self, KeyPart};
use stele_types::{ColumnFamily, KeyRange};

/// Keys that are restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoredKeys {
    /// All keys of all column families.
    All,
    /// Keys of a range, in the column families of RawKV.
    Raw(KeyRange),
    /// Redis keys of which the name begins with these bytes, in every database.
    RedisNames(Bytes),
}

impl RestoredKeys {
    /// Returns whether pairs of a family are restored. Ranges of RawKV keys are not ranges of names.
    pub fn take(&self, family: ColumnFamily) -> bool {
        match self {
            Self::All => true,
            Self::Raw(_) => family != ColumnFamily::Redis,
            Self::RedisNames(_) => family == ColumnFamily::Redis,
        }
    }

    /// Returns whether the pair of a key is restored.
    ///
    /// Invariant: a header that names a transaction is restored with the record of it, which may lie beside another
    /// name. Without the record the transaction would count as aborted, though it has changed other names.
    /// Tests: `redis_keys_with_a_prefix_are_restored_in_every_database_and_no_others`.
    pub fn has(&self, family: ColumnFamily, key: &Bytes) -> bool {
        match self {
            Self::RedisNames(prefix) if family == ColumnFamily::Redis => {
                has_name(key, prefix, |_| true) || is_record(key)
            }
            Self::All => true,
            Self::Raw(range) => self.take(family) && range.contains(key),
            Self::RedisNames(_) => false,
        }
    }

    /// Returns whether a delete of a range of keys deletes the key: no record of a transaction, which other names may
    /// need.
    pub fn delete(&self, family: ColumnFamily, key: &Bytes) -> bool {
        match self {
            Self::RedisNames(prefix) if family == ColumnFamily::Redis => {
                has_name(key, prefix, |part| !matches!(part, KeyPart::Record { .. }))
            }
            _ => self.has(family, key),
        }
    }

    /// Returns the part of a range in which keys may be restored. `None` if there is none.
    pub fn within(&self, range: &KeyRange) -> Option<KeyRange> {
        match self {
            Self::Raw(keys) => range.common(keys),
            Self::All | Self::RedisNames(_) => Some(range.clone()),
        }
    }

    /// Returns the ranges of a family in which the keys lie: what a restore deletes before.
    pub fn ranges(&self, family: ColumnFamily) -> Vec<KeyRange> {
        match self {
            _ if !self.take(family) => Vec::new(),
            Self::All => vec![KeyRange::all()],
            Self::Raw(range) => vec![range.clone()],
            Self::RedisNames(prefix) => (0..redis_key::DATABASES)
                .flat_map(|database| redis_key::prefix_ranges(database, prefix))
                .collect(),
        }
    }
}

/// Returns whether a key has a header, or the intent in its place, in the family of Redis keys.
pub(super) fn is_header(family: ColumnFamily, key: &Bytes) -> bool {
    let engine_key = || family.engine_key(key);
    family == ColumnFamily::Redis
        && redis_key::divide(&engine_key()).is_some_and(|divided| divided.stamp.is_none())
}

fn has_name(key: &Bytes, prefix: &[u8], is_wanted: impl Fn(&KeyPart) -> bool) -> bool {
    let named = redis_key::decode(&ColumnFamily::Redis.engine_key(key));
    // bug backup.redis_prefix_of_pairs: return key.get(2..).is_some_and(|name| name.starts_with(prefix));
    named.is_some_and(|named| named.name.starts_with(prefix) && is_wanted(&named.part))
}

fn is_record(key: &Bytes) -> bool {
    let named = redis_key::decode(&ColumnFamily::Redis.engine_key(key));
    // bug backup.records_left_out: return false;
    named.is_some_and(|named| matches!(named.part, KeyPart::Record { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_keys_with_a_prefix_are_restored_in_every_database_and_no_others() {
        let family = ColumnFamily::Redis;
        let keys = RestoredKeys::RedisNames(Bytes::from_static(b"user:"));
        let names = [("user:1", true), ("user:", true), ("user:{t}", true), ("{user:}1", false)];
        for (database, (name, is_wanted)) in
            (0..redis_key::DATABASES).flat_map(|it| names.map(|name| (it, name)))
        {
            let header = redis_key::header_key(database, name.as_bytes());
            let member = redis_key::member_key(&header, 7, b"user:");
            for pair in [header.slice(1..), member.slice(1..)] {
                assert_eq!(keys.has(family, &pair), is_wanted, "{name}");
                assert_eq!(keys.delete(family, &pair), is_wanted, "{name}");
                let is_within = keys.ranges(family).iter().any(|range| range.contains(&pair));
                assert!(is_within || !is_wanted, "{name}");
            }
            let record = redis_key::record_key(&header, 9).slice(1..);
            assert!(keys.has(family, &record) && !keys.delete(family, &record), "{name}");
        }
        let raw = Bytes::from_static(b"user:1");
        assert!(!keys.has(ColumnFamily::Default, &raw) && !keys.has(family, &raw));
    }

    #[test]
    fn a_prefix_of_rawkv_has_no_redis_key() {
        let keys = RestoredKeys::Raw(KeyRange::prefix(b"k"));
        let key = Bytes::from_static(b"k1");
        assert!(keys.has(ColumnFamily::Lock, &key) && keys.delete(ColumnFamily::Lock, &key));
        assert!(!keys.has(ColumnFamily::Redis, &key) && !keys.take(ColumnFamily::Redis));
        assert!(keys.ranges(ColumnFamily::Redis).is_empty());
        assert_eq!(keys.within(&KeyRange::new("a", "z")), Some(KeyRange::prefix(b"k")));
        assert_eq!(keys.within(&KeyRange::new("a", "c")), None);
        assert!(RestoredKeys::All.has(ColumnFamily::Redis, &key));
    }
}
