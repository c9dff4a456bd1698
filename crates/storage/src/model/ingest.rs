//! Staged snapshot pairs of the model.

use super::Pairs;
use crate::Pair;
use stele_types::{Error, KeyRange, Result};

/// Pairs received so far, and the ranges they will replace.
#[derive(Debug)]
pub struct ModelIngest {
    ranges: Vec<KeyRange>,
    pairs: Pairs,
    is_broken: bool,
}

impl ModelIngest {
    pub(super) fn new(ranges: Vec<KeyRange>) -> Result<Self> {
        crate::check_ranges(&ranges)?;
        Ok(Self { ranges, pairs: Pairs::new(), is_broken: false })
    }

    pub(super) fn receive(&mut self, pairs: Vec<Pair>) -> Result<()> {
        for Pair { key, value, expires_at_s } in pairs {
            let ascending = self.pairs.last_key_value().is_none_or(|(last, _)| *last < key);
            if !ascending || !self.ranges.iter().any(|range| range.contains(&key)) {
                self.is_broken = true;
                return Err(Error::invalid("installed keys must ascend inside the ranges"));
            }
            self.pairs.insert(key, (value, expires_at_s));
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<(Vec<KeyRange>, Pairs)> {
        if self.is_broken {
            return Err(Error::invalid(
                "an ingest with a refused pair cannot be installed; begin a new one",
            ));
        }
        Ok((self.ranges, self.pairs))
    }
}
