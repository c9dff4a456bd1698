//! Directory that serves no store, although its node runs.

use std::fmt;
use std::path::PathBuf;
use stele_types::{Error, StoreId};

/// Directory that serves no store since the start of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedDir {
    /// Directory; `None` after its disk was replaced.
    pub dir: Option<PathBuf>,
    /// Store that was there, as far as known.
    pub store: Option<StoreId>,
    /// Reason, with what to do.
    pub reason: String,
    /// The node is complete without it.
    pub is_expected: bool,
}

impl FailedDir {
    /// Creates the record of a directory that did not open.
    pub fn new(dir: PathBuf, store: Option<StoreId>, error: &Error) -> Self {
        let remove = match store {
            Some(store) => format!("remove the store with `stele ctl remove-store {store}`"),
            None => "remove its store with `stele ctl remove-store`".to_owned(),
        };
        let replace = format!(
            "mount or repair the disk and start the node again; or replace the disk and start once \
             with `--replaced-disk {}`; or {remove}",
            dir.display()
        );
        let reason = match error {
            // These name what to do.
            Error::StoreAbsent { .. } => format!("{error}; or {remove}"),
            Error::WrongStore { .. } => error.to_string(),
            _ => format!("{error}; {replace}"),
        };
        Self { dir: Some(dir), store, reason, is_expected: false }
    }

    /// Creates the record of a store of the node that is in none of its directories.
    pub fn absent(store: StoreId, dir: Option<PathBuf>) -> Self {
        let remove = format!("remove the store with `stele ctl remove-store {store}`");
        let (reason, is_expected) = match &dir {
            Some(dir) => {
                let dir = dir.display();
                let text = format!(
                    "it was in {dir}, which does not hold it now: name its directory as `store`; or \
                     {remove}"
                );
                (text, false)
            }
            None => (format!("its disk was replaced: {remove}"), true),
        };
        Self { dir, store: Some(store), reason, is_expected }
    }
}

impl fmt::Display for FailedDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.store, &self.dir) {
            (Some(store), _) => write!(f, "store {store} does not serve: ")?,
            (None, Some(dir)) => write!(f, "the store in {} does not serve: ", dir.display())?,
            (None, None) => {}
        }
        f.write_str(&self.reason)
    }
}

/// Whether an error of opening is of the directory, so that the others may serve. The other errors
/// end the start: another process has the directory, or the program or its settings are wrong.
pub(crate) fn is_of_directory(error: &Error) -> bool {
    matches!(
        error,
        Error::Io { .. }
            | Error::NoSpace(_)
            | Error::Corrupt { .. }
            | Error::Missing { .. }
            | Error::WrongStore { .. }
            | Error::StoreAbsent { .. }
            | Error::Poisoned(_)
            | Error::Panicked(_)
    )
}
