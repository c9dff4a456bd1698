//! Checks the counted live bytes against the references in the run files.

use crate::world::{Slot, World};
use std::collections::BTreeMap;
use std::path::Path;
use stele_index::{Found, Live, RunItem, inspect_run_items};
use stele_types::{FileId, ValueRef};

impl World {
    pub(super) fn check_live(&mut self, number: u64) {
        let excused = self.slots.get(&number).is_none_or(Slot::may_fail_reads);
        let Some(engine) = self.engine(number).filter(|_| !excused) else { return };
        let Some(slot) = self.slots.get(&number) else { return };
        let version = engine.index().version();
        let mut real: BTreeMap<FileId, Live> = BTreeMap::new();
        let mut problems = Vec::new();
        for run in version.runs() {
            let inspected = inspect_run_items(&slot.disk, Path::new(run.path()), &mut |item| {
                count(item, &mut real, &mut problems);
            });
            if let Err(error) = inspected {
                problems.push(error.to_string());
            }
        }
        if !problems.is_empty() {
            return self.fail(format!("store {number} has damaged runs: {}", problems.join("; ")));
        }
        if real != *version.live() {
            let counted = version.live();
            self.fail(format!(
                "store {number} counts {counted:?} as live, but its runs reference {real:?}"
            ));
        }
        let files: Vec<FileId> = engine.log().files().iter().map(|file| file.file).collect();
        if let Some(missing) = real.keys().find(|file| !files.contains(file)) {
            self.fail(format!("store {number} references file {missing:?}, which does not exist"));
        }
    }
}

fn count(item: RunItem, real: &mut BTreeMap<FileId, Live>, problems: &mut Vec<String>) {
    match item {
        RunItem::Entry { key, found: Found::Value { value: ValueRef::At(at), .. } } => {
            real.entry(at.file).or_default().add(key.len(), &at);
        }
        RunItem::Damage(error) => problems.push(error.to_string()),
        _ => {}
    }
}
