//! Network between the stores of a group.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use stele_replica::{Event, PeerMessage, SendSnapshot};
use stele_server::store::{OutputSink, StoreHandle};
use stele_server::transport::message_bytes;
use stele_storage::StorageEngine;
use stele_types::{Error, StoreId};

const STACK_BYTES: usize = 256 << 10;

/// Stores by id; each is set once it has started.
struct Stores<E: StorageEngine>(BTreeMap<StoreId, OnceLock<Weak<StoreHandle<E>>>>);

impl<E: StorageEngine + 'static> Stores<E> {
    fn deliver(&self, message: PeerMessage) {
        let to = self.0.get(&message.to_store).and_then(|store| store.get()?.upgrade());
        if let Some(store) = to {
            let bytes = message_bytes(&message);
            store.messages([(message, bytes)]);
        }
    }
}

/// Passes messages between the stores, and keeps the first failure.
pub(super) struct Network<E: StorageEngine> {
    stores: Arc<Stores<E>>,
    /// Delay, and the thread that delivers each message after it.
    link: Option<(Duration, Sender<Delayed>)>,
    failure: Mutex<Option<String>>,
}

/// A message and the moment of its delivery.
type Delayed = (Instant, PeerMessage);

impl<E: StorageEngine + 'static> Network<E> {
    /// Creates the network of these stores. Each message is delivered `delay` after it was sent. A
    /// thread stands for the slow links. It ends with the network.
    pub(super) fn new(ids: &[StoreId], delay: Duration) -> std::io::Result<Self> {
        let stores = Arc::new(Stores(ids.iter().map(|id| (*id, OnceLock::new())).collect()));
        let link = match delay.is_zero() {
            true => None,
            false => {
                let (sender, delayed) = channel();
                let to = stores.clone();
                let thread = std::thread::Builder::new().name("link".to_owned());
                thread.stack_size(STACK_BYTES).spawn(move || deliver_when_due(&to, &delayed))?;
                Some((delay, sender))
            }
        };
        Ok(Self { stores, link, failure: Mutex::new(None) })
    }

    pub(super) fn connect(&self, id: StoreId, store: &Arc<StoreHandle<E>>) {
        if let Some(slot) = self.stores.0.get(&id) {
            // Each store is set once.
            let _ = slot.set(Arc::downgrade(store));
        }
    }

    pub(super) fn take_failure(&self) -> Option<String> {
        self.failure.lock().take()
    }

    fn fail(&self, reason: String) {
        self.failure.lock().get_or_insert(reason);
    }
}

/// Delivers messages in the order in which they were sent: all have the same delay.
fn deliver_when_due<E: StorageEngine + 'static>(stores: &Stores<E>, delayed: &Receiver<Delayed>) {
    while let Ok((due, message)) = delayed.recv() {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        stores.deliver(message);
    }
}

impl<E: StorageEngine + 'static> OutputSink<E> for Network<E> {
    fn send(&self, messages: Vec<PeerMessage>) {
        let Some((delay, link)) = &self.link else {
            return messages.into_iter().for_each(|message| self.stores.deliver(message));
        };
        let due = Instant::now() + *delay;
        for message in messages {
            if link.send((due, message)).is_err() {
                self.fail("the thread of the delayed links has ended".to_owned());
            }
        }
    }

    fn send_snapshot(&self, _: SendSnapshot<E>) {
        self.fail("a follower lags so far that it needs a snapshot".to_owned());
    }

    fn events(&self, _: Vec<Event>) {}

    fn failed(&self, store: StoreId, error: Error) {
        self.fail(format!("store {store} stopped: {error}"));
    }
}
