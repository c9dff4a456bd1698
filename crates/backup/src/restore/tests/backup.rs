//! A random cluster and its backup: the log is read late and region after region, bases are made beside it.

use super::memory::Pairs;
use crate::format::{
    Base, BaseSeq, Chunk, Family, LogObject, LogSeq, Moment, Pair, Part, Record, RunId, Write,
};
use crate::restore::KeyHistory;
use crate::{BegunBase, OpenOptions, Repository};
use bytes::Bytes;
use std::collections::VecDeque;
use std::path::Path;
use stele_types::{ClusterId, KeyRange, LogIndex, MomentId, Prng, RegionId};

/// Unix seconds of all restores.
pub(super) const NOW_S: u64 = 1_800_000_000;

/// A moment, and the state at it.
pub(super) struct Taken {
    pub(super) number: MomentId,
    pub(super) run: RunId,
    pub(super) state: Pairs,
    pub(super) has_base: bool,
}

/// A write of one key: its entry, and the value after it.
type KeyState = (RegionId, LogIndex, Option<(Bytes, u64)>);

pub(super) struct Backup {
    pub(super) repository: Repository,
    pub(super) taken: Vec<Taken>,
    /// Records of all log objects, in their order.
    logged: Vec<Record>,
}

struct Region {
    id: RegionId,
    range: KeyRange,
    last: LogIndex,
    /// Committed, and not read by the backup yet.
    unread: VecDeque<Record>,
}

/// A base that is being made.
struct Making {
    begun: BegunBase,
    base: Base,
    /// First key that is not copied; `None` at the end.
    next: Option<Bytes>,
}

struct World {
    rng: Prng,
    regions: Vec<Region>,
    next_region: u64,
    pairs: Pairs,
    values: u64,
    run: RunId,
    open: LogObject,
    next_moment: u64,
    next_base: u64,
    making: Option<Making>,
    has_base: bool,
    backup: Backup,
}

impl Backup {
    /// Makes a backup by so many random steps.
    pub(super) async fn make(dir: &Path, seed: u64, steps: u32) -> Self {
        let url = dir.join("backup");
        let url = url.to_str().unwrap();
        let options = OpenOptions::default();
        let repository = Repository::create_or_open(url, &options, ClusterId(7)).await.unwrap();
        let first = Region {
            id: RegionId(2),
            range: KeyRange::all(),
            last: LogIndex(5),
            unread: VecDeque::new(),
        };
        let run = RunId(1);
        let mut world = World {
            rng: Prng::new(seed),
            regions: vec![first],
            next_region: 3,
            pairs: Pairs::new(),
            values: 0,
            run,
            open: LogObject { run, ..LogObject::default() },
            next_moment: 100,
            next_base: 0,
            making: None,
            has_base: false,
            backup: Self { repository, taken: Vec::new(), logged: Vec::new() },
        };
        for _ in 0..steps {
            world.step().await;
        }
        world.moment().await;
        world.backup
    }

    /// Returns the writes of a key in the order of the log objects.
    pub(super) fn writes_of(&self, of: &KeyHistory) -> Vec<KeyState> {
        let state = |record: &Record| {
            if record.family != of.family {
                return None;
            }
            let put = match &record.write {
                Write::Put(pair) if pair.key == of.key => {
                    Some((pair.value.clone(), pair.expires_at_s))
                }
                Write::Delete(key) if *key == of.key => None,
                Write::DeleteRange(range) if range.contains(&of.key) => None,
                _ => return None,
            };
            Some((record.region, record.index, put))
        };
        self.logged.iter().filter_map(state).collect()
    }
}

impl World {
    async fn step(&mut self) {
        match self.rng.below(100) {
            0..=49 => self.write(),
            50..=52 => self.delete_range(),
            53..=74 => self.read(),
            75..=77 => self.split(),
            78..=79 => self.merge(),
            80..=84 => self.end_log(None).await,
            85..=89 => self.moment().await,
            90..=98 => self.copy().await,
            _ if self.rng.below(4) == 0 => self.new_run(),
            _ => self.write(),
        }
    }

    fn key(&mut self) -> Bytes {
        Bytes::from(format!("k{}{}", self.rng.below(4), self.rng.below(6)))
    }

    fn family(&mut self) -> Family {
        *[Family::Default, Family::Default, Family::Lock, Family::Write]
            .get(self.rng.below(4) as usize)
            .unwrap()
    }

    fn commit(&mut self, at: usize, family: Family, write: Write) {
        match &write {
            Write::Put(pair) => {
                let value = (pair.value.clone(), pair.expires_at_s);
                self.pairs.insert((family.space(), pair.key.clone()), value);
            }
            Write::Delete(key) => {
                self.pairs.remove(&(family.space(), key.clone()));
            }
            Write::DeleteRange(range) => self
                .pairs
                .retain(|(space, key), _| *space != family.space() || !range.contains(key)),
        }
        let region = &mut self.regions[at];
        region.last.0 += 1;
        region.unread.push_back(Record { region: region.id, index: region.last, family, write });
    }

    fn region_of(&self, key: &[u8]) -> usize {
        self.regions.iter().position(|region| region.range.contains(key)).unwrap()
    }

    fn write(&mut self) {
        let (key, family) = (self.key(), self.family());
        let at = self.region_of(&key);
        self.values += 1;
        let expires_at_s = match self.rng.below(6) {
            0 => NOW_S - 1000 + self.rng.below(1000),
            1 => NOW_S + self.rng.below(1000),
            _ => 0,
        };
        let value = format!("v{}", self.values).into();
        let write = match self.rng.below(5) {
            0 => Write::Delete(key),
            _ => Write::Put(Pair { key, value, expires_at_s }),
        };
        self.commit(at, family, write);
    }

    /// Deletes a range, region by region.
    fn delete_range(&mut self) {
        let (a, b, family) = (self.key(), self.key(), self.family());
        let range = KeyRange::new(a.clone().min(b.clone()), a.max(b));
        for at in 0..self.regions.len() {
            if let Some(part) = range.common(&self.regions[at].range) {
                self.commit(at, family, Write::DeleteRange(part));
            }
        }
    }

    /// Reads some committed writes of one region into the log.
    fn read(&mut self) {
        let at = self.rng.below(self.regions.len() as u64) as usize;
        let count = self.rng.below(5) as usize;
        self.read_of(at, count);
    }

    fn read_of(&mut self, at: usize, count: usize) {
        let unread = &mut self.regions[at].unread;
        let records: Vec<Record> = unread.drain(..count.min(unread.len())).collect();
        self.open.records.extend(records);
    }

    fn read_all(&mut self) {
        while self.regions.iter().any(|region| !region.unread.is_empty()) {
            self.read();
        }
    }

    /// A child is read after what its parent had before the split.
    fn split(&mut self) {
        let key = self.key();
        let at = self.region_of(&key);
        if self.regions[at].range.start == key {
            return;
        }
        self.read_of(at, usize::MAX);
        let end = self.regions[at].range.end.clone();
        self.regions[at].range.end = key.clone();
        let child = Region {
            id: RegionId(self.next_region),
            range: KeyRange::new(key, end),
            last: LogIndex(5),
            unread: VecDeque::new(),
        };
        self.next_region += 1;
        self.regions.insert(at + 1, child);
    }

    fn merge(&mut self) {
        if self.regions.len() > 1 {
            let at = self.rng.below(self.regions.len() as u64 - 1) as usize;
            self.read_of(at + 1, usize::MAX);
            let source = self.regions.remove(at + 1);
            self.regions[at].range.end = source.range.end;
        }
    }

    async fn end_log(&mut self, moment: Option<MomentId>) {
        self.open.moment = moment;
        let next = LogObject { run: self.run, seq: self.open.seq.next(), ..LogObject::default() };
        let ended = std::mem::replace(&mut self.open, next);
        self.backup.repository.put_log(&ended).await.unwrap();
        self.backup.logged.extend(ended.records);
    }

    async fn moment(&mut self) {
        self.read_all();
        let number = MomentId(self.next_moment);
        self.next_moment += 1 + self.rng.below(3);
        let last_log = self.open.seq;
        self.end_log(Some(number)).await;
        let clock_ms = (NOW_S - 2000 + number.0) * 1000;
        let moment = Moment {
            number,
            run: self.run,
            last_log,
            clocks_unix_ms: vec![(1, clock_ms), (2, clock_ms - self.rng.below(500))],
            ..Moment::default()
        };
        self.backup.repository.put_moment(&moment).await.unwrap();
        let (state, run, has_base) = (self.pairs.clone(), self.run, self.has_base);
        self.backup.taken.push(Taken { number, run, state, has_base });
    }

    /// Copies the next region of a base, or begins one.
    async fn copy(&mut self) {
        let Some(mut making) = self.making.take() else {
            let seq = BaseSeq(self.next_base);
            self.next_base += 1;
            let (run, log_from) = (self.run, self.open.seq);
            let begun = self.backup.repository.begin_base(run, seq).await.unwrap();
            let base = Base { run, seq, log_from, ..Base::default() };
            self.making = Some(Making { begun, base, next: Some(Bytes::new()) });
            return;
        };
        if let Some(start) = making.next.take() {
            let region = &self.regions[self.region_of(&start)];
            let range = KeyRange::new(start, region.range.end.clone());
            for family in Family::ALL {
                let part = self.part(&making.begun, family, range.clone()).await;
                making.base.parts.push(part);
            }
            making.next = (!range.end.is_empty()).then_some(range.end);
            self.making = Some(making);
            return;
        }
        making.base.log_complete = self.open.seq;
        self.backup.repository.put_base(making.begun, &making.base).await.unwrap();
        self.has_base = true;
    }

    async fn part(&mut self, begun: &BegunBase, family: Family, range: KeyRange) -> Part {
        let region = &self.regions[self.region_of(&range.start)];
        let mut part = Part {
            family,
            range: range.clone(),
            region: region.id,
            index: region.last,
            chunks: Vec::new(),
        };
        let inside = |(key, _): &(&(u8, Bytes), &(Bytes, u64))| {
            key.0 == family.space() && range.contains(&key.1)
        };
        let pair = |(key, (value, expires_at_s)): (&(u8, Bytes), &(Bytes, u64))| Pair {
            key: key.1.clone(),
            value: value.clone(),
            expires_at_s: *expires_at_s,
        };
        let mut pairs: VecDeque<Pair> = self.pairs.iter().filter(inside).map(pair).collect();
        while !pairs.is_empty() {
            let count = 1 + self.rng.below(pairs.len() as u64) as usize;
            let chunk = Chunk { pairs: pairs.drain(..count).collect() };
            part.chunks.push(self.backup.repository.put_chunk(begun, &chunk).await.unwrap().0);
        }
        part
    }

    /// Begins a run without what was not read.
    fn new_run(&mut self) {
        self.run.0 += 1;
        self.open = LogObject { run: self.run, seq: LogSeq(0), ..LogObject::default() };
        self.regions.iter_mut().for_each(|region| region.unread.clear());
        (self.making, self.has_base, self.next_base) = (None, false, 0);
    }
}
