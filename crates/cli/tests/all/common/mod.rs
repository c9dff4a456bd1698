//! Runs the built binary.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

#[derive(Debug)]
pub(crate) struct Ran {
    pub code: i32,
    pub out: Vec<u8>,
    pub err: String,
}

impl Ran {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.out).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(self.text().lines().last().unwrap()).unwrap()
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }

    /// Asserts the exit code and that standard error contains `words`.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, words: &str) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.err.contains(words), "{self:?}");
        self
    }
}

pub(crate) fn stele() -> Command {
    Command::new(env!("CARGO_BIN_EXE_stele"))
}

/// Runs `stele` with arguments separated by spaces, in which `$` stands for the store's directory.
pub(crate) fn run(store: &Path, line: &str) -> Ran {
    run_with(store, line, b"")
}

pub(crate) fn run_with(store: &Path, line: &str, input: &[u8]) -> Ran {
    let store = store.to_str().unwrap();
    let arguments = line.split(' ').map(|word| if word == "$" { store } else { word });
    let mut child = stele()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that reads no input may have ended already.
    let _ = child.stdin.take().unwrap().write_all(input);
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    Ran {
        code: status.code().unwrap_or(-1),
        out: stdout,
        err: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

pub(crate) fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

pub(crate) fn tree(dir: &Path) -> std::collections::BTreeMap<std::path::PathBuf, Vec<u8>> {
    let mut files = std::collections::BTreeMap::new();
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                let path = entry.path();
                let content = std::fs::read(&path).unwrap();
                files.insert(path.strip_prefix(dir).unwrap().to_path_buf(), content);
            }
        }
    }
    files
}
