//! Names of objects: plain ASCII, numbers in 16 hexadecimal digits, so that listings are in their order.
//!
//! ```text
//! repository                      the cluster; makes the place a repository
//! prune                           a prune that deletes chunks
//! chunks/HH/SHA256HEX             pairs
//! runs/RUN/log/SEQ                records
//! runs/RUN/making/SEQ             a base that is not complete
//! runs/RUN/bases/SEQ              a complete base
//! runs/RUN/moments/NUMBER         a moment
//! ```
//!
//! No name is the beginning of another up to a `/`: some stores cannot keep both.

use super::{BaseSeq, ChunkName, LogSeq, RunId};
use stele_types::MomentId;

/// Name of an object in its repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Name {
    Repository,
    Prune,
    Chunk(ChunkName),
    Log(RunId, LogSeq),
    Making(RunId, BaseSeq),
    Base(RunId, BaseSeq),
    Moment(RunId, MomentId),
}

impl Name {
    /// Returns the path below the repository's place.
    pub(crate) fn path(&self) -> String {
        match self {
            Self::Repository => "repository".to_owned(),
            Self::Prune => "prune".to_owned(),
            Self::Chunk(name) => format!("chunks/{:02x}/{name}", name.0[0]),
            Self::Log(run, seq) => format!("runs/{run}/log/{seq}"),
            Self::Making(run, seq) => format!("runs/{run}/making/{seq}"),
            Self::Base(run, seq) => format!("runs/{run}/bases/{seq}"),
            Self::Moment(run, number) => format!("runs/{run}/moments/{:016x}", number.0),
        }
    }

    /// Returns the name with this path; `None` for a path of no object.
    pub(crate) fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').collect();
        let name = match parts.as_slice() {
            ["repository"] => Self::Repository,
            ["prune"] => Self::Prune,
            ["chunks", _, name] => Self::Chunk(ChunkName::parse(name)?),
            ["runs", run, "log", seq] => Self::Log(RunId(number(run)?), LogSeq(number(seq)?)),
            ["runs", run, "making", seq] => {
                Self::Making(RunId(number(run)?), BaseSeq(number(seq)?))
            }
            ["runs", run, "bases", seq] => Self::Base(RunId(number(run)?), BaseSeq(number(seq)?)),
            ["runs", run, "moments", of] => {
                Self::Moment(RunId(number(run)?), MomentId(number(of)?))
            }
            _ => return None,
        };
        (name.path() == path).then_some(name)
    }
}

fn number(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_again_and_others_are_none() {
        let names = [
            Name::Repository,
            Name::Prune,
            Name::Chunk(ChunkName([0xab; 32])),
            Name::Log(RunId(1), LogSeq(u64::MAX)),
            Name::Making(RunId(1), BaseSeq(3)),
            Name::Base(RunId(9), BaseSeq(0)),
            Name::Moment(RunId(9), MomentId(77)),
        ];
        for name in names {
            assert_eq!(Name::parse(&name.path()), Some(name));
            assert_eq!(Name::parse(&format!("{}x", name.path())), None);
        }
        for other in ["", "runs", "runs/1/log/2", "runs/+000000000000001/log/0000000000000002"] {
            assert_eq!(Name::parse(other), None, "{other}");
        }
    }
}
