//! Checks that no file is leaked and none is missing: a store's directory holds exactly the files
//! that its log and index reference, once no operation is pending.

use crate::world::{PARTS_MAX, Slot, World};
use std::path::Path;
use stele_engine::Store;
use stele_log::{FileKind, ValueFileInfo};
use stele_node::snapshot::Parts;
use stele_simulated_disk::SimVfs;
use stele_storage::StateMachine;
use stele_vfs::Vfs;

/// Limit of maintenance slices until no work is left.
const SLICES_MAX: usize = 400;

impl World {
    pub(super) fn check_files(&mut self, number: u64) {
        // What waits for senders that do not come back is referenced nowhere else.
        let running = self.slots.get_mut(&number).and_then(|slot| slot.running.as_mut());
        drop(running.map(|running| std::mem::replace(&mut running.parts, Parts::new(PARTS_MAX))));
        let excused = self.slots.get(&number).is_none_or(Slot::may_fail_reads);
        let Some(engine) = self.engine(number).filter(|_| !excused) else { return };
        let Some(slot) = self.slots.get(&number) else { return };
        for _ in 0..SLICES_MAX {
            match engine.maintain(1 << 20) {
                Ok(done) if done.more => {}
                Ok(_) => break,
                Err(error) => {
                    return self.fail(format!("maintenance of store {number} fails: {error}"));
                }
            }
        }
        // Replaced runs are unlinked by the next commit or by a purge.
        if let Err(error) = engine.index().purge() {
            return self.fail(format!("store {number} cannot remove replaced runs: {error}"));
        }
        let plans = [&self.plan.engine, &self.plan.other_engine];
        let spare_max = plans.map(|options| options.recycle_segments_max).into_iter().max();
        let leaked = leaked(&slot.disk, &engine, spare_max.unwrap_or_default());
        match leaked {
            Ok(leaked) if leaked.is_empty() => {}
            Ok(leaked) => {
                self.fail(format!("store {number} has leaked files: {}", leaked.join(", ")))
            }
            Err(error) => {
                self.fail(format!("the directory of store {number} cannot be listed: {error}"))
            }
        }
    }
}

fn leaked(disk: &SimVfs, engine: &Store, spare_max: usize) -> stele_types::Result<Vec<String>> {
    let mut leaked = Vec::new();
    let files = engine.log().files();
    let known: Vec<String> = files.iter().map(|file| format!("{:08x}", file.file.0)).collect();
    // Rule: the head grows, and so does its sidecar, which is complete only when the head is sealed.
    // Until then what exceeds a chunk of it is in an unfinished file.
    let is_head =
        |info: &&ValueFileInfo| matches!(info.kind, FileKind::Segment { sealed: false, .. });
    let heads = files.iter().filter(is_head);
    let growing: Vec<String> = heads.map(|info| format!("{:08x}.side.tmp", info.file.0)).collect();
    let mut spare = 0;
    for entry in disk.list(&Path::new(crate::world::DIR).join("log"))? {
        let stem = entry.name.split('.').next().unwrap_or_default().to_owned();
        if entry.name.starts_with("free-") {
            spare += 1;
        } else if growing.contains(&entry.name) {
            continue;
        } else if entry.name.ends_with(".tmp") || !known.contains(&stem) {
            leaked.push(format!("log/{}", entry.name));
        }
    }
    if spare > spare_max {
        leaked.push(format!("{spare} spare segments"));
    }
    let version = engine.index().version();
    let runs: Vec<String> =
        version.runs().map(|run| format!("{:08x}.run", run.meta().id.0)).collect();
    let pending = engine.index().pending_merge().is_some();
    let mut manifests = 0;
    let index = disk.list(&Path::new(crate::world::DIR).join("index"))?;
    for entry in &index {
        if entry.name.starts_with("manifest-") {
            manifests += 1;
        } else if !runs.contains(&entry.name) && !pending {
            leaked.push(format!("index/{}", entry.name));
        }
    }
    if manifests != 1 {
        leaked.push(format!("{manifests} manifests"));
    }
    let missing = runs.iter().filter(|run| !index.iter().any(|entry| entry.name == **run));
    leaked.extend(missing.map(|run| format!("nothing, but run {run} is missing")));
    Ok(leaked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use stele_engine::{Db, Options};
    use stele_types::ManualClock;

    #[test]
    fn the_unfinished_sidecar_of_the_head_is_no_leak_and_that_of_another_file_is_one() {
        let disk = SimVfs::default();
        let dir = Path::new(crate::world::DIR);
        let options = Options {
            segment_bytes_max: 1 << 20,
            inline_value_bytes_max: 64,
            direct_io: false,
            reserved_bytes: 0,
            background: false,
            ..Options::default()
        };
        let clock = Arc::new(ManualClock::at(1_000_000));
        let db = Db::open_with(Arc::new(disk.clone()), clock, dir, options).unwrap();
        let unfinished = || {
            let entries = disk.list(&dir.join("log")).unwrap();
            entries.into_iter().map(|entry| entry.name).find(|name| name.ends_with(".side.tmp"))
        };
        let found = (0..10_000_u32).find_map(|at| {
            db.put(&at.to_be_bytes(), &[7; 60]).unwrap();
            unfinished()
        });
        assert!(found.is_some());
        assert!(leaked(&disk, db.store(), 1).unwrap().is_empty());
        disk.write_file(dir.join("log/00000099.side.tmp"), b"begun");
        assert_eq!(leaked(&disk, db.store(), 1).unwrap(), ["log/00000099.side.tmp"]);
    }
}
