//! Nodes that `join` names: asked for their cluster at the start, and for addresses while this node
//! finds no placement leader.

use super::router::NodeRouter;
use crate::access::Access;
use crate::config::Config;
use crate::members::{Hearsay, Members};
use crate::port::MESSAGE_BYTES_MAX;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use stele_proto::stele::control::v1::control_client::ControlClient;
use stele_proto::stele::control::v1::{MembersRequest, MembersResponse, RequestHeader};
use stele_types::{ClusterId, Error, Result};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Time that a start waits for the answers of seeds that it has connected to.
const ANSWER_WAIT: Duration = Duration::from_millis(500);
/// Least time between two exchanges.
const PAUSE: Duration = Duration::from_millis(500);

fn seeds(config: &Config, own_address: &str) -> Vec<String> {
    config.join.iter().filter(|seed| *seed != own_address).cloned().collect()
}

pub(super) async fn connect(access: &Access, seed: &str) -> Result<ControlClient<Channel>, Status> {
    let unavailable = |error: tonic::transport::Error| Status::unavailable(error.to_string());
    let endpoint = Endpoint::from_shared(format!("http://{seed}")).map_err(unavailable)?;
    let endpoint = endpoint.connect_timeout(CALL_TIMEOUT).timeout(CALL_TIMEOUT);
    let channel = access.connect(&endpoint).await.map_err(unavailable)?;
    Ok(ControlClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX))
}

enum News {
    Connected,
    Answered(String, ClusterId),
    /// It did not answer although it was connected.
    Failed,
}

/// Question to all seeds for their cluster. It begins before the directories are opened.
pub(super) struct ClusterQuestion {
    news: mpsc::UnboundedReceiver<News>,
    /// Ends the calls when it is dropped.
    _calls: JoinSet<()>,
}

impl ClusterQuestion {
    pub(super) fn ask(config: &Config, access: &Access, own_address: &str) -> Self {
        let (sender, news) = mpsc::unbounded_channel();
        let mut calls = JoinSet::new();
        for seed in seeds(config, own_address) {
            let (sender, access) = (sender.clone(), access.clone());
            calls.spawn(async move {
                // The receiver is gone once the node has started.
                let _ = ask_one(&access, seed, &sender).await;
            });
        }
        Self { news, _calls: calls }
    }

    /// Fails with `Invalid` if a seed belongs to another cluster and none that answered to this one.
    ///
    /// Invariant: no start waits for a seed that is down or does not connect. One that connects is
    /// waited for at most [`ANSWER_WAIT`].
    pub(super) async fn check(mut self, cluster: ClusterId) -> Result<()> {
        let deadline = Instant::now() + ANSWER_WAIT;
        let (mut unanswered, mut foreign) = (0_usize, None);
        loop {
            let next = match self.news.try_recv() {
                Ok(news) => Some(news),
                Err(_) if unanswered == 0 => None,
                Err(_) => timeout_at(deadline, self.news.recv()).await.ok().flatten(),
            };
            match next {
                None => break,
                Some(News::Connected) => unanswered += 1,
                Some(News::Failed) => unanswered = unanswered.saturating_sub(1),
                Some(News::Answered(_, of)) if of == cluster => return Ok(()),
                Some(News::Answered(seed, of)) => {
                    unanswered = unanswered.saturating_sub(1);
                    foreign = Some((seed, of));
                }
            }
        }
        // bug server.any_cluster_joined: `foreign` is `None`
        match foreign {
            None => Ok(()),
            Some((seed, of)) => Err(Error::invalid(format!(
                "`join` names {seed}, a node of cluster {of}, and no node of cluster {cluster}, to \
                 which the directories of this node belong: correct `join`, or name other \
                 directories as `store`"
            ))),
        }
    }
}

async fn ask_one(
    access: &Access,
    seed: String,
    news: &mpsc::UnboundedSender<News>,
) -> Result<(), mpsc::error::SendError<News>> {
    let Ok(mut client) = connect(access, &seed).await else { return Ok(()) };
    news.send(News::Connected)?;
    news.send(match client.members(MembersRequest::default()).await {
        Ok(answer) => News::Answered(seed, ClusterId(answer.into_inner().cluster_id)),
        Err(_) => News::Failed,
    })
}

/// Exchange of addresses with the seeds. A seed learns the addresses that this node knows, and this
/// node those that the seed knows. So nodes that all have other addresses since their restart find
/// each other, in whatever order `join` links them.
pub(super) struct Seeds {
    pub config: Arc<Config>,
    pub access: Access,
    pub cluster: ClusterId,
    pub address: String,
    pub members: Arc<Members>,
    pub router: Arc<NodeRouter>,
}

impl Seeds {
    /// Exchanges addresses at the start, and whenever a report has reached no placement leader, until
    /// `stopping` is set.
    pub(super) async fn run(self, mut stopping: watch::Receiver<bool>) {
        let mut foreign = BTreeSet::new();
        loop {
            let next = async {
                self.exchange(&mut foreign).await;
                tokio::time::sleep(PAUSE).await;
                self.router.leader_unknown.notified().await;
            };
            tokio::select! {
                () = super::heartbeat::stopped(&mut stopping) => return,
                () = next => {}
            }
        }
    }

    /// Puts learned addresses into use and saves them, until `stopping` is set.
    pub(super) async fn use_learned(
        members: Arc<Members>,
        router: Arc<NodeRouter>,
        mut stopping: watch::Receiver<bool>,
    ) {
        loop {
            tokio::select! {
                () = super::heartbeat::stopped(&mut stopping) => return,
                () = members.learned() => {}
            }
            router.save_members(&members);
            if let Some(transport) = router.transport() {
                transport.members_changed();
                for Hearsay { store, run, address } in members.take_hearsay() {
                    let transport = transport.clone();
                    router.tasks.spawn_finite("succession", async move {
                        let verdict = transport.admit_hearsay(store, &run, &address).await;
                        tracing::debug!("store {store}, {run} at {address}: {verdict:?}");
                        Ok(())
                    });
                }
            }
        }
    }

    /// Exchanges addresses with all seeds at once. `foreign` are the seeds that the log names already
    /// as nodes of another cluster.
    async fn exchange(&self, foreign: &mut BTreeSet<String>) {
        // bug server.seeds_not_asked: return;
        let mut calls = JoinSet::new();
        for seed in seeds(&self.config, &self.address) {
            let header = RequestHeader { cluster_id: self.cluster.0, forwarded: false };
            let request = MembersRequest { header: Some(header), known: self.members.list(None) };
            let access = self.access.clone();
            calls.spawn(async move {
                let answer = match connect(&access, &seed).await {
                    Ok(mut client) => client.members(request).await.map(|it| it.into_inner()),
                    Err(status) => Err(status),
                };
                (seed, answer)
            });
        }
        while let Some(ended) = calls.join_next().await {
            match ended {
                Ok((seed, Ok(answer))) => self.take(&seed, &answer, foreign),
                Ok((seed, Err(status))) => tracing::debug!("seed {seed}: {}", status.message()),
                // Only a panic, which has been logged, or the end of the node.
                Err(_) => {}
            }
        }
    }

    fn take(&self, seed: &str, answer: &MembersResponse, foreign: &mut BTreeSet<String>) {
        let MembersResponse { cluster_id, members_version, members } = answer;
        if ClusterId(*cluster_id) != self.cluster {
            // The node serves: it goes on without this seed.
            if foreign.insert(seed.to_owned()) {
                tracing::error!(
                    "`join` names {seed}, a node of cluster {cluster_id}; this node belongs to \
                     cluster {}: correct `join` before the next start",
                    self.cluster
                );
            }
            return;
        }
        // Invariant: over TLS a list of a node that may not lead replaces none. The answer to a heartbeat
        // does.
        let may_replace = self.access.tls().is_none() || self.members.version() == 0;
        if may_replace
            && *members_version > self.members.version()
            && self.members.update(*members_version, members, &self.address)
        {
            self.members.announce();
        }
        self.members.learn_list(members);
    }
}
