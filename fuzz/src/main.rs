//! `stele-fuzz`: runs fuzz targets. See README.md.

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use stele_fuzz::fuzz::{Limits, catch_panics, fuzz, run_one};
use stele_fuzz::{Target, targets};

const USAGE: &str = "usage: stele-fuzz list
       stele-fuzz NAME|all [--seconds S | --runs N] [--seed N] [--jobs N] [--out DIR]
       stele-fuzz NAME --input FILE

  --seconds S   for each target; default 10 without --runs
  --runs N      inputs for each target
  --seed N      seed of all mutations; default 1
  --jobs N      targets at the same time; default: one for each processor
  --out DIR     directory of inputs with findings; default target/fuzz
  --input FILE  run only this input";

/// Time after which a run counts as endless.
const HANG: Duration = Duration::from_secs(30);

struct Options {
    name: String,
    seconds: Option<u64>,
    runs: Option<u64>,
    seed: u64,
    jobs: usize,
    out: PathBuf,
    input: Option<PathBuf>,
}

fn main() -> ExitCode {
    let outcome = parse(std::env::args().skip(1)).and_then(|options| run(&options));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("stele-fuzz: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options> {
    let mut options = Options {
        name: arguments.next().context(USAGE)?,
        seconds: None,
        runs: None,
        seed: 1,
        jobs: std::thread::available_parallelism().map_or(1, usize::from),
        out: PathBuf::from("target/fuzz"),
        input: None,
    };
    while let Some(flag) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{flag} needs a value\n\n{USAGE}"))?;
        match flag.as_str() {
            "--seconds" => options.seconds = Some(value.parse()?),
            "--runs" => options.runs = Some(value.parse()?),
            "--seed" => options.seed = value.parse()?,
            "--jobs" => options.jobs = value.parse::<usize>()?.max(1),
            "--out" => options.out = value.into(),
            "--input" => options.input = Some(value.into()),
            _ => bail!("unexpected `{flag}`\n\n{USAGE}"),
        }
    }
    Ok(options)
}

/// Runs the targets. Returns true if none had a finding.
fn run(options: &Options) -> Result<bool> {
    match options.name.as_str() {
        "list" => {
            targets::ALL.iter().for_each(|target| println!("{}", target.name));
            Ok(true)
        }
        "all" => run_all(options),
        name => {
            let target = targets::ALL.iter().find(|target| target.name == name);
            let target = target.with_context(|| format!("unknown target `{name}`\n\n{USAGE}"))?;
            match &options.input {
                Some(file) => replay(target, file),
                None => run_target(target, options),
            }
        }
    }
}

fn replay(target: &Target, file: &Path) -> Result<bool> {
    let input = std::fs::read(file).with_context(|| file.display().to_string())?;
    catch_panics();
    if let Some(seed) = (target.seeds)().first() {
        run_one(target, seed);
    }
    let (held, finding) = run_one(target, &input);
    match &finding {
        Some(finding) => println!("{}: {finding}", target.name),
        None => println!("{}: passed; {held} bytes of memory", target.name),
    }
    Ok(finding.is_none())
}

/// Runs each target in its own process, so that a crash ends only that target.
fn run_all(options: &Options) -> Result<bool> {
    let own = std::env::current_exe()?;
    let waiting = Mutex::new(targets::ALL.iter());
    let failed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.min(targets::ALL.len()) {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().ok().and_then(|mut waiting| waiting.next());
                    let Some(target) = next else { return };
                    if !is_sound(&own, target, options) {
                        failed.fetch_add(1, Relaxed);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner();
    println!("targets: {} passed, {failed} failed", targets::ALL.len() as u64 - failed);
    Ok(failed == 0)
}

fn is_sound(own: &Path, target: &Target, options: &Options) -> bool {
    let mut command = Command::new(own);
    command.arg(target.name).args(["--seed", &options.seed.to_string()]);
    command.arg("--out").arg(&options.out).stderr(Stdio::inherit());
    if let Some(seconds) = options.seconds {
        command.args(["--seconds", &seconds.to_string()]);
    }
    if let Some(runs) = options.runs {
        command.args(["--runs", &runs.to_string()]);
    }
    match command.output() {
        Ok(output) => {
            print!("{}", String::from_utf8_lossy(&output.stdout));
            if output.status.code().is_none() {
                println!("{}: the process ended: {}", target.name, output.status);
                print_replay(target, &current_path(target, &options.out));
            }
            output.status.success()
        }
        Err(error) => {
            println!("{}: cannot start: {error}", target.name);
            false
        }
    }
}

fn current_path(target: &Target, out: &Path) -> PathBuf {
    out.join(format!("{}.current", target.name))
}

fn print_replay(target: &Target, input: &Path) {
    println!("  replay: cargo run -p stele-fuzz -- {} --input {}", target.name, input.display());
}

fn run_target(target: &'static Target, options: &Options) -> Result<bool> {
    std::fs::create_dir_all(&options.out)?;
    let current_path = current_path(target, &options.out);
    let current = File::create(&current_path)?;
    watch(target, current_path.clone());
    let seconds = options.seconds.unwrap_or(if options.runs.is_some() { u64::MAX / 4 } else { 10 });
    let limits = Limits {
        runs: options.runs.unwrap_or(u64::MAX),
        time: Duration::from_secs(seconds),
        seed: options.seed,
    };
    let mut written = 0;
    let report = fuzz(target, &limits, |input| {
        RUNS.fetch_add(1, Relaxed);
        // Stores the input for a run that ends the process. A failed write only loses the replay.
        let _ = current.write_all_at(input, 0);
        if written != input.len() {
            written = input.len();
            let _ = current.set_len(input.len() as u64);
        }
    });
    let per_second = report.runs as f64 / report.took.as_secs_f64().max(0.001);
    let places = match report.places {
        0 => String::new(),
        places => format!(", {places} locations, {} inputs kept", report.inputs),
    };
    println!(
        "{:24} {:>9} runs, {per_second:>8.0}/s, {:>8} bytes held{places}",
        target.name, report.runs, report.held_bytes
    );
    let _ = std::fs::remove_file(&current_path);
    let Some((input, finding)) = report.failed else { return Ok(true) };
    let path = options.out.join(format!("{}.failed", target.name));
    std::fs::write(&path, &input)?;
    println!("{}: {finding}", target.name);
    println!("  {} bytes, seed {}, run {}", input.len(), options.seed, report.runs);
    print_replay(target, &path);
    Ok(false)
}

static RUNS: AtomicU64 = AtomicU64::new(0);

/// Ends the process if a run is endless.
fn watch(target: &'static Target, current: PathBuf) {
    std::thread::spawn(move || {
        let mut last = u64::MAX;
        loop {
            let now = RUNS.load(Relaxed);
            if now == last {
                println!("{}: a run does not end", target.name);
                print_replay(target, &current);
                std::process::exit(1);
            }
            last = now;
            std::thread::sleep(HANG);
        }
    });
}
