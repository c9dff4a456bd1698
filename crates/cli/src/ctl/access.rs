//! `stele ctl access`: what the clients of a cluster may do.

use crate::Outcome;
use crate::args::{AccessCommand, GrantArgs, Role};
use crate::table::{self, Cell, maybe, words};
use crate::terminal::print;
use crate::text::{parse, printable, to_hex};
use serde_json::json;
use std::time::{Duration, Instant};
use stele_client::Control;
use stele_client::messages::AccessGrant;
use stele_tls::{new_token, token_hash};
use stele_types::{Error, Result};

/// Time in which all nodes should confirm a change.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(5);
const CONFIRMATION_PAUSE: Duration = Duration::from_millis(100);
const TOKEN_NAME: &str = "token:";

pub(super) async fn run(control: &Control, command: &AccessCommand, json: bool) -> Result<Outcome> {
    match command {
        AccessCommand::List => return list(control, json).await,
        AccessCommand::Grant(wanted) => {
            let version = control.grant_access(grant(wanted)?).await?;
            confirmed(control, version).await?;
        }
        AccessCommand::Token(wanted) => {
            let token = new_token()?;
            let name = match wanted.name.starts_with(TOKEN_NAME) {
                true => wanted.name.clone(),
                false => format!("{TOKEN_NAME}{}", wanted.name),
            };
            let token_hash = token_hash(token.as_bytes()).to_vec().into();
            let grant = AccessGrant { name: name.clone(), token_hash, ..grant(wanted)? };
            let version = control.grant_access(grant).await?;
            // It is shown this once, alone: for a file.
            match json {
                true => {
                    table::print(&[vec![words("name", name), words("token", token)]], json, "")?
                }
                false => print(&format!("{token}\n")),
            }
            confirmed(control, version).await?;
        }
        AccessCommand::Revoke { name, turn_off } => {
            let version = control.revoke_access(name, *turn_off).await?;
            confirmed(control, version).await?;
        }
    }
    Ok(Outcome::Done)
}

/// Waits until a change is in force on every node. Fails with `Unavailable` and the names of the others.
async fn confirmed(control: &Control, version: u64) -> Result<()> {
    let started = Instant::now();
    loop {
        let listed = control.access().await?;
        let known = listed.access.map_or(0, |access| access.version);
        if known >= version && listed.behind.is_empty() {
            eprintln!("stele: the change is in force on every node");
            return Ok(());
        }
        if started.elapsed() >= CONFIRMED_WITHIN {
            return Err(Error::Unavailable(format!(
                "the change is decided, and these nodes have not confirmed it: {}. They enforce it as soon as \
                 they reach the placement group; until then, stop them or close their ports",
                listed.behind.join(", ")
            )));
        }
        tokio::time::sleep(CONFIRMATION_PAUSE).await;
    }
}

fn grant(wanted: &GrantArgs) -> Result<AccessGrant> {
    let prefixes = wanted.prefix.iter().map(|prefix| Ok(parse(prefix, wanted.hex)?.into()));
    Ok(AccessGrant {
        name: wanted.name.clone(),
        permissions: wanted.role.iter().fold(0, |bits, role| bits | role.bits()),
        prefixes: prefixes.collect::<Result<_>>()?,
        operations_per_second: wanted.operations_per_second,
        bytes_per_second: wanted.bytes_per_second,
        connections: wanted.connections,
        ..AccessGrant::default()
    })
}

async fn list(control: &Control, json: bool) -> Result<Outcome> {
    let listed = control.access().await?;
    let grants = listed.access.unwrap_or_default().grants;
    let none = "access is off: each client may read and write every key";
    table::print(&grants.iter().map(row).collect::<Vec<_>>(), json, none)?;
    if !listed.behind.is_empty() {
        eprintln!("stele: not in force on {}", listed.behind.join(", "));
    }
    Ok(Outcome::Done)
}

fn row(grant: &AccessGrant) -> Vec<Cell> {
    let roles = [Role::Read, Role::Write, Role::Admin];
    let held = roles.iter().filter(|role| grant.permissions & role.bits() != 0);
    let role = held.map(|role| role.name()).collect::<Vec<_>>().join(",");
    let prefixes: Vec<String> = grant.prefixes.iter().map(|prefix| printable(prefix)).collect();
    let hex: Vec<String> = grant.prefixes.iter().map(|prefix| to_hex(prefix)).collect();
    let all = "all keys".to_owned();
    let shown = if prefixes.is_empty() { all } else { prefixes.join(" ") };
    let limit = |limit: u64| (limit > 0).then_some(limit);
    vec![
        words("name", grant.name.as_str()),
        words("role", role),
        table::formatted("prefixes", shown, json!(hex)),
        maybe("operations/s", limit(grant.operations_per_second)),
        maybe("bytes/s", limit(grant.bytes_per_second)),
        maybe("connections", limit(grant.connections)),
    ]
}
