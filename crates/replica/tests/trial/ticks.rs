//! Tests of the tick that a store records, and of times that do not shrink with it.

use super::*;

fn ident(store: u64, millis: u64) -> StoreIdent {
    let tick = TickMillis::new(millis);
    StoreIdent { tick, ..StoreIdent::new(ClusterId(7), StoreId(store)) }
}

#[test]
fn a_store_does_not_open_with_another_tick_than_it_records() {
    let engine = Arc::new(ModelEngine::new());
    Model::write_ident(&*engine, &ident(4, 20)).unwrap();
    let now = Now { monotonic_nanos: 0, unix_millis: 0 };
    let open = |millis: u64| {
        let mut options = Options::new(StoreId(4), ClusterId(7), 1, 1);
        options.tick_nanos = millis * 1_000_000;
        Model::open(engine.clone(), options, now).map(drop)
    };
    for other in [10, 50] {
        let refused = open(other).unwrap_err().to_string();
        assert!(refused.contains("records a tick of 20 ms"), "{refused}");
    }
    open(20).unwrap();
}

#[test]
fn a_lost_identity_is_repaired_with_its_tick() {
    let mut trial = Trial::new(3);
    let engine = ModelEngine::new();
    Model::write_ident(&engine, &ident(4, 50)).unwrap();
    trial.open(4, Arc::new(engine));
    let engine = trial.store(4).engine.clone();
    engine.lose_range(&KeyRange::prefix(&keyspace::ident_key()));
    assert!(Model::ident(&*engine).is_err());
    trial.store(4).core.step(Input::Damaged);
    trial.ticks(20);
    assert_eq!(Model::ident(&*engine).unwrap(), Some(ident(4, 50)));
}

#[test]
fn a_transfer_with_a_short_tick_has_as_long_as_one_with_the_usual() {
    type Change = fn(&mut Options);
    let rows: [(u64, Change); 3] = [
        (5, |options| options.tick_nanos = 5_000_000),
        (20, |options| options.tick_nanos = 20_000_000),
        (50, |_| {}),
    ];
    for (tick, options) in rows {
        let mut trial = Trial::with(3, options);
        trial.lead(DATA, 1);
        // The target has the write when its device has written for 400 ms.
        trial.store(2).stalled = true;
        let write = trial.write(1, put("a", "1"));
        let pass = |trial: &mut Trial, millis: u64| {
            for _ in 0..millis / tick {
                trial.advance(tick * 1_000_000);
                trial.settle();
            }
        };
        pass(&mut trial, 50);
        assert!(trial.is_written(write));
        let transfer = trial.admin(1, DATA, Admin::TransferLeader(PeerId(102)));
        pass(&mut trial, 400);
        assert_eq!(trial.reply(transfer), None, "{tick} ms");
        assert_eq!(trial.leader(DATA), Some(1), "{tick} ms");
        trial.store(2).stalled = false;
        pass(&mut trial, 100);
        let reply = trial.reply(transfer);
        assert!(matches!(reply, Some(Reply::Done(Done::Admin { .. }))), "{tick} ms: {reply:?}");
        assert_eq!(trial.leader(DATA), Some(2), "{tick} ms");
    }
}
