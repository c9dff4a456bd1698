//! A connection to a node, below everything that decides: the network, or a simulation of it.

use crate::transport;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use tonic::Status;
use tonic::body::Body;
use tonic::transport::Endpoint;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt};

/// Interval of pings while calls are open, and the time after which a node without a reply is
/// disconnected.
const PING_INTERVAL: Duration = Duration::from_secs(1);
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// A connection that carries any number of calls. A failure has the connection's error as its source.
pub type Wire = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Status>;

/// A connection in the making. The error is a text; nothing was sent then.
pub type Dialled<'a> = Pin<Box<dyn Future<Output = Result<Wire, String>> + Send + 'a>>;

/// Makes connections to nodes.
pub trait Dial: Send + Sync {
    /// Connects to `host:port`.
    fn dial<'a>(&'a self, address: &'a str) -> Dialled<'a>;
}

/// Makes connections over TCP.
pub(crate) struct Network {
    /// Time limit for a connection.
    pub connect_timeout: Duration,
}

impl Dial for Network {
    fn dial<'a>(&'a self, address: &'a str) -> Dialled<'a> {
        Box::pin(async move {
            let invalid = |error| format!("`{address}` is not an address (host:port): {error}");
            let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(invalid)?;
            let endpoint = endpoint
                .connect_timeout(self.connect_timeout)
                .http2_keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_TIMEOUT);
            let connected = transport::connect(endpoint).await;
            connected.map(over).map_err(|error| format!("{address}: {}", root_cause(&error)))
        })
    }
}

/// Makes a connection of a service that carries calls.
pub fn over<S>(service: S) -> Wire
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    BoxCloneSyncService::new(service.map_err(|error| Status::from_error(error.into())))
}

/// Returns the innermost cause, because outer errors say only that there is one.
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
