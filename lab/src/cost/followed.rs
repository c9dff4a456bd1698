//! `cost --followed`: puts while a stream follows all writes, beside puts without one, in turn.

use super::{NODES, Options, configuration};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use xtask::servers::Running;
use xtask::workspace::Workspace;

/// `stele watch` of all keys, killed on drop.
pub(super) struct Watch(Child);

impl Watch {
    pub(super) fn start(stele: &Path, servers: &Running) -> Result<Self> {
        let mut watch = Command::new(stele);
        watch.args(["watch", "", "--cluster", &servers.addresses.join(",")]);
        let child = watch.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Ok(Self(child.with_context(|| format!("starting {watch:?}"))?))
    }

    /// Fails if it has ended before it was stopped.
    pub(super) fn stop(mut self) -> Result<()> {
        let ended = self.0.try_wait().context("waiting for the watch")?;
        ensure!(ended.is_none(), "the watch has ended: {ended:?}");
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures rounds of both, and prints the ratio of the processor time of all nodes for a put.
pub(super) fn run(
    workspace: &Workspace,
    programs: (&Path, &Path),
    options: &Options,
    value_bytes: u64,
) -> Result<()> {
    let mut ratios = Vec::new();
    for round in 1..=options.followed {
        let measure = |is_followed| {
            let round = super::round(workspace, programs, options, value_bytes, is_followed)?;
            total_us(&round).with_context(|| format!("reading {round}"))
        };
        // The second one of a round may find another machine: they take turns in being it.
        let (alone, followed) = match round % 2 {
            0 => {
                let followed = measure(true)?;
                (measure(false)?, followed)
            }
            _ => (measure(false)?, measure(true)?),
        };
        ratios.push(followed / alone);
        let line = json!({
            "round": round, "value_bytes": value_bytes, "configuration": configuration(options),
            "processor_us_per_put": {"alone": alone, "followed": followed}, "ratio": followed / alone,
        });
        println!("{line}");
    }
    println!("{}", summary(&mut ratios, value_bytes));
    Ok(())
}

/// Returns the processor time of all nodes for a put, in microseconds.
fn total_us(round: &Value) -> Option<f64> {
    let nodes = round["servers"]["processor_us_per_operation"].as_array()?;
    let nodes: Option<Vec<f64>> = nodes.iter().map(Value::as_f64).collect();
    nodes.filter(|nodes| nodes.len() == NODES).map(|nodes| nodes.iter().sum())
}

fn summary(ratios: &mut [f64], value_bytes: u64) -> String {
    ratios.sort_by(f64::total_cmp);
    let at = |part: usize| ratios.get(part).copied().unwrap_or(f64::NAN);
    let (least, median) = (at(0), at(ratios.len() / 2));
    let greatest = at(ratios.len().saturating_sub(1));
    format!(
        "{value_bytes} B: a put costs {median:.3} [{least:.3}, {greatest:.3}] times as much while all writes are \
         followed"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_put_is_that_of_all_nodes() {
        let round = |us: Value| json!({"servers": {"processor_us_per_operation": us}});
        assert_eq!(total_us(&round(json!([1.5, 2.0, 3.0]))), Some(6.5));
        for bad in [json!([1.5, 2.0]), json!([1.5, 2.0, null]), json!(null)] {
            assert_eq!(total_us(&round(bad)), None);
        }
    }

    #[test]
    fn the_summary_has_the_median_and_the_bounds() {
        let text = summary(&mut [1.3, 1.0, 1.1], 1024);
        assert!(text.contains("1.100 [1.000, 1.300]"), "{text}");
    }
}
