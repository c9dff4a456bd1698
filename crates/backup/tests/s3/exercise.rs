//! All operations of a repository, on any store.

use stele_backup::Repository;
use stele_backup::format::{
    Base, BaseSeq, Chunk, ChunkRef, Cut, Family, LogObject, LogSeq, Moment, Pair, Part, Record,
    RunId, Write,
};
use stele_types::{KeyRange, LogIndex, MomentId, Prng, RegionId, Result, Term};

fn chunk(number: u64, prng: &mut Prng) -> Chunk {
    let pair = |at: u64, value: u64| Pair {
        key: format!("{number:02}/{at:04}").into(),
        value: value.to_le_bytes().repeat(40).into(),
        expires_at_s: value % 2,
    };
    Chunk { pairs: (0..100).map(|at| pair(at, prng.draw())).collect() }
}

pub(crate) fn log(seq: u64) -> LogObject {
    let key = format!("key/{seq}");
    let record = Record {
        region: RegionId(1),
        index: LogIndex(seq),
        family: Family::Default,
        write: Write::Put(Pair { key: key.into(), value: vec![7; 5000].into(), expires_at_s: 0 }),
    };
    let (run, seq, moment) = (RunId(1), LogSeq(seq), Some(MomentId(seq)));
    LogObject { run, seq, records: vec![record; 20], token_after: "token".into(), moment }
}

fn moment(seq: u64) -> Moment {
    let cut =
        Cut { range: KeyRange::all(), region: RegionId(1), term: Term(5), index: LogIndex(seq) };
    Moment {
        number: MomentId(seq),
        run: RunId(1),
        last_log: LogSeq(seq),
        vector: vec![cut],
        clocks_unix_ms: vec![(1, seq)],
        program: "0.2.0".to_owned(),
        level: 1,
    }
}

async fn put_base(
    repository: &Repository,
    seq: u64,
    log: (u64, u64),
    chunks: &[Chunk],
) -> Result<()> {
    let (run, seq) = (RunId(1), BaseSeq(seq));
    let begun = repository.begin_base(run, seq).await?;
    let mut references: Vec<ChunkRef> = Vec::new();
    for chunk in chunks {
        references.push(repository.put_chunk(&begun, chunk).await?.0);
    }
    let part = Part {
        family: Family::Default,
        range: KeyRange::all(),
        region: RegionId(1),
        index: LogIndex(1),
        chunks: references,
    };
    let (log_from, log_complete) = (LogSeq(log.0), LogSeq(log.1));
    let base = Base { run, seq, log_from, log_complete, parts: vec![part], ..Base::default() };
    repository.put_base(begun, &base).await
}

/// Writes, checks and prunes in an empty repository. Every answer must be right whatever the store does.
pub(crate) async fn write_check_prune(repository: &Repository, prng: &mut Prng) -> Result<()> {
    let chunks: Vec<Chunk> = (0..10).map(|number| chunk(number, prng)).collect();
    put_base(repository, 0, (0, 1), &chunks[..6]).await?;
    for seq in 0..6 {
        repository.put_log(&log(seq)).await?;
        repository.put_moment(&moment(seq)).await?;
    }
    put_base(repository, 1, (3, 4), &chunks[4..]).await?;
    let report = repository.verify(true).await?;
    assert_eq!((report.damaged, report.restorable, report.chunks), (0, 5, 10), "{report:?}");
    let pruned = repository.prune(MomentId(4), false).await?;
    assert_eq!((pruned.moments, pruned.bases, pruned.log_objects), (4, 1, 3));
    assert_eq!(pruned.chunks, 4);
    let report = repository.verify(true).await?;
    assert_eq!((report.damaged, report.restorable, report.chunks), (0, 2, 6), "{report:?}");
    let base = repository.restorable().await?[0].base.unwrap();
    for (reference, chunk) in repository.base(base.name).await?.chunks().zip(&chunks[4..]) {
        assert_eq!(repository.chunk(&reference.name).await?, *chunk);
    }
    assert_eq!(repository.log(RunId(1), LogSeq(5)).await?, log(5));
    Ok(())
}

/// Checks that of many writers of one name one wins, and that another cluster is refused.
#[allow(dead_code, reason = "the server with faults counts requests")]
pub(crate) async fn refuse_others(url: &str, repository: &Repository) -> Result<()> {
    let options = stele_backup::OpenOptions::default();
    let other = Repository::create_or_open(url, &options, stele_types::ClusterId(8)).await;
    assert!(matches!(other, Err(stele_types::Error::WrongStore { .. })), "{other:?}");
    let racing = (0..16).map(|number| LogObject { token_after: vec![number].into(), ..log(6) });
    let racing: Vec<LogObject> = racing.collect();
    let puts = racing.iter().map(|log| repository.put_log(log));
    let outcomes = futures_util::future::join_all(puts).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
    let won = outcomes.iter().position(Result::is_ok).unwrap_or_default();
    assert_eq!(repository.log(RunId(1), LogSeq(6)).await?, racing[won]);
    Ok(())
}
