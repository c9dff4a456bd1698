//! Commands on names of several regions, as one change. `spec/Intents.tla` has the steps and their
//! invariants.
//!
//! 1. The node that received the commands is the coordinator. It draws the number of the transaction, creates
//!    its *record* beside the first name, and reads the headers, and the members that the commands need. A
//!    region reads by a program, so that what it answers is not older than the request.
//! 2. It executes the commands on what it has read. To each region but that of the record it sends one
//!    program, which writes an *intent* at each name: the header of a name with an intent holds the old and
//!    the new header, and the key of the record. Names that are only read get one too. A collection that
//!    changes gets all its members under a new stamp, which does not exist before the commit.
//! 3. One program in the region of the record commits: it checks the record and its own names, changes them,
//!    and makes the record a committed one.
//! 4. A process that meets an intent reads the record, and resolves the intent: to the new header if the
//!    record is committed, to the old one if it is absent. After the last intent the record is deleted.
//!
//! Steps of 1 overlap, and the programs of 2 overlap. Any process may abort: it deletes a record that is
//! not committed. Others do so when it is older than [`PENDING_MS_MAX`].
//!
//! Invariant: the coordinator sends the create, an intent and the commit of a transaction once. After an
//! unknown outcome it aborts, and tries again as another transaction: a create that is executed again
//! would make a transaction committed of which others have removed the intents.
//! Test: `no_step_of_a_transaction_is_sent_again_after_an_unknown_outcome`.
//!
//! Invariant: no intent is written before the record is there. A record that is absent means that the
//! transaction was aborted, or that it was committed and no intent of it is left.
//! Test: `transactions_over_regions_are_atomic_although_answers_are_lost`.

mod attempt;
mod changes;
mod coordinator;
mod layout;
mod resolver;
mod steps;
mod wire;

pub use changes::{Blocked, Executed, KeyChange};
pub use coordinator::{Commands, Coordinator, TransactionFailure};
pub use layout::{
    Intent, MetIntent, NewHeader, Record, RecordState, TransactionId, expiring_later,
};
pub use resolver::Resolver;
pub(crate) use steps::is_abandoned;
pub use steps::{Step, StepAnswer, StepProgram, Way};
pub use wire::StepRequest;

use crate::state::{Members, MembersNeed};
use bytes::Bytes;
use stele_types::RegionId;

/// Age in milliseconds from which any process may abort a transaction.
pub const PENDING_MS_MAX: u64 = 5_000;
/// Age in milliseconds from which the sweeper deletes the record of a transaction that was not decided.
pub const ABANDONED_MS: u64 = 3_600_000;
const _: () =
    assert!(ABANDONED_MS > PENDING_MS_MAX, "the sweeper leaves transactions in progress alone");

/// Number of an action that has an outcome. Outcomes of abandoned actions have no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// What the owner of a [`Coordinator`] or a [`Resolver`] does next. Each has one [`Event`], except
/// [`Action::Finish`].
#[derive(Debug)]
pub enum Action {
    /// Finds the regions of header keys.
    Locate {
        /// Number of the action.
        ticket: Ticket,
        /// Engine keys.
        header_keys: Vec<Bytes>,
    },
    /// Sends a program once to the leader of the region that has a key.
    Send {
        /// Number of the action.
        ticket: Ticket,
        /// Engine key.
        key: Bytes,
        /// The program.
        program: StepProgram,
    },
    /// Reads whole collections at a view of the leader of the region that has a key.
    ReadMembers {
        /// Number of the action.
        ticket: Ticket,
        /// Engine key.
        key: Bytes,
        /// The collections.
        needs: Vec<MembersNeed>,
    },
    /// Waits.
    Wait {
        /// Number of the action.
        ticket: Ticket,
        /// Milliseconds.
        ms: u64,
    },
    /// Passes the replies on. Actions that follow resolve intents, and need not be waited for.
    Finish(Result<Bytes, TransactionFailure>),
}

/// Outcome of an [`Action`].
#[derive(Debug)]
pub enum Event {
    /// The region of each key, in order, and numbers that were drawn at random for this event.
    Located(Result<Vec<RegionId>, String>, [u64; 4]),
    /// A program was decided, and what it changed is committed.
    Answered(StepAnswer),
    /// The collections.
    Members(Members),
    /// The request had no effect and will have none.
    NotDone(String),
    /// The request may have an effect, at any time.
    Unknown(String),
    /// The time has passed.
    Waited,
}

/// Bits of a ticket below the number of its range.
const RANGE_BITS: u32 = 32;

impl Ticket {
    /// Returns the number of the range.
    fn range(self) -> u64 {
        self.0 >> RANGE_BITS
    }
}

/// Source of [`Ticket`]s.
#[derive(Debug, Default)]
pub(crate) struct Tickets(u64);

impl Tickets {
    /// Creates a source of tickets with the number of their range in the upper half.
    pub(crate) fn of_range(range: u64) -> Self {
        Self(range << RANGE_BITS)
    }

    pub(crate) fn next(&mut self) -> Ticket {
        self.0 += 1;
        Ticket(self.0)
    }
}
