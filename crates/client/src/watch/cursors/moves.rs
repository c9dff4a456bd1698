//! Moves of keys between logs: splits, merges, and the searches for merges into logs without watched keys.

use super::{Cursor, Cursors, FIRST_INDEX, Merge, Prepared, StreamId, odd};
use crate::watch::mark::tiles;
use crate::watch::seek::Seeker;
use stele_proto::metapb;
use stele_proto::stele::kv::v1::region_change::Kind as ChangeKind;
use stele_proto::stele::kv::v1::{FollowedEntry, RegionChange};
use stele_types::{Error, KeyRange, Region, RegionId, Result};

impl Cursors {
    /// Passes an entry that changes a region, or stops at it.
    pub(super) fn change(&mut self, id: RegionId, index: u64, change: RegionChange) -> Result<()> {
        let after = change.region.as_ref().map(Region::from).unwrap_or_default();
        if after.id != id {
            return Err(odd(StreamId::Cursor(id), index, "it changes another region"));
        }
        match change.kind {
            Some(ChangeKind::Split(split)) => self.split(id, index, &after, &split.children)?,
            Some(ChangeKind::Merged(merged)) => {
                let (source, prepared_index) = (RegionId(merged.source), merged.prepared_index);
                return self.merge(id, index, after, source, prepared_index);
            }
            Some(ChangeKind::Prepared(prepared)) => {
                self.prepare(id, Prepared { target: RegionId(prepared.target), index });
            }
            Some(ChangeKind::RolledBack(_)) => self.roll_back(id),
            // Such as a change of members.
            None => {}
        }
        self.pass(id, index, &after)
    }

    /// Moves a cursor past an entry which leaves the region with the keys that the cursor has.
    fn pass(&mut self, id: RegionId, index: u64, after: &Region) -> Result<()> {
        if let Some(cursor) = self.cursors.get_mut(&id) {
            if after.range.common(&self.range).as_ref() != Some(&cursor.range) {
                return Err(odd(StreamId::Cursor(id), index, "it leaves other keys"));
            }
            cursor.next = index + 1;
            cursor.known(after);
        }
        self.has_moved = true;
        self.release(id)
    }

    /// Gives keys of a cursor to the regions that a split made.
    ///
    /// Invariant: each watched key of a split region continues in exactly one log: in the region's own after
    /// the split, or in that of a new region from its first entry on.
    /// Test: `random_histories_lose_and_repeat_nothing`.
    fn split(
        &mut self,
        id: RegionId,
        index: u64,
        after: &Region,
        children: &[metapb::Region],
    ) -> Result<()> {
        let Some(cursor) = self.cursors.get(&id) else { return Ok(()) };
        let children = children.iter().map(Region::from).filter(|child| child.id != id);
        let of_child = |child: Region| Some((child.range.common(&cursor.range)?, child));
        let mut parts: Vec<(KeyRange, Region)> = children.filter_map(of_child).collect();
        let own = after.range.common(&cursor.range);
        parts.extend(own.clone().map(|range| (range, after.clone())));
        parts.sort_by(|(one, _), (other, _)| one.start.cmp(&other.start));
        if !tiles(&cursor.range, parts.iter().map(|(range, _)| range)) {
            return Err(odd(StreamId::Cursor(id), index, "its parts are not all of it"));
        }
        match own {
            Some(range) => self.set_range(id, range),
            None => self.lose_all(id, index),
        }
        for (range, child) in parts.into_iter().filter(|(_, part)| part.id != id) {
            let first = FIRST_INDEX;
            // bug client.watch_child_begins_late: let first = FIRST_INDEX + 1;
            self.insert(child.id, Cursor::new(range, &child, first))?;
        }
        Ok(())
    }

    /// Removes a cursor of which the last key left its log. Merges into its region are still searched there.
    fn lose_all(&mut self, id: RegionId, index: u64) {
        self.remove(id);
        let prepared = |cursor: &Cursor| cursor.prepared.filter(|prepared| prepared.target == id);
        let of_sources = self.cursors.iter();
        let sources: Vec<(RegionId, u64)> = of_sources
            .filter_map(|(source, cursor)| Some((*source, prepared(cursor)?.index)))
            .collect();
        for (source, prepared_index) in sources {
            let generation = self.next_generation();
            let seeker = Seeker::from(id, prepared_index, index + 1, generation);
            self.seekers.insert(source, seeker);
            self.changed.insert(StreamId::Seek(source));
        }
    }

    fn prepare(&mut self, source: RegionId, prepared: Prepared) {
        let generation = self.next_generation();
        let Some(cursor) = self.cursors.get_mut(&source) else { return };
        cursor.prepared = Some(prepared);
        // bug client.watch_targets_unsought: never
        if !self.cursors.contains_key(&prepared.target) {
            let seeker = Seeker::new(prepared.target, prepared.index, generation);
            self.seekers.insert(source, seeker);
            self.changed.insert(StreamId::Seek(source));
        }
    }

    fn roll_back(&mut self, source: RegionId) {
        if let Some(cursor) = self.cursors.get_mut(&source) {
            cursor.prepared = None;
        }
        self.end_search(source);
    }

    /// Passes a merge in the log of its target, or stops there until the source is drained.
    fn merge(
        &mut self,
        id: RegionId,
        index: u64,
        after: Region,
        source: RegionId,
        prepared_index: u64,
    ) -> Result<()> {
        let Some(cursor) = self.cursors.get_mut(&id) else { return Ok(()) };
        let range = after.range.common(&self.range).unwrap_or_default();
        if range == cursor.range {
            return self.pass(id, index, &after);
        }
        cursor.next = index;
        cursor.merge = Some(Merge { source, prepared_index, range, after });
        self.waiting.insert(source, id);
        self.release(source)?;
        let generation = self.next_generation();
        if let Some(cursor) = self.cursors.get_mut(&id).filter(|cursor| cursor.merge.is_some()) {
            // What follows is read again after the merge.
            cursor.held = None;
            cursor.generation = generation;
            self.changed.insert(StreamId::Cursor(id));
        }
        Ok(())
    }

    /// Carries a merge out that waits for this source, if the source is drained.
    ///
    /// Invariant: no write of the target's log behind a merge is returned before all writes of the source's
    /// log up to its preparation.
    /// Test: `random_histories_lose_and_repeat_nothing`.
    pub(super) fn release(&mut self, source: RegionId) -> Result<()> {
        let Some(&id) = self.waiting.get(&source) else { return Ok(()) };
        let (Some(from), Some(into)) = (self.cursors.get(&source), self.cursors.get(&id)) else {
            return Ok(());
        };
        let Some(merge) = &into.merge else { return Ok(()) };
        // bug client.watch_source_undrained: never
        if from.next <= merge.prepared_index {
            return Ok(());
        }
        let mut parts = [&from.range, &into.range];
        parts.sort_by(|one, other| one.start.cmp(&other.start));
        if merge.source != source || !tiles(&merge.range, parts.into_iter()) {
            return Err(odd(StreamId::Cursor(id), into.next, "it merges other keys"));
        }
        let (range, after, index) = (merge.range.clone(), merge.after.clone(), into.next);
        self.waiting.remove(&source);
        self.remove(source);
        self.set_range(id, range);
        if let Some(cursor) = self.cursors.get_mut(&id) {
            cursor.merge = None;
            self.changed.insert(StreamId::Cursor(id));
        }
        self.pass(id, index, &after)
    }

    pub(super) fn feed_seeker(
        &mut self,
        source: RegionId,
        generation: u64,
        entries: Vec<FollowedEntry>,
        next_index: u64,
    ) -> Result<()> {
        let Some(seeker) = self.seekers.get_mut(&source) else { return Ok(()) };
        if seeker.generation != generation || seeker.next_index() == 0 {
            return Ok(());
        }
        self.changed.insert(StreamId::Seek(source));
        for FollowedEntry { index, change, .. } in entries {
            let Some(RegionChange { region, kind: Some(ChangeKind::Merged(merged)) }) = change
            else {
                continue;
            };
            let is_it = RegionId(merged.source) == source
                && merged.prepared_index == seeker.prepared_index
                && index >= seeker.next_index();
            if is_it {
                let after = region.as_ref().map(Region::from).unwrap_or_default();
                return self.found(source, index, after);
            }
        }
        seeker.read_to(next_index);
        self.check_search(source)
    }

    /// Fails with `TooOld` if a search has failed, and the log of the source has ended: then it has no rollback
    /// to come either.
    pub(super) fn check_search(&self, source: RegionId) -> Result<()> {
        let failed = self.seekers.get(&source).filter(|seeker| seeker.has_failed());
        let has_ended = self.cursors.get(&source).is_some_and(|cursor| cursor.attempts > 0);
        match failed.filter(|_| has_ended) {
            None => Ok(()),
            Some(seeker) => {
                let target = seeker.target;
                let text =
                    format!("no store has the entry of region {target} that merged {source}");
                Err(Error::TooOld(text))
            }
        }
    }

    /// Continues the cursor of a source in the log of its target after the merge.
    fn found(&mut self, source: RegionId, index: u64, after: Region) -> Result<()> {
        self.end_search(source);
        let Some(cursor) = self.cursors.get(&source) else { return Ok(()) };
        let range = cursor.range.clone();
        // Other watched keys of the target come by the splits of other logs, and its cursor with them: that
        // one meets the merge.
        if after.range.common(&self.range).as_ref() != Some(&range) {
            return Ok(());
        }
        self.remove(source);
        self.has_moved = true;
        self.insert(after.id, Cursor::new(range, &after, index + 1))
    }

    fn end_search(&mut self, source: RegionId) {
        if self.seekers.remove(&source).is_some() {
            self.changed.insert(StreamId::Seek(source));
        }
    }

    pub(super) fn insert(&mut self, id: RegionId, mut cursor: Cursor) -> Result<()> {
        if self.cursors.contains_key(&id) {
            return Err(odd(StreamId::Cursor(id), cursor.next, "its keys are already watched"));
        }
        cursor.generation = self.next_generation();
        self.by_start.insert(cursor.range.start.clone(), id);
        self.cursors.insert(id, cursor);
        self.changed.insert(StreamId::Cursor(id));
        let into_it = self.seekers.iter().filter(|(_, seeker)| seeker.target == id);
        let sources: Vec<RegionId> = into_it.map(|(source, _)| *source).collect();
        sources.into_iter().for_each(|source| self.end_search(source));
        self.release(id)
    }

    fn remove(&mut self, id: RegionId) {
        if let Some(cursor) = self.cursors.remove(&id) {
            self.by_start.remove(&cursor.range.start);
        }
        self.changed.insert(StreamId::Cursor(id));
        self.end_search(id);
    }

    fn set_range(&mut self, id: RegionId, range: KeyRange) {
        if let Some(cursor) = self.cursors.get_mut(&id) {
            self.by_start.remove(&cursor.range.start);
            self.by_start.insert(range.start.clone(), id);
            cursor.range = range;
        }
    }
}
