//! Linux's walk before patch 16 of the scalability series (`visit=choose`): visit a group, then
//! pick the next one. Each pick goes through the sets of the index anew.
//!
//! The goal's group is always visited first; a linear prefix follows. A pass ends when the search
//! is over, when a pick finds nothing, or when the pass has made as many visits as there are
//! groups. A pick looks at summaries only; the visit checks again under the lock.

use blockyard_disk::GroupNr;
use blockyard_sync::Backend;

use super::context::Context;
use super::criteria::suits;
use super::ladder::{Trim, after, after_failed};
use crate::allocator::Allocator;
use crate::criterion::Criterion;
use crate::error::Result;
use crate::index::{Sets, fragment_order};
use crate::policy::slots::Busy;
use crate::tunables::Tunable;

impl<B: Backend> Allocator<B> {
    /// One pass of a cheap criterion. Returns the criterion under which the search continues if it
    /// is not over.
    ///
    /// # Errors
    /// As [`Self::visit`].
    pub(crate) fn walk_choosing(
        &self,
        context: &mut Context<'_, B>,
        criterion: Criterion,
        start: u32,
    ) -> Result<Option<Criterion>> {
        let mut prefix = self.tunables.value(Tunable::MaxLinearGroups);
        let mut at = GroupNr::new(start);
        for visit in 1..=context.asked.groups {
            self.visit(context, at, criterion)?;
            if context.search.is_over() {
                return Ok(Some(criterion));
            }
            let mut picked = true;
            if prefix > 0 {
                prefix -= 1;
                at = GroupNr::new(if at.raw() + 1 >= context.asked.groups { 0 } else { at.raw() + 1 });
            } else {
                match self.pick(context, criterion, at) {
                    Some(group) => at = group,
                    None => picked = false,
                }
            }
            if !picked && visit < context.asked.groups {
                return Ok(after_failed(self.policy.ladder, criterion, context.asked.kind));
            }
        }
        context.outcome.stats.useless_loops[criterion.index()] += 1;
        if criterion == Criterion::BestAvail {
            context.search.goal.len = context.search.want;
        }
        Ok(after(self.policy.ladder, criterion))
    }

    /// The first suitable group of the index. Under the best-available criterion, the goal stays
    /// trimmed to the length for which the group was picked. If no group suits, the goal gets its
    /// wanted length back.
    fn pick(&self, context: &mut Context<'_, B>, criterion: Criterion, current: GroupNr) -> Option<GroupNr> {
        if context.search.picked[criterion.index()] {
            context.outcome.stats.bad_suggestions[criterion.index()] += 1;
        }
        let orders = self.table.indexes.orders();
        let picked = match criterion {
            Criterion::PowerOfTwo => (context.search.order2..orders).find_map(|order| {
                self.pick_from(context, criterion, &self.table.indexes.largest, order, current)
            }),
            Criterion::BestAvail => self.pick_trimmed(context, current),
            _ => (fragment_order(context.search.goal.len, orders)..orders).find_map(|order| {
                self.pick_from(context, criterion, &self.table.indexes.average, order, current)
            }),
        };
        debug_assert!(
            picked.is_none_or(|group| group.raw() < context.asked.groups),
            "{picked:?} may not be used"
        );
        context.search.picked[criterion.index()] |= picked.is_some();
        picked
    }

    /// As [`Self::pick`], with the goal shortened step by step. The bounds follow from the goal's
    /// present length, so a second pick may go lower.
    fn pick_trimmed(&self, context: &mut Context<'_, B>, current: GroupNr) -> Option<GroupNr> {
        let trim = self.trim(context);
        for order in (trim.low..=trim.top).rev() {
            context.search.goal.len = Trim::len_at(order, self.stripe);
            let set = fragment_order(context.search.goal.len, self.table.indexes.orders());
            let sets = &self.table.indexes.average;
            let picked = self.pick_from(context, Criterion::BestAvail, sets, set, current);
            if picked.is_some() {
                return picked;
            }
        }
        context.search.goal.len = context.search.want;
        None
    }

    /// The first suitable group of one set. A list is looked at from head to tail, an ordered set
    /// from the current group with wrap-around.
    fn pick_from(
        &self,
        context: &mut Context<'_, B>,
        criterion: Criterion,
        sets: &Sets<B>,
        order: u32,
        current: GroupNr,
    ) -> Option<GroupNr> {
        let need = self.need(context);
        let skips = self.policy.busy == Busy::Skip;
        let mut tested = 0;
        let mut suitable = |nr: GroupNr| {
            tested += 1;
            let usable = nr.raw() < context.asked.groups && !(skips && self.table.is_busy(nr));
            usable && suits(criterion, nr.raw(), self.table.group(nr).summary(), need)
        };
        let picked = match sets {
            Sets::Fifo(lists) => lists.pick(order, context.cpu(), suitable),
            Sets::ByGroup(sets) => {
                [current.raw()..context.asked.groups, 0..current.raw()].into_iter().find_map(|range| {
                    let mut from = range.start;
                    while let Some(nr) = sets.next(order, from, range.end) {
                        if suitable(nr) {
                            return Some(nr);
                        }
                        from = nr.raw() + 1;
                    }
                    None
                })
            }
        };
        context.outcome.stats.groups_considered[criterion.index()] += tested;
        context.outcome.stats.index_entries[0] += tested;
        picked
    }
}
