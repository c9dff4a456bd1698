//! Replicas of a directory as JSON lines, to compare them with those on other machines.
//!
//! ```text
//! {"region":HEX,"store":4,"term":7,"last":120,"last_term":6,"commit":118}     a replica
//! {"recorded":HEX}                                                          a region of the placement group
//! ```

use crate::text::{from_hex, to_hex};
use serde_json::{Map, Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use stele_server::recover::Replica;
use stele_types::{Error, LogIndex, Region, Result, StoreId, Term};

/// Longest line: a descriptor with two keys of 8 KiB in hexadecimal digits, and its peers.
const LINE_BYTES_MAX: usize = 64 << 10;

/// What is known of the replicas that are left.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Replicas on stores that are not lost.
    pub replicas: Vec<Replica>,
    /// Regions that the placement group has recorded.
    pub recorded: Vec<Region>,
}

impl Survey {
    /// Returns the lines of the survey.
    pub fn lines(&self) -> Vec<Map<String, Value>> {
        let replica = |replica: &Replica| {
            json!({
                "region": to_hex(&replica.region.encode()),
                "store": replica.store.0,
                "term": replica.term.0,
                "last": replica.last.0.0,
                "last_term": replica.last.1.0,
                "commit": replica.committed.0,
            })
        };
        let recorded = |region: &Region| json!({ "recorded": to_hex(&region.encode()) });
        let lines = self.replicas.iter().map(replica).chain(self.recorded.iter().map(recorded));
        lines.filter_map(|line| line.as_object().cloned()).collect()
    }

    /// Adds the survey of another machine, from a file of its lines.
    pub fn read(&mut self, path: &Path) -> Result<()> {
        let failed = |source| Error::io("read", path, source);
        let mut lines = BufReader::new(std::fs::File::open(path).map_err(failed)?);
        for number in 1.. {
            let mut line = Vec::new();
            let mut bounded = std::io::Read::take(&mut lines, LINE_BYTES_MAX as u64);
            if bounded.read_until(b'\n', &mut line).map_err(failed)? == 0 {
                break;
            }
            self.add(&line).ok_or_else(|| {
                let path = path.display();
                Error::invalid(format!(
                    "{path}, line {number} is no line of `stele ctl recover --json`"
                ))
            })?;
        }
        Ok(())
    }

    fn add(&mut self, line: &[u8]) -> Option<()> {
        let line: Map<String, Value> = serde_json::from_slice(line).ok()?;
        let region = |name: &str| {
            let hex = line.get(name)?.as_str()?;
            Region::decode(&from_hex(hex).ok()?).ok()
        };
        if line.contains_key("recorded") {
            self.recorded.push(region("recorded")?);
            return Some(());
        }
        let number = |name: &str| line.get(name)?.as_u64();
        self.replicas.push(Replica {
            store: StoreId(number("store")?),
            region: region("region")?,
            term: Term(number("term")?),
            last: (LogIndex(number("last")?), Term(number("last_term")?)),
            committed: LogIndex(number("commit")?),
        });
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::{KeyRange, RegionId};

    #[test]
    fn a_survey_survives_the_round_trip_and_other_lines_are_refused() {
        let region = |id| Region {
            id: RegionId(id),
            range: KeyRange::new(vec![0, 255], b"m".to_vec()),
            ..Region::default()
        };
        let survey = Survey {
            replicas: vec![Replica {
                store: StoreId(4),
                region: region(7),
                term: Term(9),
                last: (LogIndex(120), Term(8)),
                committed: LogIndex(118),
            }],
            recorded: vec![region(8)],
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("survey");
        let lines = survey.lines().into_iter().map(|line| Value::Object(line).to_string() + "\n");
        let text: String = lines.collect();
        std::fs::write(&path, &text).unwrap();
        let mut read = Survey::default();
        read.read(&path).unwrap();
        assert_eq!(read, survey);
        for bad in ["{}\n", "x\n", "{\"recorded\":\"00\"}\n", "{\"region\":\"\",\"store\":1}\n"] {
            std::fs::write(&path, format!("{text}{bad}")).unwrap();
            let error = Survey::default().read(&path).unwrap_err().to_string();
            assert!(error.contains("line 3 is no line"), "{error}");
        }
    }
}
