//! Figures of the papers, measured again: `figures.toml` declares them and the measuring programs
//! of this repository provide the numbers. One page shows each number beside that of the paper.

mod bed;
mod device;
mod limits;
mod loop_device;
mod measure;
mod memory;
mod numbers;
mod page;
mod plan;
mod plot;
mod results;
mod slow;
mod spec;
mod test_bed;
mod throttle;
mod trial;
mod undo;

use anyhow::{Context, Result, anyhow, bail, ensure};
use bed::Bed;
use device::{Device, Profile};
use measure::{Measurement, Measuring, Programs, Results};
use memory::Cgroup;
use numbers::Shown;
use page::Header;
use plan::{Amounts, Job, jobs};
use serde_json::json;
use spec::{Figure, Program, Spec};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use undo::Undo;
use xtask::flags::Flags;
use xtask::programs::{self, LAB, STELE};
use xtask::workspace::Workspace;

pub(crate) use results::{Comparison, Digest, Kept, newest as newest_kept, rounded};

const ROUNDS: u64 = 5;
const LIBRARY: &str = "librocksdb.so";
const ETCD: &str = "etcd";
/// Bytes of a store's recycled files, besides its data.
const STORE_BYTES: u64 = 768 << 20;
/// Bytes on the disk for each byte of data, at most, during merges.
const AMPLIFICATION: u64 = 4;
/// Bytes on the disk that servers take under any load.
const SERVERS_BYTES: u64 = 6 << 30;

/// Options of `cargo lab figures`.
#[derive(Debug)]
pub(crate) struct Options {
    /// Beginnings of the names of figures, separated by commas; `None` chooses all.
    pub only: Option<String>,
    /// Series to measure, separated by commas; `None` chooses all.
    pub series: Option<String>,
    pub scale: f64,
    pub rounds: Option<u64>,
    pub is_tiny: bool,
    /// Measures the development build.
    pub is_dev: bool,
    pub profile: Profile,
    pub work: Option<PathBuf>,
    pub out: Option<PathBuf>,
    pub etcd: Option<PathBuf>,
}

impl Options {
    fn from(mut flags: Flags) -> Result<Self> {
        let is_tiny = flags.switch("--tiny");
        let path = |text: Option<String>| text.map(PathBuf::from);
        let profile = flags.value("--device")?;
        let options = Self {
            only: flags.value("--only")?,
            series: flags.value("--series")?,
            scale: flags.value("--scale")?.map_or(Ok(1.0), |text| text.parse())?,
            rounds: flags.value("--rounds")?.map(|text| text.parse()).transpose()?,
            is_tiny,
            is_dev: flags.switch("--dev") || is_tiny,
            profile: profile.map_or(Ok(Profile::AsIs), |text| Profile::parse(&text))?,
            work: path(flags.value("--work")?),
            out: path(flags.value("--out")?),
            etcd: path(flags.value("--etcd")?),
        };
        flags.end()?;
        ensure!(
            options.scale > 0.0 && options.scale.is_finite(),
            "--scale must be a positive number"
        );
        ensure!(options.rounds != Some(0), "--rounds must be at least 1");
        Ok(options)
    }
}

/// Measures the figures and writes the page. Fails if a declared series has no number.
pub(crate) fn run(workspace: &Workspace, flags: Flags) -> Result<()> {
    let options = &Options::from(flags)?;
    let spec = declared(&workspace.root)?;
    let figures = chosen(&spec, options.only.as_deref())?;
    let has_rocksdb = has_rocksdb();
    let is_wanted = |series: &str| {
        options.series.as_ref().is_none_or(|only| only.split(',').any(|it| it == series))
    };
    let is_there = |series: &str| match series {
        _ if !is_wanted(series) => false,
        ETCD => options.etcd.is_some(),
        _ => has_rocksdb || !spec.rocksdb.iter().any(|it| it == series),
    };
    let amounts = Amounts { scale: options.scale, is_tiny: options.is_tiny };
    let rounds = options.rounds.unwrap_or(if options.is_tiny { 1 } else { ROUNDS });
    let mut jobs = jobs(&spec, &figures, amounts, is_there);
    let left_out = left_out(&spec, &figures, options, has_rocksdb)?;
    let mut header = Header { left_out, ..Header::default() };

    let programs = Programs::build(workspace, options, &jobs, has_rocksdb)?;
    let mut undo = Undo::new()?;
    let work = options.work.clone().unwrap_or_else(|| workspace.target.join("figures-work"));
    let bytes = disk_bytes(&spec, &jobs, amounts)?;
    let device = device::prepare(options.profile, &work, bytes, &mut undo)?;
    header.setup = setup(workspace, options, rounds, &device);
    // Before the group of the servers: they end before their devices are unmounted.
    let bed = make_bed(&spec, &mut jobs, amounts, &device, &mut undo, &mut header)?;
    let cgroup = match device.is_memory {
        true => Err(anyhow!(
            "the data is in memory, not on a disk; name another folder with --work DIR"
        )),
        false => Cgroup::make(&mut undo),
    };
    if let Err(error) = &cgroup {
        header.left_out.push(format!("the page cache is not limited as in the papers: {error:#}"));
    }
    memory_lines(&spec, &jobs, amounts, cgroup.is_ok(), &mut header)?;
    for line in header.left_out.iter().chain(&header.setup) {
        println!("{line}");
    }

    let out = options.out.clone().unwrap_or_else(|| workspace.target.join("figures"));
    fs::create_dir_all(&out).with_context(|| format!("creating {}", out.display()))?;
    let mut lines = File::create(out.join("figures.jsonl"))?;
    writeln!(lines, "{}", json!({"setup": header.setup, "left_out": header.left_out}))?;
    let mut measuring = Measuring {
        spec: &spec,
        programs: &programs,
        amounts,
        rounds,
        device: &device,
        cgroup: cgroup.as_ref().ok(),
        bed: bed.as_ref(),
        lines,
        results: Results::default(),
        calls: (0, Measuring::count(&jobs, rounds)),
        started: Instant::now(),
    };
    measuring.measure(&jobs)?;
    let results = measuring.results;
    drop(undo);
    let is_measured = |series: &str, run: &str| {
        jobs.iter().any(|job| job.run.name == run && job.series.contains(&series))
    };
    finish(&out, header, &figures, &results, &spec, amounts, is_measured)
}

/// Makes the devices of the test-bed, if a job needs them. If this machine cannot have them, removes
/// these jobs and says so on the page.
fn make_bed(
    spec: &Spec,
    jobs: &mut Vec<Job<'_>>,
    amounts: Amounts,
    device: &Device,
    undo: &mut Undo,
    header: &mut Header,
) -> Result<Option<Bed>> {
    let clusters = test_bed::clusters(spec, jobs, amounts)?;
    if clusters.is_empty() {
        return Ok(None);
    }
    match Bed::make(&bed::kinds(&spec.devices)?, &clusters, &device.folder, undo) {
        Ok(bed) => {
            header.setup.extend(test_bed::setup(&bed));
            Ok(Some(bed))
        }
        Err(error) => {
            header.left_out.push(format!("no figures of unequal devices: {error:#}"));
            jobs.retain(|job| job.run.program != Program::TestBed);
            Ok(None)
        }
    }
}

fn declared(root: &Path) -> Result<Spec> {
    let file = root.join("lab/figures.toml");
    let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    Spec::parse(&text).with_context(|| format!("reading {}", file.display()))
}

/// Reads the lines to keep from the text of a `figures.jsonl`.
pub(crate) fn read_kept(root: &Path, text: &str, date: &str) -> Result<Vec<Kept>> {
    results::read(&declared(root)?, text, date)
}

pub(crate) fn kept_digest(root: &Path, lines: &[Kept]) -> Result<Digest> {
    results::digest(&declared(root)?, lines)
}

/// Returns the figures with names that begin so.
fn chosen<'a>(spec: &'a Spec, beginnings: Option<&str>) -> Result<Vec<&'a Figure>> {
    let is_chosen = |figure: &&Figure| {
        beginnings.is_none_or(|all| all.split(',').any(|it| figure.name.starts_with(it)))
    };
    let figures: Vec<&Figure> = spec.figures.iter().filter(is_chosen).collect();
    let names: Vec<&str> = spec.figures.iter().map(|figure| figure.name.as_str()).collect();
    ensure!(
        !figures.is_empty(),
        "no figure has a name that begins so; the figures are {}",
        names.join(", ")
    );
    Ok(figures)
}

fn finish(
    out: &Path,
    mut header: Header,
    figures: &[&Figure],
    results: &Results,
    spec: &Spec,
    amounts: Amounts,
    is_measured: impl Fn(&str, &str) -> bool,
) -> Result<()> {
    header.failed = results.failed.iter().map(ToString::to_string).collect();
    let dropped = |it: &Measurement| {
        let reason = test_bed::reason_to_drop(&it.line).unwrap_or_default();
        format!(
            "{}, {}, {}, {}, round {}: {reason}",
            it.run,
            it.point,
            it.series,
            it.phase,
            it.round + 1
        )
    };
    header.left_out.extend(results.dropped.iter().map(dropped));
    let mut shown = Vec::new();
    for figure in figures {
        let run = spec.run(&figure.run)?;
        let is_there = |series: &str| is_measured(series, &run.name);
        let figure = Shown::new(figure, run, spec.ours(run), amounts, results, is_there);
        shown.extend((!figure.series.is_empty()).then_some(figure));
    }
    let page = page::page(&header, &shown, &spec.ours);
    let file = out.join("figures.html");
    fs::write(&file, &page).with_context(|| format!("writing {}", file.display()))?;
    println!("{}\n{}", file.display(), out.join("figures.jsonl").display());
    let mut missing: Vec<String> = shown.iter().flat_map(Shown::missing).collect();
    let has_section = |it: &&Shown<'_>| page.contains(&format!("id='{}'", it.figure.name));
    let without = shown.iter().filter(|it| !has_section(it));
    missing.extend(without.map(|it| format!("{}: no section", it.figure.name)));
    match missing.is_empty() {
        true => Ok(()),
        false => bail!("{} numbers are missing:\n  {}", missing.len(), missing.join("\n  ")),
    }
}

/// Returns whether the linker finds the library.
fn has_rocksdb() -> bool {
    let found = Command::new("cc").arg(format!("-print-file-name={LIBRARY}")).output();
    found.is_ok_and(|found| String::from_utf8_lossy(&found.stdout).contains('/'))
}

fn left_out(
    spec: &Spec,
    figures: &[&Figure],
    options: &Options,
    has_rocksdb: bool,
) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    if options.is_tiny {
        lines.push("the tiny version: one point of each figure, with little data in much page cache; the numbers \
             mean nothing".into());
    } else if options.is_dev {
        lines.push("a development build: the numbers mean little".into());
    }
    let mut series: Vec<&String> = Vec::new();
    for figure in figures {
        series.extend(&spec.run(&figure.run)?.series);
    }
    let on_rocksdb: Vec<&str> =
        (spec.rocksdb.iter().filter(|it| series.contains(it))).map(String::as_str).collect();
    if !has_rocksdb && !on_rocksdb.is_empty() {
        let names = on_rocksdb.join(", ");
        lines.push(format!(
            "RocksDB is not installed (apt-get install librocksdb-dev), so these series are missing: {names}; \
             numbers of papers that are relative to them cannot be compared"
        ));
    }
    if let Some(only) = &options.series {
        lines.push(format!("only the series {only}"));
    }
    if options.etcd.is_none() && series.iter().any(|it| *it == ETCD) {
        lines.push("etcd is not measured without --etcd BIN".into());
    }
    Ok(lines)
}

fn setup(workspace: &Workspace, options: &Options, rounds: u64, device: &Device) -> Vec<String> {
    let commit = Command::new("git")
        .args(["describe", "--always", "--dirty"])
        .current_dir(&workspace.root)
        .output()
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    vec![
        format!("commit: {}", commit.unwrap_or_default()),
        format!("build: {}", if options.is_dev { "development" } else { "release" }),
        format!(
            "scale {}, {rounds} rounds of all series in turn, {processors} processors",
            options.scale
        ),
        format!("device: {}", device.description),
        "replicas: of one group, in one process on one disk, unless a figure names real processes; \
         every answer waits for the syncs of a quorum"
            .to_owned(),
        "the papers used other machines and amounts: compare ratios"
            .to_owned(),
    ]
}

/// Describes the page cache limit of each run.
fn memory_lines(
    spec: &Spec,
    jobs: &[Job<'_>],
    amounts: Amounts,
    is_limited: bool,
    header: &mut Header,
) -> Result<()> {
    for job in jobs {
        for point in job.points.iter().filter(|_| is_limited) {
            let args = plan::arguments(spec, job.run, point, amounts)?;
            let Some(cache) = plan::page_cache(spec, job.run, &args, amounts)? else { continue };
            let place = format!(
                "{}, {}: {:.1} MiB of page cache for each replica",
                job.run.name,
                point.x,
                cache.bytes as f64 / f64::from(1 << 20)
            );
            if cache.is_least && amounts.is_tiny {
                continue;
            }
            if cache.is_least {
                header.left_out.push(format!("{place}: the minimum, more than the paper's share"));
                continue;
            }
            let ratio = job.run.data_per_memory.unwrap_or_default();
            header.setup.push(format!(
                "{place}: {ratio} bytes of data for each of its bytes, as for each byte of memory in the paper; \
                 other memory of engines is not limited"
            ));
        }
    }
    if jobs.iter().any(|job| job.run.program != Program::Baselines) {
        header.left_out.push("the memory of real processes is not limited".to_owned());
    }
    Ok(())
}

/// Returns the space that the largest call may take on the disk.
fn disk_bytes(spec: &Spec, jobs: &[Job<'_>], amounts: Amounts) -> Result<u64> {
    let mut most = 0;
    for job in jobs {
        for point in &job.points {
            let args = plan::arguments(spec, job.run, point, amounts)?;
            let number = |name: &str| args.get(name).and_then(|it| it.parse::<u64>().ok());
            let stores = number("stores").unwrap_or(3);
            let data = number("bytes").unwrap_or(0);
            let servers = if job.run.program == Program::Wire { SERVERS_BYTES } else { 0 };
            most = most.max(stores * (AMPLIFICATION * data + STORE_BYTES) + servers);
        }
    }
    Ok(most)
}

impl Programs {
    fn build(
        workspace: &Workspace,
        options: &Options,
        jobs: &[Job<'_>],
        has_rocksdb: bool,
    ) -> Result<Self> {
        let needs = |program| jobs.iter().any(|job| job.run.program == program);
        let mut programs =
            Self { lab: PathBuf::new(), stele: PathBuf::new(), etcd: options.etcd.clone() };
        let with_rocksdb = has_rocksdb && needs(Program::Baselines);
        let features: &[&str] = if with_rocksdb { &["--features", "rocksdb"] } else { &[] };
        programs.lab = programs::build_with(workspace, LAB, !options.is_dev, features)?;
        if needs(Program::Wire) || needs(Program::TestBed) {
            programs.stele = programs::build(workspace, STELE, !options.is_dev)?;
        }
        Ok(programs)
    }
}
