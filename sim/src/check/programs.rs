//! Checks that programs of several keys are strictly serializable: one order of all of them explains each
//! answer, and a program that returned before another was called precedes it.
//!
//! A program that writes a key raises its count by one and leaves its own id. Therefore the answers name the
//! writers of each key in order. Which program must precede which is a graph, and a cycle in it is a
//! violation (Adya, 1999; Kingsbury and Alvaro, 2020).

use crate::world::World;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;

/// Count of a key and the program that wrote it; zeros for a key that no program wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Number of programs that wrote the key.
    pub count: u64,
    /// Id of the last of them.
    pub writer: u64,
}

/// Key as a program read it, before its own write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenKey {
    /// Number of the key.
    pub key: u8,
    /// Its stamp.
    pub before: Stamp,
    /// Stamp of its member, if the program read it.
    pub member: Option<Stamp>,
}

/// Program that took effect or may have.
#[derive(Clone, Debug)]
pub struct RunProgram {
    /// Unique id, not 0.
    pub id: u64,
    /// Number of the call in the order of all calls and returns.
    pub called: u64,
    /// Number of the return; `None` if the program may take effect later, or never.
    pub returned: Option<u64>,
    /// Store that received it.
    pub slot: u64,
    /// Keys that it writes.
    pub writes: BTreeSet<u8>,
    /// Its answer; empty without a return.
    pub seen: Vec<SeenKey>,
}

/// Checks all programs of a run. Fails with those that no order explains.
pub fn check(history: &[RunProgram]) -> Result<(), String> {
    let mut writers = Writers::of(history);
    writers.note_all()?;
    let mut edges = vec![Vec::new(); history.len()];
    writers.add_edges(&mut edges);
    writers.add_unseen(&mut edges);
    add_time(history, &mut edges);
    let Some(cycle) = cycle(&edges) else { return Ok(()) };
    let programs = cycle.into_iter().filter_map(|place| history.get(place));
    Err(story("each must precede the next, and the last the first", programs))
}

/// Programs that wrote each key, by their places in the history.
struct Writers<'a> {
    history: &'a [RunProgram],
    places: BTreeMap<u64, usize>,
    chains: BTreeMap<u8, BTreeMap<u64, usize>>,
    counts: BTreeMap<(u8, usize), u64>,
}

impl<'a> Writers<'a> {
    fn of(history: &'a [RunProgram]) -> Self {
        let places = history.iter().enumerate().map(|(place, it)| (it.id, place)).collect();
        Self { history, places, chains: BTreeMap::new(), counts: BTreeMap::new() }
    }

    fn note_all(&mut self) -> Result<(), String> {
        for program in self.history {
            for seen in &program.seen {
                let SeenKey { key, before, member } = *seen;
                if member.is_some_and(|member| member != before) {
                    return Err(story("a member differs from its key", [program]));
                }
                if before.writer == program.id {
                    return Err(story("a program read its own write", [program]));
                }
                if before != Stamp::default() {
                    self.note(key, before, program)?;
                }
                if program.writes.contains(&key) {
                    let own = Stamp { count: before.count + 1, writer: program.id };
                    self.note(key, own, program)?;
                }
            }
        }
        Ok(())
    }

    /// Notes the writer of a count, which `by` shows.
    fn note(&mut self, key: u8, stamp: Stamp, by: &RunProgram) -> Result<(), String> {
        let writes = |place: &usize| self.history[*place].writes.contains(&key);
        let place = self.places.get(&stamp.writer).copied().filter(writes);
        let Some(place) = place.filter(|_| stamp.count > 0) else {
            let fault = format!("key {key} was written by {}, which had no effect", stamp.writer);
            return Err(story(&fault, [by]));
        };
        let writer = &self.history[place];
        let other = self.chains.entry(key).or_default().insert(stamp.count, place);
        if let Some(other) = other.filter(|other| *other != place) {
            let fault = format!("two programs wrote count {} of key {key}", stamp.count);
            return Err(story(&fault, [&self.history[other], writer, by]));
        }
        let count = self.counts.insert((key, place), stamp.count);
        if count.is_some_and(|count| count != stamp.count) {
            let fault = format!("a program wrote two counts of key {key}");
            return Err(story(&fault, [writer, by]));
        }
        Ok(())
    }

    /// Adds that writers of a key follow each other, and that a reader is between two of them. Counts of
    /// which no answer shows the writer are left out.
    fn add_edges(&self, edges: &mut [Vec<usize>]) {
        for chain in self.chains.values() {
            let places = chain.values();
            places.clone().zip(places.skip(1)).for_each(|(one, next)| edges[*one].push(*next));
        }
        for (place, program) in self.history.iter().enumerate() {
            for SeenKey { key, before, .. } in &program.seen {
                let Some(chain) = self.chains.get(key) else { continue };
                if let Some(writer) = chain.get(&before.count) {
                    edges[*writer].push(place);
                }
                let next = chain.range(before.count + 1..).next().map(|(_, next)| *next);
                if let Some(next) = next.filter(|next| *next != place) {
                    edges[place].push(next);
                }
            }
        }
    }

    /// Adds the writes that no answer shows, of programs of which an answer shows another write. If the
    /// writers of all shown counts of the key are known, the write comes after these.
    fn add_unseen(&self, edges: &mut [Vec<usize>]) {
        let effective: BTreeSet<usize> = self.counts.keys().map(|(_, place)| *place).collect();
        for place in effective {
            for key in &self.history[place].writes {
                let none = BTreeMap::new();
                let chain = self.chains.get(key).unwrap_or(&none);
                let last = chain.last_key_value().map_or(0, |(count, _)| *count);
                if self.counts.contains_key(&(*key, place)) || chain.len() as u64 != last {
                    continue;
                }
                let is_last = |it: &SeenKey| it.key == *key && it.before.count == last;
                let readers = self.history.iter().enumerate();
                let readers = readers.filter(|(_, it)| it.seen.iter().any(is_last));
                let before = chain.last_key_value().map(|(_, writer)| *writer);
                let before: Vec<usize> = readers.map(|(reader, _)| reader).chain(before).collect();
                before.into_iter().for_each(|before| edges[before].push(place));
            }
        }
    }
}

/// Adds the order of returns and calls. The nodes after the programs are the returns, in order: so there are
/// at most three edges for each program.
fn add_time(history: &[RunProgram], edges: &mut Vec<Vec<usize>>) {
    let mut events: Vec<(u64, usize, bool)> = Vec::new();
    for (place, program) in history.iter().enumerate() {
        events.push((program.called, place, true));
        events.extend(program.returned.map(|returned| (returned, place, false)));
    }
    events.sort_unstable();
    let mut latest: Option<usize> = None;
    for (_, place, is_call) in events {
        if is_call {
            latest.into_iter().for_each(|latest| edges[latest].push(place));
            continue;
        }
        let node = edges.len();
        edges.push(Vec::new());
        edges[place].push(node);
        latest.into_iter().for_each(|latest| edges[latest].push(node));
        latest = Some(node);
    }
}

/// Returns the nodes of a cycle, in order.
fn cycle(edges: &[Vec<usize>]) -> Option<Vec<usize>> {
    let mut missing = vec![0_usize; edges.len()];
    edges.iter().flatten().for_each(|to| missing[*to] += 1);
    let mut free: Vec<usize> = (0..edges.len()).filter(|node| missing[*node] == 0).collect();
    while let Some(node) = free.pop() {
        for to in &edges[node] {
            missing[*to] -= 1;
            if missing[*to] == 0 {
                free.push(*to);
            }
        }
    }
    // Each node that is left follows another one that is left.
    let mut before = BTreeMap::new();
    for node in (0..edges.len()).filter(|node| missing[*node] > 0) {
        let left = edges[node].iter().filter(|to| missing[**to] > 0);
        before.extend(left.map(|to| (*to, node)));
    }
    let mut at = *before.keys().next()?;
    let mut met = BTreeSet::new();
    while met.insert(at) {
        at = *before.get(&at)?;
    }
    shortest(edges, at)
}

/// Returns the shortest cycle through a node.
fn shortest(edges: &[Vec<usize>], start: usize) -> Option<Vec<usize>> {
    let mut before = BTreeMap::new();
    let mut waiting = VecDeque::from([start]);
    while let Some(node) = waiting.pop_front() {
        for to in &edges[node] {
            if *to == start {
                let way = std::iter::successors(Some(node), |at| before.get(at).copied());
                let mut way: Vec<usize> = way.collect();
                way.reverse();
                return Some(way);
            }
            if !before.contains_key(to) {
                before.insert(*to, node);
                waiting.push_back(*to);
            }
        }
    }
    None
}

fn story<'a>(fault: &str, programs: impl IntoIterator<Item = &'a RunProgram>) -> String {
    let (mut text, mut met) = (fault.to_owned(), BTreeSet::new());
    for program in programs.into_iter().filter(|program| met.insert(program.id)) {
        let RunProgram { id, called, returned, slot, writes, seen } = program;
        let _ = write!(text, "\n  program {id} at store {slot}, {called} to {returned:?}:");
        let _ = write!(text, " writes {writes:?}, saw");
        for SeenKey { key, before, member } in seen {
            let _ = write!(text, " {key}: {} by {}", before.count, before.writer);
            let differs = member.filter(|member| member != before);
            differs.into_iter().for_each(|it| {
                let _ = write!(text, " (member: {} by {})", it.count, it.writer);
            });
        }
    }
    text
}

impl World {
    /// Checks the programs of the run.
    pub(super) fn check_programs(&mut self) {
        if let Err(text) = check(&self.clients.programs.history) {
            self.fail(format!("programs are not strictly serializable: {text}"));
        }
    }
}

#[cfg(test)]
mod tests;
