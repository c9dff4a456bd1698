use super::*;
use bytes::Bytes;
use stele_simulated_disk::SimVfs;
use stele_types::{
    ClusterId, CommandBuilder, EntryRecord, HardState, LogBatch, LogIndex, Mark, Peer, PeerId,
    Record, RegionId, StoreId, Term,
};

const DIR: &str = "/node";
const JOURNAL: RegionId = RegionId(0);
const DATA: RegionId = RegionId(2);
const TERM: Term = Term(1);
const OWN: StoreId = StoreId(1);

type Pairs<'a> = &'a [(Bytes, Bytes, u64)];

fn options() -> Options {
    Options { background: false, direct_io: false, reserved_bytes: 0, ..Options::default() }
}

/// Creates the directory of store 1. A region's replicas are on the stores given.
struct Written(Store);

impl Written {
    fn new(disk: &SimVfs, regions: &[Region]) -> Self {
        let options = Options { store: Some(StoreId(0x5e1e)), ..options() };
        let (vfs, clock) = (Arc::new(disk.clone()), Arc::new(SystemClock::new()));
        let (store, _) =
            Store::open(vfs, clock, Path::new(DIR), options, Replay::Committed).unwrap();
        let written = Self(store);
        let ident = StoreIdent::new(ClusterId(9), OWN);
        let own = ident.pairs().into_iter().map(|(key, value)| (key, value, 0));
        let mut own: Vec<_> = own.collect();
        own.extend(regions.iter().map(|it| (keyspace::region_key(it.id), it.encode(), 0)));
        written.append(JOURNAL, &[&own], 1);
        written
    }

    /// Appends entries of which the first `commit` are known to be committed.
    fn append(&self, region: RegionId, entries: &[Pairs<'_>], commit: u64) {
        let mut records = vec![Record::Mark(region, Mark::Start(LogIndex(0), Term(0)))];
        for (pairs, index) in entries.iter().zip(1..) {
            let mut command = CommandBuilder::new();
            for (key, value, expires_at_s) in *pairs {
                command.put(key, value, *expires_at_s).unwrap();
            }
            let payload = command.build().bytes().clone();
            let (term, index, is_command) = (TERM, LogIndex(index), true);
            records.push(Record::Entry(EntryRecord { region, term, index, is_command, payload }));
        }
        let hard_state = HardState { term: TERM, vote: 0, commit: LogIndex(commit) };
        records.push(Record::HardState(region, hard_state));
        self.0.append(&LogBatch { records }).unwrap();
    }
}

fn region(id: RegionId, start: &'static str, end: &'static str, stores: &[u64]) -> Region {
    let peer =
        |&store: &u64| Peer { id: PeerId(store), store: StoreId(store), role: PeerRole::Voter };
    let (range, peers) = (KeyRange::new(start, end), stores.iter().map(peer).collect());
    Region { id, range, peers, ..Region::default() }
}

fn user(key: &str, expires_at_s: u64) -> (Bytes, Bytes, u64) {
    let value = Bytes::from(format!("value of {key}"));
    (ColumnFamily::Default.engine_key(key.as_bytes()), value, expires_at_s)
}

fn open(disk: &SimVfs) -> NodeDir {
    NodeDir::open(Arc::new(disk.fork()), Path::new(DIR), options()).unwrap()
}

fn keys(node: &NodeDir, order: Order) -> Vec<String> {
    let pairs = node.pairs(&KeyRange::all(), order, false).map(|pair| {
        let pair = pair.unwrap();
        let key = String::from_utf8(pair.key.to_vec()).unwrap();
        assert_eq!(pair.value, format!("value of {key}"));
        key
    });
    pairs.collect()
}

#[test]
fn only_committed_pairs_of_the_stores_regions_are_read() {
    let disk = SimVfs::default();
    let elsewhere = region(RegionId(3), "m", "", &[2, 3]);
    let written = Written::new(&disk, &[region(DATA, "", "m", &[1, 2, 3]), elsewhere]);
    let entries: [Pairs<'_>; 4] = [
        &[user("a", 0), user("b", 1), user("c", u64::MAX)],
        // It belongs to a region that left this store.
        &[user("z", 0)],
        &[user("d", 0)],
        &[user("a", 1)],
    ];
    written.append(DATA, &entries, 2);
    drop(written);
    let node = open(&disk);
    assert_eq!(keys(&node, Order::Forward), ["a", "c"], "neither `d` nor keys of the store");
    assert_eq!(keys(&node, Order::Reverse), ["c", "a"]);
    assert_eq!(node.get(b"a").unwrap().unwrap().value, "value of a");
    assert!(node.get(b"b").unwrap().is_none(), "it has expired");
    assert!(node.get(b"d").unwrap().is_none());
    let elsewhere = node.get(b"z").unwrap_err().to_string();
    assert!(elsewhere.contains("no replica of the key's region"), "{elsewhere}");
    assert!(node.note().unwrap().starts_with("2 entries in the log may not be committed"));
    assert!(!node.has_all(&KeyRange::all()));
    assert!(node.has_all(&KeyRange::new("b", "m")));
}

#[test]
fn a_region_with_one_vote_is_read_to_its_end_or_to_the_first_change_of_the_region() {
    let changed = [(keyspace::admin_key(DATA), Bytes::from_static(b"change"), 0)];
    for (changes, expected, note) in [
        (false, &["a", "b", "c"][..], None),
        (true, &["a", "b"], Some("2 entries in the log may not be committed")),
    ] {
        let disk = SimVfs::default();
        let written = Written::new(&disk, &[region(DATA, "", "", &[1])]);
        let (a, b, c) = ([user("a", 0)], [user("b", 0)], [user("c", 0)]);
        let mut entries: Vec<Pairs<'_>> = vec![&a, &b, &c];
        if changes {
            entries.insert(2, &changed);
        }
        written.append(DATA, &entries, 1);
        drop(written);
        let node = open(&disk);
        assert_eq!(keys(&node, Order::Forward), expected);
        assert_eq!(node.note().as_deref().and_then(|it| it.split(';').next()), note);
        assert!(node.has_all(&KeyRange::all()));
    }
}

#[test]
fn pairs_are_read_in_pages_in_both_orders() {
    let disk = SimVfs::default();
    let count = 2 * PAGE + 1;
    let parts = [region(DATA, "", "key-00900", &[1]), region(RegionId(3), "key-00900", "", &[1])];
    let written = Written::new(&disk, &parts);
    let key = |n| format!("key-{n:05}");
    let all: Vec<_> = (0..count).map(|n| user(&key(n), 0)).collect();
    let (first, second) = all.split_at(900);
    written.append(DATA, &[first], 0);
    written.append(RegionId(3), &[second], 1);
    drop(written);
    let node = open(&disk);
    let mut expected: Vec<String> = (0..count).map(key).collect();
    assert_eq!(keys(&node, Order::Forward), expected);
    expected.reverse();
    assert_eq!(keys(&node, Order::Reverse), expected);
    let range = KeyRange::new("key-00899", "key-00901");
    assert_eq!(node.pairs(&range, Order::Forward, true).count(), 2);
}

#[test]
fn ranges_of_regions_are_joined_where_they_meet_or_overlap() {
    let joined = |ranges: &[(&'static str, &'static str)]| {
        let regions: Vec<Region> =
            ranges.iter().map(|(start, end)| region(DATA, start, end, &[1])).collect();
        joined(&regions)
    };
    assert_eq!(joined(&[("m", ""), ("", "c"), ("c", "m")]), [KeyRange::all()]);
    let apart = [KeyRange::new("a", "c"), KeyRange::new("d", "g")];
    assert_eq!(joined(&[("d", "f"), ("a", "c"), ("e", "g"), ("d", "e")]), apart);
    assert_eq!(joined(&[("b", ""), ("c", "d")]), [KeyRange::new("b", "")]);
}
