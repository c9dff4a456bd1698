//! The file of the audit log: opened for appending, bounded, and never another file than the one that its path
//! names.

use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use stele_types::{Error, Result};

/// Size at which the file is renamed and a new one begins.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Renamed files that are kept.
const OLDER_MAX: u32 = 3;

/// File of lines. After a failed line it is opened again for the next one.
#[derive(Debug)]
pub(super) struct AuditFile {
    path: PathBuf,
    bytes_max: u64,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    bytes: u64,
    /// Device and number of the file.
    identity: (u64, u64),
}

impl AuditFile {
    /// Opens the file, and creates it if it does not exist. Fails with `Refused` if the path names anything
    /// but a regular file of its own.
    pub(super) fn open(path: &Path) -> Result<Self> {
        Self::open_bounded(path, FILE_BYTES_MAX)
    }

    fn open_bounded(path: &Path, bytes_max: u64) -> Result<Self> {
        let open = open(path).map_err(|error| {
            let path = path.display();
            Error::Refused(format!(
                "audit_log {path}: {error}; name a file in a directory that this process may write to, or leave \
                 the setting out"
            ))
        })?;
        Ok(Self { path: path.to_owned(), bytes_max, open: Some(open) })
    }

    /// Appends lines, which end with a newline. After a failure none of them counts as written.
    ///
    /// Invariant: the files take up a bounded number of bytes; where the file cannot be renamed, lines are lost
    /// and counted.
    /// Tests: `a_full_file_is_renamed_and_three_older_ones_are_kept`.
    pub(super) fn append(&mut self, lines: &str) -> io::Result<()> {
        let mut open = match self.open.take() {
            Some(open) if open.is_at(&self.path) => open,
            // It was renamed or removed by another program, or its last line failed.
            _ => self::open(&self.path)?,
        };
        // bug server.audit_unbounded: never
        if open.bytes > 0 && open.bytes + lines.len() as u64 > self.bytes_max {
            self.rename()?;
            open = self::open(&self.path)?;
        }
        open.file.write_all(lines.as_bytes())?;
        open.bytes += lines.len() as u64;
        self.open = Some(open);
        Ok(())
    }

    fn rename(&self) -> io::Result<()> {
        for nth in (1..OLDER_MAX).rev() {
            match fs::rename(self.older(nth), self.older(nth + 1)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::rename(&self.path, self.older(1))
    }

    fn older(&self, nth: u32) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{nth}"));
        name.into()
    }
}

impl Open {
    fn is_at(&self, path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok_and(|it| (it.dev(), it.ino()) == self.identity)
    }
}

/// Opens the file at its end, behind a whole line.
///
/// Invariant: neither a link nor a device is written to, and only its owner may read a file that is created here.
/// Tests: `a_link_a_pipe_or_a_directory_is_refused_and_left_alone`.
fn open(path: &Path) -> io::Result<Open> {
    // Without `NONBLOCK`, a pipe without a reader would stop the node.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    // bug server.audit_follows_links: `flags.bits()` is `(flags - OFlags::NOFOLLOW).bits()`
    let opened = options.custom_flags(flags.bits() as i32).open(path);
    let mut file = opened.map_err(|error| match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => io::Error::other("it is a symbolic link"),
        _ => error,
    })?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if found.nlink() != 1 {
        return Err(io::Error::other("it has more than one name"));
    }
    let mut bytes = found.len();
    if bytes > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
            bytes += 1;
        }
    }
    Ok(Open { file, bytes, identity: (found.dev(), found.ino()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn lines_are_appended_to_a_file_that_only_its_owner_reads() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        AuditFile::open(&path).unwrap().append("a\n").unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        // A line that was cut by the end of its process.
        fs::write(&path, "a\nhal").unwrap();
        let mut file = AuditFile::open(&path).unwrap();
        file.append("b\n").unwrap();
        assert_eq!(read(&path), "a\nhal\nb\n");
        // Another program renames it, as `logrotate` does.
        fs::rename(&path, dir.path().join("old")).unwrap();
        file.append("c\n").unwrap();
        assert_eq!(read(&path), "c\n");
    }

    #[test]
    fn a_full_file_is_renamed_and_three_older_ones_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        let mut file = AuditFile::open_bounded(&path, 10).unwrap();
        for nth in 0..12 {
            file.append(&format!("{nth:03}\n")).unwrap();
        }
        let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|it| it.unwrap()).collect();
        names.sort_by_key(|it| it.file_name());
        let texts: Vec<String> = names.iter().map(|it| read(&it.path())).collect();
        assert_eq!(texts, ["010\n011\n", "008\n009\n", "006\n007\n", "004\n005\n"]);
        // A directory in the way: no line is written beyond the bound, and lines go on once it is gone.
        let last = dir.path().join("audit.3");
        fs::remove_file(&last).unwrap();
        fs::create_dir_all(last.join("x")).unwrap();
        assert!(file.append("lost\n").is_err());
        assert_eq!(read(&path), "010\n011\n");
        fs::remove_dir_all(&last).unwrap();
        file.append("on\n").unwrap();
        assert_eq!(read(&path), "on\n");
    }

    #[test]
    fn a_link_a_pipe_or_a_directory_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("other"), "secret").unwrap();
        std::os::unix::fs::symlink(at("other"), at("link")).unwrap();
        std::os::unix::fs::symlink(at("missing"), at("dangling")).unwrap();
        fs::hard_link(at("other"), at("second name")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap();
        assert!(made.success());
        for (name, text) in [
            ("link", "symbolic link"),
            ("dangling", "symbolic link"),
            ("second name", "more than one name"),
            ("pipe", "not a regular file"),
            (".", "directory"),
            ("no directory/audit", "No such file"),
        ] {
            let refused = AuditFile::open(&at(name)).unwrap_err().to_string();
            assert!(refused.contains(text) && refused.contains("audit_log"), "{name}: {refused}");
        }
        assert_eq!(read(&at("other")), "secret");
        assert!(!at("missing").exists());
        // The same while the node runs.
        let mut file = AuditFile::open(&at("audit")).unwrap();
        fs::remove_file(at("audit")).unwrap();
        std::os::unix::fs::symlink(at("other"), at("audit")).unwrap();
        assert!(file.append("line\n").is_err());
        assert_eq!(read(&at("other")), "secret");
    }
}
