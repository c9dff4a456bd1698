//! On which terms stores are compared. Bytes written and space taken pay for one another: a store
//! that never collects writes least. So both sides get the same terms, and both figures are given.

use crate::child::{number, text};
use anyhow::{Result, bail};
use serde_json::Value;

/// The names, for the command line.
pub const NAMES: [&str; 3] = ["bounded", "unbounded", "defaults"];
/// Those measured unless others are stated.
pub const USUAL: [&str; 2] = ["bounded", "unbounded"];
/// Bytes on the disk for each live byte: what Stele accepts by default.
pub const SPACE_AMP_MAX: f64 = 2.0;

/// What both sides may do with garbage. Under equal terms their value files are equally large.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fairness {
    /// Each collects with its own means and must end below [`SPACE_AMP_MAX`]; one that does not
    /// is told to compact until it does, and what that writes counts.
    Bounded {
        /// Size of a value file.
        file_bytes: u64,
        /// Share of a value file that must be dead for fjall to empty it. Its defaults (the oldest
        /// quarter of the files that are a quarter dead) do not keep the bound.
        stale_share: f32,
    },
    /// Neither moves a value to free space. Files in which nothing is live go, in both.
    Unbounded {
        /// Size of a value file.
        file_bytes: u64,
    },
    /// Each as it comes, whatever space it ends with.
    Defaults,
}

impl Fairness {
    /// As a measurement's settings state it.
    pub fn read(settings: &Value) -> Result<Self> {
        let file_bytes = number(settings, "file_bytes")?;
        Ok(match text(settings, "fairness")? {
            "bounded" => {
                let stale_share = number(settings, "stale_percent")? as f32 / 100.0;
                Self::Bounded { file_bytes, stale_share }
            }
            "unbounded" => Self::Unbounded { file_bytes },
            "defaults" => Self::Defaults,
            other => bail!("no fairness `{other}`"),
        })
    }

    /// What is asked of the settled store.
    pub fn space_amp_max(self) -> Option<f64> {
        matches!(self, Self::Bounded { .. }).then_some(SPACE_AMP_MAX)
    }
}
