//! A store reduced to what the policies see: the file of each key's records, tiers that are exact
//! only where they were merged, and counters of bytes.

use crate::simulator::workload::Workload;
use std::collections::BTreeMap;
use stele_gc::{Choice, FileState, GcOptions, Held, State, TierState, credit_for, pick};
use stele_types::FileId;

/// Bytes of one index entry (16-byte key and a locator), of one memtable entry, and of one sidecar
/// entry.
const ENTRY_BYTES: u64 = 35;
const SIDECAR_BYTES: u64 = 36;
/// Foreground bytes for each payload byte (frames, padding, record headers).
const LOG_OVERHEAD: f64 = 1.005;
const MEMTABLE_BYTES_MAX: u64 = 64 << 20;
const MEMTABLE_ENTRY_BYTES: u64 = 100;

#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub keys: usize,
    pub record_bytes: u64,
    pub segment_records: usize,
}

/// Device bytes for each user byte, in all and by cause; `late` counts the second half of updates.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Statistics {
    pub write_amp: f64,
    pub write_amp_late: f64,
    pub log: f64,
    pub flush: f64,
    pub merge: f64,
    pub relocate: f64,
    pub sort: f64,
    pub space_amp: f64,
    /// Largest value after a collection.
    pub space_amp_worst: f64,
    /// Largest value while a job's inputs and outputs both exist.
    pub space_amp_peak: f64,
}

#[derive(Clone, Copy, Default)]
struct Written {
    log: f64,
    flush: u64,
    merge: u64,
    relocate: u64,
    sort: u64,
}

impl Written {
    fn total(&self) -> f64 {
        self.log + (self.flush + self.merge + self.relocate + self.sort) as f64
    }
}

#[derive(Clone, Copy)]
struct File {
    records: u64,
    referred: u64,
    is_sorted: bool,
}

/// key → file, sorted by key.
type Tier = Vec<(u32, FileId)>;

pub(super) struct Model {
    shape: Shape,
    options: GcOptions,
    files: BTreeMap<FileId, File>,
    next_file: u32,
    head: FileId,
    checkpoint: FileId,
    memtable: BTreeMap<u32, FileId>,
    memtable_records: u64,
    frozen: Option<(BTreeMap<u32, FileId>, FileId)>,
    /// Newest first.
    tiers: Vec<Tier>,
    overwrite_ratio: f64,
    credit: f64,
    written: Written,
    inserted: usize,
    worst: f64,
    peak: f64,
    /// Value at the last call of a policy.
    space_amp_seen: f64,
}

impl Model {
    pub(super) fn new(shape: Shape, options: GcOptions) -> Self {
        let mut model = Self {
            shape,
            options,
            files: BTreeMap::new(),
            next_file: 1,
            head: FileId(1),
            checkpoint: FileId(1),
            memtable: BTreeMap::new(),
            memtable_records: 0,
            frozen: None,
            tiers: Vec::new(),
            overwrite_ratio: 0.0,
            credit: 0.0,
            written: Written::default(),
            inserted: 0,
            worst: 1.0,
            peak: 1.0,
            space_amp_seen: 1.0,
        };
        model.head = model.new_file(false);
        model
    }

    fn new_file(&mut self, is_sorted: bool) -> FileId {
        let id = FileId(self.next_file);
        self.next_file += 1;
        self.files.insert(id, File { records: 0, referred: 0, is_sorted });
        id
    }

    /// Inserts every key, then updates; runs garbage collection after every few records.
    pub(super) fn run(&mut self, workload: &mut Workload, updates: usize) -> Statistics {
        let pause = (self.shape.keys / 256).max(1);
        for (i, key) in workload.inserts().enumerate() {
            self.put(key);
            self.inserted = i + 1;
            if i % pause == 0 {
                self.collect();
            }
        }
        let mut middle = (self.written, 0);
        (self.worst, self.peak) = (1.0, 1.0);
        for i in 0..updates {
            self.put(workload.next());
            if i % pause == 0 {
                self.collect();
            }
            if i == updates / 2 {
                middle = (self.written, i);
            }
        }
        self.collect();
        let record = self.shape.record_bytes as f64;
        let user = (self.shape.keys + updates) as f64 * record;
        let late = (updates - middle.1).max(1) as f64 * record;
        let written = self.written;
        Statistics {
            write_amp: written.total() / user,
            write_amp_late: (written.total() - middle.0.total()) / late,
            log: written.log / user,
            flush: written.flush as f64 / user,
            merge: written.merge as f64 / user,
            relocate: written.relocate as f64 / user,
            sort: written.sort as f64 / user,
            space_amp: self.space_amp(),
            space_amp_worst: self.worst,
            space_amp_peak: self.peak,
        }
    }

    fn put(&mut self, key: u32) {
        let full = |file: &File| file.records as usize == self.shape.segment_records;
        if self.files.get(&self.head).is_some_and(full) {
            self.head = self.new_file(false);
        }
        let head = self.head;
        self.files.entry(head).and_modify(|file| file.records += 1);
        self.memtable.insert(key, head);
        self.memtable_records += 1;
        self.written.log += self.shape.record_bytes as f64 * LOG_OVERHEAD + SIDECAR_BYTES as f64;
        self.credit += credit_for(self.shape.record_bytes, self.space_amp_seen, &self.options);
        if self.memtable.len() as u64 * MEMTABLE_ENTRY_BYTES >= MEMTABLE_BYTES_MAX {
            self.freeze();
        }
    }

    fn freeze(&mut self) {
        self.frozen = Some((std::mem::take(&mut self.memtable), self.head));
        self.memtable_records = 0;
    }

    /// Returns the real bytes for each byte that is really live.
    fn space_amp(&self) -> f64 {
        let live = self.inserted as u64 * self.shape.record_bytes;
        self.observe().disk_bytes() as f64 / live.max(1) as f64
    }

    fn collect(&mut self) {
        for _ in 0..10_000 {
            let state = self.observe();
            self.space_amp_seen = state.space_amp_weighed(&self.options);
            let choice = pick(&state, &self.options);
            let last = choice == Choice::Idle;
            self.carry_out(choice);
            self.peak = self.peak.max(self.space_amp());
            if last {
                self.worst = self.worst.max(self.space_amp());
                return;
            }
        }
        panic!("no end: {:?}", pick(&self.observe(), &self.options));
    }

    fn observe(&self) -> State {
        let record = self.shape.record_bytes;
        let tiers = self.tiers.iter().map(|tier| TierState {
            bytes: tier.len() as u64 * ENTRY_BYTES,
            ref_bytes: tier.len() as u64 * record,
            hides_bytes: 0,
        });
        let files = self.files.iter().map(|(&id, file)| {
            let held_when_dead = if id == self.head {
                Some(Held::Head)
            } else if id >= self.checkpoint && !file.is_sorted {
                Some(Held::Checkpoint)
            } else {
                None
            };
            let held = held_when_dead.or((file.referred > 0).then_some(Held::Live));
            FileState {
                id,
                bytes: file.records * record,
                live_bytes: file.referred * record,
                unreadable_bytes: 0,
                is_sorted: file.is_sorted,
                held,
                held_when_dead,
            }
        });
        State {
            memtable_bytes: self.memtable_records * record,
            frozen: usize::from(self.frozen.is_some()),
            tiers: tiers.collect(),
            files: files.collect(),
            other_bytes: self.files.len() as u64
                * self.shape.segment_records as u64
                * SIDECAR_BYTES,
            overwrite_ratio: self.overwrite_ratio,
            credit_bytes: self.credit as i64,
            move_bytes_max: u64::MAX,
            ..State::default()
        }
    }

    fn carry_out(&mut self, choice: Choice) {
        match choice {
            Choice::Idle
            | Choice::Roll
            | Choice::Trim
            | Choice::Truncate
            | Choice::Reappend { .. }
            | Choice::DropFree { .. }
            | Choice::DropExpired { .. } => {}
            Choice::Freeze => self.freeze(),
            Choice::Flush => {
                let Some((memtable, checkpoint)) = self.frozen.take() else { return };
                self.checkpoint = checkpoint;
                self.written.flush += memtable.len() as u64 * ENTRY_BYTES;
                let tier: Tier = memtable.into_iter().collect();
                self.refer(&tier, 1);
                self.tiers.insert(0, tier);
            }
            Choice::Merge { first, count } => self.merge(first, count, |_| false, false),
            Choice::Relocate { victims } => {
                let chosen: std::collections::BTreeSet<_> = victims.into_iter().collect();
                self.merge(0, self.tiers.len(), |id| chosen.contains(&id), false);
            }
            Choice::Sort { .. } => self.merge(0, self.tiers.len(), |_| true, true),
            Choice::Reclaim { files } => {
                for file in files {
                    self.files.remove(&file);
                }
            }
        }
    }

    fn refer(&mut self, tier: &Tier, by: i64) {
        let mut counts = vec![0i64; self.next_file as usize];
        tier.iter().for_each(|(_, id)| counts[id.0 as usize] += by);
        for (id, file) in &mut self.files {
            file.referred = file.referred.wrapping_add_signed(counts[id.0 as usize]);
        }
    }

    fn merge(&mut self, first: usize, count: usize, moves: impl Fn(FileId) -> bool, sorting: bool) {
        let inputs: Vec<Tier> = self.tiers.drain(first..first + count).collect();
        let bottom = first == self.tiers.len();
        let upper: usize = inputs.iter().rev().skip(1).map(Vec::len).sum();
        let entries: usize = inputs.iter().map(Vec::len).sum();
        let mut newest = vec![FileId(0); self.shape.keys];
        for (key, file) in inputs.iter().rev().flatten() {
            newest[*key as usize] = *file;
        }
        let keyed = newest.iter().enumerate().filter(|(_, file)| file.0 > 0);
        let mut output: Tier = keyed.map(|(key, file)| (key as u32, *file)).collect();
        let mut moved = 0u64;
        let mut target: Option<FileId> = None;
        for (_, id) in &mut output {
            if !moves(*id) {
                continue;
            }
            let full = |model: &Self, id: FileId| {
                model.files[&id].records as usize >= model.shape.segment_records
            };
            let into = match target.filter(|&id| !full(self, id)) {
                Some(into) => into,
                None => self.new_file(sorting),
            };
            target = Some(into);
            self.files.entry(into).and_modify(|file| file.records += 1);
            *id = into;
            moved += 1;
        }
        self.peak = self.peak.max(self.space_amp());
        for tier in &inputs {
            self.refer(tier, -1);
        }
        self.refer(&output, 1);
        if bottom && upper > 0 {
            let seen = (entries - output.len()) as f64 / upper as f64;
            self.overwrite_ratio += 0.75 * (seen - self.overwrite_ratio);
        }
        let index_bytes = output.len() as u64 * ENTRY_BYTES;
        let value_bytes = moved * self.shape.record_bytes;
        self.written.merge += index_bytes;
        if sorting {
            self.written.sort += value_bytes;
        } else {
            self.written.relocate += value_bytes;
            self.credit -= (index_bytes + value_bytes) as f64;
        }
        self.tiers.insert(first, output);
    }
}
