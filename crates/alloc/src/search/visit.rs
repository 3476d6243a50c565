//! Visiting one group: cheap tests first, then its lock, then the scan.

use blockyard_disk::GroupNr;
use blockyard_sync::Backend;

use super::candidates::Status;
use super::context::Context;
use super::criteria::{Need, suits};
use super::scan;
use crate::allocator::Allocator;
use crate::criterion::Criterion;
use crate::error::{AllocError, Result};
use crate::group::GroupGuard;
use crate::policy::slots::{Busy, Choose, FreshGroups, ShortRuns, StripeRule, Unloaded};
use crate::request::RequestFlags;

/// Result of a pre-check.
enum PreCheck {
    Suits,
    Passed,
    /// The group could not be loaded. The caller keeps the error; it is reported only if nothing is
    /// found.
    Failed(AllocError),
}

impl<B: Backend> Allocator<B> {
    /// Visits a group. Afterwards `context.search.selection.status` says whether the search is
    /// over. If it is [`Status::Found`], the candidate was claimed under the group's lock.
    ///
    /// # Errors
    /// When the bitmap of a suitable group cannot be loaded again.
    pub(crate) fn visit(
        &self,
        context: &mut Context<'_, B>,
        nr: GroupNr,
        criterion: Criterion,
    ) -> Result<()> {
        debug_assert!(
            nr.raw() < context.asked.groups,
            "group {nr} of {} that may be used",
            context.asked.groups
        );
        self.prefetch_at(context, nr, criterion);
        let picky = criterion < Criterion::Any || context.search.floor.is_some();
        let skips = self.policy.busy == Busy::Skip && picky;
        if skips && self.table.is_busy(nr) {
            context.outcome.stats.busy_skips[0] += 1;
            return Ok(());
        }
        match self.pre_check(context, nr, criterion) {
            PreCheck::Suits => {}
            PreCheck::Passed => return Ok(()),
            PreCheck::Failed(error) => {
                context.outcome.note_failure(error);
                return Ok(());
            }
        }
        let Some(mut guard) = self.lock_to_scan(context, nr, skips)? else { return Ok(()) };
        let need = self.need(context);
        if !suits(criterion, nr.raw(), guard.summary(), need) {
            return Ok(());
        }
        context.search.scanned += 1;
        self.scan_locked(context, &guard, criterion);
        if context.search.selection.status == Status::Found {
            self.take_found(context, &mut guard);
        }
        Ok(())
    }

    /// The loaded group under its lock. `None` if busy groups are passed over, and this group is
    /// busy or was evicted meanwhile.
    fn lock_to_scan(
        &self,
        context: &mut Context<'_, B>,
        nr: GroupNr,
        skips: bool,
    ) -> Result<Option<GroupGuard<'_, B>>> {
        let cpu = context.cpu();
        if !self.table.group(nr).is_loaded() {
            self.table.load(nr, cpu, &*self.source)?;
        }
        if !skips {
            return self.table.lock_loaded(nr, cpu, &*self.source).map(Some);
        }
        let guard = self.table.try_lock(nr, cpu).filter(|guard| guard.buddy().is_some());
        if guard.is_none() {
            context.outcome.stats.busy_skips[0] += 1;
        }
        Ok(guard)
    }

    pub(crate) fn need(&self, context: &Context<'_, B>) -> Need {
        let search = &context.search;
        let flex = self.table.geometry.flex_size();
        Need::new(&self.policy, search.goal.len, search.order2, context.asked.kind, flex)
    }

    fn pre_check(&self, context: &mut Context<'_, B>, nr: GroupNr, criterion: Criterion) -> PreCheck {
        context.outcome.stats.groups_considered[criterion.index()] += 1;
        let group = self.table.group(nr);
        let strict = context.search.flags.contains(RequestFlags::STRICT_CHECK);
        let summary = if strict { self.table.lock(nr, context.cpu()).summary() } else { group.summary() };
        let too_small = criterion < Criterion::Any && summary.free < context.search.goal.len;
        if summary.free == 0 || too_small || summary.corrupt() {
            return PreCheck::Passed;
        }
        let mut summary = summary;
        if !summary.initialised() {
            let flex = self.table.geometry.flex_size();
            let first_of_flex = flex > 1 && nr.raw().is_multiple_of(flex);
            let passes = criterion.is_cheap() && self.policy.unloaded == Unloaded::Pass;
            if passes && !first_of_flex && !summary.block_uninit() {
                return PreCheck::Passed;
            }
            if let Err(error) = self.table.load(nr, context.cpu(), &*self.source) {
                return PreCheck::Failed(error);
            }
            summary = group.summary();
        }
        if suits(criterion, nr.raw(), summary, self.need(context)) {
            PreCheck::Suits
        } else {
            PreCheck::Passed
        }
    }

    /// Scans the group by the criterion and the `choose` slot.
    fn scan_locked(&self, context: &mut Context<'_, B>, guard: &GroupGuard<'_, B>, criterion: Criterion) {
        let Some(buddy) = guard.buddy() else { return };
        let want = context.search.goal.len;
        let nr = guard.nr;
        // With `fresh_groups=pass` the power-of-two criterion passes over a group whose bitmap was
        // never written. A later criterion that visits the group still scans it as the power-of-two
        // criterion would.
        let passed_fresh = context.search.order2 > 0
            && self.policy.fresh_groups == FreshGroups::Pass
            && guard.summary().block_uninit();
        let selection = &mut context.search.selection;
        let found_before = selection.found;
        match self.policy.choose {
            _ if context.search.floor.is_some() => {
                scan::first_above(buddy, nr, want, context.search.floor.unwrap_or(want), selection);
            }
            Choose::First => {
                let floor = if criterion == Criterion::Any { 1 } else { want };
                scan::first_above(buddy, nr, want, floor, selection);
            }
            Choose::Code => self.scan_by_code(context, guard, criterion),
            Choose::Best => scan::best_fit(buddy, nr, want, criterion == Criterion::Any, selection),
            Choose::Linux if criterion == Criterion::PowerOfTwo || passed_fresh => {
                scan::power_of_two(buddy, nr, context.search.order2, want, selection);
            }
            Choose::Linux => {
                if let Some(stripe) = self.stripe_for(nr, want, criterion) {
                    scan::stripe_aligned(buddy, nr, stripe, want, selection);
                }
                if selection.status == Status::Continue {
                    let passes_short = criterion.is_cheap() && self.policy.short_runs == ShortRuns::Pass;
                    scan::general(buddy, nr, want, passes_short, selection);
                }
            }
        }
        let selection = &context.search.selection;
        debug_assert!(
            selection.status != Status::Found || selection.best.group == nr,
            "a scan of group {nr} found {:?}",
            selection.best
        );
        context.outcome.stats.extents_scanned[criterion.index()] +=
            context.search.selection.found - found_before;
    }

    /// The stripe, if requests of this length are aligned to it under this criterion.
    fn stripe_for(&self, nr: GroupNr, want: u32, criterion: Criterion) -> Option<scan::Stripe> {
        // Without a stripe, skip the division: this runs for each scanned group.
        let aligned = self.stripe > 1
            && matches!(criterion, Criterion::GoalFast | Criterion::BestAvail)
            && match self.policy.stripe_rule {
                StripeRule::Multiple => want.is_multiple_of(self.stripe),
                StripeRule::Exact => want == self.stripe,
            };
        let geometry = &self.table.geometry;
        let ratio = geometry.cluster_ratio();
        aligned.then(|| scan::Stripe {
            group_first_block: geometry.group_first_block(nr).raw(),
            blocks: self.stripe * ratio,
            clusters: self.stripe,
            ratio,
        })
    }
}
