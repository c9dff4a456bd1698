//! Traffic of regions in reports.

use super::*;

fn traffic(trial: &mut Trial, store: u64) -> Traffic {
    trial.store(store).core.region(DATA).unwrap().traffic
}

fn two_puts() -> Bytes {
    let mut builder = CommandBuilder::new();
    builder.put(&key("a"), b"1", 0).unwrap().put(&key("b"), b"22", 0).unwrap();
    builder.build().bytes().clone()
}

#[test]
fn traffic_is_a_total_of_the_leader_that_no_report_resets() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    assert_eq!(traffic(&mut trial, 1), Traffic::default(), "elections are no traffic");
    let command = two_puts();
    let write = trial.write(1, command.clone());
    trial.settle();
    trial.send_heartbeats();
    assert!(trial.is_written(write));
    let bytes = command.len() as u64;
    let written = Traffic { write_ops: 2, write_bytes: bytes, ..Traffic::default() };
    assert_eq!(traffic(&mut trial, 1), written);
    assert_eq!(traffic(&mut trial, 1), written, "a report resets nothing");
    assert_eq!(traffic(&mut trial, 2), Traffic::default(), "a follower counts nothing");
    for store in [1, 2] {
        let reader = trial.store(store).core.readers().get(DATA).unwrap();
        reader.note_returned(3, 300);
        reader.note_returned(0, 0);
    }
    let all = Traffic { read_ops: 4, read_bytes: 300, ..written };
    assert_eq!(traffic(&mut trial, 1), all);
    assert_eq!(traffic(&mut trial, 2), Traffic::default());
    // Another leader counts its own traffic from there on.
    trial.lead(DATA, 2);
    trial.write(2, command);
    trial.settle();
    trial.send_heartbeats();
    assert_eq!(traffic(&mut trial, 2), written);
    assert_eq!(traffic(&mut trial, 1), all);
}
