//! Records of each kind of file, one line each.

use std::path::Path;
use std::sync::Arc;
use stele_log::inspect::{Row, What};
use stele_types::Result;
use stele_vfs::{RealVfs, Vfs};

/// A record, or a range of bytes that is not one.
pub(super) struct DumpedRecord {
    /// Byte offset from the start of the file.
    pub offset: u64,
    /// Length on the device, if the record has one of its own.
    pub bytes: Option<u64>,
    /// Text of the record, or a description of the damage.
    pub content: Result<String, String>,
}

pub(super) fn of_log(file: &Path, f: &mut dyn FnMut(DumpedRecord)) -> Result<()> {
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

pub(super) fn of_run(file: &Path, f: &mut dyn FnMut(DumpedRecord)) -> Result<()> {
    stele_index::inspect_run(&RealVfs::new(), file, &mut |record| {
        f(DumpedRecord {
            offset: record.offset,
            bytes: Some(record.bytes),
            content: record.content,
        });
    })
}

pub(super) fn of_manifest(file: &Path, f: &mut dyn FnMut(DumpedRecord)) -> Result<()> {
    stele_index::inspect_manifest(&RealVfs::new(), file, &mut |record| {
        let content = record.content.map(|changes| {
            let changes: Vec<String> = changes.iter().map(|change| format!("{change:?}")).collect();
            changes.join("; ")
        });
        f(DumpedRecord { offset: record.offset, bytes: Some(record.bytes), content });
    })
}
