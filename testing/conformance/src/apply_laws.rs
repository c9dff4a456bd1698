//! Laws of applying: applied entries are visible, in order, and recovered after a crash.

use super::subject::{Subject, entry, hard_state, refused};
use super::{Check, Factory, Law};
use bytes::Bytes;
use stele_storage::{EngineView, LogStore, StateMachine};
use stele_types::size::KEY_BYTES_MAX;
use stele_types::{CommandBuilder, EntryRecord, LogIndex, Record, RegionId, Term};

pub(super) fn laws<F: Factory>() -> Vec<Law<F>> {
    vec![
        ("apply: entries in order, each once", order),
        ("apply: only what is persisted here", persisted_only),
        ("apply: visible on return, and not before", visibility),
        ("apply: the operations of an entry in their order", operations),
        ("apply: entries that are not commands change nothing", opaque_entries),
        ("apply: any bytes and any length", any_bytes),
        ("apply: applied never passes the commit index, also after a crash", never_past_commit),
        ("apply: a crash at any point leaves what applying again completes", crash_and_again),
        ("apply: background work changes no content", maintenance),
    ]
}

const REGION: RegionId = RegionId(1);

fn order<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 1)?;
    for index in 1..=3 {
        subject.write(1, index, &[("k", Some(&format!("v{index}")))])?;
    }
    let entries = subject.engine.entries(REGION, LogIndex(1), LogIndex(4), usize::MAX)?;
    ensure_eq!(entries.len(), 3, "entries");
    refused(subject.engine.apply(REGION, &entries[1..]), "applying entry 2 first")?;
    ensure_eq!(subject.contents()?, Vec::<String>::new(), "pairs after a refusal");
    subject.engine.apply(REGION, &entries[..2])?;
    refused(subject.engine.apply(REGION, &entries[1..2]), "applying entry 2 again")?;
    ensure_eq!(subject.contents()?, vec!["k=v2"], "pairs");
    ensure_eq!(subject.progress(1)?.applied, LogIndex(2), "applied");
    Ok(())
}

fn persisted_only<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 2)?;
    subject.write(1, 1, &[("k", Some("v"))])?;
    let mut entries = subject.engine.entries(REGION, LogIndex(1), LogIndex(2), usize::MAX)?;
    subject.engine.apply(REGION, &entries)?;
    for entry in &mut entries {
        entry.index = LogIndex(2);
    }
    refused(subject.engine.apply(REGION, &entries), "applying an entry that was never appended")?;
    ensure_eq!(subject.progress(1)?.applied, LogIndex(1), "applied");
    Ok(())
}

fn visibility<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 3)?;
    subject.write(1, 1, &[("a", Some("1")), ("b", Some("2"))])?;
    ensure_eq!(subject.contents()?, Vec::<String>::new(), "pairs of an entry not applied");
    subject.apply(1, 1)?;
    ensure_eq!(subject.contents()?, vec!["a=1", "b=2"], "pairs");
    let found = subject.engine.view()?.get(b"b")?;
    ensure_eq!(found.map(|pair| pair.value), Some(Bytes::from_static(b"2")), "value of b");
    ensure_eq!(subject.engine.view()?.get(b"c")?, None, "value of an unknown key");
    subject.commit(1, 2, &[("a", None)])?;
    ensure_eq!(subject.engine.view()?.get(b"a")?, None, "value of a deleted key");
    Ok(())
}

fn operations<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 4)?;
    let writes = [("k", Some("1")), ("k", None), ("k", Some("2")), ("l", Some("1")), ("l", None)];
    subject.commit(1, 1, &writes)?;
    ensure_eq!(subject.contents()?, vec!["k=2"], "pairs");
    let mut builder = CommandBuilder::new();
    builder.put(b"m1", b"before", 0)?.delete_range(b"m", b"n")?.put(b"m2", b"after", 0)?;
    append_command(&subject, 2, builder)?;
    subject.apply(1, 2)?;
    ensure_eq!(subject.contents()?, vec!["k=2", "m2=after"], "pairs around a range delete");
    subject.finish_maintenance()?;
    ensure_eq!(subject.contents()?, vec!["k=2", "m2=after"], "pairs after a flush");
    Ok(())
}

fn append_command<F: Factory>(s: &Subject<'_, F>, index: u64, builder: CommandBuilder) -> Check {
    let payload = builder.build().bytes().clone();
    let (region, term, index) = (REGION, Term(1), LogIndex(index));
    let entry = EntryRecord { region, term, index, is_command: true, payload };
    s.append(vec![Record::Entry(entry)])?;
    Ok(())
}

fn opaque_entries<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 5)?;
    let (region, term, index) = (REGION, Term(1), LogIndex(1));
    let payload = Bytes::from_static(b"\xffmembership change");
    let entry = EntryRecord { region, term, index, is_command: false, payload };
    subject.append(vec![Record::Entry(entry)])?;
    subject.apply(1, 1)?;
    subject.commit(1, 2, &[("k", Some("v"))])?;
    ensure_eq!(subject.contents()?, vec!["k=v"], "pairs");
    Ok(())
}

fn any_bytes<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 6)?;
    let lengths = [0, 1, 63, 64, 65, 4095, 4096, 4097, 100_000, 1 << 20];
    let key = |i: usize| vec![0xff, 0, i as u8, b'/'];
    let value = |i: usize| -> Vec<u8> { (0..lengths[i]).map(|at| (at * 31 + i) as u8).collect() };
    for i in 0..lengths.len() {
        let mut builder = CommandBuilder::new();
        builder.put(&key(i), &value(i), i as u64)?;
        append_command(&subject, i as u64 + 1, builder)?;
    }
    let mut builder = CommandBuilder::new();
    builder.put(b"", b"the empty key", 0)?.put(&[9; KEY_BYTES_MAX], b"a long key", 0)?;
    append_command(&subject, lengths.len() as u64 + 1, builder)?;
    let mut subject = subject.crash(1)?;
    for round in 0..2 {
        subject.apply(1, lengths.len() as u64 + 1)?;
        let view = subject.engine.view()?;
        for (i, length) in lengths.iter().enumerate() {
            let found = view.get(&key(i))?.map(|pair| (pair.value.to_vec(), pair.expires_at_s));
            let good = found.as_ref() == Some(&(value(i), i as u64));
            ensure!(good, "value of {length} bytes differs in round {round}");
        }
        ensure!(
            view.get(b"")?.is_some() && view.get(&[9; KEY_BYTES_MAX])?.is_some(),
            "keys of odd length"
        );
        drop(view);
        subject.finish_maintenance()?;
        subject = subject.crash(2)?;
    }
    Ok(())
}

fn never_past_commit<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 7)?;
    for index in 1..=6 {
        subject.write(1, index, &[("k", Some(&format!("v{index}")))])?;
    }
    subject.append(vec![hard_state(1, 1, 1, 4)])?;
    subject.apply(1, 3)?;
    let subject = subject.crash(1)?;
    let applied = subject.progress(1)?.applied;
    ensure!(applied <= LogIndex(4), "applied {applied}, committed 4: a leader may replace 5");
    subject.append(vec![entry(1, 5, 2, &[("k", Some("other"))])])?;
    subject.apply(1, 5)?;
    ensure_eq!(subject.contents()?, vec!["k=other"], "pairs");
    Ok(())
}

fn crash_and_again<F: Factory>(factory: &F) -> Check {
    let mut subject = Subject::new(factory, 8)?;
    let mut wanted = Vec::new();
    for index in 1..=40u64 {
        let (new, gone) = (format!("k{index:02}"), format!("k{:02}", index.wrapping_sub(3)));
        subject.commit(1, index, &[(&new, Some("v")), (&gone, None)])?;
        wanted.push(format!("{new}=v"));
        wanted.retain(|pair| !pair.starts_with(&gone));
        if index % 5 == 0 {
            subject.engine.maintain(4096)?;
        }
        if index % 4 == 0 {
            subject = subject.crash(index)?;
            ensure!(subject.progress(1)?.applied <= LogIndex(index), "applied in the future");
            subject.apply(1, index)?;
        }
        ensure_eq!(subject.contents()?, wanted, "pairs after entry {index}");
    }
    Ok(())
}

fn maintenance<F: Factory>(factory: &F) -> Check {
    let subject = Subject::new(factory, 9)?;
    let value = "v".repeat(3000);
    for index in 1..=60u64 {
        let key = format!("k{:02}", index % 17);
        subject.commit(1, index, &[(&key, (index % 5 != 0).then_some(&*value))])?;
    }
    let before = subject.contents()?;
    subject.finish_maintenance()?;
    ensure_eq!(subject.contents()?, before, "pairs");
    let checkpointed = subject.progress(1)?.checkpointed;
    let subject = subject.crash(1)?;
    let progress = subject.progress(1)?;
    ensure!(progress.checkpointed >= checkpointed, "the checkpoint went back: {progress:?}");
    subject.apply(1, 60)?;
    ensure_eq!(subject.contents()?, before, "pairs after a crash");
    Ok(())
}
