//! Garbage collection over a real log and index on the simulated disk.

mod crash;
mod expiry;
mod harness;
mod many_files;
mod policies;
mod relocate;
mod removal;
mod space;
mod unreadable;
mod views;
