//! Requests that fail, of which the answer is lost, or of which the answers contradict each other.

use super::*;
use object_store::ObjectStoreExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stele_types::Error;

/// Returns whether this is one of the first `times` calls for a path with this part.
fn first_times(times: u64, part: &'static str) -> impl Fn(&Path) -> bool + Send + Sync {
    let calls = AtomicU64::new(0);
    move |path| path.as_ref().contains(part) && calls.fetch_add(1, Ordering::Relaxed) < times
}

#[tokio::test(start_paused = true)]
async fn a_create_of_which_the_answer_was_lost_succeeds() {
    let is_lost = first_times(1, "log");
    let store = Hooked::at_once(Arc::default(), move |at, path| {
        if at == At::AfterPut && is_lost(path) { Err(failure("no answer")) } else { Ok(()) }
    });
    let repository = opened(Arc::new(store)).await;
    repository.put_log(&log(1, 0, None)).await.unwrap();
    assert_eq!(repository.log(RunId(1), LogSeq(0)).await.unwrap(), log(1, 0, None));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_reports_an_object_it_does_not_have_is_asked_again() {
    let is_wrong = first_times(2, "log");
    let store = Hooked::at_once(Arc::default(), move |at, path| {
        let source = "two writers at once".into();
        match at == At::BeforePut && is_wrong(path) {
            true => Err(StoreError::AlreadyExists { path: path.to_string(), source }),
            false => Ok(()),
        }
    });
    let repository = opened(Arc::new(store)).await;
    repository.put_log(&log(1, 0, None)).await.unwrap();
    assert_eq!(repository.log(RunId(1), LogSeq(0)).await.unwrap(), log(1, 0, None));
}

#[tokio::test(start_paused = true)]
async fn a_slow_down_of_minutes_is_waited_for_and_reported() {
    let start = tokio::time::Instant::now();
    let slow_for = Duration::from_secs(300);
    let store = Hooked::at_once(Arc::default(), move |_, path| {
        let is_slow = path.as_ref().contains("runs") && start.elapsed() < slow_for;
        if is_slow { Err(failure("503 SlowDown")) } else { Ok(()) }
    });
    let lines = Arc::new(Mutex::new(Vec::new()));
    let seen = lines.clone();
    let notice: super::super::Notice =
        Arc::new(move |line| seen.lock().unwrap().push(line.to_owned()));
    let options = OpenOptions { notice: Some(notice), ..OpenOptions::default() };
    let repository = opened_with(Arc::new(store.clone()), options).await;
    repository.put_log(&log(1, 0, None)).await.unwrap();
    assert!(start.elapsed() >= slow_for);
    let lines = lines.lock().unwrap();
    assert!(lines.len() > 10 && lines.iter().all(|line| line.contains("SlowDown")), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_stays_slow_ends_the_request_with_its_error() {
    let store = Hooked::at_once(Arc::default(), move |_, path| {
        if path.as_ref().contains("runs") { Err(failure("503 SlowDown")) } else { Ok(()) }
    });
    let repository = opened(Arc::new(store)).await;
    let start = tokio::time::Instant::now();
    let error = repository.put_log(&log(1, 0, None)).await.unwrap_err();
    assert!(error.to_string().contains("SlowDown"), "{error}");
    let limit = OpenOptions::default().retry_for;
    assert!(start.elapsed() <= limit && start.elapsed() > limit / 2);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_in_the_middle_is_never_taken_for_a_shorter_one() {
    let inner: Arc<InMemory> = Arc::default();
    let repository = opened(inner.clone()).await;
    for seq in 0..50 {
        repository.put_log(&log(1, seq, None)).await.unwrap();
    }
    let listed = AtomicU64::new(0);
    let store = Hooked::at_once(inner, move |at, _| {
        let is_failing = at == At::Listed && listed.fetch_add(1, Ordering::Relaxed) == 20;
        if is_failing { Err(failure("reset")) } else { Ok(()) }
    });
    let repository = opened(Arc::new(store)).await;
    assert_eq!(repository.last_log(RunId(1)).await.unwrap(), Some(LogSeq(49)));
}

#[tokio::test(start_paused = true)]
async fn a_denied_request_is_not_repeated() {
    let store = Hooked::at_once(Arc::default(), move |_, path| {
        if path.as_ref().contains("runs") { Err(killed()) } else { Ok(()) }
    });
    let repository = opened(Arc::new(store)).await;
    let start = tokio::time::Instant::now();
    let error = repository.put_log(&log(1, 0, None)).await.unwrap_err();
    assert!(error.to_string().contains("check the keys"), "{error}");
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn an_object_is_never_replaced() {
    let repository = opened(Arc::<InMemory>::default()).await;
    repository.put_log(&log(1, 0, None)).await.unwrap();
    repository.put_log(&log(1, 0, None)).await.unwrap();
    let error = repository.put_log(&log(1, 0, Some(3))).await.unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error}");
    assert_eq!(repository.log(RunId(1), LogSeq(0)).await.unwrap(), log(1, 0, None));
}

#[tokio::test]
async fn a_log_object_needs_the_one_before_it() {
    let inner: Arc<InMemory> = Arc::default();
    let repository = opened(inner.clone()).await;
    assert!(matches!(repository.put_log(&log(1, 1, None)).await, Err(Error::Refused(_))));
    repository.put_log(&log(1, 0, None)).await.unwrap();
    repository.put_log(&log(1, 1, None)).await.unwrap();
    assert!(repository.put_log(&log(1, 3, None)).await.is_err());
    assert!(repository.put_log(&log(2, 2, None)).await.is_err());
    // Another process continues.
    let repository = opened(inner).await;
    repository.put_log(&log(1, 2, None)).await.unwrap();
    assert_eq!(repository.last_log(RunId(1)).await.unwrap(), Some(LogSeq(2)));
    assert_eq!(repository.last_log(RunId(2)).await.unwrap(), None);
    assert_eq!(repository.new_run().await.unwrap(), RunId(2));
}

#[tokio::test]
async fn a_moment_needs_the_log_object_that_ends_at_it() {
    let repository = opened(Arc::<InMemory>::default()).await;
    assert!(matches!(repository.put_moment(&moment(1, 4, 0)).await, Err(Error::Refused(_))));
    repository.put_log(&log(1, 0, Some(4))).await.unwrap();
    repository.put_moment(&moment(1, 4, 0)).await.unwrap();
    assert_eq!(repository.moment(RunId(1), MomentId(4)).await.unwrap(), moment(1, 4, 0));
}

#[tokio::test]
async fn unchanged_chunks_are_not_sent_again() {
    let repository = opened(Arc::<InMemory>::default()).await;
    let begun = repository.begin_base(RunId(1), BaseSeq(0)).await.unwrap();
    let (first, is_sent) = repository.put_chunk(&begun, &chunk(1)).await.unwrap();
    assert!(is_sent);
    let sent_bytes = repository.sent_bytes();
    let (second, is_sent) = repository.put_chunk(&begun, &chunk(1)).await.unwrap();
    assert!(!is_sent && first == second && repository.sent_bytes() == sent_bytes);
    assert_eq!(repository.chunk(&first.name).await.unwrap(), chunk(1));
}

#[tokio::test]
async fn what_a_store_lists_beside_a_backup_is_counted_and_left_alone() {
    let inner: Arc<InMemory> = Arc::default();
    let repository = opened(inner.clone()).await;
    let other = Path::from("some/place/runs/notes.txt");
    inner.put(&other, "mine".into()).await.unwrap();
    repository.put_log(&log(1, 0, None)).await.unwrap();
    let report = repository.verify(true).await.unwrap();
    assert_eq!((report.unknown_objects, report.damaged), (1, 0));
    assert!(inner.head(&other).await.is_ok());
}
