//! Conformance suite: the laws of [`StorageEngine`] as checks that any engine can run, one per law
//! ([`run`]), and random histories compared with [`crate::ModelEngine`] ([`random`]).

#[macro_use]
mod subject;
mod apply_laws;
mod ingest_laws;
mod log_laws;
mod model;
mod order_laws;
mod random;
mod range_laws;
mod size_laws;
mod view_laws;

pub use model::{ModelEngine, ModelFactory, ModelIngest, ModelView};
pub use random::random;

use std::fmt;
use stele_storage::StorageEngine;
use stele_types::{Error, Result};

/// Creates engines on simulated devices, which survive crashes of the engine.
pub trait Factory {
    /// Engine under test.
    type Engine: StorageEngine;
    /// Device: the state that survives a crash.
    type Disk;

    /// Creates an empty device. The seed determines its random behaviour.
    fn disk(&self, seed: u64) -> Self::Disk;

    /// Opens the engine and creates the store when the device is empty.
    fn open(&self, disk: &Self::Disk) -> Result<Self::Engine>;

    /// Stops `engine` abruptly and returns the device as a crash leaves it.
    fn crash(&self, disk: Self::Disk, engine: Self::Engine, seed: u64) -> Self::Disk;

    /// Returns the command that runs the caller's test, for the replay line of a failure.
    fn replay_command(&self) -> String;
}

/// A law that does not hold.
#[derive(Clone, PartialEq, Eq)]
pub struct Failure {
    /// Name of the law.
    pub law: &'static str,
    /// Observed violation.
    pub detail: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.law, self.detail)
    }
}

/// Formats like [`fmt::Display`], so that an unwrapped failure is readable.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { law: "", detail: format!("unexpected error: {error}") }
    }
}

type Check<T = ()> = Result<T, Failure>;
type Law<F> = (&'static str, fn(&F) -> Check);

fn laws<F: Factory>() -> Vec<Law<F>> {
    let mut laws = log_laws::laws();
    laws.extend(apply_laws::laws());
    laws.extend(view_laws::laws());
    laws.extend(range_laws::laws());
    laws.extend(ingest_laws::laws());
    laws.extend(order_laws::laws());
    laws.extend(size_laws::laws());
    laws
}

/// Checks every law on a new engine each. Returns how many hold, or all failures.
pub fn run<F: Factory>(factory: &F) -> Result<usize, Vec<Failure>> {
    let laws = laws::<F>();
    let broken = |&(law, check): &Law<F>| {
        let failure = check(factory).err()?;
        Some(Failure { law, detail: failure.detail })
    };
    let failures: Vec<Failure> = laws.iter().filter_map(broken).collect();
    if failures.is_empty() { Ok(laws.len()) } else { Err(failures) }
}
