use super::*;
use crate::succession::{Evidence, Probe, Refusal, Verdict};
use stele_types::{Boot, Lineage, StartId};

fn removed(address: &str) -> Member {
    let known = KnownRun { address: address.to_owned(), ..KnownRun::default() };
    Member { known, is_removed: true, state: 3, ..Member::default() }
}

fn run(count: u64, ids: &[u128]) -> StoreRun {
    let lineage = Lineage::new(ids.iter().copied().map(StartId));
    StoreRun { boot: Boot { count, nonce: 9 }, lineage }
}

fn listed(address: &str, id: u64, run: &StoreRun) -> [Listed; 1] {
    let (store, address) = (StoreId(id), address.to_owned());
    [Listed { store, run: run.clone(), address, ..Listed::default() }]
}

/// Returns one that names no run.
fn unstated(address: &str, id: u64) -> [Listed; 1] {
    listed(address, id, &StoreRun::default())
}

/// The known run does not answer, and this one does.
fn moved(run: &StoreRun) -> Evidence {
    let stated = Probe::Answered(run.lineage.clone());
    Evidence { probe: Probe::Silent, stated, ..Evidence::default() }
}

/// Admits a run of store 2, of which the known run does not answer.
fn admit(table: &mut Table, address: &str, run: &StoreRun) -> Verdict {
    table.admit(StoreId(2), run, address, &moved(run))
}

/// Returns the known address of store 2.
fn address(table: &Table) -> &str {
    &table.known_run(StoreId(2)).unwrap().address
}

#[test]
fn a_store_that_was_declared_lost_stays_removed_whatever_the_placement_group_lists() {
    let stores = [2, 3].map(|id| (StoreId(id), removed("b:1"))).into();
    let mut table = Table::new(Known { stores, ..Known::default() });
    // A log of the placement group in which store 2 is still a member, and store 3 is not yet.
    let list = [unstated("a:1", 1), unstated("b:1", 2)].concat();
    assert!(table.update(5, &list, "a:1"));
    assert!(table.is_removed(StoreId(2)) && table.is_removed(StoreId(3)));
    assert_eq!(table.stores(), [StoreId(1)]);
    assert_eq!(table.address(StoreId(2)), None, "nothing is sent to it");
    assert!(!table.update(5, &list, "a:1"));
}

#[test]
fn a_copy_of_a_directory_that_was_moved_does_not_tell_the_stores_of_the_node() {
    let own = |ids: &[u64]| ids.iter().map(|id| (StoreId(*id), None)).collect();
    let stores = BTreeMap::from([(StoreId(1), Member::default())]);
    let moved = Known { write: 9, own: own(&[1, 2]), stores, ..Known::default() };
    let stays = Known { write: 3, own: own(&[4]), ..Known::default() };
    assert_eq!(Known::newest([(&moved, false), (&stays, true)]), stays);
    assert_eq!(Known::newest([(&moved, true), (&stays, true)]), moved);
    let alone = Known::newest([(&moved, false)]);
    assert_eq!((alone.stores.len(), alone.own.len()), (1, 0));
    assert_eq!(Known::newest([]), Known::default());
}

#[test]
fn an_address_is_learned_from_a_later_run_of_a_store_and_from_no_older_copy() {
    let mut table = Table::default();
    table.update(1, &unstated("b:1", 2), "a:1");
    assert_eq!(admit(&mut table, "b:2", &run(7, &[7, 6])), Verdict::Successor);
    for older in
        [run(8, &[66, 6]), run(6, &[6]), StoreRun::default(), Boot { count: 8, nonce: 1 }.into()]
    {
        assert!(matches!(admit(&mut table, "b:3", &older), Verdict::Refused(_)), "{older:?}");
        assert_eq!(address(&table), "b:2", "{older:?}");
    }
    assert_eq!(admit(&mut table, "b:4", &run(8, &[8, 7])), Verdict::Successor);
    assert_eq!(address(&table), "b:4");
    let again = Table::new(table.known().clone());
    let known = again.known_run(StoreId(2)).unwrap();
    assert_eq!((&known.run, address(&again)), (&run(8, &[8, 7]), "b:4"), "it is kept");
    admit(&mut table, "no address", &run(9, &[9, 8]));
    table.learn_list(&listed("x:1", 5, &run(1, &[1])));
    assert_eq!(table.addresses(), ["b:4", "x:1"], "a list that was lost is learned again");
    let gone = unstated("b:4", 2).map(|it| Listed { is_removed: true, ..it });
    table.update(2, &gone, "a:1");
    admit(&mut table, "b:5", &run(9, &[9, 8]));
    assert!(table.is_removed(StoreId(2)));
}

#[test]
fn what_one_node_states_for_another_is_used_when_the_known_run_was_asked() {
    let mut table = Table::default();
    admit(&mut table, "b:1", &run(7, &[7]));
    table.learn_list(&listed("b:2", 2, &run(8, &[8, 7])));
    assert_eq!(address(&table), "b:1");
    let waiting = table.take_hearsay();
    assert_eq!((waiting.len(), &waiting[0].address[..]), (1, "b:2"));
    assert!(table.take_hearsay().is_empty());
    table.update(1, &listed("b:3", 2, &run(9, &[9, 8, 7])), "a:1");
    assert_eq!(address(&table), "b:1", "the list is one too");
    assert_eq!(table.take_hearsay()[0].address, "b:3");
    table.learn_list(&listed("b:1", 2, &run(8, &[8, 7])));
    assert_eq!(table.known_run(StoreId(2)).unwrap().run, run(8, &[8, 7]), "it was started again");
}

#[test]
fn a_run_is_heard_until_another_one_is_accepted() {
    let mut table = Table::default();
    let (first, next) = (run(7, &[7]), run(8, &[8, 7]));
    assert_eq!(table.standing(StoreId(2), &first, "b:1"), RunStanding::Heard, "nothing is known");
    admit(&mut table, "b:1", &first);
    assert_eq!(table.standing(StoreId(2), &first, "b:1"), RunStanding::Heard);
    let connected = Evidence { is_connected: true, ..Evidence::default() };
    let verdict = table.admit(StoreId(2), &next, "b:2", &connected);
    assert_eq!(verdict, Verdict::Refused(Refusal::Copy));
    admit(&mut table, "b:2", &next);
    assert_eq!(table.standing(StoreId(2), &next, "b:2"), RunStanding::Heard);
    assert_eq!(table.standing(StoreId(2), &first, "b:1"), RunStanding::Displaced);
}

#[test]
fn two_runs_of_one_parent_that_both_answer_are_both_no_longer_heard() {
    let mut table = Table::default();
    admit(&mut table, "b:1", &run(7, &[7]));
    let (there, here) = (run(8, &[80, 7]), run(8, &[8, 7]));
    let answers = |run: &StoreRun| Probe::Answered(run.lineage.clone());
    let (probe, stated) = (answers(&there), answers(&here));
    let both = Evidence { probe, stated, ..Evidence::default() };
    let verdict = table.admit(StoreId(2), &here, "b:2", &both);
    assert_eq!(verdict, Verdict::Refused(Refusal::Conflict));
    assert_eq!(table.standing(StoreId(2), &there, "b:1"), RunStanding::Displaced);
    assert_eq!(table.standing(StoreId(2), &here, "b:2"), RunStanding::Displaced);
    assert_eq!(admit(&mut table, "b:1", &there), Verdict::Refused(Refusal::Conflict));
    let kept = run(9, &[9, 8, 7, 80]);
    assert_eq!(admit(&mut table, "b:2", &kept), Verdict::Successor);
    assert_eq!(table.standing(StoreId(2), &kept, "b:2"), RunStanding::Heard);
}

#[test]
fn every_other_process_runs_a_copy_of_a_store_of_this_node() {
    let mut table = Table::default();
    table.add_own(StoreId(2), "a:1", "/data".into(), run(7, &[7, 6]));
    for (stated, expected) in [
        (run(8, &[8, 7]), Refusal::Copy),
        (run(7, &[7, 6]), Refusal::Copy),
        (run(6, &[6]), Refusal::EarlierState),
        (StoreRun::default(), Refusal::NoStart),
    ] {
        assert_eq!(admit(&mut table, "b:1", &stated), Verdict::Refused(expected), "{stated:?}");
    }
    table.learn_list(&listed("b:1", 2, &run(8, &[8, 7])));
    assert_eq!(address(&table), "a:1");
}

#[test]
fn the_number_of_stores_is_bounded() {
    let mut table = Table::default();
    (0..10_000).for_each(|id| {
        table.admit(StoreId(2 + id), &run(1, &[1]), "b:1", &Evidence::default());
    });
    assert_eq!(table.stores().len(), STORES_MAX);
}

#[test]
fn the_list_of_the_placement_group_takes_no_address_of_a_later_run_back() {
    for (first, older, later) in [
        (run(7, &[7, 6]), run(6, &[6]), run(8, &[8, 7])),
        // Of a node of an earlier version.
        (run(7, &[]), run(6, &[]), run(8, &[])),
    ] {
        let mut table = Table::default();
        admit(&mut table, "b:2", &first);
        for (version, known) in [(1, StoreRun::default()), (2, older)] {
            assert!(table.update(version, &listed("b:1", 2, &known), "a:1"));
            assert_eq!(address(&table), "b:2", "{known:?}");
        }
        table.update(4, &listed("b:2", 2, &later), "a:1");
        assert_eq!(table.known_run(StoreId(2)).unwrap().run, later);
    }
}

#[test]
fn a_list_is_wanted_again_until_its_runs_are_verified() {
    let (first, second) = (run(1, &[1]), run(2, &[2, 1]));
    let mut table = Table::default();
    table.update(5, &listed("b:1", 2, &first), "a:1");
    // The store runs elsewhere since, and its node is down when this one asks both addresses.
    let list = listed("b:2", 2, &second);
    for _ in 0..3 {
        let write = table.known().write;
        assert!(!table.update(6, &list, "a:1"));
        assert_eq!((table.known().version, table.known().write), (5, write));
        let [Hearsay { store, run, address: at }] = &table.take_hearsay()[..] else { panic!() };
        let silent = Evidence {
            is_hearsay: true,
            probe: Probe::Silent,
            stated: Probe::Silent,
            ..Evidence::default()
        };
        assert_eq!(table.admit(*store, run, at, &silent), Verdict::Refused(Refusal::Copy));
        assert_eq!(address(&table), "b:1");
    }
    // What else the list holds counts at once.
    let longer = [list.to_vec(), unstated("c:1", 3).to_vec()].concat();
    assert!(table.update(6, &longer, "a:1"));
    assert_eq!((table.known().version, table.stores().len()), (5, 2));
    assert_eq!(admit(&mut table, "b:2", &second), Verdict::Successor);
    assert!(table.update(6, &longer, "a:1"));
    assert_eq!((table.known().version, address(&table)), (6, "b:2"));
    assert!(!table.update(6, &longer, "a:1"), "an equal list changes nothing");
    assert!(!table.update(5, &listed("b:2", 2, &second), "a:1"), "an older one neither");
}

#[test]
fn clients_get_the_addresses_that_the_nodes_state_for_them() {
    let mut table = Table::default();
    table.set_client_address("c1:1");
    table.add_own(StoreId(1), "n1:1", "/data".into(), run(7, &[7]));
    let [other] = listed("n2:1", 2, &run(3, &[3]));
    let other = Listed { client_address: "c2:1".to_owned(), ..other };
    // The placement group has not heard of this node's address yet.
    let list = [listed("n1:1", 1, &run(7, &[7])), [other], unstated("n3:1", 3)].concat();
    assert!(table.update(1, &list, "n1:1"));
    assert_eq!(table.client_addresses(), ["c1:1", "c2:1", "n3:1"]);
    assert_eq!(table.addresses(), ["n1:1", "n2:1", "n3:1"]);
    let of = |address| table.client_address_of(address);
    assert_eq!((of("n2:1"), of("n3:1"), of("n9:1")), ("c2:1", "n3:1", "n9:1"));
    assert!(!table.update(1, &list, "n1:1"), "nothing changed");
    // A node hears of the others by lists and by what they state: both keep the address for clients.
    assert_eq!(admit(&mut table, "n2:2", &run(4, &[4, 3])), Verdict::Successor);
    assert_eq!(table.client_address_of("n2:2"), "c2:1");
    assert_eq!(
        table.list().iter().map(|it| &it.client_address[..]).collect::<Vec<_>>(),
        ["c1:1", "c2:1", ""]
    );
}

/// Returns store 2 as bound to node n2.
fn bound(address: &str, run: &StoreRun) -> [Listed; 1] {
    listed(address, 2, run).map(|it| Listed { owner: Some("n2".to_owned()), ..it })
}

#[test]
fn a_bound_store_is_heard_from_its_node_alone() {
    let mut table = Table::default();
    assert_eq!(table.check_owner(StoreId(2), "n3"), Ok(()), "there is no list yet");
    table.update(1, &unstated("a:1", 1), "a:1");
    assert_eq!(table.check_owner(StoreId(1), "n3"), Ok(()), "it is not bound yet");
    assert_eq!(table.check_owner(StoreId(2), "n2"), Err(NotOwner::NotListed));
    admit(&mut table, "b:1", &run(7, &[7]));
    assert_eq!(table.check_owner(StoreId(2), "n2"), Err(NotOwner::NotListed), "it is stated alone");
    assert_eq!(address(&table), "b:1", "so that its node can be asked for the leader");
    table.update(2, &bound("b:2", &run(6, &[6])), "a:1");
    assert_eq!(address(&table), "b:2", "a list says more than what came before it");
    let other = Err(NotOwner::Other("n2".to_owned()));
    assert_eq!(table.check_owner(StoreId(2), "n3"), other);
    // A leader of an earlier version lists no names.
    table.update(3, &listed("b:2", 2, &run(6, &[6])), "a:1");
    assert_eq!(table.check_owner(StoreId(2), "n3"), other);
    assert_eq!(table.check_owner(StoreId(2), "n2"), Ok(()));
}

#[test]
fn a_list_of_another_node_changes_no_bound_store_and_has_its_own_node_asked() {
    let mut table = Table::default();
    table.update(1, &bound("b:1", &run(7, &[7, 6])), "a:1");
    let before = table.known().clone();
    let later = run(8, &[8, 7, 6]);
    for known in [listed("b:1", 2, &run(7, &[7, 6])), bound("c:1", &run(6, &[6]))] {
        table.learn_list(&known);
    }
    // The address of the store itself, with a run that the store does not have, and another address.
    for forged in [bound("b:1", &later), listed("c:1", 2, &later)] {
        table.learn_list(&forged);
        assert_eq!(table.take_hearsay().len(), 1);
    }
    assert_eq!(table.known(), &before);
    table.learn_list(&listed("x:1", 5, &run(1, &[1])));
    assert_eq!(table.address(StoreId(5)), Some("x:1"), "it knows nothing of it");
    assert_eq!(table.check_owner(StoreId(5), "n3"), Err(NotOwner::NotListed));
}
