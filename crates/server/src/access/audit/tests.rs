use super::*;
use crate::access::{LiveRules, Origin, Rights, Rules, answer_to};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use stele_tls::{ClientName, ClusterName, NodeName};
use tonic::Code;

struct Log {
    dir: tempfile::TempDir,
    audit: Audit,
}

impl Log {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let audit_log = dir.path().join("audit").display().to_string();
        let audit = Audit::open(&Config { audit_log, ..Config::default() }).unwrap();
        Self { dir, audit }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("audit")
    }

    /// Returns the lines; each must be one object.
    fn lines(&self) -> Vec<Value> {
        self.audit.flush();
        let text = fs::read_to_string(self.path()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn rights(&self, caller: Principal) -> Rights {
        let rules = Rules {
            cluster: ClusterName::new("prod").unwrap(),
            administrators: BTreeSet::from([ClientName::new("root").unwrap()]),
            grants: Arc::default(),
        };
        let rights = Rights::new(caller, Arc::new(LiveRules::new(rules)));
        rights.recorded(self.audit.clone(), "10.0.0.7:401".parse().ok())
    }
}

fn client_of(name: &str) -> Principal {
    Principal::Known(Identity::Client(ClientName::new(name).unwrap()))
}

const DRAIN: &str = "/stele.control.v1.Control/SetStoreState";

#[test]
fn a_refusal_is_recorded_with_caller_address_call_and_reason() {
    let log = Log::new();
    let app = log.rights(client_of("app"));
    for _ in 0..5 {
        assert!(app.check(DRAIN).is_err());
    }
    assert!(app.check("/tikvpb.Tikv/RawPut").is_ok());
    assert!(app.check_node().is_err());
    let lines = log.lines();
    assert_eq!(lines.len(), 3, "{lines:?}");
    let first = &lines[0];
    for (field, text) in [
        ("event", "refused"),
        ("caller", "client"),
        ("name", "app"),
        ("peer", "10.0.0.7:401"),
        ("call", DRAIN),
        ("outcome", "refused"),
        (
            "reason",
            "it is for administrators: name the client in `administrators` of each node, or run `stele ctl \
             access grant NAME --role admin`",
        ),
    ] {
        assert_eq!(first[field], text, "{first}");
    }
    let time = first["time"].as_str().unwrap();
    assert!(time.starts_with("20") && time.ends_with('Z') && time.contains('T'), "{time}");
    assert_eq!((&first["count"], &lines[1]["count"]), (&1.into(), &1.into()));
    // Those that repeated, as one line.
    assert_eq!((&lines[2]["count"], &lines[2]["peer"]), (&4.into(), &"10.0.0.7".into()));
}

#[test]
fn what_a_caller_sends_as_a_path_is_not_in_a_line() {
    let log = Log::new();
    let anonymous = log.rights(Principal::Anonymous);
    assert!(anonymous.check("/a secret\n{\"event\":\"forged\"}").is_err());
    let lines = log.lines();
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["call"], "a path that is not served");
    assert_eq!(lines[0]["caller"], "anonymous");
}

#[tokio::test]
async fn an_administrative_call_is_recorded_with_its_outcome_and_without_values() {
    let log = Log::new();
    let root = log.rights(client_of("root"));
    let begun = || root.admin_call(DRAIN).unwrap();
    let call = begun();
    let via = NodeName::new("n2").ok();
    let origin = Origin { first: client_of("ops"), via, must_call_itself: true };
    answer_to(Some(origin), async { call.describe("store 3".to_owned()) }).await;
    call.end(Code::Ok);
    drop(call);
    begun().end(Code::FailedPrecondition);
    drop(begun());
    for path in ["/stele.control.v1.Control/ListStores", "/tikvpb.Tikv/RawPut", "/metrics"] {
        assert!(root.admin_call(path).is_none(), "{path}");
    }
    let lines = log.lines();
    let of = |nth: usize, field: &str| lines[nth][field].as_str().unwrap_or_default().to_owned();
    assert_eq!(lines.len(), 3);
    assert_eq!((of(0, "event"), of(0, "name")), ("administration".to_owned(), "root".to_owned()));
    assert_eq!((of(0, "call"), of(0, "arguments")), (DRAIN.to_owned(), "store 3".to_owned()));
    assert_eq!((of(0, "outcome"), of(0, "for")), ("ok".to_owned(), "client ops".to_owned()));
    let failed = ("failed".to_owned(), "FailedPrecondition".to_owned());
    assert_eq!((of(1, "outcome"), of(1, "reason")), failed);
    assert_eq!(of(2, "outcome"), "unknown");
}

#[test]
fn an_identity_is_recorded_when_it_connects_for_the_first_time() {
    let log = Log::new();
    for _ in 0..3 {
        log.audit.connected(&client_of("app"), "10.0.0.7:401");
        log.audit.connected(&Principal::Anonymous, "10.0.0.7:401");
    }
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!((&lines[0]["event"], &lines[0]["name"]), (&"first_seen".into(), &"app".into()));
    let name = |nth: usize| client_of(&format!("c{nth}"));
    // The queue has its bound too.
    for nth in 0..SEEN_MAX + 100 {
        log.audit.connected(&name(nth), "10.0.0.7:401");
        if nth % 500 == 0 {
            log.audit.flush();
        }
    }
    let lines = log.lines();
    assert_eq!(lines.len(), SEEN_MAX);
    let last = lines.last().unwrap()["reason"].as_str().unwrap();
    assert!(last.contains("further ones are not recorded"), "{last}");
}

#[test]
fn lines_that_cannot_be_written_are_counted_and_the_log_says_so_when_it_goes_on() {
    let log = Log::new();
    fs::remove_file(log.path()).unwrap();
    fs::create_dir(log.path()).unwrap();
    for nth in 0..3 {
        log.audit.connected(&client_of(&format!("c{nth}")), "10.0.0.7:401");
    }
    log.audit.flush();
    assert_eq!(log.audit.lost(), Some(3));
    fs::remove_dir(log.path()).unwrap();
    log.audit.connected(&client_of("last"), "10.0.0.7:401");
    let lines = log.lines();
    assert_eq!((&lines[0]["event"], &lines[0]["count"]), (&"lost".into(), &3.into()));
    assert_eq!((lines.len(), &lines[1]["name"]), (2, &"last".into()));
}

#[test]
fn a_full_queue_delays_nothing_and_is_counted() {
    let (lines, received) = sync_channel(QUEUE_MAX);
    let state = Arc::new(State::default());
    // No thread takes anything.
    let audit = Audit(Some(Arc::new(Shared { lines, state })));
    for nth in 0..QUEUE_MAX + 7 {
        audit.connected(&client_of(&format!("c{nth}")), "10.0.0.7:401");
    }
    assert_eq!(audit.lost(), Some(7));
    audit.flush();
    drop(received);
    audit.connected(&client_of("later"), "10.0.0.7:401");
    assert_eq!(audit.lost(), Some(8));
}

#[test]
fn a_long_text_is_cut_between_characters() {
    assert_eq!(cut(&"ü".repeat(300)).len(), TEXT_BYTES_MAX);
    assert_eq!(cut(&format!("x{}", "ü".repeat(300))).len(), TEXT_BYTES_MAX - 1);
    assert_eq!((cut("ok"), cut("")), ("ok", ""));
}

#[test]
fn without_the_setting_nothing_is_recorded() {
    let audit = Audit::open(&Config::default()).unwrap();
    audit.connected(&client_of("app"), "10.0.0.7:401");
    audit.flush();
    assert_eq!(audit.lost(), None);
}
