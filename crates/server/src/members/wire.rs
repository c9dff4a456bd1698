//! Lists of members on the wire, where the stores of a node stand together.

use std::collections::BTreeMap;
use stele_node::members::Listed;
use stele_proto::stele::control::v1 as control;
use stele_types::{Boot, Lineage, StoreId, StoreRun};

/// Encodes a list; the node at the address `leader` leads the placement group.
pub fn encode(listed: Vec<Listed>, leader: Option<&str>) -> Vec<control::Member> {
    let mut nodes: BTreeMap<String, Vec<control::MemberStore>> = BTreeMap::new();
    for Listed { store, run, address, state, .. } in listed {
        nodes.entry(address).or_default().push(wire_store(store, state, &run));
    }
    let member = |(address, stores): (String, _)| control::Member {
        leads_placement: leader == Some(&address[..]),
        address,
        stores,
    };
    nodes.into_iter().map(member).collect()
}

pub(super) fn decode(members: &[control::Member]) -> Vec<Listed> {
    let mut listed = Vec::new();
    for member in members {
        listed.extend(member.stores.iter().map(|store| Listed {
            store: StoreId(store.id),
            run: run_of(store),
            address: member.address.clone(),
            is_removed: store.state == control::StoreState::Removed as i32,
            state: store.state,
        }));
    }
    listed
}

/// Encodes a store of a node.
pub fn wire_store(id: StoreId, state: i32, run: &StoreRun) -> control::MemberStore {
    let Boot { count, nonce } = run.boot;
    let boot = || control::Boot { count, nonce, starts: run.lineage.to_bytes().into() };
    control::MemberStore { id: id.0, state, boot: run.is_known().then(boot) }
}

fn run_of(store: &control::MemberStore) -> StoreRun {
    let run = |boot: &control::Boot| StoreRun {
        boot: Boot { count: boot.count, nonce: boot.nonce },
        lineage: Lineage::from_bytes(&boot.starts).unwrap_or_default(),
    };
    store.boot.as_ref().map(run).unwrap_or_default()
}
