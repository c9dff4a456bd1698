//! `stele verify`: checks a whole store. Exit code 1 if anything is damaged.

use crate::args::Verify;
use crate::reader::Reader;
use crate::store::{DiskBytes, Tuning, Verified};
use crate::terminal::{Output, Progress};
use crate::{Outcome, inspect};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use stele_types::size::{counted, format_bytes};
use stele_types::{Error, Result};

/// Maximum number of damaged places listed; all are counted.
const DAMAGES_LISTED_MAX: usize = 1000;
/// Tolerated difference between reported and actual space, as a share of the actual space.
const SPACE_TOLERANCE: f64 = 0.02;
/// Further tolerated difference, for directories and the file system's rounding; matters in small
/// stores.
const SPACE_TOLERANCE_BYTES: f64 = 65536.0;

#[derive(Default)]
struct Damages {
    listed: Vec<(PathBuf, String)>,
    count: u64,
}

impl Damages {
    fn add(&mut self, path: PathBuf, detail: String) {
        self.count += 1;
        if self.listed.len() < DAMAGES_LISTED_MAX {
            self.listed.push((path, detail));
        }
    }
}

pub(crate) fn verify(args: &Verify) -> Result<Outcome> {
    let dir = &args.target.store;
    let mut damages = Damages::default();
    let verified = match check(dir, &mut damages) {
        Ok(verified) => verified,
        // The store does not open: report that, and all damage that the files show by themselves.
        Err(error) if error.is_damage() && dir.is_dir() => {
            let path = match &error {
                Error::Corrupt { path, .. } | Error::Missing { path, .. } => path.clone(),
                _ => dir.clone(),
            };
            damages.add(path, error.to_string());
            inspect::damage(dir, &mut |path, detail| damages.add(path, detail))?;
            Verified::default()
        }
        Err(error) => return Err(error),
    };
    let disk = DiskBytes::of(dir)?;
    let (reported, used) = (verified.reported_bytes, disk.used_bytes);
    let off = reported.abs_diff(used) as f64;
    if damages.count == 0 && off > SPACE_TOLERANCE_BYTES + used as f64 * SPACE_TOLERANCE {
        damages.add(dir.clone(), format!("{reported} bytes reported, {used} on disk"));
    }
    print(args.json, &verified, disk, &damages)?;
    Ok(if damages.count == 0 { Outcome::Done } else { Outcome::Failed })
}

fn check(dir: &Path, damages: &mut Damages) -> Result<Verified> {
    let store = Reader::open(dir, &Tuning { without_repair: true, ..Tuning::default() })?;
    let progress = Progress::bytes(None, "verifying");
    let verified = store
        .verify(&mut |path, detail| damages.add(path, detail), &|bytes| progress.add(bytes))?;
    drop(progress);
    Ok(verified)
}

fn print(json: bool, verified: &Verified, disk: DiskBytes, damages: &Damages) -> Result<()> {
    let mut out = Output::new();
    let ok = damages.count == 0;
    if json {
        let place = |(path, detail): &(PathBuf, String)| json!({ "path": path.display().to_string(), "detail": detail });
        let object = json!({
            "ok": ok,
            "keys": verified.keys,
            "live_bytes": verified.live_bytes,
            "live_bytes_estimate": verified.live_bytes_estimate,
            "disk_bytes": disk.used_bytes,
            "reserve_held_bytes": disk.held_bytes,
            "reported_bytes": verified.reported_bytes,
            "checked_bytes": verified.checked_bytes,
            "damages": damages.count,
            "damage": damages.listed.iter().map(place).collect::<Vec<Value>>(),
        });
        out.line(&object.to_string())?;
        return out.finish();
    }
    for (path, detail) in &damages.listed {
        out.line(&format!("damage: {}: {detail}", path.display()))?;
    }
    out.line(&format!(
        "{}: {}, {} live ({} estimated), {} on disk ({} reported, {} more held in reserve), \
         {} checked, {}",
        if ok { "ok" } else { "DAMAGED" },
        counted(verified.keys, "key"),
        format_bytes(verified.live_bytes),
        format_bytes(verified.live_bytes_estimate),
        format_bytes(disk.used_bytes),
        format_bytes(verified.reported_bytes),
        format_bytes(disk.held_bytes),
        format_bytes(verified.checked_bytes),
        counted(damages.count, "damaged place"),
    ))?;
    out.finish()
}
