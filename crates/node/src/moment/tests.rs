use super::*;

const NUMBER: MomentId = MomentId(7);

fn part(region: u64, start: &'static str, end: &'static str, term: u64, last: u64) -> CutPart {
    CutPart {
        region: RegionId(region),
        range: KeyRange::new(start, end),
        term: Term(term),
        last: LogIndex(last),
    }
}

fn coordinator() -> Coordinator<&'static str> {
    Coordinator::new(NUMBER, ["a", "b"])
}

fn terms(regions: &[(u64, u64)]) -> Vec<(RegionId, Term)> {
    regions.iter().map(|(region, term)| (RegionId(*region), Term(*term))).collect()
}

/// Returns a moment of two regions of which the seals are requested.
fn sealing() -> Coordinator<&'static str> {
    let mut moment = coordinator();
    moment.paused(&"a", NUMBER, vec![part(2, "", "m", 3, 30)], None);
    assert_eq!(moment.step(), Next::Wait);
    moment.paused(&"b", NUMBER, vec![part(3, "m", "", 4, 40)], None);
    let seals = vec![("a", terms(&[(2, 3)])), ("b", terms(&[(3, 4)]))];
    assert_eq!(moment.step(), Next::Seal(seals));
    moment
}

#[test]
fn seals_are_requested_when_the_ranges_tile_all_keys_exactly() {
    let no_leader = |from: &'static str| Abandoned::NoLeader { from: Bytes::from(from) };
    let overlap = |one, two| Abandoned::Overlap { regions: [RegionId(one), RegionId(two)] };
    // Parts, fault.
    let rows = [
        (vec![part(2, "", "", 1, 5)], None),
        (vec![part(2, "", "m", 1, 5), part(3, "m", "", 1, 5)], None),
        (vec![part(3, "m", "", 1, 5), part(2, "", "m", 1, 5)], None),
        (vec![], Some(no_leader(""))),
        (vec![part(2, "", "m", 1, 5)], Some(no_leader("m"))),
        (vec![part(3, "m", "", 1, 5)], Some(no_leader(""))),
        (vec![part(2, "", "c", 1, 5), part(3, "m", "", 1, 5)], Some(no_leader("c"))),
        // The target of a merge, and its source that has not applied it.
        (vec![part(2, "", "", 1, 5), part(3, "m", "", 1, 5)], Some(overlap(2, 3))),
        (vec![part(2, "", "p", 1, 5), part(3, "m", "", 1, 5)], Some(overlap(2, 3))),
        (vec![part(2, "", "m", 1, 5), part(3, "", "m", 1, 5)], Some(overlap(2, 3))),
    ];
    for (parts, fault) in rows {
        let mut moment = Coordinator::new(NUMBER, ["a"]);
        moment.paused(&"a", NUMBER, parts.clone(), None);
        match (moment.step(), fault) {
            (Next::Seal(_), None) => {}
            (Next::Abandoned(found), Some(fault)) => assert_eq!(found, fault, "{parts:?}"),
            other => panic!("{parts:?}: {other:?}"),
        }
    }
}

#[test]
fn a_moment_is_complete_when_the_last_region_is_sealed() {
    let mut moment = sealing();
    assert_eq!(moment.step(), Next::Wait);
    moment.sealed(NUMBER, &terms(&[(3, 4)]));
    moment.sealed(NUMBER, &terms(&[(3, 4)]));
    assert_eq!(moment.step(), Next::Wait, "a repeated answer is no other one");
    moment.sealed(NUMBER, &terms(&[(2, 3)]));
    assert_eq!(moment.step(), Next::Confirm);
    moment.confirmed(Ok(()));
    let parts = vec![part(2, "", "m", 3, 30), part(3, "m", "", 4, 40)];
    assert_eq!(moment.step(), Next::Complete(Moment { number: NUMBER, parts }));
}

#[test]
fn a_moment_is_complete_when_its_placement_leader_is_confirmed_after_the_seals() {
    let mut moment = sealing();
    moment.confirmed(Ok(()));
    moment.sealed(NUMBER, &terms(&[(2, 3), (3, 4)]));
    assert_eq!(moment.step(), Next::Confirm, "the confirmation came before the last seal");
    moment.confirmed(Err("not leader".to_owned()));
    let reason = "not leader".to_owned();
    assert_eq!(moment.step(), Next::Abandoned(Abandoned::Deposed { reason }));
}

#[test]
fn an_answer_to_an_earlier_moment_counts_for_nothing() {
    let mut moment = coordinator();
    moment.paused(&"a", MomentId(6), vec![part(2, "", "", 3, 20)], None);
    assert_eq!(moment.step(), Next::Wait);
    let mut moment = sealing();
    moment.sealed(MomentId(6), &terms(&[(2, 3), (3, 4)]));
    assert_eq!(moment.step(), Next::Wait);
}

#[test]
fn a_seal_of_another_term_counts_for_nothing() {
    let mut moment = sealing();
    moment.sealed(NUMBER, &terms(&[(2, 4), (3, 4)]));
    assert_eq!(moment.step(), Next::Wait);
    moment.not_sealed(RegionId(3), "it is sealed".to_owned());
    assert_eq!(moment.step(), Next::Wait);
    moment.not_sealed(RegionId(2), "not leader".to_owned());
    let (region, reason) = (RegionId(2), "not leader".to_owned());
    assert_eq!(moment.step(), Next::Abandoned(Abandoned::NotSealed { region, reason }));
    moment.sealed(NUMBER, &terms(&[(2, 3)]));
    assert!(matches!(moment.step(), Next::Abandoned(_)), "it stays abandoned");
    let mut late = sealing();
    late.sealed(NUMBER, &terms(&[(2, 3)]));
    late.end_wait();
    let (region, reason) = (RegionId(3), "its node is late".to_owned());
    assert_eq!(late.step(), Next::Abandoned(Abandoned::NotSealed { region, reason }));
}

#[test]
fn of_two_leaders_of_a_region_the_later_one_counts_whichever_answers_first() {
    let (old, new) = (part(2, "", "m", 3, 30), part(2, "", "m", 5, 28));
    for order in [[("a", old.clone()), ("b", new.clone())], [("b", new), ("a", old)]] {
        let mut moment = Coordinator::new(NUMBER, ["a", "b", "c"]);
        for (node, part) in order {
            moment.paused(&node, NUMBER, vec![part], None);
        }
        moment.paused(&"c", NUMBER, vec![part(3, "m", "", 4, 40)], None);
        let seals = vec![("b", terms(&[(2, 5)])), ("c", terms(&[(3, 4)]))];
        assert_eq!(moment.step(), Next::Seal(seals));
    }
}

#[test]
fn what_comes_after_the_seals_were_requested_changes_no_part() {
    let mut moment = sealing();
    moment.paused(&"a", NUMBER, vec![part(2, "", "m", 9, 99)], None);
    moment.failed(&"b", Fault::EarlierVersion);
    moment.sealed(NUMBER, &terms(&[(2, 3), (3, 4)]));
    moment.confirmed(Ok(()));
    let Next::Complete(complete) = moment.step() else { panic!("{moment:?}") };
    assert_eq!(complete.parts[0], part(2, "", "m", 3, 30));
}

#[test]
fn a_node_that_leads_nothing_may_be_down() {
    let mut moment = coordinator();
    moment.failed(&"b", Fault::NoAnswer("refused".to_owned()));
    moment.paused(&"a", NUMBER, vec![part(2, "", "", 3, 30)], None);
    assert!(matches!(moment.step(), Next::Seal(_)));
}

#[test]
fn the_reason_of_missing_parts_names_node_or_region_and_a_remedy() {
    let half = || vec![part(2, "", "m", 3, 30)];
    let not_paused = Some((RegionId(3), "not committed".to_owned()));
    let mut late = coordinator();
    late.paused(&"a", NUMBER, half(), not_paused.clone());
    assert_eq!(late.step(), Next::Wait);
    late.end_wait();
    let mut down = coordinator();
    down.paused(&"a", NUMBER, half(), None);
    down.failed(&"b", Fault::NoAnswer("connection refused".to_owned()));
    let mut earlier = coordinator();
    earlier.failed(&"b", Fault::EarlierVersion);
    earlier.paused(&"a", NUMBER, half(), None);
    let mut slow = coordinator();
    slow.paused(&"a", NUMBER, half(), not_paused);
    slow.paused(&"b", NUMBER, Vec::new(), None);
    let mut leaderless = coordinator();
    leaderless.paused(&"a", NUMBER, half(), None);
    leaderless.paused(&"b", NUMBER, Vec::new(), None);
    // Moment, words of its message, whether a repetition may help.
    let rows = [
        (late, &["node b", "late", "start it"][..], true),
        (down, &["node b", "connection refused", "start it"], true),
        (earlier, &["node b", "earlier version", "upgrade it"], false),
        (slow, &["region 3", "not committed", "repeat"], true),
        (leaderless, &["keys from \"m\"", "election"], true),
    ];
    for (mut moment, words, may_pass) in rows {
        let Next::Abandoned(reason) = moment.step() else { panic!("{words:?}") };
        let text = reason.to_string();
        words.iter().for_each(|word| assert!(text.contains(word), "{text} lacks {word}"));
        assert_eq!(reason.may_pass(), may_pass, "{text}");
    }
}
