//! `stele restore --of-key`: the writes of one key, and its restore to one of them.

use crate::Outcome;
use crate::args::{Encoding, Restore};
use crate::export::put_field;
use crate::runtime;
use crate::store::unix_seconds;
use crate::terminal::{self, Output};
use crate::text::{parse, printable};
use serde_json::{Map, Value};
use stele_backup::Repository;
use stele_backup::restore::{HistoryWrite, KeyHistory, history, state_at};
use stele_client::KeyWrite;
use stele_types::{Error, Result, is_expired};

pub(super) async fn run(args: &Restore, repository: &Repository, key: &str) -> Result<Outcome> {
    let of = KeyHistory { family: args.family.family(), key: parse(key, args.hex)?.into() };
    let mut out = Output::new();
    if args.history {
        history(repository, &of, |write| out.json(object(write, args.hex))).await?;
        out.finish()?;
        return Ok(Outcome::Done);
    }
    let Some((region, index)) = args.to_index else {
        return Err(Error::invalid(
            "add --history to list the writes of the key, or --to-index REGION:INDEX to restore it to one of them",
        ));
    };
    let write = state_at(repository, &of, region, index).await?;
    let put = write.put.clone().filter(|(_, at_s)| !is_expired(*at_s, unix_seconds()));
    out.json(object(write, args.hex))?;
    out.finish()?;
    if args.cluster.is_empty() {
        return Ok(Outcome::Done);
    }
    let change = if put.is_some() { "set" } else { "delete" };
    if !terminal::given(&format!("{change} the key `{}`", printable(&of.key)), args.yes)? {
        return Ok(Outcome::Failed);
    }
    let client = runtime::connect(&args.cluster, &args.tls).await?;
    client.family(of.family).write(vec![KeyWrite { key: of.key, put }]).await?;
    Ok(Outcome::Done)
}

/// Returns a write as `stele watch` prints it, with its place and the first moment that contains it.
fn object(write: HistoryWrite, hex: bool) -> Map<String, Value> {
    let encoding = if hex { Encoding::Hex } else { Encoding::Text };
    let mut object = Map::new();
    let at = format!("{}:{}", write.region, write.index);
    object.insert("at".into(), at.into());
    if let Some(moment) = write.moment {
        object.insert("moment".into(), moment.0.into());
    }
    let event = match (&write.put, write.of_range) {
        (Some(_), _) => "put",
        (None, true) => "delete_range",
        (None, false) => "delete",
    };
    object.insert("event".into(), event.into());
    if let Some((value, expires_at_s)) = write.put {
        put_field(&mut object, "value", &value, encoding);
        if expires_at_s != 0 {
            object.insert("expires_at_s".into(), expires_at_s.into());
        }
    }
    object
}
