//! Names of a node's threads: the kernel counts CPU time by thread, so the names show what each
//! stage used.

/// Purpose of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// Runtime: both protocols, requests, the transport between nodes, and blocking calls.
    Network,
    /// Store loop: consensus, log and apply.
    Store,
    /// Writes of a store's log, beside its loop.
    Write,
    /// Reads of pairs for the modifications of a store, beside its loop.
    Lookup,
    /// Flushes, merges, garbage collection and scrubbing of a store.
    Maintenance,
    /// Recovery of a store with lost log entries.
    EntryRecovery,
}

impl Thread {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Network,
        Self::Store,
        Self::Write,
        Self::Lookup,
        Self::Maintenance,
        Self::EntryRecovery,
    ];

    /// Returns the start of the thread's name; a store's id follows where there is one. The kernel
    /// keeps 15 bytes of a name.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Network => "stele-network",
            Self::Store => "stele-store-",
            Self::Write => "stele-write-",
            Self::Lookup => "stele-lookup-",
            Self::Maintenance => "stele-maintain-",
            Self::EntryRecovery => "stele-recover-",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_keeps_of_a_name_tells_the_kinds_apart() {
        for thread in Thread::ALL {
            assert!(thread.prefix().len() <= 15, "{thread:?}");
            let begin_so = |other: &Thread| thread.prefix().starts_with(other.prefix());
            assert_eq!(Thread::ALL.into_iter().filter(begin_so).count(), 1, "{thread:?}");
        }
    }
}
