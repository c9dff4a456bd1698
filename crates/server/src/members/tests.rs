use super::*;
use crate::access::Rules;
use std::collections::BTreeSet;
use stele_node::succession::{Evidence, Probe, Verdict};
use stele_placement::Grants;
use stele_tls::ClusterName;
use stele_types::{Boot, Lineage, StartId};

fn member(address: &str, id: u64, state: control::StoreState) -> control::Member {
    let store = wire_store(StoreId(id), state as i32, &StoreRun::default());
    let address = address.to_owned();
    control::Member { address, stores: vec![store], ..control::Member::default() }
}

fn leading(member: control::Member) -> control::Member {
    control::Member { leads_placement: true, ..member }
}

fn open(dir: &Path) -> Members {
    let members = Members::new(read(dir).unwrap().unwrap_or_default());
    members.keep_in(dir);
    members
}

#[test]
fn members_survive_a_restart_and_older_news_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let members = open(dir.path());
    let up = control::StoreState::Up;
    assert!(members.update(2, &[member("a:1", 1, up), member("b:1", 2, up)], "a:1"));
    assert!(!members.update(1, &[member("x:1", 1, up)], "a:1"));
    members.save();
    let again = open(dir.path());
    assert_eq!(again.version(), 2);
    assert_eq!(again.addresses(), ["a:1", "b:1"]);
    assert_eq!(again.stores(), [1, 2].map(StoreId));
    assert_eq!(again.list(Some("b:1"))[1], leading(member("b:1", 2, up)));
    let gone = control::StoreState::Removed;
    assert!(again.update(3, &[member("a:1", 1, gone)], "a:1"));
    assert!(again.get(StoreId(1)).unwrap().is_removed && again.addresses().is_empty());
    assert!(again.stores().is_empty());
}

#[test]
fn changes_of_several_threads_are_all_written() {
    let dir = tempfile::tempdir().unwrap();
    let members = open(dir.path());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let members = &members;
            scope.spawn(move || {
                for at in 0..25 {
                    let store = StoreId(thread * 100 + at);
                    members.add_own(store, "a:1", Path::new("/data"), StoreRun::default());
                    members.save();
                }
            });
        }
    });
    assert_eq!(members.stores().len(), 100);
    assert_eq!(open(dir.path()).stores(), members.stores());
}

#[test]
fn every_directory_has_a_copy_and_knows_the_stores_of_the_node_until_they_are_removed() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let members = Members::default();
    for (id, dir) in (1..).zip(&dirs) {
        members.keep_in(dir.path());
        members.add_own(StoreId(id), "a:1", dir.path(), StoreRun::default());
    }
    members.save();
    for dir in &dirs {
        let known = read(dir.path()).unwrap().unwrap();
        assert_eq!(store_in(&known, dirs[0].path()), Some(StoreId(1)));
        assert_eq!(store_in(&known, dirs[1].path()), Some(StoreId(2)));
    }
    let up = control::StoreState::Up;
    assert!(members.update(3, &[member("a:1", 1, up), member("b:1", 2, up)], "a:1"));
    assert_eq!(members.own().len(), 1, "another node has the disk of store 2");
    assert!(members.update(4, &[member("a:2", 1, up)], "a:2"));
    assert_eq!(members.own().len(), 1, "the node has another address");
    members.replace_disk(dirs[0].path());
    assert_eq!(members.store_in(dirs[0].path()), None);
    assert!(members.own().contains_key(&StoreId(1)), "it is still a store of the node");
    assert!(members.update(9, &[member("a:1", 1, control::StoreState::Removed)], "a:1"));
    assert!(!members.own().contains_key(&StoreId(1)));
    members.add_own(StoreId(1), "a:1", dirs[0].path(), StoreRun::default());
    assert!(members.is_removed(StoreId(1)), "a removed store does not come back");
}

#[test]
fn a_copy_that_cannot_be_written_does_not_keep_the_others_from_being_written() {
    let dir = tempfile::tempdir().unwrap();
    let members = Members::default();
    members.keep_in(&dir.path().join("missing"));
    members.keep_in(dir.path());
    members.add_own(StoreId(4), "a:1", dir.path(), StoreRun::default());
    members.save();
    assert_eq!(open(dir.path()).stores(), [StoreId(4)]);
}

fn run(count: u64, ids: &[u128]) -> StoreRun {
    let lineage = Lineage::new(ids.iter().copied().map(StartId));
    StoreRun { boot: Boot { count, nonce: 9 }, lineage }
}

/// The known run does not answer, and this one does.
fn moved(run: &StoreRun) -> Evidence {
    let stated = Probe::Answered(run.lineage.clone());
    Evidence { probe: Probe::Silent, stated, ..Evidence::default() }
}

/// Admits a run of store 2, of which the known run does not answer.
fn admit(members: &Members, address: &str, run: &StoreRun) -> Verdict {
    members.admit(StoreId(2), run, address, &moved(run))
}

struct Machine {
    disk: stele_simulated_disk::SimVfs,
    members: Members,
}

impl Machine {
    fn start(&self, id: u64, store: u64) -> StoreRun {
        let files: Arc<dyn stele_vfs::Vfs> = Arc::new(self.disk.clone());
        let start = stele_engine::DirStart {
            id: StartId(u128::from(store) << 64 | u128::from(id)),
            nonce: id << 8 | store,
            known: StoreRun::default(),
            may_have_moved: false,
        };
        start.count(&files, Path::new("/store")).unwrap().run
    }
}

#[test]
fn after_power_cuts_of_all_nodes_each_hears_the_next_run_of_every_store() {
    let new = |_| {
        let disk = stele_simulated_disk::SimVfs::default();
        stele_vfs::Vfs::create_dir_all(&disk, Path::new("/store/log")).unwrap();
        Machine { disk, members: Members::default() }
    };
    let mut machines: Vec<Machine> = (0..3).map(new).collect();
    for cut in 1..=20_u64 {
        // A node that did not hear of some runs, and one with a list that was lost, hear the next one.
        let unaware = (cut % 3) as usize;
        if cut == 10 {
            machines[1].members = Members::default();
        }
        let runs: Vec<StoreRun> = (0..3).map(|at| machines[at].start(cut, at as u64 + 1)).collect();
        for (at, machine) in machines.iter().enumerate().filter(|(at, _)| *at != unaware) {
            for (of, run) in runs.iter().enumerate().filter(|(of, _)| *of != at) {
                // Every second time the nodes have other addresses, of which the former do not answer.
                let address = format!("n{of}:{}", 1 + cut / 2);
                let (store, evidence) = (StoreId(of as u64 + 1), moved(run));
                let verdict = machine.members.admit(store, run, &address, &evidence);
                assert_eq!(verdict, Verdict::Successor, "{cut}: {at} and {of}");
                assert_eq!(machine.members.standing(store, run, &address), RunStanding::Heard);
                let again = machine.members.admit(store, run, &address, &Evidence::default());
                assert_eq!(again, Verdict::Same);
            }
        }
        for machine in &mut machines {
            machine.disk = machine.disk.restart(cut);
        }
    }
}

#[tokio::test]
async fn what_was_learned_is_announced_once() {
    let members = Members::default();
    admit(&members, "b:2", &run(7, &[7]));
    members.learned().await;
    admit(&members, "b:2", &run(7, &[7]));
    let again = tokio::time::timeout(std::time::Duration::from_millis(20), members.learned());
    assert!(again.await.is_err(), "nothing changed");
}

#[test]
fn grants_that_a_directory_does_not_take_are_written_once_it_does() {
    let (cluster, dir) = (ClusterId(7), tempfile::tempdir().unwrap());
    let members = open(dir.path());
    let rules = Rules {
        cluster: ClusterName::new("prod").unwrap(),
        administrators: BTreeSet::new(),
        grants: Arc::new(Grants { version: 3, ..Grants::default() }),
    };
    let rules = LiveRules::new(rules);
    let copy = members.copies().remove(0);
    // A directory that is not empty takes the place of the file.
    let file = dir.path().join("access.json");
    std::fs::create_dir_all(file.join("taken")).unwrap();
    for _ in 0..2 {
        copy.save_grants(cluster, &rules);
        assert!(copy.lacks_grants(3), "the next report tries again");
    }
    assert!(!copy.written_grants.lock().note_failure(3), "it was logged");
    assert!(copy.written_grants.lock().note_failure(4), "another version is");
    std::fs::remove_dir_all(&file).unwrap();
    copy.save_grants(cluster, &rules);
    assert!(!copy.lacks_grants(3));
    assert!(std::fs::read_to_string(&file).unwrap().contains("\"version\":3"));
}
