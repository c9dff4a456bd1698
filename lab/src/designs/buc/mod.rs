//! Scans of a number of pairs as BUC-Raft serves them (sections 4.3 and 5.1 of its paper): from a
//! view and the log entries that are not applied, or after a wait.
//!
//! The log read comes first: the changes in the window that are related to the scan
//! ([`Related`]). Without a delete among them, the scan reads its number of pairs from the view and
//! merges (*immediate read*). With `k` deletes, it either reads `k` more pairs and merges
//! (*consistent request*), or waits until the last related entry, `rr`, is applied and reads only the
//! view (*relaxed read*). With `A` for the last applied entry, it reads more if
//!
//! ```text
//! k · c_read < (rr − A) · c_apply
//! ```
//!
//! Both costs are measured while the group runs ([`Costs`]). The product needs none of this: its scan
//! reads on while it merges (`stele_storage::Overlaid`), so that it needs no `k` and never waits.

mod costs;
mod related;

pub use costs::{Costs, Counts, Decision};
pub use related::{Related, both};
