//! Directories with lost log entries. They wait for copies from other stores while the node serves
//! with its other stores, and open when nothing is missing.

use super::{Parts, open};
use crate::failed_dir::FailedDir;
use crate::recovery_thread::{RecoveryContext, RecoveryThread};
use crate::store::OutputSink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_engine::RecoveringStore;
use stele_replica::EntryRecovery;
use stele_types::{Result, StoreIdent, StoreRun};
use stele_vfs::{RealVfs, Vfs};

/// Directory that does not open yet.
pub(super) struct DamagedDir {
    pub dir: PathBuf,
    pub ident: StoreIdent,
    pub run: StoreRun,
    recovery: EntryRecovery<RecoveringStore>,
}

/// Logs what a directory lost.
pub(super) fn damaged(
    dir: &Path,
    ident: StoreIdent,
    recovery: EntryRecovery<RecoveringStore>,
    run: StoreRun,
) -> DamagedDir {
    let (store, (lost, _)) = (ident.store, recovery.lost());
    tracing::warn!(
        "{}: {lost} log entries cannot be read: store {store} neither votes nor acknowledges \
         until copies from other stores replace them",
        dir.display()
    );
    DamagedDir { dir: dir.to_path_buf(), ident, run, recovery }
}

/// Starts the recovery thread of a directory; the store joins the others when it is recovered.
pub(super) fn start(damaged: DamagedDir, parts: &Parts) -> Result<()> {
    let DamagedDir { dir, ident, recovery, .. } = damaged;
    let device_bytes = RealVfs::new().total_bytes(&dir)?;
    let members = parts.members.clone();
    let context = RecoveryContext {
        clock: parts.clock.clone(),
        sink: parts.router.clone(),
        stores: Box::new(move || members.stores()),
    };
    let open_store = {
        let (parts, dir) = (parts.clone(), dir.clone());
        move || -> Result<()> {
            let engine = open::engine(&parts.config, &dir)?;
            parts.stores.add(parts.start_store(Arc::new(engine), ident)?);
            Ok(())
        }
    };
    let (stores, router, failed_dir) = (parts.stores.clone(), parts.router.clone(), dir.clone());
    let on_end = move |ended: Result<bool>| {
        let opened =
            ended.and_then(|is_recovered| if is_recovered { open_store() } else { Ok(()) });
        stores.remove_recovering(ident.store);
        match opened {
            Ok(()) => router.report_due.notify_one(),
            Err(error) => {
                stores.add_failed(FailedDir::new(failed_dir, Some(ident.store), &error));
                router.failed(ident.store, error);
            }
        }
    };
    let start = || RecoveryThread::start(recovery, (dir, device_bytes), context, on_end);
    parts.stores.add_recovering(start)
}
