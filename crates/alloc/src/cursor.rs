//! The cursor search (`search=cursor`): round robin by group, as published (presets `rotalloc-v1`,
//! `rralloc-v2`) and in variants of our own (`rralloc`).
//!
//! A cursor is the group where a search begins. The policy says whether each CPU has a cursor or
//! the file system has a single one. Some policies also keep a cursor for each inode: the group
//! where the inode last found space. An inode's own cursor is used instead of the others.
//!
//! The slot `accept` decides what a search takes:
//!
//! - any run,
//! - first only runs of a minimum length, for a bounded number of groups; then any run, or
//! - what the ladder finds.
//!
//! The lap that takes any run waits for busy groups. So a cursor search finds space whenever the
//! ladder would.

use blockyard_disk::GroupNr;
use blockyard_disk::num::u64_from_u32;
use blockyard_sync::Backend;

use crate::allocator::Allocator;
use crate::criterion::Criterion;
use crate::error::Result;
use crate::index::Sets;
use crate::policy::slots::{Accept, Advance, Exempt};
use crate::request::RequestFlags;
use crate::search::context::Context;

impl<B: Backend> Allocator<B> {
    /// Looks for space from a cursor, or by the ladder if the policy exempts the kind of request.
    /// The extent found is claimed in core and left in `context.outcome.find`.
    ///
    /// # Errors
    /// When nothing was found and a group could not be loaded.
    pub(crate) fn search_cursor(&self, context: &mut Context<'_, B>) -> Result<()> {
        if self.is_exempt(context.asked.kind) {
            return self.search(context);
        }
        let policy = self.policy.cursor;
        context.search.start();
        if policy.neighbour_first {
            self.try_exact_goal(context)?;
        }
        let unset = |group: &GroupNr| policy.zero_is_unset && group.raw() == 0;
        let own = context.asked.inode.cursor().filter(|group| policy.sticky_inode && !unset(group));
        if context.outcome.find.is_none() {
            if let Some(group) = own.or_else(|| self.cursors.read(context.cpu())) {
                context.search.goal.group = group;
            }
            if !policy.neighbour_first {
                // As in the published policies, the exact goal is in the cursor's group, at the
                // offset that the goal had in its own group.
                self.try_exact_goal(context)?;
            }
            if context.outcome.find.is_none() && !context.asked.kind.contains(RequestFlags::GOAL_ONLY) {
                self.search_from_cursor(context)?;
            }
        }
        self.move_cursors(context, own.is_some());
        context.outcome.result()
    }

    fn is_exempt(&self, flags: RequestFlags) -> bool {
        match self.policy.exempt {
            Exempt::Nothing => false,
            Exempt::Directories => flags.contains(RequestFlags::DIRECTORY),
            Exempt::Metadata => flags.intersects(RequestFlags::DIRECTORY | RequestFlags::METADATA),
        }
    }

    fn search_from_cursor(&self, context: &mut Context<'_, B>) -> Result<()> {
        let group = context.search.goal.group;
        match self.policy.cursor.accept {
            Accept::Ladder => {
                let first = self.prepare_ladder(context);
                context.search.goal.group = group;
                self.climb(context, first)?;
                self.finish_prefetch(context);
                return Ok(());
            }
            Accept::Floor => self.lap_above_floor(context)?,
            Accept::Any => {}
        }
        if context.outcome.find.is_none() {
            self.lap_any(context)?;
        }
        Ok(())
    }

    /// Takes the first run that is at least as long as the floor, or as the goal if the goal is
    /// shorter, in one lap over the groups of [`Self::next_with_space`]. Gives up after `patience`
    /// groups without such a run.
    fn lap_above_floor(&self, context: &mut Context<'_, B>) -> Result<()> {
        let policy = self.policy.cursor;
        let start = context.search.goal.group.raw().min(context.asked.groups - 1);
        context.search.floor = Some(policy.floor.min(context.search.goal.len));
        context.search.criterion = Criterion::Any.number();
        let mut patience = policy.patience;
        'lap: for range in [start..context.asked.groups, 0..start] {
            let mut from = range.start;
            while let Some(nr) = self.next_with_space(from, range.end) {
                if patience == 0 {
                    break 'lap;
                }
                patience -= 1;
                self.visit(context, nr, Criterion::Any)?;
                if context.search.is_over() {
                    break 'lap;
                }
                from = nr.raw() + 1;
            }
        }
        context.search.floor = None;
        Ok(())
    }

    /// The next group of `[from, end)` that the average-fragment index holds: it was loaded before,
    /// and it is not full unless `full_groups=keep`. Without an index by group, or while optimised
    /// scanning is off, simply the next group.
    fn next_with_space(&self, from: u32, end: u32) -> Option<GroupNr> {
        let Sets::ByGroup(sets) = &self.table.indexes.average else { return linear_next(from, end) };
        if !self.table.indexes.optimised() {
            return linear_next(from, end);
        }
        (0..self.table.indexes.orders()).filter_map(|order| sets.next(order, from, end)).min()
    }

    /// Takes the first free run of the first group that has one. Waits for busy groups.
    pub(crate) fn lap_any(&self, context: &mut Context<'_, B>) -> Result<()> {
        context.search.take_first();
        context.search.order2 = 0;
        context.search.criterion = Criterion::Any.number();
        let start = context.search.goal.group.raw();
        let start = if start < context.asked.groups { start } else { 0 };
        context.search.prefetch.start_walk(start);
        self.walk_linear(context, Criterion::Any, start, context.asked.groups)?;
        if context.outcome.find.is_some() {
            context.outcome.stats.hits[Criterion::Any.index()] += 1;
        } else {
            context.outcome.stats.useless_loops[Criterion::Any.index()] += 1;
        }
        self.finish_prefetch(context);
        Ok(())
    }

    /// Moves the inode's cursor, if the policy keeps one, to the group where space was found. Moves
    /// the cursor of the CPU or of the file system to that group or to the group after it, or
    /// leaves this cursor where it is, as the policy says. `through_inode` says whether the inode
    /// had a cursor of its own. If nothing was found, no cursor moves.
    fn move_cursors(&self, context: &Context<'_, B>, through_inode: bool) {
        let Some(find) = &context.outcome.find else { return };
        let policy = self.policy.cursor;
        let group = find.found.group;
        if policy.sticky_inode {
            context.asked.inode.set_cursor(group);
        }
        if through_inode && !policy.inode_moves_cpu {
            return;
        }
        let group = match policy.advance {
            Advance::OnFill => group,
            Advance::PerInode if through_inode => return,
            Advance::PerInode => self.cursors.after(group),
            Advance::PerBytes => {
                let geometry = &self.table.geometry;
                let bytes =
                    u64_from_u32(find.found.len) << (geometry.block_bits() + geometry.cluster_ratio_bits());
                let most = u64_from_u32(policy.advance_bytes);
                if self.cursors.spend(context.cpu(), bytes, most) { self.cursors.after(group) } else { group }
            }
        };
        self.cursors.write(context.cpu(), group);
    }
}

fn linear_next(from: u32, end: u32) -> Option<GroupNr> {
    (from < end).then(|| GroupNr::new(from))
}
