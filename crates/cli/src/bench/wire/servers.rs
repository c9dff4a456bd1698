//! What the measured servers used: processor time and device bytes, from the kernel; and of Stele's, what
//! they wrote why.

use super::causes::{self, Causes};
use super::driver::Run;
use super::stages::Look;
use super::target::Target;
use crate::bench::process_io::{ProcessIo, seconds};
use serde_json::{Value, json};
use stele_types::{Error, Result};

/// The processes of one target.
#[derive(Clone, Debug, Default)]
pub struct Servers {
    pids: Vec<u32>,
    /// Whether they are Stele's, whose threads' names say what they are for.
    is_stele: bool,
}

/// What they had used at one moment, each.
pub struct Used {
    each: Vec<(Look, ProcessIo)>,
    is_stele: bool,
    /// Bytes written, of each; `None` if they do not say.
    written: Option<Vec<Causes>>,
}

impl Servers {
    /// One list for each target, separated by `/`; none: nothing is counted.
    pub fn parse(text: Option<&str>, urls: &[String]) -> Result<Vec<Self>> {
        let targets = urls.len();
        let Some(text) = text else { return Ok(vec![Self::default(); targets]) };
        let bad = || {
            let example = "--pids 11,12,13/21,22,23 for two targets";
            Error::invalid(format!(
                "`{text}` does not name the processes of {targets} targets: {example}"
            ))
        };
        let list = |(part, url): (&str, &String)| -> Result<Self> {
            let pids = part.split(',').filter(|pid| !pid.is_empty());
            let pids: Result<Vec<u32>> =
                pids.map(|pid| pid.trim().parse().map_err(|_| bad())).collect();
            Ok(Self { pids: pids?, is_stele: url.starts_with("stele://") })
        };
        if text.split('/').count() != targets {
            return Err(bad());
        }
        text.split('/').zip(urls).map(list).collect()
    }

    /// What the nodes that `url` names have used until now.
    pub async fn used(&self, url: &str) -> Result<Used> {
        let one = |pid: &u32| Ok((Look::at(*pid)?, ProcessIo::of(*pid)?));
        let each = self.pids.iter().map(one).collect::<Result<_>>()?;
        let written = if self.can_be_asked() { causes::written(url).await } else { None };
        Ok(Used { each, is_stele: self.is_stele, written })
    }

    /// How many regions each leads, where that can be known and is of use.
    pub async fn regions_led(&self, url: &str, target: &Target) -> Option<Vec<u64>> {
        if self.can_be_asked() { target.regions_led(url).await } else { None }
    }

    fn can_be_asked(&self) -> bool {
        self.is_stele && !self.pids.is_empty()
    }
}

impl Used {
    /// What was used since `before`, for what clients did in `run` while each led so many regions.
    pub fn since(&self, before: &Self, run: &Run, regions_led: Option<Vec<u64>>) -> Value {
        if self.each.is_empty() {
            return Value::Null;
        }
        let operations = run.operations;
        let per = |value: f64, base: u64| if base == 0 { 0.0 } else { value / base as f64 };
        let (mut processor, mut device) = (Vec::new(), Vec::new());
        let (mut stages, mut ended) = (Vec::new(), Vec::new());
        for ((now, io), (then, io_then)) in self.each.iter().zip(&before.each) {
            processor.push(seconds(now.process.since(then.process).all()));
            let bytes = io.write_bytes - io_then.write_bytes;
            device.push(per(bytes as f64, run.payload_bytes));
            let shares = now.since(then, self.is_stele);
            stages.push(shares.to_json(operations));
            ended.push(shares.threads_ended);
        }
        let by = if self.is_stele { "stage" } else { "thread" };
        json!({
            "processor_seconds_per_1000_operations":
                per(processor.iter().sum::<f64>() * 1000.0, operations),
            "processor_us_per_operation": processor.iter()
                .map(|seconds| per(seconds * 1e6, operations)).collect::<Vec<_>>(),
            format!("processor_us_per_operation_by_{by}"): stages,
            "threads_ended": ended,
            "regions_led": regions_led,
            "device_bytes_per_payload_byte": device,
            "written_bytes_per_payload_byte_by_cause":
                self.written_since(before, run.payload_bytes),
        })
    }

    /// Of each node; `None` if not all of them said.
    fn written_since(&self, before: &Self, payload_bytes: u64) -> Option<Vec<Value>> {
        let (now, before) = (self.written.as_ref()?, before.written.as_ref()?);
        let pairs = now.iter().zip(before);
        Some(pairs.map(|(now, then)| causes::per_payload_byte(now, then, payload_bytes)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_given_for_each_target() {
        let urls = ["stele://a,b", "etcd://c"].map(str::to_owned);
        let parsed = Servers::parse(Some("1,2/3"), &urls).unwrap();
        let of = |one: &Servers| (one.pids.len(), one.is_stele);
        assert_eq!(parsed.iter().map(of).collect::<Vec<_>>(), [(2, true), (1, false)]);
        assert!(Servers::parse(Some("1,x"), &urls[..1]).is_err());
        assert!(Servers::parse(Some("1"), &urls).is_err());
        assert!(Servers::parse(Some("1/2/3"), &urls).is_err());
        assert_eq!(Servers::parse(None, &urls).unwrap().len(), 2);
    }
}
