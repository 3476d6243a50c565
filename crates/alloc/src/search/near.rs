//! Groups near the goal, visited before an index is asked (`goal_group=first`, `goal_group=all`).
//!
//! An index knows only groups that were loaded before, often because others work in them. So the
//! goal's group is loaded for its visit. With `overflow=lane`, the next groups of its lane are
//! visited in the same way. So a writer whose group is full of clusters that wait for a commit
//! tries its own lane before it moves into another writer's group. A first round may look for a
//! long free run: for data whose final size is unknown (`room=run`), and for small files
//! (`small_start=run`), so that those written one after the other lie together.

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

/// Groups of a lane that are tried before the index. This bounds how many groups one pass loads.
const LANE_GROUPS: u32 = 8;
/// Clusters of a run that is long enough for data of unknown length: 2 MiB with 4 KiB clusters.
const ROOM: u32 = 512;
/// Clusters of a run that is long enough for small files: 8 MiB with 4 KiB clusters. Shorter ones
/// are left to files that fit them.
const SMALL_ROOM: u32 = 2048;

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
        if let Some(least) = self.long_run(context.asked) {
            context.search.floor = Some(least.max(context.search.goal.len));
            let visited = self.visit_lane(context, criterion, goal);
            context.search.floor = None;
            visited?;
        }
        if context.search.is_over() { Ok(()) } else { self.visit_lane(context, criterion, goal) }
    }

    /// The least length of the run in which a request is to begin, if that matters.
    fn long_run(&self, asked: &Asked<'_, B>) -> Option<u32> {
        let unknown = asked.request.flags.contains(RequestFlags::DATA | RequestFlags::NO_NORMALIZE);
        if unknown {
            return (self.policy.room == Room::Run).then_some(ROOM);
        }
        let is_small = asked.kind.contains(RequestFlags::GROUP_ALLOC);
        (is_small && self.policy.small_start == SmallStart::Run).then_some(SMALL_ROOM)
    }

    /// One round over the goal's group and, with `overflow=lane`, the next groups of its lane.
    fn visit_lane(&self, context: &mut Context<'_, B>, criterion: Criterion, goal: GroupNr) -> Result<()> {
        let cpus = u32_from_usize(self.locality.len());
        let most = match self.policy.overflow {
            Overflow::Index => 1,
            Overflow::Lane => LANE_GROUPS,
        };
        let mut nr = goal;
        for _ in 0..most {
            self.visit_loading(context, nr, criterion)?;
            nr = next_of_lane(&self.table.geometry, nr, cpus);
            if context.search.is_over() || nr == goal || nr.raw() >= context.asked.groups {
                break;
            }
        }
        Ok(())
    }

    /// Visits a group, after loading it if it was never loaded. Passes over a group without free
    /// clusters, or without a chunk that every long run has if one is looked for.
    fn visit_loading(&self, context: &mut Context<'_, B>, nr: GroupNr, criterion: Criterion) -> Result<()> {
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
        let orders = self.table.indexes.orders();
        let needs = context.search.floor.map(|floor| order_in(floor).min(orders - 1));
        if needs.is_some_and(|order| group.summary().largest_order() < order.cast_signed()) {
            return Ok(());
        }
        self.visit(context, nr, criterion)
    }
}

/// An order such that every run of `clusters` clusters holds an aligned chunk of it, wherever the
/// run begins, if there are chunks of this order at all.
fn order_in(clusters: u32) -> u32 {
    (clusters + 1).ilog2() - 1
}

#[cfg(test)]
mod tests {
    use super::order_in;

    #[test]
    fn a_long_run_holds_a_chunk_of_its_order_wherever_it_begins() {
        assert_eq!([1, 2, 3, 6, 7, 512, 2047, 2048].map(order_in), [0, 0, 1, 1, 2, 8, 10, 10]);
        for length in 1..200 {
            let chunk = 1 << order_in(length);
            for start in 0u32..200 {
                assert!(start.next_multiple_of(chunk) + chunk <= start + length, "{start}, {length}");
            }
        }
    }
}
