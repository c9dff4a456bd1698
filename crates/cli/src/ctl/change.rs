//! A change that the cluster has accepted, until it has ended.

use super::rows::{operator, operator_state};
use crate::Outcome;
use crate::output::say;
use crate::table;
use std::time::{Duration, Instant};
use stele_client::Control;
use stele_client::messages::{OperatorInfo, OperatorState};
use stele_types::{Error, Result};

const ASK_EVERY: Duration = Duration::from_millis(50);
/// After this time the change goes on without being watched.
const WATCHED_FOR: Duration = Duration::from_secs(600);

/// An operator of the placement group.
pub struct Change<'a> {
    control: &'a Control,
    operator: u64,
}

impl<'a> Change<'a> {
    /// The operator of that number.
    pub fn new(control: &'a Control, operator: u64) -> Self {
        Self { control, operator }
    }

    /// Waits for its end and prints it.
    pub async fn wait(self, json: bool) -> Result<Outcome> {
        let started = Instant::now();
        let ended = self.ended().await?;
        if json {
            table::print(&[operator(&ended)], true, "")?;
        } else {
            let seconds = started.elapsed().as_secs_f64();
            let state = operator_state(ended.state);
            let OperatorInfo { region_id, what, .. } = &ended;
            say(&format!("region {region_id}: {what}: {state} ({seconds:.1} s)\n"));
        }
        if ended.state == OperatorState::Done as i32 {
            return Ok(Outcome::Done);
        }
        Err(Error::Refused(format!("{}: {}", ended.what, ended.detail)))
    }

    /// What became of it.
    pub async fn ended(&self) -> Result<OperatorInfo> {
        let started = Instant::now();
        loop {
            let info = self.control.operator(self.operator).await?;
            match info {
                Some(info) if info.state == OperatorState::Running as i32 => {
                    if started.elapsed() > WATCHED_FOR {
                        return Ok(info);
                    }
                }
                Some(info) => return Ok(info),
                // Ended, and forgotten with the leader that knew it.
                None => {
                    return Ok(OperatorInfo {
                        id: self.operator,
                        what: format!("operator {}", self.operator),
                        state: OperatorState::Unspecified as i32,
                        detail: "the placement group has a new leader and no longer knows it; see `stele ctl regions`".to_owned(),
                        ..OperatorInfo::default()
                    });
                }
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }
}
