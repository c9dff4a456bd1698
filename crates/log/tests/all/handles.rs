//! Open files of removed segments.

use crate::common::*;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use stele_log::{Log, LogOptions, RecoverFrom};
use stele_simulated_disk::SimVfs;
use stele_types::{FileId, Result};
use stele_vfs::{Open, Vfs, VfsFile};

type Hook = Box<dyn FnOnce() + Send>;

struct HookedVfs {
    inner: SimVfs,
    hook: Mutex<Option<(String, Hook)>>,
}

impl fmt::Debug for HookedVfs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl stele_vfs::VfsLayer for HookedVfs {
    fn below(&self) -> &dyn Vfs {
        &self.inner
    }

    fn open(&self, path: &Path, how: Open) -> Result<Arc<dyn VfsFile>> {
        let file = self.inner.open(path, how)?;
        let due =
            self.hook.lock().unwrap().take_if(|(name, _)| path.to_string_lossy().contains(&**name));
        if let Some((_, hook)) = due {
            hook();
        }
        Ok(file)
    }
}

#[test]
fn a_read_that_races_the_removal_of_its_segment_does_not_hold_its_space() {
    let disk = disk(1);
    disk.set_capacity(Some(1 << 30));
    let hooked = Arc::new(HookedVfs { inner: disk.clone(), hook: Mutex::default() });
    let none_reused = LogOptions { recycle_segments_max: 0, ..options() };
    let opened = Log::open(hooked.clone(), Path::new(DIR), none_reused, RecoverFrom::default());
    let log = Arc::new(opened.unwrap().0);
    let command = command(&[(b"key-1", &value(1, 900))]);
    let appended = log.append(&batch(vec![entry(REGION, 1, 1, &command)])).unwrap();
    let at = command.ops().next().unwrap().locator(appended.payloads[0]).unwrap();
    let mut index = 1;
    while log.stats().segments < 3 {
        index += 1;
        put(&log, REGION, index, 900).unwrap();
    }
    truncate(&log, REGION, index).unwrap();
    let free_bytes = || disk.free_bytes(Path::new(DIR)).unwrap();
    let before = free_bytes();
    let remover = log.clone();
    let hook: Hook = Box::new(move || remover.remove(FileId(1)).unwrap());
    *hooked.hook.lock().unwrap() = Some(("00000001.seg".into(), hook));
    assert_eq!(log.get(&at).unwrap(), value(1, 900), "the file is open");
    assert!(hooked.hook.lock().unwrap().is_none(), "the segment was removed during the read");
    assert!(log.get(&at).is_err(), "the segment is gone");
    let freed = free_bytes() - before;
    assert!(freed >= 12 << 10, "an open handle holds the segment: {freed} bytes are free again");
}
