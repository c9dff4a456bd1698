//! Laws of ingestion: staged pairs are not readable until they are installed, all at once.

use super::subject::{Subject, contents, pair, refused};
use super::{Check, Factory, Law};
use stele_storage::{EngineView, ScanOptions, Snapshots, StateMachine};
use stele_types::{KeyRange, LogIndex, RegionId, Term};

pub(super) fn laws<F: Factory>() -> Vec<Law<F>> {
    vec![
        (
            "ingest: not readable before installation, removed when dropped and after a crash",
            staged_until_installed,
        ),
        ("ingest: several at a time, with concurrent writes", several),
        ("ingest: ranges ascend, are disjoint and not empty", ranges_refused),
        ("install: all ranges of a region at once", many_ranges),
        ("install: over a region that was destroyed", over_destroyed),
        ("install: an earlier view still shows the earlier pairs", earlier_view),
        ("drop ranges: many at once", drop_many),
    ]
}

const AT: (LogIndex, Term) = (LogIndex(30), Term(4));

fn long(text: &str) -> String {
    text.repeat(100)
}

fn staged_until_installed<F: Factory>(factory: &F) -> Check {
    let mut subject = Subject::new(factory, 1)?;
    subject.commit(1, 1, &[("a", Some("1")), ("b", Some("1"))])?;
    for round in 0..3 {
        let mut ingest = subject.engine.begin_ingest(vec![KeyRange::new("a", "m")])?;
        let value = long("new");
        subject.engine.receive(&mut ingest, vec![pair("a", &value), pair("c", "2")])?;
        subject.finish_maintenance()?;
        ensure_eq!(subject.contents()?, vec!["a=1", "b=1"], "pairs while others are staged");
        if round == 0 {
            drop(ingest);
            subject.finish_maintenance()?;
        } else {
            subject = subject.crash(round)?;
            subject.apply(1, 1)?;
        }
        ensure_eq!(subject.contents()?, vec!["a=1", "b=1"], "pairs after round {round}");
        ensure_eq!(subject.progress(1)?.persisted.0, LogIndex(1), "log after round {round}");
    }
    Ok(())
}

fn several<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 2)?;
    let value = long("value");
    subject.commit(1, 1, &[("a1", Some("old")), ("b1", Some("old")), ("z", Some("1"))])?;
    let mut first = subject.engine.begin_ingest(vec![KeyRange::prefix(b"a")])?;
    let mut second = subject.engine.begin_ingest(vec![KeyRange::prefix(b"b")])?;
    for number in 2..40 {
        let key = |space: &str| format!("{space}{number:02}");
        subject.engine.receive(&mut first, vec![pair(&key("a"), &value)])?;
        subject.engine.receive(&mut second, vec![pair(&key("b"), &value)])?;
        subject.commit(1, number, &[(&key("z"), Some(&value))])?;
        if number % 10 == 0 {
            subject.finish_maintenance()?;
        }
    }
    // Not in the order in which they were begun.
    subject.engine.install(RegionId(3), AT, second)?;
    ensure_eq!(subject.contents()?[0], "a1=old", "first pair between two installations");
    subject.engine.install(RegionId(2), AT, first)?;
    for round in 0..2 {
        let pairs = subject.contents()?;
        let count = |space: &str| pairs.iter().filter(|pair| pair.starts_with(space)).count();
        ensure_eq!((count("a"), count("b"), count("z")), (38, 38, 39), "pairs in round {round}");
        subject.finish_maintenance()?;
    }
    Ok(())
}

fn ranges_refused<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 3)?;
    let range = |start: &'static str, end: &'static str| KeyRange::new(start, end);
    let lists = [
        ("no range", vec![]),
        ("an empty range", vec![range("a", "b"), range("c", "c")]),
        ("ranges that overlap", vec![range("a", "c"), range("b", "d")]),
        ("ranges that descend", vec![range("c", "d"), range("a", "b")]),
        ("a range after an unbounded one", vec![range("a", ""), range("b", "c")]),
    ];
    for (what, list) in lists {
        refused(subject.engine.begin_ingest(list.clone()), what)?;
        refused(subject.engine.drop_ranges(&list), what)?;
    }
    Ok(())
}

fn many_ranges<F: Factory>(factory: &F) -> Check {
    let mut subject = Subject::new(factory, 4)?;
    let old = [("a", Some("0")), ("b", Some("0")), ("c", Some("0")), ("d", Some("0"))];
    subject.commit(1, 1, &old)?;
    let ranges = [KeyRange::new("a", "b"), KeyRange::new("b5", "c5"), KeyRange::new("e", "")];
    let value = long("new");
    let pairs = [pair("a5", &value), pair("b7", "1"), pair("e", &value), pair("f", "1")];
    subject.install(2, &ranges, AT, &pairs)?;
    let (a5, e) = (format!("a5={value}"), format!("e={value}"));
    for round in 0..3 {
        let wanted = [&a5, "b=0", "b7=1", "d=0", &e, "f=1"];
        ensure_eq!(subject.contents()?, wanted, "pairs in round {round}");
        ensure_eq!(subject.progress(2)?.truncated, AT, "start of the log");
        subject = subject.crash(round)?;
        subject.apply(1, 1)?;
        if round == 1 {
            subject.finish_maintenance()?;
        }
    }
    let mut ingest = subject.engine.begin_ingest(ranges.to_vec())?;
    let between = subject.engine.receive(&mut ingest, vec![pair("a", "1"), pair("b2", "1")]);
    refused(between, "a key between two ranges")
}

fn over_destroyed<F: Factory>(factory: &F) -> Check {
    let mut subject = Subject::new(factory, 5)?;
    for index in 1..=50 {
        subject.commit(1, index, &[("a", Some("old"))])?;
    }
    subject.finish_maintenance()?;
    subject.append(vec![super::subject::mark(1, stele_types::Mark::Destroy)])?;
    subject.install(1, &[KeyRange::all()], AT, &[pair("a", "new")])?;
    for round in 0..2 {
        let progress = subject.progress(1)?;
        ensure_eq!((progress.truncated, progress.applied), (AT, AT.0), "progress");
        ensure!(!progress.destroyed, "the reinstalled region counts as destroyed");
        ensure_eq!(subject.contents()?, vec!["a=new"], "pairs");
        subject = subject.crash(round)?;
    }
    Ok(())
}

fn earlier_view<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 6)?;
    let value = long("old");
    for index in 1..=40 {
        subject.commit(1, index, &[(&format!("k{index:02}"), Some(&value))])?;
    }
    let views = (0..8).map(|_| subject.engine.view()).collect::<Result<Vec<_>, _>>()?;
    subject.install(2, &[KeyRange::prefix(b"k")], AT, &[pair("k", "new")])?;
    subject.finish_maintenance()?;
    ensure_eq!(subject.contents()?, vec!["k=new"], "pairs");
    for view in &views {
        ensure_eq!(contents(view)?.len(), 40, "pairs of an earlier view");
        let part = ScanOptions::new(KeyRange::new("k10", "k20"), 100);
        let pairs = view.scan(&part)?;
        let whole = pairs.iter().all(|pair| pair.value == value.as_bytes());
        ensure!(pairs.len() == 10 && whole, "a pair of an earlier view is gone or changed");
    }
    Ok(())
}

fn drop_many<F: Factory>(factory: &F) -> Check {
    let mut subject = Subject::new(factory, 7)?;
    let value = long("v");
    let keys = ["a", "b", "c", "d", "e"];
    let writes: Vec<_> = keys.iter().map(|key| (*key, Some(&*value))).collect();
    subject.commit(1, 1, &writes)?;
    subject.engine.drop_ranges(&[KeyRange::new("a", "b"), KeyRange::new("c", "e")])?;
    for round in 0..3 {
        let pairs = subject.contents()?;
        let keys: Vec<&str> = pairs.iter().map(|pair| &pair[..1]).collect();
        ensure_eq!(keys, vec!["b", "e"], "keys in round {round}");
        subject.finish_maintenance()?;
        subject = subject.crash(round)?;
        subject.apply(1, 1)?;
    }
    Ok(())
}
