//! `stele inspect`: prints the records of a store's files, one line each, without opening the
//! store. Nothing is locked, repaired or written, and damage is printed as records.

mod identity;

use crate::Outcome;
use crate::args::{Inspect, Part};
use crate::terminal::Output;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_log::inspect::{Row, What};
use stele_types::{Error, Result};
use stele_vfs::{RealVfs, Vfs};

struct Printer {
    out: Output,
    json: bool,
    damaged: u64,
    /// First failure of the output; the callback that receives records cannot stop the walk.
    failed: Option<Error>,
}

impl Printer {
    fn print(&mut self, file: &Path, record: &DumpedRecord) {
        if self.failed.is_some() {
            return;
        }
        self.damaged += u64::from(record.content.is_err());
        let printed = match self.json {
            true => self.out.json(to_json(file, record)),
            false => self.out.line(&to_text(file, record)),
        };
        self.failed = printed.err();
    }

    fn object(&mut self, object: Map<String, Value>, text: &str) -> Result<()> {
        if self.json { self.out.json(object) } else { self.out.line(text) }
    }
}

fn to_text(file: &Path, record: &DumpedRecord) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let bytes = record.bytes.map(|bytes| format!("+{bytes}")).unwrap_or_default();
    let place = format!("{name}  {:>10} {bytes:<8}", record.offset);
    match &record.content {
        Ok(content) => format!("{place} {content}"),
        Err(damage) => format!("{place} DAMAGED: {damage}"),
    }
}

fn to_json(file: &Path, record: &DumpedRecord) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("file".into(), file.display().to_string().into());
    object.insert("offset".into(), record.offset.into());
    if let Some(bytes) = record.bytes {
        object.insert("bytes".into(), bytes.into());
    }
    match &record.content {
        Ok(content) => object.insert("record".into(), content.as_str().into()),
        Err(damage) => object.insert("damage".into(), damage.as_str().into()),
    };
    object
}

pub(crate) fn run(args: &Inspect) -> Result<Outcome> {
    let mut printer = Printer { out: Output::new(), json: args.json, damaged: 0, failed: None };
    match (args.part, &args.store, &args.file) {
        (Part::Store, Some(dir), _) => identity::show(dir, &mut printer)?,
        (Part::Store, None, Some(file)) => {
            identity::show(file.parent().unwrap_or(Path::new(".")), &mut printer)?;
        }
        (part, Some(dir), _) => {
            for file in files(part, dir)? {
                show(part, &file, &mut printer)?;
            }
        }
        (part, None, Some(file)) => show(part, file, &mut printer)?,
        (_, None, None) => return Err(Error::invalid("give --store or a file")),
    }
    let Printer { out, damaged, failed, .. } = printer;
    if let Some(error) = failed {
        return Err(error);
    }
    out.finish()?;
    if damaged > 0 {
        eprintln!("stele: {damaged} damaged records; run `stele verify` to check the whole store");
    }
    Ok(Outcome::Done)
}

fn show(part: Part, file: &Path, printer: &mut Printer) -> Result<()> {
    records_of(part, file, &mut |record| printer.print(file, &record))
}

/// Calls `f` with each record. Damage that ends a file early is passed as a record too.
fn records_of(part: Part, file: &Path, f: &mut dyn FnMut(DumpedRecord)) -> Result<()> {
    let read = match part {
        Part::Log => of_log(file, f),
        Part::Run => of_run(file, f),
        Part::Manifest | Part::Store => of_manifest(file, f),
    };
    match read {
        Err(error) if error.is_damage() => {
            f(DumpedRecord { offset: 0, bytes: None, content: Err(error.to_string()) });
            Ok(())
        }
        other => other,
    }
}

/// Calls `f` with every damaged record of a store as (file, description). A missing part counts as
/// damaged.
pub(crate) fn damage(dir: &Path, f: &mut dyn FnMut(PathBuf, String)) -> Result<()> {
    for part in [Part::Log, Part::Run, Part::Manifest] {
        let files = match files(part, dir) {
            Ok(files) => files,
            Err(error) => {
                f(dir.to_path_buf(), error.to_string());
                continue;
            }
        };
        for file in files {
            records_of(part, &file, &mut |record| {
                if let Err(detail) = record.content {
                    f(file.clone(), format!("at byte {}: {detail}", record.offset));
                }
            })?;
        }
    }
    Ok(())
}

/// Returns the files of a part by name; for the log and the index that is the order of their
/// creation.
fn files(part: Part, dir: &Path) -> Result<Vec<PathBuf>> {
    let (folder, wanted): (&str, &[&str]) = match part {
        Part::Log => ("log", &[".seg", ".side", ".val", ".graves"]),
        Part::Run => ("index", &[".run"]),
        Part::Manifest | Part::Store => ("index", &["manifest-"]),
    };
    let folder = dir.join(folder);
    let failed = |error| Error::io("list", &folder, error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let text = name.to_string_lossy();
        if wanted.iter().any(|part| text.ends_with(part) || text.starts_with(part)) {
            files.push(folder.join(&name));
        }
    }
    files.sort();
    Ok(files)
}

/// A record, or a range of bytes that is not one.
struct DumpedRecord {
    /// Byte offset from the start of the file.
    pub offset: u64,
    /// Length on the device, if the record has one of its own.
    pub bytes: Option<u64>,
    /// Text of the record, or a description of the damage.
    pub content: Result<String, String>,
}

fn of_log(file: &Path, f: &mut dyn FnMut(DumpedRecord)) -> Result<()> {
    let vfs: Arc<dyn Vfs> = Arc::new(RealVfs::new());
    stele_log::inspect::dump(&vfs, file, &mut |row| {
        f(DumpedRecord { offset: row.offset, bytes: None, content: log_row(&row) });
        true
    })
}

fn log_row(row: &Row) -> Result<String, String> {
    let text = row.to_string();
    // The row's text begins with the offset, which is printed separately.
    let text = text.trim_start().split_once(' ').map_or("", |(_, text)| text.trim_start());
    match &row.what {
        What::Damage { detail } => Err(detail.clone()),
        What::Put { whole: Some(false), .. } => Err(text.to_owned()),
        _ => Ok(text.to_owned()),
    }
}

fn of_run(file: &Path, f: &mut dyn FnMut(DumpedRecord)) -> Result<()> {
    stele_index::inspect_run(&RealVfs::new(), file, &mut |record| {
        f(DumpedRecord {
            offset: record.offset,
            bytes: Some(record.bytes),
            content: record.content,
        });
    })
}

fn of_manifest(file: &Path, f: &mut dyn FnMut(DumpedRecord)) -> Result<()> {
    stele_index::inspect_manifest(&RealVfs::new(), file, &mut |record| {
        let content = record.content.map(|changes| {
            let changes: Vec<String> = changes.iter().map(|change| format!("{change:?}")).collect();
            changes.join("; ")
        });
        f(DumpedRecord { offset: record.offset, bytes: Some(record.bytes), content });
    })
}
