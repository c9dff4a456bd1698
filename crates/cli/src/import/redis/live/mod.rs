//! A running server as the source: names by SCAN, then their types, lengths and values, each in pipelines.

mod values;

use super::endpoint::{Database, Endpoint};
use super::lanes::{Lanes, REPLY_WITHIN};
use super::part::{PART_MEMBERS_MAX, ValueKind};
use super::report::{Cause, ImportReport};
use bytes::Bytes;
use std::future::Future;
use stele_load::resp::{RespConnection, RespReply, unexpected};
use stele_types::redis_key::DATABASES;
use stele_types::size::{USER_KEY_BYTES_MAX, VALUE_BYTES_MAX};
use stele_types::{Error, Result};
use tokio::time::timeout;
use values::Read;

/// Names of a page of SCAN, about.
const PAGE_NAMES: &str = "512";
/// Names and bytes of the requests of one pipeline: less than a server buffers before it reads.
const PIPELINE_NAMES: usize = 128;
const PIPELINE_BYTES: u64 = 32 << 10;
/// Bytes of the values that are read in one pipeline, unless it is one value.
const VALUES_BYTES: u64 = 4 << 20;
/// Assumed bytes of a member, to divide collections among pipelines.
const MEMBER_BYTES: u64 = 64;
/// Times that a value is read if it changes meanwhile.
const TRIES: usize = 4;

/// Connection to the source.
pub(super) struct Live {
    endpoint: Endpoint,
    connection: RespConnection,
    /// Whether it answers PEXPIRETIME (since Redis 7.0).
    has_expiry_times: bool,
    databases: Vec<Database>,
    /// Whether the server stated them, or the caller.
    are_stated: bool,
    /// Names in these databases, if the server counts them.
    names: Option<u64>,
    /// Hashes in them with fields that have an expiry of their own.
    expiring_hashes: u64,
}

/// Name with the type that TYPE answered, and its bytes or members.
#[derive(Clone, Debug)]
struct Found {
    name: Bytes,
    kind: ValueKind,
    length: u64,
}

/// Where values go.
#[derive(Clone, Copy)]
pub(super) struct Way<'a> {
    pub report: &'a ImportReport,
    pub lanes: &'a Lanes,
}

impl Live {
    /// Connects. Reads which databases have names, unless one is selected.
    pub(super) async fn open(endpoint: Endpoint, selected: Option<Database>) -> Result<Self> {
        let mut connection = within(endpoint.connect()).await?;
        let probe = within(connection.call(&["PEXPIRETIME", "stele:import"])).await?;
        let has_expiry_times = matches!(probe, RespReply::Integer(_));
        let listed = match within(connection.call(&["INFO", "keyspace"])).await? {
            RespReply::Bulk(Some(text)) => listed(&String::from_utf8_lossy(&text)),
            _ => None,
        };
        let is_wanted = |it: &&Listed| selected.is_none_or(|selected| selected == it.database);
        let sum = |of: fn(&Listed) -> u64| {
            listed.as_ref().map(|all| all.iter().filter(is_wanted).map(of).sum::<u64>())
        };
        let (names, expiring_hashes) = (sum(|it| it.names), sum(|it| it.expiring_hashes));
        let databases = match (selected, &listed) {
            (Some(selected), _) => vec![selected],
            (None, Some(listed)) => listed.iter().map(|it| it.database).collect(),
            // It does not state them.
            (None, None) => (0..u64::from(DATABASES)).map(Database).collect(),
        };
        let expiring_hashes = expiring_hashes.unwrap_or(0);
        let are_stated = selected.is_some() || listed.is_some();
        Ok(Self {
            endpoint,
            connection,
            has_expiry_times,
            databases,
            are_stated,
            names,
            expiring_hashes,
        })
    }

    pub(super) fn databases(&self) -> &[Database] {
        &self.databases
    }

    pub(super) fn names(&self) -> Option<u64> {
        self.names
    }

    /// Returns by how much the expiry of a value differs from one reading to the next.
    pub(super) fn tolerance_ms(&self) -> u64 {
        if self.has_expiry_times { 0 } else { 1000 }
    }

    /// Reads all values of its databases.
    pub(super) async fn read(&mut self, way: Way<'_>) -> Result<()> {
        way.report.expiring_hashes(self.expiring_hashes);
        for database in self.databases.clone() {
            match within(self.endpoint.select(&mut self.connection, database)).await {
                // It has fewer databases.
                Err(Error::Refused(_)) if !self.are_stated && database != Database(0) => {
                    self.databases.retain(|it| *it < database);
                    return Ok(());
                }
                selected => selected?,
            }
            let mut cursor = Bytes::from_static(b"0");
            loop {
                let (next, names) = scan(&mut self.connection, &cursor).await?;
                self.copy_all(database, names, way).await?;
                if next == "0" {
                    break;
                }
                cursor = next;
            }
        }
        Ok(())
    }

    /// Returns which of the names exist.
    pub(super) async fn exist(&mut self, database: Database, names: &[Bytes]) -> Result<Vec<bool>> {
        within(self.endpoint.select(&mut self.connection, database)).await?;
        let mut exist = Vec::with_capacity(names.len());
        for names in pipelines(names) {
            for name in names {
                self.connection.send(&["EXISTS".as_bytes(), name]).await?;
            }
            self.connection.flush().await?;
            for _ in names {
                exist.push(matches!(self.receive().await?, RespReply::Integer(1..)));
            }
        }
        Ok(exist)
    }

    async fn receive(&mut self) -> Result<RespReply> {
        within(self.connection.receive()).await
    }

    async fn copy_all(
        &mut self,
        database: Database,
        names: Vec<RespReply>,
        way: Way<'_>,
    ) -> Result<()> {
        let mut left = Vec::new();
        for name in names {
            match name {
                RespReply::Bulk(Some(name)) if name.len() <= USER_KEY_BYTES_MAX => left.push(name),
                RespReply::Bulk(Some(name)) => {
                    let detail = format!(
                        "a name of {} bytes; the limit is {USER_KEY_BYTES_MAX}",
                        name.len()
                    );
                    let shown = name.get(..64).unwrap_or_default();
                    way.report.problem(Cause::Refused, database, shown, &detail);
                }
                _ => return Err(unexpected()),
            }
        }
        for _ in 0..TRIES {
            left = self.try_copy(database, &left, way).await?;
            if left.is_empty() {
                return Ok(());
            }
        }
        for name in left {
            let detail = format!(
                "it changed while it was read, {TRIES} times; stop its writers and import it again"
            );
            way.report.problem(Cause::Refused, database, &name, &detail);
        }
        Ok(())
    }

    /// Reads values; returns the names of those that changed meanwhile.
    async fn try_copy(
        &mut self,
        database: Database,
        names: &[Bytes],
        way: Way<'_>,
    ) -> Result<Vec<Bytes>> {
        let mut changed = Vec::new();
        for names in pipelines(names) {
            let kinds = self.kinds(database, names, way).await?;
            let found = self.lengths(kinds, &mut changed).await?;
            let (mut small, mut large) = (Vec::new(), Vec::new());
            for found in found {
                match found.kind {
                    ValueKind::Text if found.length > VALUE_BYTES_MAX as u64 => {
                        way.too_long(database, &found.name, found.length);
                    }
                    ValueKind::Hash | ValueKind::Set if found.length > PART_MEMBERS_MAX as u64 => {
                        large.push(found);
                    }
                    _ => small.push(found),
                }
            }
            for values in groups(&small) {
                self.copy_small(database, values, way, &mut changed).await?;
            }
            for found in large {
                if self.copy_large(database, &found, way).await? == Read::Changed {
                    changed.push(found.name);
                }
            }
        }
        Ok(changed)
    }

    /// Returns the names of types that are stored; reports the others.
    async fn kinds(
        &mut self,
        database: Database,
        names: &[Bytes],
        way: Way<'_>,
    ) -> Result<Vec<(Bytes, ValueKind)>> {
        for name in names {
            self.connection.send(&["TYPE".as_bytes(), name]).await?;
        }
        self.connection.flush().await?;
        let mut kinds = Vec::with_capacity(names.len());
        for name in names {
            let RespReply::Status(of) = self.receive().await? else { return Err(unexpected()) };
            match of.as_str() {
                "string" => kinds.push((name.clone(), ValueKind::Text)),
                "hash" => kinds.push((name.clone(), ValueKind::Hash)),
                "set" => kinds.push((name.clone(), ValueKind::Set)),
                "none" => way.report.gone(),
                other => way.report.other(other, database, name),
            }
        }
        Ok(kinds)
    }

    async fn lengths(
        &mut self,
        kinds: Vec<(Bytes, ValueKind)>,
        changed: &mut Vec<Bytes>,
    ) -> Result<Vec<Found>> {
        for (name, kind) in &kinds {
            self.connection.send(&[length_command(*kind).as_bytes(), name]).await?;
        }
        self.connection.flush().await?;
        let mut found = Vec::with_capacity(kinds.len());
        for (name, kind) in kinds {
            match self.receive().await? {
                RespReply::Integer(length) => {
                    found.push(Found { name, kind, length: u64::try_from(length).unwrap_or(0) });
                }
                RespReply::Error(text) if is_wrong_type(&text) => changed.push(name),
                RespReply::Error(text) => return Err(self.refused(&text)),
                _ => return Err(unexpected()),
            }
        }
        Ok(found)
    }

    fn refused(&self, text: &str) -> Error {
        Error::Refused(format!("{}: {text}", self.endpoint))
    }
}

/// Reads a page of names: the next cursor, and the names.
pub(super) async fn scan(
    connection: &mut RespConnection,
    cursor: &Bytes,
) -> Result<(Bytes, Vec<RespReply>)> {
    let page = ["SCAN".as_bytes(), cursor, b"COUNT", PAGE_NAMES.as_bytes()];
    match within(connection.call(&page)).await? {
        RespReply::Array(Some(page)) => match <[RespReply; 2]>::try_from(page) {
            Ok([RespReply::Bulk(Some(next)), RespReply::Array(Some(names))]) => Ok((next, names)),
            _ => Err(unexpected()),
        },
        RespReply::Error(text) => Err(Error::Refused(format!("SCAN: {text}"))),
        _ => Err(unexpected()),
    }
}

async fn within<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| Error::Unavailable("the server does not answer".to_owned());
    timeout(REPLY_WITHIN, call).await.map_err(late)?
}

fn is_wrong_type(text: &str) -> bool {
    text.starts_with("WRONGTYPE")
}

fn length_command(kind: ValueKind) -> &'static str {
    match kind {
        ValueKind::Hash => "HLEN",
        ValueKind::Set => "SCARD",
        ValueKind::Text | ValueKind::Gone => "STRLEN",
    }
}

/// Divides names into those of one pipeline each.
fn pipelines(names: &[Bytes]) -> Vec<&[Bytes]> {
    divided(names, PIPELINE_NAMES, PIPELINE_BYTES, |name| name.len() as u64)
}

/// Divides values into those that are read in one pipeline each.
fn groups(values: &[Found]) -> Vec<&[Found]> {
    let bytes = |found: &Found| match found.kind {
        ValueKind::Hash | ValueKind::Set => found.length * MEMBER_BYTES,
        ValueKind::Text | ValueKind::Gone => found.length,
    };
    divided(values, PIPELINE_NAMES / 2, VALUES_BYTES, bytes)
}

/// Divides items into runs of at most `items_max`, and of at most `bytes_max` unless it is one item.
fn divided<T>(
    items: &[T],
    items_max: usize,
    bytes_max: u64,
    bytes: impl Fn(&T) -> u64,
) -> Vec<&[T]> {
    let mut runs = Vec::new();
    let (mut rest, mut length, mut sum) = (items, 0, 0u64);
    for item in items {
        sum = sum.saturating_add(bytes(item));
        if length > 0 && (length == items_max || sum > bytes_max) {
            let (run, after) = rest.split_at(length);
            runs.push(run);
            (rest, length, sum) = (after, 0, bytes(item));
        }
        length += 1;
    }
    if !rest.is_empty() {
        runs.push(rest);
    }
    runs
}

/// What INFO states of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listed {
    database: Database,
    names: u64,
    /// Hashes with fields that have an expiry of their own.
    expiring_hashes: u64,
}

/// Returns the databases of INFO; `None` if it has none.
fn listed(information: &str) -> Option<Vec<Listed>> {
    let databases = information.lines().filter_map(|line| {
        let (database, facts) = line.trim().strip_prefix("db")?.split_once(':')?;
        let fact = |name: &str| {
            let mut values = facts.split(',').filter_map(|fact| fact.strip_prefix(name));
            values.next().and_then(|value| value.parse::<u64>().ok())
        };
        // The names of Redis and of Valkey.
        let expiring = fact("subexpiry=").or(fact("keys_with_volatile_items="));
        Some(Listed {
            database: Database(database.parse().ok()?),
            names: fact("keys=")?,
            expiring_hashes: expiring.unwrap_or(0),
        })
    });
    let databases: Vec<_> = databases.collect();
    (!databases.is_empty()).then_some(databases)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_are_those_of_the_key_space() {
        let row = |database, names, expiring_hashes| Listed {
            database: Database(database),
            names,
            expiring_hashes,
        };
        let text = "# Keyspace\r\ndb0:keys=3,expires=1,avg_ttl=9,subexpiry=0\r\ndb15:keys=1,expires=0\r\n\
                    db2:keys=2,expires=0,avg_ttl=0,keys_with_volatile_items=1\r\n";
        assert_eq!(listed(text), Some(vec![row(0, 3, 0), row(15, 1, 0), row(2, 2, 1)]));
        assert_eq!(listed("# Keyspace\r\n"), None);
        assert_eq!(listed("dbx:keys=1\r\n"), None);
    }

    #[test]
    fn items_are_divided_by_number_and_bytes() {
        let lengths = |items: &[u64], bytes_max| {
            let runs = divided(items, 3, bytes_max, |bytes| *bytes);
            assert_eq!(runs.concat(), items);
            runs.iter().map(|run| run.len()).collect::<Vec<_>>()
        };
        assert_eq!(lengths(&[1, 1, 1, 1], 100), [3, 1]);
        assert_eq!(lengths(&[60, 60, 30, 200, 1], 100), [1, 2, 1, 1]);
        assert_eq!(lengths(&[], 100), [0; 0]);
    }
}
