//! Directories on a simulated disk, one file of which is the input.

use std::path::PathBuf;
use stele_vfs::SimVfs;

/// A directory that the product wrote.
pub struct Base {
    files: Vec<(PathBuf, Vec<u8>)>,
}

impl Base {
    /// All files of a disk but locks.
    pub fn of(disk: &SimVfs) -> Self {
        let mut files: Vec<_> = disk
            .paths()
            .into_iter()
            .filter(|path| !path.ends_with("LOCK"))
            .map(|path| (path.clone(), disk.read_file(&path).unwrap()))
            .collect();
        files.sort();
        Self { files }
    }

    /// Those whose names end so.
    pub fn ending(&self, ending: &str) -> Vec<Vec<u8>> {
        let ends = |path: &PathBuf| path.to_string_lossy().ends_with(ending);
        let files = self.files.iter().filter(|(path, _)| ends(path));
        files.map(|(_, bytes)| bytes.clone()).collect()
    }

    /// An input for each file: its number, then its bytes.
    pub fn inputs(&self) -> Vec<Vec<u8>> {
        let numbered = self.files.iter().zip(0u8..);
        numbered.map(|((_, bytes), number)| [&[number], &bytes[..]].concat()).collect()
    }

    /// The file that an input replaces.
    pub fn path(&self, input: &[u8]) -> Option<&PathBuf> {
        let at = usize::from(*input.first()?).checked_rem(self.files.len())?;
        self.files.get(at).map(|(path, _)| path)
    }

    /// The directory with the input in place of its file.
    pub fn with(&self, input: &[u8], disk: &SimVfs) {
        let replaced = self.path(input);
        for (path, bytes) in &self.files {
            let is_it = replaced == Some(path);
            disk.write_file(path, if is_it { input.get(1..).unwrap_or_default() } else { bytes });
        }
    }

    /// Makes the checksums of the file in the input hold again.
    pub fn reseal(&self, input: &mut Vec<u8>) {
        let Some(path) = self.path(input) else { return };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut bytes = input.split_off(1);
        match name.rsplit_once('.') {
            Some((_, "seg")) => super::seal::segment(&mut bytes),
            Some((_, "side" | "graves")) => super::seal::chunks(&mut bytes),
            Some((_, "val")) => super::seal::sorted(&mut bytes),
            Some((id, "run")) => {
                super::seal::run(&mut bytes, u64::from_str_radix(id, 16).unwrap_or(0));
            }
            _ if name.starts_with("manifest-") => super::seal::manifest(&mut bytes),
            _ if name == "STORE" => super::seal::identity(&mut bytes),
            _ => {}
        }
        input.extend_from_slice(&bytes);
    }
}
