//! Newtypes for identifiers, so that a region number is never passed in place of a term.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl $name {
            /// Returns the next identifier. The largest one returns itself, so that a damaged
            /// number never wraps to 0.
            pub fn next(self) -> Self {
                Self(self.0.saturating_add(1))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A store: one data directory on one device. Chosen at random when the directory is created.
    StoreId(u64)
);
id!(
    /// A region: a key range and its Raft group.
    RegionId(u64)
);
id!(
    /// A replica of a region; unique in the cluster and never reused.
    PeerId(u64)
);
id!(
    /// A cluster; chosen at random when it is created, never 0.
    ClusterId(u64)
);
id!(
    /// A Raft term.
    Term(u64)
);
id!(
    /// A Raft log index within one region; the first entry has index 1.
    LogIndex(u64)
);
id!(
    /// A moment: a cut of all regions at one instant. Later ones have greater numbers.
    MomentId(u64)
);
id!(
    /// The store's apply sequence: one number for each applied operation. Restarts at each open.
    Seq(u64)
);
id!(
    /// A value file: a log segment or a sorted value file. Never reused, even when a segment's
    /// blocks are recycled, so that a stale frame or locator cannot be mistaken for a current one.
    FileId(u32)
);
id!(
    /// An immutable sorted index file.
    RunId(u64)
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_follows_the_last_identifier_but_itself() {
        assert_eq!((FileId(7).next(), FileId(u32::MAX).next()), (FileId(8), FileId(u32::MAX)));
        assert_eq!(LogIndex(u64::MAX).next(), LogIndex(u64::MAX));
    }
}
