//! The search by windows (`search=windows`), as in ext3: first fit from the goal on, with a window
//! of blocks for each file that is being written.
//!
//! While a file is written, other files that are written stay out of its window. So concurrent
//! writers do not interleave. A window takes no space: a request that finds nothing with its window
//! looks at all blocks, even those in windows of other files. A window is a range of the file
//! system's clusters, counted from its first data block.
//!
//! A request takes the file's [`Reservation`] out of the inode and puts it back at the end. Only
//! requests for data and for blocks of the block map use it. If a second request for data of the
//! same inode runs meanwhile, it makes a reservation of its own. The reservation that is put back
//! last stays, and the window of the other one is given up.

mod choose;

use blockyard_disk::num::{u32_from_u64, u64_from_u32};
use blockyard_disk::{Geometry, GroupNr};
use blockyard_sync::Backend;

use self::choose::{Range, choose};
use crate::allocator::Allocator;
use crate::criterion::Criterion;
use crate::error::Result;
use crate::extent::Extent;
use crate::group::GroupGuard;
use crate::policy::slots::Search;
use crate::prealloc::inode::InodeAlloc;
use crate::prealloc::reservation::{LastBlock, Reservation, Window};
use crate::prealloc::windows::Place;
use crate::request::{Mapping, RequestFlags};
use crate::search::context::Context;

/// Windows that one request tries in a group. It tries the second if nothing was free in the first.
const TRIES: u32 = 2;

impl<B: Backend> Allocator<B> {
    /// Searches from the goal on. The extent found is claimed in core and left in
    /// `context.outcome.find`.
    ///
    /// # Errors
    /// When nothing was found and a group could not be loaded.
    pub(crate) fn search_windows(&self, context: &mut Context<'_, B>) -> Result<()> {
        context.search.start();
        context.search.criterion = Criterion::Any.number();
        let asked = context.asked;
        let mut own = asked.inode.take_reservation();
        if own.is_none() && asked.is_data() {
            own = Some(Box::new(Reservation::new()));
        }
        // Blocks of a file's block map are allocated in one sequence with its data.
        let is_of_file = asked.is_data() || asked.request.mapping == Mapping::Indirect;
        let mut known = own.as_deref_mut().filter(|_| is_of_file);
        if let Some(known) = &known {
            point_behind_last(&self.table.geometry, context, known);
        }
        let start = context.search.goal.group;
        self.search_all(context, known.as_deref_mut());
        if context.outcome.find.is_none() && known.is_some() {
            context.search.goal.group = start;
            self.search_all(context, None);
        }
        if let Some(known) = known {
            note_last(&self.table.geometry, context, known);
        }
        if let Some(own) = own
            && let Some(other) = asked.inode.put_reservation(own)
        {
            self.give_up(&other);
        }
        context.outcome.result()
    }

    /// Searches the goal's group, from the goal on, then all groups in order, from the next one
    /// round to the goal's group again. Passes over groups without free clusters. After the goal's
    /// group, a search with a window also passes over groups whose free clusters are at most half
    /// of the window's size. For a request that takes only its goal, searches only the goal's
    /// group, once.
    fn search_all(&self, context: &mut Context<'_, B>, mut known: Option<&mut Reservation>) {
        let groups = context.asked.groups;
        let (first, goal) = match context.search.goal.group {
            group if group.raw() < groups => (group, Some(context.search.goal.start)),
            _ => (GroupNr::ZERO, None),
        };
        let free = self.table.group(first).free();
        // If the goal's group has free clusters, but too few for a window, a file that has no
        // window yet searches without one.
        known = known.filter(|known| known.window.is_some() || free == 0 || free >= known.size());
        let exact = context.asked.kind.contains(RequestFlags::GOAL_ONLY);
        if free > 0 {
            self.search_group(context, first, goal, known.as_deref_mut());
        }
        for step in 1..=groups {
            if context.outcome.find.is_some() || exact {
                return;
            }
            let nr = u32_from_u64((u64_from_u32(first.raw()) + u64_from_u32(step)) % u64_from_u32(groups));
            let free = self.table.group(GroupNr::new(nr)).free();
            let least = known.as_deref().map_or(0, |known| known.size() / 2);
            if free > least {
                self.search_group(context, GroupNr::new(nr), None, known.as_deref_mut());
            }
        }
    }

    /// Searches one group and claims what it finds there.
    fn search_group(
        &self,
        context: &mut Context<'_, B>,
        nr: GroupNr,
        goal: Option<u32>,
        known: Option<&mut Reservation>,
    ) {
        let mut guard = match self.table.lock_loaded(nr, context.cpu(), &*self.source) {
            Ok(guard) => guard,
            Err(error) => return context.outcome.note_failure(error),
        };
        if guard.summary().corrupt() || guard.summary().free == 0 {
            return;
        }
        context.search.scanned += 1;
        let count = context.search.goal.len;
        let found = match known {
            Some(known) => self.choose_in_window(&guard, goal, count, known),
            None => guard.buddy().and_then(|buddy| {
                let range = Range { low: 0, high: buddy.clusters(), is_window: false };
                choose(buddy, goal.filter(|&goal| goal < range.high), range, count)
            }),
        };
        let exact = context.asked.kind.contains(RequestFlags::GOAL_ONLY);
        let Some((start, len)) = found.filter(|(start, _)| !exact || goal == Some(*start)) else { return };
        context.search.selection.take(Extent { group: nr, start, len, logical: context.search.goal.logical });
        self.take_found(context, &mut guard);
        context.outcome.stats.hits[Criterion::Any.index()] += 1;
    }

    /// Chooses free clusters in the part of the file's window that lies in the group. Moves the
    /// window if necessary.
    fn choose_in_window(
        &self,
        guard: &GroupGuard<'_, B>,
        goal: Option<u32>,
        count: u32,
        known: &mut Reservation,
    ) -> Option<(u32, u32)> {
        let buddy = guard.buddy()?;
        let first = first_cluster(&self.table.geometry, guard.nr);
        let group = Window { first, last: first + u64_from_u32(buddy.clusters()) - 1 };
        let mut goal = goal.map(|goal| first + u64_from_u32(goal)).filter(|&goal| group.contains(goal));
        for attempt in 0..TRIES {
            match known.window {
                Some(window) if attempt == 0 && is_usable(window, goal, group) => {
                    let left = goal.map_or(u64::MAX, |goal| window.last + 1 - goal);
                    if left < u64_from_u32(count) {
                        known.window = Some(self.windows.extend(window, u64_from_u32(count) - left));
                    }
                }
                _ => {
                    self.move_window(guard, goal, count, known)?;
                    goal = goal.filter(|&goal| known.window.is_some_and(|window| window.contains(goal)));
                }
            }
            let window = known.window.filter(|window| window.meets(group))?;
            let range = Range {
                low: u32_from_u64(window.first.max(first) - first),
                high: u32_from_u64(window.last.min(group.last) + 1 - first),
                is_window: true,
            };
            let at = goal.map(|goal| u32_from_u64(goal - first));
            if let Some((start, len)) = choose(buddy, at, range, count) {
                known.note_hits(len);
                return Some((start, len));
            }
        }
        None
    }

    /// Gives the file a window in a group, from the goal on. `None` if there is no room for a
    /// window, if nothing is free, or if the old window continues in the next group.
    fn move_window(
        &self,
        guard: &GroupGuard<'_, B>,
        goal: Option<u64>,
        count: u32,
        known: &mut Reservation,
    ) -> Option<()> {
        let buddy = guard.buddy()?;
        let first = first_cluster(&self.table.geometry, guard.nr);
        let last = first + u64_from_u32(buddy.clusters()) - 1;
        known.make_room_for(count);
        let start = goal.unwrap_or(first);
        if let Some(old) = known.window {
            if old.contains(last) && old.last > last && start >= old.first {
                // The old window continues in the next group, where it is looked at again.
                return None;
            }
            known.grow();
        }
        let next_free = |at: u64| {
            let bit = u32_from_u64(at.checked_sub(first)?);
            buddy.next_free(bit).map(|free| first + u64_from_u32(free))
        };
        let place = Place { start, end: last, size: u64_from_u32(known.size()) };
        match self.windows.replace(known.window, place, next_free) {
            Ok(window) => known.set_window(Some(window)),
            Err(Some(_)) => return None,
            Err(None) => {
                known.set_window(None);
                return None;
            }
        }
        Some(())
    }

    /// Removes an inode's window. The rest of its reservation stays.
    pub(crate) fn drop_window(&self, inode: &InodeAlloc<B>) {
        if self.policy.search != Search::Windows {
            return;
        }
        let Some(mut known) = inode.take_reservation() else { return };
        self.give_up(&known);
        known.set_window(None);
        if let Some(other) = inode.put_reservation(known) {
            self.give_up(&other);
        }
    }

    fn give_up(&self, known: &Reservation) {
        known.window.into_iter().for_each(|window| self.windows.remove(window));
    }
}

/// Whether the search can stay in this window. With a goal, the goal must lie in the window;
/// without one, a part of the window must lie in the group.
fn is_usable(window: Window, goal: Option<u64>, group: Window) -> bool {
    goal.map_or_else(|| window.meets(group), |goal| window.contains(goal))
}

/// Points the goal right after the last allocated block, if the request continues there.
fn point_behind_last<B: Backend>(geometry: &Geometry, context: &mut Context<'_, B>, known: &Reservation) {
    let Some(last) = known.last else { return };
    let per_group = u64_from_u32(geometry.clusters_per_group());
    let next = last.cluster + 1;
    let goes_on = u64_from_u32(last.logical) + 1 == u64_from_u32(context.asked.extent.logical);
    if goes_on && next < geometry.clusters_count().raw() {
        context.search.goal.group = GroupNr::new(u32_from_u64(next / per_group));
        context.search.goal.start = u32_from_u64(next % per_group);
    }
}

/// Remembers where the request ended. A block of the block map has no logical number, so it changes
/// only the remembered cluster.
fn note_last<B: Backend>(geometry: &Geometry, context: &Context<'_, B>, known: &mut Reservation) {
    let Some(find) = &context.outcome.find else { return };
    let cluster =
        first_cluster(geometry, find.served.group) + u64_from_u32(find.served.start + find.served.len - 1);
    let blocks = find.served.len << geometry.cluster_ratio_bits();
    known.last = if context.asked.is_data() {
        Some(LastBlock { logical: context.asked.extent.logical + (blocks - 1), cluster })
    } else {
        known.last.map(|last| LastBlock { cluster, ..last })
    };
}

/// The number, in the file system, of a group's first cluster.
fn first_cluster(geometry: &Geometry, group: GroupNr) -> u64 {
    u64_from_u32(group.raw()) * u64_from_u32(geometry.clusters_per_group())
}
