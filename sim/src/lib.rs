//! Simulation of a whole cluster in one thread: the product's consensus and engine, many stores on
//! simulated disks, and a network, clocks and clients that follow from a seed. The same seed gives
//! the same run.

pub mod args;
pub mod check;
pub mod clients;
mod collections;
mod copies;
pub mod damaged_payloads;
mod deposed;
pub mod faults;
mod follower;
pub mod group;
pub mod hardware;
pub mod helical;
pub mod history;
mod lost_majority;
pub mod minimise;
pub mod moments;
pub mod nemesis;
pub mod plan;
mod reopened;
pub mod run;
pub mod segments;
pub mod trace;
pub mod world;
