//! Replicas of a directory as JSON lines, to compare them with those on other machines.
//!
//! ```text
//! {"cluster":ID,"time":1790000000,"members":[1,4],"version":12}             first line; time in Unix seconds
//! {"region":HEX,"store":4,"term":7,"last":120,"last_term":6,"commit":118}     a replica
//! {"recorded":HEX}                                                          a region of the placement group
//! ```
//!
//! Surveys of earlier versions lack the first line: their cluster is not known.

use crate::text::{from_hex, to_hex};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use stele_server::recover::SurvivingReplica;
use stele_types::{ClusterId, Error, LogIndex, Region, Result, StoreId, Term};

/// Longest line: a descriptor with two keys of 8 KiB in hexadecimal digits, and its peers.
const LINE_BYTES_MAX: usize = 64 << 10;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ReplicaSurvey {
    pub replicas: Vec<SurvivingReplica>,
    pub recorded: Vec<Region>,
    pub origin: Origin,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Origin {
    /// Cluster; 0 if unknown.
    pub cluster: ClusterId,
    /// Time in Unix seconds; 0 if unknown.
    pub time_s: u64,
    /// Stores of the cluster, as far as the directories name them.
    pub members: BTreeSet<StoreId>,
    pub version: u64,
}

impl ReplicaSurvey {
    pub(super) fn lines(&self) -> Vec<Map<String, Value>> {
        let replica = |replica: &SurvivingReplica| {
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
        let Origin { cluster, time_s, members, version } = &self.origin;
        let origin = json!({
            "cluster": cluster.0,
            "time": time_s,
            "members": members.iter().map(|store| store.0).collect::<Vec<_>>(),
            "version": version,
        });
        let lines = self.replicas.iter().map(replica).chain(self.recorded.iter().map(recorded));
        let lines = std::iter::once(origin).chain(lines);
        lines.filter_map(|line| line.as_object().cloned()).collect()
    }

    pub(super) fn stores(&self) -> BTreeSet<StoreId> {
        let replicas = self.replicas.iter().map(|replica| &replica.region);
        let peers = replicas.chain(&self.recorded).flat_map(|region| &region.peers);
        let own = self.replicas.iter().map(|replica| replica.store);
        let named = peers.map(|peer| peer.store).chain(own);
        named.chain(self.origin.members.iter().copied()).collect()
    }

    /// Adds the survey of another machine, from a file of its lines. Returns where and when it was
    /// made. Fails with `Invalid` for one of another cluster.
    ///
    /// Invariant: replicas of two clusters are never compared: their regions and stores have the same
    /// numbers.
    pub(super) fn read(&mut self, path: &Path) -> Result<Origin> {
        let mut other = Self::default();
        other.read_lines(path)?;
        let Self { replicas, recorded, origin } = other;
        let (here, there) = (self.origin.cluster, origin.cluster);
        // bug cli.survey_of_any_cluster: never
        if there != ClusterId(0) && there != here {
            return Err(Error::Refused(format!(
                "{} is a survey of cluster {there}, the directories belong to cluster {here}: give \
                 one of this cluster",
                path.display()
            )));
        }
        self.replicas.extend(replicas);
        self.recorded.extend(recorded);
        self.origin.members.extend(&origin.members);
        self.origin.version = self.origin.version.max(origin.version);
        Ok(origin)
    }

    fn read_lines(&mut self, path: &Path) -> Result<()> {
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
                Error::Refused(format!(
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
        if line.contains_key("cluster") {
            return self.add_origin(&line);
        }
        if line.contains_key("recorded") {
            self.recorded.push(region("recorded")?);
            return Some(());
        }
        let number = |name: &str| line.get(name)?.as_u64();
        self.replicas.push(SurvivingReplica {
            store: StoreId(number("store")?),
            region: region("region")?,
            term: Term(number("term")?),
            last: (LogIndex(number("last")?), Term(number("last_term")?)),
            committed: LogIndex(number("commit")?),
        });
        Some(())
    }

    fn add_origin(&mut self, line: &Map<String, Value>) -> Option<()> {
        let number = |name: &str| line.get(name)?.as_u64();
        let origin = &mut self.origin;
        (origin.cluster, origin.time_s) = (ClusterId(number("cluster")?), number("time")?);
        origin.version = number("version")?;
        for store in line.get("members")?.as_array()? {
            origin.members.insert(StoreId(store.as_u64()?));
        }
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
        let survey = ReplicaSurvey {
            replicas: vec![SurvivingReplica {
                store: StoreId(4),
                region: region(7),
                term: Term(9),
                last: (LogIndex(120), Term(8)),
                committed: LogIndex(118),
            }],
            recorded: vec![region(8)],
            origin: Origin {
                cluster: ClusterId(u64::MAX),
                time_s: 1_790_000_000,
                members: [1, 4, 9].map(StoreId).into(),
                version: 12,
            },
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("survey");
        let lines = survey.lines().into_iter().map(|line| Value::Object(line).to_string() + "\n");
        let text: String = lines.collect();
        std::fs::write(&path, &text).unwrap();
        let mut read = ReplicaSurvey::default();
        read.read_lines(&path).unwrap();
        assert_eq!(read, survey);
        assert_eq!(read.stores(), [1, 4, 9].map(StoreId).into());
        for bad in [
            "{}\n",
            "x\n",
            "{\"recorded\":\"00\"}\n",
            "{\"region\":\"\",\"store\":1}\n",
            "{\"cluster\":7}\n",
        ] {
            std::fs::write(&path, format!("{text}{bad}")).unwrap();
            let error = ReplicaSurvey::default().read(&path).unwrap_err().to_string();
            assert!(error.contains("line 4 is no line"), "{error}");
        }
    }

    #[test]
    fn a_survey_of_another_cluster_is_refused_and_one_of_an_earlier_version_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("survey");
        let of = |cluster: u64| ReplicaSurvey {
            origin: Origin { cluster: ClusterId(cluster), ..Origin::default() },
            ..ReplicaSurvey::default()
        };
        let write = |lines: Vec<Map<String, Value>>| {
            let lines = lines.into_iter().map(|line| Value::Object(line).to_string() + "\n");
            std::fs::write(&path, lines.collect::<String>()).unwrap();
        };
        write(of(8).lines());
        assert!(of(8).read(&path).is_ok());
        let error = of(7).read(&path).unwrap_err().to_string();
        assert!(error.contains("cluster 8") && error.contains("cluster 7"), "{error}");
        write(of(8).lines().split_off(1));
        assert_eq!(of(7).read(&path).unwrap(), Origin::default());
    }
}
