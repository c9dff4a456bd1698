//! Commit of finished flushes and merges: the way from a memtable in memory to a run that a restart finds.
//!
//! | step | by | kept after a crash |
//! |---|---|---|
//! | 1 the memtable is frozen, with the checkpoint that its flush will establish | `Shared::freeze`, under the engine's lock of apply | nothing: the log is replayed |
//! | 2 its entries are written to runs under temporary names, and synced | [`crate::Job::step`] | files without meaning, removed at open |
//! | 3 the runs get their names, and the directory is synced | `Output::finish_run`, [`prepare`] | as before |
//! | 4 one edit adds the runs and moves the checkpoint, then is repeated | `Manifest::append` | the runs; the replay is shorter |
//! | 5 readers get the new version, without the memtable | `Shared::publish_version` | |
//! | 6 input runs of a merge are unlinked when no view pins a version with them | `Shared::purge` | |
//!
//! A merge has the same steps from 2 on. Its edit adds the outputs and removes the inputs at once, so no crash leaves
//! both or neither. Several finished outputs of a long merge are noted in the manifest before: it resumes after them.
//!
//! A flush and a merge run beside each other and beside all reads and writes. Only steps 3 to 5 hold the lock of the
//! manifest, which orders commits; readers wait for it nowhere, because tables and checkpoint are published as copies.
//!
//! What each step keeps:
//! - 1: the checkpoint covers exactly what is in this memtable and in older ones.
//! - 4: flushes commit oldest first; a checkpoint must not pass entries that only an older memtable holds.
//! - 4 after 3: the manifest names no file that a power cut may take away.
//! - 6 after 4: no input goes before its replacement is durable, and older garbage goes before newer.
//! - A failed sync stops the index and with it the log: it is unknown which edit is durable.

use super::Shared;
use super::shared::Garbage;
use crate::manifest::{Change, Manifest};
use crate::merge::{JobDone, Target};
use crate::run::Run;
use std::sync::Arc;
use stele_types::{Error, Result, RunId};

/// Makes the outputs of a finished job current. Invariant: a commit has this order: the outputs' data
/// is durable (by the job) → their names are durable → one manifest edit is durable → the new
/// version is published → the inputs are unlinked once no reader pins them.
/// Test: `the_events_of_a_commit_come_in_order`.
pub(super) fn commit(shared: &Arc<Shared>, mut done: JobDone) -> Result<()> {
    {
        let mut manifest = shared.manifest.lock();
        manifest.check()?;
        let added = prepare(shared, &mut manifest, done.output.finished())?;
        match &done.target {
            Target::Flush(frozen) => {
                // Invariant: flushes commit oldest first, because a checkpoint covers everything
                // written before it.
                let oldest = shared.tables.read().frozen.last().cloned();
                if !oldest.is_some_and(|oldest| Arc::ptr_eq(&oldest, frozen)) {
                    return Err(Error::invalid(
                        "the flushed memtable is not the oldest frozen one; commit that first",
                    ));
                }
                let mut changes = additions(&added);
                // bug index.checkpoint_not_recorded: skip
                changes.push(Change::Checkpoint(frozen.checkpoint.lock().clone()));
                manifest.append(&changes)?;
                shared.publish_checkpoint(&manifest);
                let version = shared.tables.read().version.replace(&[], added);
                shared.publish_version(version, Some(frozen));
            }
            Target::Merge { inputs, .. } => {
                let mut changes = additions(&added);
                changes.extend(inputs.iter().map(|&run| Change::RemoveRun(run)));
                changes.push(Change::MergeDone);
                replace_runs(shared, &mut manifest, &changes, inputs, added)?;
            }
        }
        done.output.claim.release_files();
    }
    drop(done);
    // The commit is durable. A file that cannot be unlinked now is unlinked by a later purge, or at
    // open.
    let _ = shared.purge();
    Ok(())
}

/// Opens the outputs and makes their names durable.
pub(super) fn prepare(
    shared: &Shared,
    manifest: &mut Manifest,
    finished: &[RunId],
) -> Result<Vec<Arc<Run>>> {
    let opened: Result<Vec<_>> = finished.iter().map(|&run| shared.open_run(run)).collect();
    let added = opened?;
    // bug index.skip_dir_sync: never
    if !added.is_empty() {
        let synced = shared.vfs.sync_dir(&shared.dir);
        manifest.poison_on(synced)?;
    }
    Ok(added)
}

pub(super) fn additions(added: &[Arc<Run>]) -> Vec<Change> {
    let addition = |run: &Arc<Run>| Change::AddRun(run.id(), run.meta().extra.age);
    let copies = added.iter().map(footer_copy);
    // bug index.footer_not_kept: let copies = added[..0].iter().map(footer_copy);
    added.iter().map(addition).chain(copies).collect()
}

/// Returns the change that records the run's footer: a damaged run can only be opened by this copy.
pub(super) fn footer_copy(run: &Arc<Run>) -> Change {
    Change::Footer(run.id(), run.footer_copy())
}

fn replace_runs(
    shared: &Shared,
    manifest: &mut Manifest,
    changes: &[Change],
    inputs: &[RunId],
    added: Vec<Arc<Run>>,
) -> Result<()> {
    // bug index.unlink_before_edit: for &r in inputs { shared.vfs.unlink(&crate::run::run_path(&shared.dir, r))?; }
    manifest.append(changes)?;
    let version = shared.tables.read().version.replace(inputs, added);
    let since = version.id();
    shared.publish_version(version, None);
    shared.garbage.lock().extend(inputs.iter().map(|&run| Garbage { since, run }));
    Ok(())
}
