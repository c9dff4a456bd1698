//! Runs of other nodes' stores: which are connected, which are heard, and the question to the address of
//! the known one.

use super::connection;
use super::hello::{Hello, Lane, RefusedStore};
use super::shared::Shared;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_node::members::NotOwner;
use stele_node::succession::{Evidence, KnownRun, Probe, Refusal, Verdict};
use stele_placement::other_node;
use stele_tls::NodeName;
use stele_types::{StoreId, StoreRun};
use tokio::sync::watch;

/// Time in which the address of a known run answers if that run lives.
pub(super) const PROBE_TIME: Duration = Duration::from_secs(2);
/// Time for which an answer is used: a node that waits for it dials again meanwhile.
const ANSWER_TIME: Duration = Duration::from_millis(2_500);
const ASKED_MAX: usize = 256;

type RunsOfNode = Arc<[(StoreId, StoreRun)]>;
/// Time of a question, and its answer once it is there.
type Asked = (Instant, watch::Receiver<Option<RunsOfNode>>);

#[derive(Default)]
pub(super) struct Runs {
    connected: Mutex<HashMap<(StoreId, u128), usize>>,
    asked: Mutex<HashMap<String, Asked>>,
}

/// Connection of some runs, until it is dropped.
pub(super) struct Connected<'a> {
    runs: &'a Runs,
    keys: Vec<(StoreId, u128)>,
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        let mut connected = self.runs.connected.lock();
        for key in &self.keys {
            if let Some(count) = connected.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    connected.remove(key);
                }
            }
        }
    }
}

/// Returns what tells a run from the others of its store.
fn key(run: &StoreRun) -> u128 {
    match run.lineage.is_known() {
        true => run.lineage.id().0,
        false => u128::from(run.boot.count) << 64 | u128::from(run.boot.nonce),
    }
}

impl Runs {
    pub(super) fn connect(
        &self,
        runs: impl IntoIterator<Item = (StoreId, StoreRun)>,
    ) -> Connected<'_> {
        let keys: Vec<_> = runs.into_iter().map(|(store, run)| (store, key(&run))).collect();
        let mut connected = self.connected.lock();
        keys.iter().for_each(|key| *connected.entry(*key).or_default() += 1);
        Connected { runs: self, keys }
    }

    fn is_connected(&self, store: StoreId, run: &StoreRun) -> bool {
        self.connected.lock().contains_key(&(store, key(run)))
    }
}

impl Shared {
    /// Judges the run that a node at `address` states for its store. Asks the address of the known run
    /// if that has no connection, and the stated one where both may go on, at most for [`PROBE_TIME`]
    /// each.
    pub(super) async fn admit(
        self: &Arc<Self>,
        store: StoreId,
        run: &StoreRun,
        address: &str,
    ) -> Verdict {
        self.judge(store, run, address, false).await
    }

    /// Like [`Shared::admit`], of a run that another node than its own states (`is_hearsay`) or itself.
    pub(super) async fn judge(
        self: &Arc<Self>,
        store: StoreId,
        run: &StoreRun,
        address: &str,
        is_hearsay: bool,
    ) -> Verdict {
        let (mut probe, mut stated) = (Probe::NotMade, Probe::NotMade);
        let mut asked: Option<KnownRun> = None;
        loop {
            let known = self.resolve.known_run(store).unwrap_or_default();
            // The answer for another run than the known one proves nothing.
            if asked.as_ref().is_some_and(|asked| *asked != known) {
                return Verdict::Undecided;
            }
            let is_connected = self.runs.is_connected(store, &known.run);
            let (at_known, at_stated) = (probe.clone(), stated.clone());
            let evidence = Evidence {
                is_own: false,
                is_connected,
                is_hearsay,
                probe: at_known,
                stated: at_stated,
            };
            match self.resolve.admit(store, run, address, &evidence) {
                Verdict::Undecided if probe == Probe::NotMade => {
                    probe = self.probe(store, &known.address).await;
                }
                Verdict::Unverified if stated == Probe::NotMade => {
                    stated = self.probe(store, address).await;
                }
                verdict => return verdict,
            }
            asked = Some(known);
        }
    }

    /// Judges the run that the node at `address` itself states for a store that is bound to it.
    pub(super) async fn admit_stated(self: &Arc<Self>, store: StoreId, address: &str) -> Verdict {
        let answer = self.ask(store, address).await;
        match answer.iter().find(|(at, _)| *at == store) {
            Some((_, run)) => self.admit(store, run, address).await,
            None => Verdict::Undecided,
        }
    }

    /// Returns whether a store is bound to another node than the one with this name.
    pub(super) fn is_foreign(&self, store: StoreId, node: Option<&NodeName>) -> bool {
        let checked = node.map(|node| self.resolve.check_owner(store, node.as_str()));
        matches!(checked, Some(Err(NotOwner::Other(_))))
    }

    /// Returns the refusal of a store for which the node with this name may not act; `None` if it may.
    ///
    /// Invariant: a node is heard for its own stores alone, and states addresses of these alone.
    /// Tests: `a_node_speaks_for_its_own_stores_alone`,
    /// `each_attack_of_a_node_on_the_stores_of_another_one_is_refused`.
    fn refused_node(
        &self,
        (store, run): (StoreId, &StoreRun),
        address: &str,
        node: &NodeName,
    ) -> Option<RefusedStore> {
        let reason = self.resolve.check_owner(store, node.as_str()).err()?;
        let (refusal, text, cause) = match reason {
            NotOwner::Other(owner) => {
                (Refusal::OtherNode, other_node(store, &owner, node.as_str()), "hello")
            }
            NotOwner::NotListed => {
                let text = Refusal::NotListed.text(store, run, address, &KnownRun::default());
                (Refusal::NotListed, text, "hello_not_listed")
            }
        };
        if let Some(tls) = self.options.access.tls() {
            tls.note_refused(node.as_str(), cause, &text);
        }
        let rival_at = address.to_owned();
        Some(RefusedStore { store, refusal, rival: run.lineage.clone(), rival_at, text })
    }

    async fn probe(self: &Arc<Self>, store: StoreId, address: &str) -> Probe {
        let answer = self.ask(store, address).await;
        let there = answer.iter().find(|(at, _)| *at == store);
        there.map_or(Probe::Silent, |(_, run)| Probe::Answered(run.lineage.clone()))
    }

    /// Returns the runs of the stores of the node at `address`; none if it does not answer.
    async fn ask(self: &Arc<Self>, store: StoreId, address: &str) -> RunsOfNode {
        let mut answer = {
            let mut asked = self.runs.asked.lock();
            asked.retain(|_, (at, _)| at.elapsed() < ANSWER_TIME);
            match asked.get(address) {
                Some((_, answer)) => answer.clone(),
                None if asked.len() >= ASKED_MAX => return RunsOfNode::default(),
                None => {
                    let (sender, answer) = watch::channel(None);
                    asked.insert(address.to_owned(), (Instant::now(), answer.clone()));
                    let (shared, at) = (self.clone(), address.to_owned());
                    // It goes on when the connection that waits for it ends.
                    self.spawn(format!("question to {address}"), async move {
                        let dialled = connection::dial(&shared, &at, Lane::Probe, &[store]).await;
                        let runs = dialled.map(|dialled| dialled.welcome.runs).unwrap_or_default();
                        sender.send_replace(Some(runs.into()));
                    });
                    answer
                }
            }
        };
        // The sender is gone only when the node stops.
        let answered = answer.wait_for(Option::is_some).await;
        answered.ok().and_then(|answer| answer.clone()).unwrap_or_default()
    }

    /// Judges the stores of a dialling node with this name; returns those that are not heard.
    ///
    /// Invariant: a refusal is of one store. The other stores of its node are heard.
    pub(super) async fn refused_stores(
        self: &Arc<Self>,
        hello: &Hello,
        node: Option<&NodeName>,
    ) -> Vec<RefusedStore> {
        let mut refused_all = Vec::new();
        for (store, run) in hello.runs_of_stores() {
            // bug server.copied_directory_heard: always
            if self.resolve.is_removed(store) {
                continue;
            }
            let of_other =
                node.and_then(|node| self.refused_node((store, &run), &hello.address, node));
            // bug server.hello_of_any_node: let of_other = None;
            if let Some(refused) = of_other {
                // Its address is knowledge, so that this node can ask there for the leader.
                if refused.refusal == Refusal::NotListed && self.resolve.known_run(store).is_none()
                {
                    self.admit(store, &run, &hello.address).await;
                }
                refused_all.push(refused);
                continue;
            }
            let refusal = match self.admit(store, &run, &hello.address).await {
                Verdict::Same | Verdict::Successor => continue,
                Verdict::Undecided | Verdict::Unverified => Refusal::Copy,
                Verdict::Refused(refusal) => refusal,
            };
            refused_all.push(self.refused_store(store, &run, &hello.address, refusal));
        }
        refused_all
    }

    pub(super) fn refused_store(
        &self,
        store: StoreId,
        run: &StoreRun,
        address: &str,
        refusal: Refusal,
    ) -> RefusedStore {
        let known = self.resolve.known_run(store).unwrap_or_default();
        let text = refusal.text(store, run, address, &known);
        let rival = known.rival.filter(|(rival, _)| rival.id() != run.lineage.id());
        let (rival, rival_at) = rival.unwrap_or((known.run.lineage, known.address));
        RefusedStore { store, refusal, rival, rival_at, text }
    }

    /// Passes on which stores of this node another one does not hear.
    pub(super) fn note_refused(&self, refused: &[RefusedStore]) {
        let own = self.own.borrow().opened.clone();
        let of_own = refused.iter().filter(|it| own.contains(&it.store));
        of_own.for_each(|it| self.deliver.refused(it));
    }
}

impl Hello {
    /// Returns the run of each store; unknown ones from a node of an earlier version.
    pub(crate) fn runs_of_stores(&self) -> Vec<(StoreId, StoreRun)> {
        let run = |at: usize| self.runs.get(at).cloned().unwrap_or_default();
        self.from.iter().enumerate().map(|(at, store)| (*store, run(at))).collect()
    }
}
