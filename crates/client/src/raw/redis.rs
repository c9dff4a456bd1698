//! Redis commands, from the node that a client of Redis is connected to.

use crate::Client;
use crate::call::{ReadCommands, RunCommands};
use bytes::Bytes;
use stele_proto::stele::redis::v1::{RunRequest, RunResponse};
use stele_types::Result;

impl Client {
    /// Executes commands as one change on the leader of the region that has a user key of column family
    /// `redis`. `request` has no context. Fails with `Undetermined` if they may have taken effect.
    pub async fn run_redis(&self, key: &Bytes, request: RunRequest) -> Result<RunResponse> {
        self.send(key, &RunCommands(request)).await
    }

    /// Executes commands that change nothing.
    pub async fn read_redis(&self, key: &Bytes, request: RunRequest) -> Result<RunResponse> {
        self.send(key, &ReadCommands(request)).await
    }
}
