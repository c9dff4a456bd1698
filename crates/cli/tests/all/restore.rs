//! `stele restore` of a backup that was made of a model: into a node, into a store, and of one key.

use crate::common::{Ran, run};
use crate::node_process::{Node, until};
use bytes::Bytes;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use stele_backup::format::{
    Base, BaseSeq, Chunk, Cut, Family, LogObject, LogSeq, Moment, Pair, Part, Record, RunId, Write,
};
use stele_backup::restore::access_text;
use stele_backup::{OpenOptions, Repository};
use stele_client::messages::AccessGrant;
use stele_client::{Client, Ttl};
use stele_types::{ClusterId, ColumnFamily, KeyRange, LogIndex, MomentId, RegionId, Term};
use tokio::runtime::Runtime;

const HOUR_S: u64 = 3600;

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn pair(key: &str, value: &str, expires_at_s: u64) -> Pair {
    Pair { key: key.to_owned().into(), value: value.to_owned().into(), expires_at_s }
}

fn part(family: Family, range: KeyRange, region: u64) -> Part {
    Part { family, range, region: RegionId(region), index: LogIndex(9), chunks: Vec::new() }
}

fn record(region: u64, index: u64, write: Write) -> Record {
    let (region, index) = (RegionId(region), LogIndex(index));
    Record { region, index, family: Family::Default, write }
}

fn moment(number: u64, last_log: u64) -> Moment {
    let cut = |start: &'static str, end: &'static str, region| Cut {
        range: KeyRange::new(start, end),
        region: RegionId(region),
        term: Term(6),
        index: LogIndex(20),
    };
    Moment {
        number: MomentId(number),
        run: RunId(1),
        last_log: LogSeq(last_log),
        vector: vec![cut("", "m", 2), cut("m", "", 8)],
        clocks_unix_ms: vec![(1, number * 1000), (2, number * 1000 + 40)],
        program: "0.2.0".to_owned(),
        level: 2,
    }
}

/// Makes a backup with moments 1000 and 2000. The second one has the writes of the log.
async fn backup(dir: &Path) {
    let url = dir.to_str().unwrap();
    let options = OpenOptions::default();
    let repository = Repository::create_or_open(url, &options, ClusterId(7)).await.unwrap();
    let (run, seq) = (RunId(1), BaseSeq(0));
    let begun = repository.begin_base(run, seq).await.unwrap();
    let later = now_s() + HOUR_S;
    let mut parts = vec![
        part(Family::Default, KeyRange::new("", "m"), 2),
        part(Family::Default, KeyRange::new("m", ""), 8),
        part(Family::Lock, KeyRange::all(), 2),
    ];
    let pairs = [
        vec![pair("a", "base", 0), pair("b", "base", later), pair("c", "base", 0)],
        vec![pair("x", "base", 0), pair("y", "shifted", 5000)],
        vec![pair("a", "lock", 0)],
    ];
    for (part, pairs) in parts.iter_mut().zip(pairs) {
        part.chunks.push(repository.put_chunk(&begun, &Chunk { pairs }).await.unwrap().0);
    }
    let grants = [AccessGrant { name: "app".to_owned(), permissions: 3, ..Default::default() }];
    let access = Some(access_text(&grants).unwrap());
    let settings = vec![("balance".to_owned(), "0".to_owned())];
    let base = Base { run, seq, parts, settings, access, ..Base::default() };
    repository.put_base(begun, &base).await.unwrap();
    let writes = [
        record(2, 10, Write::Put(pair("a", "second", 0))),
        record(2, 11, Write::Delete(Bytes::from_static(b"c"))),
        record(8, 10, Write::DeleteRange(KeyRange::new("m", "y"))),
        record(8, 11, Write::Put(pair("z", "second", 0))),
        record(2, 12, Write::Put(pair("a", "third", 0))),
    ];
    for (number, last_log, records) in [(1000, 0, Vec::new()), (2000, 1, writes.into())] {
        let (seq, moment) = (LogSeq(last_log), moment(number, last_log));
        let ends_at = Some(moment.number);
        let log = LogObject { run, seq, records, moment: ends_at, ..LogObject::default() };
        repository.put_log(&log).await.unwrap();
        repository.put_moment(&moment).await.unwrap();
    }
}

/// A backup, and commands about it.
struct Setting {
    root: tempfile::TempDir,
    runtime: Runtime,
}

impl Setting {
    fn new() -> Self {
        let (root, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
        runtime.block_on(backup(&root.path().join("backup")));
        Self { root, runtime }
    }

    fn restore(&self, options: &str) -> Ran {
        let (from, store) = (self.root.path().join("backup"), self.root.path().join("store"));
        run(&store, format!("restore --from {} {options}", from.display()).trim_end())
    }
}

async fn values(client: &Client) -> Vec<(String, String)> {
    let mut scan = client.scan(KeyRange::all(), Default::default());
    let mut found = Vec::new();
    while let Some(page) = scan.next_page().await.unwrap() {
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        found.extend(page.iter().map(|pair| (text(&pair.key), text(&pair.value))));
    }
    found
}

fn texts(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn a_backup_is_restored_into_a_cluster_a_prefix_and_a_store() {
    let setting = Setting::new();
    let node = Node::start(&setting.root.path().join("node"), "127.0.0.1:0", &[]);
    let cluster = format!("--cluster {}", node.address);
    until(setting.root.path(), &format!("count {cluster}"), |count| count.trim() == "0");

    let restored = setting.restore(&format!("{cluster} --to-time 1500 --with-settings")).ok();
    let text = restored.text();
    assert!(text.contains("moment 1000 at 1970-01-01T00:16:40.04Z"), "{text}");
    assert!(text.contains("differ by 40 ms; the next is moment 2000"), "{text}");
    assert!(text.contains("access [{\"name\":\"app\"") && !text.contains("setting"), "{text}");
    assert!(restored.err.contains("has 2 regions"), "{restored:?}");
    let setting_of = run(setting.root.path(), &format!("ctl {cluster} config balance --json")).ok();
    assert_eq!(setting_of.json()["value"], "0");
    let client = setting.runtime.block_on(Client::connect(&[&node.address])).unwrap();
    setting.runtime.block_on(async {
        let base = [("a", "base"), ("b", "base"), ("c", "base"), ("x", "base")];
        assert_eq!(values(&client).await, texts(&base));
        assert_eq!(values(&client.family(ColumnFamily::Lock)).await, texts(&[("a", "lock")]));
        let Some(Ttl::Seconds(ttl_s)) = client.ttl("b").await.unwrap() else { panic!("no expiry") };
        assert!((HOUR_S - 120..=HOUR_S).contains(&ttl_s), "{ttl_s}");
    });

    setting.restore(&cluster).fails(1, "the cluster has data");
    // As if that restore had been interrupted before two pairs, and these were written otherwise.
    setting.runtime.block_on(async {
        client.delete("c").await.unwrap();
        client.put("b", "base").await.unwrap();
    });
    let again = setting.restore(&format!("{cluster} --moment 1000 --continue")).ok();
    assert!(again.err.contains("restored 2 pairs of the base"), "{again:?}");
    assert!(again.err.contains("the cluster had 3 pairs"), "{again:?}");
    setting.runtime.block_on(async {
        assert!(matches!(client.ttl("b").await.unwrap(), Some(Ttl::Seconds(_))), "its expiry");
        assert_eq!(client.get("c").await.unwrap().as_deref(), Some(&b"base"[..]));
    });
    // Over the former moment.
    setting.restore(&format!("{cluster} --moment 2000 --continue --shift-expiry")).ok();
    setting.runtime.block_on(async {
        let second = [("a", "third"), ("b", "base"), ("y", "shifted"), ("z", "second")];
        assert_eq!(values(&client).await, texts(&second));
        client.put("a2", "other").await.unwrap();
        client.put("k", "kept").await.unwrap();
    });
    let prefix = format!("{cluster} --moment 1000 --prefix a");
    setting.restore(&prefix).fails(1, "not atomic");
    setting.restore(&format!("{prefix} --yes")).ok();
    setting.runtime.block_on(async {
        let expected =
            [("a", "base"), ("b", "base"), ("k", "kept"), ("y", "shifted"), ("z", "second")];
        assert_eq!(values(&client).await, texts(&expected));
    });

    let left_out = setting.restore("--store $").fails(1, "1 writes of the column families");
    assert!(left_out.text().contains("setting balance = 0"), "{left_out:?}");
    let scan = run(&setting.root.path().join("store"), "scan --store $").ok();
    assert_eq!(scan.text(), "a\tthird\nb\tbase\nz\tsecond\n");
    setting.restore("--store $").fails(1, "holds a store already");
    setting.restore("--store $ --moment 2000 --continue").fails(1, "are left out");
    assert!(setting.restore("").ok().text().contains("nothing was written"));
    setting.restore("--moment 1500").fails(1, "such as 1000 or 2000");
    setting.restore("--to-time yesterday").fails(2, "is not a time");
    drop(client);
    node.stop();
}

#[test]
fn a_key_is_restored_to_one_of_its_writes() {
    let setting = Setting::new();
    let listed = setting.restore("--of-key a --history").ok();
    let second = r#"{"at":"2:10","event":"put","moment":2000,"value":"second"}"#;
    let third = r#"{"at":"2:12","event":"put","moment":2000,"value":"third"}"#;
    assert_eq!(listed.text(), format!("{second}\n{third}\n"));
    let deleted = setting.restore("--of-key 78 --history --hex").ok();
    assert_eq!(deleted.text(), "{\"at\":\"8:10\",\"event\":\"delete_range\",\"moment\":2000}\n");
    setting.restore("--of-key a").fails(2, "--history");
    setting.restore("--of-key a --to-index 8:99").fails(1, "no write of the key in region 8");

    let node = Node::start(&setting.root.path().join("node"), "127.0.0.1:0", &[]);
    let cluster = format!("--cluster {}", node.address);
    let put = format!("put {cluster} a changed");
    until(setting.root.path(), &put, |_| true);
    let to = |index: u64| format!("{cluster} --of-key a --to-index 2:{index}");
    setting.restore(&to(11)).fails(1, "add `--yes`");
    assert_eq!(setting.restore(&format!("{} --yes", to(11))).ok().text(), format!("{second}\n"));
    let get = |key: &str| run(setting.root.path(), &format!("get {cluster} {key}"));
    assert_eq!(get("a").ok().text().trim_end(), "second");
    let deleted = format!("{cluster} --of-key c --to-index 2:11 --yes");
    until(setting.root.path(), &format!("put {cluster} c changed"), |_| true);
    setting.restore(&deleted).ok();
    get("c").fails(3, "");
    node.stop();
}
