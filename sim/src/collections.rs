//! Redis commands on few names, and the sweepers of the stores that lead them, from views that may be old. Some
//! seeds have them. Replies are ignored: the pairs say themselves whether a member is missing
//! (`check/collections.rs`).

use crate::plan::{MS, SECOND, fork};
use crate::world::{Happening, Requester, World};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use stele_redis::key::header_key;
use stele_redis::{FoundSweep, Protocol, RedisProgram, Request, SweepRound, SweptRegion};
use stele_replica::{Header, Run};
use stele_storage::{Program, StateMachine};
use stele_types::{Level, Prng, RegionKind};

/// Names of the commands. Two have a tag.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "{t}e", "{t}f"];
/// Fields of a collection, at most.
const FIELDS: u64 = 150;
/// Bound of the pause between two actions.
const PAUSE_NANOS_MAX: u64 = 60 * MS;
/// Time in which a command or a sweep is proposed.
const PROPOSAL_NANOS: u64 = 3 * SECOND;
/// Longest time between a walk and the proposal of what it found.
const LATE_NANOS_MAX: u64 = 2 * SECOND;

/// Commands and sweepers of a run.
pub(crate) struct Collections {
    prng: Prng,
    is_stopped: bool,
    /// Round of each store's sweeper, with the incarnation of the store.
    rounds: BTreeMap<u64, (u64, SweepRound)>,
}

impl World {
    /// Starts commands and sweepers in runs that have them.
    pub(crate) fn begin_collections(&mut self) {
        if self.plan.has_collections {
            let prng = fork(self.plan.seed, "collections");
            self.collections =
                Some(Collections { prng, is_stopped: false, rounds: BTreeMap::new() });
            self.after(0, Happening::Collections);
        }
    }

    /// Ends commands and sweepers.
    pub(crate) fn stop_collections(&mut self) {
        if let Some(collections) = &mut self.collections {
            collections.is_stopped = true;
        }
    }

    pub(crate) fn act_on_collections(&mut self) {
        let Some(mut collections) = self.collections.take_if(|it| !it.is_stopped) else { return };
        let pause = collections.prng.below(PAUSE_NANOS_MAX);
        self.after(pause, Happening::Collections);
        match collections.prng.below(5) {
            0 | 1 => self.sweep_some(&mut collections),
            _ => self.send_commands(&mut collections.prng),
        }
        self.collections = Some(collections);
    }

    fn send_commands(&mut self, prng: &mut Prng) {
        let name = NAMES[prng.below(NAMES.len() as u64) as usize];
        let requests: Vec<Request> = (0..1 + prng.below(2))
            .filter_map(|_| Request::parse(0, words(&draw(name, prng))).ok())
            .collect();
        let user_key = header_key(0, name.as_bytes()).slice(1..);
        let serving = self.serving();
        let Some(first) = serving.get(prng.below(serving.len().max(1) as u64) as usize) else {
            return;
        };
        let Some(reader) = self.find(*first, &user_key) else { return };
        let leader = reader.leader().and_then(|peer| self.homes.get(&peer.store).copied());
        let slot = leader.filter(|slot| serving.contains(slot)).unwrap_or(*first);
        let Ok(program) = RedisProgram::new(requests, Protocol::Resp2, prng.draw()) else { return };
        let region = reader.region();
        if self.may_use(slot, Level::REDIS) {
            let version = region.epoch.version;
            self.counts.redis_commands += 1;
            self.run_program_of_redis(slot, (region.id, version), Arc::new(program), 0);
        }
    }

    fn run_program_of_redis(
        &mut self,
        slot: u64,
        (region, version): (stele_types::RegionId, u64),
        program: Arc<dyn Program>,
        late_nanos: u64,
    ) {
        let Some(of_slot) = self.slots.get(&slot) else { return };
        let Some(node) = self.nodes.get(&of_slot.node) else { return };
        let deadline_nanos = node.local(self.now) + late_nanos + PROPOSAL_NANOS;
        let header = Header { region, version: Some(version), deadline_nanos, ..Header::default() };
        let (incarnation, run) = (of_slot.incarnation, Run { header, program });
        if late_nanos == 0 {
            return self.request(slot, Requester::Ignored, run);
        }
        let (requester, request) = (Requester::Ignored, Box::new(run.into()));
        self.after(late_nanos, Happening::Slowed { slot, incarnation, requester, request });
    }

    /// Does a step of a store's sweeper.
    fn sweep_some(&mut self, collections: &mut Collections) {
        let Collections { prng, rounds, .. } = collections;
        let serving = self.serving();
        let Some(slot) = serving.get(prng.below(serving.len().max(1) as u64) as usize) else {
            return;
        };
        let incarnation = self.slots.get(slot).map_or(0, |slot| slot.incarnation);
        let of_slot = rounds.remove(slot).filter(|(of, _)| *of == incarnation);
        let mut round = of_slot.map(|it| it.1).unwrap_or_default();
        let pairs_max = 1 + prng.below(300) as usize;
        let late_nanos = if prng.coin() { prng.below(LATE_NANOS_MAX) } else { 0 };
        self.step_sweeper(*slot, &mut round, pairs_max, late_nanos);
        if !round.is_over() {
            rounds.insert(*slot, (incarnation, round));
        }
    }

    /// Walks on, and proposes what is found. Returns whether anything is.
    fn step_sweeper(
        &mut self,
        slot: u64,
        round: &mut SweepRound,
        pairs_max: usize,
        late_nanos: u64,
    ) -> bool {
        let (Some(engine), Some(of_slot)) = (self.engine(slot), self.slots.get(&slot)) else {
            return false;
        };
        let (Some(node), Some(readers)) = (self.nodes.get(&of_slot.node), of_slot.readers()) else {
            return false;
        };
        let expired_until_s = engine.cluster_time_s().min(node.now(self.now).unix_millis / 1_000);
        let led = || {
            let regions = readers.all().into_iter().filter(|region| {
                let reader = readers.get(region.id);
                let is_led = reader.is_some_and(|reader| reader.leading_term().is_some());
                region.kind == RegionKind::Data && is_led
            });
            regions.filter_map(|region| SweptRegion::of(&region)).collect()
        };
        // What a damaged device does not return is not swept.
        let Ok(view) = engine.view() else { return false };
        let found = round.step(&view, led, expired_until_s, pairs_max).unwrap_or_default();
        let Some(FoundSweep { region, version, program }) = found else { return false };
        self.counts.sweeps += 1;
        self.run_program_of_redis(slot, (region, version), Arc::new(program), late_nanos);
        true
    }

    /// Sweeps until no leader finds anything more. Returns false if that takes longer than `nanos`.
    pub(crate) fn sweep_everything(&mut self, nanos: u64) -> bool {
        const PAUSE_NANOS: u64 = 200 * MS;
        let until = self.now + nanos;
        while self.collections.is_some() && self.violation.is_none() {
            let mut has_found = false;
            for slot in self.serving() {
                let mut round = SweepRound::default();
                while !round.is_over() {
                    has_found |= self.step_sweeper(slot, &mut round, 1_000, 0);
                }
            }
            if !has_found {
                return true;
            }
            if self.now > until {
                return false;
            }
            self.run(PAUSE_NANOS);
        }
        true
    }
}

fn words(line: &str) -> Vec<Bytes> {
    line.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect()
}

/// Draws a command that needs no whole collection.
fn draw(name: &str, prng: &mut Prng) -> String {
    let field = prng.below(FIELDS);
    match prng.below(12) {
        0 | 1 => format!("HSET {name} f{field} v g{field} w"),
        2 | 3 => format!("SADD {name} m{field} n{field} o{field}"),
        4 => format!("HDEL {name} f{field} g{field}"),
        5 => format!("SREM {name} m{field} n{field}"),
        6 => format!("DEL {name}"),
        7 => format!("SET {name} v PX {}", 1 + prng.below(4_000)),
        8 => format!("PEXPIRE {name} {}", 1 + prng.below(4_000)),
        9 => format!("PERSIST {name}"),
        // More members than a sweep deletes one by one.
        10 => {
            let fields: Vec<String> = (0..FIELDS).map(|field| format!("f{field} v")).collect();
            format!("HSET {name} {}", fields.join(" "))
        }
        _ => {
            let members: Vec<String> = (0..FIELDS).map(|member| format!("m{member}")).collect();
            format!("SADD {name} {}", members.join(" "))
        }
    }
}
