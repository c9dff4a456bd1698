//! A node's report to the placement leader, and its reply: settings, steps, removed peers.
