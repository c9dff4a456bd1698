//! Tests of lists of changed reports.

use super::*;

#[derive(Default)]
pub(super) struct Known {
    at: Collection,
    regions: BTreeMap<RegionId, RegionReport>,
}

impl Known {
    /// Takes what has changed; returns the regions in the list.
    pub(super) fn take(&mut self, store: &mut Store) -> Vec<RegionId> {
        let changes = store.core.changed_regions(self.at);
        if changes.since.is_none() {
            self.regions.clear();
        }
        changes.gone.iter().for_each(|region| _ = self.regions.remove(region));
        let listed: Vec<RegionId> = changes.regions.iter().map(|it| it.region.id).collect();
        self.regions.extend(changes.regions.into_iter().map(|it| (it.region.id, it)));
        self.at = changes.now;
        listed
    }

    /// Takes what has changed, and compares all reports with those that a full list holds.
    pub(super) fn check(&mut self, store: &mut Store) {
        self.take(store);
        let truncated = |report: RegionReport| RegionReport { truncated: LogIndex(0), ..report };
        let all: Vec<_> = store.core.regions().into_iter().map(truncated).collect();
        let known: Vec<_> = self.regions.values().cloned().map(truncated).collect();
        assert_eq!(known, all);
    }
}

/// Returns voters on three stores, hibernating, of which 1 leads, and what is known of store 1.
fn hibernating() -> (Trial, Known) {
    let mut trial = Trial::with(3, |options| options.hibernate_after_ticks = 20);
    trial.lead(DATA, 1);
    trial.ticks(80);
    (1..=3).for_each(|store| assert!(trial.is_hibernating(store), "store {store}"));
    let mut known = Known::default();
    known.check(trial.store(1));
    known.check(trial.store(1));
    (trial, known)
}

fn down(known: &Known) -> Vec<(u64, u64)> {
    let report = known.regions.get(&DATA).unwrap();
    report.down_peers.iter().map(|(peer, seconds)| (peer.store.0, *seconds)).collect()
}

#[test]
fn hibernating_regions_are_in_no_list_of_changes_until_they_change() {
    let mut trial = Trial::with(1, |options| options.hibernate_after_ticks = 20);
    trial.stores.clear();
    let regions = many::many(200);
    (1..=3).for_each(|store| trial.add_store(store, &regions));
    trial.ticks(120);
    let mut known = Known::default();
    known.check(trial.store(1));
    known.take(trial.store(1));
    for _ in 0..5 {
        trial.advance(SECOND);
        trial.settle();
        // Those for which another store asks whether they are still members.
        assert!(known.take(trial.store(1)).len() <= 4);
    }
    let mut ids = regions.iter().map(|region| region.id);
    let led = ids.find(|region| trial.leader(*region) == Some(1)).unwrap();
    let id = trial.request();
    let header = trial.header(led);
    let write = Write { header, command: put("", "1"), only_deletes: false };
    trial.store(1).core.step(Input::request(id, write));
    trial.settle();
    assert!(known.take(trial.store(1)).contains(&led));
    known.check(trial.store(1));
}

#[test]
fn a_list_of_changes_that_was_lost_is_contained_in_the_next_one() {
    let (mut trial, mut known) = hibernating();
    trial.write(1, put("a", "1"));
    trial.ticks(80);
    assert!(trial.is_hibernating(1));
    let at = known.at;
    let lost = trial.store(1).core.changed_regions(at);
    assert_eq!(lost.regions.len(), 1);
    assert_eq!(known.take(trial.store(1)), [DATA]);
    known.check(trial.store(1));
    // Another process numbers its collections from 1, and begins with every region.
    trial.restart(1);
    known.check(trial.store(1));
}

#[test]
fn a_read_of_a_hibernating_region_is_in_the_next_list_of_changes() {
    let (mut trial, mut known) = hibernating();
    for pairs in [3, 4] {
        let reader = trial.store(1).core.readers().get(DATA).unwrap();
        reader.note_returned(pairs, 10);
        assert_eq!(known.take(trial.store(1)), [DATA]);
        known.check(trial.store(1));
    }
    assert_eq!(known.take(trial.store(1)), []);
}

#[test]
fn the_seconds_without_a_peer_on_an_unreachable_store_grow_in_lists_of_changes_until_it_is_back() {
    let (mut trial, mut known) = hibernating();
    trial.store(1).core.step(Input::StoreUnreachable(StoreId(2)));
    trial.cut.extend([(1, 2), (2, 1)]);
    let mut seconds = Vec::new();
    for _ in 0..6 {
        trial.ticks(1);
        trial.advance(SECOND);
        known.check(trial.store(1));
        seconds.extend(down(&known).into_iter().filter(|(store, _)| *store == 2));
    }
    assert!(seconds.len() >= 3 && seconds.is_sorted(), "{seconds:?}");
    assert!(seconds.windows(2).all(|two| two[0] != two[1]), "{seconds:?}");
    trial.heal();
    trial.store(1).core.step(Input::StoreReachable(StoreId(2)));
    trial.ticks(80);
    known.check(trial.store(1));
    assert_eq!(down(&known), []);
    assert!(trial.is_hibernating(1));
    known.take(trial.store(1));
    assert_eq!(known.take(trial.store(1)), []);
}

#[test]
fn a_hibernating_leader_reports_the_loss_and_the_return_of_a_store_without_being_woken() {
    let (mut trial, mut known) = hibernating();
    // The connection is lost while nothing else happens in the region, which then hibernates again.
    trial.store(1).core.step(Input::StoreUnreachable(StoreId(2)));
    trial.ticks(80);
    assert!(trial.is_hibernating(1), "its followers have the whole log");
    known.check(trial.store(1));
    let before = down(&known);
    trial.advance(5 * SECOND);
    trial.settle();
    known.check(trial.store(1));
    assert!(before != down(&known) && !before.is_empty(), "{before:?}");
    trial.store(1).core.step(Input::StoreReachable(StoreId(2)));
    known.check(trial.store(1));
    assert_eq!(down(&known), []);
    assert!(trial.is_hibernating(1));
}

#[test]
fn the_seconds_without_a_leader_grow_in_lists_of_changes() {
    let (mut trial, _) = hibernating();
    let mut known = Known::default();
    trial.isolate(3);
    trial.store(3).core.step(Input::StoreUnreachable(StoreId(1)));
    let mut seconds = Vec::new();
    for _ in 0..140 {
        trial.ticks(10);
        known.check(trial.store(3));
        seconds.push(known.regions.get(&DATA).unwrap().leaderless_seconds);
    }
    assert!(seconds.is_sorted() && seconds.last() > Some(&60), "{seconds:?}");
}

#[test]
fn a_removed_replica_is_named_in_the_next_list_of_changes() {
    let (mut trial, _) = hibernating();
    let mut known = Known::default();
    known.check(trial.store(3));
    let gone = PeerChange { kind: ChangeKind::Remove, peer: peer(103, 3) };
    trial.admin(1, DATA, Admin::ChangePeers(vec![gone]));
    trial.ticks(80);
    assert!(trial.store(3).core.region(DATA).is_none());
    known.check(trial.store(3));
    assert!(known.regions.is_empty());
}
