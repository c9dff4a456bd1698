//! Gets of one message and one region share a lease and a view, which is taken after all of them
//! arrived. A get that needs the device, a read index round or a refusal continues alone.

use super::checks::{Target, target};
use super::put_groups::has_same_target;
use super::{Memory, TikvService, reads};
use crate::memory::charge_value;
use crate::observe::{Kind, Outcome};
use crate::stores::Stores;
use std::time::Instant;
use stele_proto::kvrpcpb::{Context, RawGetRequest, RawGetResponse};

/// Gets of one group; more are distributed over processors.
const GROUP_GETS_MAX: usize = 64;

/// Get of a message, with its id there.
pub(super) type Get = (u64, RawGetRequest);

/// Gets of one region.
pub(super) struct GetGroup {
    context: Context,
    target: Target,
    gets: Vec<Get>,
}

/// Gets of one message.
#[derive(Default)]
pub(super) struct GetGroups {
    groups: Vec<GetGroup>,
}

impl GetGroups {
    /// Adds a get to the group of its region; returns it if it must continue alone.
    pub(super) fn add(&mut self, stores: &Stores, get: Get) -> Option<Get> {
        let Some(context) = &get.1.context else { return Some(get) };
        let fits = |group: &&mut GetGroup| {
            group.gets.len() < GROUP_GETS_MAX && has_same_target(&group.context, context)
        };
        if let Some(group) = self.groups.iter_mut().find(fits) {
            group.gets.push(get);
            return None;
        }
        let Ok(target) = target(stores, Some(context)) else { return Some(get) };
        self.groups.push(GetGroup { context: context.clone(), target, gets: vec![get] });
        None
    }

    pub(super) fn finish(self) -> Vec<GetGroup> {
        self.groups
    }
}

impl GetGroup {
    /// Returns the answers from memory, and the gets that must continue alone.
    pub(super) fn run(
        self,
        service: &TikvService,
        memory: &Memory,
    ) -> (Vec<(u64, RawGetResponse)>, Vec<Get>) {
        let started = Instant::now();
        let Ok(Some(view)) = reads::leased_view(&self.target) else {
            return (Vec::new(), self.gets);
        };
        let (mut done, mut left) = (Vec::with_capacity(self.gets.len()), Vec::new());
        for (id, request) in self.gets {
            match reads::get_cached_value(&self.target, &view, &request) {
                // One without memory is refused alone.
                Some(Some(value)) if charge_value(memory, &value).is_err() => {
                    left.push((id, request));
                }
                Some(value) => done.push((id, reads::get_response(value))),
                None => left.push((id, request)),
            }
        }
        self.target.reader.note_reads(done.len() as u64, view.has_effects());
        service.metrics.requests(Kind::Get, done.len(), started.elapsed(), Outcome::Served, None);
        (done, left)
    }
}
