//! Laws of keys that move between regions: the last write wins, also after any crash.

use super::subject::{Subject, Write, entry, hard_state, mark};
use super::{Check, Factory, Law};
use stele_storage::{EngineView, StateMachine};
use stele_types::{LogIndex, Mark, Term};

pub(super) fn laws<F: Factory>() -> Vec<Law<F>> {
    vec![
        ("order: opening applies what is committed", committed_is_applied),
        ("order: opening applies in log order, not region by region", log_order),
        ("order: a replaced entry does not return before its successor", replaced_entries),
        ("order: a destroyed region's pairs stay", destroyed_pairs_stay),
        ("order: a destroyed region's entries are not applied again", destroyed_entries_stay_away),
        (
            "order: a region that starts again keeps no log state of its earlier incarnation",
            earlier_incarnation,
        ),
        ("order: a checkpoint needs no log", checkpoint),
        ("order: region 0 behaves like any other region", journal),
    ]
}

fn committed_is_applied<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 1)?;
    for index in 1..=5 {
        subject.write(1, index, &[("k", Some(&format!("v{index}")))])?;
    }
    subject.append(vec![hard_state(1, 1, 1, 3)])?;
    let subject = subject.crash(1)?;
    ensure_eq!(subject.progress(1)?.applied, LogIndex(3), "applied after opening");
    ensure_eq!(subject.contents()?, vec!["k=v3"], "pairs");
    subject.apply(1, 5)?;
    ensure_eq!(subject.contents()?, vec!["k=v5"], "pairs after the rest is committed");
    Ok(())
}

fn commit<F: Factory>(
    subject: &Subject<'_, F>,
    region: u64,
    index: u64,
    writes: &[Write<'_>],
) -> Check {
    subject.append(vec![entry(region, index, 1, writes), hard_state(region, 1, 1, index)])?;
    subject.apply(region, index)
}

fn log_order<F: Factory>(factory: &F) -> Check {
    let long = |text: &str| text.repeat(50);
    for (parent, child) in [(5, 3), (5, 9)] {
        let mut subject = Subject::new(factory, 2)?;
        commit(&subject, parent, 1, &[("k", Some(&long("parent"))), ("l", Some("parent"))])?;
        commit(&subject, parent, 2, &[("m", Some("parent"))])?;
        // The split: the child owns the keys from k on.
        subject.append(vec![mark(child, Mark::Start(LogIndex(5), Term(5)))])?;
        commit(&subject, child, 6, &[("k", Some(&long("child"))), ("l", None)])?;
        commit(&subject, parent, 3, &[("a", Some("parent"))])?;
        // The merge: the parent owns all keys again.
        commit(&subject, child, 7, &[("m", Some("child"))])?;
        commit(&subject, parent, 4, &[("m", Some("merged"))])?;
        let wanted = ["a=parent", &format!("k={}", long("child")), "m=merged"];
        ensure_eq!(subject.contents()?, wanted, "pairs of parent {parent} and child {child}");
        for round in 0..3 {
            subject = subject.crash(round)?;
            subject.apply(parent, 4)?;
            subject.apply(child, 7)?;
            ensure_eq!(subject.contents()?, wanted, "pairs after crash {round}, child {child}");
            if round == 1 {
                subject.engine.maintain(2048)?;
            }
        }
    }
    Ok(())
}

fn replaced_entries<F: Factory>(factory: &F) -> Check {
    for (parent, child) in [(5, 3), (5, 9)] {
        let subject = Subject::new(factory, 3)?;
        // Entries of another leader, replaced and truncated before any was committed.
        subject.append(vec![entry(parent, 1, 1, &[("k", Some("stale"))])])?;
        subject.append(vec![entry(parent, 2, 1, &[("k", Some("stale too"))])])?;
        subject.append(vec![entry(parent, 1, 2, &[("k", Some("parent"))])])?;
        subject.append(vec![hard_state(parent, 2, 1, 1)])?;
        subject.apply(parent, 1)?;
        subject.append(vec![mark(child, Mark::Start(LogIndex(5), Term(5)))])?;
        subject.append(vec![entry(child, 6, 5, &[("k", Some("withdrawn"))])])?;
        subject.append(vec![mark(child, Mark::TruncateSuffix(LogIndex(6)))])?;
        subject.append(vec![entry(child, 6, 6, &[("k", Some("child"))])])?;
        subject.append(vec![hard_state(child, 6, 1, 6)])?;
        subject.apply(child, 6)?;
        subject.append(vec![entry(parent, 2, 2, &[("a", Some("1"))])])?;
        let subject = subject.crash(1)?;
        ensure_eq!(subject.contents()?, vec!["k=child"], "pairs with child {child}");
        subject.apply(parent, 2)?;
        ensure_eq!(subject.contents()?, vec!["a=1", "k=child"], "pairs with child {child}");
    }
    Ok(())
}

fn destroyed_pairs_stay<F: Factory>(factory: &F) -> Check {
    let mut subject = Subject::new(factory, 4)?;
    let value = "value".repeat(50);
    commit(&subject, 1, 1, &[("a", Some(&value)), ("b", Some("1"))])?;
    subject.append(vec![mark(1, Mark::Destroy)])?;
    let a = format!("a={value}");
    for round in 0..3 {
        ensure_eq!(subject.contents()?, [&a, "b=1"], "pairs in round {round}");
        ensure!(subject.progress(1)?.destroyed, "the destroyed region returned in round {round}");
        subject = subject.crash(round)?;
        if round == 1 {
            subject.finish_maintenance()?;
        }
    }
    Ok(())
}

fn destroyed_entries_stay_away<F: Factory>(factory: &F) -> Check {
    for (source, target) in [(5, 3), (5, 9)] {
        let mut subject = Subject::new(factory, 5)?;
        commit(&subject, source, 1, &[("k", Some("source"))])?;
        commit(&subject, target, 1, &[("k", Some("target"))])?;
        subject.append(vec![mark(source, Mark::Destroy)])?;
        commit(&subject, target, 2, &[("k", Some("newest"))])?;
        for round in 0..2 {
            ensure_eq!(subject.contents()?, vec!["k=newest"], "pairs in round {round}");
            subject = subject.crash(round)?;
            subject.apply(target, 2)?;
        }
    }
    Ok(())
}

fn earlier_incarnation<F: Factory>(factory: &F) -> Check {
    for flushed in [false, true] {
        let mut subject = Subject::new(factory, 6)?;
        for index in 1..=9 {
            commit(&subject, 1, index, &[("a", Some("earlier"))])?;
        }
        if flushed {
            subject.finish_maintenance()?;
        }
        subject.append(vec![mark(1, Mark::Destroy)])?;
        subject.append(vec![mark(1, Mark::Start(LogIndex(0), Term(0)))])?;
        for index in 1..=3 {
            subject.write(1, index, &[("b", Some(&format!("v{index}")))])?;
        }
        for round in 0..2 {
            let progress = subject.progress(1)?;
            let wanted = (LogIndex(0), LogIndex(0), LogIndex(3));
            let found = (progress.checkpointed, progress.applied, progress.persisted.0);
            ensure_eq!(found, wanted, "progress in round {round}, flushed {flushed}");
            ensure_eq!(subject.contents()?, vec!["a=earlier"], "pairs");
            subject = subject.crash(round)?;
        }
        subject.apply(1, 3)?;
        ensure_eq!(subject.contents()?, vec!["a=earlier", "b=v3"], "pairs");
    }
    Ok(())
}

fn checkpoint<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 7)?;
    let value = "v".repeat(300);
    for index in 1..=5 {
        subject.commit(1, index, &[("k", Some(&value))])?;
    }
    subject.engine.checkpoint()?;
    ensure_eq!(subject.progress(1)?.checkpointed, LogIndex(5), "checkpointed");
    let subject = subject.crash(1)?;
    let progress = subject.progress(1)?;
    ensure_eq!((progress.checkpointed, progress.applied), (LogIndex(5), LogIndex(5)), "progress");
    let found = subject.engine.view()?.get(b"k")?.map(|pair| pair.value.len());
    ensure_eq!(found, Some(300), "bytes of the value");
    Ok(())
}

fn journal<F: Factory>(factory: &F) -> Check {
    let mut subject = Subject::new(factory, 8)?;
    for index in 1..=3 {
        let writes = [("local", Some("x")), ("gone", (index < 3).then_some("x"))];
        // Region 0 holds state of the store itself, committed once durable. One of its batches also
        // destroys a region.
        let mut records = vec![entry(0, index, 1, &writes), hard_state(0, 1, 0, index)];
        if index == 2 {
            subject.append(vec![entry(7, 1, 1, &[("r", Some("1"))])])?;
            subject.apply(7, 1)?;
        }
        if index == 3 {
            records.push(mark(7, Mark::Destroy));
        }
        subject.append(records)?;
        if index < 3 {
            subject.apply(0, index)?;
        }
    }
    for round in 0..2 {
        subject = subject.crash(round)?;
        ensure_eq!(subject.progress(0)?.applied, LogIndex(3), "applied of region 0");
        ensure!(subject.progress(7)?.destroyed, "the mark in region 0's batch is lost");
        ensure_eq!(subject.contents()?, vec!["local=x", "r=1"], "pairs in round {round}");
    }
    subject.engine.checkpoint()?;
    subject.truncate(0, LogIndex(3))?;
    ensure_eq!(subject.progress(0)?.truncated.0, LogIndex(3), "truncated");
    Ok(())
}
