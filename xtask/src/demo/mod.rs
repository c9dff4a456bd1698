//! Import and export of real input: the import of a folder is killed three times and resumed. The
//! export must equal the input, and the store must report its space on the disk correctly.

mod import;
mod tree;

use crate::programs::{self, STELE};
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail, ensure};
use import::{Seeded, import_killed};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use tree::{DiskBytes, Tree};

/// Longest value that a store accepts.
const VALUE_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a full demonstration, at least.
const SOURCE_BYTES_MIN: u64 = 500_000_000;
/// Bytes of the short demonstration, at most: it leaves out large children of the folder.
const SHORT_BYTES_MAX: u64 = 300_000_000;
const KILLS: usize = 3;
/// Relative difference allowed between `du` and the space that the store reports.
const SPACE_TOLERANCE: f64 = 0.02;

#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Uses a smaller folder and the development build.
    pub short: bool,
    /// Folder to import; by default the Rust toolchain.
    pub from: Option<PathBuf>,
    /// Folder of the store and the export; by default below `target`, and removed at the end.
    pub work: Option<PathBuf>,
    /// Seed of the moments of the kills; by default from the clock.
    pub seed: Option<u64>,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let stele = programs::build(workspace, STELE, !options.short)?;
    let (source, tree) = source(options)?;
    let seed = options.seed.unwrap_or_else(import::seed_from_time);
    println!("source: {} files, {} bytes in {}", tree.files.len(), tree.bytes(), source.display());
    let replay = if options.short { " --short" } else { "" };
    println!("seed: {seed}; replay: cargo xtask demo-import{replay} --seed {seed}");
    let below = options.work.as_deref().unwrap_or(&workspace.target);
    std::fs::create_dir_all(below)?;
    let work = tempfile::tempdir_in(below).context("creating a work folder")?;
    let (store, out) = (work.path().join("store"), work.path().join("out"));

    let started = Instant::now();
    let mut seeded = Seeded::new(seed);
    import_killed(&stele, &source, &store, tree.bytes(), KILLS, &mut seeded)?;
    let import_s = started.elapsed().as_secs_f64();
    let report = verify(&stele, &store)?;
    let keys = report["keys"].as_u64();
    ensure!(keys == Some(tree.files.len() as u64), "{keys:?} keys for {} files", tree.files.len());
    let started = Instant::now();
    run_stele(&stele, &["export", "--store"], &store, &["--to"], Some(&out))?;
    let export_s = started.elapsed().as_secs_f64();

    let exported = Tree::read(&out)?;
    tree.compare(&source, &exported, &out)?;
    check_space(&store, &report)?;
    let rate = |seconds: f64| tree.bytes() as f64 / seconds / 1e6;
    println!("import: {import_s:.1} s with {KILLS} kills, {:.0} MB/s", rate(import_s));
    println!("export: {export_s:.1} s, {:.0} MB/s, byte-identical", rate(export_s));
    println!("demo-import: all holds");
    Ok(())
}

fn source(options: &Options) -> Result<(PathBuf, Tree)> {
    let root = match &options.from {
        Some(from) => from.clone(),
        None => sysroot()?,
    };
    let root = root.canonicalize().with_context(|| format!("{} does not exist", root.display()))?;
    let (root, tree) = storable(root)?;
    if !options.short {
        ensure!(
            tree.bytes() >= SOURCE_BYTES_MIN,
            "{} holds {} bytes; name a folder of at least {SOURCE_BYTES_MIN} with --from, or --short",
            root.display(),
            tree.bytes()
        );
        return Ok((root, tree));
    }
    smaller(root, tree)
}

/// Returns the folder itself if each of its files can be a value. Otherwise returns the largest
/// such folder in it: libraries of a toolchain can be too large.
fn storable(root: PathBuf) -> Result<(PathBuf, Tree)> {
    let tree = Tree::read(&root)?;
    let too_large = |path: &Path| {
        tree.files.iter().any(|(file, bytes)| *bytes > VALUE_BYTES_MAX && file.starts_with(path))
    };
    if !too_large(Path::new("")) {
        return Ok((root, tree));
    }
    let mut folders = tree.folder_bytes();
    folders.retain(|folder, _| !too_large(folder));
    let largest = folders.into_iter().max_by_key(|(_, bytes)| *bytes);
    let (folder, _) = largest.context("every folder holds a file that is too large")?;
    let root = root.join(folder);
    let tree = Tree::read(&root)?;
    Ok((root, tree))
}

/// Returns the folder itself if it is small enough, otherwise the largest small enough folder in
/// it.
fn smaller(root: PathBuf, tree: Tree) -> Result<(PathBuf, Tree)> {
    if tree.bytes() <= SHORT_BYTES_MAX {
        return Ok((root, tree));
    }
    let mut folders = tree.folder_bytes();
    folders.retain(|_, bytes| *bytes <= SHORT_BYTES_MAX);
    let largest = folders.into_iter().max_by_key(|(_, bytes)| *bytes);
    let (folder, _) = largest.context("no folder below is small enough")?;
    let root = root.join(folder);
    let tree = Tree::read(&root)?;
    Ok((root, tree))
}

fn sysroot() -> Result<PathBuf> {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let output =
        Command::new(rustc).args(["--print", "sysroot"]).output().context("asking rustc")?;
    ensure!(output.status.success(), "rustc --print sysroot failed");
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

fn run_stele(
    stele: &Path,
    before: &[&str],
    store: &Path,
    after: &[&str],
    last: Option<&Path>,
) -> Result<String> {
    let mut command = Command::new(stele);
    command.args(before).arg(store).args(after).args(last);
    let output = command.output().context("starting stele")?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("stele {before:?} ended with {}:\n{printed}{errors}", output.status);
    }
    Ok(printed)
}

/// Runs `stele verify --json`, which must succeed, and returns its report, the last line.
fn verify(stele: &Path, store: &Path) -> Result<serde_json::Value> {
    let started = Instant::now();
    let printed = run_stele(stele, &["verify", "--store"], store, &["--json"], None)?;
    let line = printed.lines().rfind(|line| line.starts_with('{'));
    let line = line.context("stele verify --json printed no object")?;
    println!("verify: clean in {:.1} s: {line}", started.elapsed().as_secs_f64());
    serde_json::from_str(line).context("reading the report of stele verify")
}

/// Compares the count of `du`, without what is held in reserve, with the space that the store reports.
fn check_space(store: &Path, report: &serde_json::Value) -> Result<()> {
    let reported = report["reported_bytes"].as_u64().context("the report has no reported_bytes")?;
    let counted = DiskBytes::of(store)?;
    let off = (counted.used() as f64 / reported as f64 - 1.0).abs();
    println!(
        "space: du {} of which {} held in reserve, reported {reported}, {:.3} % apart",
        counted.all,
        counted.held,
        off * 100.0
    );
    ensure!(off <= SPACE_TOLERANCE, "du and the reported space are too far apart");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_a_file_that_can_be_no_value_is_passed_over() {
        let place = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: u64| {
            let path = place.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::File::create(path).unwrap().set_len(bytes).unwrap();
        };
        file("docs/book/a", 5000);
        file("docs/b", 4000);
        let whole = storable(place.path().to_owned()).unwrap();
        assert_eq!(whole.0, place.path());
        file("lib/large", VALUE_BYTES_MAX + 1);
        file("lib/small/c", 3000);
        let (root, tree) = storable(place.path().to_owned()).unwrap();
        assert_eq!((root, tree.bytes()), (place.path().join("docs"), 9000));
    }

    #[test]
    fn space_far_from_the_report_fails_and_what_is_held_in_reserve_counts_nowhere() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("a"), vec![1; 1 << 20]).unwrap();
        std::fs::write(place.path().join("RESERVE"), vec![1; 1 << 20]).unwrap();
        let counted = DiskBytes::of(place.path()).unwrap().used();
        let report = |bytes: u64| serde_json::json!({ "reported_bytes": bytes });
        check_space(place.path(), &report(counted)).unwrap();
        assert!(check_space(place.path(), &report(counted * 103 / 100)).is_err());
        assert!(check_space(place.path(), &serde_json::json!({})).is_err());
    }
}
