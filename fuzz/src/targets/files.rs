//! Directories on a simulated disk, with the input in place of one file.

use std::path::PathBuf;
use stele_simulated_disk::SimVfs;

pub(super) struct Base {
    files: Vec<(PathBuf, Vec<u8>)>,
}

impl Base {
    /// Reads all files of a disk except locks.
    pub(super) fn of(disk: &SimVfs) -> Self {
        let mut files: Vec<_> = disk
            .paths()
            .into_iter()
            .filter(|path| !path.ends_with("LOCK"))
            .map(|path| (path.clone(), disk.read_file(&path).unwrap()))
            .collect();
        files.sort();
        Self { files }
    }

    pub(super) fn ending(&self, ending: &str) -> Vec<Vec<u8>> {
        let ends = |path: &PathBuf| path.to_string_lossy().ends_with(ending);
        let files = self.files.iter().filter(|(path, _)| ends(path));
        files.map(|(_, bytes)| bytes.clone()).collect()
    }

    /// Returns an input for each file: its number, then its bytes.
    pub(super) fn inputs(&self) -> Vec<Vec<u8>> {
        let numbered = self.files.iter().zip(0u8..);
        numbered.map(|((_, bytes), number)| [&[number], &bytes[..]].concat()).collect()
    }

    pub(super) fn path(&self, input: &[u8]) -> Option<&PathBuf> {
        let at = usize::from(*input.first()?).checked_rem(self.files.len())?;
        self.files.get(at).map(|(path, _)| path)
    }

    pub(super) fn with(&self, input: &[u8], disk: &SimVfs) {
        let replaced = self.path(input);
        for (path, bytes) in &self.files {
            let is_it = replaced == Some(path);
            disk.write_file(path, if is_it { input.get(1..).unwrap_or_default() } else { bytes });
        }
    }

    pub(super) fn fix_checksums(&self, input: &mut Vec<u8>) {
        let Some(path) = self.path(input) else { return };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut bytes = input.split_off(1);
        match name.rsplit_once('.') {
            Some((_, "seg")) => super::checksums::segment(&mut bytes),
            Some((_, "side" | "graves")) => super::checksums::chunks(&mut bytes),
            Some((_, "val")) => super::checksums::sorted(&mut bytes),
            Some((id, "run")) => {
                super::checksums::run(&mut bytes, u64::from_str_radix(id, 16).unwrap_or(0));
            }
            _ if name.starts_with("manifest-") => super::checksums::manifest(&mut bytes),
            _ if name == "STORE" => super::checksums::identity(&mut bytes),
            _ => {}
        }
        input.extend_from_slice(&bytes);
    }
}
