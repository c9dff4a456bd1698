//! Invariants of the cluster, each in its own file.

mod changes;
mod collected;
mod collections;
mod commits;
mod disk_copies;
pub mod domains;
pub mod durable;
mod durable_state;
mod engines;
mod files;
mod handed_out;
mod held_views;
pub mod hidden;
mod known;
mod leaders;
mod levels;
pub mod linear;
mod live;
mod logs;
mod memory;
pub mod moments;
mod moves;
pub mod orders;
mod owned;
pub mod programs;
mod promises;
mod records;
mod repairs;
mod replay;
mod replicas;
mod room;
mod speeds;
mod states;
mod targets;
mod unreadable;
mod votes;

use crate::plan::{MS, Plan};
use crate::world::{Happening, World};
use changes::Changes;
use disk_copies::DiskCopies;
use durable_state::DurableState;
use handed_out::Members;
use held_views::HeldViews;
use known::Known;
use leaders::Leaders;
use linear::Extent;
use logs::Logs;
use moves::Moves;
use owned::Peers;
use promises::Promises;
use records::Unsaved;
use repairs::Repairs;
use states::States;
use stele_replica::Event;
use stele_types::{Error, LogIndex, RegionId, Term};
use votes::Votes;

const CHECK_NANOS: u64 = 700 * MS;

/// State of the checks.
pub struct Checks {
    leaders: Leaders,
    logs: Logs,
    peers: Peers,
    durable_state: DurableState,
    promises: Promises,
    votes: Votes,
    pub(crate) repairs: Repairs,
    states: States,
    pub(crate) changes: Changes,
    disk_copies: DiskCopies,
    /// Moves of the placement group that only balance.
    pub(crate) moves: Moves,
    unsaved: Unsaved,
    members: Members,
    held_views: HeldViews,
    pub(crate) known: Known,
}

impl Checks {
    /// Creates the checks of a plan.
    pub fn new(plan: &Plan) -> Self {
        Self {
            leaders: Leaders::default(),
            logs: Logs::default(),
            peers: Peers::default(),
            durable_state: DurableState::default(),
            promises: Promises::default(),
            votes: Votes::default(),
            repairs: Repairs::default(),
            states: States::default(),
            changes: Changes::default(),
            disk_copies: DiskCopies::new(plan),
            moves: Moves::default(),
            unsaved: Unsaved::default(),
            members: Members::default(),
            held_views: HeldViews::new(plan),
            known: Known::default(),
        }
    }

    /// Returns the term of the committed entry of an index, if a check saw it.
    pub(crate) fn committed_term(&self, region: RegionId, index: LogIndex) -> Option<Term> {
        self.logs.committed_term(region, index)
    }

    /// Resets what was checked of a store that started.
    pub fn started(&mut self, slot: u64) {
        self.logs.started(slot);
        self.changes.started(slot);
        self.members.started(slot);
        self.held_views.started(slot);
    }
}

impl World {
    /// Starts the periodic checks.
    pub fn begin_checks(&mut self) {
        self.after(CHECK_NANOS, Happening::Check);
    }

    pub(crate) fn check_running(&mut self) {
        self.after(CHECK_NANOS, Happening::Check);
        self.check_running_once();
    }

    pub(crate) fn check_running_once(&mut self) {
        self.check_logs();
        // In a helix only scrub may find the damage, so the checks do not read the pairs.
        if !self.plan.is_helix {
            self.check_replicas();
        }
        self.check_memory();
        self.check_leaders();
        self.check_peers();
        self.check_ranges();
        self.record_durable_state();
        self.check_levels();
        self.check_collections();
        for number in self.serving() {
            self.check_reserve(number);
            self.check_replay(number);
            self.check_disk_copy(number, 12);
        }
    }

    pub(crate) fn check_event(&mut self, slot: u64, event: &Event) {
        if let Event::BecameLeader { region, term } = event {
            self.note_leader(slot, *region, *term);
        }
        if let Event::RegionCreated(region) | Event::RegionChanged(region) = event {
            self.check_state(slot, region.id);
        }
        if let Event::RegionCreated(region) = event {
            let at = self.number();
            self.moments.since.entry(region.id).or_insert(at);
        }
        if let Event::RegionDestroyed(region) = event {
            self.checks.repairs.replaced(slot, *region);
        }
        self.check_change(slot, event);
    }

    /// Checks a failed read: it is valid only if the store's disk is damaged or faulty.
    pub(crate) fn check_read_error(&mut self, number: u64, error: &Error) {
        let Some(slot) = self.slots.get(&number) else { return };
        if slot.may_fail_reads() || slot.disk.crashed() {
            return;
        }
        self.fail(format!("store {number} cannot read: {error}"));
    }

    /// Checks all invariants at the end, after faults ended and the cluster settled.
    pub fn check_end(&mut self) {
        self.check_held_views();
        self.check_logs();
        self.check_replicas();
        self.check_leaders();
        self.check_memory();
        self.check_durable();
        self.check_histories();
        self.check_programs();
        self.check_collections();
        self.check_moments();
        self.check_filled();
        self.check_unreadable();
        // The repair of unreadable values takes time, in which regions may move.
        self.wait_until_quiet();
        for slot in self.serving() {
            self.check_engine(slot);
            self.check_live(slot);
            self.check_files(slot);
        }
        self.check_owned();
        self.check_labels();
        self.check_levels();
    }

    fn check_histories(&mut self) {
        for group in 0..self.clients.histories.len() {
            match linear::check(&self.clients.histories[group]) {
                Ok(Extent::Complete) => {}
                Ok(Extent::Cut) => self.counts.cut_searches += 1,
                Err(text) => {
                    self.fail(format!("group {group} is not linearizable:{text}"));
                    return;
                }
            }
        }
    }
}
