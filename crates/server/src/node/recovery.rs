//! Directories whose logs lost entries. They wait for other stores' copies while the node serves with
//! its other stores, and open when nothing is missing any more.

use super::{Parts, open, start_store};
use crate::config::Config;
use crate::recovery_thread::{RecoveryContext, RecoveryThread};
use crate::store::OutputSink;
use std::path::{Path, PathBuf};
use stele_engine::RecoveringStore;
use stele_raftstore::EntryRecovery;
use stele_types::{Error, Result, StoreId, StoreIdent};
use stele_vfs::{RealVfs, Vfs};

/// A directory that does not open yet.
pub(super) struct DamagedDir {
    pub dir: PathBuf,
    pub ident: StoreIdent,
    mender: EntryRecovery<RecoveringStore>,
}

/// Looks at a directory that did not open. Fails with what opening said when no copies of entries
/// would help.
pub(super) fn begin(config: &Config, dir: &Path, error: Error) -> Result<DamagedDir> {
    if !error.is_damage() {
        return Err(error);
    }
    let Some(mending) = open::mending(config, dir)? else { return Err(error) };
    // Without its number nobody could answer it.
    let Some(ident) = mending.ident() else { return Err(error) };
    let mender = EntryRecovery::new(ident.store, mending);
    let (store, (lost, _)) = (ident.store, mender.lost());
    tracing::warn!(
        "{}: {lost} entries of the log can't be read: store {store} neither votes nor acknowledges \
         until copies of other stores are in their places",
        dir.display()
    );
    Ok(DamagedDir { dir: dir.to_path_buf(), ident, mender })
}

/// Lets a directory wait; the store is added to the others when it is whole.
pub(super) fn wait(lost: DamagedDir, parts: &Parts) -> Result<()> {
    let DamagedDir { dir, ident, mender } = lost;
    let device_bytes = RealVfs::new().total_bytes(&dir)?;
    let members = parts.members.clone();
    let around = RecoveryContext {
        clock: parts.clock.clone(),
        outward: parts.edge.clone(),
        stores: Box::new(move || members.stores()),
    };
    let opens = {
        let (config, clock, dir) = (parts.config.clone(), parts.clock.clone(), dir.clone());
        let (stores, edge) = (parts.stores.clone(), parts.edge.clone());
        move || -> Result<()> {
            // Only a new directory is marked with the number.
            let engine = open::engine(&config, &dir, StoreId(super::random() | 1))?;
            stores.add(start_store(&config, engine, ident, &clock, &edge)?);
            Ok(())
        }
    };
    let (stores, edge) = (parts.stores.clone(), parts.edge.clone());
    let ended = move |ended: Result<bool>| {
        let opened = ended.and_then(|is_whole| if is_whole { opens() } else { Ok(()) });
        stores.remove_waiting(ident.store);
        match opened {
            Ok(()) => edge.news.notify_one(),
            Err(error) => edge.failed(ident.store, error),
        }
    };
    // On the list before its thread can take it off.
    let mut waiting = parts.stores.waiting_list();
    waiting.push(RecoveryThread::start(mender, (dir, device_bytes), around, ended)?);
    Ok(())
}
