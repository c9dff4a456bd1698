//! What strangers may send to an open port.

pub mod calls;
pub mod sockets;
