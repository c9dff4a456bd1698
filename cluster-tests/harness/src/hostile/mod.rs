//! Hostile input on an open port.

pub(crate) mod calls;
pub(crate) mod memory;
pub(crate) mod sockets;
pub(crate) mod tls;
