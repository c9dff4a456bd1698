//! Objects in folders: what is written, read again, damaged and checked.

use super::super::place::{self, Folder};
use super::*;
use std::fs;
use std::path::PathBuf;
use stele_types::Error;

async fn in_folder(dir: &std::path::Path) -> Repository {
    let url = dir.to_str().unwrap();
    Repository::create_or_open(url, &OpenOptions::default(), CLUSTER).await.unwrap()
}

/// Writes a run with two bases, six log objects and two moments.
async fn fill(repository: &Repository) {
    for seq in 0..3 {
        repository.put_log(&log(1, seq, (seq == 2).then_some(10))).await.unwrap();
    }
    repository.put_moment(&moment(1, 10, 2)).await.unwrap();
    put_base(repository, 0, (0, 2), 0..4).await;
    for seq in 3..6 {
        repository.put_log(&log(1, seq, (seq == 5).then_some(11))).await.unwrap();
    }
    repository.put_moment(&moment(1, 11, 5)).await.unwrap();
    put_base(repository, 1, (3, 5), 2..6).await;
}

async fn put_base(
    repository: &Repository,
    seq: u64,
    log: (u64, u64),
    chunks: std::ops::Range<u64>,
) {
    let begun = repository.begin_base(RunId(1), BaseSeq(seq)).await.unwrap();
    let chunks = put_chunks(repository, &begun, chunks).await.unwrap();
    repository.put_base(begun, &base(1, seq, log, chunks)).await.unwrap();
}

fn files(dir: &std::path::Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

#[tokio::test]
async fn what_is_written_in_a_folder_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("new/place");
    fill(&in_folder(&place).await).await;
    let url = format!("file://{}", place.display());
    let repository = Repository::open(&url, &OpenOptions::default()).await.unwrap();
    assert_eq!(repository.cluster(), CLUSTER);
    assert_eq!(repository.runs().await.unwrap(), [RunId(1)]);
    let summaries = repository.bases(RunId(1)).await.unwrap();
    let second = repository.base(summaries[1].name).await.unwrap();
    let chunks: Vec<ChunkRef> = second.chunks().cloned().collect();
    assert_eq!(second, base(1, 1, (3, 5), chunks.clone()));
    assert_eq!(summaries[1].pairs, 12);
    for (reference, number) in chunks.iter().zip(2..) {
        assert_eq!(repository.chunk(&reference.name).await.unwrap(), chunk(number));
    }
    assert_eq!(repository.log(RunId(1), LogSeq(5)).await.unwrap(), log(1, 5, Some(11)));
    let restorable = repository.restorable().await.unwrap();
    let of = |at: usize| (restorable[at].number.0, restorable[at].base.unwrap().name.seq.0);
    assert_eq!([of(0), of(1)], [(10, 0), (11, 1)]);
    let report = repository.verify(true).await.unwrap();
    let counts = [report.runs, report.bases, report.moments, report.restorable, report.chunks];
    assert_eq!(counts, [1, 2, 2, 2, 6]);
    assert_eq!((report.damaged, report.log_objects), (0, 6));
}

#[tokio::test]
async fn every_missing_or_damaged_object_is_reported_with_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let repository = in_folder(dir.path()).await;
    fill(&repository).await;
    let files = files(dir.path());
    assert_eq!(files.len(), 1 + 6 + 6 + 2 + 2);
    for file in files.iter().filter(|file| !file.ends_with("repository")) {
        let name = file.strip_prefix(dir.path()).unwrap().to_str().unwrap();
        let whole = fs::read(file).unwrap();
        let mut changed = whole.clone();
        *changed.last_mut().unwrap() ^= 1;
        for damaged in [&changed[..], &whole[..whole.len() / 2], b""] {
            fs::write(file, damaged).unwrap();
            let report = repository.verify(true).await.unwrap();
            assert!(report.damaged > 0 && report.findings[0].contains(name), "{name}: {report:?}");
        }
        fs::remove_file(file).unwrap();
        let report = repository.verify(false).await.unwrap();
        let is_needed = name.starts_with("chunks") || name.contains("log");
        // Without its last object a run looks like one that ended before it, but for a moment or a base there.
        assert_eq!(report.damaged > 0, is_needed, "{name}: {report:?}");
        fs::write(file, &whole).unwrap();
    }
    assert_eq!(repository.verify(true).await.unwrap().damaged, 0);
}

#[tokio::test]
async fn a_damaged_base_leaves_the_moments_that_another_serves() {
    let dir = tempfile::tempdir().unwrap();
    let repository = in_folder(dir.path()).await;
    fill(&repository).await;
    let name = repository.bases(RunId(1)).await.unwrap()[1].name;
    fs::write(dir.path().join(name.to_string()), b"damaged").unwrap();
    let served: Vec<u64> = repository
        .restorable()
        .await
        .unwrap()
        .iter()
        .map(|moment| moment.base.unwrap().name.seq.0)
        .collect();
    assert_eq!(served, [0, 0]);
    // Its chunks are unknown, so none is deleted.
    assert!(matches!(
        repository.prune(MomentId(11), false).await,
        Err(Error::DamagedBackup { .. })
    ));
    assert_eq!(repository.moments().await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_chunk_under_the_reference_of_another_is_damage() {
    let repository = opened(Arc::<InMemory>::default()).await;
    let begun = repository.begin_base(RunId(1), BaseSeq(0)).await.unwrap();
    let mut chunks = put_chunks(&repository, &begun, 0..2).await.unwrap();
    chunks[1].pairs += 1;
    repository.put_base(begun, &base(1, 0, (0, 0), chunks)).await.unwrap();
    assert_eq!(repository.verify(false).await.unwrap().damaged, 0);
    assert_eq!(repository.verify(true).await.unwrap().damaged, 1);
}

#[tokio::test]
async fn a_place_of_another_cluster_or_of_no_backup_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().to_str().unwrap();
    let options = OpenOptions::default();
    let error = Repository::open(url, &options).await.unwrap_err();
    assert!(matches!(&error, Error::Invalid(text) if text.contains("holds no backup")), "{error}");
    drop(in_folder(dir.path()).await);
    let other = Repository::create_or_open(url, &options, ClusterId(8)).await;
    assert!(matches!(other, Err(Error::WrongStore { .. })));
    let missing = dir.path().join("missing");
    assert!(Repository::open(missing.to_str().unwrap(), &options).await.is_err());
    assert!(!missing.exists());
    for url in ["gs://bucket/x", "s3://", "s3://bucket/a//b", "s3://bucket/ä", "s3://b/../c"] {
        let error = Repository::open(url, &options).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{url}: {error}");
    }
}

#[test]
fn an_object_in_a_folder_is_synced_before_it_counts() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().to_str().unwrap();
    let store = place::connect(url, Folder::MustExist, &OpenOptions::default()).unwrap();
    // The library's own description is all that shows it without a failing device.
    let described = format!("{:?}", store.inner);
    assert!(described.contains("fsync: true"), "{described}");
}
