//! Clients over a simulated transport, for tests: everything above the connections is the product's.

pub use crate::connections::{Dial, Dialled, Wire, over};
pub use crate::watch::{Cursors, First, Mark, MarkPart, Position, StreamId, Wanted};

use crate::{Client, Options, backoff};
use stele_types::Result;

/// Connects a client through connections that `dial` makes. The pauses of all calls of this thread are
/// those of the seed.
pub async fn connect(
    dial: Box<dyn Dial>,
    addresses: &[impl AsRef<str>],
    options: Options,
    seed: u64,
) -> Result<Client> {
    backoff::seed_pauses(seed);
    Client::connect_through(dial, addresses, options).await
}
