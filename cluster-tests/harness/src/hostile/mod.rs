//! Hostile input on an open port.

pub mod calls;
pub mod memory;
pub mod sockets;
