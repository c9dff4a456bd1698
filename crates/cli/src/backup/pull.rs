//! `stele backup --cluster`: backs a cluster up, until one moment can be restored or a signal comes.

use super::options;
use crate::args::Pull;
use crate::{Outcome, runtime};
use std::sync::Arc;
use stele_backup::{PullOptions, Repository, pull};
use stele_types::size::format_bytes;
use stele_types::{Error, Result};
use tokio::signal::unix::{SignalKind, signal};

pub(super) async fn run(args: &Pull) -> Result<Outcome> {
    let client = runtime::connect(&args.cluster, &args.tls).await?;
    let copier = runtime::connect(&args.cluster, &args.tls).await?;
    // It is there: it is required without another command.
    let to = args.to.as_deref().unwrap_or_default();
    let repository = Repository::create_or_open(to, &options(), client.cluster()).await?;
    let options = PullOptions {
        follow: args.follow,
        every: args.every,
        base_every: args.base_every,
        bytes_per_second: args.bandwidth,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        notice: Arc::new(|line| eprintln!("stele: {line}")),
    };
    let (stopping, stop) = tokio::sync::watch::channel(false);
    let failed = |error| Error::io("handle", "signals", error);
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    tokio::spawn(async move {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        // The backup may have ended.
        let _ = stopping.send(true);
    });
    let pulled = pull(client, copier, repository, options, stop).await?;
    let moment = match pulled.moment {
        Some(moment) => format!("moment {} can be restored", moment.0),
        None => "stopped before the first moment".to_owned(),
    };
    let (read, sent) = (format_bytes(pulled.read_bytes), format_bytes(pulled.sent_bytes));
    crate::terminal::print(&format!("{moment}; run {}, {read} read, {sent} sent\n", pulled.run.0));
    Ok(Outcome::Done)
}
