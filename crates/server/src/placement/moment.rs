//! Moments: cuts of all data regions at one instant, taken by the placement leader.

use super::PlacementService;
use super::forward::leader_calls;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use stele_node::moment::{Abandoned, Coordinator, CutPart, Fault, Moment, Next};
use stele_placement::StoreState;
use stele_proto::stele::control::v1::{
    MomentPart, NodeClock, PauseRequest, PauseResponse, RegionTerm, SealRequest, SealResponse,
    TakeMomentRequest, TakeMomentResponse,
};
use stele_replica::PAUSE_NANOS;
use stele_types::{KeyRange, Level, LogIndex, MomentId, RegionId, Term};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Status};

leader_calls! {
    /// Takes a moment. Fails with `FailedPrecondition` and the reason if it was abandoned several times.
    take_moment, take_moment(TakeMomentRequest) -> TakeMomentResponse = take_moment_here;
}

/// Attempts at a moment, in less time than that of a forwarded call.
const ATTEMPTS_MAX: u32 = 4;
/// Wait after the first attempt; one more after each further one. Writes go on meanwhile.
const WAIT: Duration = Duration::from_millis(150);
/// Time in which nodes answer: after it the pauses are over.
const PAUSED_WITHIN: Duration = Duration::from_nanos(PAUSE_NANOS);
const SEALED_WITHIN: Duration = Duration::from_millis(500);

/// Answer of a node.
enum Answered {
    Pause(String, Result<PauseResponse, Status>),
    Seal(Vec<RegionTerm>, Result<SealResponse, Status>),
}

/// Progress of an attempt.
struct Attempt {
    moment: Coordinator<String>,
    began: Instant,
    paused: Duration,
    longest_pause_nanos: u64,
    clocks: Vec<NodeClock>,
}

impl PlacementService {
    async fn take_moment_here(
        self: &Arc<Self>,
        request: TakeMomentRequest,
    ) -> Result<TakeMomentResponse, Status> {
        let in_use = self.read_state(|state| state.cluster.levels().in_use).await?;
        let may_use = Level::MOMENTS.check("moments", in_use);
        may_use.map_err(|error| Status::failed_precondition(error.to_string()))?;
        // Invariant: a leader has one moment under way.
        let Ok(_taking) = self.taking.try_lock() else {
            return Err(Status::failed_precondition("a moment is being taken already: repeat"));
        };
        let attempts_max = match request.attempts_max {
            0 => ATTEMPTS_MAX,
            wanted => wanted.min(ATTEMPTS_MAX),
        };
        let mut attempts = 1;
        loop {
            let abandoned = match self.attempt().await? {
                Ok(response) => {
                    let level_in_use = in_use.get();
                    return Ok(TakeMomentResponse { attempts, level_in_use, ..response });
                }
                Err(abandoned) => abandoned,
            };
            if attempts == attempts_max || !abandoned.may_pass() {
                let times = if attempts == 1 { "attempt" } else { "attempts" };
                let text = format!("no moment in {attempts} {times}: {abandoned}");
                return Err(Status::failed_precondition(text));
            }
            tracing::debug!("a moment was abandoned: {abandoned}");
            sleep(WAIT * attempts).await;
            attempts += 1;
        }
    }

    async fn attempt(self: &Arc<Self>) -> Result<Result<TakeMomentResponse, Abandoned>, Status> {
        let term = self.ensure_state().await?;
        let number = MomentId(self.take_ids(1).await?);
        let nodes: BTreeSet<String> = self
            .read_state(|state| {
                let stores = state.cluster.stores();
                let members = stores.filter(|store| store.state != StoreState::Tombstone);
                members.map(|store| store.address.clone()).collect()
            })
            .await?;
        let mut calls = JoinSet::new();
        for node in nodes.iter().cloned() {
            calls.spawn(self.clone().pause_node(node, number));
        }
        let mut attempt = Attempt {
            moment: Coordinator::new(number, nodes),
            began: Instant::now(),
            paused: Duration::ZERO,
            longest_pause_nanos: 0,
            clocks: Vec::new(),
        };
        let mut until = attempt.began + PAUSED_WITHIN;
        loop {
            match attempt.moment.step() {
                Next::Wait => match timeout_at(until, calls.join_next()).await {
                    Ok(Some(Ok(answered))) => attempt.take(answered),
                    Ok(Some(Err(_))) => {}
                    Ok(None) | Err(_) => attempt.moment.end_wait(),
                },
                Next::Seal(seals) => {
                    attempt.paused = attempt.began.elapsed();
                    until = Instant::now() + SEALED_WITHIN;
                    for (node, regions) in seals {
                        calls.spawn(self.clone().seal_node(node, number, regions));
                    }
                }
                Next::Confirm => {
                    let confirmed = self.system.confirm(term).await;
                    attempt.moment.confirmed(confirmed.map_err(|error| error.to_string()));
                }
                Next::Complete(moment) => return Ok(Ok(attempt.complete(moment))),
                Next::Abandoned(abandoned) => return Ok(Err(abandoned)),
            }
        }
    }

    async fn pause_node(self: Arc<Self>, node: String, number: MomentId) -> Answered {
        let answer = match self.client_of(&node) {
            Ok((mut client, header)) => {
                let request = PauseRequest { header: Some(header), moment: number.0 };
                client.pause(request).await.map(tonic::Response::into_inner)
            }
            Err(status) => Err(status),
        };
        Answered::Pause(node, answer)
    }

    async fn seal_node(
        self: Arc<Self>,
        node: String,
        number: MomentId,
        regions: Vec<(RegionId, Term)>,
    ) -> Answered {
        let regions = regions.into_iter();
        let regions: Vec<RegionTerm> = regions
            .map(|(region, term)| RegionTerm { region_id: region.0, term: term.0 })
            .collect();
        let answer = match self.client_of(&node) {
            Ok((mut client, header)) => {
                let (header, moment) = (Some(header), number.0);
                let request = SealRequest { header, moment, regions: regions.clone() };
                client.seal(request).await.map(tonic::Response::into_inner)
            }
            Err(status) => Err(status),
        };
        Answered::Seal(regions, answer)
    }
}

impl Attempt {
    fn take(&mut self, answered: Answered) {
        match answered {
            Answered::Pause(node, Ok(answer)) => {
                let parts = answer.parts.into_iter().map(part).collect();
                let not_paused = (answer.not_paused != 0)
                    .then_some((RegionId(answer.not_paused), answer.reason));
                self.clocks.extend(answer.clock);
                self.moment.paused(&node, MomentId(answer.moment), parts, not_paused);
            }
            Answered::Pause(node, Err(status)) => self.moment.failed(&node, fault(&status)),
            Answered::Seal(_, Ok(answer)) => {
                let sealed: Vec<(RegionId, Term)> = answer
                    .sealed
                    .iter()
                    .map(|it| (RegionId(it.region_id), Term(it.term)))
                    .collect();
                self.moment.sealed(MomentId(answer.moment), &sealed);
                self.longest_pause_nanos = self.longest_pause_nanos.max(answer.longest_pause_nanos);
                self.moment.not_sealed(RegionId(answer.not_sealed), answer.reason);
            }
            Answered::Seal(regions, Err(status)) => {
                for region in regions {
                    let reason = status.message().to_owned();
                    self.moment.not_sealed(RegionId(region.region_id), reason);
                }
            }
        }
    }

    fn complete(mut self, moment: Moment) -> TakeMomentResponse {
        self.clocks.sort_by_key(|clock| clock.store_id);
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let sealed = self.began.elapsed().saturating_sub(self.paused);
        TakeMomentResponse {
            moment: moment.number.0,
            parts: moment.parts.into_iter().map(wire_part).collect(),
            pause_nanos: nanos(self.paused),
            seal_nanos: nanos(sealed),
            longest_pause_nanos: self.longest_pause_nanos,
            clocks: self.clocks,
            attempts: 0,
            level_in_use: 0,
        }
    }
}

fn fault(status: &Status) -> Fault {
    match status.code() {
        Code::Unimplemented => Fault::EarlierVersion,
        _ => Fault::NoAnswer(status.message().to_owned()),
    }
}

fn part(part: MomentPart) -> CutPart {
    CutPart {
        region: RegionId(part.region_id),
        range: KeyRange::new(part.start_key, part.end_key),
        term: Term(part.term),
        last: LogIndex(part.last_index),
    }
}

fn wire_part(part: CutPart) -> MomentPart {
    MomentPart {
        region_id: part.region.0,
        start_key: part.range.start,
        end_key: part.range.end,
        term: part.term.0,
        last_index: part.last.0,
    }
}
