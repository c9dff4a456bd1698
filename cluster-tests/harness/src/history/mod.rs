//! Concurrent clients with recorded operations, which are checked for linearizability.

mod check;
mod client;
mod counts;
mod ledger;
mod load;
mod operation;
mod rules;

pub(crate) use check::Checker;
pub(crate) use client::{Keys, Recorder};
pub(crate) use counts::Counts;
pub(crate) use ledger::{Ledger, PREFIX as LEDGER_PREFIX};
pub(crate) use load::{Load, LoadOptions, Recorded};
pub(crate) use rules::Rules;

/// Keys that split the keys of histories and ledgers into several regions. No group is divided.
pub(crate) const PREFIX_SPLITS: [&[u8]; 9] = [
    b"history/",
    b"history/0",
    b"history/resize/02",
    b"history/resize/04",
    b"ledger/",
    b"ledger/000/000000500",
    b"ledger/001/",
    b"ledger/001/000000500",
    b"ledger/002",
];
