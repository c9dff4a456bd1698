//! The client's handle.

use crate::backoff::{Pause, Tries};
use crate::connections::Connections;
use crate::pd_rpc_client::PdRpcClient;
use crate::route::Router;
use crate::{Control, Options, convert};
use bytes::Bytes;
use std::sync::Arc;
use stele_types::{ClusterId, ColumnFamily, Error, RegionId, Result, StoreId};

/// A handle on a cluster; clones share connections and what is known of regions.
#[derive(Clone)]
pub struct Client {
    pub(crate) router: Arc<Router>,
    pub(crate) family: ColumnFamily,
    pub(crate) options: Options,
}

impl Client {
    /// Connects through any of these nodes (`host:port`). Fails with `Unavailable` if none answers
    /// within the default timeout.
    pub async fn connect(addresses: &[impl AsRef<str>]) -> Result<Self> {
        Self::connect_with(addresses, Options::default()).await
    }

    /// Connects, with options for all calls of the handle.
    pub async fn connect_with(addresses: &[impl AsRef<str>], options: Options) -> Result<Self> {
        let addresses: Vec<String> =
            addresses.iter().map(|address| convert::host_port(address.as_ref())).collect();
        if addresses.iter().all(String::is_empty) {
            return Err(Error::invalid("name a node of the cluster as host:port"));
        }
        let connections = Arc::new(Connections::new(options));
        let directory = PdRpcClient::new(Arc::clone(&connections), addresses);
        let mut tries = Tries::new(options.timeout);
        while let Err(why) = directory.refresh().await {
            tries.pause(Pause::Region, why).await?;
        }
        // What is missing is asked for when it is needed.
        let _ = directory.refresh_stores().await;
        let router = Arc::new(Router::new(connections, directory));
        Ok(Self { router, family: ColumnFamily::Default, options })
    }

    /// The cluster this client is connected to.
    pub fn cluster(&self) -> ClusterId {
        ClusterId(self.router.directory.cluster())
    }

    /// The same client on the keys of another column family.
    #[must_use]
    pub fn family(&self, family: ColumnFamily) -> Self {
        Self { family, ..self.clone() }
    }

    /// The same client with other timeouts and rules of repetition for its calls. Connections stay
    /// as they were set up.
    #[must_use]
    pub fn with(&self, options: Options) -> Self {
        Self { options, ..self.clone() }
    }

    /// The region of a key and the store that leads it, as far as this client knows.
    pub async fn locate(&self, key: impl Into<Bytes>) -> Result<(RegionId, StoreId)> {
        let route = self.router.locate(&key.into(), &mut self.tries()).await?;
        Ok((route.region.id, route.peer.store))
    }

    /// What operators ask for.
    pub fn control(&self) -> Control {
        Control::new(Arc::clone(&self.router), self.options)
    }

    pub(crate) fn tries(&self) -> Tries {
        Tries::new(self.options.timeout)
    }

    pub(crate) fn family_name(&self) -> String {
        match self.family {
            ColumnFamily::Default => String::new(),
            ColumnFamily::Lock => "lock".to_owned(),
            ColumnFamily::Write => "write".to_owned(),
        }
    }
}
