//! Targets for text from people and other programs.

use super::SMALL;
use crate::{Bound, Target};
use std::path::Path;
use stele_server::config::{Config, SETTINGS};
use stele_server::members::{self, Members};
use stele_types::size;

pub(super) const SIZE: Target = Target {
    name: "size_text",
    run: |input| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        let Ok(bytes) = size::parse_bytes(text) else { return };
        assert_eq!(size::parse_bytes(&bytes.to_string()).unwrap(), bytes);
        size::format_bytes(bytes);
    },
    seeds: || [&b"128MiB"[..], b" 4 k ", b"77", b"16TiB"].iter().map(|it| it.to_vec()).collect(),
    fix_checksums: None,
    bound: SMALL,
};

thread_local! {
    static DIR: tempfile::TempDir = tempfile::tempdir().unwrap();
}

fn with_file(name: &str, input: &[u8], f: impl FnOnce(&Path, &Path)) {
    DIR.with(|dir| {
        let path = dir.path().join(name);
        std::fs::write(&path, input).unwrap();
        f(dir.path(), &path);
    });
}

pub(super) const CONFIG: Target = Target {
    name: "config_file",
    run: |input| {
        with_file("stele.toml", input, |_, file| {
            let Ok(config) = Config::load(Some(file), std::iter::empty(), &[]) else { return };
            let flags = SETTINGS
                .iter()
                .filter_map(|setting| Some((setting.key.to_owned(), config.get(setting.key)?)));
            let flags: Vec<_> = flags.collect();
            // A list item may contain the separator of the text form.
            let _ = Config::load(None, std::iter::empty(), &flags);
            config.effective();
        });
    },
    seeds: || {
        let defaults = Config::default().effective();
        let quoted = |line: &str| {
            let (key, value) = line.split_once(" = ").unwrap();
            format!("{key} = \"{value}\"\n")
        };
        let text: String = defaults.lines().map(quoted).collect();
        let typed = "tick_ms = 70\nstore = [\"a\", 'b']\nspace_amp_target = 1.5 # text\n";
        vec![text.into_bytes(), typed.as_bytes().to_vec(), b"[table]\nx = {y = 1}\n".to_vec()]
    },
    fix_checksums: None,
    // A TOML table takes some hundred bytes per key.
    bound: Bound { bytes: 256 << 10, per_byte: 1024 },
};

pub(super) const MEMBERS: Target = Target {
    name: "members_file",
    run: |input| {
        with_file("members.json", input, |dir, _| {
            let Ok(Some(known)) = members::read(dir) else { return };
            let members = Members::new(known);
            let _ = (members.version(), members.addresses(), members.own());
        });
    },
    seeds: || {
        let text = r#"{"version":3,"stores":[{"store":1,"address":"a:1","removed":false}]}"#;
        let own = r#"{"write":1,"cluster":7,"version":3,"stores":[],"own":{"1":"/a","2":null}}"#;
        vec![text.as_bytes().to_vec(), own.as_bytes().to_vec()]
    },
    fix_checksums: None,
    bound: Bound { bytes: 64 << 10, per_byte: 256 },
};

pub(super) const JSON_LINE: Target = Target {
    name: "json_line",
    run: |input| {
        stele_cli::fuzzing::line(input);
    },
    seeds: || {
        let lines = [
            r#"{"key":"k","value":"v","ttl_s":9}"#,
            r#"{"key_hex":"ff00","value_base64":"AAE="}"#,
            r#"{"key":"6b","value":"\u00e4\n"}"#,
        ];
        lines.iter().map(|line| line.as_bytes().to_vec()).collect()
    },
    fix_checksums: None,
    bound: SMALL,
};
