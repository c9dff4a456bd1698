//! What the measured servers used: processor time and device bytes, from the kernel.

use crate::bench::process_io::{ProcessIo, processor_seconds};
use serde_json::{Value, json};
use stele_types::{Error, Result};

/// The processes of one target.
#[derive(Clone, Debug, Default)]
pub struct Servers {
    pids: Vec<u32>,
}

/// What they had used at one moment, each.
pub struct Used(Vec<(f64, ProcessIo)>);

impl Servers {
    /// One list for each target, separated by `/`; none: nothing is counted.
    pub fn parse(text: Option<&str>, targets: usize) -> Result<Vec<Self>> {
        let Some(text) = text else { return Ok(vec![Self::default(); targets]) };
        let bad = || {
            let example = "--pids 11,12,13/21,22,23 for two targets";
            Error::invalid(format!(
                "`{text}` does not name the processes of {targets} targets: {example}"
            ))
        };
        let list = |part: &str| -> Result<Self> {
            let pids = part.split(',').filter(|pid| !pid.is_empty());
            let pids: Result<Vec<u32>> =
                pids.map(|pid| pid.trim().parse().map_err(|_| bad())).collect();
            Ok(Self { pids: pids? })
        };
        let all: Result<Vec<Self>> = text.split('/').map(list).collect();
        all.and_then(|all| if all.len() == targets { Ok(all) } else { Err(bad()) })
    }

    /// What they have used until now.
    pub fn used(&self) -> Result<Used> {
        let one = |pid: &u32| Ok((processor_seconds(*pid)?, ProcessIo::of(*pid)?));
        self.pids.iter().map(one).collect::<Result<_>>().map(Used)
    }
}

impl Used {
    /// What was used since `before`, for so many operations and bytes written by clients.
    pub fn since(&self, before: &Self, operations: u64, payload_bytes: u64) -> Value {
        if self.0.is_empty() {
            return Value::Null;
        }
        let per = |value: f64, base: u64| if base == 0 { 0.0 } else { value / base as f64 };
        let each: Vec<(f64, u64)> = (self.0.iter().zip(&before.0))
            .map(|((now, io), (then, io_then))| (now - then, io.write_bytes - io_then.write_bytes))
            .collect();
        let processor: f64 = each.iter().map(|(seconds, _)| seconds).sum();
        json!({
            "processor_seconds_per_1000_operations": per(processor * 1000.0, operations),
            "processor_us_per_operation": each.iter()
                .map(|(seconds, _)| per(seconds * 1e6, operations)).collect::<Vec<_>>(),
            "device_bytes_per_payload_byte": each.iter()
                .map(|(_, bytes)| per(*bytes as f64, payload_bytes)).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_given_for_each_target() {
        let parsed = Servers::parse(Some("1,2/3"), 2).unwrap();
        assert_eq!(parsed.iter().map(|one| one.pids.len()).collect::<Vec<_>>(), [2, 1]);
        assert!(Servers::parse(Some("1,x"), 1).is_err());
        assert!(Servers::parse(Some("1"), 2).is_err());
        assert_eq!(Servers::parse(None, 3).unwrap().len(), 3);
    }
}
