//! Laws of the log: appended entries are readable, in order, also after a crash.

use super::subject::{Subject, entry, hard_state, mark, refused};
use super::{Check, Factory, Law};
use bytes::Bytes;
use stele_storage::{LogStore, StateMachine};
use stele_types::{EntryRecord, HardState, LogIndex, Mark, Record, RegionId, Term};

pub(super) fn laws<F: Factory>() -> Vec<Law<F>> {
    vec![
        ("log: appended entries read back, also after a crash", read_back),
        ("log: payloads read back byte for byte", payloads),
        ("log: entries are limited by bytes but at least one is returned", entries_limits),
        ("log: a gap is refused and nothing is appended", gap_refused),
        ("log: a conflicting entry replaces the suffix", conflict),
        ("log: a truncated suffix does not return", suffix_withdrawn),
        ("log: truncation does not pass the checkpoint", truncation),
        ("log: hard states survive a crash, a snapshot and truncation", hard_states),
        ("log: a batch of many regions is appended as one", many_regions),
        ("log: a destroyed region is gone and may start again", destroy),
        ("log: a region starts at the index of its mark", start),
    ]
}

const REGION: RegionId = RegionId(1);

fn read_back<F: Factory>(factory: &F) -> Check {
    let mut subject = Subject::new(factory, 1)?;
    ensure!(subject.engine.progress(REGION).is_none(), "a region that never existed has progress");
    for index in 1..=20 {
        subject.append(vec![entry(1, index, 1 + index / 10, &[("k", Some("v"))])])?;
    }
    for round in 0..3 {
        let terms: Vec<(u64, u64)> = (3..15).map(|index| (index, 1 + index / 10)).collect();
        ensure_eq!(subject.entries(1, 3, 15)?, terms, "entries 3 to 15 in round {round}");
        ensure_eq!(subject.entries(1, 21, 30)?, vec![], "entries past the end");
        let term = |index| subject.engine.term(REGION, LogIndex(index));
        ensure_eq!((term(9), term(20)), (Some(Term(1)), Some(Term(3))), "terms");
        ensure_eq!(term(21), None, "the term past the end");
        ensure_eq!(subject.progress(1)?.persisted, (LogIndex(20), Term(3)), "persisted");
        subject = subject.crash(round)?;
    }
    Ok(())
}

fn payloads<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 2)?;
    let opaque = |index: u64, payload: Bytes| {
        let (region, term, index) = (REGION, Term(1), LogIndex(index));
        Record::Entry(EntryRecord { region, term, index, is_command: false, payload })
    };
    let payloads = [Bytes::new(), Bytes::from(vec![7; 5000]), Bytes::from_static(b"x")];
    let records = payloads.iter().zip(1..).map(|(p, index)| opaque(index, p.clone())).collect();
    subject.append(records)?;
    let subject = subject.crash(1)?;
    let found = subject.engine.entries(REGION, LogIndex(1), LogIndex(4), usize::MAX)?;
    ensure_eq!(found.len(), 3, "entries after a crash");
    for (entry, payload) in found.iter().zip(&payloads) {
        ensure_eq!(entry.payload, *payload, "payload of {}", entry.index);
        ensure!(!entry.is_command, "entry {} became a command", entry.index);
    }
    Ok(())
}

fn entries_limits<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 3)?;
    let value = "v".repeat(1000);
    for index in 1..=10 {
        subject.write(1, index, &[("k", Some(&value))])?;
    }
    let count = |bytes_max| {
        let found = subject.engine.entries(REGION, LogIndex(2), LogIndex(11), bytes_max);
        found.map(|entries| entries.len())
    };
    ensure_eq!(count(0)?, 1, "entries of 0 bytes");
    ensure_eq!(count(2500)?, 2, "entries of about 1010 bytes in 2500");
    ensure_eq!(count(usize::MAX)?, 9, "all entries");
    Ok(())
}

fn gap_refused<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 4)?;
    subject.write(1, 1, &[("a", Some("1"))])?;
    let batch = vec![entry(2, 1, 1, &[("b", Some("1"))]), entry(1, 3, 1, &[("a", Some("3"))])];
    refused(subject.append(batch), "entry 3 after entry 1")?;
    ensure_eq!(subject.entries(1, 1, 9)?, vec![(1, 1)], "entries after the refusal");
    ensure!(
        subject.engine.progress(RegionId(2)).is_none(),
        "a part of a refused batch was appended"
    );
    subject.write(1, 2, &[("a", Some("2"))])?;
    let subject = subject.crash(1)?;
    ensure_eq!(subject.entries(1, 1, 9)?, vec![(1, 1), (2, 1)], "entries after a crash");
    ensure!(
        subject.engine.progress(RegionId(2)).is_none(),
        "a refused batch appeared after a crash"
    );
    Ok(())
}

fn conflict<F: Factory>(factory: &F) -> Check {
    let mut subject = Subject::new(factory, 5)?;
    for index in 1..=6 {
        subject.write(1, index, &[("k", Some("old"))])?;
    }
    subject.apply(1, 2)?;
    subject.append(vec![entry(1, 4, 2, &[("k", Some("new"))])])?;
    for round in 0..2 {
        let wanted = vec![(1, 1), (2, 1), (3, 1), (4, 2)];
        ensure_eq!(subject.entries(1, 1, 9)?, wanted, "entries in round {round}");
        ensure_eq!(subject.engine.term(REGION, LogIndex(5)), None, "term of a replaced entry");
        ensure_eq!(subject.progress(1)?.persisted, (LogIndex(4), Term(2)), "persisted");
        subject = subject.crash(round)?;
    }
    subject.apply(1, 4)?;
    ensure_eq!(subject.contents()?, vec!["k=new"], "pairs");
    Ok(())
}

fn suffix_withdrawn<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 6)?;
    for index in 1..=5 {
        subject.write(1, index, &[("k", Some("v"))])?;
    }
    subject.append(vec![mark(1, Mark::TruncateSuffix(LogIndex(3)))])?;
    ensure_eq!(subject.entries(1, 1, 9)?, vec![(1, 1), (2, 1)], "entries");
    let subject = subject.crash(1)?;
    ensure_eq!(subject.entries(1, 1, 9)?, vec![(1, 1), (2, 1)], "entries after a crash");
    ensure_eq!(subject.progress(1)?.persisted.0, LogIndex(2), "persisted");
    subject.append(vec![entry(1, 3, 4, &[])])?;
    ensure_eq!(subject.entries(1, 3, 9)?, vec![(3, 4)], "the next entry");
    Ok(())
}

fn truncation<F: Factory>(factory: &F) -> Check {
    let mut subject = Subject::new(factory, 7)?;
    for index in 1..=8 {
        subject.append(vec![entry(1, index, index, &[("k", Some("v"))])])?;
    }
    subject.apply(1, 5)?;
    past_checkpoint_refused(&subject)?;
    subject.engine.checkpoint()?;
    past_checkpoint_refused(&subject)?;
    subject.truncate(1, LogIndex(3))?;
    // What the batch itself starts needs no checkpoint.
    let at = (LogIndex(20), Term(4));
    subject.append(vec![
        mark(3, Mark::Start(at.0, at.1)),
        mark(3, Mark::TruncatePrefix(at.0, at.1)),
    ])?;
    for round in 0..3 {
        past_checkpoint_refused(&subject)?;
        ensure_eq!(subject.progress(1)?.truncated, (LogIndex(3), Term(3)), "truncated");
        refused(subject.entries(1, 3, 9), "reading a truncated entry")?;
        let term = subject.engine.term(REGION, LogIndex(3));
        ensure_eq!(term, Some(Term(3)), "term of the truncation point");
        let wanted: Vec<(u64, u64)> = (4..=8).map(|index| (index, index)).collect();
        ensure_eq!(subject.entries(1, 4, 9)?, wanted, "what is left in round {round}");
        subject = subject.crash(round)?;
    }
    subject.apply(1, 8)?;
    ensure_eq!(subject.contents()?, vec!["k=v"], "pairs");
    Ok(())
}

/// Checks that no batch truncates an entry above the checkpoint of region 1, and that nothing of a
/// batch that tries is written.
fn past_checkpoint_refused<F: Factory>(subject: &Subject<'_, F>) -> Check {
    let before = subject.progress(1)?;
    for index in before.checkpointed.next().0..=8 {
        let truncates = mark(1, Mark::TruncatePrefix(LogIndex(index), Term(index)));
        let batch = vec![entry(2, 1, 1, &[("b", Some("1"))]), truncates];
        refused(subject.append(batch), "truncating past the checkpoint")?;
    }
    ensure_eq!(subject.progress(1)?, before, "progress after the refusals");
    let written = subject.engine.progress(RegionId(2));
    ensure!(written.is_none(), "a part of a refused batch was appended");
    Ok(())
}

fn hard_states<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 8)?;
    subject.append(vec![hard_state(1, 1, 7, 0), entry(1, 1, 1, &[("a", Some("1"))])])?;
    subject.append(vec![hard_state(1, 3, 9, 1)])?;
    let wanted = HardState { term: Term(3), vote: 9, commit: LogIndex(1) };
    ensure_eq!(subject.progress(1)?.hard_state, wanted, "hard state");
    let subject = subject.crash(1)?;
    ensure_eq!(subject.progress(1)?.hard_state, wanted, "hard state after a crash");
    subject.apply(1, 1)?;
    subject.engine.checkpoint()?;
    subject.truncate(1, LogIndex(1))?;
    ensure_eq!(subject.progress(1)?.hard_state, wanted, "hard state after truncation");
    let range = stele_types::KeyRange::all();
    let at = (LogIndex(9), Term(3));
    subject.install(1, &[range], at, &[])?;
    // If a snapshot dropped the vote, the store could vote twice in one term.
    ensure_eq!(subject.progress(1)?.hard_state, wanted, "hard state after a snapshot");
    let subject = subject.crash(2)?;
    ensure_eq!(subject.progress(1)?.hard_state, wanted, "hard state after snapshot and crash");
    Ok(())
}

fn many_regions<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 9)?;
    for index in 1..=5 {
        let mut records = Vec::new();
        for region in 1..=40 {
            let key = format!("{region:02}/{index}");
            records.push(hard_state(region, index, region, index - 1));
            records.push(entry(region, index, index, &[(&key, Some("v"))]));
        }
        subject.append(records)?;
    }
    let subject = subject.crash(1)?;
    for region in 1..=40 {
        let progress = subject.progress(region)?;
        ensure_eq!(progress.persisted, (LogIndex(5), Term(5)), "region {region}");
        ensure_eq!(progress.hard_state.vote, region, "vote of region {region}");
        subject.apply(region, 5)?;
    }
    ensure_eq!(subject.contents()?.len(), 200, "pairs of all regions");
    Ok(())
}

fn destroy<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 10)?;
    subject.write(1, 1, &[("a", Some("1"))])?;
    subject.write(2, 1, &[("b", Some("1"))])?;
    subject.append(vec![mark(1, Mark::Destroy)])?;
    refused(subject.append(vec![entry(1, 2, 1, &[])]), "an entry of a destroyed region")?;
    let subject = subject.crash(1)?;
    ensure!(subject.progress(1)?.destroyed, "a destroyed region is back after a crash");
    refused(subject.append(vec![entry(1, 2, 1, &[])]), "an entry after destroy and crash")?;
    ensure_eq!(subject.engine.term(REGION, LogIndex(1)), None, "term of a destroyed region");
    ensure_eq!(subject.entries(2, 1, 9)?, vec![(1, 1)], "the other region's entries");
    let again =
        vec![mark(1, Mark::Start(LogIndex(0), Term(0))), entry(1, 1, 9, &[("c", Some("9"))])];
    subject.append(again)?;
    let subject = subject.crash(2)?;
    ensure!(!subject.progress(1)?.destroyed, "a region that started again counts as destroyed");
    ensure_eq!(subject.entries(1, 1, 9)?, vec![(1, 9)], "entries of the new incarnation");
    subject.apply(1, 1)?;
    ensure_eq!(subject.contents()?, vec!["c=9"], "pairs: none of the earlier incarnation");
    Ok(())
}

fn start<F: Factory>(factory: &F) -> Check {
    let mut subject = Subject::new(factory, 11)?;
    let records = vec![mark(1, Mark::Start(LogIndex(10), Term(4))), entry(1, 11, 5, &[])];
    subject.append(records)?;
    for round in 0..2 {
        let progress = subject.progress(1)?;
        ensure_eq!(progress.truncated, (LogIndex(10), Term(4)), "start in round {round}");
        ensure_eq!(progress.applied, LogIndex(10), "applied in round {round}");
        ensure_eq!(progress.persisted, (LogIndex(11), Term(5)), "persisted in round {round}");
        ensure_eq!(subject.engine.term(REGION, LogIndex(10)), Some(Term(4)), "term at the start");
        subject = subject.crash(round)?;
    }
    subject.apply(1, 11)?;
    ensure_eq!(subject.progress(1)?.applied, LogIndex(11), "applied");
    Ok(())
}
