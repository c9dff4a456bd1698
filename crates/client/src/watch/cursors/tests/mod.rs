//! Random histories of a model of a cluster, watched through streams that break, lag and repeat, and from
//! tokens of any moment.

mod model;

use super::*;
use crate::watch::mark::MarkPart;
use model::{Done, KEYS, Model, letters};
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Environment variables: the first seed, and the number of seeds.
const SEED: &str = "STELE_SEED";
const SEEDS: &str = "STELE_HISTORIES";
const CLUSTER: ClusterId = ClusterId(77);
/// Most writes of one key in an entry.
const WRITES_OF_ENTRY: usize = 3;
/// Attempts of a stream after which its pauses are longer than a history.
const ATTEMPTS_MAX: u32 = 20;

/// Numbers of what happened.
#[derive(Debug, Default)]
struct Counts {
    events: AtomicU64,
    moves: AtomicU64,
    searches: AtomicU64,
    found: AtomicU64,
    resumed: AtomicU64,
    resolved: AtomicU64,
    too_old: AtomicU64,
}

/// For each watched key, the numbers of its writes that may have been returned.
type Returned = BTreeMap<u8, BTreeSet<usize>>;

struct Run<'a> {
    model: Model,
    watched: KeyRange,
    cursors: Cursors,
    /// Next index of each open stream, and its number.
    streams: BTreeMap<StreamId, (u64, u64)>,
    returned: Returned,
    saved: (String, Returned),
    /// Number of writes of each key that were acknowledged before the mark began.
    marked: Option<BTreeMap<u8, usize>>,
    counts: &'a Counts,
}

fn lengths(model: &Model) -> BTreeMap<u8, usize> {
    model.histories.iter().map(|(key, writes)| (*key, writes.len())).collect()
}

fn mark(model: &mut Model, watched: &KeyRange, steps: u64) -> Mark {
    let (mut parts, mut rest) = (Vec::new(), watched.clone());
    loop {
        let (region, index) = model.owner(&rest.start);
        let range = rest.common(&region.range).unwrap();
        let version = region.epoch.version;
        parts.push(MarkPart { range: range.clone(), region: region.id, version, index });
        if range.end == watched.end {
            return Mark::new(watched, parts).unwrap();
        }
        rest.start = range.end;
        (0..model.rng.below(steps + 1)).for_each(|_| model.step());
    }
}

/// Begins a watch while the cluster changes; in the end it stands still.
fn begin(model: &mut Model, watched: &KeyRange) -> (Cursors, Returned) {
    let mut listed = model.regions(watched);
    for steps in [3, 3, 2, 2, 1, 1, 0, 0] {
        let mut firsts = Vec::new();
        let mut returned = Returned::new();
        for id in listed {
            let lag = if steps == 0 { 0 } else { model.rng.below(4) };
            let (region, next_index, time) = model.first(id, lag);
            for key in letters(&region.range) {
                let before = model.histories[&key].iter().filter(|(_, at)| *at <= time).count();
                returned.insert(key, BTreeSet::from([before]));
            }
            firsts.push(First { region, next_index });
            (0..model.rng.below(steps + 1)).for_each(|_| model.step());
        }
        let confirmed = mark(model, watched, steps);
        let begun = Cursors::begin(watched, ColumnFamily::Default, firsts, &confirmed);
        if let Some(cursors) = begun {
            returned.retain(|key, _| watched.contains(&[*key]));
            return (cursors, returned);
        }
        listed = model.regions(watched);
        (0..steps).for_each(|_| model.step());
    }
    panic!("a watch does not begin although nothing changes");
}

impl<'a> Run<'a> {
    fn new(seed: u64, counts: &'a Counts) -> Self {
        let mut model = Model::new(seed);
        (0..model.rng.below(60)).for_each(|_| model.step());
        let bounds = ["", "c", "f", "i"];
        let start = model.rng.below(3) as usize;
        let end = start + 1 + model.rng.below(3) as usize;
        let end = bounds.get(end).copied().unwrap_or_default();
        let watched = KeyRange::new(bounds[start], end);
        let (cursors, returned) = begin(&mut model, &watched);
        let saved = (cursors.token(CLUSTER).unwrap().to_string(), returned.clone());
        let streams = BTreeMap::new();
        Self { model, watched, cursors, streams, returned, saved, marked: None, counts }
    }

    fn step(&mut self) -> Result<()> {
        match self.model.rng.below(24) {
            0..=9 => self.model.step(),
            10 => {
                self.saved = (self.cursors.token(CLUSTER)?.to_string(), self.returned.clone());
            }
            11 if self.model.rng.below(3) == 0 => self.resume(),
            12 if self.marked.is_none() => self.set_mark(2),
            _ => {
                self.read_some(false)?;
                self.take(self.model.rng.clone().below(6))?;
            }
        }
        Ok(())
    }

    fn set_mark(&mut self, steps: u64) {
        self.marked = Some(lengths(&self.model));
        let mark = mark(&mut self.model, &self.watched, steps);
        self.cursors.set_mark(mark);
    }

    fn resume(&mut self) {
        let token: Token = self.saved.0.parse().unwrap();
        self.cursors = Cursors::resume(&token).unwrap();
        assert_eq!(self.cursors.token(CLUSTER).unwrap(), token);
        self.streams.clear();
        self.marked = None;
        self.returned = self.saved.1.clone();
        // Writes of one entry may come again.
        for numbers in self.returned.values_mut() {
            let before = |number: &usize| number.saturating_sub(WRITES_OF_ENTRY)..*number;
            *numbers = numbers.iter().flat_map(before).chain(numbers.iter().copied()).collect();
        }
        self.counts.resumed.fetch_add(1, Relaxed);
    }

    /// Opens and closes streams, and feeds a response of one of them. Returns whether there was any.
    fn read_some(&mut self, is_last: bool) -> Result<bool> {
        for stream in self.cursors.take_changes() {
            let wanted = self.cursors.wanted(stream);
            let is_open = |wanted: &Wanted| {
                self.streams.get(&stream).is_some_and(|(_, number)| *number == wanted.generation)
            };
            match wanted {
                None => drop(self.streams.remove(&stream)),
                Some(wanted) if is_open(&wanted) => {}
                Some(wanted) => {
                    self.counts.moves.fetch_add(1, Relaxed);
                    self.streams.insert(stream, (wanted.next_index, wanted.generation));
                }
            }
        }
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        let from = self.model.rng.below(streams.len() as u64) as usize;
        for stream in streams.iter().cycle().skip(from).take(streams.len()) {
            if self.read(*stream, is_last)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn read(&mut self, stream: StreamId, is_last: bool) -> Result<bool> {
        let wanted = self.cursors.wanted(stream);
        let Some(wanted) = wanted.filter(|it| !it.is_held && it.attempts < ATTEMPTS_MAX) else {
            return Ok(false);
        };
        let Some((next_index, generation)) = self.streams.get(&stream).copied() else {
            return Ok(false);
        };
        if generation != wanted.generation {
            return Ok(false);
        }
        let rng = &mut self.model.rng;
        if let (StreamId::Seek(source), 0) = (stream, next_index) {
            self.counts.searches.fetch_add(1, Relaxed);
            // A replica catches up in the pauses between attempts.
            let lag = if is_last || wanted.attempts > 2 { 0 } else { rng.below(5) };
            let (_, next, _) = self.model.first(wanted.region.0, lag);
            if !is_last {
                (0..self.model.rng.below(3)).for_each(|_| self.model.step());
            }
            let is_there = self.model.owner(&wanted.first_key).0.id == source;
            self.cursors.sought(source, generation, next, is_there)?;
            return Ok(true);
        }
        // A stream that breaks is opened at its place, or repeats what was sent.
        let repeated = if rng.below(8) == 0 { rng.below(4) } else { 0 };
        let most = 1 + rng.below(if is_last { 500 } else { 5 });
        let from = next_index.saturating_sub(repeated).max(1);
        let mut answer = self.model.serve(wanted.region.0, from, &wanted.keys, most + repeated);
        if answer.is_err() {
            answer = self.model.serve(wanted.region.0, next_index, &wanted.keys, most);
        }
        match answer {
            Err(()) => {
                let has_key = self.model.owner(&wanted.first_key).0.id == wanted.region;
                self.cursors.too_old(stream, generation, has_key).map(|()| true)
            }
            Ok(None) => Ok(false),
            Ok(Some(response)) => {
                if let Some((next, _)) = self.streams.get_mut(&stream) {
                    *next = response.next_index.max(*next);
                }
                let before = self.cursors.seekers.len();
                self.cursors.feed(stream, generation, response)?;
                let found = before.saturating_sub(self.cursors.seekers.len()) as u64;
                self.counts.found.fetch_add(found, Relaxed);
                Ok(true)
            }
        }
    }

    fn take(&mut self, most: u64) -> Result<bool> {
        for number in 0..most {
            let Some(event) = self.cursors.next_event()? else { return Ok(number > 0) };
            self.counts.events.fetch_add(1, Relaxed);
            match event {
                WatchEvent::Put { key, value, .. } => self.returned(key[0], &Done::Put(value)),
                WatchEvent::Delete { key } => self.returned(key[0], &Done::Delete),
                WatchEvent::DeletedRange { start, end } => {
                    for key in letters(&KeyRange { start, end }) {
                        self.returned(key, &Done::InRange);
                    }
                }
                WatchEvent::Resolved => self.resolved(),
            }
        }
        Ok(true)
    }

    fn returned(&mut self, key: u8, done: &Done) {
        let name = char::from(key);
        let history = &self.model.histories[&key];
        let numbers = self.returned.get_mut(&key);
        let numbers = numbers.unwrap_or_else(|| panic!("key {name} is not watched"));
        let next = |number: &usize| history.get(*number).is_some_and(|(next, _)| next == done);
        let after: BTreeSet<usize> =
            numbers.iter().filter(|it| next(it)).map(|it| it + 1).collect();
        assert!(!after.is_empty(), "key {name}: {done:?} after {numbers:?} of {history:?}");
        *numbers = after;
    }

    fn resolved(&mut self) {
        let marked = self.marked.take().expect("resolved without a mark");
        for (key, numbers) in &self.returned {
            let most = numbers.last().copied().unwrap_or_default();
            let name = char::from(*key);
            assert!(most >= marked[key], "key {name}: {numbers:?} of {} are resolved", marked[key]);
        }
        self.counts.resolved.fetch_add(1, Relaxed);
    }

    /// Reads to the ends of the logs, at which nothing is missing.
    fn finish(&mut self) -> Result<()> {
        self.set_mark(0);
        // The end of a response without events may open streams.
        while self.read_some(true)? | self.take(1000)? || !self.cursors.changed.is_empty() {}
        for (key, numbers) in &self.returned {
            let writes = self.model.histories[key].len();
            let name = char::from(*key);
            let state = &self.cursors;
            assert!(
                numbers.contains(&writes),
                "key {name}: {numbers:?} of {writes} writes\n{state:#?}"
            );
        }
        assert!(self.marked.is_none(), "the last mark is not resolved\n{:?}", self.cursors);
        Ok(())
    }
}

fn run(seed: u64, counts: &Counts) {
    let mut run = Run::new(seed, counts);
    let truncates = run.model.rng.below(4) == 0;
    let steps = 50 + run.model.rng.below(400);
    let ended = (0..steps)
        .try_for_each(|_| {
            if truncates && run.model.rng.below(40) == 0 {
                run.model.truncate();
            }
            run.step()
        })
        .and_then(|()| run.finish());
    match ended {
        Ok(()) => {}
        Err(Error::TooOld(_)) if run.model.is_truncated => {
            counts.too_old.fetch_add(1, Relaxed);
        }
        Err(error) => panic!("{error}"),
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

#[test]
fn random_histories_lose_and_repeat_nothing() {
    let first = number(SEED).unwrap_or(1);
    let seeds = number(SEEDS).unwrap_or(if number(SEED).is_some() { 1 } else { 3000 });
    let counts = Counts::default();
    for seed in first..first + seeds {
        let replay = format!(
            "seed {seed}; replay: {SEED}={seed} cargo test -p stele-client --lib random_histories"
        );
        catch_unwind(|| run(seed, &counts)).unwrap_or_else(|_| panic!("{replay}"));
    }
    println!("seeds {first}..{}: {counts:?}", first + seeds);
    let all = [&counts.events, &counts.moves, &counts.searches, &counts.found, &counts.resumed];
    let all = all.into_iter().chain([&counts.resolved, &counts.too_old]);
    assert!(seeds < 1000 || all.into_iter().all(|count| count.load(Relaxed) > 100), "{counts:?}");
}

#[test]
fn a_response_that_cannot_be_one_of_the_log_ends_the_watch() {
    let mut model = Model::new(1);
    let watched = KeyRange::all();
    let (mut cursors, _) = begin(&mut model, &watched);
    let stream = cursors.take_changes().remove(0);
    let number = cursors.wanted(stream).unwrap().generation;
    let entry = |index| FollowedEntry { index, ..FollowedEntry::default() };
    let response = |indexes: [u64; 2], next_index| {
        let entries = indexes.map(entry).to_vec();
        FollowResponse { entries, next_index, ..FollowResponse::default() }
    };
    for bad in [response([900, 900], 950), response([901, 900], 950), response([900, 950], 950)] {
        assert!(matches!(cursors.feed(stream, number, bad), Err(Error::Refused(_))));
    }
    let writes =
        vec![FollowedWrite { cf: String::new(), key: model::key(*KEYS.start()), kind: None }];
    let unknown = FollowedEntry { index: 900, writes, ..FollowedEntry::default() };
    let response =
        FollowResponse { entries: vec![unknown], next_index: 901, ..FollowResponse::default() };
    cursors.feed(stream, number, response).unwrap();
    assert!(matches!(cursors.next_event(), Err(Error::Refused(_))), "a write is left out");
}
