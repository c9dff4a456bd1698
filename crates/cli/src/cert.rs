//! `stele cert`: certificates of an authority, nodes and clients.

use crate::Outcome;
use crate::args::{Cert, CertCommand};
use crate::terminal::Output;
use serde_json::{Value, json};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use stele_tls::{Authority, Created, NodeRequest, UnixTime, utc};
use stele_types::{Error, Result};

/// Permissions of a directory that is created for an authority.
const DIR_MODE: u32 = 0o700;

pub(crate) fn run(args: &Cert) -> Result<Outcome> {
    let (dir, now) = (args.dir.as_path(), UnixTime::now());
    let created = create(args, now)?;
    let written = created.write(dir)?;
    let (certificate, key) = (written.certificate.display(), written.key.display());
    let (until, next) = (utc(written.not_after), next(args));
    let mut out = Output::new();
    let object = json!({
        "certificate": certificate.to_string(),
        "key": key.to_string(),
        "not_after_s": written.not_after.as_secs(),
        "next": next,
    });
    match object {
        Value::Object(object) if args.json => out.json(object)?,
        _ => {
            out.line(&format!("wrote {certificate} and {key}, valid until {until}"))?;
            out.line(&format!("next: {next}"))?;
        }
    }
    out.finish()?;
    Ok(Outcome::Done)
}

fn create(args: &Cert, now: UnixTime) -> Result<Created> {
    let authority = || Authority::open(&args.dir, now);
    Ok(match &args.command {
        CertCommand::Ca { name, days } => {
            let created = Authority::create(name, *days, now)?;
            create_dir(&args.dir)?;
            created
        }
        CertCommand::Node { name, host, cluster_name, days } => {
            let request = NodeRequest {
                cluster: cluster_name.clone(),
                node: name.clone(),
                hosts: host.clone(),
            };
            authority()?.node(&request, *days, now)?
        }
        CertCommand::Client { name, days } => authority()?.client(name, *days, now)?,
    })
}

fn create_dir(dir: &Path) -> Result<()> {
    let created = std::fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir);
    created.map_err(|source| Error::io("create directory", dir, source))
}

/// Returns what the operator does with the files.
fn next(args: &Cert) -> String {
    let dir = match args.dir == Path::new(".") {
        true => String::new(),
        false => format!(" --dir {}", args.dir.display()),
    };
    match &args.command {
        CertCommand::Ca { .. } => format!(
            "keep ca.key secret, no node needs it; then for each node `stele cert node NAME --host HOST{dir}`"
        ),
        CertCommand::Node { name, .. } => format!(
            "copy ca.pem, {name}.pem and {name}.key to the node; then for each client `stele cert client NAME{dir}`"
        ),
        CertCommand::Client { name, .. } => {
            format!("copy ca.pem, {name}.pem and {name}.key to the client")
        }
    }
}
