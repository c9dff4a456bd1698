//! Listeners of a node, and the classes of calls that each serves. One listener serves all, unless the settings
//! `peer_listen` and `admin_listen` give classes addresses of their own.

use super::calls::CallClass;
use super::principal::Principal;
use stele_tls::Identity;

/// Listener of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// That of `listen`: all classes but those with a listener of their own.
    Common {
        /// `peer_listen` is set.
        has_peer_listener: bool,
        /// `admin_listen` is set.
        has_admin_listener: bool,
    },
    /// That of `peer_listen`: calls and messages of nodes, and the calls that nodes forward.
    Peer,
    /// That of `admin_listen`: calls of administrators and what else these need.
    Admin,
}

const USE_LISTEN: &str = "this address does not serve it: use that of `listen`";
const USE_PEER_LISTEN: &str =
    "this address does not serve it: use that of `peer_listen`, also in `join`";
const USE_ADMIN_LISTEN: &str =
    "this address does not serve it: use that of `admin_listen`, or of `listen` without that";

impl Listener {
    /// The only listener of a node.
    pub const ONLY: Self = Self::Common { has_peer_listener: false, has_admin_listener: false };

    /// Returns why a call of this class is not served here; `None` if it is.
    ///
    /// Invariant: a class with a listener of its own is served there alone, except for what nodes forward
    /// to their leader.
    /// Tests: `each_listener_serves_its_classes`.
    pub(super) fn refusal(self, caller: &Principal, class: CallClass) -> Option<&'static str> {
        use CallClass::{Admin, Data, Forwarded, Health, Lookup, Peer, Status};
        let is_node = matches!(caller, Principal::Known(Identity::Node { .. }));
        let is_served = match (self, class) {
            (Self::Common { .. }, Forwarded) => true,
            (Self::Common { .. } | Self::Admin, Data | Lookup | Status | Health) => true,
            (Self::Peer, Data | Forwarded | Lookup | Status | Health)
            | (Self::Admin, Peer | Forwarded) => false,
            (Self::Common { has_peer_listener, .. }, Peer) => !has_peer_listener,
            (Self::Common { has_peer_listener, has_admin_listener }, Admin) => {
                !has_admin_listener || is_node && !has_peer_listener
            }
            (Self::Peer, Peer) | (Self::Admin, Admin) => true,
            (Self::Peer, Admin) => is_node || *caller == Principal::Plain,
        };
        // bug server.any_listener_serves: always
        if is_served {
            return None;
        }
        Some(match class {
            Data | Forwarded | Lookup | Status | Health => USE_LISTEN,
            Peer => USE_PEER_LISTEN,
            Admin => USE_ADMIN_LISTEN,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_tls::{ClientName, ClusterName, NodeName};

    #[test]
    fn each_listener_serves_its_classes() {
        use CallClass::{Admin, Data, Peer, Status};
        let (cluster, node) = (ClusterName::new("prod").unwrap(), NodeName::new("n1").unwrap());
        let node = Principal::Known(Identity::Node { cluster, node });
        let client = Principal::Known(Identity::Client(ClientName::new("root").unwrap()));
        let served = |listener: Listener, caller: &Principal| {
            [Data, Peer, Admin, Status].map(|class| listener.refusal(caller, class).is_none())
        };
        let common = |has_peer_listener, has_admin_listener| Listener::Common {
            has_peer_listener,
            has_admin_listener,
        };
        for caller in [&node, &client, &Principal::Plain] {
            assert_eq!(served(Listener::ONLY, caller), [true; 4]);
            assert_eq!(served(common(true, false), caller), [true, false, true, true]);
            assert_eq!(served(common(true, true), caller), [true, false, false, true]);
            assert_eq!(served(Listener::Admin, caller), [true, false, true, true]);
        }
        assert_eq!(served(common(false, true), &client), [true, true, false, true]);
        assert_eq!(served(common(false, true), &Principal::Plain), [true, true, false, true]);
        assert_eq!(served(common(false, true), &node), [true; 4], "it forwards them");
        assert_eq!(served(Listener::Peer, &node), [false, true, true, false]);
        assert_eq!(served(Listener::Peer, &Principal::Plain), [false, true, true, false]);
        assert_eq!(served(Listener::Peer, &client), [false, true, false, false]);
    }
}
