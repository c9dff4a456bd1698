//! Snapshots between stores: pairs of a pinned view out, a staged range in.
