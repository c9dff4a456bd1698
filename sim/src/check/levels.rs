//! Checks that nothing of a level is in a directory that an earlier program would open.

use crate::world::World;
use stele_placement::StoreState;
use stele_storage::{EngineView, ScanOptions, StateMachine};
use stele_types::{
    ColumnFamily, Command, EntryRecord, KeyRange, Level, LogBatch, Op, Record, keyspace,
};

impl World {
    /// Checks that all stores of the cluster record the level in use, and that no store below the level of a
    /// space of keys holds pairs of that space.
    pub(super) fn check_levels(&mut self) {
        if !self.plan.begins_at_oldest_level {
            return;
        }
        if let Some((number, level, in_use)) = self.below_level_in_use() {
            return self.fail(format!(
                "store {number} records level {level}, and the cluster writes level {in_use}"
            ));
        }
        for number in self.serving() {
            let Some(engine) = self.engine(number) else { continue };
            for (space, _) in spaces_above(engine.level()) {
                let pairs = KeyRange::new([space].to_vec(), [space + 1].to_vec());
                let found = engine.view().and_then(|view| view.scan(&ScanOptions::new(pairs, 1)));
                match found {
                    Ok(found) if found.is_empty() => {}
                    Ok(_) => return self.fail_level(number, space, "has a pair"),
                    Err(error) => self.check_read_error(number, &error),
                }
            }
        }
    }

    /// Returns a store of the cluster that records less than the level in use, with both levels.
    fn below_level_in_use(&self) -> Option<(u64, Level, Level)> {
        self.nodes.values().filter_map(|node| node.member.leader_state()).find_map(|state| {
            let in_use = state.cluster.levels().in_use;
            let members = state.cluster.stores().filter(|it| it.state != StoreState::Tombstone);
            let mut homes = members.filter_map(|store| self.homes.get(&store.id).copied());
            homes.find_map(|number| {
                let level = self.engine(number)?.level();
                (level < in_use).then_some((number, level, in_use))
            })
        })
    }

    /// Checks a batch that a store writes to its log.
    pub(crate) fn check_level_of(&mut self, number: u64, batch: &LogBatch) {
        let Some(level) = self.engine(number).map(|engine| engine.level()) else { return };
        if !self.plan.begins_at_oldest_level {
            return;
        }
        for (space, _) in spaces_above(level) {
            let changes = |record: &Record| match record {
                Record::Entry(entry) => changes_space(entry, space),
                Record::HardState(..) | Record::Mark(..) => false,
            };
            if batch.records.iter().any(changes) {
                self.fail_level(number, space, "writes a pair to its log");
            }
        }
    }

    fn fail_level(&mut self, number: u64, space: u8, what: &str) {
        let level = self.engine(number).map(|engine| engine.level());
        self.fail(format!(
            "store {number}, which records level {level:?}, {what} of space {space}"
        ));
    }
}

/// Returns the spaces of keys that a store of this level must not have, with their levels.
fn spaces_above(level: Level) -> impl Iterator<Item = (u8, Level)> {
    let spaces =
        [(keyspace::RECORDS, Level::SESSIONS), (ColumnFamily::Redis.space(), Level::REDIS)];
    spaces.into_iter().filter(move |(_, needed)| level < *needed)
}

fn changes_space(entry: &EntryRecord, space: u8) -> bool {
    let mut changes = false;
    let is_command = entry.is_command && !entry.payload.is_empty();
    let is_read = is_command
        && Command::each_op_of(&entry.payload, |op| {
            let (Op::Put { key, .. } | Op::Delete { key }) = op else { return };
            changes |= key.first() == Some(&space);
        });
    is_read && changes
}
