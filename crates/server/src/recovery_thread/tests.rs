use super::*;
use crate::store::Engine;
use crate::transport::message_bytes;
use bytes::Bytes;
use parking_lot::Mutex as Lock;
use std::collections::BTreeMap;
use stele_replica::{Event, SendSnapshot};
use stele_storage::LostEntry;
use stele_types::{CommandBuilder, Error, LogIndex, RegionId, Term, checksum};
use stele_vfs::SystemClock;

#[derive(Default)]
struct Mail(Lock<Vec<Arc<RecoveryThread>>>);

impl OutputSink for Mail {
    fn send(&self, messages: Vec<PeerMessage>) {
        for message in messages {
            let stores = self.0.lock();
            let to = stores.iter().find(|store| store.id == message.to_store);
            let bytes = message_bytes(&message);
            to.into_iter().for_each(|store| store.message(message.clone(), bytes));
        }
    }
    fn send_snapshot(&self, _: SendSnapshot<Engine>) {}
    fn events(&self, _: Vec<Event>) {}
    fn failed(&self, _: StoreId, _: Error) {}
}

/// Log with damaged payloads, on a device that may fail.
struct DamagedLog {
    entries: BTreeMap<LostEntry, Option<Bytes>>,
    fails: bool,
    _held: Sender<()>,
}

impl RecoverableLog for DamagedLog {
    fn lost_entries(&mut self, count_max: usize) -> Vec<LostEntry> {
        let lost = self.entries.iter().filter(|(_, payload)| payload.is_none());
        lost.map(|(lost, _)| *lost).take(count_max).collect()
    }

    fn find(&self, lost: &LostEntry) -> Option<Bytes> {
        self.entries.get(lost).cloned().flatten()
    }

    fn restore_entry(&mut self, lost: &LostEntry, payload: &[u8]) -> Result<bool> {
        if self.fails {
            return Err(Error::invalid("the device failed"));
        }
        let slot =
            self.entries.get_mut(lost).filter(|slot| slot.is_none() && lost.is_copy(payload));
        Ok(slot.map(|slot| *slot = Some(Bytes::copy_from_slice(payload))).is_some())
    }

    fn is_recovered(&self) -> bool {
        self.entries.values().all(Option::is_some)
    }
}

fn payload(index: u64) -> Bytes {
    let mut command = CommandBuilder::new();
    command.put(b"\x01key", &index.to_be_bytes(), 0).unwrap();
    command.build().bytes().clone()
}

struct Trial {
    mail: Arc<Mail>,
    ended: Receiver<(u64, Result<bool>)>,
    send_ended: Sender<(u64, Result<bool>)>,
}

impl Trial {
    fn new() -> Self {
        let (send_ended, ended) = channel();
        Self { mail: Arc::default(), ended, send_ended }
    }

    /// Starts a store that lost some of 100 entries; the third had one more. The receiver
    /// disconnects when the directory is free.
    fn start(&self, id: u64, fails: bool, is_lost: impl Fn(u64) -> bool) -> Receiver<()> {
        let (held, free) = channel();
        let entry = |index| {
            let (payload, region) = (payload(index), RegionId(2));
            let (bytes, crc) = (payload.len() as u32, checksum::crc32c(&payload));
            let lost = LostEntry { region, index: LogIndex(index), term: Term(1), bytes, crc };
            (lost, (!is_lost(index)).then_some(payload))
        };
        let entries = 0..100 + u64::from(id == 3);
        let damaged_log = DamagedLog { entries: entries.map(entry).collect(), fails, _held: held };
        let recovery = EntryRecovery::new(StoreId(id), damaged_log);
        let context = RecoveryContext {
            clock: Arc::new(SystemClock::new()),
            sink: self.mail.clone(),
            stores: Box::new(|| [1, 2, 3].map(StoreId).to_vec()),
        };
        let ended = self.send_ended.clone();
        let ended = move |result| ended.send((id, result)).unwrap();
        let store = RecoveryThread::start(recovery, ("/store".into(), 1), context, ended).unwrap();
        self.mail.0.lock().push(store);
        free
    }

    /// Returns the store that was started at this position. The lock is not held: stopping a store
    /// waits for a thread that may be sending.
    fn store(&self, at: usize) -> Arc<RecoveryThread> {
        self.mail.0.lock()[at].clone()
    }

    fn next_end(&self) -> (u64, Result<bool>) {
        self.ended.recv_timeout(Duration::from_secs(30)).expect("no store ended")
    }
}

#[test]
fn stores_that_wait_for_each_other_end_whole_with_their_directories_free() {
    let trial = Trial::new();
    // The third waits for an entry that no store has, and serves the others all the time.
    trial.start(3, false, |index| index == 100);
    let free = [
        trial.start(1, false, |index| index % 2 == 0),
        trial.start(2, false, |index| index % 2 == 1),
    ];
    let mut whole = [trial.next_end(), trial.next_end()].map(|(id, ended)| (id, ended.unwrap()));
    whole.sort_unstable();
    assert_eq!(whole, [(1, true), (2, true)]);
    for free in free {
        assert_eq!(free.try_recv(), Err(std::sync::mpsc::TryRecvError::Disconnected));
    }
    let counts = |store: &Arc<RecoveryThread>| (store.lost(), store.lost_at_first);
    let counts: Vec<_> = trial.mail.0.lock().iter().map(counts).collect();
    assert_eq!(counts, [(1, 1), (0, 50), (0, 50)]);
    trial.store(0).stop();
}

#[test]
fn a_store_that_waits_in_vain_ends_when_it_is_told() {
    let trial = Trial::new();
    let free = trial.start(1, false, |index| index == 7);
    let store = trial.store(0);
    store.stop();
    assert!(matches!(trial.next_end(), (1, Ok(false))));
    assert!(free.recv().is_err() && store.lost() == 1);
}

#[test]
fn a_device_that_fails_ends_the_waiting_with_its_error() {
    let trial = Trial::new();
    // The second waits for an entry that no store has: it ends after the first.
    let free = trial.start(1, true, |index| index == 7 || index == 8);
    trial.start(2, false, |index| index == 8);
    let (id, ended) = trial.next_end();
    assert!(id == 1 && ended.unwrap_err().to_string().contains("the device failed"));
    assert!(free.recv().is_err());
    trial.store(1).stop();
}
