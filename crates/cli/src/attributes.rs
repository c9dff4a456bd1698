//! What a folder has beside names and contents: permission bits, empty folders, and for each file the
//! time at which its pair expires. [`Attributes`] is a text of JSON lines under the name [`NAME`]:
//!
//! - In a store it is the value of the key of that name. It holds permission bits other than 0644 of
//!   files and 0755 of folders, and empty folders. An import writes it, an export of files obeys it.
//! - In an exported folder it is a file of that name. It holds the times at which pairs expire. An
//!   import obeys it; it is absent if no pair expires.

use crate::args::Encoding;
use crate::export::put_field;
use crate::text::from_hex;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use stele_types::{Error, Result};

pub(crate) const NAME: &str = ".stele-attributes";
/// Permission bits of files and folders that are not listed.
pub(crate) const FILE_MODE: u32 = 0o644;
pub(crate) const FOLDER_MODE: u32 = 0o755;
/// Bits that are kept: not those that give a file the rights of its owner, which may be another one.
pub(crate) const MODE_BITS: u32 = 0o777;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attribute {
    pub mode: Option<u32>,
    /// Unix seconds.
    pub expires_at_s: Option<u64>,
}

/// Attributes by path, in the bytes of the file system. The path of a folder ends with `/`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes(BTreeMap<Vec<u8>, Attribute>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    path: Option<String>,
    path_hex: Option<String>,
    mode: Option<String>,
    expires_at_s: Option<u64>,
}

impl Attributes {
    /// Reads the text. Fails with `Invalid` naming the line.
    pub(crate) fn parse(text: &[u8]) -> Result<Self> {
        let mut all = Self::default();
        let lines = text.split(|byte| *byte == b'\n').enumerate();
        for (at, line) in lines.filter(|(_, line)| !line.trim_ascii().is_empty()) {
            let (path, attribute) = parse_line(line).map_err(|reason| {
                Error::invalid(format!(
                    "line {} of `{NAME}`, which holds modes, empty folders and times to live, is \
                     wrong: {reason}; use JSON lines, or remove it",
                    at + 1
                ))
            })?;
            all.0.insert(path, attribute);
        }
        Ok(all)
    }

    /// Writes the text that [`Attributes::parse`] reads.
    pub(crate) fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for (path, attribute) in &self.0 {
            let mut object = Map::new();
            put_field(&mut object, "path", path, Encoding::Text);
            if let Some(mode) = attribute.mode {
                object.insert("mode".into(), format!("{mode:04o}").into());
            }
            if let Some(expires_at_s) = attribute.expires_at_s {
                object.insert("expires_at_s".into(), expires_at_s.into());
            }
            text.extend_from_slice(Value::Object(object).to_string().as_bytes());
            text.push(b'\n');
        }
        text
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn get(&self, path: &[u8]) -> Attribute {
        self.0.get(path).copied().unwrap_or_default()
    }

    /// Replaces the attributes of a path; a path without any is not listed.
    pub(crate) fn set(&mut self, path: Vec<u8>, attribute: Attribute) {
        match attribute == Attribute::default() {
            true => self.0.remove(&path),
            false => self.0.insert(path, attribute),
        };
    }

    pub(crate) fn folders(&self) -> impl Iterator<Item = (&[u8], Attribute)> {
        self.0.iter().filter_map(|(path, it)| Some((path.strip_suffix(b"/")?, *it)))
    }
}

fn parse_line(line: &[u8]) -> Result<(Vec<u8>, Attribute), String> {
    let line: Line = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let path = match (line.path, line.path_hex) {
        (Some(path), None) => path.into_bytes(),
        (None, Some(hex)) => from_hex(&hex).map_err(|error| error.to_string())?,
        _ => return Err("it has not exactly one of `path` and `path_hex`".to_owned()),
    };
    let mode = line.mode.map(|text| {
        let mode = u32::from_str_radix(&text, 8).ok().filter(|mode| mode & !MODE_BITS == 0);
        mode.ok_or_else(|| format!("`{text}` is not a mode from 0000 to 0777"))
    });
    Ok((path, Attribute { mode: mode.transpose()?, expires_at_s: line.expires_at_s }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_survive_the_round_trip() {
        let mut all = Attributes::default();
        let mode = |mode| Attribute { mode: Some(mode), ..Attribute::default() };
        all.set(b"a/run".to_vec(), mode(0o755));
        all.set(b"empty/".to_vec(), mode(0o700));
        all.set(b"odd \xff\n".to_vec(), mode(0));
        let expires = Attribute { mode: None, expires_at_s: Some(u64::MAX) };
        all.set(b"short".to_vec(), expires);
        assert_eq!(Attributes::parse(&all.text()).unwrap(), all);
        assert_eq!(all.folders().collect::<Vec<_>>(), [(&b"empty"[..], mode(0o700))]);
        all.set(b"short".to_vec(), Attribute::default());
        assert_eq!((all.0.len(), all.get(b"short")), (3, Attribute::default()));
    }

    #[test]
    fn another_text_under_the_name_is_refused() {
        for bad in [
            "a value",
            r#"{"mode":"0644"}"#,
            r#"{"path":"a","path_hex":"61"}"#,
            r#"{"path":"a","mode":"4755"}"#,
            r#"{"path":"a","mode":"rwx"}"#,
            r#"{"path":"a","owner":1}"#,
        ] {
            let refused = Attributes::parse(bad.as_bytes()).unwrap_err().to_string();
            assert!(refused.contains("line 1 of `.stele-attributes`"), "{refused}");
        }
        assert!(Attributes::parse(b"\n\n").unwrap().is_empty());
    }
}
