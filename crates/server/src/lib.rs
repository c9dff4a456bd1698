//! Network side of a node: protocols, transport, store loops, configuration and observability.

#[cfg(test)]
extern crate self as stele_server;

pub mod access;
pub(crate) mod cluster_client;
pub mod config;
pub mod control;
pub mod descriptors;
pub mod followers;
pub(crate) mod http;
pub mod load;
pub mod majorities;
pub mod members;
pub mod memory;
pub mod node;
pub mod observe;
pub mod pd;
pub mod placement;
pub mod port;
pub mod recover;
pub mod recovery_thread;
pub(crate) mod redis;
pub mod snapshot_transfer;
pub mod store;
pub mod stores;
pub mod tasks;
pub mod tikv;
pub mod transport;

#[doc(hidden)]
pub mod fuzzing {
    //! Decoders of bytes from outside, for fuzz targets.
    pub use crate::placement::fuzzing::*;
}
