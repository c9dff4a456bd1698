use super::*;
use stele_types::{Boot, StartId};

const HERE: &str = "c:1";
const THERE: &str = "y:1";

fn lineage(ids: &[u128]) -> Lineage {
    Lineage::new(ids.iter().copied().map(StartId))
}

fn run(count: u64, ids: &[u128]) -> StoreRun {
    StoreRun { boot: Boot { count, nonce: 1 }, lineage: lineage(ids) }
}

fn old(count: u64, nonce: u64) -> StoreRun {
    Boot { count, nonce }.into()
}

fn known(run: StoreRun) -> KnownRun {
    KnownRun { run, address: HERE.to_owned(), ..KnownRun::default() }
}

fn alone() -> Evidence {
    Evidence::default()
}

fn connected() -> Evidence {
    Evidence { is_connected: true, ..alone() }
}

fn silent() -> Evidence {
    Evidence { probe: Probe::Silent, ..alone() }
}

/// The known address does not answer, and the stated one does.
fn moved_run(stated: &[u128]) -> Evidence {
    Evidence { stated: Probe::Answered(lineage(stated)), ..silent() }
}

fn own() -> Evidence {
    Evidence { is_own: true, ..alone() }
}

fn answers(ids: &[u128]) -> Evidence {
    Evidence { probe: Probe::Answered(lineage(ids)), ..alone() }
}

/// Both addresses answer: the known one, and the stated one.
fn both_answer(known: &[u128], stated: &[u128]) -> Evidence {
    Evidence { stated: Probe::Answered(lineage(stated)), ..answers(known) }
}

fn stated(stated: Probe) -> Evidence {
    Evidence { stated, ..alone() }
}

const COPY: Verdict = Verdict::Refused(Refusal::Copy);
const EARLIER: Verdict = Verdict::Refused(Refusal::EarlierState);
const CONFLICT: Verdict = Verdict::Refused(Refusal::Conflict);
const NO_START: Verdict = Verdict::Refused(Refusal::NoStart);

#[test]
fn a_run_goes_on_after_the_known_one_only_if_it_comes_after_it_and_that_one_has_ended() {
    let after_5 = run(6, &[6, 5, 4]);
    for (name, stated, at, evidence, expected) in [
        ("the same", run(5, &[5, 4]), HERE, connected(), Verdict::Same),
        ("a restart", after_5.clone(), HERE, alone(), Verdict::Successor),
        ("several restarts", run(8, &[8, 7, 6, 5]), HERE, alone(), Verdict::Successor),
        ("an address that is taken", after_5.clone(), HERE, connected(), Verdict::Undecided),
        ("a copy with the address", after_5.clone(), HERE, answers(&[5, 4]), COPY),
        ("a copy beside the original", after_5.clone(), THERE, connected(), COPY),
        ("moved, perhaps", after_5.clone(), THERE, alone(), Verdict::Undecided),
        ("moved?", after_5.clone(), THERE, silent(), Verdict::Unverified),
        ("moved", after_5.clone(), THERE, moved_run(&[6, 5, 4]), Verdict::Successor),
        ("moved, and started again since", after_5.clone(), THERE, moved_run(&[7, 6, 5, 4]), COPY),
        ("a copy, the original answers", after_5.clone(), THERE, answers(&[5, 4]), COPY),
        ("moved, under two names", after_5.clone(), THERE, answers(&[6, 5, 4]), Verdict::Successor),
        ("restarted meanwhile", after_5.clone(), THERE, answers(&[7, 6, 5]), EARLIER),
        ("a copy of an earlier run", run(7, &[8, 6, 5]), THERE, answers(&[6, 5]), COPY),
        ("two of one parent?", after_5.clone(), THERE, answers(&[9, 5, 4]), Verdict::Unverified),
        (
            "two of one parent",
            after_5.clone(),
            THERE,
            both_answer(&[9, 5, 4], &[6, 5, 4]),
            CONFLICT,
        ),
        ("one of them ended", after_5.clone(), THERE, both_answer(&[9, 5, 4], &[9, 5, 4]), COPY),
        ("an earlier state", run(6, &[9, 4, 3]), HERE, alone(), EARLIER),
        ("an earlier state, elsewhere", run(4, &[4, 3]), THERE, silent(), EARLIER),
        ("another store's", run(6, &[77]), THERE, silent(), EARLIER),
        ("this node itself", run(5, &[5, 4]), HERE, own(), Verdict::Same),
        ("a copy of a store of this node", after_5.clone(), THERE, own(), COPY),
        ("an earlier state of one of this node", run(4, &[4, 3]), THERE, own(), EARLIER),
        ("a clone on a full device", run(5, &[5, 4]), THERE, connected(), COPY),
        (
            "a moved disk that is full",
            run(0, &[5, 4]),
            THERE,
            moved_run(&[5, 4]),
            Verdict::Successor,
        ),
    ] {
        assert_eq!(judge(&known(run(5, &[5, 4])), &stated, at, &evidence), expected, "{name}");
    }
    let elsewhere = StoreRun { boot: Boot { count: 5, nonce: 2 }, ..run(5, &[5, 4]) };
    let verdict = judge(&known(run(5, &[5, 4])), &elsewhere, HERE, &own());
    assert_eq!(verdict, COPY, "a clone with the address of this node");
}

#[test]
fn a_store_that_stated_a_start_and_states_none_is_heard_only_at_the_known_address() {
    let known = known(run(5, &[5, 4]));
    for stated in [old(0, 0), old(6, 3), old(9, 3)] {
        assert_eq!(judge(&known, &stated, HERE, &alone()), Verdict::Same, "{stated:?}");
        assert_eq!(judge(&known, &stated, THERE, &silent()), NO_START, "{stated:?}");
        assert_eq!(judge(&known, &stated, HERE, &own()), NO_START, "{stated:?}");
    }
}

#[test]
fn nodes_of_earlier_versions_are_judged_by_their_numbers() {
    let known = known(old(5, 50));
    for (stated, at, evidence, expected) in [
        (old(5, 50), HERE, connected(), Verdict::Same),
        (old(6, 60), THERE, alone(), Verdict::Successor),
        (old(5, 60), THERE, alone(), COPY),
        (old(4, 60), HERE, alone(), EARLIER),
        (old(0, 0), HERE, alone(), Verdict::Same),
        (old(6, 60), THERE, own(), COPY),
        // The first start with this version.
        (run(6, &[1]), HERE, alone(), Verdict::Successor),
        (run(6, &[1]), THERE, connected(), COPY),
        (run(6, &[1]), THERE, alone(), Verdict::Undecided),
        (run(6, &[1]), THERE, silent(), Verdict::Unverified),
        (run(6, &[1]), THERE, moved_run(&[1]), Verdict::Successor),
        (run(4, &[1]), THERE, silent(), EARLIER),
        (run(5, &[1]), THERE, silent(), COPY),
    ] {
        assert_eq!(judge(&known, &stated, at, &evidence), expected, "{stated:?} {at}");
    }
    let same_process = StoreRun { boot: Boot { count: 5, nonce: 50 }, lineage: lineage(&[1]) };
    assert_eq!(judge(&known, &same_process, HERE, &connected()), Verdict::Successor, "its ids");
    let nothing = KnownRun::default();
    assert_eq!(judge(&nothing, &run(1, &[1]), HERE, &alone()), Verdict::Successor);
    assert_eq!(judge(&nothing, &old(0, 0), HERE, &alone()), Verdict::Same);
    assert_eq!(judge(&nothing, &run(1, &[1]), THERE, &own()), COPY);
}

#[test]
fn a_displaced_run_that_answers_after_all_stops_both_until_one_is_kept() {
    let displaced = Some((lineage(&[5, 4]), HERE.to_owned()));
    let mut known =
        KnownRun { run: run(6, &[60, 5, 4]), address: THERE.to_owned(), displaced, rival: None };
    for (name, stated, at, expected) in [
        ("it never ended", run(5, &[5, 4]), HERE, CONFLICT),
        ("it was started again", run(6, &[6, 5, 4]), HERE, CONFLICT),
        ("an older state there", run(4, &[4]), HERE, EARLIER),
        ("a third directory", run(6, &[66, 5, 4]), "z:1", EARLIER),
        ("it was moved back", run(7, &[7, 60, 5]), HERE, Verdict::Undecided),
    ] {
        let evidence = Evidence { stated: Probe::Answered(stated.lineage.clone()), ..alone() };
        assert_eq!(judge(&known, &stated, at, &evidence), expected, "{name}");
    }
    let listed = Evidence { is_hearsay: true, ..alone() };
    assert_eq!(judge(&known, &run(5, &[5, 4]), HERE, &listed), EARLIER, "another node lists it");
    known.rival = Some((lineage(&[6, 5, 4]), HERE.to_owned()));
    for (name, stated, at, expected) in [
        ("one", run(6, &[60, 5, 4]), THERE, CONFLICT),
        ("the other", run(6, &[6, 5, 4]), HERE, CONFLICT),
        ("a later start of one", run(7, &[61, 60, 5, 4]), THERE, CONFLICT),
        ("kept", run(7, &[61, 60, 5, 4, 6]), THERE, Verdict::Successor),
    ] {
        assert_eq!(judge(&known, &stated, at, &alone()), expected, "{name}");
    }
    let kept = run(7, &[7, 6, 5, 4, 60]);
    assert_eq!(judge(&known, &kept, HERE, &moved_run(&[7, 6, 5, 4, 60])), Verdict::Successor);
}

#[test]
fn a_hello_of_an_ended_run_that_arrives_after_its_successor_was_accepted_stops_neither() {
    let displaced = Some((lineage(&[5, 4]), HERE.to_owned()));
    let mut known =
        KnownRun { run: run(6, &[60, 5, 4]), address: THERE.to_owned(), displaced, rival: None };
    let ended = run(5, &[5, 4]);
    assert_eq!(judge(&known, &ended, HERE, &alone()), Verdict::Unverified);
    for (name, answer, expected) in [
        ("nothing is there", Probe::Silent, EARLIER),
        ("the successor was moved back", Probe::Answered(lineage(&[60, 5, 4])), EARLIER),
        ("and started again", Probe::Answered(lineage(&[61, 60, 5, 4])), EARLIER),
        ("another store's", Probe::Answered(lineage(&[77])), EARLIER),
        ("it never ended", Probe::Answered(lineage(&[5, 4])), CONFLICT),
        ("it was started again", Probe::Answered(lineage(&[6, 5, 4])), CONFLICT),
    ] {
        assert_eq!(judge(&known, &ended, HERE, &stated(answer)), expected, "{name}");
    }
    let before = known.clone();
    let (verdict, is_changed) = known.admit(&ended, HERE, &stated(Probe::Silent));
    assert_eq!((verdict, is_changed, &known), (EARLIER, false, &before), "the successor is heard");
}

#[test]
fn a_late_message_of_a_copy_that_has_ended_does_not_keep_the_original_from_being_heard() {
    let mut known = known(run(5, &[5, 4]));
    let copied = run(6, &[60, 5, 4]);
    // The original is down, and the copy has ended.
    assert_eq!(judge(&known, &copied, THERE, &silent()), Verdict::Unverified);
    let nothing_there = Evidence { stated: Probe::Silent, ..silent() };
    assert_eq!(known.admit(&copied, THERE, &nothing_there), (COPY, false));
    assert_eq!(judge(&known, &run(6, &[6, 5, 4]), HERE, &alone()), Verdict::Successor);
}

#[test]
fn a_store_of_which_only_the_address_is_known_is_asked_there_before_another_run_is_heard() {
    let listed = known(StoreRun::default());
    let copied = run(6, &[6, 5]);
    for (name, stated, at, evidence, expected) in [
        ("its first run", copied.clone(), HERE, alone(), Verdict::Successor),
        ("perhaps elsewhere", copied.clone(), THERE, alone(), Verdict::Undecided),
        ("a copy", copied.clone(), THERE, answers(&[5, 4]), COPY),
        ("an earlier state", run(5, &[5, 4]), THERE, answers(&[6, 5]), EARLIER),
        ("moved", copied.clone(), THERE, moved_run(&[6, 5]), Verdict::Successor),
        ("it states nothing", old(0, 0), THERE, alone(), Verdict::Same),
    ] {
        assert_eq!(judge(&listed, &stated, at, &evidence), expected, "{name}");
    }
    let mut known = listed.clone();
    assert_eq!(known.admit(&copied, THERE, &moved_run(&[6, 5])), (Verdict::Successor, true));
    let original = stated(Probe::Answered(lineage(&[5, 4])));
    assert_eq!(judge(&known, &run(5, &[5, 4]), HERE, &original), CONFLICT, "it answers after all");
}

#[test]
fn a_run_with_more_starts_than_it_names_goes_on_only_if_the_known_one_does_not_answer() {
    let known = known(run(5, &[5, 4]));
    let many = run(200, &(136..=200).rev().collect::<Vec<_>>());
    assert_eq!(judge(&known, &many, HERE, &alone()), Verdict::Successor);
    assert_eq!(judge(&known, &many, THERE, &connected()), COPY);
    let there = Evidence { stated: Probe::Answered(many.lineage.clone()), ..silent() };
    assert_eq!(judge(&known, &many, THERE, &there), Verdict::Successor);
    let few = run(60, &(6..=60).rev().chain([4]).collect::<Vec<_>>());
    assert_eq!(judge(&known, &few, HERE, &alone()), EARLIER, "it names all of them");
}

#[test]
fn every_message_names_both_places_and_none_tells_the_operator_to_empty_a_directory() {
    let mut known = known(run(5, &[5, 4]));
    let stated = run(6, &[6, 4]);
    for refusal in [Refusal::Copy, Refusal::EarlierState, Refusal::Conflict, Refusal::NoStart] {
        assert_eq!(Refusal::from_number(refusal as u8), Some(refusal));
        let text = refusal.text(StoreId(3), &stated, THERE, &known);
        let names_all = [HERE, THERE, "store 3"].iter().all(|name| text.contains(name));
        assert!(names_all && !text.contains("empty"), "{text}");
    }
    known.rival = Some((stated.lineage.clone(), THERE.to_owned()));
    let text = Refusal::Conflict.text(StoreId(3), &known.run, HERE, &known);
    assert!(text.contains(THERE) && text.contains("keep-run 3 ADDRESS"), "{text}");
    assert_eq!(Refusal::from_number(9), None);
}
