//! Laws of ranges: a range moves completely or not at all.

use super::subject::{Subject, entry, pair, refused, texts};
use super::{Check, Factory, Law};
use crate::{Pair, StorageEngine};
use bytes::Bytes;
use stele_types::{Error, KeyRange, LogIndex, RegionId, Result, Term};

pub(super) fn laws<F: Factory>() -> Vec<Law<F>> {
    vec![
        ("export: the pairs of a range from one point in time", export),
        ("export: an error of the sink ends it", export_sink_fails),
        ("install: replaces the range and starts the log", install),
        ("install: all or nothing", install_fails),
        ("install: the pairs that export returned", install_exported),
        ("drop range: durable without a log entry", drop_range),
    ]
}

const REGION: RegionId = RegionId(1);

fn export_of<E: StorageEngine>(engine: &E, range: &KeyRange) -> Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    engine.export(range, &mut |slice| {
        pairs.extend(slice);
        Ok(())
    })?;
    Ok(pairs)
}

fn export<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 1)?;
    let value = "v".repeat(400 << 10);
    for index in 1..=8 {
        subject.commit(1, index, &[(&format!("k{index}"), Some(&value))])?;
    }
    let mut slices = Vec::new();
    let mut result = Ok(());
    let engine = &subject.engine;
    engine.export(&KeyRange::new("k2", "k8"), &mut |slice: Vec<Pair>| {
        if slices.is_empty() {
            result = subject.commit(1, 9, &[("k7", None), ("k5", Some("changed"))]);
        }
        slices.push(slice);
        Ok(())
    })?;
    result?;
    ensure!(slices.len() > 1, "2.4 MB were passed in one slice: memory is not bounded");
    let pairs: Vec<Pair> = slices.concat();
    let keys: Vec<&[u8]> = pairs.iter().map(|pair| &pair.key[..]).collect();
    let wanted: Vec<&[u8]> = vec![b"k2", b"k3", b"k4", b"k5", b"k6", b"k7"];
    ensure_eq!(keys, wanted, "exported keys");
    let whole = pairs.iter().all(|pair| pair.value == value.as_bytes());
    ensure!(whole, "a value changed during the export");
    Ok(())
}

fn export_sink_fails<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 2)?;
    subject.commit(1, 1, &[("a", Some("1"))])?;
    let mut fail = |_: Vec<Pair>| Err(Error::invalid("the sink is full"));
    refused(subject.engine.export(&KeyRange::all(), &mut fail), "a failing sink")
}

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
    let found = crate::EngineView::get(&subject.engine.view()?, b"o")?.map(|pair| pair.value);
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

fn install_exported<F: Factory>(factory: &F) -> Check {
    let from = Subject::new(factory, 5)?;
    let to = Subject::new(factory, 6)?;
    for index in 1..=50 {
        let value = format!("{index}").repeat(index as usize);
        from.commit(1, index, &[(&format!("k{index:02}"), Some(&value))])?;
    }
    let pairs = export_of(&from.engine, &KeyRange::all())?;
    to.install(1, &[KeyRange::all()], (LogIndex(50), Term(1)), &pairs)?;
    let to = to.crash(1)?;
    let found = export_of(&to.engine, &KeyRange::all())?;
    ensure_eq!(texts(&found), texts(&pairs), "pairs of the copy");
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
