//! `stele ctl placement` and `stele ctl explain`: measured speeds, weights, and the reasons of
//! placement.

use super::rows::{self, bytes, labels, operators, region_line, state_name};
use crate::args::Explain;
use crate::output::{Output, print};
use crate::table::{self, Cell, formatted, number, words, words_as};
use crate::{Outcome, text};
use serde_json::json;
use stele_client::messages::{
    ExplainResponse, OperatorInfo, PlacementResponse, RegionHeat, StorePlacement, StoreRole,
    StoreVerdict,
};
use stele_client::{Control, RegionRow};
use stele_types::size::format_bytes;
use stele_types::{Error, RegionId, Result};

/// Classes below the fastest store at which a store does not lead (two classes are a factor 2).
const SLOW_CLASSES: u32 = 2;

/// Prints the stores as placement judges them.
pub async fn placement(control: &Control, json: bool) -> Result<Outcome> {
    let response = control.placement().await?;
    if json {
        let head = json!({
            "mode": response.mode,
            "speed_op_bytes": response.speed_op_bytes,
            "domain_label": response.domain_label,
        });
        objects(&[head], &[stores(&response), operators(&response.moves)])?;
    } else {
        print(&placement_text(&response, |store| format!("store {store}")));
    }
    Ok(Outcome::Done)
}

/// Prints why the leader and the replicas of a region are where they are.
pub async fn explain(control: &Control, wanted: &Explain, json: bool) -> Result<Outcome> {
    let response = match (wanted.region, &wanted.key) {
        (Some(region), _) => control.explain(RegionId(region)).await?,
        (None, Some(key)) => control.explain_key(text::parse(key, wanted.hex)?.into()).await?,
        (None, None) => return Err(Error::invalid("name a region, or a key with --key")),
    };
    if json {
        let row = region(&response)?;
        let heat = response.heat.unwrap_or_default();
        let head = json!({
            "region": row.region.id.0,
            "mode": response.mode,
            "leader": row.leader_store.map(|store| store.0),
            "writes_per_s": heat.writes,
            "written_bytes_per_s": heat.written_bytes,
            "reads_per_s": heat.reads,
            "read_bytes_per_s": heat.read_bytes,
        });
        let planned: Vec<Vec<Cell>> = response.operator.iter().map(rows::operator).collect();
        objects(&[head], &[verdicts(&response.stores), planned])?;
    } else {
        print(&explain_text(&response)?);
    }
    Ok(Outcome::Done)
}

/// Prints JSON objects, then the rows of tables.
fn objects(heads: &[serde_json::Value], tables: &[Vec<Vec<Cell>>]) -> Result<()> {
    let mut out = Output::new();
    for head in heads {
        out.line(&head.to_string())?;
    }
    for row in tables.iter().flatten() {
        out.json(table::object(row))?;
    }
    out.finish()
}

/// Formats the stores, a line for each one that is slow, and the moves. `name` names a store.
pub fn placement_text(response: &PlacementResponse, name: impl Fn(u64) -> String) -> String {
    let domains = match response.domain_label.as_str() {
        "" => "node",
        label => label,
    };
    let mut out = format!(
        "mode {} · ops/s: synced writes of {} · replicas differ in: {domains}\n",
        response.mode,
        format_bytes(response.speed_op_bytes)
    );
    out.push_str(&table::text(&stores(response), "no stores"));
    for line in slow_stores(response, name) {
        out.push_str(&line);
        out.push('\n');
    }
    match response.moves.is_empty() {
        true => out.push_str("no moves\n"),
        false => out.push_str(&moves(&response.moves)),
    }
    out
}

fn stores(response: &PlacementResponse) -> Vec<Vec<Cell>> {
    let fastest = fastest(response).map_or(0, |store| store.class);
    response.stores.iter().map(|store| store_row(store, fastest)).collect()
}

fn store_row(store: &StorePlacement, fastest: u32) -> Vec<Cell> {
    vec![
        number("store", store.store_id),
        words("address", store.address.as_str()),
        words("state", state(store)),
        number("class", store.class.into()),
        number("slower", fastest.saturating_sub(store.class).into()),
        speed(store),
        words_as("speed", if store.measured { "measured" } else { "estimate" }, store.measured),
        number("data class", store.data_class.into()),
        formatted("weight %", percent(store.weight_ppm / 1000), store.weight_ppm as f64 / 1e4),
        permille("wanted %", store.wanted_permille),
        permille("held %", store.held_permille),
        permille("fill %", store.fill_permille),
        bytes("live estimate", store.live_bytes),
        number("replicas", store.replicas),
        number("leaders", store.leaders),
        number("load/s", store.load_per_second),
        bytes("moving", store.moving_bytes),
        labels(&store.labels),
    ]
}

fn state(store: &StorePlacement) -> String {
    let mut words = vec![state_name(store.state)];
    let flags = [(!store.serving, "not serving"), (store.nearly_full, "nearly full")];
    words.extend(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, word)| *word));
    words.join(", ")
}

fn speed(store: &StorePlacement) -> Cell {
    let known = (store.speed_per_second > 0).then_some(store.speed_per_second);
    table::maybe("ops/s", known)
}

fn permille(name: &'static str, permille: u32) -> Cell {
    formatted(name, percent(permille.into()), f64::from(permille) / 10.0)
}

/// Formats thousandths as a percentage.
fn percent(permille: u64) -> String {
    format!("{}.{}", permille / 10, permille % 10)
}

fn fastest(response: &PlacementResponse) -> Option<&StorePlacement> {
    let known = response.stores.iter().filter(|store| store.serving && store.speed_per_second > 0);
    known.max_by_key(|store| (store.class, store.speed_per_second))
}

/// Returns a line for each store that is so slow that leaders are better elsewhere.
fn slow_stores(response: &PlacementResponse, name: impl Fn(u64) -> String) -> Vec<String> {
    let Some(fastest) = fastest(response) else { return Vec::new() };
    let line = |store: &StorePlacement| {
        let slower = fastest.class.saturating_sub(store.class);
        if slower < SLOW_CLASSES || store.speed_per_second == 0 {
            return None;
        }
        let leads = match store.leaders {
            0 => "leads nothing".to_owned(),
            1 => "leads 1 region".to_owned(),
            count => format!("leads {count} regions"),
        };
        Some(format!(
            "{} is {slower} classes slower than {} (class {} against {}; {} and {} ops/s now) and {leads}",
            name(store.store_id),
            name(fastest.store_id),
            store.class,
            fastest.class,
            store.speed_per_second,
            fastest.speed_per_second,
        ))
    };
    response.stores.iter().filter_map(line).collect()
}

fn moves(moves: &[OperatorInfo]) -> String {
    table::text(&operators(moves), "no moves")
}

fn region(response: &ExplainResponse) -> Result<RegionRow> {
    RegionRow::from_info(response.region.clone().unwrap_or_default())
}

/// Formats a region with the verdict on each store.
pub fn explain_text(response: &ExplainResponse) -> Result<String> {
    let row = region(response)?;
    let heat = heat_text(&response.heat.unwrap_or_default());
    let mut out = format!("{}\nmode {} · {heat}\n", region_line(&row), response.mode);
    out.push_str(&table::text(&verdicts(&response.stores), "no stores"));
    match &response.operator {
        Some(operator) => out.push_str(&moves(std::slice::from_ref(operator))),
        None => out.push_str("no operator is under way or planned\n"),
    }
    Ok(out)
}

fn heat_text(heat: &RegionHeat) -> String {
    let rate = |count: u64, bytes: u64| format!("{count}/s ({}/s)", format_bytes(bytes));
    format!(
        "writes {} · reads {} · half-life of a minute",
        rate(heat.writes, heat.written_bytes),
        rate(heat.reads, heat.read_bytes)
    )
}

fn verdicts(verdicts: &[StoreVerdict]) -> Vec<Vec<Cell>> {
    verdicts.iter().map(verdict).collect()
}

fn verdict(verdict: &StoreVerdict) -> Vec<Cell> {
    let store = verdict.store.clone().unwrap_or_default();
    let role = match StoreRole::try_from(verdict.role).unwrap_or_default() {
        StoreRole::Leader => "leader",
        StoreRole::Replica => "replica",
        StoreRole::Candidate => "candidate",
        StoreRole::Unspecified => "unknown",
    };
    vec![
        number("store", store.store_id),
        words("address", store.address.as_str()),
        words("role", role),
        number("class", store.class.into()),
        speed(&store),
        permille("wanted %", store.wanted_permille),
        permille("held %", store.held_permille),
        number("load/s", store.load_per_second),
        words("rule", verdict.rule.as_str()),
        words("reason", verdict.reason.as_str()),
    ]
}
