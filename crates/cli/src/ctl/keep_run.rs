//! `stele ctl keep-run`: one of two runs of a store that stopped beside each other goes on.

use crate::Outcome;
use crate::store::Store;
use crate::terminal::print;
use std::path::PathBuf;
use stele_client::Control;
use stele_types::{Error, Result, StoreId};

/// What follows, which no further command takes back.
const REST: &str = "The other directory of the store is no longer heard. Writes that only it holds are \
                    lost permanently; start its node without it\n";

pub(super) async fn online(
    control: &Control,
    store: StoreId,
    address: Option<&str>,
) -> Result<Outcome> {
    let Some(address) = address else {
        return Err(Error::invalid("name the address of the node that has the directory to keep"));
    };
    let run = control.keep_run(store, address).await?;
    print(&format!("store {store} goes on at {address} as {run}. {REST}"));
    Ok(Outcome::Done)
}

/// Makes the directory of a node that does not run go on at its next start. Fails if it is another store.
pub(super) fn offline(dirs: &[PathBuf], store: StoreId) -> Result<Outcome> {
    let [dir] = dirs else {
        return Err(Error::invalid("name one directory with --store: that of the run to keep"));
    };
    Store::check_exists(dir)?;
    stele_server::recover::keep_run(dir, store)?;
    print(&format!("store {store} goes on with {} at its next start. {REST}", dir.display()));
    Ok(Outcome::Done)
}
