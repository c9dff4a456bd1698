//! Speed of a restore beside the write speed of the disk, both in bytes of all replicas: a backup is made of
//! random pairs, then restored into new clusters with `stele restore`.

use crate::peers::disk;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use stele_backup::format::{
    Base, BaseSeq, Chunk, Chunker, Cut, Family, LogObject, LogSeq, Moment, Pair, Part, RunId,
};
use stele_backup::{BegunBase, OpenOptions, Repository};
use stele_types::{ClusterId, KeyRange, LogIndex, MomentId, Prng, RegionId, Term};
use tokio::runtime::Runtime;
use xtask::flags::Flags;
use xtask::programs::{self, STELE};
use xtask::servers::{self, with_servers};
use xtask::workspace::Workspace;

const RUN: RunId = RunId(1);

/// What a backup is made of.
struct Load {
    bytes: u64,
    value_bytes: usize,
}

/// Measures rounds of a restore, with the disk before and after each.
pub(crate) fn run(workspace: &Workspace, mut flags: Flags) -> Result<()> {
    let load = Load {
        bytes: flags.number("--mib", 4096)? << 20,
        value_bytes: flags.number("--value-bytes", 4096)? as usize,
    };
    let (nodes, rounds) = (flags.number("--nodes", 3)? as usize, flags.number("--rounds", 3)?);
    let regions = flags.number("--regions", 12)?;
    let is_release = !flags.switch("--dev");
    flags.end()?;
    let stele = programs::build(workspace, STELE, is_release)?;
    let work = tempfile::tempdir_in(&workspace.target)?;
    let from = work.path().join("backup");
    let pair_bytes = Runtime::new()?.block_on(make(&from, &load))?;
    for round in 1..=rounds {
        let before = disk::bytes_per_second(work.path(), nodes)?;
        let cluster = work.path().join(format!("cluster-{round}"));
        std::fs::create_dir(&cluster)?;
        let options = servers::Options { nodes, ..servers::Options::default() };
        let seconds = with_servers(&stele, &cluster, &options, |running| {
            restored(&stele, &from, &running.addresses.join(","), regions)
        })?;
        std::fs::remove_dir_all(&cluster)?;
        let after = disk::bytes_per_second(work.path(), nodes)?;
        let written = pair_bytes as f64 * nodes as f64 / seconds;
        let disk = f64::midpoint(before, after);
        println!(
            r#"{{"round": {round}, "bytes": {pair_bytes}, "nodes": {nodes}, "seconds": {seconds:.2}, "replica_bytes_per_second": {written:.0}, "disk_bytes_per_second": {disk:.0}, "share": {:.3}}}"#,
            written / disk
        );
    }
    Ok(())
}

/// Restores into a cluster; returns the seconds, with the time for its regions.
fn restored(stele: &Path, from: &Path, addresses: &str, regions: u64) -> Result<f64> {
    let started = Instant::now();
    let mut command = Command::new(stele);
    command.args(["restore", "--from"]).arg(from).args(["--cluster", addresses]);
    command.args(["--regions", &regions.to_string()]);
    ensure!(command.status()?.success(), "the restore failed");
    Ok(started.elapsed().as_secs_f64())
}

/// Makes a backup of pairs with values that cannot be compressed. Returns their bytes.
async fn make(dir: &Path, load: &Load) -> Result<u64> {
    let url = dir.to_str().context("the folder has no name in UTF-8")?;
    let repository = Repository::create_or_open(url, &OpenOptions::default(), ClusterId(1)).await?;
    let (seq, mut rng) = (BaseSeq(0), Prng::new(1));
    let begun = repository.begin_base(RUN, seq).await?;
    let (mut chunker, mut bytes) = (Chunker::default(), 0);
    let mut part = Part {
        family: Family::Default,
        range: KeyRange::all(),
        region: RegionId(2),
        index: LogIndex(9),
        chunks: Vec::new(),
    };
    for number in 0u64.. {
        let pair = Pair {
            key: format!("user{number:012}").into(),
            value: value(&mut rng, load.value_bytes),
            expires_at_s: 0,
        };
        bytes += (pair.key.len() + pair.value.len()) as u64;
        put(&repository, &begun, &mut part, chunker.push(pair)).await?;
        if bytes >= load.bytes {
            break;
        }
    }
    put(&repository, &begun, &mut part, chunker.finish()).await?;
    let base = Base { run: RUN, seq, parts: vec![part], ..Base::default() };
    repository.put_base(begun, &base).await?;
    end(&repository).await?;
    Ok(bytes)
}

fn value(rng: &mut Prng, bytes: usize) -> Bytes {
    let mut value = Vec::with_capacity(bytes + 8);
    while value.len() < bytes {
        value.extend_from_slice(&rng.draw().to_le_bytes());
    }
    value.truncate(bytes);
    value.into()
}

async fn put(
    repository: &Repository,
    begun: &BegunBase,
    part: &mut Part,
    chunk: Option<Chunk>,
) -> Result<()> {
    if let Some(chunk) = chunk {
        part.chunks.push(repository.put_chunk(begun, &chunk).await?.0);
    }
    Ok(())
}

/// Writes a log object without records, and the moment at its end.
async fn end(repository: &Repository) -> Result<()> {
    let number = MomentId(1);
    let log = LogObject { run: RUN, moment: Some(number), ..LogObject::default() };
    repository.put_log(&log).await?;
    let cut =
        Cut { range: KeyRange::all(), region: RegionId(2), term: Term(6), index: LogIndex(9) };
    let moment = Moment {
        number,
        run: RUN,
        last_log: LogSeq(0),
        vector: vec![cut],
        clocks_unix_ms: vec![(1, 1_000)],
        program: "lab".to_owned(),
        level: 2,
    };
    Ok(repository.put_moment(&moment).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_has_the_bytes_that_are_asked_for_and_can_be_restored() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("backup");
        let load = Load { bytes: 3 << 20, value_bytes: 1000 };
        Runtime::new().unwrap().block_on(async {
            let bytes = make(&from, &load).await.unwrap();
            assert!((3 << 20..4 << 20).contains(&bytes), "{bytes}");
            let url = from.to_str().unwrap();
            let repository = Repository::open(url, &OpenOptions::default()).await.unwrap();
            let base = repository.restorable().await.unwrap().remove(0).base.unwrap();
            assert_eq!(base.pairs, bytes / 1016);
        });
    }
}
