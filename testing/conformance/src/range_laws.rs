//! Laws of ranges: a range moves completely or not at all.

use super::subject::{Subject, entry, everything, pair, refused, texts};
use super::{Check, Factory, Law};
use bytes::Bytes;
use stele_storage::{EngineView, Snapshots, StateMachine};
use stele_types::{KeyRange, LogIndex, RegionId, Term};

pub(super) fn laws<F: Factory>() -> Vec<Law<F>> {
    vec![
        ("install: replaces the range and starts the log", install),
        ("install: all or nothing", install_fails),
        ("install: the pairs of another store's view", install_viewed),
        ("drop range: durable without a log entry", drop_range),
    ]
}

const REGION: RegionId = RegionId(1);

fn install<F: Factory>(factory: &F) -> Check {
    let mut subject = Subject::new(factory, 3)?;
    subject.commit(1, 1, &[("m", Some("1")), ("n", Some("1"))])?;
    subject.commit(2, 1, &[("a", Some("1")), ("z", Some("1"))])?;
    let long = "long".repeat(100);
    let pairs = [pair("l", &long), pair("n", ""), pair("o", "new")];
    let range = KeyRange::new("l", "p");
    let at = (LogIndex(20), Term(6));
    subject.install(1, &[range], at, &pairs)?;
    let long_pair = format!("l={long}");
    for round in 0..3 {
        let wanted = ["a=1", &long_pair, "n=", "o=new", "z=1"];
        ensure_eq!(subject.contents()?, wanted, "pairs in round {round}");
        let progress = subject.progress(1)?;
        ensure_eq!(progress.truncated, at, "start of the log");
        ensure_eq!((progress.applied, progress.persisted), (at.0, at), "progress");
        ensure_eq!(progress.checkpointed, at.0, "an installed range needs no log");
        if round == 1 {
            subject.finish_maintenance()?;
        }
        subject = subject.crash(round)?;
        subject.apply(2, 1)?;
    }
    refused(subject.append(vec![entry(1, 2, 6, &[])]), "an entry below the start of the log")?;
    subject.append(vec![entry(1, 21, 6, &[("o", Some("newer"))])])?;
    subject.apply(1, 21)?;
    let found = subject.engine.view()?.get(b"o")?.map(|pair| pair.value);
    ensure_eq!(found, Some(Bytes::from_static(b"newer")), "a write after the install");
    Ok(())
}

fn install_fails<F: Factory>(factory: &F) -> Check {
    let mut subject = Subject::new(factory, 4)?;
    subject.commit(1, 1, &[("a", Some("1")), ("b", Some("1"))])?;
    let range = KeyRange::new("a", "m");
    let long = "long".repeat(100);
    let sources = [
        ("a key outside the range", [pair("a", &long), pair("x", "1")]),
        ("keys that do not ascend", [pair("b", &long), pair("a", "1")]),
    ];
    for (what, pairs) in sources {
        let mut ingest = subject.engine.begin_ingest(vec![range.clone()])?;
        refused(subject.engine.receive(&mut ingest, pairs.to_vec()), what)?;
        let installed = subject.engine.install(REGION, (LogIndex(9), Term(2)), ingest);
        refused(installed, "installing refused pairs")?;
        for round in 0..2 {
            ensure_eq!(subject.contents()?, vec!["a=1", "b=1"], "pairs after {what}");
            ensure_eq!(subject.progress(1)?.persisted.0, LogIndex(1), "log after {what}");
            subject = subject.crash(round)?;
            subject.apply(1, 1)?;
        }
    }
    Ok(())
}

fn install_viewed<F: Factory>(factory: &F) -> Check {
    let from = Subject::new(factory, 5)?;
    let to = Subject::new(factory, 6)?;
    for index in 1..=50 {
        let value = format!("{index}").repeat(index as usize);
        from.commit(1, index, &[(&format!("k{index:02}"), Some(&value))])?;
    }
    let pairs = from.engine.view()?.scan(&everything())?;
    to.install(1, &[KeyRange::all()], (LogIndex(50), Term(1)), &pairs)?;
    let to = to.crash(1)?;
    ensure_eq!(to.contents()?, texts(&pairs), "pairs of the copy");
    Ok(())
}

fn drop_range<F: Factory>(factory: &F) -> Check {
    let mut subject = Subject::new(factory, 7)?;
    let long = "long".repeat(100);
    subject.commit(1, 1, &[("a", Some("1")), ("b", Some(&long)), ("c", Some("1"))])?;
    subject.commit(2, 1, &[("x", Some("1"))])?;
    subject.engine.drop_ranges(&[KeyRange::new("a", "c")])?;
    for round in 0..3 {
        ensure_eq!(subject.contents()?, vec!["c=1", "x=1"], "pairs in round {round}");
        subject = subject.crash(round)?;
        // Applying again the entries from before the drop must not restore their pairs.
        subject.apply(1, 1)?;
        subject.apply(2, 1)?;
        subject.finish_maintenance()?;
    }
    subject.commit(1, 2, &[("b", Some("back"))])?;
    ensure_eq!(subject.contents()?, vec!["b=back", "c=1", "x=1"], "pairs written after the drop");
    Ok(())
}
