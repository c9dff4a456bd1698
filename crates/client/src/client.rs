//! Client handle.

use crate::backoff::{Pause, Tries};
use crate::connections::Connections;
use crate::pd_rpc_client::PdRpcClient;
use crate::route::Router;
use crate::wire::{Dial, Network};
use crate::{Control, Options, convert};
use bytes::Bytes;
use std::sync::Arc;
use stele_types::{ClusterId, ColumnFamily, Error, RegionId, Result, StoreId};

/// Handle of a cluster. Clones share connections and cached regions.
#[derive(Clone)]
pub struct Client {
    pub(crate) router: Arc<Router>,
    pub(crate) family: ColumnFamily,
    pub(crate) options: Options,
}

impl Client {
    /// Connects through any of these nodes (`host:port`). Fails with `Unavailable` if none responds
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
        let addresses: Vec<String> =
            addresses.iter().map(|address| convert::host_port(address.as_ref())).collect();
        if addresses.iter().all(String::is_empty) {
            return Err(Error::invalid("name a node of the cluster as host:port"));
        }
        let connections = Arc::new(Connections::new(dial, &options));
        let pd_client = PdRpcClient::new(Arc::clone(&connections), addresses);
        let mut tries = Tries::new(&options);
        while let Err(reason) = pd_client.refresh().await {
            tries.pause(Pause::Region, reason).await?;
        }
        // A store's address that is missing is looked up when it is needed.
        let _ = pd_client.refresh_stores().await;
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
