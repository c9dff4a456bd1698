//! The table of all commands of Redis, `docs/redis-commands.md`.

use super::reply::Reply;
use super::servers::{REDIS, call};
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Texts beside the answers of the servers.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Notes {
    differs: BTreeMap<String, String>,
    no: BTreeMap<String, String>,
}

/// Command or subcommand of Redis: `client|id`.
struct Row {
    name: String,
    group: String,
}

/// Writes the table from the commands of Redis and the answers of a node.
pub(super) fn write(workspace: &Workspace, redis: &str, node: &str) -> Result<()> {
    let path = workspace.root.join("xtask/redis-commands.toml");
    let notes = std::fs::read_to_string(&path).context("reading xtask/redis-commands.toml")?;
    let notes: Notes = toml::from_str(&notes).context("reading xtask/redis-commands.toml")?;
    let rows = rows(redis)?;
    let known: BTreeSet<&String> = rows.iter().map(|row| &row.name).collect();
    let mut of_notes = notes.differs.keys().chain(notes.no.keys());
    if let Some(name) = of_notes.find(|name| !known.contains(name)) {
        bail!("xtask/redis-commands.toml has {name}, which is not a command of Redis");
    }
    let built = names(&call(node, &["COMMAND", "LIST"])?)?;
    let mut groups: BTreeMap<&str, String> = BTreeMap::new();
    for row in &rows {
        let (state, text) = state(row, &built, &notes, node)?;
        let table = groups.entry(&row.group).or_default();
        let name = row.name.replace('|', " ").to_uppercase();
        writeln!(table, "| {name} | {state} | {text} |")?;
    }
    let only_here: Vec<String> = built
        .iter()
        .filter(|name| !known.contains(name))
        .map(|name| format!("`{}`", name.to_uppercase()))
        .collect();
    let mut page = format!(
        "# Commands of Redis\n\nAll commands and subcommands of Redis {}, without those of modules. `cargo xtask redis-compare --table` \
         writes this page. [redis.md](redis.md) describes the protocol. Of other servers Stele also has {}.\n\n\
         *Yes*: random sequences have the same replies on Redis and on Stele, `cargo xtask redis-compare`. *Differs*: \
         the command is there, and the last column says what differs. *No*: it is refused; the last column says what \
         to use instead.\n",
        REDIS.version,
        only_here.join(", ")
    );
    for (group, table) in groups {
        write!(
            page,
            "\n## {}\n\n| command | in Stele | how, or instead |\n|---|---|---|\n{table}",
            title(group)
        )?;
    }
    let path = workspace.root.join("docs/redis-commands.md");
    std::fs::write(&path, page).with_context(|| format!("writing {}", path.display()))?;
    println!("{} commands: {}", rows.len(), path.display());
    Ok(())
}

fn title(group: &str) -> String {
    let mut title = group.replace(['-', '_'], " ");
    if let Some(first) = title.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    title
}

/// Returns the commands and subcommands with their groups, ordered by name.
fn rows(redis: &str) -> Result<Vec<Row>> {
    let listed: BTreeSet<String> =
        names(&call(redis, &["COMMAND", "LIST"])?)?.into_iter().collect();
    let docs = call(redis, &["COMMAND", "DOCS"])?;
    let docs = docs.elements().context("COMMAND DOCS was not answered by a map")?;
    let mut rows = Vec::new();
    for pair in docs.chunks_exact(2) {
        let [name, doc] = pair else { continue };
        let name = text(name)?;
        ensure!(listed.contains(&name), "{name} has a document, and is not in COMMAND LIST");
        let fields = doc.elements().context("a document is not a map")?;
        let field = |wanted: &str| {
            let mut fields = fields.chunks_exact(2);
            fields.find(|field| text(field[0]).is_ok_and(|it| it == wanted)).map(|field| field[1])
        };
        let group = text(field("group").context("a document has no group")?)?;
        if group == "module" {
            continue;
        }
        if let Some(subcommands) = field("subcommands").and_then(Reply::elements) {
            for subcommand in subcommands.iter().step_by(2) {
                rows.push(Row { name: text(subcommand)?, group: group.clone() });
            }
        }
        rows.push(Row { name, group });
    }
    ensure!(!rows.is_empty(), "the server has no commands");
    rows.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(rows)
}

/// Returns whether a command is there, and what differs or is used instead.
fn state(row: &Row, built: &[String], notes: &Notes, node: &str) -> Result<(&'static str, String)> {
    let words: Vec<&str> = row.name.split('|').collect();
    let (command, subcommand) = match &words[..] {
        [command] => (*command, None),
        [command, subcommand] => (*command, Some(*subcommand)),
        _ => bail!("{} is not a command with a subcommand", row.name),
    };
    let refused = match call(node, &words)? {
        Reply::Error(error) => {
            let error = String::from_utf8_lossy(&error).into_owned();
            error.starts_with("ERR unknown ").then_some(error)
        }
        _ => None,
    };
    let is_built = built.iter().any(|it| it == command) && refused.is_none();
    if let Some(text) = notes.no.get(&row.name) {
        return Ok(("no", text.clone()));
    }
    if !is_built {
        let of_command = || notes.no.get(command).cloned();
        let instead = subcommand.map_or_else(|| refused.as_deref().map(instead), |_| None);
        let of_container = || -> Option<String> {
            match call(node, &[command]) {
                Ok(Reply::Error(error)) => Some(instead_of(&error)),
                _ => None,
            }
        };
        let text = match subcommand {
            Some("help") => Some("this page".to_owned()),
            _ => of_command().or(instead).or_else(of_container),
        };
        let text = text.filter(|text| !text.is_empty());
        return Ok(("no", text.unwrap_or_else(|| "nothing".to_owned())));
    }
    Ok(match notes.differs.get(&row.name) {
        Some(text) => ("differs", text.clone()),
        None => ("yes", String::new()),
    })
}

fn instead_of(error: &[u8]) -> String {
    instead(&String::from_utf8_lossy(error))
}

/// Returns what the error of an unknown command says after its beginning.
fn instead(error: &str) -> String {
    let (_, advice) = error.split_once("with args beginning with: ").unwrap_or_default();
    let advice = advice.rsplit_once("' ").map_or(advice, |(_, advice)| advice);
    let advice = advice.trim_start_matches(". ");
    if advice.starts_with("It is not built") {
        return String::new();
    }
    advice.to_owned()
}

fn text(reply: &Reply) -> Result<String> {
    match reply {
        Reply::Bulk(bytes) | Reply::Simple(bytes) => Ok(String::from_utf8(bytes.clone())?),
        other => bail!("{other} is not a text"),
    }
}

fn names(reply: &Reply) -> Result<Vec<String>> {
    let elements = reply.elements().context("COMMAND LIST was not answered by an array")?;
    elements.into_iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_of_an_error_is_what_is_used_instead() {
        let error = "ERR unknown command 'lpush', with args beginning with: . Lists are not built: use a hash";
        assert_eq!(instead(error), "Lists are not built: use a hash");
        assert_eq!(instead("ERR unknown command 'x', with args beginning with: "), "");
        let other = "ERR unknown command 'time', with args beginning with: . It is not built: docs/redis.md lists it";
        assert_eq!(instead(other), "");
        assert_eq!(instead("ERR unknown subcommand 'x'. Try CLIENT HELP."), "");
    }
}
