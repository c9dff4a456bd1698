//! `stele ctl admit` and `stele ctl join-token`: permissions to join for nodes with certificates.

use crate::Outcome;
use crate::terminal::print;
use stele_client::Control;
use stele_tls::{new_token, token_hash};
use stele_types::{Result, StoreId};

pub(super) async fn node(control: &Control, name: &str, valid_s: u64) -> Result<Outcome> {
    control.admit_node(name, valid_s).await?;
    print(&format!("node {name} may join once within {valid_s} s\n"));
    Ok(Outcome::Done)
}

pub(super) async fn store(control: &Control, name: &str, store: StoreId) -> Result<Outcome> {
    control.move_store(store, name).await?;
    print(&format!("store {store} is one of node {name} from now on\n"));
    Ok(Outcome::Done)
}

/// Prints a new token. The cluster gets its hash alone.
pub(super) async fn token(control: &Control, valid_s: u64) -> Result<Outcome> {
    let token = new_token()?;
    control.admit_token(token_hash(token.as_bytes()), valid_s).await?;
    print(&format!("{token}\n"));
    Ok(Outcome::Done)
}
