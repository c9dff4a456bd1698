//! Speed of the store's device: measured, and estimated while nothing is.
//!
//! The file `SPEED` keeps the result of the probe of the store's first start. Unknown lines are
//! skipped:
//!
//! ```text
//! SPEED := "stele speed\n" "large_bytes_per_second " n "\n" "small_nanos " n "\n" "crc32c " hex "\n"
//! ```

use super::{Shared, Store};
use crate::checked_text::{self, CheckedText};
use std::sync::Arc;
use stele_types::{DeviceSpeed, Error, OpCost, Result};
use stele_vfs::{Curve, DeviceTimes, Probed, probe, remove_probe};

const NAME: &str = "SPEED";
const MAGIC: &str = "stele speed";
const FILE_BYTES_MAX: u64 = 4096;

/// Size at which the curve was fitted.
const CURVE_OP_BYTES: u64 = 16 << 10;

impl Store {
    pub(crate) fn device_times(&self) -> &Arc<DeviceTimes> {
        self.shared.timer.times()
    }

    /// Returns the speed of the device over the last seconds.
    pub fn device_speed(&self) -> DeviceSpeed {
        self.device_times().speed(self.shared.timer.clock().monotonic_nanos())
    }

    /// Returns the age of the append under way; 0 without one.
    pub fn append_age_nanos(&self) -> u64 {
        self.device_times().append_age_nanos(self.shared.timer.clock().monotonic_nanos())
    }

    /// Returns the 99th percentile of the log's writes in the last seconds, each with its sync, in
    /// nanoseconds; 0 without any. At least the age of the append under way.
    pub fn append_p99_nanos(&self) -> u64 {
        self.device_times().write_p99_nanos(self.shared.timer.clock().monotonic_nanos())
    }

    /// Measures the device by small synced writes that store nothing: as many as make a measurement.
    /// May wait for the device as long as a write does.
    pub fn measure_writes(&self) -> Result<()> {
        for _ in 0..DeviceSpeed::OPERATIONS_MIN {
            let _under_way = self.shared.timer.append();
            if !self.shared.log.measure()? {
                break;
            }
        }
        Ok(())
    }

    /// Sets the estimate of the device's speed that counts until enough is measured: from the probe
    /// that the directory keeps, and otherwise from a new one, decided by `seed`. Called before the
    /// store serves: a probe takes up to two seconds. Fails without any effect on the store.
    pub fn estimate_speed(&self, seed: u64) -> Result<(Probed, OpCost)> {
        let Shared { vfs, dir, timer, .. } = &*self.shared;
        let probed = match read(&self.shared) {
            Ok(kept) => {
                remove_probe(&**vfs, dir)?;
                kept
            }
            // Invariant: a lost or damaged result is measured again and stops no store.
            Err(error) if is_lost(&error) => {
                let probed = probe(&**vfs, &**timer.clock(), dir, seed)?;
                write(&self.shared, probed)?;
                probed
            }
            Err(error) => return Err(error),
        };
        let write = Curve::DEFAULT.expected(probed.cost(), CURVE_OP_BYTES);
        timer.times().set_prior(DeviceSpeed { write, ..DeviceSpeed::default() });
        Ok((probed, write))
    }
}

fn is_lost(error: &Error) -> bool {
    // bug engine.damaged_probe_stops_the_store: `other.is_damage()` is `false`
    match error {
        Error::Io { source, .. } => source.kind() == std::io::ErrorKind::NotFound,
        Error::WrongStore { .. } => true,
        other => other.is_damage(),
    }
}

fn read(shared: &Shared) -> Result<Probed> {
    let path = shared.dir.join(NAME);
    let text = CheckedText::read(&shared.vfs, &path, MAGIC, FILE_BYTES_MAX)?;
    // bug engine.damaged_probe_is_kept: skip
    text.check()?;
    let large_bytes_per_second = text.number("large_bytes_per_second")?;
    Ok(Probed { large_bytes_per_second, small_nanos: text.number("small_nanos")? })
}

fn write(shared: &Shared, probed: Probed) -> Result<()> {
    let Probed { large_bytes_per_second, small_nanos } = probed;
    let body = format!(
        "{MAGIC}\nlarge_bytes_per_second {large_bytes_per_second}\n\
         small_nanos {small_nanos}\n"
    );
    checked_text::write(&shared.vfs, &shared.dir, NAME, &body, true)
}
