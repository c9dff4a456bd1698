//! All writes of a cluster with their places, up to moments: for backups and copies in other clusters.

use super::cursors::{Cut, LoggedEvent};
use super::token::{Families, Token};
use super::{Watch, WatchFrom, WatchOptions};
use crate::Client;
use stele_types::{KeyRange, Result};

/// The committed writes of all keys and column families, for each key in the order of its writes.
pub struct Writes {
    watch: Watch,
}

impl Client {
    /// Watches all writes. Fails with `Invalid` for a token of another watch or cluster.
    pub async fn writes(&self, from: WatchFrom) -> Result<Writes> {
        let options = WatchOptions::default();
        let watch = self.watch_families(KeyRange::all(), Families::All, from, options).await?;
        Ok(Writes { watch })
    }
}

impl Writes {
    /// Returns the next write, or that the cut was reached; `None` after an error. Fails as [`Watch::next`] does.
    pub async fn next(&mut self) -> Option<Result<LoggedEvent>> {
        self.watch.next_logged().await
    }

    /// Returns the present token, as [`Watch::token`] does.
    pub fn token(&self) -> Result<Token> {
        self.watch.token()
    }

    /// Returns exactly what the cut has that was not returned, then [`LoggedEvent::Resolved`], and nothing more before
    /// [`Writes::let_go`]. The caller takes the moment of the cut after it has taken the last write.
    pub fn hold_at(&mut self, cut: Cut) -> Result<()> {
        self.watch.cursors.hold_at(cut)
    }

    /// Goes on after a cut.
    pub fn let_go(&mut self) {
        self.watch.cursors.let_go();
    }
}
