//! Rules as text, each of which reads after the name of the store, and their names for programs,
//! which do not change between versions.

use crate::schedule::judge::{Rule, Verdict};
use crate::speed::SpeedClass;
use std::fmt;

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "store {} {}", self.store, self.rule)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(reason) => write!(f, "changes nothing: {reason}"),
            Self::TakesNone(reason) => f.write_str(reason),
            _ if self.is_of_leader() => self.fmt_leader(f),
            _ => self.fmt_data(f),
        }
    }
}

fn speeds(first: SpeedClass, word: &str, second: SpeedClass) -> String {
    format!("{} {word} {} operations a second", first.per_second(), second.per_second())
}

fn percent(permille: u64) -> String {
    format!("{}.{} %", permille / 10, permille % 10)
}

/// Returns why nothing moves from a store at the level `from` to one at `to`: a tolerance counts only
/// where there is a difference that a move could lower.
fn even(from: u64, to: u64) -> String {
    match from.checked_sub(to) {
        None => "which is less".to_owned(),
        Some(0) => "which is as much".to_owned(),
        Some(more) => format!("which is more by {}, within the tolerance", percent(more)),
    }
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

impl Rule {
    fn is_of_leader(&self) -> bool {
        matches!(
            self,
            Self::Leads
                | Self::LeadsUntil(_)
                | Self::TakesLead { .. }
                | Self::SharesLead { .. }
                | Self::NoLeader
                | Self::IsLearner
                | Self::Lags
                | Self::Slower { .. }
                | Self::ReadBound { .. }
                | Self::MovedRecently { .. }
                | Self::LeadersEven { .. }
                | Self::LeadersNotImproved { .. }
        )
    }

    fn fmt_leader(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leads => f.write_str("leads: no other voter is a better leader"),
            Self::LeadsUntil(to) => write!(f, "leads until store {to} takes the lead"),
            Self::TakesLead { class, leader } => {
                write!(f, "takes the lead: {}", speeds(*class, "against", *leader))
            }
            Self::SharesLead { from_after, to_after } => write!(
                f,
                "takes the lead: its leaders' load is then {} of the mean for its speed, that of \
                 the leader's store {}",
                percent(*to_after),
                percent(*from_after)
            ),
            Self::NoLeader => f.write_str("waits: the region has no known leader"),
            Self::IsLearner => f.write_str("does not lead: its replica has no vote"),
            Self::Lags => f.write_str("does not lead: its replica lags or does not respond"),
            Self::Slower { class, best } => {
                let (class, best) = (class.per_second(), best.per_second());
                write!(
                    f,
                    "does not lead: it counts as {class} operations a second, a faster voter as {best}"
                )
            }
            Self::ReadBound { reads, max } => write!(
                f,
                "does not lead: it would serve {reads} reads a second, and its device may serve {max}"
            ),
            Self::MovedRecently { seconds } => {
                write!(f, "does not lead: the leadership may move again in {seconds} s")
            }
            Self::LeadersEven { from, to } => write!(
                f,
                "does not lead: the leaders' load for its speed is {} of the mean, that of the \
                 leader's store {}, {}",
                percent(*to),
                percent(*from),
                even(*from, *to)
            ),
            Self::LeadersNotImproved { from_after, to_after } => write!(
                f,
                "does not lead: its leaders' load for its speed would be {} of the mean, that of \
                 the leader's store {}",
                percent(*to_after),
                percent(*from_after)
            ),
            _ => Ok(()),
        }
    }

    fn fmt_data(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HasReplica => f.write_str("has a replica"),
            Self::SharesDomain { label: None, .. } => {
                f.write_str("is on a node that has a replica")
            }
            Self::SharesDomain { with, label: Some(label) } => {
                write!(f, "shares the label `{label}` with store {with}, which has a replica")
            }
            Self::Full => f.write_str("is full"),
            Self::TooFull(room) => write!(
                f,
                "has no room for the region: {} MiB in use and {} MiB under way, of at most {} MiB",
                mib(room.held),
                mib(room.coming),
                mib(room.limit)
            ),
            Self::Receives { max } => {
                write!(f, "already receives as many replicas as allowed, {max}")
            }
            Self::MovesEnough { store, bytes, max } => write!(
                f,
                "waits: store {store} already moves {} MiB of at most {} MiB",
                mib(*bytes),
                mib(*max)
            ),
            Self::Suffers { store, measured, class } => write!(
                f,
                "waits: store {store} moves a region and does {}",
                speeds(*measured, "instead of", *class)
            ),
            _ => self.fmt_levels(f),
        }
    }

    fn fmt_levels(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DataEven { from_store, from, to } => write!(
                f,
                "takes no replica: it holds {} of the mean for its weight, store {from_store} {}, \
                 {}",
                percent(*to),
                percent(*from),
                even(*from, *to)
            ),
            Self::ReplicaMovedRecently { from_store, seconds } => write!(
                f,
                "takes no replica: that of store {from_store} may move again in {seconds} s"
            ),
            Self::DataNotImproved { from_store, from_after, to_after } => write!(
                f,
                "takes no replica: it would hold {} of the mean for its weight, store {from_store} \
                 {}",
                percent(*to_after),
                percent(*from_after)
            ),
            Self::LowersQuorum { before, after } => write!(
                f,
                "takes no replica: the slowest voter that a write waits for would do {}",
                speeds(*after, "instead of", *before)
            ),
            Self::TakesReplica { from_store, from_after, to_after, .. } => write!(
                f,
                "takes the replica of store {from_store}: it then holds {} of the mean for its \
                 weight, store {from_store} {}",
                percent(*to_after),
                percent(*from_after)
            ),
            Self::RaisesQuorum { from_store, before, after } => write!(
                f,
                "takes the replica of store {from_store}: the slowest voter that a write waits for \
                 then does {}",
                speeds(*after, "instead of", *before)
            ),
            Self::NoFasterQuorum { before, after, to_after } => write!(
                f,
                "takes no replica: the slowest voter that a write waits for would do {}, and the \
                 store would hold {} of the mean for its weight",
                speeds(*after, "instead of", *before),
                percent(*to_after)
            ),
            _ => Ok(()),
        }
    }
}

impl Rule {
    /// Returns the name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Leads => "leads",
            Self::LeadsUntil(_) => "leads-until",
            Self::TakesLead { .. } => "takes-lead",
            Self::SharesLead { .. } => "shares-lead",
            Self::NoLeader => "no-leader",
            Self::IsLearner => "learner",
            Self::Lags => "lags",
            Self::TakesNone(_) => "takes-none",
            Self::Slower { .. } => "slower",
            Self::ReadBound { .. } => "read-bound",
            Self::MovedRecently { .. } => "moved-recently",
            Self::ReplicaMovedRecently { .. } => "replica-moved-recently",
            Self::LeadersEven { .. } => "leaders-even",
            Self::LeadersNotImproved { .. } => "leaders-not-improved",
            Self::Fixed(_) => "fixed",
            Self::HasReplica => "has-replica",
            Self::SharesDomain { .. } => "shares-domain",
            Self::TooFull(_) => "too-full",
            Self::Full => "full",
            Self::Receives { .. } => "receives",
            Self::MovesEnough { .. } => "moves-enough",
            Self::Suffers { .. } => "suffers",
            Self::DataEven { .. } => "data-even",
            Self::DataNotImproved { .. } => "data-not-improved",
            Self::LowersQuorum { .. } => "lowers-quorum",
            Self::TakesReplica { .. } => "takes-replica",
            Self::RaisesQuorum { .. } => "raises-quorum",
            Self::NoFasterQuorum { .. } => "no-faster-quorum",
        }
    }
}
