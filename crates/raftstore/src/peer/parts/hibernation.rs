//! Idle time of a replica, and whether its ticks are stopped.

use crate::messages::RaftKind;

/// Idle state of a replica.
#[derive(Debug, Default)]
pub(crate) struct Hibernation {
    /// Ticks without work.
    idle_ticks: u64,
    is_active: bool,
}

/// Effect of a message on the idle state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// Not work.
    None,
    /// A leader runs; not work.
    HasLeader,
    /// Work, or the sign that the leader is awake.
    Wake,
}

impl Hibernation {
    /// Returns whether ticks are stopped.
    pub fn is_active(&self) -> bool {
        self.is_active
    }

    /// Stops ticks.
    pub fn start(&mut self) {
        self.is_active = true;
    }

    /// Resumes ticks. Returns whether they were stopped.
    pub fn end(&mut self) -> bool {
        self.idle_ticks = 0;
        std::mem::take(&mut self.is_active)
    }

    /// Counts a tick, in which leases served reads or not.
    pub fn note_tick(&mut self, has_served: bool) {
        self.idle_ticks = if has_served { 0 } else { self.idle_ticks + 1 };
    }

    /// Returns whether the region was idle for `after_ticks`; 0 disables hibernation.
    pub fn is_due(&self, after_ticks: u64) -> bool {
        after_ticks != 0 && self.idle_ticks >= after_ticks
    }

    /// Returns whether this tick is one of every `ticks` idle ones.
    pub fn is_every(&self, ticks: u64) -> bool {
        self.idle_ticks.is_multiple_of(ticks)
    }

    /// Returns the effect of a message. A heartbeat does not end the idle time. It wakes a
    /// hibernating follower, because the leader is awake. Every other message except a heartbeat
    /// reply counts as work.
    pub fn reaction(&self, kind: RaftKind) -> Reaction {
        match kind {
            RaftKind::HeartbeatResponse => Reaction::None,
            RaftKind::Heartbeat if !self.is_active => Reaction::HasLeader,
            _ => Reaction::Wake,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_idle_ticks_in_a_row_lead_to_hibernation() {
        // Ticks, whether reads were served in each; limit; whether it is reached.
        let rows: [(&[bool], u64, bool); 5] = [
            (&[false; 9], 10, false),
            (&[false; 10], 10, true),
            (&[false, false, true, false], 3, false),
            (&[true, false, false], 2, true),
            (&[false; 10], 0, false),
        ];
        for (ticks, limit, is_due) in rows {
            let mut hibernation = Hibernation::default();
            ticks.iter().for_each(|has_served| hibernation.note_tick(*has_served));
            assert_eq!(hibernation.is_due(limit), is_due, "{ticks:?}, limit {limit}");
            hibernation.start();
            assert!(hibernation.is_active() && hibernation.end() && !hibernation.end());
            assert!(!hibernation.is_due(1));
        }
    }

    #[test]
    fn a_heartbeat_wakes_only_a_replica_that_hibernates() {
        let rows = [
            (RaftKind::Heartbeat, Reaction::HasLeader, Reaction::Wake),
            (RaftKind::HeartbeatResponse, Reaction::None, Reaction::None),
            (RaftKind::Append, Reaction::Wake, Reaction::Wake),
            (RaftKind::RequestPreVote, Reaction::Wake, Reaction::Wake),
        ];
        for (kind, awake, hibernating) in rows {
            let mut hibernation = Hibernation::default();
            assert_eq!(hibernation.reaction(kind), awake, "{kind:?}");
            hibernation.start();
            assert_eq!(hibernation.reaction(kind), hibernating, "{kind:?}, hibernating");
        }
    }
}
