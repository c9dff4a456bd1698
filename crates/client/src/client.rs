//! Client handle.

use crate::backoff::{Pause, Tries};
use crate::connections::Connections;
use crate::pd_rpc_client::PdRpcClient;
use crate::route::Router;
use crate::wire::{Dial, Network};
use crate::{Control, Options};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
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
    /// Connects through any of these nodes (`host:port`; `http://` before it is accepted, TLS is not
    /// offered). Fails with `Invalid` if one is not an address, and with `Unavailable` if none responds
    /// within the default timeout.
    pub async fn connect(addresses: &[impl AsRef<str>]) -> Result<Self> {
        Self::connect_with(addresses, Options::default()).await
    }

    /// Connects, with options for all calls of the handle.
    pub async fn connect_with(addresses: &[impl AsRef<str>], options: Options) -> Result<Self> {
        let network = Network { connect_timeout: options.connect_timeout };
        Self::connect_through(Box::new(network), addresses, options).await
    }

    /// Connects through connections that `dial` makes.
    pub(crate) async fn connect_through(
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
        }
    }
}
