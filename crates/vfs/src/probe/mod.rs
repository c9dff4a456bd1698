//! Probe of a device: how fast it writes before anything was measured (ALOR section 3.2). A curve
//! leads from what the probe measured to the puts a second that a store makes of it (ALOR figure
//! 10).
//!
//! It writes 8 MiB at random offsets, each with a sync, and then small blocks, each with a sync. It
//! ends within about two seconds, however slow the device is: an operation that is under way is not
//! interrupted.

#[cfg(test)]
mod tests;

use crate::{AlignedBuf, Create, Open, Vfs, VfsFile};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_types::{Cause, Clock, Error, OpCost, Prng, Result};

const NAME: &str = "PROBE";
/// Bytes written at one offset.
const LARGE_BYTES: u64 = 8 << 20;
/// Offsets at which so many bytes are written.
const LARGE_WRITES: u64 = 4;
/// Bytes of one write: a slow device is left in time.
const PIECE_BYTES: u64 = 1 << 20;
/// Time after which no large write begins.
const LARGE_NANOS_MAX: u64 = 1_200_000_000;
const SMALL_BYTES: u64 = 4 << 10;
const SMALL_WRITES: u64 = 64;
/// Time after which no small write begins.
const SMALL_NANOS_MAX: u64 = 600_000_000;
/// The probe leaves this many times its own bytes free.
const FREE_FACTOR: u64 = 4;

/// Result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probed {
    /// Bytes a second of long writes with their syncs.
    pub large_bytes_per_second: u64,
    /// Nanoseconds of a write of 4 KiB with its sync: the median.
    pub small_nanos: u64,
}

impl Probed {
    /// Returns the cost of a synced write of the device itself, without the store's work.
    pub fn cost(self) -> OpCost {
        let picos_per_byte = PICOS_OF_SECOND / self.large_bytes_per_second.max(1);
        let transfer_nanos = SMALL_BYTES.saturating_mul(picos_per_byte) / 1000;
        OpCost { fixed_nanos: self.small_nanos.saturating_sub(transfer_nanos), picos_per_byte }
    }
}

const PICOS_OF_SECOND: u64 = 1_000_000_000_000;

/// Removes the file of a probe that was interrupted.
pub fn remove_probe(vfs: &dyn Vfs, dir: &Path) -> Result<()> {
    let path = dir.join(NAME);
    match vfs.unlink(&path) {
        Ok(()) => vfs.sync_dir(dir),
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        failed => failed,
    }
}

/// Measures the device that holds `dir`. No other program may use it meanwhile. `seed` decides
/// offsets and content. Fails with `NoSpace` on a device with little free space, having written
/// nothing.
pub fn probe(vfs: &dyn Vfs, clock: &dyn Clock, dir: &Path, seed: u64) -> Result<Probed> {
    remove_probe(vfs, dir)?;
    if vfs.free_bytes(dir)? / FREE_FACTOR < LARGE_WRITES * LARGE_BYTES {
        return Err(Error::NoSpace(PathBuf::from(dir)));
    }
    let path = dir.join(NAME);
    let how = Open { write: true, create: Create::New, direct: true };
    let probed = vfs.open(&path, how).and_then(|file| {
        let mut probe = Probe { file, clock, prng: Prng::new(seed) };
        let large_bytes_per_second = probe.large()?;
        Ok(Probed { large_bytes_per_second, small_nanos: probe.small()? })
    });
    // Invariant: a probe leaves no bytes behind, whether it succeeds or fails. One that is
    // interrupted is removed at the next start.
    // bug vfs.probe_stays: return probed;
    let removed = remove_probe(vfs, dir);
    probed.and_then(|probed| removed.map(|()| probed))
}

struct Probe<'a> {
    file: Arc<dyn VfsFile>,
    clock: &'a dyn Clock,
    prng: Prng,
}

impl Probe<'_> {
    /// Writes at each offset once, in any order. Returns the bytes a second.
    fn large(&mut self) -> Result<u64> {
        let mut offsets: Vec<u64> = (0..LARGE_WRITES).map(|n| n * LARGE_BYTES).collect();
        let memory = self.random(PIECE_BYTES);
        self.file.allocate(LARGE_WRITES * LARGE_BYTES)?;
        let (begin, mut written) = (self.clock.monotonic_nanos(), 0);
        while !offsets.is_empty() && !self.is_over(begin, LARGE_NANOS_MAX) {
            let at = offsets.swap_remove(self.prng.below(offsets.len() as u64) as usize);
            for piece in 0..LARGE_BYTES / PIECE_BYTES {
                if piece > 0 && self.is_over(begin, LARGE_NANOS_MAX) {
                    break;
                }
                self.write(&memory, at + piece * PIECE_BYTES)?;
                written += PIECE_BYTES;
            }
            self.file.sync_data()?;
        }
        let nanos = self.clock.monotonic_nanos().saturating_sub(begin).max(1);
        let per_second = u128::from(written) * 1_000_000_000 / u128::from(nanos);
        Ok(u64::try_from(per_second).unwrap_or(u64::MAX).max(1))
    }

    /// Writes and syncs small blocks in order, as a log does, over bytes written before. Returns the
    /// median of their nanoseconds.
    fn small(&mut self) -> Result<u64> {
        let memory = self.random(SMALL_BYTES);
        let (begin, mut nanos) = (self.clock.monotonic_nanos(), Vec::new());
        for write in 0..SMALL_WRITES {
            if write > 0 && self.is_over(begin, SMALL_NANOS_MAX) {
                break;
            }
            let began = self.clock.monotonic_nanos();
            self.write(&memory, write * SMALL_BYTES)?;
            self.file.sync_data()?;
            nanos.push(self.clock.monotonic_nanos().saturating_sub(began));
        }
        let middle = nanos.len() / 2;
        let (_, median, _) = nanos.select_nth_unstable(middle);
        Ok(*median)
    }

    fn is_over(&self, begin: u64, nanos_max: u64) -> bool {
        self.clock.monotonic_nanos().saturating_sub(begin) >= nanos_max
    }

    fn write(&self, memory: &AlignedBuf, at: u64) -> Result<()> {
        self.file.write_at(&[IoSlice::new(memory)], at, Cause::Probe)
    }

    /// Returns bytes that a device cannot compress.
    fn random(&mut self, bytes: u64) -> AlignedBuf {
        let mut memory = AlignedBuf::zeroed(bytes as usize);
        for chunk in memory.as_mut_slice().chunks_mut(8) {
            let random = self.prng.draw().to_le_bytes();
            let (part, _) = random.split_at(chunk.len());
            chunk.copy_from_slice(part);
        }
        memory
    }
}

/// Fraction bits of the curve's numbers.
const FRACTION: u32 = 16;

/// A polynomial of degree two between logarithms of base 2: of the synced writes a second that a
/// probe promises, and of the puts a second that a store reaches, one after the other and both of the
/// size at which it was fitted. All numbers have 16 fraction bits.
///
/// Logarithms, because devices differ by factors of a thousand and errors count relatively.
/// `lab calibrate` prints the numbers of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Curve {
    /// Constant, linear and quadratic coefficient.
    pub coefficients: [i64; 3],
    /// Lowest and highest logarithm that the fit covers.
    pub range: [i64; 2],
}

impl Curve {
    /// Fit to two rounds over twelve emulated devices, from 81 to 5,390 synced writes of 16 KiB a
    /// second, by `lab calibrate` in memory; standard deviation 4 %. It expects 75 and 3,390
    /// puts a second at these ends.
    pub const DEFAULT: Self =
        Self { coefficients: [-92_869, 88_938, -1_568], range: [415_562, 812_382] };

    /// Returns the logarithm of the puts a second for the logarithm of the writes a second.
    ///
    /// Outside of the range of the fit, the distance between the two stays that of its end: a
    /// polynomial has no meaning there.
    pub fn log2_puts(&self, log2_writes: i64) -> i64 {
        let [low, high] = self.range;
        let x = i128::from(log2_writes.clamp(low, high.max(low)));
        let [constant, linear, quadratic] = self.coefficients.map(i128::from);
        let times = |left: i128, right: i128| (left * right) >> FRACTION;
        let y = constant + times(linear, x) + times(quadratic, times(x, x));
        let distance = i64::try_from(y - x).unwrap_or_default();
        log2_writes.saturating_add(distance)
    }

    /// Returns the expected cost of a store's synced write on a device with this cost: in the same
    /// proportion of its parts, and as fast for writes of `op_bytes` as the curve says.
    pub fn expected(&self, device: OpCost, op_bytes: u64) -> OpCost {
        let Some(writes) = device.per_second(op_bytes) else { return device };
        let puts = exp2(self.log2_puts(log2(writes))).max(1);
        let scaled = |part: u64| {
            let part = u128::from(part) * u128::from(writes) / u128::from(puts);
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        OpCost {
            fixed_nanos: scaled(device.fixed_nanos),
            picos_per_byte: scaled(device.picos_per_byte),
        }
    }
}

/// Returns the logarithm of base 2 with 16 fraction bits; 0 for 0.
fn log2(number: u64) -> i64 {
    let Some(whole) = number.checked_ilog2() else { return 0 };
    // The mantissa in [1, 2) with 63 fraction bits; each squaring yields one bit of the logarithm.
    let mut mantissa = u128::from(number) << (63 - whole);
    let mut log = i64::from(whole);
    for _ in 0..FRACTION {
        mantissa = (mantissa * mantissa) >> 63;
        let bit = mantissa >> 64;
        mantissa >>= bit;
        log = (log << 1) | i64::try_from(bit).unwrap_or_default();
    }
    log
}

/// Returns the largest number of which the logarithm is at most `log`; 1 if there is none.
fn exp2(log: i64) -> u64 {
    let (mut low, mut high) = (1, u64::MAX);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if log2(middle) <= log {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}
