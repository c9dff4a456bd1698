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
