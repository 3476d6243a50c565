//! The walk over the ordered group indexes (`visit=scan`): each entry is visited as it is met.
//!
//! A pass is a short linear prefix, then the sets of sufficient order. `sweep=per-range` goes through all orders from
//! the start to the last group before it goes through all orders below the start; `sweep=per-set` wraps inside each
//! set. Both are functions of the start and the content of the sets only.

use core::ops::Range;

use blockyard_sync::Backend;

use super::candidates::Status;
use super::criteria::Criterion;
use crate::allocator::Allocator;
use crate::context::Context;
use crate::error::Result;
use crate::index::by_group::OrderedSets;
use crate::index::{Sets, fragment_order};
use crate::policy::slots::Sweep;
use crate::request::RequestFlags;
use crate::tunables::Tunable;

/// One set to go through, for a request of `len` clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    order: u32,
    len: u32,
}

/// The lengths that the best-available criterion tries: powers of two from `top` down to `low`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trim {
    pub(crate) top: u32,
    pub(crate) low: u32,
}

impl Trim {
    /// No length at all.
    pub(crate) const EMPTY: Self = Self { top: 0, low: 1 };

    /// Bounds for a goal of `len` clusters of which `asked` are needed, with a stripe of `stripe` clusters (or 0).
    pub(crate) fn new(len: u32, asked: u32, stripe: u32, max_trim: u32) -> Self {
        let fl = |n: u32| u32::BITS - n.leading_zeros();
        let top = fl(len).saturating_sub(1);
        let mut low = top.saturating_sub(max_trim);
        if stripe > 0 && (1u32 << low) < stripe {
            low = fl(stripe) - 1;
        }
        if 1u32.checked_shl(low).is_some_and(|least| least < asked) {
            low = fl(asked);
        }
        Self { top, low }
    }

    /// The length at an order, rounded up to whole stripes.
    pub(crate) fn len_at(order: u32, stripe: u32) -> u32 {
        let len = 1u32 << order;
        if stripe > 0 { len.next_multiple_of(stripe) } else { len }
    }
}

impl<B: Backend> Allocator<B> {
    /// One pass of a cheap criterion; the criterion to go on with when nothing was found.
    ///
    /// # Errors
    /// As [`Self::visit`].
    pub(crate) fn walk_indexed(
        &self,
        context: &mut Context<'_, B>,
        criterion: Criterion,
        start: u32,
    ) -> Result<Option<Criterion>> {
        let prefix = self.tunables.value(Tunable::MaxLinearGroups).min(context.groups);
        let start = self.walk_linear(context, criterion, start, prefix)?;
        if context.selection.status != Status::Continue {
            return Ok(Some(criterion));
        }
        let ranges = [start..context.groups, 0..start];
        match self.policy.sweep {
            Sweep::PerRange => {
                for range in ranges {
                    self.sweep(context, criterion, &[range])?;
                    if context.selection.status != Status::Continue {
                        return Ok(Some(criterion));
                    }
                }
            }
            Sweep::PerSet => self.sweep(context, criterion, &ranges)?,
        }
        if context.selection.status != Status::Continue {
            return Ok(Some(criterion));
        }
        if criterion == Criterion::BestAvail {
            context.goal.len = context.want;
        }
        Ok(after_failed(criterion, context.flags))
    }

    /// Goes through the sets of a criterion in order, each over the given ranges.
    fn sweep(&self, context: &mut Context<'_, B>, criterion: Criterion, ranges: &[Range<u32>]) -> Result<()> {
        let orders = self.table.indexes.orders();
        let sets = match criterion {
            Criterion::PowerOfTwo => &self.table.indexes.largest,
            _ => &self.table.indexes.average,
        };
        let Sets::ByGroup(sets) = sets else { return Ok(()) };
        if criterion == Criterion::BestAvail {
            let trim = context.trim;
            for order in (trim.low..=trim.top).rev() {
                let len = Trim::len_at(order, self.stripe);
                let order = fragment_order(len, orders);
                if sets.next_order(order) != Some(order) {
                    continue;
                }
                self.walk_set(context, criterion, sets, Step { order, len }, ranges)?;
                if context.selection.status != Status::Continue {
                    return Ok(());
                }
            }
            return Ok(());
        }
        let len = context.goal.len;
        let mut from =
            if criterion == Criterion::PowerOfTwo { context.order2 } else { fragment_order(len, orders) };
        // Asked again after each set: a visit may load a group, which enters a set then.
        while let Some(order) = sets.next_order(from) {
            self.walk_set(context, criterion, sets, Step { order, len }, ranges)?;
            if context.selection.status != Status::Continue {
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
        context.goal.len = step.len;
        for range in ranges {
            let mut from = range.start;
            while let Some(nr) = sets.next(step.order, from, range.end) {
                context.stats.groups_considered[criterion.index()] += 1;
                context.stats.index_entries[0] += 1;
                self.visit(context, nr, criterion)?;
                if context.selection.status != Status::Continue {
                    return Ok(());
                }
                from = nr.raw() + 1;
            }
        }
        Ok(())
    }
}

/// The criterion after one whose sets had nothing: metadata has no use for a shorter extent.
pub(crate) fn after_failed(criterion: Criterion, flags: RequestFlags) -> Option<Criterion> {
    match criterion {
        Criterion::GoalFast if !flags.contains(RequestFlags::DATA) => Some(Criterion::GoalSlow),
        other => other.next(),
    }
}

#[cfg(test)]
mod tests {
    use super::Trim;

    #[test]
    fn trimming_stops_at_what_is_asked() {
        assert_eq!(Trim::new(512, 100, 0, 3), Trim { top: 9, low: 7 }, "c4");
        assert_eq!(Trim::new(512, 385, 0, 3), Trim { top: 9, low: 9 }, "c5");
        assert_eq!(Trim::new(2000, 16, 0, 3), Trim { top: 10, low: 7 }, "E7");
        assert_eq!(Trim::new(8, 1, 48, 3), Trim { top: 3, low: 5 }, "below a stripe: empty");
    }
}
