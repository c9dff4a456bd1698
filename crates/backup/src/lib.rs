//! Backups of a cluster: the format of their objects ([mod@format]), repositories of these objects in a folder or an
//! object store ([`Repository`]), the process that fills them ([`pull()`]), and restores of their moments
//! ([mod@restore]).

pub mod format;
mod pull;
mod repository;
pub mod restore;

pub use pull::{PullOptions, Pulled, pull};
pub use repository::{
    BaseName, BaseSummary, BegunBase, Notice, OpenOptions, Pruned, Report, Repository, Restorable,
    install_tls_provider,
};
