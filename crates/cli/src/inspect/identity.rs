//! `stele inspect store`: identity and files of a store.

use super::Printer;
use crate::store::STAT_BLOCK_BYTES;
use crate::text::printable;
use serde_json::{Map, Value, json};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use stele_types::{Error, Result};

const IDENTITY: &str = "STORE";
const IDENTITY_BYTES_MAX: u64 = 4096;

pub(super) fn show(dir: &Path, printer: &mut Printer) -> Result<()> {
    let identity = dir.join(IDENTITY);
    let mut text = Vec::new();
    let read =
        File::open(&identity).and_then(|file| file.take(IDENTITY_BYTES_MAX).read_to_end(&mut text));
    match read {
        Ok(_) => {
            for line in text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
                let line = printable(line);
                let object = fields(json!({ "file": IDENTITY, "line": line }));
                printer.object(object, &format!("{IDENTITY}  {line}"))?;
            }
        }
        Err(error) => {
            let damage = format!("cannot be read: {error}");
            let object = fields(json!({ "file": IDENTITY, "damage": damage }));
            printer.object(object, &format!("{IDENTITY}  DAMAGED: {damage}"))?;
        }
    }
    for folder in ["", "log", "index"] {
        list(&dir.join(folder), folder, printer)?;
    }
    Ok(())
}

fn list(folder: &Path, name: &str, printer: &mut Printer) -> Result<()> {
    let failed = |error| Error::io("list", folder, error);
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if !name.is_empty() => {
            let damage = format!("cannot be listed: {error}");
            let object = fields(json!({ "file": name, "damage": damage }));
            return printer.object(object, &format!("{name}  DAMAGED: {damage}"));
        }
        Err(error) => return Err(failed(error)),
    };
    let mut entries = entries.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let meta = entry.metadata().map_err(failed)?;
        if meta.is_dir() {
            continue;
        }
        let file = Path::new(name).join(entry.file_name()).display().to_string();
        let (bytes, disk_bytes) = (meta.len(), meta.blocks() * STAT_BLOCK_BYTES);
        let object = fields(json!({ "file": file, "bytes": bytes, "disk_bytes": disk_bytes }));
        printer.object(object, &format!("{file}  {bytes} bytes, {disk_bytes} on disk"))?;
    }
    Ok(())
}

fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}
