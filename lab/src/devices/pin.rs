//! Binding of threads to processors.

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use stele_types::{Error, Result};

/// Binds this thread, and the threads that it starts, to one of the processors that it may use:
/// number `device`, counted around.
pub(super) fn bind(device: u64) -> Result<()> {
    let failed = |errno: Errno| Error::io("choice of a processor", "thread", errno.into());
    let allowed = sched_getaffinity(None).map_err(failed)?;
    let usable: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
    let Some(cpu) = usable.get(device as usize % usable.len().max(1)) else { return Ok(()) };
    let mut one = CpuSet::new();
    one.set(*cpu);
    sched_setaffinity(None, &one).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_thread_may_use_one_processor_and_its_threads_inherit_it() {
        let count = || sched_getaffinity(None).unwrap().count();
        let bound = std::thread::spawn(move || {
            bind(5).unwrap();
            (count(), std::thread::spawn(count).join().unwrap())
        });
        assert_eq!(bound.join().unwrap(), (1, 1));
    }
}
