//! `stele ctl`: administration of a cluster.

mod access;
mod admit;
mod checksum;
mod config;
mod events;
mod finalize;
mod join;
mod keep_run;
mod leave;
mod moment;
pub(crate) mod placement;
mod recover;
pub(crate) mod rows;

use crate::args::{Ctl, CtlCommand, Regions};
use crate::table::{self, Cell};
use crate::terminal::print;
use crate::{Outcome, runtime};
pub(crate) use placement::Change;
use rows::{
    known_stores, members, operators, oversized_line, region_line, regions, replicas, stores,
};
use std::time::Duration;
use stele_client::Control;
use stele_types::{Error, KeyRange, RegionId, Result, StoreId};

/// Time in which the leader of the placement group must answer before one node is asked what it knows.
const LEADER_WITHIN: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &Ctl) -> Result<Outcome> {
    if !args.store.is_empty() {
        return match &args.command {
            CtlCommand::Recover(wanted) => recover::offline(&args.store, wanted, args.json),
            CtlCommand::KeepRun { store, address: None } => {
                keep_run::offline(&args.store, StoreId(*store))
            }
            CtlCommand::Config { key, value } => {
                config::offline(&args.store, key.as_deref(), value.as_deref())
            }
            _ => Err(Error::invalid(
                "--store is only for `recover`, for `config tick_ms`, and for `keep-run` without an address: \
                 give --cluster",
            )),
        };
    }
    runtime::small()?.block_on(async {
        let client = runtime::connect(&args.cluster, &args.tls).await;
        let client = client.map_err(|error| match &args.command {
            CtlCommand::Recover(wanted) => recover::without_quorum(error, &wanted.lost),
            _ => error,
        })?;
        execute(args, &client.control()).await
    })
}

async fn execute(args: &Ctl, control: &Control) -> Result<Outcome> {
    let json = args.json;
    let show = |rows: Vec<Vec<Cell>>, none: &str| {
        table::print(&rows, json, none)?;
        Ok(Outcome::Done)
    };
    let (region, store) = (RegionId, StoreId);
    match &args.command {
        CtlCommand::Stores => show(listed_stores(control).await?, "no stores"),
        CtlCommand::Regions(wanted) => show(wanted_regions(control, wanted).await?, "no regions"),
        CtlCommand::Members => show(members(&control.members().await?), "no members"),
        CtlCommand::Operators(wanted) => {
            show(operators(&control.operators(wanted.ended).await?), "no operators")
        }
        CtlCommand::CancelOperator { region: id } => {
            let ended = control.cancel_operator(region(*id)).await?;
            show(operators(&Vec::from_iter(ended)), "the merge is being abandoned")
        }
        CtlCommand::Region { id } => one_region(control, region(*id), json).await,
        CtlCommand::Placement => placement::placement(control, json).await,
        CtlCommand::Explain(wanted) => placement::explain(control, wanted, json).await,
        CtlCommand::TransferLeader { region: id, store: to } => {
            let operator = control.transfer_leader(region(*id), store(*to)).await?;
            Change::new(control, operator).wait(json).await
        }
        CtlCommand::Split(split) => {
            let keys = split.keys.iter().map(|key| crate::text::parse(key, split.hex));
            let keys = keys.map(|key| key.map(Into::into)).collect::<Result<Vec<_>>>()?;
            let operator = control.split(region(split.region), keys).await?;
            Change::new(control, operator).wait(json).await
        }
        CtlCommand::Merge { source, target } => {
            let operator = control.merge(region(*source), region(*target)).await?;
            Change::new(control, operator).wait(json).await
        }
        CtlCommand::Move { region: id, from, to } => {
            let operator = control.move_replica(region(*id), store(*from), store(*to)).await?;
            Change::new(control, operator).wait(json).await
        }
        CtlCommand::KeepRun { store: id, address } => {
            keep_run::online(control, store(*id), address.as_deref()).await
        }
        CtlCommand::Admit { node, store: Some(id), .. } => {
            admit::store(control, node, store(*id)).await
        }
        CtlCommand::Admit { node, valid, .. } => admit::node(control, node, *valid).await,
        CtlCommand::JoinToken { valid } => admit::token(control, *valid).await,
        CtlCommand::AddStore(wanted) => join::run(control, &args.cluster, wanted, json).await,
        CtlCommand::RemoveStore(wanted) => leave::remove(control, wanted, json).await,
        CtlCommand::Drain(leave) => {
            let begun = control.drain(store(leave.store)).await?;
            leave::follow(control, begun, leave.wait, json).await
        }
        CtlCommand::Cancel { store: id } => {
            leave::follow(control, control.cancel(store(*id)).await?, false, json).await
        }
        CtlCommand::Recover(wanted) => recover::online(control, wanted, json).await,
        CtlCommand::Access { command } => access::run(control, command, json).await,
        CtlCommand::Moment { attempts } => moment::run(control, *attempts, json).await,
        CtlCommand::Events { from, follow } => events::run(control, *from, *follow, json).await,
        CtlCommand::Finalize => finalize::run(control, json).await,
        CtlCommand::Checksum { region: id } => checksum::run(control, region(*id), json).await,
        CtlCommand::Config { key, value } => {
            config::run(control, &args.cluster, key.as_deref(), value.as_deref(), json).await
        }
    }
}

async fn listed_stores(control: &Control) -> Result<Vec<Vec<Cell>>> {
    let known = control.stores_or_known(LEADER_WITHIN).await?;
    let Some((node, reason)) = known.by else { return Ok(stores(&known.stores)) };
    let reason = if reason.is_empty() { "no leader answers".to_owned() } else { reason };
    eprintln!("stele: the placement group does not answer ({reason}); this is what {node} knows");
    Ok(known_stores(&known.stores))
}

async fn wanted_regions(control: &Control, wanted: &Regions) -> Result<Vec<Vec<Cell>>> {
    let mut found = control.regions(&KeyRange::all(), wanted.system).await?;
    if let Some(store) = wanted.store {
        found.retain(|row| row.region.peer_on(StoreId(store)).is_some());
    }
    Ok(regions(&found))
}

async fn one_region(control: &Control, id: RegionId, json: bool) -> Result<Outcome> {
    let row = control.region(id).await?;
    if !json {
        print(&format!("{}\n", region_line(&row)));
    }
    let details = control.region_detail(&row.region).await?;
    if let Some(group) = details.iter().find_map(|detail| detail.oversized_group.as_ref())
        && !json
    {
        print(&format!("{}\n", oversized_line(group)));
    }
    table::print(&replicas(&row, &details), json, "no replica responds")?;
    Ok(Outcome::Done)
}
