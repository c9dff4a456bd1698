//! Commands that measure devices and servers end with lines of JSON with consistent numbers.

use crate::fake::Fake;
use std::path::Path;
use std::process::{Command, Output};

#[derive(Debug)]
struct Ran {
    succeeded: bool,
    out: String,
    err: String,
}

impl Ran {
    #[track_caller]
    fn ok(self) -> Vec<serde_json::Value> {
        assert!(self.succeeded, "{self:?}");
        self.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Asserts that the command failed and that standard error contains `words`.
    #[track_caller]
    fn fails(self, words: &str) {
        assert!(!self.succeeded && self.err.contains(words), "{self:?}");
    }
}

/// Runs `lab` with arguments separated by spaces, in which `$` stands for a directory.
fn run(dir: &Path, line: &str) -> Ran {
    let dir = dir.to_str().unwrap();
    let arguments = line.split(' ').map(|word| if word == "$" { dir } else { word });
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_lab")).args(arguments).output().unwrap();
    Ran {
        succeeded: status.success(),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

#[test]
fn devices_are_measured_in_every_layout_and_mode_and_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    for layout in ["instances", "shards", "one-store"] {
        let line = format!(
            "devices --devices $ --emulated 2 --counts 1,2 --layout {layout} \
             --mode sync,async --threads 3 --depth 8 --pin --records 200 --value-bytes 500 \
             --mix insert=10,update=30,read=50,delete=10 --seconds 0.2 \
             --profile read-latency-us=300,sync-latency-us=300"
        );
        let reports = run(dir.path(), &line).ok();
        let shape: Vec<_> = reports
            .iter()
            .map(|it| {
                (it["configuration"]["mode"].as_str().unwrap(), it["devices"].as_u64().unwrap())
            })
            .collect();
        assert_eq!(shape, [("sync", 1), ("sync", 2), ("async", 1), ("async", 2)]);
        for report in &reports {
            assert_eq!(report["configuration"]["layout"], layout);
            assert_eq!(report["configuration"]["emulated"]["read_latency_us"], 300);
            assert_eq!(report["errors"], 0);
            assert!(report["operations"].as_u64().unwrap() > 0, "{report}");
            assert_eq!(report["linear_share"].is_null(), report["devices"] == 1);
            let (peak, bound) = (&report["queue_bytes_peak"], &report["queue_bytes_max"]);
            assert!(peak.as_u64() <= bound.as_u64(), "{report}");
        }
        assert!(reports[2]["queue_bytes_max"] == 8 * 516, "{}", reports[2]);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn arguments_for_devices_that_contradict_each_other_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |options: &str, words: &str| {
        run(dir.path(), &format!("devices --devices $ {options}")).fails(words);
    };
    refused("--layout one-store", "stripe (RAID-0)");
    refused("--counts 1,2", "2 of 1 device");
    refused("--seconds 0", "--seconds");
    refused("--mix read=10", "100 together");
}

#[test]
fn calibrating_fits_a_curve_to_emulated_devices_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let line = "calibrate --store $ --emulated 3 --real --seconds 0.2 --value-bytes 4KiB";
    let report = run(dir.path(), line).ok().remove(0);
    let points = report["points"].as_array().unwrap();
    assert_eq!(points.len(), 4, "{report}");
    for point in points {
        let of = |name: &str| point[name].as_f64().unwrap();
        assert!(of("writes_per_second") > 1.0 && of("puts_per_second") > 1.0, "{report}");
    }
    assert_eq!(report["coefficients"].as_array().unwrap().len(), 3);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    run(dir.path(), "calibrate --store $ --emulated 0").fails("--real");
}

#[test]
fn the_processes_of_servers_are_accounted_for_by_stage_or_thread() {
    let fake = Fake::start(3);
    let line = |rest: &str| {
        let line = format!(
            "wire --target stele://@ --target tikv://@ --workload a --records 60 --operations 120 --clients 7 \
             --value-bytes 100 --rounds 2 --quiet --pids {rest}"
        );
        run(Path::new(""), &line.replace('@', &fake.addresses().remove(0)))
    };
    let pid = std::process::id();
    let lines = line(&format!("{pid}/{pid}")).ok();
    assert_eq!(lines.len(), 5);
    for round in &lines[..4] {
        let servers = &round["servers"];
        assert!(servers["processor_us_per_operation"][0].is_number(), "{round}");
        let is_stele = round["target"].as_str().unwrap().starts_with("stele://");
        let by = if is_stele { "stage" } else { "thread" };
        let shares = &servers[format!("processor_us_per_operation_by_{by}")][0];
        assert!(shares["other"]["user"].is_number(), "{round}");
        assert!(shares["other"]["system"].is_number(), "{round}");
        assert_eq!(shares["store"].is_object(), is_stele, "{round}");
        assert_eq!(servers["threads_ended"].as_array().unwrap().len(), 1, "{round}");
    }
    line("1,2/3/4").fails("processes of 2 targets");
}
