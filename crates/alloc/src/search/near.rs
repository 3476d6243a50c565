//! Groups near the goal, visited before an index is walked (`goal_group=first`, `goal_group=all`).
//!
//! An index contains only loaded groups, and the goal's group may not be loaded yet. This module
//! loads the goal's group and visits it. With `overflow=lane`, it loads and visits the next groups
//! of the goal group's lane, too. Thus a writer whose group is full of clusters that wait for a
//! commit tries its own lane first, not the index, which may lead into another writer's group.
//!
//! Two kinds of requests get a first round that looks only for a long free run: data whose final
//! size is unknown (`room=run`), and small files (`small_start=run`). Small files that are written
//! one after the other then lie together.

use blockyard_disk::GroupNr;
use blockyard_disk::num::u32_from_usize;
use blockyard_sync::Backend;

use super::context::Context;
use crate::allocator::Allocator;
use crate::asked::Asked;
use crate::criterion::Criterion;
use crate::error::Result;
use crate::goals::lanes::next_of_lane;
use crate::policy::slots::{Overflow, Room, SmallStart};
use crate::request::RequestFlags;

/// Most groups of a lane that are visited before the index, the goal's group included. This bounds
/// how many groups one pass loads.
const LANE_GROUPS: u32 = 8;
/// Clusters of a run that is long enough for data of unknown length: 2 MiB with 4 KiB clusters.
const ROOM: u32 = 512;
/// The order of a chunk that is long enough for small files: 2048 clusters, 8 MiB with 4 KiB
/// clusters. The first round passes over a group without such a chunk, to save scanning its runs.
const SMALL_ORDER: u32 = 11;

/// What a first round looks for.
struct LongRun {
    /// The least length of the run, in clusters.
    least: u32,
    /// The first round passes over groups without a free chunk of at least this order.
    order: u32,
}

impl<B: Backend> Allocator<B> {
    /// Visits the goal's group and, with `overflow=lane`, the next groups of its lane.
    ///
    /// # Errors
    /// As [`Self::visit`].
    pub(crate) fn visit_near(
        &self,
        context: &mut Context<'_, B>,
        criterion: Criterion,
        goal: GroupNr,
    ) -> Result<()> {
        if let Some(run) = self.long_run(context.asked) {
            context.search.floor = Some(run.least.max(context.search.goal.len));
            let visited = self.visit_lane(context, criterion, goal, run.order);
            context.search.floor = None;
            visited?;
        }
        if context.search.is_over() { Ok(()) } else { self.visit_lane(context, criterion, goal, 0) }
    }

    /// The long run in which a request should begin; `None` if it may begin in any run.
    fn long_run(&self, asked: &Asked<'_, B>) -> Option<LongRun> {
        let unknown = asked.request.flags.contains(RequestFlags::DATA | RequestFlags::NO_NORMALIZE);
        let is_small = asked.kind.contains(RequestFlags::GROUP_ALLOC);
        if unknown && self.policy.room == Room::Run {
            Some(LongRun { least: ROOM, order: 0 })
        } else if !unknown && is_small && self.policy.small_start == SmallStart::Run {
            Some(LongRun { least: 1 << SMALL_ORDER, order: SMALL_ORDER })
        } else {
            None
        }
    }

    /// One round over the goal's group and, with `overflow=lane`, the next groups of its lane.
    /// Passes over groups without a free chunk of at least `order`.
    fn visit_lane(
        &self,
        context: &mut Context<'_, B>,
        criterion: Criterion,
        goal: GroupNr,
        order: u32,
    ) -> Result<()> {
        let cpus = u32_from_usize(self.locality.len());
        let most = match self.policy.overflow {
            Overflow::Index => 1,
            Overflow::Lane => LANE_GROUPS,
        };
        let mut nr = goal;
        for _ in 0..most {
            self.visit_loading(context, nr, criterion, order)?;
            nr = next_of_lane(&self.table.geometry, nr, cpus);
            if context.search.is_over() || nr == goal || nr.raw() >= context.asked.groups {
                break;
            }
        }
        Ok(())
    }

    /// Loads a group if it was never loaded, and visits it. Passes over a group without free
    /// clusters, without a free chunk of at least `order`, or that cannot be loaded.
    fn visit_loading(
        &self,
        context: &mut Context<'_, B>,
        nr: GroupNr,
        criterion: Criterion,
        order: u32,
    ) -> Result<()> {
        let group = self.table.group(nr);
        if group.free() == 0 {
            return Ok(());
        }
        if !group.summary().initialised()
            && let Err(error) = self.table.load(nr, context.cpu(), &*self.source)
        {
            context.outcome.note_failure(error);
            return Ok(());
        }
        if group.summary().largest_order() < order.cast_signed() {
            return Ok(());
        }
        self.visit(context, nr, criterion)
    }
}
