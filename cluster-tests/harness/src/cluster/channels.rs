//! Connections to nodes, made on first use and again after they break.

use super::certificates::Tls;
use anyhow::Result;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;
use stele_proto::pdpb::pd_client::PdClient;
use stele_proto::stele::control::v1::control_client::ControlClient;
use stele_proto::tikvpb::tikv_client::TikvClient;
use tonic::transport::{Channel, Endpoint};

const CONNECT_LIMIT: Duration = Duration::from_millis(300);
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// One connection per address and time limit.
#[derive(Debug)]
pub(crate) struct Channels {
    /// `None`: without TLS.
    tls: Option<Tls>,
    open: Mutex<HashMap<(String, Duration), Channel>>,
}

impl Channels {
    pub(crate) fn new(tls: Option<Tls>) -> Self {
        Self { tls, open: Mutex::default() }
    }

    /// Returns a connection; its calls time out after `limit`.
    pub(crate) fn get(&self, address: &str, limit: Duration) -> Result<Channel> {
        let mut open = self.open.lock().map_err(|_| anyhow::anyhow!("a panic elsewhere"))?;
        let key = (address.to_owned(), limit);
        if let Some(channel) = open.get(&key) {
            return Ok(channel.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?
            .connect_timeout(CONNECT_LIMIT)
            .timeout(limit)
            .tcp_nodelay(true);
        let channel = match &self.tls {
            Some(tls) => tls.channel(&endpoint),
            None => endpoint.connect_lazy(),
        };
        open.insert(key, channel.clone());
        Ok(channel)
    }

    pub(crate) fn tikv(&self, address: &str, limit: Duration) -> Result<TikvClient<Channel>> {
        let client = TikvClient::new(self.get(address, limit)?);
        Ok(client.max_decoding_message_size(MESSAGE_BYTES_MAX))
    }

    pub(crate) fn placement(&self, address: &str, limit: Duration) -> Result<PdClient<Channel>> {
        Ok(PdClient::new(self.get(address, limit)?))
    }

    pub(crate) fn control(&self, address: &str, limit: Duration) -> Result<ControlClient<Channel>> {
        let client = ControlClient::new(self.get(address, limit)?);
        Ok(client.max_decoding_message_size(MESSAGE_BYTES_MAX))
    }
}
