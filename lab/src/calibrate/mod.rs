//! `lab calibrate`: how many puts a second a store makes of what a probe of its device
//! promises (ALOR figure 10). It fits the curve by which a new store estimates its speed.
//!
//! One client puts one value after the other, each synced: that is what a synced write of the log
//! takes. Clients that share group commits would measure their own number instead of the device.

mod args;
mod fit;

use args::Args;
use fit::{Point, expected, fit};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_engine::{Db, Options};
use stele_load::Records;
use stele_types::{Error, Prng, Result};
use stele_vfs::{DeviceProfile, Probed, ProfiledVfs, RealVfs, SystemClock, Vfs, probe};

/// Bytes put on one device at most.
const PUT_BYTES_MAX: u64 = 256 << 20;

/// Slowest and fastest emulated device: microseconds of a sync, and bytes written a second.
const SLOWEST: (f64, f64) = (8_000.0, 8e6);
const FASTEST: (f64, f64) = (30.0, 2e9);

struct Measured {
    name: String,
    probed: Probed,
    point: Point,
}

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let args: &Args = &crate::parse(arguments);
    args.check()?;
    let mut devices: Vec<(String, Option<DeviceProfile>)> = (0..args.emulated)
        .map(|number| (format!("emulated {}", number + 1), Some(profile(args.emulated, number))))
        .collect();
    if args.real {
        devices.push(("real".to_owned(), None));
    }
    let mut measured = Vec::new();
    for (number, (name, profile)) in devices.into_iter().enumerate() {
        let place = Place::create(&args.store, number)?;
        let (probed, point) = measure(args, &place.0, profile)?;
        eprintln!(
            "{name}: probe {:.0} writes/s ({:.1} MB/s, {} us), store {:.0} puts/s",
            point.writes_per_second,
            probed.large_bytes_per_second as f64 / 1e6,
            probed.small_nanos / 1000,
            point.puts_per_second
        );
        measured.push(Measured { name, probed, point });
    }
    println!("{}", report(args, &measured));
    Ok(())
}

/// Returns the profile of an emulated device: latency and bandwidth change by equal factors from the
/// slowest to the fastest.
fn profile(count: u64, number: u64) -> DeviceProfile {
    let share = number as f64 / (count.max(2) - 1) as f64;
    let between = |slow: f64, fast: f64| slow * (fast / slow).powf(share);
    let sync_micros = between(SLOWEST.0, FASTEST.0);
    DeviceProfile {
        sync_latency: Duration::from_micros(sync_micros as u64),
        write_latency: Duration::from_micros((sync_micros / 4.0) as u64),
        write_bytes_per_s: between(SLOWEST.1, FASTEST.1) as u64,
        ..DeviceProfile::FLASH
    }
}

/// New directory, which is removed with its content when this is dropped.
struct Place(PathBuf);

impl Place {
    fn create(dir: &Path, number: usize) -> Result<Self> {
        let dir = dir.join(format!("stele-lab-calibrate-{number}"));
        std::fs::create_dir(&dir).map_err(|error| Error::io("create", &dir, error))?;
        Ok(Self(dir))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{} was not removed: {error}", self.0.display());
        }
    }
}

fn measure(args: &Args, dir: &Path, profile: Option<DeviceProfile>) -> Result<(Probed, Point)> {
    let clock = Arc::new(SystemClock::new());
    let real = Arc::new(RealVfs::new());
    let vfs: Arc<dyn Vfs> = match profile {
        Some(profile) => Arc::new(ProfiledVfs::new(real, profile, clock.clone())?),
        None => real,
    };
    let probed = probe(&*vfs, &*clock, dir, args.seed)?;
    let nanos = probed.cost().nanos(args.value_bytes).max(1);
    let db = Db::open_with(vfs, clock, dir, Options::default())?;
    let puts_per_second = put(args, &db)?;
    db.close()?;
    Ok((probed, Point { writes_per_second: 1e9 / nanos as f64, puts_per_second }))
}

/// Puts values one after the other. Returns the puts a second.
fn put(args: &Args, db: &Db) -> Result<f64> {
    let records = Records::with(16, args.value_bytes, false, args.seed);
    let mut prng = Prng::new(args.seed);
    let count_max = (PUT_BYTES_MAX / args.value_bytes.max(1)).max(8);
    let (mut count, begin) = (0, Instant::now());
    while count < count_max && (count < 8 || begin.elapsed().as_secs_f64() < args.seconds) {
        db.put(&records.key(count), &records.value(&mut prng))?;
        count += 1;
    }
    Ok(count as f64 / begin.elapsed().as_secs_f64())
}

fn report(args: &Args, measured: &[Measured]) -> Value {
    let points: Vec<Point> = measured.iter().map(|it| it.point).collect();
    let curve = fit(&points);
    let (mut squares, mut lines) = (0.0, Vec::new());
    for Measured { name, probed, point } in measured {
        let expected = expected(&curve, point.writes_per_second);
        let residual = expected / point.puts_per_second - 1.0;
        squares += residual * residual;
        eprintln!(
            "{name}: expected {expected:.0} puts/s, measured {:.0} ({:+.1} %)",
            point.puts_per_second,
            residual * 100.0
        );
        lines.push(json!({
            "device": name,
            "large_bytes_per_second": probed.large_bytes_per_second,
            "small_nanos": probed.small_nanos,
            "writes_per_second": point.writes_per_second,
            "puts_per_second": point.puts_per_second,
            "expected_puts_per_second": expected,
            "residual_percent": residual * 100.0,
        }));
    }
    let deviation = (squares / measured.len().max(1) as f64).sqrt() * 100.0;
    eprintln!(
        "curve: coefficients {:?}, range {:?} (16 fraction bits); standard deviation {deviation:.1} %",
        curve.coefficients, curve.range
    );
    json!({
        "configuration": {
            "value_bytes": args.value_bytes,
            "seconds": args.seconds,
            "emulated": args.emulated,
            "real": args.real,
            "seed": args.seed,
        },
        "points": lines,
        "coefficients": curve.coefficients,
        "range": curve.range,
        "residual_deviation_percent": deviation,
    })
}
