//! `stele ctl events`: what the placement group recorded, and the operators of its leader.

use super::rows::{operator, operator_state};
use crate::Outcome;
use crate::table::{Cell, number, object, words};
use crate::terminal::Output;
use std::collections::BTreeMap;
use std::time::Duration;
use stele_client::Control;
use stele_client::messages::{ListEventsResponse, OperatorInfo, PlacementEvent};
use stele_types::{Error, Result};

/// Time between two questions to the leader.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Operators of which the last state is remembered; the leader remembers fewer that ended.
const OPERATORS_MAX: usize = 4096;

/// Prints the last events, and with `follow` those that come until a signal.
pub(super) async fn run(control: &Control, from: u64, follow: bool, json: bool) -> Result<Outcome> {
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    let mut events =
        Events { next: from, json, out: Output::new(), operators: Operators::default() };
    loop {
        let step = async {
            let is_behind = events.step(control).await?;
            events.out.flush()?;
            if !is_behind && follow {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            Ok::<bool, Error>(is_behind || follow)
        };
        tokio::select! {
            _ = &mut interrupted => return Ok(Outcome::Done),
            goes_on = step => match goes_on {
                Ok(true) => {}
                Ok(false) => return Ok(Outcome::Done),
                // A leader may be elected.
                Err(error @ Error::Unavailable(_)) if follow => eprintln!("stele: {error}"),
                Err(error) => return Err(error),
            },
        }
    }
}

struct Events {
    /// Entry of the placement group's log.
    next: u64,
    json: bool,
    out: Output,
    operators: Operators,
}

impl Events {
    /// Prints what is new. Returns whether more is there.
    async fn step(&mut self, control: &Control) -> Result<bool> {
        let answer = control.events(self.next).await?;
        if answer.has_missed {
            eprintln!("{}", missed(self.next, &answer));
        }
        for event in &answer.events {
            self.line(&row(event), &text(event))?;
        }
        self.next = answer.next_index;
        if answer.has_more {
            return Ok(true);
        }
        for info in self.operators.changed(control.operators(true).await?) {
            self.line(&operator(&info), &operator_text(&info))?;
        }
        Ok(false)
    }

    fn line(&mut self, row: &[Cell], text: &str) -> Result<()> {
        match self.json {
            true => self.out.json(object(row)),
            false => self.out.line(text),
        }
    }
}

fn missed(next: u64, answer: &ListEventsResponse) -> String {
    let first = answer.events.first().map_or(answer.next_index, |event| event.index);
    format!(
        "stele: the leader no longer has entries {next} to {}: they are left out",
        first.saturating_sub(1)
    )
}

fn row(event: &PlacementEvent) -> Vec<Cell> {
    vec![
        number("index", event.index),
        words("subject", event.subject.as_str()),
        words("name", event.name.as_str()),
        words("what", event.what.as_str()),
    ]
}

fn text(event: &PlacementEvent) -> String {
    let PlacementEvent { index, subject, name, what } = event;
    format!("{index} {subject} {name}: {what}")
}

fn operator_text(info: &OperatorInfo) -> String {
    let OperatorInfo { id, region_id, steps_done, steps, what, why, detail, .. } = info;
    let state = operator_state(info.state);
    let details = [why, detail].map(|text| match text.is_empty() {
        true => String::new(),
        false => format!(", {text}"),
    });
    format!(
        "- operator {id} of region {region_id}: {state}, step {steps_done} of {steps}, {what}{}",
        details.concat()
    )
}

/// Last printed state of each operator.
#[derive(Default)]
struct Operators {
    seen: BTreeMap<u64, (i32, u32)>,
}

impl Operators {
    /// Returns the operators of which the state or the step is new.
    fn changed(&mut self, infos: Vec<OperatorInfo>) -> Vec<OperatorInfo> {
        // One without an id is planned and has not started.
        let changed = infos.into_iter().filter(|info| info.id != 0);
        let changed = changed.filter(|info| {
            let state = (info.state, info.steps_done);
            self.seen.insert(info.id, state) != Some(state)
        });
        let changed = changed.collect();
        // Ids grow: the least are the oldest.
        while self.seen.len() > OPERATORS_MAX {
            self.seen.pop_first();
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_client::messages::OperatorState;

    fn info(id: u64, state: OperatorState, steps_done: u32) -> OperatorInfo {
        OperatorInfo {
            id,
            region_id: 7,
            state: state as i32,
            steps_done,
            steps: 3,
            ..Default::default()
        }
    }

    #[test]
    fn an_operator_is_printed_when_it_goes_on_and_not_again() {
        let mut operators = Operators::default();
        let (running, done) = (OperatorState::Running, OperatorState::Done);
        let steps = [
            (vec![info(0, running, 0), info(4, running, 0)], vec![4]),
            (vec![info(4, running, 0)], vec![]),
            (vec![info(4, running, 1), info(5, running, 0)], vec![4, 5]),
            (vec![info(4, done, 3), info(5, running, 0)], vec![4]),
            (vec![info(4, done, 3)], vec![]),
        ];
        for (infos, wanted) in steps {
            let found: Vec<u64> = operators.changed(infos).iter().map(|info| info.id).collect();
            assert_eq!(found, wanted);
        }
    }

    #[test]
    fn what_is_remembered_of_operators_is_bounded() {
        let mut operators = Operators::default();
        for id in 1..=OPERATORS_MAX as u64 + 10 {
            assert_eq!(operators.changed(vec![info(id, OperatorState::Done, 3)]).len(), 1);
        }
        assert_eq!(operators.seen.len(), OPERATORS_MAX);
        let last = OPERATORS_MAX as u64 + 10;
        assert!(operators.changed(vec![info(last, OperatorState::Done, 3)]).is_empty());
    }

    #[test]
    fn lines_name_the_entry_and_what_it_concerns() {
        let event = PlacementEvent {
            index: 12,
            subject: "region".into(),
            name: "7".into(),
            what: "a leader of term 9".into(),
        };
        assert_eq!(text(&event), "12 region 7: a leader of term 9");
        let answer =
            ListEventsResponse { events: vec![event], next_index: 13, ..Default::default() };
        assert!(missed(3, &answer).contains("entries 3 to 11"));
        let mut info = info(4, OperatorState::Running, 1);
        info.what = "move a replica".into();
        info.why = "a store drains".into();
        let line = operator_text(&info);
        assert_eq!(
            line,
            "- operator 4 of region 7: running, step 1 of 3, move a replica, a store drains"
        );
    }
}
