//! Positions to which a sender can go back.

use crate::transport::Position;
use std::collections::VecDeque;
use stele_node::snapshot::Rest;

/// Most positions kept. What a receiver has is behind by the buffers of the connection, a few MiB.
const POSITIONS_MAX: usize = 512;

/// Positions after the last chunks that were sent, with what followed each.
#[derive(Debug, Default)]
pub(super) struct Positions(VecDeque<(Position, Rest)>);

impl Positions {
    /// Returns whether the snapshot cannot go on.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the last position.
    pub fn last(&self) -> Option<Position> {
        self.0.back().map(|(position, _)| *position)
    }

    /// Records a position and what follows it. The first chunk of all stays reachable: a receiver that
    /// restarted has nothing.
    pub fn note(&mut self, position: Position, rest: Rest) {
        if self.last() == Some(position) {
            return;
        }
        if self.0.len() >= POSITIONS_MAX {
            self.0.remove(1);
        }
        self.0.push_back((position, rest));
    }

    /// Returns what follows a position of the receiver, and forgets all later ones; `None` if it is not
    /// known.
    pub fn rest_at(&mut self, position: Position) -> Option<Rest> {
        let at = self.0.iter().position(|(known, _)| *known == position)?;
        self.0.truncate(at + 1);
        self.0.back().map(|(_, rest)| rest.clone())
    }
}
