//! Terms of comparison. Written bytes and occupied space trade against each other: a store without
//! garbage collection (GC) writes least. So both sides get the same terms, and both numbers are
//! reported.

use crate::embedded::child::{number, text};
use anyhow::{Result, bail};
use serde_json::Value;

pub(super) const NAMES: [&str; 3] = ["bounded", "unbounded", "defaults"];
/// Terms that are measured by default.
pub(super) const USUAL: [&str; 2] = ["bounded", "unbounded"];
/// Bytes on disk per live byte that Stele accepts by default.
pub(super) const SPACE_AMP_MAX: f64 = 2.0;

/// Permitted handling of garbage. With equal terms, value files of both sides have the same size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fairness {
    /// Each store collects garbage in its own way and must end below [`SPACE_AMP_MAX`]. A store
    /// that does not is compacted until it does, and those writes count.
    Bounded {
        file_bytes: u64,
        /// Dead share of a value file from which fjall empties it. Its defaults (the oldest quarter
        /// of the files that are a quarter dead) do not keep the bound.
        stale_share: f32,
    },
    /// Neither store moves values to free space. Both remove files without live values.
    Unbounded { file_bytes: u64 },
    /// Default settings of each store, without a bound on space.
    Defaults,
}

impl Fairness {
    pub(super) fn read(settings: &Value) -> Result<Self> {
        let file_bytes = number(settings, "file_bytes")?;
        Ok(match text(settings, "fairness")? {
            "bounded" => {
                let stale_share = number(settings, "stale_percent")? as f32 / 100.0;
                Self::Bounded { file_bytes, stale_share }
            }
            "unbounded" => Self::Unbounded { file_bytes },
            "defaults" => Self::Defaults,
            other => bail!("unknown fairness `{other}`"),
        })
    }

    /// Returns the bound on space amplification of the settled store.
    pub(super) fn space_amp_max(self) -> Option<f64> {
        matches!(self, Self::Bounded { .. }).then_some(SPACE_AMP_MAX)
    }
}
