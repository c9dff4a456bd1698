//! Names of rules for programs. They do not change between versions.

use super::judge::Rule;

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
