//! Random histories of a model of a cluster, watched through streams that break, lag and repeat, and from
//! tokens of any moment.

mod model;

use super::*;
use crate::watch::mark::MarkPart;
use model::{Done, KEYS, Model, letters, locked};
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
    cuts: AtomicU64,
    too_old: AtomicU64,
}

/// For each watched key, the numbers of its writes that may have been returned.
type Returned = BTreeMap<u8, BTreeSet<usize>>;

#[derive(Debug)]
struct Run<'a> {
    model: Model,
    watched: KeyRange,
    cursors: Cursors,
    /// Next index of each open stream, and its number.
    streams: BTreeMap<StreamId, (u64, u64)>,
    returned: Returned,
    families: Families,
    /// A token, what was returned then, and whether that had no entry in part.
    saved: (String, Returned, bool),
    /// Number of writes of each key in the cut at which the cursors are held.
    cut: Option<BTreeMap<u8, usize>>,
    is_held: bool,
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

/// Returns the letters of the histories of a key.
fn histories(letter: u8, families: Families) -> Vec<u8> {
    match families {
        Families::All => vec![letter, locked(letter)],
        Families::One(_) => vec![letter],
    }
}

/// Begins a watch while the cluster changes; in the end it stands still.
fn begin(model: &mut Model, watched: &KeyRange, families: Families) -> (Cursors, Returned) {
    let mut listed = model.regions(watched);
    for steps in [3, 3, 2, 2, 1, 1, 0, 0] {
        let mut firsts = Vec::new();
        let mut returned = Returned::new();
        for id in listed {
            let lag = if steps == 0 { 0 } else { model.rng.below(4) };
            let (region, next_index, time) = model.first(id, lag);
            let keys = letters(&region.range).into_iter().filter(|it| watched.contains(&[*it]));
            for key in keys.flat_map(|letter| histories(letter, families)) {
                let before = model.histories[&key].iter().filter(|(_, at)| *at <= time).count();
                returned.insert(key, BTreeSet::from([before]));
            }
            firsts.push(First { region, next_index });
            (0..model.rng.below(steps + 1)).for_each(|_| model.step());
        }
        let confirmed = mark(model, watched, steps);
        let begun = Cursors::begin(watched, families, firsts, &confirmed);
        if let Some(cursors) = begun {
            return (cursors, returned);
        }
        listed = model.regions(watched);
        (0..steps).for_each(|_| model.step());
    }
    panic!("a watch does not begin although nothing changes");
}

impl<'a> Run<'a> {
    /// Watches a part of the keys, or everything.
    fn new(seed: u64, families: Families, counts: &'a Counts) -> Self {
        let mut model = Model::new(seed);
        (0..model.rng.below(60)).for_each(|_| model.step());
        let bounds = ["", "c", "f", "i"];
        let start = model.rng.below(3) as usize;
        let end = start + 1 + model.rng.below(3) as usize;
        let end = bounds.get(end).copied().unwrap_or_default();
        let watched = match families {
            Families::All => KeyRange::all(),
            Families::One(_) => KeyRange::new(bounds[start], end),
        };
        let (cursors, returned) = begin(&mut model, &watched, families);
        let saved = (cursors.token(CLUSTER).unwrap().to_string(), returned.clone(), false);
        let streams = BTreeMap::new();
        let (marked, cut, is_held) = (None, None, false);
        Self {
            model,
            watched,
            cursors,
            streams,
            returned,
            families,
            saved,
            cut,
            is_held,
            marked,
            counts,
        }
    }

    fn step(&mut self) -> Result<()> {
        match self.model.rng.below(24) {
            0..=9 => self.model.step(),
            10 => self.save()?,
            11 if self.model.rng.below(3) == 0 => self.resume(),
            12 if self.families == Families::All => self.hold_or_let_go()?,
            12 if self.marked.is_none() => self.set_mark(2),
            _ => {
                self.read_some(false)?;
                self.take(self.model.rng.clone().below(6))?;
            }
        }
        Ok(())
    }

    fn save(&mut self) -> Result<()> {
        let token = self.cursors.token(CLUSTER)?.to_string();
        self.saved = (token, self.returned.clone(), self.is_held);
        Ok(())
    }

    /// Holds the cursors at the present state, or lets them go if they have come to it.
    fn hold_or_let_go(&mut self) -> Result<()> {
        if self.is_held {
            self.cursors.let_go();
            (self.cut, self.is_held) = (None, false);
        } else if self.cut.is_none() {
            self.cut = Some(lengths(&self.model));
            self.cursors.hold_at(self.model.cut())?;
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
        (self.marked, self.cut, self.is_held) = (None, None, false);
        self.returned = self.saved.1.clone();
        self.counts.resumed.fetch_add(1, Relaxed);
        if self.saved.2 {
            return;
        }
        // Writes of one entry may come again.
        for numbers in self.returned.values_mut() {
            let before = |number: &usize| number.saturating_sub(WRITES_OF_ENTRY)..*number;
            *numbers = numbers.iter().flat_map(before).chain(numbers.iter().copied()).collect();
        }
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
            assert!(!self.is_held, "{event:?} is returned although the cut is reached");
            match event {
                LoggedEvent::Write(write) => self.write(&write),
                LoggedEvent::Resolved if self.cut.is_some() => self.at_cut()?,
                LoggedEvent::Resolved => self.resolved(),
            }
        }
        Ok(true)
    }

    fn write(&mut self, write: &LoggedWrite) {
        let (keys, done) = match &write.event {
            WatchEvent::Put { key, value, .. } => (vec![key[0]], Done::Put(value.clone())),
            WatchEvent::Delete { key, .. } => (vec![key[0]], Done::Delete),
            WatchEvent::DeletedRange { start, end } => {
                let range = KeyRange { start: start.clone(), end: end.clone() };
                (letters(&range), Done::InRange)
            }
            WatchEvent::Resolved => panic!("{write:?} is not a write"),
        };
        for key in keys {
            assert!(self.model.has_write(write, key), "{write:?} is not in the log");
            let is_lock = write.family == ColumnFamily::Lock;
            self.returned(if is_lock { locked(key) } else { key }, &done);
        }
    }

    /// Checks that exactly what is in the cut was returned.
    fn at_cut(&mut self) -> Result<()> {
        for (key, most) in self.cut.iter().flatten() {
            let numbers = self.returned.get_mut(key).unwrap();
            let name = char::from(*key);
            assert!(numbers.contains(most), "key {name}: {numbers:?} are returned of {most}");
            *numbers = BTreeSet::from([*most]);
        }
        self.is_held = true;
        self.counts.cuts.fetch_add(1, Relaxed);
        self.save()
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
        // A cut is still to be reached, unless it is.
        while self.cut.is_some() && !self.is_held {
            let goes_on = self.read_some(true)? | self.take(1000)?;
            assert!(goes_on || self.is_held || !self.cursors.changed.is_empty(), "{self:?}");
        }
        self.cursors.let_go();
        (self.cut, self.is_held) = (None, false);
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

fn run(seed: u64, families: Families, counts: &Counts) {
    let mut run = Run::new(seed, families, counts);
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
        let families = Families::One(ColumnFamily::Default);
        catch_unwind(|| run(seed, families, &counts)).unwrap_or_else(|_| panic!("{replay}"));
    }
    println!("seeds {first}..{}: {counts:?}", first + seeds);
    let all = [&counts.events, &counts.moves, &counts.searches, &counts.found, &counts.resumed];
    let all = all.into_iter().chain([&counts.resolved, &counts.too_old]);
    assert!(seeds < 1000 || all.into_iter().all(|count| count.load(Relaxed) > 100), "{counts:?}");
}

#[test]
fn what_is_returned_at_a_held_cut_is_exactly_what_is_in_it() {
    let first = number(SEED).unwrap_or(1);
    let seeds = number(SEEDS).unwrap_or(if number(SEED).is_some() { 1 } else { 1500 });
    let counts = Counts::default();
    for seed in first..first + seeds {
        let replay = format!(
            "seed {seed}; replay: {SEED}={seed} cargo test -p stele-client --lib what_is_returned"
        );
        catch_unwind(|| run(seed, Families::All, &counts)).unwrap_or_else(|_| panic!("{replay}"));
    }
    println!("seeds {first}..{}: {counts:?}", first + seeds);
    let all = [&counts.events, &counts.moves, &counts.resumed, &counts.cuts, &counts.too_old];
    assert!(seeds < 1000 || all.iter().all(|count| count.load(Relaxed) > 100), "{counts:?}");
}

#[test]
fn cursors_are_held_only_at_cuts_of_all_keys() {
    let part = |start: &'static str, end: &'static str, region| CutPart {
        range: KeyRange::new(start, end),
        region: RegionId(region),
        term: 6,
        index: 9,
    };
    let cut = || Cut::new(vec![part("m", "", 2), part("", "m", 1)]).unwrap();
    assert_eq!(cut().parts(), [part("", "m", 1), part("m", "", 2)]);
    for odd in [
        vec![part("", "m", 1)],
        vec![part("", "m", 1), part("n", "", 2)],
        vec![part("", "m", 1), part("m", "", 1)],
        Vec::new(),
    ] {
        assert!(matches!(Cut::new(odd), Err(Error::Refused(_))));
    }
    let of =
        |range: KeyRange| begin(&mut Model::new(1), &range, Families::All).0.hold_at(cut()).is_ok();
    assert!(of(KeyRange::all()) && !of(KeyRange::new("", "m")));
}

#[test]
fn a_response_that_cannot_be_one_of_the_log_ends_the_watch() {
    let mut model = Model::new(1);
    let watched = KeyRange::all();
    let (mut cursors, _) = begin(&mut model, &watched, Families::All);
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
    let writes = vec![FollowedWrite {
        cf: String::new(),
        key: model::key(*KEYS.start()),
        kind: None,
        old: None,
    }];
    let unknown = FollowedEntry { index: 900, writes, ..FollowedEntry::default() };
    let response =
        FollowResponse { entries: vec![unknown], next_index: 901, ..FollowResponse::default() };
    cursors.feed(stream, number, response).unwrap();
    assert!(matches!(cursors.next_event(), Err(Error::Refused(_))), "a write is left out");
}
