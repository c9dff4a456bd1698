//! Code coverage of runs, if the build counts it: LLVM's inline 8-bit counters, enabled by `cargo
//! xtask fuzz --guided`. An ordinary build has none, and inputs are then kept without that
//! information.

use std::sync::Mutex;

/// Address and length of each block of counters.
static BLOCKS: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// Registers counters; instrumented code calls it before `main`, once for each part of the program.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, stop: *mut u8) {
    let block = (start as usize, stop as usize - start as usize);
    let mut blocks = BLOCKS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if block.1 > 0 && !blocks.contains(&block) {
        blocks.push(block);
    }
}

/// Required by the same instrumentation; the table of locations is not used.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_pcs_init(_start: *const usize, _stop: *const usize) {}

/// Code reached by all runs so far.
pub struct Coverage {
    blocks: Vec<(usize, usize)>,
    /// Magnitudes seen by each counter, one bit each.
    seen: Vec<u8>,
    places: usize,
}

impl Coverage {
    /// Creates the state with nothing reached.
    pub fn new() -> Self {
        let blocks = BLOCKS.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        let counters = blocks.iter().map(|block| block.1).sum();
        Self { blocks, seen: vec![0; counters], places: 0 }
    }

    /// Returns true if the build counts coverage.
    pub fn is_counted(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// Returns the number of locations reached by any run.
    pub fn places(&self) -> usize {
        self.places
    }

    /// Resets the counters.
    pub fn clear(&mut self) {
        self.each(|_, _| {});
    }

    /// Records the run since the last call. Returns true if it reached new code, or some location
    /// more often than any run before.
    pub fn record_new(&mut self) -> bool {
        let mut seen = std::mem::take(&mut self.seen);
        let (mut news, mut places) = (false, 0);
        self.each(|at, count| {
            let magnitude = 1u8 << (u32::from(count).ilog2());
            if let Some(seen) = seen.get_mut(at)
                && *seen & magnitude == 0
            {
                news = true;
                places += usize::from(*seen == 0);
                *seen |= magnitude;
            }
        });
        self.seen = seen;
        self.places += places;
        news
    }

    /// Passes each nonzero counter to `f`, and resets it.
    fn each(&mut self, mut f: impl FnMut(usize, u8)) {
        let mut base = 0;
        for &(start, length) in &self.blocks {
            // SAFETY: the instrumentation registered this block, which exists as long as the
            // program; code that counts on another thread meanwhile at worst loses a count.
            let counters = unsafe { std::slice::from_raw_parts_mut(start as *mut u8, length) };
            for (i, line) in counters.chunks_mut(64).enumerate() {
                if line.iter().all(|count| *count == 0) {
                    continue;
                }
                for (j, count) in line.iter_mut().enumerate().filter(|(_, count)| **count != 0) {
                    f(base + i * 64 + j, *count);
                    *count = 0;
                }
            }
            base += length;
        }
    }
}

impl Default for Coverage {
    fn default() -> Self {
        Self::new()
    }
}
