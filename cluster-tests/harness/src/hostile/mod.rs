//! Hostile input on an open port.

pub mod calls;
pub mod sockets;
