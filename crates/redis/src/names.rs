//! Walks over the names of a region and over the members of a name, on one view, page by page.
//!
//! A name needs its header only: the walk goes from it to the first key after the name's members. The expiry
//! of its pair, in seconds, needs no value. The value is read in the last second of a name, and for its type
//! where its length does not decide it.

use crate::glob::Glob;
use crate::header::{Header, Kind};
use crate::key::{self, KeyPart};
use crate::scan::KindFilter;
use crate::transaction::{Intent, MetIntent};
use bytes::Bytes;
use stele_storage::{Admitted, EngineView, Order, Pages, Pair, PairMeta, ScanOptions};
use stele_types::{Error, KeyRange, Prng, Result, is_expired, key_after};

/// Keys that are read together. Those of a name's members are read in vain.
const KEYS_PER_READ_MIN: usize = 16;
const KEYS_PER_READ_MAX: usize = 128;
/// Bytes of keys that are read together.
const KEY_BYTES_PER_READ: usize = 256 << 10;
/// Bytes of the names of a page at which it ends.
const PAGE_BYTES_MAX: usize = 1 << 20;
/// Memory of a name beside its bytes.
const NAME_BYTES: u64 = 64;

/// Which names a walk returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamesWanted {
    /// Names that are examined, at most.
    pub examined_max: usize,
    /// Pattern of the names; `None`: all.
    pub pattern: Option<Glob>,
    /// Types of the names.
    pub kind: KindFilter,
    /// Only their number.
    pub is_counted_only: bool,
    /// Time in Unix milliseconds: names that expired before do not exist.
    pub now_ms: u64,
}

/// Names that a walk found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamesPage {
    /// Wanted names, in the order of their keys; none of them if they are counted only.
    pub names: Vec<Bytes>,
    /// Number of wanted names.
    pub found: u64,
    /// Names that the walk examined, also expired ones.
    pub examined: u64,
    /// Names among them that exist.
    pub live: u64,
    /// First engine key that was not examined; `None`: the range has ended.
    pub next_key: Option<Bytes>,
}

/// Decides whether so many further bytes of memory may be used.
pub type AdmitBytes<'a> = &'a mut dyn FnMut(u64) -> bool;

/// Walks over the names that have their headers in a range of engine keys.
///
/// Invariant: a page ends before a name that it did not examine, and the next one begins there: each name
/// that exists throughout a scan is examined.
/// Test: `each_name_is_returned_once_whatever_the_pages`.
pub fn walk_names(
    view: &impl EngineView,
    range: KeyRange,
    wanted: &NamesWanted,
    admit: AdmitBytes<'_>,
) -> Result<Admitted<NamesPage>> {
    let mut walk = Walk { view, wanted, page: NamesPage::default(), bytes: 0 };
    let mut rest = range;
    let together = wanted.examined_max.clamp(KEYS_PER_READ_MIN, KEYS_PER_READ_MAX);
    // Pairs of the name that was examined last.
    let mut of_last = KeyRange::new(vec![0], vec![0]);
    while !rest.is_empty() {
        let keys = keys(view, rest.clone(), together, Order::Forward)?;
        let Some(last) = keys.last() else { break };
        let mut next_key = key_after(&last.key);
        for pair in &keys {
            if of_last.contains(&pair.key) {
                continue;
            }
            if walk.is_full() {
                walk.page.next_key = Some(pair.key.clone());
                return Ok(Admitted::Read(walk.page));
            }
            let Some(named) = key::decode(&pair.key) else { continue };
            of_last = key::pairs_of_name(&key::header_key(named.database, &named.name));
            // bug redis.members_are_names: `named.part == KeyPart::Header` is `true`
            let is_header = named.part == KeyPart::Header;
            if walk.examine(pair, named.name, is_header, admit)? == Admitted::Refused {
                return Ok(Admitted::Refused);
            }
        }
        // Invariant: the members of a name are not walked over: a name costs one search.
        // Test: `the_members_of_a_name_are_passed_over`.
        // bug redis.members_walked: never
        if of_last.contains(&last.key) {
            next_key.clone_from(&of_last.end);
        }
        rest.start = next_key;
    }
    Ok(Admitted::Read(walk.page))
}

/// Returns one of the names in a range that `random` chooses. At each step a range of more than
/// `examined_max` names is divided by the first byte in which they differ, and one part is chosen. None only
/// if the chosen parts and the begin of the range have only expired names.
pub fn choose_name(
    view: &impl EngineView,
    range: &KeyRange,
    wanted: &NamesWanted,
    random: u64,
    admit: AdmitBytes<'_>,
) -> Result<Admitted<NamesPage>> {
    let mut random = Prng::new(random);
    let mut part = range.clone();
    for _ in 0..PARTS_MAX {
        let Admitted::Read(mut page) = walk_names(view, part.clone(), wanted, admit)? else {
            return Ok(Admitted::Refused);
        };
        if page.next_key.is_some() {
            part = part_of(view, &part, &mut random)?;
            continue;
        }
        if !page.names.is_empty() {
            let chosen = random.below(page.names.len() as u64) as usize;
            page.names = page.names.drain(..).skip(chosen).take(1).collect();
            return Ok(Admitted::Read(page));
        }
        if part == *range {
            return Ok(Admitted::Read(page));
        }
        part = range.clone();
    }
    let walked = walk_names(view, range.clone(), wanted, admit)?;
    Ok(match walked {
        Admitted::Read(mut page) => {
            page.names.truncate(1);
            Admitted::Read(page)
        }
        Admitted::Refused => Admitted::Refused,
    })
}

/// Parts that are tried for one name: a name has as many bytes in which it may differ from others, mostly a
/// few.
const PARTS_MAX: usize = 256;

/// Returns the keys of a range that have the same byte where the keys of the range begin to differ.
fn part_of(view: &impl EngineView, range: &KeyRange, random: &mut Prng) -> Result<KeyRange> {
    let first = keys(view, range.clone(), 1, Order::Forward)?.pop();
    let last = keys(view, range.clone(), 1, Order::Reverse)?.pop();
    let Some((first, last)) = first.zip(last) else { return Ok(range.clone()) };
    let same = first.key.iter().zip(&last.key).take_while(|(one, other)| one == other).count();
    let byte = |key: &[u8]| key.get(same).copied().unwrap_or_default();
    let (low, high) = (byte(&first.key), byte(&last.key));
    let chosen = u64::from(low) + random.below(u64::from(high.saturating_sub(low)) + 1);
    let common = last.key.get(..same).unwrap_or_default();
    let from = [common, &[u8::try_from(chosen).unwrap_or(high)]].concat();
    let following = KeyRange { start: from.into(), end: range.end.clone() }.within(range);
    let found = keys(view, following, 1, Order::Forward)?.pop().unwrap_or(last);
    let prefix = found.key.get(..=same).unwrap_or(&found.key);
    Ok(KeyRange::prefix(prefix).within(range))
}

fn keys(view: &impl EngineView, range: KeyRange, limit: usize, order: Order) -> Result<Vec<Pair>> {
    let options = ScanOptions {
        keys_only: true,
        order,
        bytes_max: KEY_BYTES_PER_READ,
        ..ScanOptions::new(range, limit)
    };
    view.scan(&options)
}

/// Longest value of a header's pair that is read for its type. The header of a hash or set is shorter, and so is the
/// intent of a transaction between names of usual length; a longer value is taken for a string.
const READ_FOR_TYPE_BYTES_MAX: u64 = 256;

struct Walk<'a, V> {
    view: &'a V,
    wanted: &'a NamesWanted,
    page: NamesPage,
    /// Bytes of the names of the page.
    bytes: usize,
}

impl<V: EngineView> Walk<'_, V> {
    fn is_full(&self) -> bool {
        self.page.examined >= self.wanted.examined_max as u64 || self.bytes >= PAGE_BYTES_MAX
    }

    fn examine(
        &mut self,
        pair: &Pair,
        name: Bytes,
        is_header: bool,
        admit: AdmitBytes<'_>,
    ) -> Result<Admitted<()>> {
        self.page.examined += 1;
        let now_s = self.wanted.now_ms / 1000;
        // Members without a header belong to no name.
        if !is_header || is_expired(pair.expires_at_s, now_s) {
            return Ok(Admitted::Read(()));
        }
        // Invariant: a name has expired at its millisecond, as GET answers, also before the second of its pair.
        // Test: `a_name_has_expired_at_its_millisecond`.
        let is_last_second = is_expired(pair.expires_at_s, now_s + 1);
        // bug redis.expired_within_a_second_are_names: let is_last_second = false;
        let matches = self.wanted.pattern.as_ref().is_none_or(|pattern| pattern.matches(&name));
        let needs_kind = matches && self.wanted.kind != KindFilter::Any;
        let mut has_kind = true;
        if is_last_second || needs_kind {
            let Admitted::Read(kind) = self.live_kind(&pair.key, is_last_second, admit)? else {
                return Ok(Admitted::Refused);
            };
            let Some(kind) = kind else { return Ok(Admitted::Read(())) };
            has_kind = self.wanted.kind.has(kind);
        }
        self.page.live += 1;
        if !matches || !has_kind {
            return Ok(Admitted::Read(()));
        }
        self.page.found += 1;
        if !self.wanted.is_counted_only {
            if !admit(NAME_BYTES + 2 * name.len() as u64) {
                return Ok(Admitted::Refused);
            }
            self.bytes += name.len();
            self.page.names.push(name);
        }
        Ok(Admitted::Read(()))
    }

    /// Returns the type of a name; `None` if it has expired. Reads no long value but in its last second.
    fn live_kind(
        &self,
        header_key: &Bytes,
        is_last_second: bool,
        admit: AdmitBytes<'_>,
    ) -> Result<Admitted<Option<Kind>>> {
        let Some(PairMeta { value_bytes, .. }) = self.view.get_meta(header_key)? else {
            return Ok(Admitted::Read(None));
        };
        if !is_last_second && value_bytes > READ_FOR_TYPE_BYTES_MAX {
            return Ok(Admitted::Read(Some(Kind::String)));
        }
        if !admit(value_bytes) {
            return Ok(Admitted::Refused);
        }
        let Some(pair) = self.view.get(header_key)? else { return Ok(Admitted::Read(None)) };
        // A name that a transaction changes has its old type until then.
        let intent = Intent::decode(&pair.value);
        let value = match &intent {
            Some(intent) => intent.resolved(false).or_else(|| intent.resolved(true)),
            None => Some(&pair.value),
        };
        let Some(value) = value else { return Ok(Admitted::Read(None)) };
        let header = decoded(value)?;
        Ok(Admitted::Read((!header.has_expired(self.wanted.now_ms)).then_some(header.kind)))
    }
}

fn decoded(value: &Bytes) -> Result<Header> {
    let decoded = Header::decode(value).map(|(header, _)| header);
    decoded.map_err(|damage| Error::invalid(damage.to_string()))
}

/// Members of a hash or set that are returned whole, as Redis returns small ones.
const WHOLE_MEMBERS_MAX: u64 = 512;

/// Which members of a name a walk returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembersWanted {
    /// Engine key of the header.
    pub header_key: Bytes,
    /// Type that the name must have.
    pub kind: Kind,
    /// Stamp and last field of the page before; `None`: from the begin.
    pub after: Option<(u64, Bytes)>,
    /// Members that are examined, at most, unless all are few.
    pub examined_max: usize,
    /// Pattern of the fields; `None`: all.
    pub pattern: Option<Glob>,
    /// Whether values are returned.
    pub has_values: bool,
    /// Time in Unix milliseconds.
    pub now_ms: u64,
}

/// Members that a walk found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembersPage {
    /// A transaction over several regions changes the name: it must be resolved before.
    Meets(MetIntent),
    /// The name has another type.
    WrongType,
    /// Fields with values, in the order of the fields, and the stamp and last field for the next page. No
    /// members of a name that does not exist, or that was replaced since the page before.
    Found {
        /// Members; without values if they were not wanted.
        members: Vec<(Bytes, Bytes)>,
        /// Where the next page begins; `None` at the end.
        next: Option<(u64, Bytes)>,
    },
}

/// Walks over the members of a name.
///
/// Invariant: a walk ends when its name was deleted or replaced: members of the former value do not exist.
/// Test: `a_scan_of_a_collection_ends_when_it_is_replaced`.
pub fn walk_members(
    view: &impl EngineView,
    wanted: &MembersWanted,
    admit: AdmitBytes<'_>,
) -> Result<Admitted<MembersPage>> {
    let found = |members, next| Ok(Admitted::Read(MembersPage::Found { members, next }));
    // A pair that has another type may be a long string.
    let meta = view.get_meta(&wanted.header_key)?;
    if !admit(meta.map_or(0, |meta| meta.value_bytes)) {
        return Ok(Admitted::Refused);
    }
    let Some(pair) = view.get(&wanted.header_key)? else { return found(Vec::new(), None) };
    if let Some(met) = MetIntent::of(&wanted.header_key, &pair.value) {
        return Ok(Admitted::Read(MembersPage::Meets(met)));
    }
    let header = decoded(&pair.value)?;
    if header.has_expired(wanted.now_ms) {
        return found(Vec::new(), None);
    }
    if header.kind != wanted.kind {
        return Ok(Admitted::Read(MembersPage::WrongType));
    }
    let stamp = wanted.after.as_ref().map_or(header.stamp, |(stamp, _)| *stamp);
    // bug redis.replaced_members_continue: never
    if stamp != header.stamp {
        return found(Vec::new(), None);
    }
    let prefix = key::members_prefix(&wanted.header_key, stamp);
    let mut range = KeyRange::prefix(&prefix);
    let mut members_max = wanted.examined_max.max(1);
    match &wanted.after {
        Some((_, after)) => {
            range.start = key_after(&key::member_key(&wanted.header_key, stamp, after));
        }
        None if header.count <= WHOLE_MEMBERS_MAX => members_max = usize::MAX,
        None => {}
    }
    let (mut members, mut last, mut bytes) = (Vec::new(), None, 0);
    let mut examined = 0;
    let options = ScanOptions { keys_only: !wanted.has_values, ..ScanOptions::new(range, 0) };
    let mut pages = Pages::new(view, options);
    loop {
        if examined >= members_max || bytes >= PAGE_BYTES_MAX {
            return found(members, last.map(|field| (stamp, field)));
        }
        pages.bound(members_max - examined, KEY_BYTES_PER_READ);
        let Some(page) = pages.next_page()? else { return found(members, None) };
        for pair in page {
            examined += 1;
            let field = pair.key.slice(prefix.len().min(pair.key.len())..);
            last = Some(field.clone());
            if wanted.pattern.as_ref().is_some_and(|pattern| !pattern.matches(&field)) {
                continue;
            }
            let pair_bytes = field.len() + pair.value.len();
            if !admit(2 * (NAME_BYTES + pair_bytes as u64)) {
                return Ok(Admitted::Refused);
            }
            bytes += pair_bytes;
            members.push((field, pair.value));
        }
    }
}
