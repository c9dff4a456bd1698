//! Commands of a whole key space, and scans of one name: page by page, region by region.
//!
//! A walk over the names of a database goes through one or two ranges of keys. Each page is read on one view
//! of the leader of a region, and the next page begins at the first key that was not examined. So splits,
//! merges and changes of leaders between two pages change nothing.
//!
//! Invariant: a name that exists from the first page of a walk to the last one is returned: the place of a
//! walk is a key, and no name has its place before the key under which it stands.
//! Test: `a_scan_returns_each_name_although_regions_are_split`.

use super::cluster::{ClusterExecutor, MEETINGS_MAX, failure, user_key};
use super::{RedisFailure, transactions};
use crate::memory::RequestMemory;
use crate::node::random;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;
use stele_client::Client;
use stele_client::redis_messages::cursor_response::Place;
use stele_client::redis_messages::{
    ListRequest, ListResponse, MembersCursor, MembersPlace, MembersRequest, MembersResponse,
    NamesPlace,
};
use stele_redis::{
    COUNT_MAX, Cursor, Cursors, Glob, KindFilter, Literal, Reply, Request, ScanFrom, ScanPlace,
    ScanRequest, pattern_of, scan_reply,
};
use stele_types::{Error, KeyRange, StoreId, redis_key};

/// Names that KEYS and DBSIZE examine, at most.
const NAMES_MAX: u64 = 100_000;
/// Calls of one SCAN at most: regions without a name end it early.
const CALLS_PER_SCAN_MAX: usize = 16;
/// Names among which RANDOMKEY chooses at last.
const CHOICE_NAMES: u32 = 64;
/// Regions of a database among which RANDOMKEY chooses first.
const CHOICE_REGIONS_MAX: usize = 4096;
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
/// Memory of a name or member in a reply, beside its bytes.
const ELEMENT_BYTES: u64 = 64;

/// Cursors of the scans that this node has begun.
pub(crate) struct ScanCursors(Mutex<Cursors>);

impl ScanCursors {
    /// Creates the table of a start of the node.
    pub(crate) fn new(random: u64) -> Self {
        Self(Mutex::new(Cursors::new(random)))
    }

    /// Returns the place of a cursor, for the node that was asked to continue its scan.
    pub(crate) fn place(&self, cursor: u64) -> Option<Place> {
        let place = self.find(Cursor::from_number(cursor)?)?;
        Some(match place {
            ScanPlace::Names { database, next_key } => {
                Place::Names(NamesPlace { database: u32::from(database), next_key })
            }
            ScanPlace::Members { header_key, stamp, after: field } => {
                let after = Some(MembersPlace { stamp, field });
                Place::Members(MembersCursor { header_key, after })
            }
        })
    }

    fn find(&self, cursor: Cursor) -> Option<ScanPlace> {
        self.0.lock().find(cursor)
    }

    fn advance(&self, after: Option<Cursor>, store: u64, place: ScanPlace) -> Cursor {
        self.0.lock().advance(after, store, place)
    }
}

impl Default for ScanCursors {
    fn default() -> Self {
        Self::new(random())
    }
}

/// Returns the ranges of user keys in which the names lie that a pattern matches.
fn ranges_of(database: u8, pattern: Option<&Glob>) -> VecDeque<KeyRange> {
    let ranges = match pattern.map(Glob::literal) {
        None => vec![redis_key::database_range(database)],
        Some(Literal { bytes, is_whole: true }) => {
            let key = redis_key::header_key(database, &bytes);
            vec![KeyRange::of_key(key.slice(1..))]
        }
        Some(Literal { bytes, .. }) => redis_key::prefix_ranges(database, &bytes),
    };
    ranges.into()
}

/// Walk over the names of a database.
struct NamesWalk {
    /// Ranges that were not walked over, ascending.
    rest: VecDeque<KeyRange>,
    pattern: Bytes,
    kind: KindFilter,
    is_counted_only: bool,
}

impl NamesWalk {
    fn new(database: u8, pattern: Option<&Glob>) -> Self {
        Self {
            rest: ranges_of(database, pattern),
            pattern: pattern.map_or(Bytes::from_static(b"*"), |pattern| pattern.text().clone()),
            kind: KindFilter::Any,
            is_counted_only: false,
        }
    }

    /// Leaves out the keys before a place.
    fn start_at(&mut self, next_key: &Bytes) {
        while let Some(range) = self.rest.front_mut() {
            if range.is_below_end(next_key) {
                range.start = range.start.clone().max(next_key.clone());
                return;
            }
            self.rest.pop_front();
        }
    }

    /// Returns the first key that was not examined; `None` at the end.
    fn next_key(&self) -> Option<&Bytes> {
        self.rest.front().map(|range| &range.start)
    }

    /// Returns the next names; `None` at the end.
    async fn page(
        &mut self,
        client: &Client,
        examined_max: u64,
        memory: &RequestMemory,
    ) -> Result<Option<ListResponse>, RedisFailure> {
        let Some(range) = self.rest.front_mut() else { return Ok(None) };
        let request = ListRequest {
            start_key: range.start.clone(),
            end_key: range.end.clone(),
            examined_max: u32::try_from(examined_max).unwrap_or(u32::MAX),
            pattern: self.pattern.clone(),
            r#type: self.kind.name().to_owned(),
            counted_only: self.is_counted_only,
            ..ListRequest::default()
        };
        let page = client.list_redis(request).await.map_err(failure)?;
        charge(memory, &page.names)?;
        match page.next_key > range.start {
            true => range.start = page.next_key.clone(),
            false => drop(self.rest.pop_front()),
        }
        Ok(Some(page))
    }
}

fn charge(memory: &RequestMemory, elements: &[Bytes]) -> Result<(), RedisFailure> {
    let bytes = elements.iter().map(|element| ELEMENT_BYTES + element.len() as u64).sum();
    memory.charge(bytes).map_err(RedisFailure::Memory)
}

/// Error of a cursor that is no place of a scan.
fn unknown_cursor() -> RedisFailure {
    let text = "the cursor is not known: its node has started again, or has begun too many other scans since; begin \
                again with 0";
    RedisFailure::Invalid(text.to_owned())
}

impl ClusterExecutor {
    /// Executes a command that is a batch of its own.
    pub(super) async fn execute_alone(
        &self,
        request: &Request,
        memory: &RequestMemory,
    ) -> Result<Reply, RedisFailure> {
        match request.spec().name {
            "scan" => self.scan(request, memory).await,
            "hscan" | "sscan" => self.scan_members(request, memory).await,
            "keys" | "dbsize" => self.keys(request, memory).await,
            "randomkey" => self.random_key(request.database(), memory).await,
            "flushdb" | "flushall" => self.flush(request).await,
            name => Err(RedisFailure::Invalid(format!("'{name}' is not built"))),
        }
    }

    async fn scan(&self, request: &Request, memory: &RequestMemory) -> Result<Reply, RedisFailure> {
        let scan = match ScanRequest::parse(request) {
            Ok(scan) => scan,
            Err(refused) => return Ok(refused),
        };
        let database = request.database();
        let mut walk = NamesWalk::new(database, scan.pattern.as_ref());
        walk.kind = scan.kind;
        match self.place(scan.from).await? {
            None => {}
            Some(ScanPlace::Names { database: of, next_key }) if of == database => {
                walk.start_at(&next_key);
            }
            Some(_) => return Err(unknown_cursor()),
        }
        let (mut left, mut names) = (scan.count as u64, Vec::new());
        for _ in 0..CALLS_PER_SCAN_MAX {
            let Some(page) = walk.page(self.client().await?, left, memory).await? else { break };
            names.extend(page.names);
            left = left.saturating_sub(page.examined);
            if left == 0 {
                break;
            }
        }
        let next = walk.next_key().map(|next_key| {
            let place = ScanPlace::Names { database, next_key: next_key.clone() };
            self.advance(scan.from, place)
        });
        Ok(scan_reply(next, names))
    }

    async fn scan_members(
        &self,
        request: &Request,
        memory: &RequestMemory,
    ) -> Result<Reply, RedisFailure> {
        let scan = match ScanRequest::parse(request) {
            Ok(scan) => scan,
            Err(refused) => return self.refused_members(request, refused).await,
        };
        let name = request.arguments().get(1).cloned().unwrap_or_default();
        let header_key = redis_key::header_key(request.database(), &name);
        let is_hash = request.spec().name == "hscan";
        let after = match self.place(scan.from).await? {
            None => None,
            Some(ScanPlace::Members { header_key: of, stamp, after }) if of == header_key => {
                Some(MembersPlace { stamp, field: after })
            }
            Some(_) => return Err(unknown_cursor()),
        };
        let all = || Bytes::from_static(b"*");
        let message = MembersRequest {
            context: None,
            database: u32::from(request.database()),
            name,
            r#type: if is_hash { "hash" } else { "set" }.to_owned(),
            after,
            examined_max: u32::try_from(scan.count).unwrap_or(u32::MAX),
            pattern: scan.pattern.map_or_else(all, |pattern| pattern.text().clone()),
            fields_only: !is_hash || !scan.has_values,
        };
        let key = user_key(&header_key);
        let page = self.members(&key, message).await?;
        if page.wrong_type {
            return Ok(Reply::error(WRONG_TYPE));
        }
        charge(memory, &page.fields)?;
        charge(memory, &page.values)?;
        let mut values = page.values.into_iter();
        let found = page.fields.into_iter().flat_map(|field| [Some(field), values.next()]);
        let found = found.flatten().collect();
        let next = page.next.map(|MembersPlace { stamp, field: after }| {
            self.advance(scan.from, ScanPlace::Members { header_key, stamp, after })
        });
        Ok(scan_reply(next, found))
    }

    /// Answers a scan with wrong options. As in Redis, a name that is missing or has another type is answered
    /// before the options are refused.
    async fn refused_members(
        &self,
        request: &Request,
        refused: Reply,
    ) -> Result<Reply, RedisFailure> {
        if !ScanRequest::has_cursor(request) {
            return Ok(refused);
        }
        let name = request.arguments().get(1).cloned().unwrap_or_default();
        let header_key = redis_key::header_key(request.database(), &name);
        let message = MembersRequest {
            context: None,
            database: u32::from(request.database()),
            name,
            r#type: if request.spec().name == "hscan" { "hash" } else { "set" }.to_owned(),
            after: None,
            examined_max: 1,
            pattern: Bytes::from_static(b"*"),
            fields_only: true,
        };
        let page = self.members(&user_key(&header_key), message).await?;
        Ok(match (page.wrong_type, page.fields.is_empty()) {
            (true, _) => Reply::error(WRONG_TYPE),
            (false, true) => scan_reply(None, Vec::new()),
            (false, false) => refused,
        })
    }

    /// Returns a page of members. An intent that it meets is resolved before.
    async fn members(
        &self,
        key: &Bytes,
        message: MembersRequest,
    ) -> Result<MembersResponse, RedisFailure> {
        let client = self.client().await?;
        for _ in 0..MEETINGS_MAX {
            let page = client.redis_members(key, message.clone()).await.map_err(failure)?;
            if page.met.is_empty() {
                return Ok(page);
            }
            transactions::resolve(client, &page.met).await?;
        }
        Err(RedisFailure::Unavailable("other transactions change the name".to_owned()))
    }

    /// Returns the place of a page; `None`: at the begin. It is in the table of the node that returned the
    /// cursor.
    async fn place(&self, from: ScanFrom) -> Result<Option<ScanPlace>, RedisFailure> {
        let cursor = match from {
            ScanFrom::Begin => return Ok(None),
            ScanFrom::Unknown => return Err(unknown_cursor()),
            ScanFrom::After(cursor) => cursor,
        };
        if let Some(place) = self.cursors.find(cursor) {
            return Ok(Some(place));
        }
        if self.stores.all().iter().any(|store| cursor.is_of(store.id().0)) {
            return Err(unknown_cursor());
        }
        let client = self.client().await?;
        let found = client.redis_cursor(StoreId(cursor.store()), cursor.number()).await;
        let place = match found {
            Ok(found) => found.place.ok_or_else(unknown_cursor)?,
            Err(Error::Refused(_)) => return Err(unknown_cursor()),
            Err(error) => {
                return Err(RedisFailure::Unavailable(format!(
                    "the node that returned the cursor does not answer: {error}; or begin again with 0"
                )));
            }
        };
        Ok(Some(match place {
            Place::Names(NamesPlace { database, next_key }) => {
                let database = u8::try_from(database).map_err(|_| unknown_cursor())?;
                ScanPlace::Names { database, next_key }
            }
            Place::Members(MembersCursor { header_key, after }) => {
                let MembersPlace { stamp, field: after } = after.ok_or_else(unknown_cursor)?;
                ScanPlace::Members { header_key, stamp, after }
            }
        }))
    }

    fn advance(&self, from: ScanFrom, place: ScanPlace) -> Cursor {
        let after = match from {
            ScanFrom::After(cursor) => Some(cursor),
            ScanFrom::Begin | ScanFrom::Unknown => None,
        };
        let store = self.stores.first().map_or(0, |store| store.id().0);
        self.cursors.advance(after, store, place)
    }

    /// KEYS and DBSIZE: exact, or an error.
    async fn keys(&self, request: &Request, memory: &RequestMemory) -> Result<Reply, RedisFailure> {
        let pattern = match request.arguments().get(1).map(pattern_of) {
            Some(Err(refused)) => return Ok(refused),
            Some(Ok(pattern)) => pattern,
            None => None,
        };
        let mut walk = NamesWalk::new(request.database(), pattern.as_ref());
        walk.is_counted_only = request.spec().name == "dbsize";
        let (mut names, mut found, mut live) = (Vec::new(), 0, 0);
        let client = self.client().await?;
        while let Some(page) = walk.page(client, COUNT_MAX as u64, memory).await? {
            names.extend(page.names);
            found += page.found;
            live += page.live;
            if live > NAMES_MAX {
                return Err(self.too_many(request).await);
            }
        }
        Ok(match walk.is_counted_only {
            true => Reply::count(found),
            false => Reply::Array(names.into_iter().map(Reply::Bulk).collect()),
        })
    }

    /// Returns the error of a database that is too large, with an estimate.
    async fn too_many(&self, request: &Request) -> RedisFailure {
        let range = redis_key::database_range(request.database());
        let regions = match self.client().await {
            Ok(client) => client.control().regions(&range, false).await.unwrap_or_default(),
            Err(_) => Vec::new(),
        };
        let pairs: u64 = regions.iter().map(|region| region.approximate_keys).sum();
        RedisFailure::Invalid(format!(
            "more than {NAMES_MAX} keys: '{}' is exact up to as many. The regions of the database have about {pairs} \
             pairs, those of members of hashes and sets too. Use SCAN",
            request.spec().name
        ))
    }

    /// RANDOMKEY: a region is chosen, then a name in it. Regions without a name are skipped.
    async fn random_key(
        &self,
        database: u8,
        memory: &RequestMemory,
    ) -> Result<Reply, RedisFailure> {
        let client = self.client().await?;
        let whole = redis_key::database_range(database);
        let regions = client.regions_of(&whole, CHOICE_REGIONS_MAX).await.map_err(failure)?;
        let chosen = usize::try_from(random() % (regions.len().max(1) as u64)).unwrap_or(0);
        for range in regions.iter().cycle().skip(chosen).take(regions.len()) {
            let request = ListRequest {
                start_key: range.start.clone(),
                end_key: range.end.clone(),
                examined_max: CHOICE_NAMES,
                pattern: Bytes::from_static(b"*"),
                choice: Some(random()),
                ..ListRequest::default()
            };
            let found = client.list_redis(request).await.map_err(failure)?;
            if let Some(name) = found.names.into_iter().next() {
                return Ok(Reply::Bulk(name));
            }
        }
        // A choice sees a part of the names only.
        let mut walk = NamesWalk::new(database, None);
        while let Some(page) = walk.page(client, COUNT_MAX as u64, memory).await? {
            if let Some(name) = page.names.into_iter().next() {
                return Ok(Reply::Bulk(name));
            }
        }
        Ok(Reply::Null)
    }

    /// FLUSHDB and FLUSHALL: region by region, not as one change.
    ///
    /// Invariant: a node deletes no database unless its operator has allowed it.
    /// Test: `a_flush_is_refused_without_the_setting`.
    async fn flush(&self, request: &Request) -> Result<Reply, RedisFailure> {
        let name = request.spec().name;
        let is_mode = |word: &Bytes| {
            word.eq_ignore_ascii_case(b"async") || word.eq_ignore_ascii_case(b"sync")
        };
        let options = request.arguments().get(1..).unwrap_or_default();
        if options.len() > 1 || !options.iter().all(is_mode) {
            return Ok(Reply::error("ERR syntax error"));
        }
        // bug server.redis_flush_unasked: never
        if !self.may_flush {
            return Err(RedisFailure::Invalid(format!(
                "'{name}' deletes all keys of Redis clients, and this node does not allow it: set `redis_flush = true` \
                 in its configuration, or delete keys by name"
            )));
        }
        let range = match name {
            "flushdb" => redis_key::database_range(request.database()),
            _ => redis_key::databases_range(),
        };
        match self.client().await?.clear_redis(range).await {
            Ok(()) => Ok(Reply::OK),
            Err(partial @ Error::Partial(_)) => {
                Err(RedisFailure::Undetermined(partial.to_string()))
            }
            Err(error) => Err(failure(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn glob(text: &'static str) -> Glob {
        Glob::new(Bytes::from_static(text.as_bytes())).unwrap()
    }

    #[test]
    fn a_walk_continues_at_a_place_in_either_of_its_ranges() {
        let key = |name: &str| redis_key::header_key(2, name.as_bytes()).slice(1..);
        let walk = |text| NamesWalk::new(2, Some(&glob(text)));
        for (text, ranges) in [("user:*", 2), ("{t}*", 1), ("user:1", 1), ("{}a?", 1)] {
            assert_eq!(walk(text).rest.len(), ranges, "{text}");
        }
        let mut plain = walk("user:*");
        let (before, after) = (plain.rest[0].clone(), plain.rest[1].clone());
        plain.start_at(&key("a"));
        assert_eq!(plain.rest, [before.clone(), after.clone()]);
        plain.start_at(&key("user:5"));
        assert_eq!(plain.next_key(), Some(&key("user:5")));
        assert_eq!(plain.rest[0].end, before.end);
        plain.start_at(&key("{a}user:5"));
        assert_eq!((plain.next_key(), plain.rest.len()), (Some(&key("{a}user:5")), 1));
        plain.start_at(&redis_key::database_range(2).end);
        assert_eq!(plain.next_key(), None);
        let mut whole = NamesWalk::new(2, None);
        whole.start_at(&key("z"));
        assert_eq!(whole.next_key(), Some(&key("z")));
    }

    #[test]
    fn the_place_of_a_cursor_is_the_same_for_another_node() {
        let cursors = ScanCursors::new(7);
        let place = ScanPlace::Names { database: 3, next_key: Bytes::from_static(b"k") };
        let cursor = cursors.advance(None, 5, place);
        let expected = NamesPlace { database: 3, next_key: Bytes::from_static(b"k") };
        assert_eq!(cursors.place(cursor.number()), Some(Place::Names(expected)));
        assert_eq!(cursors.place(cursor.number() + 1), None);
        assert_eq!(cursors.place(0), None);
    }
}
