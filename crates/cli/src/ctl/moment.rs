//! `stele ctl moment`: the number of a new moment, how long it took, and its parts.

use super::rows::key;
use crate::table::{self, Cell, number};
use crate::terminal::{Output, print};
use crate::{Outcome, table::object};
use serde_json::json;
use stele_client::Control;
use stele_client::messages::{MomentPart, TakeMomentResponse};
use stele_types::Result;
use stele_types::size::counted;

pub(crate) async fn run(control: &Control, attempts_max: u32, json: bool) -> Result<Outcome> {
    let moment = control.take_moment(attempts_max).await?;
    if !json {
        print(&text(&moment));
        return Ok(Outcome::Done);
    }
    let mut out = Output::new();
    let head = json!({
        "moment": moment.moment,
        "regions": moment.parts.len(),
        "pause_us": moment.pause_nanos / 1_000,
        "seal_us": moment.seal_nanos / 1_000,
        "writes_paused_us": moment.longest_pause_nanos / 1_000,
        "attempts": moment.attempts,
    });
    out.line(&head.to_string())?;
    moment.parts.iter().try_for_each(|part| out.json(object(&row(part))))?;
    out.finish()?;
    Ok(Outcome::Done)
}

fn text(moment: &TakeMomentResponse) -> String {
    let millis = |nanos: u64| format!("{:.1} ms", nanos as f64 / 1e6);
    let attempts = match moment.attempts {
        0 | 1 => String::new(),
        attempts => format!(", {attempts} attempts"),
    };
    let rows: Vec<Vec<Cell>> = moment.parts.iter().map(row).collect();
    format!(
        "moment {}: {}, paused in {}, sealed in {}, writes paused for at most {}{attempts}\n{}",
        moment.moment,
        counted(moment.parts.len() as u64, "region"),
        millis(moment.pause_nanos),
        millis(moment.seal_nanos),
        millis(moment.longest_pause_nanos),
        table::text(&rows, "no regions"),
    )
}

fn row(part: &MomentPart) -> Vec<Cell> {
    vec![
        number("region", part.region_id),
        key("start", &part.start_key, "-∞"),
        key("end", &part.end_key, "+∞"),
        number("term", part.term),
        number("last", part.last_index),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_printed_with_its_times_and_its_parts_in_the_order_of_keys() {
        let part = |region_id, start: &'static str, end: &'static str| MomentPart {
            region_id,
            start_key: start.into(),
            end_key: end.into(),
            term: 6,
            last_index: 40,
        };
        let moment = TakeMomentResponse {
            moment: 107,
            parts: vec![part(2, "", "m"), part(9, "m", "")],
            pause_nanos: 3_140_000,
            seal_nanos: 900_000,
            longest_pause_nanos: 4_000_000,
            attempts: 2,
            ..TakeMomentResponse::default()
        };
        let found = text(&moment);
        let lines: Vec<&str> = found.lines().collect();
        assert_eq!(
            lines[0],
            "moment 107: 2 regions, paused in 3.1 ms, sealed in 0.9 ms, writes paused for at most 4.0 ms, 2 \
             attempts"
        );
        assert!(lines[2].contains('2') && lines[2].contains("-∞"), "{found}");
        assert!(lines[3].contains('9') && lines[3].contains("+∞"), "{found}");
    }
}
