//! An accepted operator, followed until it ends.

use super::rows::{operator, operator_state};
use crate::Outcome;
use crate::output::print;
use crate::table;
use std::time::{Duration, Instant};
use stele_client::Control;
use stele_client::messages::{OperatorInfo, OperatorState};
use stele_types::{Error, Result};

const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time after which the operator is no longer followed; it continues.
const FOLLOW_LIMIT: Duration = Duration::from_secs(600);

/// An operator of the placement group.
pub(crate) struct Change<'a> {
    control: &'a Control,
    operator: u64,
}

impl<'a> Change<'a> {
    /// Follows the operator with this ID.
    pub(crate) fn new(control: &'a Control, operator: u64) -> Self {
        Self { control, operator }
    }

    /// Waits for the end of the operator and prints its result.
    pub(crate) async fn wait(self, json: bool) -> Result<Outcome> {
        let started = Instant::now();
        let ended = self.ended().await?;
        if json {
            table::print(&[operator(&ended)], true, "")?;
        } else {
            let seconds = started.elapsed().as_secs_f64();
            let state = operator_state(ended.state);
            let OperatorInfo { region_id, what, .. } = &ended;
            print(&format!("region {region_id}: {what}: {state} ({seconds:.1} s)\n"));
        }
        if ended.state == OperatorState::Done as i32 {
            return Ok(Outcome::Done);
        }
        Err(Error::Refused(format!("{}: {}", ended.what, ended.detail)))
    }

    /// Waits for the end of the operator and returns its final state.
    pub(crate) async fn ended(&self) -> Result<OperatorInfo> {
        let started = Instant::now();
        loop {
            let info = self.control.operator(self.operator).await?;
            match info {
                Some(info) if info.state == OperatorState::Running as i32 => {
                    if started.elapsed() > FOLLOW_LIMIT {
                        return Ok(info);
                    }
                }
                Some(info) => return Ok(info),
                // The leader that knew the operator was replaced.
                None => {
                    return Ok(OperatorInfo {
                        id: self.operator,
                        what: format!("operator {}", self.operator),
                        state: OperatorState::Unspecified as i32,
                        detail: "the placement group has a new leader, which does not know the operator; see `stele ctl regions`".to_owned(),
                        ..OperatorInfo::default()
                    });
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}
