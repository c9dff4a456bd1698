//! Prunes that are killed, and prunes beside a running backup.

use super::super::catalogue::Restorable;
use super::*;
use object_store::ObjectStoreExt;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stele_types::Error;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().unwrap().block_on(future)
}

/// Writes runs of log objects with moments, and bases at random places beside them.
async fn random_repository(repository: &Repository, prng: &mut Prng) {
    let mut number = 100;
    let runs = 1 + prng.below(3);
    for run in 1..=runs {
        let mut begun: Option<(BegunBase, u64)> = None;
        let mut bases = 0;
        for seq in 0..4 + prng.below(12) {
            if begun.is_none() && prng.below(3) == 0 {
                let base = repository.begin_base(RunId(run), BaseSeq(bases)).await.unwrap();
                begun = Some((base, seq));
                bases += 1;
            }
            let is_moment = prng.coin();
            number += u64::from(is_moment);
            repository.put_log(&log(run, seq, is_moment.then_some(number))).await.unwrap();
            if is_moment {
                repository.put_moment(&moment(run, number, seq)).await.unwrap();
            }
            if prng.coin()
                && let Some((begun, log_from)) = begun.take()
            {
                let numbers: Vec<u64> = (0..8).filter(|_| prng.coin()).collect();
                let chunks = put_chunks(repository, &begun, numbers).await.unwrap();
                let base = base(run, begun.seq().0, (log_from, seq + 1), chunks);
                repository.put_base(begun, &base).await.unwrap();
            }
        }
        // A base that is not complete keeps its mark until the next one begins.
    }
}

/// Reads all that a moment needs.
async fn check(repository: &Repository, moment: &Restorable) {
    let summary = moment.base.unwrap();
    let base = repository.base(summary.name).await.unwrap();
    for chunk in base.chunks() {
        repository.chunk(&chunk.name).await.unwrap();
    }
    for seq in base.log_from.0..=moment.last_log.0 {
        repository.log(moment.run, LogSeq(seq)).await.unwrap();
    }
}

async fn check_kept(repository: &Repository, kept: &[Restorable]) {
    let restorable = repository.restorable().await.unwrap();
    for moment in kept {
        let found = restorable.iter().find(|found| found.number == moment.number);
        check(repository, found.unwrap_or_else(|| panic!("moment {} is lost", moment.number)))
            .await;
    }
}

/// Copies all objects.
async fn copy(store: &InMemory) -> Arc<InMemory> {
    let copied = InMemory::new();
    let listed: Vec<ObjectMeta> = store.list(None).try_collect().await.unwrap();
    for meta in listed {
        let bytes = store.get(&meta.location).await.unwrap().bytes().await.unwrap();
        copied.put(&meta.location, bytes.into()).await.unwrap();
    }
    Arc::new(copied)
}

/// Kills a prune before its delete of this number. Returns whether it had fewer.
async fn prune_killed_at(inner: &Arc<InMemory>, keep_from: MomentId, kill_at: u64) -> bool {
    let deletes = AtomicU64::new(0);
    let is_killed = AtomicBool::new(false);
    let store = Hooked::at_once(inner.clone(), move |at, _| {
        let counted = u64::from(at == At::BeforeDelete);
        if deletes.fetch_add(counted, Ordering::Relaxed) + counted > kill_at {
            is_killed.store(true, Ordering::Relaxed);
        }
        if is_killed.load(Ordering::Relaxed) { Err(killed()) } else { Ok(()) }
    });
    let repository = opened(Arc::new(store)).await;
    repository.prune(keep_from, false).await.is_ok()
}

#[test]
fn a_prune_that_is_killed_after_any_delete_leaves_every_kept_moment() {
    for_seeds(0..12, |prng| {
        block_on(async {
            let inner: Arc<InMemory> = Arc::default();
            random_repository(&opened(inner.clone()).await, prng).await;
            let restorable = opened(inner.clone()).await.restorable().await.unwrap();
            if restorable.is_empty() {
                return;
            }
            let goes_on = goes_on(&opened(inner.clone()).await).await;
            let first = prng.below(restorable.len() as u64) as usize;
            let kept = &restorable[first..];
            let keep_from = kept[0].number;
            for kill_at in 0.. {
                let inner = copy(&inner).await;
                let is_ended = prune_killed_at(&inner, keep_from, kill_at).await;
                let repository = opened(inner).await;
                check_kept(&repository, kept).await;
                repository.prune(keep_from, !is_ended).await.unwrap();
                check_kept(&repository, kept).await;
                check_pruned(&repository, keep_from, goes_on).await;
                if is_ended {
                    break;
                }
            }
        });
    });
}

/// Whether the next moment of the last run will be restorable.
async fn goes_on(repository: &Repository) -> bool {
    let run = *repository.runs().await.unwrap().last().unwrap();
    let next = repository.last_log(run).await.unwrap().unwrap().next();
    let bases = repository.bases(run).await.unwrap();
    bases.iter().any(|base| base.log_complete <= next)
}

/// Nothing that only earlier moments need is left, nothing is damaged, and the last run goes on if it would have.
async fn check_pruned(repository: &Repository, keep_from: MomentId, goes_on: bool) {
    let moments = repository.moments().await.unwrap();
    assert!(moments.iter().all(|moment| moment.number >= keep_from));
    let report = repository.verify(true).await.unwrap();
    assert_eq!(report.damaged, 0, "{report:?}");
    let run = *repository.runs().await.unwrap().last().unwrap();
    let next = repository.last_log(run).await.unwrap().unwrap().next();
    let number = moments.last().map_or(0, |moment| moment.number.0) + 1;
    repository.put_log(&log(run.0, next.0, Some(number))).await.unwrap();
    repository.put_moment(&moment(run.0, number, next.0)).await.unwrap();
    let bases = repository.bases(run).await.unwrap();
    if goes_on {
        let restorable = repository.restorable().await.unwrap();
        check(repository, restorable.last().unwrap()).await;
        assert_eq!(restorable.last().unwrap().number, MomentId(number));
    }
    let seq = bases.last().map_or(0, |base| base.name.seq.0 + 1);
    repository.begin_base(run, BaseSeq(seq)).await.unwrap();
}

#[test]
fn a_prune_deletes_what_only_earlier_moments_need() {
    block_on(async {
        let inner: Arc<InMemory> = Arc::default();
        let repository = opened(inner.clone()).await;
        for (seq, chunks) in [(0, 0..3), (1, 2..5), (2, 4..6)] {
            let begun = repository.begin_base(RunId(1), BaseSeq(seq)).await.unwrap();
            let chunks = put_chunks(&repository, &begun, chunks).await.unwrap();
            repository
                .put_base(begun, &base(1, seq, (seq * 2, seq * 2 + 1), chunks))
                .await
                .unwrap();
            for at in [seq * 2, seq * 2 + 1] {
                repository.put_log(&log(1, at, Some(at))).await.unwrap();
                repository.put_moment(&moment(1, at, at)).await.unwrap();
            }
        }
        let refused = repository.prune(MomentId(0), false).await;
        assert!(matches!(&refused, Err(Error::Refused(_))), "{refused:?}");
        assert_eq!(repository.moments().await.unwrap().len(), 6);
        let pruned = repository.prune(MomentId(3), false).await.unwrap();
        let counts = [pruned.moments, pruned.bases, pruned.log_objects, pruned.chunks];
        assert_eq!(counts, [3, 1, 2, 2]);
        assert!(pruned.bytes > 0 && !pruned.is_base_in_the_making);
        let again = repository.prune(MomentId(3), false).await.unwrap();
        assert_eq!(again, super::super::Pruned::default());
    });
}

/// Delays every request by a random number of steps, so that two processes overlap in many ways.
fn delayed(inner: &Arc<InMemory>, seed: u64) -> Hooked {
    let prng = Mutex::new(Prng::new(seed));
    Hooked::new(inner.clone(), move |_, _| {
        let steps = prng.lock().unwrap().below(6);
        Box::pin(async move {
            for _ in 0..steps {
                tokio::task::yield_now().await;
            }
            Ok(())
        })
    })
}

/// Makes a base of chunks to which no other base will refer. Returns whether it could begin.
async fn make_base(repository: &Repository) -> bool {
    match repository.begin_base(RunId(1), BaseSeq(9)).await {
        Ok(begun) => {
            let chunks = put_chunks(repository, &begun, 0..3).await.unwrap();
            repository.put_base(begun, &base(1, 9, (2, 3), chunks)).await.unwrap();
            true
        }
        Err(Error::Busy(_)) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_base_and_a_prune_never_both_begin() {
    let outcomes = Mutex::new(BTreeSet::new());
    for_seeds(0..300, |prng| {
        block_on(async {
            let inner: Arc<InMemory> = Arc::default();
            let repository = opened(inner.clone()).await;
            for (seq, chunks) in [(0, 0..3), (1, 3..6)] {
                let begun = repository.begin_base(RunId(1), BaseSeq(seq)).await.unwrap();
                let chunks = put_chunks(&repository, &begun, chunks).await.unwrap();
                repository.put_base(begun, &base(1, seq, (seq, seq), chunks)).await.unwrap();
                repository.put_log(&log(1, seq, Some(seq))).await.unwrap();
                repository.put_moment(&moment(1, seq, seq)).await.unwrap();
            }
            let (one, other) = (prng.draw(), prng.draw());
            let backup = opened(Arc::new(delayed(&inner, one))).await;
            let pruner = opened(Arc::new(delayed(&inner, other))).await;
            let late = prng.below(120);
            let begin_late = async {
                for _ in 0..late {
                    tokio::task::yield_now().await;
                }
                make_base(&backup).await
            };
            let (is_made, pruned) = tokio::join!(begin_late, pruner.prune(MomentId(1), false));
            let report = repository.verify(true).await.unwrap();
            assert_eq!(report.damaged, 0, "{report:?}");
            let is_pruned = !pruned.unwrap().is_base_in_the_making;
            outcomes.lock().unwrap().insert((is_made, is_pruned));
        });
    });
    if std::env::var_os("STELE_SEED").is_none() {
        // Each ends beside the other, and both one after the other.
        let outcomes = outcomes.into_inner().unwrap();
        assert!(outcomes.len() >= 3, "{outcomes:?}");
    }
}

#[test]
fn a_base_keeps_its_mark_until_it_is_there() {
    block_on(async {
        let inner: Arc<InMemory> = Arc::default();
        let seen = Arc::new(AtomicU64::new(0));
        let (marks, bases) = (inner.clone(), seen.clone());
        let store = Hooked::new(inner, move |at, path| {
            let is_base = at == At::AfterPut && path.as_ref().contains("/bases/");
            let mark = Path::from(path.as_ref().replace("/bases/", "/making/"));
            let (marks, bases) = (marks.clone(), bases.clone());
            Box::pin(async move {
                if is_base {
                    marks.head(&mark).await.unwrap();
                    bases.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            })
        });
        assert!(make_base(&opened(Arc::new(store)).await).await);
        assert_eq!(seen.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_prune_beside_another_or_after_a_killed_one_needs_to_take_over() {
    block_on(async {
        let inner: Arc<InMemory> = Arc::default();
        let repository = opened(inner.clone()).await;
        assert!(make_base(&repository).await);
        for seq in 0..4 {
            repository.put_log(&log(1, seq, Some(seq))).await.unwrap();
        }
        repository.put_moment(&moment(1, 3, 3)).await.unwrap();
        assert!(!prune_killed_at(&inner, MomentId(3), 0).await);
        assert!(matches!(repository.prune(MomentId(3), false).await, Err(Error::Busy(_))));
        let begun = repository.begin_base(RunId(1), BaseSeq(10)).await;
        assert!(matches!(begun, Err(Error::Busy(_))));
        repository.prune(MomentId(3), true).await.unwrap();
        repository.begin_base(RunId(1), BaseSeq(10)).await.unwrap();
    });
}
