//! The walk over the ordered group indexes (`visit=scan`): each group is visited when the walk
//! reaches it.
//!
//! A pass is a short linear prefix, then the sets of sufficient order. With `sweep=per-range`, the
//! pass first goes through all these sets for the groups from the start to the last, then through
//! all of them for the groups before the start. With `sweep=per-set`, it wraps inside each set.
//! Either way, the sequence of groups depends only on the start and the content of the sets.

use core::ops::Range;

use blockyard_sync::Backend;

use super::context::Context;
use super::ladder::{Trim, after_failed};
use crate::allocator::Allocator;
use crate::criterion::Criterion;
use crate::error::Result;
use crate::index::by_group::OrderedSets;
use crate::index::{Sets, fragment_order};
use crate::policy::slots::Sweep;
use crate::tunables::Tunable;

/// One set to go through, for a request of `len` clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    order: u32,
    len: u32,
}

impl<B: Backend> Allocator<B> {
    /// One pass of a cheap criterion. Returns the criterion under which the search continues if it
    /// is not over.
    ///
    /// # Errors
    /// As [`Self::visit`].
    pub(crate) fn walk_indexed(
        &self,
        context: &mut Context<'_, B>,
        criterion: Criterion,
        start: u32,
    ) -> Result<Option<Criterion>> {
        let trim = if criterion == Criterion::BestAvail { self.trim(context) } else { Trim::EMPTY };
        let prefix = self.tunables.value(Tunable::MaxLinearGroups).min(context.asked.groups);
        let start = self.walk_linear(context, criterion, start, prefix)?;
        if context.search.is_over() {
            return Ok(Some(criterion));
        }
        let ranges = [start..context.asked.groups, 0..start];
        match self.policy.sweep {
            Sweep::PerRange => {
                for range in ranges {
                    self.sweep(context, criterion, trim, &[range])?;
                    if context.search.is_over() {
                        return Ok(Some(criterion));
                    }
                }
            }
            Sweep::PerSet => self.sweep(context, criterion, trim, &ranges)?,
        }
        if context.search.is_over() {
            return Ok(Some(criterion));
        }
        if criterion == Criterion::BestAvail {
            context.search.goal.len = context.search.want;
        }
        Ok(after_failed(self.policy.ladder, criterion, context.asked.kind))
    }

    /// Goes through the sets of a criterion in order, each over the given ranges.
    fn sweep(
        &self,
        context: &mut Context<'_, B>,
        criterion: Criterion,
        trim: Trim,
        ranges: &[Range<u32>],
    ) -> Result<()> {
        let orders = self.table.indexes.orders();
        let sets = match criterion {
            Criterion::PowerOfTwo => &self.table.indexes.largest,
            _ => &self.table.indexes.average,
        };
        let Sets::ByGroup(sets) = sets else { return Ok(()) };
        if criterion == Criterion::BestAvail {
            for order in (trim.low..=trim.top).rev() {
                let len = Trim::len_at(order, self.stripe);
                let order = fragment_order(len, orders);
                if sets.next_order(order) != Some(order) {
                    continue;
                }
                self.walk_set(context, criterion, sets, Step { order, len }, ranges)?;
                if context.search.is_over() {
                    return Ok(());
                }
            }
            return Ok(());
        }
        let len = context.search.goal.len;
        let mut from = if criterion == Criterion::PowerOfTwo {
            context.search.order2
        } else {
            fragment_order(len, orders)
        };
        // The next order is asked for after each set, because a visit may load a group, which then
        // enters a set.
        while let Some(order) = sets.next_order(from) {
            self.walk_set(context, criterion, sets, Step { order, len }, ranges)?;
            if context.search.is_over() {
                return Ok(());
            }
            from = order + 1;
        }
        Ok(())
    }

    /// Visits the groups of one set, ascending, over the given ranges.
    fn walk_set(
        &self,
        context: &mut Context<'_, B>,
        criterion: Criterion,
        sets: &OrderedSets<B>,
        step: Step,
        ranges: &[Range<u32>],
    ) -> Result<()> {
        context.search.goal.len = step.len;
        for range in ranges {
            let mut from = range.start;
            while let Some(nr) = sets.next(step.order, from, range.end) {
                context.outcome.stats.groups_considered[criterion.index()] += 1;
                context.outcome.stats.index_entries[0] += 1;
                self.visit(context, nr, criterion)?;
                if context.search.is_over() {
                    return Ok(());
                }
                from = nr.raw() + 1;
            }
        }
        Ok(())
    }
}
