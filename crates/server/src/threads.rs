//! A node's threads by their names, which is how the kernel's counts tell what each stage used.

/// What a thread is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// The runtime's: both protocols, requests, the transport between nodes, and calls that block.
    Network,
    /// A store's loop: consensus, the log and what is applied.
    Store,
    /// A store's flushes, merges, garbage collection and search for damage.
    Maintenance,
    /// A store that waits for copies of what its log lost.
    EntryRecovery,
}

impl Thread {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Network, Self::Store, Self::Maintenance, Self::EntryRecovery];

    /// The beginning of its name; a store's number follows where it has one. The kernel keeps 15 bytes of
    /// a name.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Network => "stele-network",
            Self::Store => "stele-store-",
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
