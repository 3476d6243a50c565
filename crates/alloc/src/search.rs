//! The search: exact goal, then the ladder of criteria over groups, then the best candidate seen.
//!
//! `Allocator::search` is one search from top to bottom. Pure functions decide what to do
//! (`ladder`). A walk visits groups (`linear`, `indexed`, `choose`). A visit tests and scans one
//! group (`visit`, `scan`). Candidates compete (`candidates`), and the winner is claimed under the
//! lock of its group (`take`). A request in flight has three parts (`context`): what is asked,
//! which never changes; where its search stands (`state`); and the result (`outcome`).

pub(crate) mod by_code;
pub(crate) mod candidates;
pub(crate) mod choose;
pub(crate) mod context;
pub(crate) mod criteria;
pub(crate) mod indexed;
pub(crate) mod ladder;
pub(crate) mod linear;
pub(crate) mod near;
pub(crate) mod outcome;
pub(crate) mod prefetch;
pub(crate) mod scan;
pub(crate) mod state;
pub(crate) mod take;
pub(crate) mod visit;

use blockyard_disk::GroupNr;
use blockyard_sync::Backend;

use crate::allocator::Allocator;
use crate::criterion::Criterion;
use crate::error::Result;
use crate::extent::{Extent, NO_OFFSET};
use crate::policy::slots::{Overflow, StreamFiles, StreamGoal, Visit};
use crate::request::RequestFlags;
use crate::tunables::Tunable;
use candidates::Status;
use context::Context;
use ladder::{Trim, Walk};

/// The criterion number of a search that has gone through all criteria.
const EXHAUSTED: u32 = 5;

impl<B: Backend> Allocator<B> {
    /// Searches for free clusters, from the goal on. The extent found is claimed in core and left
    /// in `context.outcome.find`.
    ///
    /// # Errors
    /// When nothing was found and a group could not be loaded.
    pub(crate) fn search(&self, context: &mut Context<'_, B>) -> Result<()> {
        context.search.start();
        self.try_exact_goal(context)?;
        if context.outcome.find.is_none() && !context.asked.kind.contains(RequestFlags::GOAL_ONLY) {
            let first = self.prepare_ladder(context);
            self.climb(context, first)?;
            self.finish_prefetch(context);
        }
        context.outcome.result()
    }

    /// Takes the exact goal if the flags ask for that, the whole length is free at the goal, and
    /// the goal obeys the stripe rule ([`Self::goal_fits_stripe`]). Takes nothing in a corrupt
    /// group. If the group cannot be loaded, the error is noted in `context.outcome`.
    pub(crate) fn try_exact_goal(&self, context: &mut Context<'_, B>) -> Result<()> {
        let wanted = context.flags().intersects(RequestFlags::TRY_GOAL | RequestFlags::GOAL_ONLY);
        let goal = context.search.goal;
        if !wanted || goal.start == NO_OFFSET || self.table.group(goal.group).free() == 0 {
            return Ok(());
        }
        let mut guard = match self.table.lock_loaded(goal.group, context.cpu(), &*self.source) {
            Ok(guard) => guard,
            Err(error) => {
                context.outcome.note_failure(error);
                return Ok(());
            }
        };
        let run = guard.buddy().map_or(0, |buddy| buddy.run(goal.start, goal.len));
        if guard.summary().corrupt() || run < goal.len || !self.goal_fits_stripe(goal) {
            return Ok(());
        }
        context.search.selection.take(Extent { len: goal.len, ..goal });
        self.take_found(context, &mut guard);
        Ok(())
    }

    /// Whether the goal obeys the rule that a request of exactly one stripe starts where a stripe
    /// starts.
    fn goal_fits_stripe(&self, goal: Extent) -> bool {
        if self.stripe == 0 || goal.len != self.stripe {
            return true;
        }
        let geometry = &self.table.geometry;
        let block = geometry.block_at(goal.group, blockyard_disk::ClusterOffset::new(goal.start));
        let stripe = self.stripe * geometry.cluster_ratio();
        block.raw().is_multiple_of(u64::from(stripe))
    }

    /// Prepares the climb: sets the order for the power-of-two criterion, and moves the goal if one
    /// of these cases applies. Returns the first criterion.
    ///
    /// - Under `overflow=lane`, the goal of data with a block to its left becomes the group of that
    ///   block.
    /// - Otherwise, if the slot `stream_files` names this kind of request, the goal becomes the
    ///   stream goal.
    pub(crate) fn prepare_ladder(&self, context: &mut Context<'_, B>) -> Criterion {
        let order2_req = self.tunables.value(Tunable::Order2Req);
        let orders = self.table.indexes.orders();
        let plan = ladder::plan(self.policy.ladder, context.search.goal.len, order2_req, orders);
        context.search.order2 = plan.order2;
        let begins_at_stream_goal = match self.policy.stream_files {
            StreamFiles::Large => RequestFlags::STREAM,
            StreamFiles::Small => RequestFlags::DATA.union(RequestFlags::GROUP_ALLOC),
        };
        // The file continues in the group of this block, not in the goal's: the goal may already
        // lie in the next group, where another writer may be.
        let left = context.asked.request.left.filter(|_| context.asked.is_data());
        let stays = left.filter(|_| self.policy.overflow == Overflow::Lane);
        if let Some(left) = stays {
            context.search.goal.group = self.table.geometry.locate(left.physical).0;
            context.search.goal.start = NO_OFFSET;
            context.search.flags.remove(RequestFlags::TRY_GOAL);
        }
        if context.asked.kind.contains(begins_at_stream_goal) && stays.is_none() {
            let asked = context.asked;
            if let Some(place) = self.streams.read(asked.request.inode, asked.inode, asked.cpu()) {
                context.search.goal.group = place.group;
                context.search.goal.start = place.start;
                if self.policy.stream_goal == StreamGoal::GroupOnly {
                    context.search.goal.start = NO_OFFSET;
                    context.search.flags.remove(RequestFlags::TRY_GOAL);
                }
            }
        }
        plan.first
    }

    /// Climbs the ladder from `first` until the search is over. If nothing is claimed by then,
    /// takes the best candidate seen. If another thread took that candidate first, searches again
    /// for any free extent.
    pub(crate) fn climb(&self, context: &mut Context<'_, B>, first: Criterion) -> Result<()> {
        self.climb_with(context, first, |context, criterion| self.walk(context, criterion))
    }

    /// As [`Self::climb`], but `walk` makes the pass under each criterion.
    pub(crate) fn climb_with<'a>(
        &self,
        context: &mut Context<'a, B>,
        first: Criterion,
        walk: impl Fn(&mut Context<'a, B>, Criterion) -> Result<Option<Criterion>>,
    ) -> Result<()> {
        let mut next = Some(first);
        loop {
            let mut last = first;
            while let Some(criterion) = next.filter(|_| context.search.selection.status == Status::Continue) {
                context.search.criterion = criterion.number();
                last = criterion;
                next = walk(context, criterion)?;
            }
            if context.outcome.find.is_some() {
                context.outcome.stats.hits[last.index()] += 1;
                context.outcome.stats.power2_hits[0] += u32::from(last == Criterion::PowerOfTwo);
                return Ok(());
            }
            let exhausted = context.search.selection.status == Status::Continue;
            if exhausted && self.policy.visit == Visit::Scan {
                context.search.criterion = EXHAUSTED;
            }
            if context.search.selection.best.len == 0 || context.search.selection.first {
                return Ok(());
            }
            self.take_best(context)?;
            if context.outcome.find.is_some() {
                self.count_best(context, last);
                return Ok(());
            }
            self.stats.add_lost(context.cpu());
            context.search.selection.best.len = 0;
            context.search.take_first();
            context.search.selection.status = Status::Continue;
            next = Some(Criterion::Any);
        }
    }

    /// Counts that the best candidate was taken: as a hit of the last criterion. But with
    /// `visit=scan`, a candidate that is taken after all criteria counts as a useless loop of the
    /// first criterion, as in the kernel.
    fn count_best(&self, context: &mut Context<'_, B>, last: Criterion) {
        if context.search.criterion == EXHAUSTED {
            context.outcome.stats.useless_loops[Criterion::PowerOfTwo.index()] += 1;
        } else {
            context.outcome.stats.hits[last.index()] += 1;
        }
    }

    /// One pass over the groups under a criterion. Returns the criterion under which the search
    /// continues if it is not over; `None` after the last criterion.
    fn walk(&self, context: &mut Context<'_, B>, criterion: Criterion) -> Result<Option<Criterion>> {
        let (goal, groups) = (context.search.goal.group.raw(), context.asked.groups);
        let start = if goal < groups { goal } else { 0 };
        context.search.prefetch.start_walk(start);
        let walk = if criterion.is_cheap() && self.table.indexes.optimised() {
            ladder::walk(&self.policy, context.asked.request.mapping)
        } else {
            Walk::Linear
        };
        if walk == Walk::Linear {
            self.walk_linear(context, criterion, start, groups)?;
            if !context.search.is_over() {
                context.outcome.stats.useless_loops[criterion.index()] += 1;
            }
            return Ok(ladder::after(self.policy.ladder, criterion));
        }
        let kind = context.asked.kind;
        if ladder::visits_goal_first(&self.policy, kind, criterion, context.search.order2) {
            self.visit_near(context, criterion, GroupNr::new(start))?;
            if context.search.is_over() {
                return Ok(Some(criterion));
            }
        }
        if walk == Walk::Choose {
            return self.walk_choosing(context, criterion, start);
        }
        let next = self.walk_indexed(context, criterion, start)?;
        if !context.search.is_over() {
            context.outcome.stats.useless_loops[criterion.index()] += 1;
        }
        Ok(next)
    }

    /// Bounds of the best-available criterion for the present goal length.
    pub(crate) fn trim(&self, context: &Context<'_, B>) -> Trim {
        let max_trim = self.tunables.value(Tunable::BestAvailMaxTrimOrder);
        Trim::new(context.search.goal.len, context.asked.extent.len, self.stripe, max_trim)
    }
}
