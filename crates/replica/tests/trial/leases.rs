//! Tests of the rules around a lease: its setting, equal ticks, and the version of the request.

use super::*;

const CHILD: RegionId = RegionId(10);

fn reader(trial: &mut Trial, store: u64) -> Arc<Reader> {
    trial.store(store).core.readers().get(DATA).unwrap()
}

fn any() -> Header {
    Header { region: DATA, ..Header::default() }
}

#[test]
fn a_lease_in_force_ends_when_leases_are_turned_off_and_reads_go_on_by_rounds() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.ticks(4);
    let reader = reader(&mut trial, 1);
    let now = trial.now;
    let lease = reader.permit(&any(), now).unwrap();
    trial.store(1).core.step(Input::Leases(false));
    assert!(reader.effects(&lease, now).is_none(), "a read in flight must check again");
    for _ in 0..20 {
        assert!(reader.permit(&any(), trial.now).is_none());
        trial.ticks(1);
    }
    let read = trial.read(1, false);
    trial.settle();
    assert!(matches!(trial.reply(read), Some(Reply::Done(Done::ReadReady { .. }))));
    trial.isolate(1);
    let read = trial.read(1, false);
    trial.settle();
    assert_eq!(trial.reply(read), None, "no majority confirms it");
    trial.heal();
    trial.lead(DATA, 1);
    trial.store(1).core.step(Input::Leases(true));
    trial.ticks(4);
    assert!(reader.permit(&any(), trial.now).is_some());
}

#[test]
fn a_store_that_starts_with_leases_off_has_none_before_they_are_turned_on() {
    let mut trial = Trial::with(3, |options| options.leases = false);
    trial.lead(DATA, 1);
    trial.ticks(20);
    assert!(reader(&mut trial, 1).permit(&any(), trial.now).is_none());
    trial.store(1).core.step(Input::Leases(true));
    trial.ticks(4);
    assert!(reader(&mut trial, 1).permit(&any(), trial.now).is_some());
}

/// Why nodes with different ticks refuse each other: the lease of the longer tick is valid after
/// the vote holds of the shorter one.
#[test]
fn with_unequal_ticks_another_store_leads_while_a_lease_is_valid() {
    let leads_during_lease = |options| {
        let mut trial = Trial::with(3, options);
        trial.lead(DATA, 1);
        trial.ticks(20);
        let reader = reader(&mut trial, 1);
        assert!(reader.permit(&any(), trial.now).is_some());
        trial.isolate(1);
        for _ in 0..100 {
            trial.ticks(1);
            if trial.leader(DATA) != Some(1) {
                return reader.permit(&any(), trial.now).is_some();
            }
        }
        panic!("no store took over");
    };
    assert!(!leads_during_lease(|_| {}));
    assert!(leads_during_lease(|options| {
        if options.store == StoreId(1) {
            options.tick_nanos = 4 * TICK;
        }
    }));
}

#[test]
fn a_lease_of_a_later_version_serves_no_request_that_was_checked_before_a_split() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    let write = trial.write(1, put("t", "old"));
    trial.ticks(4);
    assert!(trial.is_written(write));
    let reader = reader(&mut trial, 1);
    let header = Header { version: Some(reader.region().epoch.version), ..any() };
    assert_eq!(reader.check(&header), Ok(()));
    // The thread of the read pauses here. Key `t` moves to a region that store 2 leads;
    // its messages do not reach store 1.
    let peers = [201, 202, 203].map(PeerId).to_vec();
    let new_ids = vec![NewRegion { region: CHILD, peers }];
    trial.admin(1, DATA, Admin::Split { keys: vec![Bytes::from_static(b"h")], new_ids });
    trial.settle();
    trial.lead(CHILD, 2);
    trial.lose = |message| message.region == CHILD && message.to_store == StoreId(1);
    let id = trial.request();
    let write =
        Write { header: trial.header(CHILD), command: put("t", "new"), only_deletes: false };
    trial.store(2).core.step(Input::request(id, write));
    trial.ticks(4);
    assert!(trial.is_written(id));
    assert_eq!(trial.value(1, "t").as_deref(), Some("old"));
    let lease = |header: &Header| reader.permit(header, trial.now);
    assert!(lease(&header).is_none(), "it would return the old value of `t`");
    let version = Some(reader.region().epoch.version);
    assert!(lease(&Header { version, ..any() }).is_some(), "the region itself has a lease");
}
