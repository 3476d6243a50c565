//! Searches in which another crate decides (`search=code`, `choose=code`): the code answers; the
//! mechanism checks, locks and claims.
//!
//! With a choice of groups, the code walks over the groups once under each criterion of the ladder,
//! except best-available. With an engine, the ladder is not used. If the code takes nothing, the
//! mechanism looks for any free run in all groups, unless the request takes only its goal.

use blockyard_disk::{ClusterOffset, GroupNr};
use blockyard_sync::Backend;

use crate::allocator::Allocator;
use crate::criterion::Criterion;
use crate::error::{AllocError, Result};
use crate::extent::{Extent, NO_OFFSET};
use crate::group::GroupGuard;
use crate::policy::code::{
    Finder, FreeRuns, GroupChoice, GroupView, Groups, Pick, Run, SearchEngine, Wish, is_free,
};
use crate::policy::slots::Ladder;
use crate::request::RequestFlags;
use crate::search::context::Context;
use crate::search::ladder;
use crate::search::scan;

/// The view of a group that does not exist or that the request may not use.
const FULL: GroupView = GroupView { free: 0, fragments: 0, largest_order: None, known: false, busy: false };

impl<B: Backend> Allocator<B> {
    /// Searches as the code says. The extent found is claimed in core and left in
    /// `context.outcome.find`.
    ///
    /// # Errors
    /// When nothing was found and a group could not be loaded.
    pub(crate) fn search_by_code(&self, context: &mut Context<'_, B>) -> Result<()> {
        context.search.start();
        match (&self.code.search, &self.code.groups) {
            (Some(engine), _) => self.search_by_engine(context, &**engine)?,
            (None, Some(groups)) => self.climb_by_code(context, &**groups)?,
            (None, None) => unreachable!("a policy with search=code and no code is refused at open"),
        }
        context.outcome.result()
    }

    fn search_by_engine(&self, context: &mut Context<'_, B>, engine: &dyn SearchEngine) -> Result<()> {
        if context.asked.kind.contains(RequestFlags::GOAL_ONLY) {
            return self.try_exact_goal(context);
        }
        let wish = wish(context, Criterion::Any);
        context.search.criterion = Criterion::Any.number();
        engine.search(&wish, &mut Taking { allocator: self, context });
        if context.outcome.find.is_some() {
            context.outcome.stats.hits[Criterion::Any.index()] += 1;
            return Ok(());
        }
        self.lap_any(context)
    }

    fn climb_by_code(&self, context: &mut Context<'_, B>, groups: &dyn GroupChoice) -> Result<()> {
        self.try_exact_goal(context)?;
        if context.outcome.find.is_none() && !context.asked.kind.contains(RequestFlags::GOAL_ONLY) {
            let first = self.prepare_ladder(context);
            self.climb_with(context, first, |context, criterion| {
                self.walk_by_code(context, groups, criterion)
            })?;
            self.finish_prefetch(context);
        }
        if let Some(find) = &context.outcome.find {
            groups.found(&wish(context, Criterion::Any), find.found.group);
        }
        Ok(())
    }

    /// One pass of a criterion over the groups that the code visits. If the code finds nothing in
    /// the last pass, that pass continues over all groups.
    fn walk_by_code(
        &self,
        context: &mut Context<'_, B>,
        groups: &dyn GroupChoice,
        criterion: Criterion,
    ) -> Result<Option<Criterion>> {
        let wish = wish(context, criterion);
        context.search.prefetch.start_walk(wish.goal.raw());
        let mut visits = Visits { allocator: self, context, criterion, error: None };
        groups.walk(&wish, &mut visits);
        if let Some(error) = visits.error {
            return Err(error);
        }
        if !context.search.is_over() && criterion == Criterion::Any {
            self.walk_linear(context, criterion, wish.goal.raw(), context.asked.groups)?;
        }
        if context.search.is_over() {
            return Ok(Some(criterion));
        }
        context.outcome.stats.useless_loops[criterion.index()] += 1;
        Ok(ladder::after(Ladder::FourSteps, criterion))
    }

    /// Lets the code choose in a locked group (`choose=code`).
    pub(crate) fn scan_by_code(
        &self,
        context: &mut Context<'_, B>,
        guard: &GroupGuard<'_, B>,
        criterion: Criterion,
    ) {
        let (Some(buddy), Some(extents)) = (guard.buddy(), &self.code.extents) else { return };
        let chosen = extents.choose(&wish(context, criterion), &FreeRuns::new(guard.nr, buddy));
        let want = context.search.goal.len;
        let selection = &mut context.search.selection;
        match chosen.filter(|&run| is_free(buddy, run)) {
            Some(run) => selection.take(extent(guard.nr, run, want)),
            None if criterion == Criterion::Any => scan::first_above(buddy, guard.nr, want, 1, selection),
            None => {}
        }
    }

    fn look(&self, group: GroupNr) -> GroupView {
        let summary = self.table.group(group).summary();
        GroupView {
            free: if summary.corrupt() { 0 } else { summary.free },
            fragments: summary.fragments,
            largest_order: u32::try_from(summary.largest_order()).ok(),
            known: summary.initialised(),
            busy: self.table.is_busy(group),
        }
    }
}

/// What is looked for, as the code sees it.
fn wish<'a, B: Backend>(context: &Context<'a, B>, criterion: Criterion) -> Wish<'a> {
    let (goal, groups) = (context.search.goal, context.asked.groups);
    let is_usable = goal.group.raw() < groups;
    Wish {
        request: context.asked.request,
        goal: if is_usable { goal.group } else { GroupNr::ZERO },
        offset: (is_usable && goal.start != NO_OFFSET).then(|| ClusterOffset::new(goal.start)),
        clusters: goal.len,
        criterion,
        groups,
    }
}

/// A chosen run as a candidate, at most as long as wanted.
fn extent(group: GroupNr, run: Run, want: u32) -> Extent {
    Extent { group, start: run.start.raw(), len: run.clusters.min(want), logical: 0 }
}

/// What a [`GroupChoice`] sees of the groups, and visits, during one walk.
struct Visits<'a, 'c, B: Backend> {
    allocator: &'a Allocator<B>,
    context: &'a mut Context<'c, B>,
    criterion: Criterion,
    error: Option<AllocError>,
}

impl<B: Backend> Groups for Visits<'_, '_, B> {
    fn look(&self, group: GroupNr) -> GroupView {
        if group.raw() < self.context.asked.groups { self.allocator.look(group) } else { FULL }
    }

    fn visit(&mut self, group: GroupNr) -> bool {
        if self.error.is_some() || self.context.search.is_over() {
            return true;
        }
        if group.raw() >= self.context.asked.groups {
            return false;
        }
        if let Err(error) = self.allocator.visit(self.context, group, self.criterion) {
            self.error = Some(error);
            return true;
        }
        self.context.search.is_over()
    }
}

/// What a [`SearchEngine`] sees of the groups, and takes from them, during one search.
struct Taking<'a, 'c, B: Backend> {
    allocator: &'a Allocator<B>,
    context: &'a mut Context<'c, B>,
}

impl<B: Backend> Finder for Taking<'_, '_, B> {
    fn look(&self, group: GroupNr) -> GroupView {
        if group.raw() < self.context.asked.groups { self.allocator.look(group) } else { FULL }
    }

    fn take(&mut self, group: GroupNr, pick: Pick<'_>) -> bool {
        let (allocator, context) = (self.allocator, &mut *self.context);
        if context.outcome.find.is_some() {
            return true;
        }
        if group.raw() >= context.asked.groups || allocator.table.group(group).free() == 0 {
            return false;
        }
        let mut guard = match allocator.table.lock_loaded(group, context.cpu(), &*allocator.source) {
            Ok(guard) => guard,
            Err(error) => {
                context.outcome.note_failure(error);
                return false;
            }
        };
        let Some(buddy) = guard.buddy().filter(|_| !guard.summary().corrupt()) else { return false };
        context.search.scanned += 1;
        let picked = pick(&FreeRuns::new(group, buddy)).filter(|&run| is_free(buddy, run));
        let Some(run) = picked else { return false };
        context.search.selection.take(extent(group, run, context.search.goal.len));
        allocator.take_found(context, &mut guard);
        true
    }
}
