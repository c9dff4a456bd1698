//! `stele backup`: backups of a cluster in a folder or an object store.

mod pull;
mod repository;

use crate::args::{Backup, BackupCommand};
use crate::{Outcome, runtime};
use std::sync::Arc;
use stele_backup::{OpenOptions, install_tls_provider};
use stele_types::Result;

pub(crate) fn run(args: &Backup) -> Result<Outcome> {
    install_tls_provider();
    runtime::small()?.block_on(async {
        match &args.command {
            Some(BackupCommand::List(args)) => repository::list(args).await,
            Some(BackupCommand::Verify(args)) => repository::verify(args).await,
            Some(BackupCommand::Prune(args)) => repository::prune(args).await,
            None => pull::run(&args.pull).await,
        }
    })
}

/// Returns the options of a repository that reports its repetitions on standard error.
fn options() -> OpenOptions {
    let notice: stele_backup::Notice = Arc::new(|line| eprintln!("stele: {line}"));
    OpenOptions { notice: Some(notice), ..OpenOptions::default() }
}
