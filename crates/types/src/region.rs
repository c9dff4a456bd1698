//! Region descriptors: keys, peers and epoch.
//!
//! ```text
//! region := version:u8 (1) id kind:u8 start:bytes end:bytes conf_version version
//!           phase:u8 [target prepared term conf_version version] peers:varint peer*
//! peer   := id store role:u8                     (numbers are varints, bytes length-prefixed)
//! ```

use crate::{
    ColumnFamily, Error, KeyRange, LogIndex, PeerId, RegionId, Result, StoreId, Term, keyspace,
    session, varint,
};
use bytes::Bytes;

/// A peer's role in its Raft group. The numbers are those on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PeerRole {
    /// Votes in every configuration.
    #[default]
    Voter = 0,
    /// Receives the log and does not vote.
    Learner = 1,
    /// Votes in the new configuration of a joint change.
    IncomingVoter = 2,
    /// Votes in the old configuration of a joint change; becomes a learner.
    DemotingVoter = 3,
}

impl PeerRole {
    /// Returns the role with this wire number.
    pub fn from_number(number: u64) -> Option<Self> {
        [Self::Voter, Self::Learner, Self::IncomingVoter, Self::DemotingVoter]
            .into_iter()
            .find(|role| *role as u64 == number)
    }

    /// Whether the peer votes after the joint change.
    pub fn votes_next(self) -> bool {
        matches!(self, Self::Voter | Self::IncomingVoter)
    }

    /// Whether the peer votes before the joint change (`outgoing`), or after it.
    pub fn votes(self, outgoing: bool) -> bool {
        match outgoing {
            true => matches!(self, Self::Voter | Self::DemotingVoter),
            false => self.votes_next(),
        }
    }
}

/// A replica of a region on a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The replica's identifier.
    pub id: PeerId,
    /// The store that holds the replica.
    pub store: StoreId,
    /// The replica's role in the Raft group.
    pub role: PeerRole,
}

/// Version counters of a region. Each field is ordered by time on its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RegionEpoch {
    /// Grows with every membership change.
    pub conf_version: u64,
    /// Grows with every change of the range: a split adds the number of new regions, a region merge
    /// sets it to one more than the greater of both.
    pub version: u64,
}

/// Kind of a region's keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RegionKind {
    /// User data: the range in each column family.
    #[default]
    Data = 0,
    /// The placement group's own pairs.
    System = 1,
}

/// Lifecycle phase of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RegionPhase {
    /// The region serves requests.
    #[default]
    Normal,
    /// Prepared for a merge into another region: no writes.
    Merging {
        /// The region that takes over the keys.
        target: RegionId,
        /// Index of the entry that prepared the merge; each replica must hold the log up to it.
        prepared: LogIndex,
        /// Term of that entry.
        term: Term,
        /// The target's epoch at that time. The target merges the region only while it has this
        /// epoch.
        target_epoch: RegionEpoch,
    },
    /// Merged, or removed from this store: never returns under these peer ids.
    Tombstone,
}

/// A region's descriptor, as shared by its replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// The region's identifier; never reused.
    pub id: RegionId,
    /// Kind of the region's keys.
    pub kind: RegionKind,
    /// Range of user keys.
    pub range: KeyRange,
    /// Version counters of membership and range.
    pub epoch: RegionEpoch,
    /// The region's replicas.
    pub peers: Vec<Peer>,
    /// Lifecycle phase.
    pub phase: RegionPhase,
}

const FORMAT: u8 = 1;
/// Limit far above any replica count: bounds what damaged bytes can allocate.
const PEERS_MAX: u64 = 64;

impl Region {
    /// Returns the replica on a store.
    pub fn peer_on(&self, store: StoreId) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.store == store)
    }

    /// Returns the replica with this id.
    pub fn peer(&self, id: PeerId) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.id == id)
    }

    /// Returns the engine ranges that hold the region's pairs, ascending: those of RawKV's families, that of
    /// the records of sessions' requests, and that of family `redis`.
    ///
    /// Invariant: a record is in the region of its key, through splits, merges and snapshots.
    /// Tests: `a_record_is_in_the_region_of_its_key_and_in_no_other`,
    /// `a_repetition_after_a_split_a_merge_and_a_snapshot_gets_the_first_result`.
    pub fn engine_ranges(&self) -> Vec<KeyRange> {
        match self.kind {
            RegionKind::Data => {
                let records = session::record_range(&self.range);
                // bug types.records_left_behind: let records = KeyRange::new("x", "x");
                let raw = ColumnFamily::RAW.iter().map(|cf| cf.engine_range(&self.range));
                let records = (!records.is_empty()).then_some(records);
                let redis = ColumnFamily::Redis.engine_range(&self.range);
                raw.chain(records).chain([redis]).collect()
            }
            RegionKind::System => vec![keyspace::range_in_space(keyspace::SYSTEM, &self.range)],
        }
    }

    /// Whether a joint membership change is in progress.
    pub fn is_joint(&self) -> bool {
        let joint = [PeerRole::IncomingVoter, PeerRole::DemotingVoter];
        self.peers.iter().any(|peer| joint.contains(&peer.role))
    }

    /// Returns the encoded form.
    pub fn encode(&self) -> Bytes {
        let mut out = vec![FORMAT];
        varint::put(&mut out, self.id.0);
        out.push(self.kind as u8);
        varint::put_bytes(&mut out, &self.range.start);
        varint::put_bytes(&mut out, &self.range.end);
        varint::put(&mut out, self.epoch.conf_version);
        varint::put(&mut out, self.epoch.version);
        match self.phase {
            RegionPhase::Normal => out.push(0),
            RegionPhase::Merging { target, prepared, term, target_epoch } => {
                out.push(1);
                varint::put(&mut out, target.0);
                varint::put(&mut out, prepared.0);
                varint::put(&mut out, term.0);
                varint::put(&mut out, target_epoch.conf_version);
                varint::put(&mut out, target_epoch.version);
            }
            RegionPhase::Tombstone => out.push(2),
        }
        varint::put(&mut out, self.peers.len() as u64);
        for peer in &self.peers {
            varint::put(&mut out, peer.id.0);
            varint::put(&mut out, peer.store.0);
            out.push(peer.role as u8);
        }
        Bytes::from(out)
    }

    /// Decodes [`Region::encode`] to the last byte. Fails with `Invalid`.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut rest = bytes;
        match Self::take(&mut rest) {
            Some(region) if rest.is_empty() => Ok(region),
            _ => Err(Error::invalid("malformed region descriptor")),
        }
    }

    /// Decodes one region from the front of `rest`.
    pub fn take(rest: &mut &[u8]) -> Option<Self> {
        if take_byte(rest)? != FORMAT {
            return None;
        }
        let id = RegionId(varint::take(rest)?);
        let kind = match take_byte(rest)? {
            0 => RegionKind::Data,
            1 => RegionKind::System,
            _ => return None,
        };
        let start = Bytes::copy_from_slice(varint::take_bytes(rest)?);
        let end = Bytes::copy_from_slice(varint::take_bytes(rest)?);
        let epoch = RegionEpoch { conf_version: varint::take(rest)?, version: varint::take(rest)? };
        let phase = match take_byte(rest)? {
            0 => RegionPhase::Normal,
            1 => RegionPhase::Merging {
                target: RegionId(varint::take(rest)?),
                prepared: LogIndex(varint::take(rest)?),
                term: Term(varint::take(rest)?),
                target_epoch: RegionEpoch {
                    conf_version: varint::take(rest)?,
                    version: varint::take(rest)?,
                },
            },
            2 => RegionPhase::Tombstone,
            _ => return None,
        };
        let count = varint::take(rest).filter(|count| *count <= PEERS_MAX)?;
        let peers = (0..count).map(|_| take_peer(rest)).collect::<Option<Vec<_>>>()?;
        Some(Self { id, kind, range: KeyRange { start, end }, epoch, peers, phase })
    }
}

fn take_peer(rest: &mut &[u8]) -> Option<Peer> {
    let id = PeerId(varint::take(rest)?);
    let store = StoreId(varint::take(rest)?);
    let role = PeerRole::from_number(u64::from(take_byte(rest)?))?;
    Some(Peer { id, store, role })
}

fn take_byte(rest: &mut &[u8]) -> Option<u8> {
    let (&byte, tail) = rest.split_first()?;
    *rest = tail;
    Some(byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Region {
        let peer = |id, store, role| Peer { id: PeerId(id), store: StoreId(store), role };
        Region {
            id: RegionId(300),
            kind: RegionKind::Data,
            range: KeyRange::new(&b"b"[..], &b""[..]),
            epoch: RegionEpoch { conf_version: 7, version: 1 << 40 },
            peers: vec![peer(1, 1, PeerRole::Voter), peer(900, 2, PeerRole::IncomingVoter)],
            phase: RegionPhase::Merging {
                target: RegionId(4),
                prepared: LogIndex(99),
                term: Term(3),
                target_epoch: RegionEpoch { conf_version: 8, version: 1 << 20 },
            },
        }
    }

    #[test]
    fn a_descriptor_survives_the_round_trip_and_every_cut_is_refused() {
        let region = sample();
        let bytes = region.encode();
        assert_eq!(Region::decode(&bytes).unwrap(), region);
        for cut in 0..bytes.len() {
            assert!(Region::decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        assert!(Region::decode(&[&bytes[..], b"x"].concat()).is_err());
    }

    #[test]
    fn a_data_region_owns_its_range_in_every_family() {
        let ranges = sample().engine_ranges();
        assert_eq!(ranges.len(), 5, "four families and the records");
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
        assert!(ranges[1].contains(&ColumnFamily::Lock.engine_key(b"c")));
        assert!(!ranges[1].contains(&ColumnFamily::Lock.engine_key(b"a")));
        assert!(sample().is_joint());
    }
}
