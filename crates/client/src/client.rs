//! Client handle, and its options.

use crate::Control;
use crate::backoff::{Pause, Tries};
use crate::connections::{Connections, Dial, Network, bearer};
use crate::pd_rpc_client::PdRpcClient;
use crate::route::Router;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use stele_tls::ClientTls;
use stele_types::{ClusterId, ColumnFamily, Error, RegionId, Result, StoreId, address};

/// Time in which the addresses of all stores are awaited before the first call.
const ADDRESSES_WITHIN: Duration = Duration::from_millis(500);

/// Handle of a cluster. Clones share connections and cached regions.
#[derive(Clone)]
pub struct Client {
    pub(crate) router: Arc<Router>,
    pub(crate) family: ColumnFamily,
    pub(crate) options: Options,
}

impl Client {
    /// Connects through any of these nodes (`host:port`; `http://` before it is accepted). Fails with `Invalid` if one is not an address, and with `Unavailable` if none responds
    /// within the default timeout.
    pub async fn connect(addresses: &[impl AsRef<str>]) -> Result<Self> {
        Self::connect_with(addresses, Options::default()).await
    }

    /// Connects, with options for all calls of the handle.
    pub async fn connect_with(addresses: &[impl AsRef<str>], options: Options) -> Result<Self> {
        let connect_timeout = options.connect_timeout;
        let network = Network { connect_timeout, tls: None, token: None };
        Self::connect_through(Box::new(network), addresses, options).await
    }

    /// Connects over TLS. New connections have the files that `tls` holds at that time: a caller that
    /// reloads it rotates certificates. With a `token` its rights count, and not those of a certificate. Fails
    /// with `Invalid` if it is not one.
    pub async fn connect_over_tls(
        addresses: &[impl AsRef<str>],
        tls: Arc<ClientTls>,
        token: Option<&str>,
        options: Options,
    ) -> Result<Self> {
        let connect_timeout = options.connect_timeout;
        let token = token.map(bearer).transpose()?;
        let network = Network { connect_timeout, tls: Some(tls), token };
        Self::connect_through(Box::new(network), addresses, options).await
    }

    /// Connects through connections that `dial` makes.
    pub async fn connect_through(
        dial: Box<dyn Dial>,
        addresses: &[impl AsRef<str>],
        options: Options,
    ) -> Result<Self> {
        let bare = |text: &str| address::to_connect(text).map(str::to_owned);
        let addresses = addresses.iter().map(|address| bare(address.as_ref()));
        let addresses = addresses.collect::<Result<Vec<String>>>()?;
        if addresses.is_empty() {
            return Err(Error::invalid("name a node of the cluster as host:port"));
        }
        let connections = Arc::new(Connections::new(dial, &options));
        let pd_client = PdRpcClient::new(Arc::clone(&connections), addresses);
        let mut tries = Tries::new(&options);
        while let Err(reason) = pd_client.refresh().await {
            tries.pause(Pause::Region, reason).await?;
        }
        // A store's address that is missing is looked up when it is needed. Only a leader knows them.
        let _ = tokio::time::timeout(ADDRESSES_WITHIN, pd_client.refresh_stores()).await;
        let router = Arc::new(Router::new(connections, pd_client));
        Ok(Self { router, family: ColumnFamily::Default, options })
    }

    /// Returns the cluster to which this client is connected.
    pub fn cluster(&self) -> ClusterId {
        ClusterId(self.router.pd_client.cluster())
    }

    /// Returns a handle for the keys of another column family.
    #[must_use]
    pub fn family(&self, family: ColumnFamily) -> Self {
        Self { family, ..self.clone() }
    }

    /// Returns a handle with other timeouts and another retry policy. Connections keep the options
    /// with which they were made.
    #[must_use]
    pub fn with(&self, options: Options) -> Self {
        Self { options, ..self.clone() }
    }

    /// Returns the region of a key and the store of its leader, from this client's cache if it is
    /// there.
    pub async fn locate(&self, key: impl Into<Bytes>) -> Result<(RegionId, StoreId)> {
        let route = self.router.locate(&key.into(), &mut self.tries()).await?;
        Ok((route.region.id, route.peer.store))
    }

    /// Returns the administrative interface.
    pub fn control(&self) -> Control {
        Control::new(Arc::clone(&self.router), self.options)
    }

    pub(crate) fn tries(&self) -> Tries {
        Tries::new(&self.options)
    }

    pub(crate) fn family_name(&self) -> String {
        match self.family {
            ColumnFamily::Default => String::new(),
            ColumnFamily::Lock => "lock".to_owned(),
            ColumnFamily::Write => "write".to_owned(),
            ColumnFamily::Redis => "redis".to_owned(),
        }
    }
}

/// Timeouts, connections and retry policy of a client.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Time limit of a call with all its attempts.
    pub timeout: Duration,
    /// Time limit of one attempt; a slower node counts as unreachable.
    pub attempt_timeout: Duration,
    /// Time limit for making a connection.
    pub connect_timeout: Duration,
    /// Number of connections to each node, used in turn.
    pub connections_per_node: usize,
    /// Whether a put or delete is repeated if an attempt may have taken effect. The cost: the
    /// repetition may take effect after another client's later write of the same key and overwrite
    /// it, although that write was acknowledged. Without it, such a call fails with `Undetermined`,
    /// as a compare-and-swap always does, and the caller decides.
    pub repeat_undetermined: bool,
    /// Receives the reason of a wait, once a call has waited 2 s because too few voters of the
    /// placement group are up. It is called once for each call.
    pub on_wait: Option<fn(&str)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(20),
            attempt_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(1),
            connections_per_node: 2,
            repeat_undetermined: false,
            on_wait: None,
        }
    }
}
