//! Redis commands on names of several regions: the node is their coordinator. It sends the steps to the
//! leaders of the regions.
//!
//! A task of its own carries a transaction out, so that it does not stop with the connection of its client.
//! After the answer the task resolves the intents.

use super::{RedisBatch, RedisFailure, Watched};
use crate::node::random;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::collections::BTreeMap;
use std::time::Duration;
use stele_client::Client;
use stele_client::redis_messages::StepRequest;
use stele_redis::transaction::{
    self, Action, Commands, Coordinator, Event, MetIntent, Resolver, Step, StepAnswer, Ticket,
    TransactionFailure,
};
use stele_redis::{Members, MembersNeed};
use stele_types::{Error, redis_key};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

/// Time after which the client of a transaction gets an unknown outcome.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Time in which intents that a command has met are resolved: those of a coordinator that has stopped are
/// aborted after 5 s.
const RESOLVE_LIMIT: Duration = Duration::from_secs(8);

type Happening = BoxFuture<'static, (Ticket, Event)>;

/// Executes commands as one change, or as one read, in all regions that have their names.
pub(super) async fn execute(client: &Client, batch: &RedisBatch) -> Result<Bytes, RedisFailure> {
    let watched = batch.transaction.iter().flatten().map(|it: &Watched| stele_redis::Watched {
        header_key: redis_key::header_key(it.database, &it.name),
        change: it.change,
    });
    let commands = Commands {
        requests: batch.requests.clone(),
        watched: watched.collect(),
        protocol: batch.protocol,
        is_exec: batch.transaction.is_some(),
    };
    let (sender, receiver) = oneshot::channel();
    let (client, memory) = (client.clone(), batch.memory.clone());
    tokio::spawn(async move {
        carry_out(&client, Coordinator::new(commands), sender).await;
        drop(memory);
    });
    match timeout(ANSWER_LIMIT, receiver).await {
        Ok(Ok(result)) => result.map_err(failure),
        Ok(Err(_)) => Err(RedisFailure::Undetermined("the node stops".to_owned())),
        Err(_) => Err(RedisFailure::Undetermined("it takes too long".to_owned())),
    }
}

/// Resolves intents that commands have met.
pub(super) async fn resolve(client: &Client, met: &[u8]) -> Result<(), RedisFailure> {
    let damaged = || RedisFailure::Invalid("the intents of a response are damaged".to_owned());
    let mut resolver = Resolver::new(MetIntent::decode_all(met).ok_or_else(damaged)?);
    let resolved = async {
        let mut running: FuturesUnordered<Happening> = FuturesUnordered::new();
        running.extend(resolver.begin().into_iter().filter_map(|it| begin(client, it)));
        while let Some((ticket, event)) = running.next().await {
            let actions = resolver.on(ticket, event).into_iter();
            running.extend(actions.filter_map(|it| begin(client, it)));
        }
        resolver.is_done()
    };
    match timeout(RESOLVE_LIMIT, resolved).await {
        Ok(true) => Ok(()),
        _ => Err(RedisFailure::Unavailable("another transaction changes the names".to_owned())),
    }
}

async fn carry_out(
    client: &Client,
    mut coordinator: Coordinator,
    answer: oneshot::Sender<Result<Bytes, TransactionFailure>>,
) {
    let mut answer = Some(answer);
    let mut running: FuturesUnordered<Happening> = FuturesUnordered::new();
    let mut actions = coordinator.begin();
    loop {
        for action in actions {
            match action {
                Action::Finish(result) => {
                    // The client may be gone.
                    let _ = answer.take().map(|answer| answer.send(result));
                }
                other => running.extend(begin(client, other)),
            }
        }
        let Some((ticket, event)) = running.next().await else { return };
        actions = coordinator.on(ticket, event);
    }
}

/// Begins an action. `None` if it has no outcome.
fn begin(client: &Client, action: Action) -> Option<Happening> {
    let client = client.clone();
    Some(match action {
        Action::Finish(_) => return None,
        Action::Wait { ticket, ms } => Box::pin(async move {
            sleep(Duration::from_millis(ms)).await;
            (ticket, Event::Waited)
        }),
        Action::Locate { ticket, header_keys } => Box::pin(async move {
            let mut regions = Vec::with_capacity(header_keys.len());
            for key in header_keys {
                match client.locate(user_key(&key)).await {
                    Ok((region, _)) => regions.push(region),
                    Err(error) => {
                        return (ticket, Event::Located(Err(error.to_string()), numbers()));
                    }
                }
            }
            (ticket, Event::Located(Ok(regions), numbers()))
        }),
        Action::Send { ticket, key, program } => {
            let step = transaction::StepRequest::Step(Step::clone(program.step()));
            Box::pin(async move { (ticket, answered(send(&client, &key, &step).await)) })
        }
        Action::ReadMembers { ticket, key, needs } => Box::pin(async move {
            let step = transaction::StepRequest::Members(needs.clone());
            let event = match answered(send(&client, &key, &step).await) {
                Event::Answered(StepAnswer::Read(pairs, _)) => {
                    Event::Members(members_of(needs, &pairs))
                }
                other => other,
            };
            (ticket, event)
        }),
    })
}

async fn send(
    client: &Client,
    key: &Bytes,
    step: &transaction::StepRequest,
) -> Result<Bytes, Error> {
    let request = StepRequest { context: None, step: step.encode() };
    Ok(client.step_redis(&user_key(key), request).await?.answer)
}

/// Invariant: only a request that certainly has no effect counts as not done.
/// Test: `an_outcome_is_unknown_unless_the_region_refused_the_step`.
fn answered(result: Result<Bytes, Error>) -> Event {
    match result {
        Ok(answer) => match StepAnswer::decode(&answer) {
            Some(answer) => Event::Answered(answer),
            None => Event::Unknown("the answer to a step is damaged".to_owned()),
        },
        Err(Error::Undetermined(reason)) => Event::Unknown(reason),
        Err(error) => Event::NotDone(error.to_string()),
    }
}

/// Divides the pairs of members by their collections.
fn members_of(needs: Vec<MembersNeed>, pairs: &stele_storage::Pairs) -> Members {
    let mut members = BTreeMap::new();
    for need in needs {
        let prefix = redis_key::members_prefix(&need.header_key, need.version.stamp);
        let from = pairs.range(Bytes::copy_from_slice(&prefix)..);
        let found = from.take_while(|(key, _)| key.starts_with(&prefix));
        let found = found.filter_map(|(key, pair)| {
            Some((key.slice(prefix.len()..), pair.as_ref()?.value.clone()))
        });
        let found = found.collect();
        members.insert(need, found);
    }
    members
}

fn numbers() -> [u64; 4] {
    [(); 4].map(|()| random())
}

fn user_key(engine_key: &Bytes) -> Bytes {
    engine_key.slice(1.min(engine_key.len())..)
}

fn failure(failure: TransactionFailure) -> RedisFailure {
    let text = failure.to_string();
    match failure {
        TransactionFailure::Undetermined(reason) => RedisFailure::Undetermined(reason),
        TransactionFailure::Busy(_) => RedisFailure::Unavailable(text),
        TransactionFailure::TooManyMembers { .. } => RedisFailure::TooManyMembers(text),
        TransactionFailure::Invalid(_) => RedisFailure::Invalid(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_redis::MembersVersion;
    use stele_storage::Pair;

    #[test]
    fn an_outcome_is_unknown_unless_the_region_refused_the_step() {
        let done = answered(Ok(StepAnswer::Done.encode()));
        assert!(matches!(done, Event::Answered(StepAnswer::Done)));
        assert!(matches!(answered(Ok(Bytes::new())), Event::Unknown(_)));
        let unknown = answered(Err(Error::Undetermined("x".into())));
        assert!(matches!(unknown, Event::Unknown(_)));
        for error in [Error::Busy("x".into()), Error::invalid("x"), Error::Unavailable("x".into())]
        {
            assert!(matches!(answered(Err(error)), Event::NotDone(_)));
        }
    }

    #[test]
    fn members_are_divided_by_their_collections() {
        let need = |name: &[u8], stamp| MembersNeed {
            header_key: redis_key::header_key(0, name),
            version: MembersVersion { stamp, change: 1 },
        };
        let needs = vec![need(b"a", 1), need(b"b", 2), need(b"c", 3)];
        let mut pairs = stele_storage::Pairs::new();
        for (need, field) in [(0, "f"), (0, "g"), (1, "h")] {
            let MembersNeed { header_key, version } = &needs[need];
            let key = redis_key::member_key(header_key, version.stamp, field.as_bytes());
            let value = Bytes::from(field.to_uppercase());
            pairs.insert(key.clone(), Some(Pair { key, value, expires_at_s: 0 }));
        }
        let found = members_of(needs, &pairs);
        let fields: Vec<usize> = found.values().map(Vec::len).collect();
        assert_eq!(fields, [2, 1, 0]);
        assert_eq!(found.values().next().unwrap()[1], (Bytes::from("g"), Bytes::from("G")));
    }
}
