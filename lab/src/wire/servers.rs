//! Resources that the measured servers used: processor time, device bytes and memory from the kernel, and
//! for Stele the bytes written by cause.

use super::Client;
use super::causes::{self, Causes};
use super::kernel_counts::KernelCounts;
use super::stages::Sample;
use crate::machine::resident_bytes_of;
use serde_json::{Value, json};
use stele_load::process_io::{ProcessIo, seconds};
use stele_load::{Run, Server};
use stele_types::{Error, KeyRange, Result};

#[derive(Clone, Debug, Default)]
pub(super) struct Servers {
    pids: Vec<u32>,
    /// Whether they are nodes of Stele, in which the names of threads give their purpose.
    is_stele: bool,
}

pub(super) struct Used {
    each: Vec<(Sample, ProcessIo, KernelCounts)>,
    /// Resident memory of each process, with the pages of files that it maps and without.
    resident_bytes: Vec<(u64, u64)>,
    is_stele: bool,
    /// Bytes written by each node; `None` if one does not report them.
    written: Option<Vec<Causes>>,
}

impl Servers {
    /// Parses one list per target, separated by `/`. Without lists, nothing is measured.
    pub(super) fn parse(text: Option<&str>, urls: &[String]) -> Result<Vec<Self>> {
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

    pub(super) async fn used(&self, url: &str) -> Result<Used> {
        let one =
            |pid: &u32| Ok((Sample::take(*pid)?, ProcessIo::of(*pid)?, KernelCounts::of(*pid)?));
        let each = self.pids.iter().map(one).collect::<Result<_>>()?;
        let resident = self.pids.iter().map(|pid| resident_bytes_of(*pid));
        let resident = resident.collect::<anyhow::Result<_>>();
        let resident_bytes = resident.map_err(|error| Error::invalid(format!("{error:#}")))?;
        let written = if self.has_status_page() { causes::written(url).await } else { None };
        Ok(Used { each, resident_bytes, is_stele: self.is_stele, written })
    }

    /// Returns the number of leaders on each node that `url` names; `None` if one is unknown or not
    /// measured.
    pub(super) async fn regions_led(&self, url: &str, client: &Client) -> Option<Vec<u64>> {
        let Client::Known(Server::Tikv(client)) = client else { return None };
        if !self.has_status_page() {
            return None;
        }
        let nodes: Vec<&str> = url.split_once("://")?.1.split(',').collect();
        let mut led = vec![0; nodes.len()];
        let control = client.control();
        for row in control.regions(&KeyRange::all(), false).await.ok()? {
            let address = control.store_address(row.leader_store?).await.ok()?;
            let node = nodes.iter().position(|node| *node == address)?;
            *led.get_mut(node)? += 1;
        }
        Some(led)
    }

    fn has_status_page(&self) -> bool {
        self.is_stele && !self.pids.is_empty()
    }
}

impl Used {
    /// Returns the resources used since `before` for the operations of `run`, and the regions led
    /// by each node.
    pub(super) fn since(&self, before: &Self, run: &Run, regions_led: Option<Vec<u64>>) -> Value {
        if self.each.is_empty() {
            return Value::Null;
        }
        let operations = run.operations;
        let per = |value: f64, base: u64| if base == 0 { 0.0 } else { value / base as f64 };
        let (mut processor, mut device) = (Vec::new(), Vec::new());
        let (mut stages, mut ended, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        for ((now, io, counted), (then, io_then, counted_then)) in
            self.each.iter().zip(&before.each)
        {
            processor.push(seconds(now.process.since(then.process).all()));
            let bytes = io.write_bytes - io_then.write_bytes;
            device.push(per(bytes as f64, run.payload_bytes));
            let shares = now.since(then, self.is_stele);
            stages.push(shares.to_json(operations));
            ended.push(shares.threads_ended);
            counts.push(counted.per_operation(counted_then, operations));
        }
        let by = if self.is_stele { "stage" } else { "thread" };
        json!({
            "processor_seconds_per_1000_operations":
                per(processor.iter().sum::<f64>() * 1000.0, operations),
            "processor_us_per_operation": processor.iter()
                .map(|seconds| per(seconds * 1e6, operations)).collect::<Vec<_>>(),
            format!("processor_us_per_operation_by_{by}"): stages,
            "threads_ended": ended,
            "kernel_counts_per_operation": counts,
            "regions_led": regions_led,
            "device_bytes_per_payload_byte": device,
            "resident_bytes": self.resident_bytes.iter().map(|(all, _)| *all).collect::<Vec<_>>(),
            "resident_unmapped_bytes": self.resident_bytes.iter().map(|(_, own)| *own).collect::<Vec<_>>(),
            "written_bytes_per_payload_byte_by_cause":
                self.written_since(before, run.payload_bytes),
        })
    }

    /// Returns the bytes written by each node; `None` if one did not report them.
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
