//! The benchmark ends with one line of JSON with consistent numbers.

use crate::common::run;

#[test]
fn every_workload_runs_and_accounts_for_its_operations() {
    let dir = tempfile::tempdir().unwrap();
    for workload in ["load", "a", "b", "c", "d", "e", "f", "update"] {
        let line = format!(
            "bench engine --store $ --workload {workload} --records 300 --operations 300 \
             --threads 4 --value-bytes 500 --quiet --seed 7"
        );
        let ran = run(dir.path(), &line).ok();
        let report = ran.json();
        assert_eq!(report["operations"], 300, "{workload}: {report}");
        assert_eq!((report["errors"].clone(), report["not_found"].clone()), (0.into(), 0.into()));
        let counted: u64 = report["latency"]
            .as_object()
            .unwrap()
            .values()
            .map(|kind| kind["count"].as_u64().unwrap())
            .sum();
        assert_eq!(counted, 300, "{workload}: {report}");
        assert_eq!(report["configuration"]["workload"], workload);
        if workload == "load" || workload == "update" {
            assert_eq!(report["payload_bytes"], 300 * (16 + 500));
            assert!(report["written_bytes"]["log"].as_u64().unwrap() >= 300 * (16 + 500));
        }
    }
}

#[test]
fn an_open_loop_keeps_its_rate_and_batches_count_each_put() {
    let dir = tempfile::tempdir().unwrap();
    let line = "bench engine --store $ --workload c --records 100 --operations 400 --rate 800 \
                --threads 2 --value-bytes 100 --quiet";
    let report = run(dir.path(), line).ok().json();
    let seconds = report["seconds"].as_f64().unwrap();
    assert!((0.45..5.0).contains(&seconds), "{report}");
    assert_eq!(report["configuration"]["loop"], "open");
    let line = "bench engine --store $ --workload update --records 100 --operations 640 --batch 64 \
                --threads 1 --value-bytes 1KiB --policy nezha --settle --distribution hotspot --quiet";
    let report = run(dir.path(), line).ok().json();
    assert_eq!(report["payload_bytes"], 640 * (16 + 1024));
    assert_eq!(report["latency"]["update"]["count"], 10);
    assert_eq!(report["configuration"]["policy"], "nezha");
}

#[test]
fn each_second_a_line_tells_how_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let line = "bench engine --store $ --workload a --records 100 --operations 100000000 \
                --duration 2 --threads 2 --value-bytes 100";
    let ran = run(dir.path(), line).ok();
    let live: Vec<&str> = ran.err.lines().filter(|line| line.contains("op/s  p50")).collect();
    assert!(!live.is_empty(), "{ran:?}");
    assert!(live[0].contains("write-amp") && live[0].contains("space-amp"), "{ran:?}");
}

#[test]
fn devices_are_measured_in_every_layout_and_mode_and_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    for layout in ["instances", "shards", "one-store"] {
        let line = format!(
            "bench devices --devices $ --emulated 2 --counts 1,2 --layout {layout} \
             --mode sync,async --threads 3 --depth 8 --pin --records 200 --value-bytes 500 \
             --mix insert=10,update=30,read=50,delete=10 --seconds 0.2 \
             --profile read-latency-us=300,sync-latency-us=300"
        );
        let ran = run(dir.path(), &line).ok();
        let reports: Vec<serde_json::Value> =
            ran.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
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
        run(dir.path(), &format!("bench devices --devices $ {options}")).fails(2, words);
    };
    refused("--layout one-store", "stripe (RAID-0)");
    refused("--counts 1,2", "2 of 1 device");
    refused("--seconds 0", "--seconds");
    refused("--mix read=10", "100 together");
}

#[test]
fn calibrating_fits_a_curve_to_emulated_devices_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let line = "bench calibrate --store $ --emulated 3 --real --seconds 0.2 --value-bytes 4KiB";
    let report = run(dir.path(), line).ok().json();
    let points = report["points"].as_array().unwrap();
    assert_eq!(points.len(), 4, "{report}");
    for point in points {
        let of = |name: &str| point[name].as_f64().unwrap();
        assert!(of("writes_per_second") > 1.0 && of("puts_per_second") > 1.0, "{report}");
    }
    assert_eq!(report["coefficients"].as_array().unwrap().len(), 3);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    run(dir.path(), "bench calibrate --store $ --emulated 0").fails(2, "--real");
}
