//! Targets for the content of entries, pairs and descriptors.

use super::SMALL;
use crate::{Bound, Target};
use bytes::Bytes;
use stele_placement::{Cluster, Millis, Store, pairs};
use stele_types::{
    ClusterId, ColumnFamily, Command, CommandBuilder, FileId, KeyRange, Locator, LogIndex, Lsn, Op,
    Peer, PeerId, PeerRole, Region, RegionEpoch, RegionId, RegionPhase, StoreId, StoreIdent, Term,
    keyspace, varint,
};

pub(super) const COMMAND: Target = Target {
    name: "command",
    run: command,
    seeds: || {
        vec![sample_command().bytes().to_vec(), CommandBuilder::new().build().bytes().to_vec()]
    },
    fix_checksums: None,
    bound: SMALL,
};

pub(super) fn sample_command() -> Command {
    let mut builder = CommandBuilder::new();
    let key = |key: &[u8]| ColumnFamily::Default.engine_key(key);
    builder.put(&key(b"a"), b"one", 0).unwrap();
    builder.put(&key(b"bb"), &[7; 200], 77).unwrap();
    builder.delete(&key(b"c")).unwrap();
    builder.delete_range(&key(b"d"), b"").unwrap();
    builder.put(b"", b"", 1 << 40).unwrap();
    builder.build()
}

fn command(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let walked = Command::ops_of(&bytes).map(Iterator::count);
    let mut given = 0;
    let whole = Command::each_op_of(&bytes, |_| given += 1);
    assert_eq!(whole.then_some(given), walked);
    let Ok(parsed) = Command::parse(bytes.clone()) else { return };
    assert_eq!(walked, Some(parsed.ops().count()));
    let mut again = CommandBuilder::new();
    for op in parsed.ops() {
        let at = Lsn::new(FileId(1), 1000);
        if let (Some(locator), Op::Put { value, .. }) = (op.locator(at), &op) {
            let begin = (locator.offset - at.offset) as usize;
            assert_eq!(&&bytes[begin..begin + locator.length as usize], value);
        }
        match op {
            Op::Put { key, value, value_crc, expires_at_s, .. } => {
                again.put_with_crc(key, value, value_crc, expires_at_s).unwrap();
            }
            Op::Delete { key } => drop(again.delete(key).unwrap()),
            Op::DeleteRange { start, end } => drop(again.delete_range(start, end).unwrap()),
        }
    }
    let again = again.build();
    // Numbers may be encoded in more bytes than needed: operations are equal, but not the bytes.
    let operations = |command: &Command| -> Vec<String> {
        let fact = |op| match op {
            Op::Put { key, value, value_crc, expires_at_s, .. } => {
                format!("{key:?} {value:?} {value_crc} {expires_at_s}")
            }
            other => format!("{other:?}"),
        };
        command.ops().map(fact).collect()
    };
    if input.len() < 4096 {
        assert_eq!(operations(&again), operations(&parsed));
    }
    assert!(again.bytes().len() <= input.len());
}

pub(super) const LOCATOR: Target = Target {
    name: "locator",
    run: |input| {
        let Some(locator) = Locator::decode(input) else { return };
        assert_eq!(&locator.encode()[..], input);
        let _ = (locator.check(input), locator.to_string(), Lsn::from_u64(locator.lsn().as_u64()));
    },
    seeds: || {
        let locator = Locator { file: FileId(7), offset: 4096, length: 100, crc: 0x1234_5678 };
        vec![locator.encode().to_vec()]
    },
    fix_checksums: None,
    bound: SMALL,
};

pub(super) const REGION: Target = Target {
    name: "region",
    run: |input| {
        let Ok(region) = Region::decode(input) else { return };
        let bytes = region.encode();
        assert_eq!(Region::decode(&bytes).unwrap(), region);
        assert!(bytes.len() <= input.len());
        region.engine_ranges();
        region.is_joint();
    },
    seeds: || vec![sample_region(7).encode().to_vec(), merging().encode().to_vec()],
    fix_checksums: None,
    bound: SMALL,
};

pub(super) fn sample_region(id: u64) -> Region {
    let peer = |n| Peer { id: PeerId(id * 10 + n), store: StoreId(n), role: PeerRole::Voter };
    Region {
        id: RegionId(id),
        range: KeyRange::new(&b"b"[..], &b"m"[..]),
        epoch: RegionEpoch { conf_version: 3, version: 300 },
        peers: vec![peer(1), peer(2), peer(3)],
        ..Region::default()
    }
}

fn merging() -> Region {
    let target_epoch = RegionEpoch { conf_version: 1, version: 1 << 40 };
    let (target, prepared, term) = (RegionId(9), LogIndex(300), Term(5));
    let phase = RegionPhase::Merging { target, prepared, term, target_epoch };
    Region { phase, ..sample_region(8) }
}

pub(super) const STORE_IDENT: Target = Target {
    name: "store_ident",
    run: |input| {
        let whole = StoreIdent::decode(input, None);
        // The first byte is the length of the first value.
        let parts = input.split_first().and_then(|(length, rest)| {
            let (own, tick) = rest.split_at_checked(usize::from(*length))?;
            StoreIdent::decode(own, Some(tick)).ok()
        });
        for ident in whole.into_iter().chain(parts) {
            let pairs = ident.pairs();
            let tick = pairs.get(1).map(|(_, value)| &value[..]);
            assert_eq!(StoreIdent::decode(&pairs[0].1, tick).unwrap(), ident);
        }
    },
    seeds: || {
        let ident = StoreIdent::new(ClusterId(u64::MAX), StoreId(300));
        let own = ident.pairs()[0].1.to_vec();
        let parts = [&[own.len() as u8], &own[..], &[20]].concat();
        vec![own, parts]
    },
    fix_checksums: None,
    bound: SMALL,
};

pub(super) const ENGINE_KEY: Target = Target {
    name: "engine_key",
    run: |input| {
        let key = Bytes::copy_from_slice(input);
        if let Some(user_key) = keyspace::user_key(&key) {
            assert_eq!(keyspace::in_space(input[0], &user_key), key);
        }
        if let Some(region) = keyspace::region_of_key(&key) {
            assert_eq!(keyspace::region_key(region), key);
            assert!(keyspace::region_keys().contains(&key));
        }
        keyspace::is_admin_key(&key);
        assert!(KeyRange::prefix(&key).contains(&key));
        if let Ok(name) = std::str::from_utf8(input) {
            ColumnFamily::from_name(name);
        }
    },
    seeds: || {
        let keys = [keyspace::region_key(RegionId(7)), keyspace::admin_key(RegionId(7))];
        let user = ColumnFamily::Lock.engine_key(b"user");
        keys.into_iter().chain([user]).map(|key| key.to_vec()).collect()
    },
    fix_checksums: None,
    bound: SMALL,
};

pub(super) const VARINT: Target = Target {
    name: "varint",
    run: |input| {
        let mut rest = input;
        while let Some(number) = varint::take(&mut rest) {
            let mut out = Vec::new();
            varint::put(&mut out, number);
            assert_eq!(varint::len(number), out.len());
            assert_eq!(varint::take(&mut &out[..]), Some(number));
        }
        let mut rest = input;
        while let Some(bytes) = varint::take_bytes(&mut rest) {
            let mut out = Vec::new();
            varint::put_bytes(&mut out, bytes);
            assert_eq!(varint::take_bytes(&mut &out[..]), Some(bytes));
        }
    },
    seeds: || {
        let mut out = Vec::new();
        [0, 127, 128, u64::MAX].into_iter().for_each(|number| varint::put(&mut out, number));
        varint::put_bytes(&mut out, b"bytes");
        vec![out]
    },
    fix_checksums: None,
    bound: SMALL,
};

pub(super) const GC_STATE: Target = Target {
    name: "gc_state",
    run: |input| {
        let Some(bytes) = stele_gc::fuzzing::saved(input) else { return };
        // A share is stored in millionths: the second encoding equals the first.
        let again = stele_gc::fuzzing::saved(&bytes).unwrap();
        assert_eq!(stele_gc::fuzzing::saved(&again), Some(again));
    },
    // Version 1; eight numbers; two sorted files; a plan of each kind.
    seeds: || {
        let header = [1, 9, 3, 200, 1, 77, 1, 2, 3, 4, 2, 5, 6];
        let plans: [&[u8]; 3] = [&[0], &[1, 2, 7, 8], &[2, 1, b'a', 1, b'm', 1, 9]];
        plans.iter().map(|plan| [&header, *plan].concat()).collect()
    },
    fix_checksums: None,
    bound: SMALL,
};

pub(super) const ADMIN_ENTRY: Target = Target {
    name: "admin_entry",
    run: |input| {
        let Some(command) = stele_replica::fuzzing::admin(input) else { return };
        let again = stele_replica::fuzzing::admin(command.bytes());
        assert_eq!(again.as_ref(), Some(&command));
    },
    seeds: || {
        // A record holds format, region, kind and payload.
        let records: [&[u8]; 5] = [
            &[1, 7, 0, 1, 1, 90, 3, 1],
            &[1, 7, 1],
            &[1, 7, 2, 1],
            &[1, 7, 3, 9, 30, 5],
            &[1, 7, 5],
        ];
        let entry = |record: &&[u8]| {
            let mut builder = CommandBuilder::new();
            builder.put(&keyspace::admin_key(RegionId(7)), record, 0).unwrap();
            for region in [sample_region(7), sample_region(8)] {
                builder.put(&keyspace::region_key(region.id), &region.encode(), 0).unwrap();
            }
            builder.build().bytes().to_vec()
        };
        records.iter().map(entry).collect()
    },
    fix_checksums: None,
    bound: SMALL,
};

fn sample_store() -> Store {
    Store {
        id: StoreId(7),
        address: "host:20160".into(),
        token: Bytes::from_static(b"drawn"),
        capacity_bytes: 1 << 40,
        labels: vec![("zone".into(), "a".into()), ("rack".into(), String::new())],
        ..Store::default()
    }
}

pub(super) const PLACEMENT_STORE: Target = Target {
    name: "placement_store",
    run: |input| {
        let Ok(store) = Store::decode(StoreId(7), input) else { return };
        assert_eq!(Store::decode(StoreId(7), &store.encode()).unwrap(), store);
    },
    seeds: || vec![sample_store().encode().to_vec()],
    fix_checksums: None,
    bound: SMALL,
};

/// Pairs: a byte-string key and a byte-string value, both length-prefixed.
pub(super) const PLACEMENT_PAIRS: Target = Target {
    name: "placement_pairs",
    run: |input| {
        let mut rest = input;
        let mut read = || {
            let (key, value) = (varint::take_bytes(&mut rest)?, varint::take_bytes(&mut rest)?);
            Some((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)))
        };
        let pairs: Vec<(Bytes, Bytes)> = std::iter::from_fn(&mut read).collect();
        let Ok(Some(mut cluster)) = Cluster::load(pairs.clone(), Millis(1), 1) else { return };
        let change = |(key, value)| pairs::PairChange { key, value: Some(value) };
        let changes: Vec<_> = pairs.into_iter().map(change).collect();
        cluster.apply(&changes).unwrap();
    },
    seeds: || {
        let changes = [
            pairs::cluster(ClusterId(9)),
            pairs::ids(1000),
            pairs::members(4),
            pairs::setting("replicas", 5),
            pairs::region(&sample_region(7)),
            pairs::store(&sample_store()),
        ];
        let mut out = Vec::new();
        for change in changes {
            varint::put_bytes(&mut out, &change.key);
            varint::put_bytes(&mut out, &change.value.unwrap_or_default());
        }
        vec![out]
    },
    fix_checksums: None,
    bound: Bound { bytes: 64 << 10, per_byte: 256 },
};
