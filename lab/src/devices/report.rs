//! Results of a measured part.

use super::args::{Args, Mode};
use super::is_shared;
use clap::ValueEnum;
use serde_json::{Value, json};
use stele_load::Latencies;
use stele_types::size::{counted, format_bytes};

pub(super) struct Measured {
    pub seconds: f64,
    /// Completed operations by device; with a shared store, by the device number of the client.
    pub operations: Vec<u64>,
    pub errors: u64,
    pub not_found: u64,
    /// Processor time of the whole process: clients, stores and their background work.
    pub processor_seconds: f64,
    pub latencies: Latencies,
    /// Memory that the stores count, at the end.
    pub memory_bytes: u64,
    /// Peaks of the memory of all queues, and the sum of their bounds.
    pub queue_bytes_peak: u64,
    pub queue_bytes_max: u64,
}

impl Measured {
    pub(super) fn new(devices: u64) -> Self {
        Self {
            seconds: 0.0,
            operations: vec![0; devices as usize],
            errors: 0,
            not_found: 0,
            processor_seconds: 0.0,
            latencies: Latencies::default(),
            memory_bytes: 0,
            queue_bytes_peak: 0,
            queue_bytes_max: 0,
        }
    }

    pub(super) fn add(&mut self, device: u64, operations: u64) {
        if let Some(sum) = self.operations.get_mut(device as usize) {
            *sum += operations;
        }
    }

    fn all_operations(&self) -> u64 {
        self.operations.iter().sum()
    }

    fn per_second(&self) -> f64 {
        self.all_operations() as f64 / self.seconds
    }

    fn devices(&self) -> f64 {
        self.operations.len() as f64
    }

    /// Returns the throughput of a device relative to that of a device of `first`.
    pub(super) fn linear_share(&self, first: &Self) -> f64 {
        (self.per_second() / self.devices()) / (first.per_second() / first.devices())
    }

    fn processor_us_per_operation(&self) -> f64 {
        self.processor_seconds * 1e6 / self.all_operations().max(1) as f64
    }

    fn processors_per_device(&self) -> f64 {
        self.processor_seconds / self.seconds / self.devices()
    }

    pub(super) fn to_text(&self, args: &Args, mode: Mode, linear: Option<f64>) -> String {
        let all = self.latencies.all();
        let linear = linear.map(|share| format!(" · {share:.3} of linear")).unwrap_or_default();
        format!(
            "{} {} · {} · fsync on · {:.0} op/s{linear} · {:.1} µs processor/op · {:.2} \
             processors/device · p50 {:.0} p99 {:.0} µs · memory {}/device, queues {} of {}",
            name(args.layout),
            name(mode),
            counted(self.operations.len() as u64, "device"),
            self.per_second(),
            self.processor_us_per_operation(),
            self.processors_per_device(),
            all.p50_us,
            all.p99_us,
            format_bytes(self.memory_bytes / self.operations.len().max(1) as u64),
            format_bytes(self.queue_bytes_peak),
            format_bytes(self.queue_bytes_max),
        )
    }

    pub(super) fn to_json(
        &self,
        args: &Args,
        mode: Mode,
        round: u64,
        linear: Option<f64>,
    ) -> Value {
        let by_device = (!is_shared(args.layout)).then_some(&self.operations);
        json!({
            "configuration": configuration(args, mode),
            "devices": self.operations.len(),
            "round": round,
            "seconds": self.seconds,
            "operations": self.all_operations(),
            "operations_by_device": by_device,
            "errors": self.errors,
            "not_found": self.not_found,
            "operations_per_second": self.per_second(),
            "linear_share": linear,
            "processor_seconds": self.processor_seconds,
            "processor_us_per_operation": self.processor_us_per_operation(),
            "processors_per_device": self.processors_per_device(),
            "memory_bytes_per_device": self.memory_bytes as f64 / self.devices(),
            "queue_bytes_peak": self.queue_bytes_peak,
            "queue_bytes_max": self.queue_bytes_max,
            "latency": self.latencies.to_json(),
        })
    }
}

fn configuration(args: &Args, mode: Mode) -> Value {
    let profile = &args.profile;
    let emulated = args.emulated.map(|_| {
        json!({
            "read_latency_us": profile.read_latency.as_micros() as u64,
            "write_latency_us": profile.write_latency.as_micros() as u64,
            "sync_latency_us": profile.sync_latency.as_micros() as u64,
            "read_bytes_per_s": profile.read_bytes_per_s,
            "write_bytes_per_s": profile.write_bytes_per_s,
            "queue_depth": profile.queue_depth,
        })
    });
    let mix = args.mix;
    json!({
        "layout": name(args.layout),
        "mode": name(mode),
        "clients_per_device": if mode == Mode::Sync { args.threads } else { 1 },
        "depth": if mode == Mode::Sync { 1 } else { args.depth },
        "pinned": args.pin,
        "mix": { "insert": mix.insert, "update": mix.update, "read": mix.read, "delete": mix.delete },
        "records_per_device": args.records,
        "key_bytes": args.key_bytes,
        "value_bytes": args.value_bytes,
        "value_cache_bytes": args.value_cache_bytes,
        "emulated": emulated,
        "seed": args.seed,
        "fsync": true,
        "version": env!("CARGO_PKG_VERSION"),
    })
}

fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
