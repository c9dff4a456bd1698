//! Parameters that a seed decides before the run: size of the cluster, configuration and faults.

use crate::faults::{Fault, FaultSet};
use crate::hardware;
use stele_engine::{GcOptions, Options as EngineOptions, PolicyKind};
use stele_replica::Options as RaftOptions;
use stele_types::{ClusterId, Prng, StoreId, TickMillis};

/// A millisecond of virtual time.
pub const MS: u64 = 1_000_000;
/// A second of virtual time.
pub const SECOND: u64 = 1_000 * MS;
/// Cluster id of every run.
pub const CLUSTER: ClusterId = ClusterId(7);

/// Property that a run checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// No invariant is ever violated.
    #[default]
    Safety,
    /// After the faults stop, the cluster makes progress within a bounded time.
    Liveness,
}

/// Returns the random stream of a seed and a name. Draws of one part of a run do not shift those of
/// another.
pub fn fork(seed: u64, name: &str) -> Prng {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut prng = Prng::new(seed ^ hash);
    prng.draw();
    prng
}

/// Draws one of the values.
pub fn pick<T: Copy>(prng: &mut Prng, values: &[T]) -> T {
    values[prng.below(values.len() as u64) as usize]
}

/// Parameters of one run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed of all random streams.
    pub seed: u64,
    /// Property to check.
    pub mode: Mode,
    /// Number of nodes.
    pub nodes: u64,
    /// Number of stores of each node.
    pub stores_per_node: u64,
    /// Virtual nanoseconds during which clients and faults are active.
    pub nanos: u64,
    /// Number of clients.
    pub clients: u64,
    /// Number of key groups; the keys of a group are read and written together.
    pub groups: u64,
    /// Operations of all clients together, at most.
    pub ops_max: u64,
    /// Bound of a value's length after its 8-digit number, exclusive.
    pub value_bytes_max: u64,
    /// Bound of a client's pause between two operations.
    pub pause_nanos_max: u64,
    /// Average pause between two faults.
    pub calm_nanos: u64,
    /// Faults that happen.
    pub faults: FaultSet,
    /// If even, every second fault on average is number `focus / 2` of the drawn kinds, modulo their
    /// number.
    pub focus: u64,
    /// Operations per 1000 that put many small keys.
    pub fill_permille: u64,
    /// Operations per 1000 that are read-modify-writes other than comparisons.
    pub modify_permille: u64,
    /// Read-modify-writes, and puts of single keys, per 1000 that are requests of sessions.
    pub session_permille: u64,
    /// Operations per 1000 that are programs of several keys.
    pub program_permille: u64,
    /// Whether Redis commands are sent, and stores sweep their keys.
    pub has_collections: bool,
    /// Operations per 1000 that are transactions over regions.
    pub transaction_permille: u64,
    /// Whether disks serve reads from the system's page cache. Without it most values are looked up
    /// beside the loop.
    pub has_page_cache: bool,
    /// Size of an entry above which a batch of such puts becomes several.
    pub batch_entry_bytes_max: usize,
    /// Bound of a store's queue, for requests and again for messages.
    pub queue_bytes_max: u64,
    /// Fastest and slowest message delay without faults.
    pub way_nanos: (u64, u64),
    /// Interval of a node's reports.
    pub heartbeat_nanos: u64,
    /// Size at which a leader splits its region.
    pub region_bytes_max: u64,
    /// Settings of the placement group, by their persisted names.
    pub settings: Vec<(&'static str, u64)>,
    /// Engine options of every store.
    pub engine: EngineOptions,
    /// Engine options after a node was restarted with other settings.
    pub other_engine: EngineOptions,
    /// Limit of one maintenance slice.
    pub slice_bytes: u64,
    /// Block size of the device if the log bypasses the page cache.
    pub block_bytes: Option<usize>,
    /// Capacity of a device that is not small.
    pub capacity_bytes: u64,
    /// Consensus options of every store, except its identity.
    pub raft: RaftOptions,
    /// Moments are taken while clients work.
    pub takes_moments: bool,
    /// Request threads pause also between the check of a read and its lease.
    pub pauses_before_lease: bool,
    /// Writers wait while garbage collection lags.
    pub has_slow_writers: bool,
    /// A reader follows the logs of all regions.
    pub follows: bool,
    /// The cluster begins with the oldest level, which is raised during the run.
    pub begins_at_oldest_level: bool,
    /// Every replica is damaged in a different place, and there are no other faults.
    pub is_helix: bool,
    /// With `is_helix`: the damage is in the logs, done while all nodes are down.
    pub has_damaged_payloads: bool,
}

impl Plan {
    /// Draws the plan of a seed.
    pub fn draw(seed: u64, mode: Mode) -> Self {
        let mut prng = fork(seed, "plan");
        let prng = &mut prng;
        let nodes = pick(prng, &[1, 2, 3, 3, 3, 3, 3, 4, 5, 5, 7]);
        let stores_per_node = if nodes <= 4 { pick(prng, &[1, 1, 1, 2]) } else { 1 };
        let faults = FaultSet::draw(prng);
        let way_least = pick(prng, &[50_000, 200_000]);
        let mut engine = engine_options(prng);
        engine.gc.space_slack_bytes = pick(&mut fork(seed, "slack"), &[0, 0, 0, 0, 0, 100_000]);
        let mut index_memory = fork(seed, "index memory");
        let mut index_memory_bytes_max = || pick(&mut index_memory, &[0, 4 << 10, 1 << 20]);
        engine.index_memory_bytes_max = index_memory_bytes_max();
        let mut other_engine = EngineOptions {
            direct_io: engine.direct_io,
            index_memory_bytes_max: index_memory_bytes_max(),
            ..engine_options(&mut fork(seed, "other"))
        };
        let mut slice_bytes = SLICE_BYTES;
        if WITH_LONG_RUNS.contains(&(seed % 20)) {
            slice_bytes = LONG_RUN_BYTES / SLICES_OF_LONG_RUN;
            (engine.run_bytes_max, other_engine.run_bytes_max) = (LONG_RUN_BYTES, LONG_RUN_BYTES);
        }
        let mut raft = raft_options(prng);
        raft.tick_nanos = tick_nanos(seed);
        raft.commit_return = fork(seed, "commit return").below(6) > 0;
        raft.read_acceleration = fork(seed, "read acceleration").below(6) > 0;
        Self {
            seed,
            mode,
            nodes,
            stores_per_node,
            nanos: (4 + prng.below(8)) * SECOND,
            clients: 2 + prng.below(6),
            groups: 1 + prng.below(8),
            ops_max: 300 + prng.below(900),
            value_bytes_max: pick(prng, &[80, 300, 1_000, 4_000]),
            pause_nanos_max: pick(prng, &[5, 20, 50]) * MS,
            calm_nanos: pick(prng, &[100, 300, 800]) * MS,
            faults,
            focus: prng.below(64),
            fill_permille: pick(prng, &[0, 0, 40, 150]),
            modify_permille: modify_permille(seed),
            session_permille: session_permille(seed),
            program_permille: program_permille(seed),
            has_collections: WITH_COLLECTIONS.contains(&(seed % 40)),
            transaction_permille: transaction_permille(seed),
            has_page_cache: !looks_up(seed) || fork(seed, "page cache").coin(),
            batch_entry_bytes_max: pick(&mut fork(seed, "batch"), &[500, 2_000, 8 << 20]),
            queue_bytes_max: pick(&mut fork(seed, "queue"), &[4_000, 40_000, 256 << 20, 256 << 20]),
            way_nanos: (way_least, way_least + pick(prng, &[100_000, 1_000_000, 5_000_000])),
            heartbeat_nanos: pick(prng, &[200, 500]) * MS,
            region_bytes_max: pick(prng, &[8 << 10, 30 << 10, 1 << 30]),
            settings: settings(prng),
            slice_bytes,
            block_bytes: engine.direct_io.then(|| pick(prng, &[512, 4096])),
            engine,
            other_engine,
            capacity_bytes: 1 << 30,
            raft,
            takes_moments: WITH_MOMENTS.contains(&(seed % 20)),
            pauses_before_lease: fork(seed, "before a lease").below(4) == 0,
            has_slow_writers: WITH_SLOW_WRITERS.contains(&(seed % 20)),
            follows: false,
            begins_at_oldest_level: false,
            is_helix: false,
            has_damaged_payloads: false,
        }
    }

    /// Draws the plan of a seed with leases off: the cluster's setting says so, and clocks may stop.
    pub fn draw_without_leases(seed: u64, mode: Mode) -> Self {
        let mut plan = Self::draw(seed, mode);
        plan.raft.leases = false;
        plan.settings.push(("leases", 0));
        if fork(seed, "clock stop").below(4) > 0 {
            plan.faults.insert(Fault::ClockStop);
        }
        plan
    }

    /// Adds faults of one store to the plans of some seeds.
    pub fn with_faults_of_one_store(mut self) -> Self {
        if WITH_FAULTS_OF_ONE_STORE.contains(&(self.seed % 20)) {
            self.faults.draw_of_one_store(&mut fork(self.seed, "faults of one store"));
            self.spread_stores();
        }
        self
    }

    /// Adds unequal hardware to the plans of some seeds.
    pub fn with_faults_of_hardware(mut self) -> Self {
        if WITH_FAULTS_OF_HARDWARE.contains(&(self.seed % 20)) {
            self.faults.draw_of_hardware(&mut fork(self.seed, "faults of hardware"));
            self.settings.extend(hardware::settings(self.seed, self.faults));
            self.spread_stores();
            self.lengthen();
        }
        self
    }

    /// Adds faults of directories to the plans of some seeds.
    pub fn with_faults_of_directories(mut self) -> Self {
        if WITH_FAULTS_OF_DIRECTORIES.contains(&(self.seed % 20)) {
            self.faults.draw_of_directories(&mut fork(self.seed, "faults of directories"));
        }
        self
    }

    /// Makes the maintenance of a store slow in the plans of some seeds, with clients that write much.
    pub fn with_slow_maintenance(mut self) -> Self {
        if WITH_SLOW_MAINTENANCE.contains(&(self.seed % 20)) {
            let prng = &mut fork(self.seed, "slow maintenance");
            self.faults.insert(Fault::SlowMaintenance);
            self.pause_nanos_max = 5 * MS;
            self.value_bytes_max = pick(prng, &[4_000, 16_000]);
        }
        self
    }

    /// Loses a majority of the stores at the end of the plans of some seeds.
    pub fn with_lost_majority(mut self) -> Self {
        if WITH_LOST_MAJORITY.contains(&(self.seed % 20)) && self.nodes >= 3 {
            self.faults.insert(Fault::LoseMajority);
        }
        self
    }

    /// Adds a reader of the logs to the plans of some seeds, with a window of segments for it.
    pub fn with_follower(mut self) -> Self {
        if WITH_FOLLOWER.contains(&(self.seed % 20)) {
            self.follows = true;
            let window = pick(&mut fork(self.seed, "history"), &[0, 300_000, 64 << 20, 64 << 20]);
            self.engine.history_bytes_max = window;
            self.other_engine.history_bytes_max = window;
        }
        self
    }

    /// Begins with the oldest level in the plans of some seeds, with clients that use what is above it.
    pub fn with_levels(mut self) -> Self {
        if WITH_LEVELS.contains(&(self.seed % 40)) {
            self.begins_at_oldest_level = true;
            self.takes_moments = true;
            self.session_permille = SESSION_PERMILLE_OF_LEVELS;
        }
        self
    }

    /// Gives the nodes two stores in most plans with faults of one store or of hardware.
    pub fn spread_stores(&mut self) {
        let spreads = self.faults.has_of_one_store() || self.faults.has_of_hardware();
        if spreads && self.nodes <= 4 && !self.is_helix {
            self.stores_per_node = pick(&mut fork(self.seed, "stores of a node"), &[1, 2, 2, 2]);
        }
    }

    /// Makes plans long enough for speeds that last.
    pub fn lengthen(&mut self) {
        let least = hardware::seconds_min(self.seed, self.faults) * SECOND;
        self.nanos = self.nanos.max(least);
    }

    /// Returns the bound of a client's pause that spreads its operations over the run.
    pub fn client_pause_nanos_max(&self) -> u64 {
        match self.nanos > SPREAD_OVER_NANOS {
            true => self.pause_nanos_max.max(2 * self.nanos * self.clients / self.ops_max.max(1)),
            false => self.pause_nanos_max,
        }
    }

    /// Returns the tick that the stores record: none where it is that of clusters of earlier versions.
    pub(crate) fn recorded_tick(&self) -> Option<TickMillis> {
        let tick = TickMillis::new(self.raft.tick_nanos / MS);
        tick.filter(|tick| *tick != TickMillis::UNLESS_RECORDED)
    }

    /// Returns the number of stores that run at the same time, at most.
    pub fn stores(&self) -> u64 {
        self.nodes * self.stores_per_node
    }
}

/// Remainders by 20 of the seeds with another tick than the default one. None of the seeds that every
/// change must pass because they once showed a fault (`xtask/soak.rs`) has one of them, so that they
/// show it again.
const OTHER_TICKS: [u64; 4] = [2, 3, 11, 13];

fn tick_nanos(seed: u64) -> u64 {
    match OTHER_TICKS.contains(&(seed % 20)) {
        true => pick(&mut fork(seed, "tick"), &[20, 100]) * MS,
        false => 50 * MS,
    }
}

/// Remainders by 20 of the seeds with read-modify-writes other than comparisons. The seeds that once
/// showed a fault have none of them either.
const WITH_MODIFICATIONS: [u64; 6] = [0, 2, 5, 11, 18, 19];

/// Remainders by 20 of the seeds with runs that are as large, relative to a slice of maintenance, as those
/// of a large store: what is not a block of a run fills several slices. The seeds that once showed a
/// fault have none of them either.
const WITH_LONG_RUNS: [u64; 2] = [3, 13];
const LONG_RUN_BYTES: u64 = 64 << 10;
const SLICES_OF_LONG_RUN: u64 = 32;
/// Limit of one maintenance slice of the other seeds.
const SLICE_BYTES: u64 = 32 << 10;

/// Remainders by 20 of the seeds that draw faults of one store. The seeds that once showed a fault have
/// none of them either.
const WITH_FAULTS_OF_ONE_STORE: [u64; 5] = [2, 5, 13, 18, 19];

/// Remainders by 20 of the seeds that draw faults of hardware. The seeds that once showed a fault have
/// none of them either.
const WITH_FAULTS_OF_HARDWARE: [u64; 6] = [0, 2, 3, 11, 18, 19];

/// Remainders by 20 of the seeds that draw faults of directories. The seeds that once showed a fault have
/// none of them either.
const WITH_FAULTS_OF_DIRECTORIES: [u64; 2] = [5, 13];

/// Remainders by 20 of the seeds of which writers wait while garbage collection lags. The seeds that once
/// showed a fault have none of them either.
const WITH_SLOW_WRITERS: [u64; 6] = [0, 2, 3, 11, 13, 19];

/// Remainders by 20 of the seeds of which the maintenance of one store is slow. The seeds that once showed
/// a fault have none of them either.
const WITH_SLOW_MAINTENANCE: [u64; 2] = [2, 11];

/// Remainders by 20 of the seeds that lose a majority at the end. The seeds that once showed a fault have
/// none of them either.
const WITH_LOST_MAJORITY: [u64; 3] = [3, 13, 18];

/// Remainders by 20 of the seeds in which moments are taken. The seeds that once showed a fault have none of
/// them either.
const WITH_MOMENTS: [u64; 5] = [2, 3, 5, 11, 18];

/// Remainders by 40 of the seeds with requests of sessions. Of those with a reader of the logs, only this one:
/// the seeds that once showed a fault have none of them either.
const WITH_SESSIONS: [u64; 9] = [2, 5, 11, 18, 19, 22, 25, 31, 39];

/// Remainders by 40 of the seeds with programs of several keys. The seeds that once showed a fault have none of
/// them.
const WITH_PROGRAMS: [u64; 7] = [5, 11, 14, 18, 19, 28, 31];

/// Remainders by 40 of the seeds with Redis commands and sweepers. The seeds that once showed a fault have none of
/// them.
const WITH_COLLECTIONS: [u64; 4] = [5, 14, 28, 31];
/// Remainders by 40 of the seeds with transactions over regions. All of them have programs, and none shows a
/// deliberate bug of programs.
const WITH_TRANSACTIONS: [u64; 4] = [11, 14, 18, 19];

/// Remainders by 20 of the seeds with a reader of the logs. The seeds that once showed a fault have none of
/// them either.
const WITH_FOLLOWER: [u64; 3] = [0, 3, 18];

/// Remainders by 40 of the seeds that begin with the oldest level. The seeds that once showed a fault, or show
/// a deliberate bug, have none of them.
const WITH_LEVELS: [u64; 3] = [28, 32, 36];
const SESSION_PERMILLE_OF_LEVELS: u64 = 300;

/// Duration of a run above which clients spread their operations over it.
const SPREAD_OVER_NANOS: u64 = 12 * SECOND;

fn modify_permille(seed: u64) -> u64 {
    match WITH_MODIFICATIONS.contains(&(seed % 20)) {
        true => pick(&mut fork(seed, "modify"), &[50, 200, 400]),
        false => 0,
    }
}

fn session_permille(seed: u64) -> u64 {
    match WITH_SESSIONS.contains(&(seed % 40)) {
        true => pick(&mut fork(seed, "session share"), &[100, 300, 500]),
        false => 0,
    }
}

fn program_permille(seed: u64) -> u64 {
    match WITH_PROGRAMS.contains(&(seed % 40)) {
        true => pick(&mut fork(seed, "program share"), &[300, 500, 800]),
        false => 0,
    }
}

fn transaction_permille(seed: u64) -> u64 {
    match WITH_TRANSACTIONS.contains(&(seed % 40)) {
        true => pick(&mut fork(seed, "transaction share"), &[100, 300, 600]),
        false => 0,
    }
}

/// Returns whether requests of clients read pairs beside a store's loop.
fn looks_up(seed: u64) -> bool {
    modify_permille(seed) + program_permille(seed) > 0
}

fn settings(prng: &mut Prng) -> Vec<(&'static str, u64)> {
    vec![
        ("silent_after_seconds", pick(prng, &[2, 3])),
        ("down_after_seconds", pick(prng, &[4, 8])),
        ("replicas", pick(prng, &[3, 3, 3, 5])),
        ("merge_below_bytes", pick(prng, &[0, 0, 2_000, 20_000])),
    ]
}

fn engine_options(prng: &mut Prng) -> EngineOptions {
    let policies = [PolicyKind::Adaptive, PolicyKind::Nezha, PolicyKind::Wisckey];
    EngineOptions {
        segment_bytes_max: pick(prng, &[64 << 10, 64 << 10, 256 << 10]),
        recycle_segments_max: pick(prng, &[0, 1, 3]),
        direct_io: prng.below(4) == 0,
        entry_cache_bytes_max: pick(prng, &[0, 4 << 10, 1 << 20]),
        value_cache_bytes_max: pick(prng, &[0, 8 << 10, 1 << 20]),
        inline_value_bytes_max: pick(prng, &[0, 16, 64]),
        memtable_bytes_max: pick(prng, &[4 << 10, 8 << 10, 32 << 10]),
        block_cache_bytes_max: pick(prng, &[0, 16 << 10, 1 << 20]),
        run_bytes_max: pick(prng, &[4 << 10, 16 << 10]),
        checkpoint_log_bytes_max: pick(prng, &[64 << 10, 256 << 10]),
        reserved_bytes: pick(prng, &[0, 64 << 10, 256 << 10]),
        background: false,
        gc: GcOptions {
            policy: pick(prng, &policies),
            budget_ratio: pick(prng, &[0.25, 1.0, 5.0]),
            space_amp_target: pick(prng, &[1.1, 2.0]),
            tiers_max: pick(prng, &[1, 2, 4]),
            discover_bytes_min: pick(prng, &[0, 10_000, 100_000]),
            value_file_bytes_max: pick(prng, &[8 << 10, 64 << 10]),
            sort_threshold_bytes: pick(prng, &[10_000, 100_000]),
            merge_idle_s: 1,
            scan_load_ratio: pick(prng, &[0.0, 1.0]),
            flush_interval_s: pick(prng, &[0, 1, 5]),
            reappend_bytes_max: pick(prng, &[4 << 10, 64 << 10]),
            ..GcOptions::default()
        },
        // As a node's stores have it: damage that a read meets in the index is found and repaired.
        scrub_bytes_per_second_max: 16 << 20,
        ..EngineOptions::default()
    }
}

fn raft_options(prng: &mut Prng) -> RaftOptions {
    let mut options = RaftOptions::new(StoreId(1), CLUSTER, 1, 1);
    options.hibernate_after_ticks = pick(prng, &[0, 20, 60]);
    options.log_kept.entries = pick(prng, &[5, 20, 200]);
    options.log_kept.pin_bytes_max = pick(prng, &[1_000, 20_000, 1 << 20]);
    options.orphaned_kept_nanos = 5 * SECOND;
    options.tail_bytes_max = pick(prng, &[4_000, 1 << 20, 256 << 20]);
    options.append_message_bytes_max = pick(prng, &[1_000, 10_000, 1 << 20]);
    options.inflight_messages_max = pick(prng, &[2, 16, 256]);
    options.uncommitted_bytes_max = pick(prng, &[20_000, 1 << 20]);
    options.apply_bytes_max = pick(prng, &[1_000, 1 << 20]);
    options
}
