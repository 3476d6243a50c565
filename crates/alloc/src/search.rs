//! The search: exact goal, then the ladder of criteria over groups, then the best of what was seen.
//!
//! One search, top-down: `Allocator::search`. A walk visits groups (`linear`, `indexed`, `choose`), a visit tests and
//! scans one (`visit`, `scan`), candidates compete (`candidates`), and what is found is claimed at once, under the
//! group's lock (`take`).

pub(crate) mod candidates;
pub(crate) mod choose;
pub(crate) mod criteria;
pub(crate) mod indexed;
pub(crate) mod linear;
pub(crate) mod prefetch;
pub(crate) mod scan;
pub(crate) mod take;
pub(crate) mod visit;

use blockyard_disk::GroupNr;
use blockyard_sync::Backend;

use crate::allocator::Allocator;
use crate::context::{Context, NO_OFFSET};
use crate::error::Result;
use crate::policy::slots::{GoalGroup, IndirectScan, Ladder, StreamGoal, Visit};
use crate::request::{Mapping, RequestFlags};
use crate::tunables::Tunable;
use candidates::Status;
use criteria::Criterion;
use indexed::Trim;
pub(crate) use take::Find;

/// The criterion number of a search that went through all of them.
const EXHAUSTED: u32 = 5;

impl<B: Backend> Allocator<B> {
    /// Looks for the goal; what it finds is claimed in core and left in `context.find`.
    ///
    /// # Errors
    /// When nothing was found and a group could not be loaded.
    pub(crate) fn search(&self, context: &mut Context<'_, B>) -> Result<()> {
        context.start_search();
        self.try_exact_goal(context)?;
        if context.find.is_none() && !context.flags.contains(RequestFlags::GOAL_ONLY) {
            let first = self.prepare_ladder(context);
            self.climb(context, first)?;
            self.finish_prefetch(context);
        }
        self.search_result(context)
    }

    /// The first error met, when nothing was found.
    pub(crate) fn search_result(&self, context: &mut Context<'_, B>) -> Result<()> {
        match (&context.find, context.first_error.take()) {
            (None, Some(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Takes the exact goal when the request asks for a try and the whole length is free there.
    pub(crate) fn try_exact_goal(&self, context: &mut Context<'_, B>) -> Result<()> {
        let wanted = context.flags.intersects(RequestFlags::TRY_GOAL | RequestFlags::GOAL_ONLY);
        let goal = context.goal;
        if !wanted || goal.start == NO_OFFSET || self.table.group(goal.group).free() == 0 {
            return Ok(());
        }
        let mut guard = match self.table.lock_loaded(goal.group, context.request.cpu, &*self.source) {
            Ok(guard) => guard,
            Err(error) => {
                context.first_error.get_or_insert(error);
                return Ok(());
            }
        };
        let run = guard.buddy().map_or(0, |buddy| buddy.run(goal.start, goal.len));
        if guard.summary().corrupt() || run < goal.len || !self.goal_fits_stripe(goal) {
            return Ok(());
        }
        context.selection.take(crate::context::Extent { len: goal.len, ..goal });
        self.take_found(context, &mut guard);
        Ok(())
    }

    /// A request of exactly one stripe must start on one.
    fn goal_fits_stripe(&self, goal: crate::context::Extent) -> bool {
        if self.stripe == 0 || goal.len != self.stripe {
            return true;
        }
        let geometry = &self.table.geometry;
        let block = geometry.block_at(goal.group, blockyard_disk::ClusterOffset::new(goal.start));
        let stripe = self.stripe * geometry.cluster_ratio();
        block.raw().is_multiple_of(u64::from(stripe))
    }

    /// Chooses the first criterion and moves a stream to its remembered goal.
    pub(crate) fn prepare_ladder(&self, context: &mut Context<'_, B>) -> Criterion {
        let len = context.goal.len;
        let bits = u32::BITS - len.leading_zeros();
        let two = len.is_power_of_two()
            && bits >= self.tunables.value(Tunable::Order2Req)
            && bits <= self.table.indexes.orders();
        context.order2 = if two { bits - 1 } else { 0 };
        debug_assert!(
            context.order2 < self.table.indexes.orders(),
            "order {} of the indexes",
            context.order2
        );
        if context.flags.contains(RequestFlags::STREAM) {
            let cpu = context.request.cpu;
            let goal = self.streams.read(context.request.inode, context.inode, cpu);
            if let Some(place) = goal {
                context.goal.group = place.group;
                context.goal.start = place.start;
                if self.policy.stream_goal == StreamGoal::GroupOnly {
                    context.goal.start = NO_OFFSET;
                    context.flags.remove(RequestFlags::TRY_GOAL);
                }
            }
        }
        match self.policy.ladder {
            Ladder::AnyOnly => Criterion::Any,
            Ladder::Slow => Criterion::GoalSlow,
            Ladder::Linux if context.order2 > 0 => Criterion::PowerOfTwo,
            Ladder::Linux => Criterion::GoalFast,
        }
    }

    /// Goes through the criteria from `first`; then takes the best of what was seen, unless somebody was faster: then
    /// any free extent will do.
    pub(crate) fn climb(&self, context: &mut Context<'_, B>, first: Criterion) -> Result<()> {
        let mut next = Some(first);
        loop {
            let mut last = first;
            while let Some(criterion) = next.filter(|_| context.selection.status == Status::Continue) {
                context.criterion = criterion.number();
                last = criterion;
                next = self.walk(context, criterion)?;
            }
            if context.find.is_some() {
                context.stats.hits[last.index()] += 1;
                context.stats.power2_hits[0] += u32::from(last == Criterion::PowerOfTwo);
                return Ok(());
            }
            let exhausted = context.selection.status == Status::Continue;
            if exhausted && self.policy.visit == Visit::Scan {
                context.criterion = EXHAUSTED;
            }
            if context.selection.best.len == 0 || context.selection.first {
                return Ok(());
            }
            self.take_best(context)?;
            if context.find.is_some() {
                self.count_best(context, last);
                return Ok(());
            }
            self.stats.add_lost(context.request.cpu);
            context.selection.best.len = 0;
            context.selection.first = true;
            context.flags |= RequestFlags::FIRST;
            context.selection.status = Status::Continue;
            next = Some(Criterion::Any);
        }
    }

    /// Counts a hit of the best of all; after all criteria the kernel's count lands in the neighbouring counter.
    fn count_best(&self, context: &mut Context<'_, B>, last: Criterion) {
        if context.criterion == EXHAUSTED {
            context.stats.useless_loops[Criterion::PowerOfTwo.index()] += 1;
        } else {
            context.stats.hits[last.index()] += 1;
        }
    }

    /// One pass over the groups under a criterion; the criterion to go on with when nothing was found.
    fn walk(&self, context: &mut Context<'_, B>, criterion: Criterion) -> Result<Option<Criterion>> {
        let start = if context.goal.group.raw() < context.groups { context.goal.group.raw() } else { 0 };
        context.prefetch.start_walk(start);
        if !self.uses_index(context, criterion) {
            self.walk_linear(context, criterion, start, context.groups)?;
            if context.selection.status == Status::Continue {
                context.stats.useless_loops[criterion.index()] += 1;
            }
            return Ok(criterion.next());
        }
        if self.policy.goal_group == GoalGroup::First {
            self.visit_goal_first(context, criterion, start)?;
            if context.selection.status != Status::Continue {
                return Ok(Some(criterion));
            }
        }
        if self.policy.visit == Visit::Choose {
            return self.walk_choosing(context, criterion, start);
        }
        if criterion == Criterion::BestAvail {
            context.trim = self.trim(context);
        }
        let next = self.walk_indexed(context, criterion, start)?;
        if context.selection.status == Status::Continue {
            context.stats.useless_loops[criterion.index()] += 1;
        }
        Ok(next)
    }

    /// Visits the goal's group for data before any index is looked at (`goal_group=first`), in the first pass only.
    fn visit_goal_first(&self, context: &mut Context<'_, B>, criterion: Criterion, start: u32) -> Result<()> {
        let is_first =
            criterion == Criterion::PowerOfTwo || (criterion == Criterion::GoalFast && context.order2 == 0);
        if !is_first || !context.is_data() {
            return Ok(());
        }
        let nr = GroupNr::new(start);
        if !self.table.group(nr).summary().initialised()
            && let Err(error) = self.table.load(nr, context.request.cpu, &*self.source)
        {
            context.first_error.get_or_insert(error);
            return Ok(());
        }
        self.visit(context, nr, criterion)
    }

    /// Whether a pass picks groups from an index.
    fn uses_index(&self, context: &Context<'_, B>, criterion: Criterion) -> bool {
        let mapping_may = context.request.mapping == Mapping::Extents
            || self.policy.indirect_scan == IndirectScan::Optimized;
        criterion.is_cheap() && self.table.indexes.optimised() && mapping_may
    }

    /// Bounds of the best-available criterion for the present goal length.
    pub(crate) fn trim(&self, context: &Context<'_, B>) -> Trim {
        let max_trim = self.tunables.value(Tunable::BestAvailMaxTrimOrder);
        Trim::new(context.goal.len, context.original.len, self.stripe, max_trim)
    }
}
