//! Client of the cluster that a node uses for the clients of its own protocols, Redis and HTTP. Routes and
//! retries are those of the Rust client. Calls to the node itself reach its services without a socket.
//!
//! Invariant: a node makes a call of keys only for a client of which it has checked the rights, and marks it.
//! By its own certificate it makes none.
//! Test: `a_call_of_keys_with_the_mark_of_a_node_is_for_nodes_alone`.
//!
//! Invariant: a call to the node itself passes no socket: it would cost more than all else of a get.
//! Test: `a_node_makes_no_connection_to_itself_for_its_clients`.

use crate::access::{Access, FOR_CLIENT};
use crate::memory::Accounted;
use axum::http::{HeaderName, HeaderValue, Request, Response};
use std::time::Duration;
use stele_client::{Client, Dial, Dialled, Options, over};
use stele_types::Result;
use tokio::sync::OnceCell;
use tonic::body::Body;
use tonic::transport::Endpoint;
use tower::ServiceExt;

/// Time in which a call is tried.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const PING_INTERVAL: Duration = Duration::from_secs(1);
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// Connections of a node to nodes, as a node.
struct NodeDial {
    access: Access,
    /// Address of this node for clients, and its services.
    own: (String, Accounted),
}

impl Dial for NodeDial {
    fn dial<'a>(&'a self, address: &'a str) -> Dialled<'a> {
        Box::pin(async move {
            let (own_address, services) = &self.own;
            // bug server.own_calls_by_socket: let own_address = "";
            if address == own_address {
                let services = services.clone().map_request(marked);
                return Ok(over(services.map_response(|it: Response<_>| it.map(Body::new))));
            }
            let invalid = |error| format!("`{address}` is not an address (host:port): {error}");
            let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(invalid)?;
            let endpoint = endpoint
                .connect_timeout(CONNECT_TIMEOUT)
                .http2_keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_TIMEOUT);
            let connected = self.access.connect(&endpoint).await;
            let channel = connected.map_err(|error| format!("{address}: {error}"))?;
            Ok(over(channel.map_request(marked)))
        })
    }
}

fn marked(mut request: Request<Body>) -> Request<Body> {
    let name = HeaderName::from_static(FOR_CLIENT);
    request.headers_mut().insert(name, HeaderValue::from_static("1"));
    request
}

/// Client that connects at its first use.
pub(crate) struct ClusterClient {
    access: Access,
    /// Address of this node for clients, and its services.
    own: (String, Accounted),
    client: OnceCell<Client>,
}

impl ClusterClient {
    /// Creates the client of a node with this address for clients, and these services for itself.
    pub(crate) fn new(access: Access, own: (String, Accounted)) -> Self {
        Self { access, own, client: OnceCell::new() }
    }

    /// Returns the connected client. Fails as calls do.
    pub(crate) async fn get(&self) -> Result<&Client> {
        let connect = || {
            let dial = Box::new(NodeDial { access: self.access.clone(), own: self.own.clone() });
            let options = Options { timeout: CALL_TIMEOUT, ..Options::default() };
            Client::connect_through(dial, std::slice::from_ref(&self.own.0), options)
        };
        self.client.get_or_try_init(connect).await
    }
}
