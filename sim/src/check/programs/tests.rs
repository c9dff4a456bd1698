use super::*;
use stele_types::Prng;

fn stamp((count, writer): (u64, u64)) -> Stamp {
    Stamp { count, writer }
}

/// A program that saw keys with their counts and writers, and wrote these keys.
fn program(
    id: u64,
    (called, returned): (u64, u64),
    seen: &[(u8, (u64, u64))],
    writes: &[u8],
) -> RunProgram {
    let seen = seen.iter();
    let seen =
        seen.map(|(key, before)| SeenKey { key: *key, before: stamp(*before), member: None });
    RunProgram {
        id,
        called,
        returned: (returned > 0).then_some(returned),
        slot: 1,
        writes: writes.iter().copied().collect(),
        seen: seen.collect(),
    }
}

/// A program of unknown outcome.
fn unknown(id: u64, called: u64, writes: &[u8]) -> RunProgram {
    program(id, (called, 0), &[], writes)
}

const NEW: (u64, u64) = (0, 0);

#[test]
fn histories_with_an_order_are_accepted() {
    let first = || program(1, (1, 2), &[(0, NEW), (1, NEW)], &[0, 1]);
    let rows = [
        ("none", vec![]),
        ("a reader after", vec![first(), program(2, (3, 4), &[(0, (1, 1)), (1, (1, 1))], &[])]),
        ("a reader at once", vec![first(), program(2, (0, 4), &[(0, NEW), (1, NEW)], &[])]),
        ("never", vec![first(), unknown(2, 3, &[0]), program(3, (4, 5), &[(0, (1, 1))], &[])]),
        (
            "later",
            vec![
                first(),
                unknown(2, 3, &[0]),
                program(3, (4, 5), &[(0, (1, 1))], &[]),
                program(4, (6, 7), &[(0, (2, 2))], &[]),
            ],
        ),
        (
            "unseen between",
            vec![
                first(),
                unknown(2, 3, &[0]),
                unknown(3, 4, &[0]),
                program(4, (5, 6), &[(0, (3, 3))], &[0]),
                program(5, (7, 8), &[(0, (4, 4))], &[]),
            ],
        ),
        (
            "one of its keys is read early",
            vec![
                unknown(2, 1, &[0, 1]),
                program(3, (2, 3), &[(1, NEW)], &[]),
                program(4, (4, 5), &[(0, (1, 2))], &[]),
            ],
        ),
        (
            "the order of the answers is another one",
            vec![program(1, (1, 9), &[(0, (1, 2))], &[0]), program(2, (2, 8), &[(0, NEW)], &[0])],
        ),
    ];
    for (name, history) in rows {
        assert_eq!(check(&history), Ok(()), "{name}");
    }
}

#[test]
fn histories_without_an_order_are_refused() {
    let first = || program(1, (1, 2), &[(0, NEW), (1, NEW)], &[0, 1]);
    let mut differs = program(2, (3, 4), &[(0, (1, 1))], &[]);
    differs.seen[0].member = Some(Stamp::default());
    let rows = [
        ("member differs", vec![first(), differs]),
        ("precede", vec![first(), program(2, (3, 4), &[(0, NEW)], &[])]),
        ("precede", vec![first(), program(2, (0, 4), &[(0, NEW), (1, (1, 1))], &[])]),
        ("two programs wrote count 1", vec![first(), program(2, (3, 4), &[(0, NEW)], &[0])]),
        ("had no effect", vec![program(2, (3, 4), &[(0, (1, 1))], &[])]),
        ("had no effect", vec![first(), program(2, (3, 4), &[(2, (1, 1))], &[])]),
        ("two counts", vec![first(), program(2, (3, 4), &[(0, (2, 1))], &[])]),
        ("own write", vec![program(1, (1, 2), &[(0, (1, 1))], &[0])]),
        // A write that took effect is lost.
        (
            "precede",
            vec![
                first(),
                unknown(2, 3, &[0]),
                program(3, (4, 5), &[(0, (2, 2))], &[]),
                program(4, (6, 7), &[(0, (1, 1))], &[]),
            ],
        ),
        // It was read before it was called.
        ("precede", vec![first(), program(2, (3, 4), &[(0, (2, 3))], &[]), unknown(3, 5, &[0])]),
        // It took effect in part.
        (
            "precede",
            vec![
                first(),
                unknown(2, 3, &[0, 1]),
                program(3, (4, 5), &[(0, (2, 2)), (1, (1, 1))], &[]),
            ],
        ),
        (
            "precede",
            vec![unknown(2, 1, &[0, 1]), program(3, (2, 3), &[(0, (1, 2)), (1, NEW)], &[])],
        ),
        // Each of two programs wrote what the other one read.
        (
            "precede",
            vec![
                program(1, (1, 9), &[(0, NEW), (1, NEW)], &[0]),
                program(2, (2, 8), &[(0, NEW), (1, NEW)], &[1]),
            ],
        ),
    ];
    for (row, (fault, history)) in rows.into_iter().enumerate() {
        let found = check(&history).unwrap_err();
        assert!(found.contains(fault), "row {row}: {found}");
    }
}

const KEYS_USED: u64 = 4;

/// Draws programs that take effect one after the other. Their calls and returns overlap; some lose their
/// answers, and some of these have no effect.
fn draw_history(prng: &mut Prng) -> Vec<RunProgram> {
    let mut state = BTreeMap::<u8, Stamp>::new();
    let mut history = Vec::new();
    for id in 1..=2 + prng.below(40) {
        let keys: BTreeSet<u8> =
            (0..1 + prng.below(3)).map(|_| prng.below(KEYS_USED) as u8).collect();
        let writes: BTreeSet<u8> = keys.iter().copied().filter(|_| prng.coin()).collect();
        let (is_lost, at) = (prng.below(5) == 0, id * 100);
        if is_lost && writes.is_empty() {
            continue;
        }
        let before = keys.iter().map(|key| (*key, state.get(key).copied().unwrap_or_default()));
        let before: Vec<(u8, Stamp)> = before.collect();
        if !is_lost || prng.coin() {
            for (key, stamp) in before.iter().filter(|(key, _)| writes.contains(key)) {
                state.insert(*key, Stamp { count: stamp.count + 1, writer: id });
            }
        }
        let seen = before.into_iter().filter(|_| !is_lost);
        let mut member = |before| Some(before).filter(|_| prng.coin());
        let seen = seen.map(|(key, before)| SeenKey { key, before, member: member(before) });
        let seen: Vec<SeenKey> = seen.collect();
        // Unique: times of programs differ in the last two digits.
        let called = (at - prng.below(9).min(id - 1) * 100) * 100 + id % 100;
        let returned = (at + prng.below(9) * 100) * 100 + 50 + id % 50;
        let returned = (!is_lost).then_some(returned);
        history.push(RunProgram { id, called, returned, slot: 1, writes, seen });
    }
    history
}

#[test]
fn random_serial_histories_are_accepted_and_each_corruption_is_refused() {
    let mut corrupted = BTreeMap::<u64, u64>::new();
    for seed in 0..8_000 {
        let prng = &mut Prng::new(seed);
        let history = draw_history(prng);
        assert_eq!(check(&history), Ok(()), "seed {seed}: {history:?}");
        let kind = seed % 5;
        let mut wrong = history.clone();
        if corrupt(&mut wrong, kind, prng).is_some() {
            assert!(check(&wrong).is_err(), "seed {seed}, kind {kind}: {history:?} and {wrong:?}");
            *corrupted.entry(kind).or_default() += 1;
        }
    }
    assert!(corrupted.len() == 5 && corrupted.values().all(|count| *count > 80), "{corrupted:?}");
}

/// Makes one answer wrong. Returns `None` if the history has none that can be.
fn corrupt(history: &mut Vec<RunProgram>, kind: u64, prng: &mut Prng) -> Option<()> {
    let all = history.iter().enumerate();
    let seen = all.flat_map(|(at, it)| (0..it.seen.len()).map(move |seen| (at, seen)));
    let known = |(at, seen): &(usize, usize)| history[*at].seen[*seen].before.count > 0;
    let seen: Vec<(usize, usize)> = seen.filter(known).collect();
    let (at, which) = *seen.get(prng.below(seen.len() as u64) as usize)?;
    let SeenKey { key, before, .. } = history[at].seen[which];
    let writer = history.iter().position(|it| it.id == before.writer)?;
    let of_writer = history[writer].seen.iter().find(|it| it.key == key).map(|it| it.before);
    let set = |history: &mut Vec<RunProgram>, stamp: Stamp| {
        history[at].seen[which] = SeenKey { key, before: stamp, member: None };
    };
    match kind {
        0 => history[at].seen[which].member = Some(Stamp { count: before.count + 1, ..before }),
        // A write that returned before is not seen.
        1 => {
            history[writer].returned.filter(|returned| *returned < history[at].called)?;
            set(history, of_writer?);
        }
        // A write is seen of which the other part is not.
        2 => {
            let is_shared = |it: &SeenKey| it.key != key && it.before.writer == before.writer;
            history[at].seen.iter().find(|it| is_shared(it))?;
            set(history, of_writer?);
        }
        // The writer had no effect.
        3 => drop(history.remove(writer)),
        // A write is seen before it happened.
        _ => {
            let later =
                history.iter().rev().find(|it| it.called > history[at].returned.unwrap())?;
            let stamp = Stamp { count: before.count, writer: later.id };
            set(history, stamp);
        }
    }
    Some(())
}
