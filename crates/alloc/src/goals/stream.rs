//! Stream goals. Each remembers the group where the last large file that used it found space.
//!
//! The policy's slot `slots` says how many there are, and which one an inode uses:
//!
//! - `one`: a single goal for the file system, as before the scalability series.
//! - `hashed`: one for each CPU, but at most one for every four groups (rounded up), unless
//!   `stream_goals` sets their number. The inode number chooses the goal.
//! - `cpus`: one for each CPU in any case. The inode number chooses the goal.
//! - `inode`: the inode's cursor serves as its stream goal.
//! - `none`: there are no stream goals.
//!
//! Under `slot_lock=md`, the md lock guards the stream goals. Freeing takes the same lock.

use std::sync::Arc;

use blockyard_disk::num::{join32, low32, u32_from_u64, u32_from_usize, u64_from_u32, usize_from_u32};
use blockyard_disk::{Geometry, GroupNr, InodeNr};
use blockyard_sync::{Atomic, Backend, CachePadded, CpuSlot, Ordering};

use crate::config::GroupFacts;
use crate::goals::lanes::past_metadata;
use crate::md::Md;
use crate::policy::Policy;
use crate::policy::slots::{SlotLock, SlotStart, Slots};
use crate::prealloc::inode::InodeAlloc;

/// Where a stream continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamPlace {
    pub(crate) group: GroupNr,
    /// Where in the group the last extent found starts, in clusters. Used under
    /// `stream_goal=offset` only.
    pub(crate) start: u32,
}

/// All stream goals of a file system.
pub(crate) struct StreamGoals<B: Backend> {
    groups: u32,
    kind: Slots,
    /// The lock that guards the goals; none unless `slot_lock=md`.
    lock: Option<Arc<Md<B>>>,
    /// Whether goals are loaded with acquire and stored with release, which pair with each other.
    /// Nothing relies on that order: it is there to compare its cost.
    ordered: bool,
    /// The goals: the group in the high half, the start in the low one. Accessed relaxed unless
    /// `ordered` is set: readers may see an older goal.
    slots: Box<[CachePadded<B::AtomicU64>]>,
}

impl<B: Backend> StreamGoals<B> {
    pub(crate) fn new(
        policy: &Policy,
        cpus: u32,
        geometry: &Geometry,
        facts: &[GroupFacts],
        md: Arc<Md<B>>,
    ) -> Self {
        let groups = geometry.groups();
        let count = match policy.slots {
            Slots::One | Slots::Inode | Slots::None => 1,
            Slots::Hashed if policy.stream_goals > 0 => policy.stream_goals,
            Slots::Hashed => cpus.min(groups.div_ceil(4)).max(1),
            Slots::Cpus => cpus.max(1),
        };
        let firsts = match policy.slot_start {
            SlotStart::Zero => vec![0; usize_from_u32(count)],
            SlotStart::Zones => zone_starts(count, geometry, facts),
        };
        Self {
            groups,
            kind: policy.slots,
            lock: (policy.slot_lock == SlotLock::Md).then_some(md),
            ordered: policy.slot_lock == SlotLock::AcquireRelease,
            slots: firsts
                .into_iter()
                .map(|first| {
                    let word = join32(first, 0);
                    CachePadded::new(B::on_line("stream goal", || B::AtomicU64::new(word)))
                })
                .collect(),
        }
    }

    fn slot(&self, inode: InodeNr) -> &B::AtomicU64 {
        &self.slots[usize_from_u32(inode.raw() % u32_from_usize(self.slots.len()))]
    }

    /// The goal for a stream of this inode; `None` if the inode's own goal stays.
    #[inline]
    pub(crate) fn read(&self, inode: InodeNr, own: &InodeAlloc<B>, cpu: CpuSlot) -> Option<StreamPlace> {
        match self.kind {
            Slots::None => return None,
            Slots::Inode => {
                return Some(StreamPlace { group: own.cursor().unwrap_or(GroupNr::ZERO), start: 0 });
            }
            Slots::One | Slots::Hashed | Slots::Cpus => {}
        }
        let guard = self.lock.as_ref().map(|md| md.lock(cpu));
        let slot = self.slot(inode);
        let word = if self.ordered { slot.load(Ordering::Acquire) } else { slot.load(Ordering::Relaxed) };
        drop(guard);
        Some(StreamPlace { group: GroupNr::new(blockyard_disk::num::high32(word)), start: low32(word) })
    }

    /// Remembers where a stream of this inode found space.
    #[inline]
    pub(crate) fn write(&self, inode: InodeNr, own: &InodeAlloc<B>, place: StreamPlace, cpu: CpuSlot) {
        debug_assert!(place.group.raw() < self.groups, "{place:?} of {} groups", self.groups);
        match self.kind {
            Slots::None => {}
            Slots::Inode => own.set_cursor(place.group),
            Slots::One | Slots::Hashed | Slots::Cpus => {
                let guard = self.lock.as_ref().map(|md| md.lock(cpu));
                let slot = self.slot(inode);
                let word = join32(place.group.raw(), place.start);
                // Without the lock, an unchanged goal is not written to the shared line.
                if guard.is_some() || slot.load(Ordering::Relaxed) != word {
                    if self.ordered {
                        slot.store(word, Ordering::Release);
                    } else {
                        slot.store(word, Ordering::Relaxed);
                    }
                }
                drop(guard);
            }
        }
    }
}

/// The group where the streams of each of `count` zones start. The zones have about equal width.
///
/// Streams start in the first group of their zone that is not kept for metadata. If that group is
/// full, for example because the journal fills it, they start in the middle of a zone instead: the
/// first zone whose middle has room and got no streams yet. If there is no such zone, they start in
/// the full group.
fn zone_starts(count: u32, geometry: &Geometry, facts: &[GroupFacts]) -> Vec<u32> {
    let (groups, flex) = (geometry.groups(), geometry.flex_size());
    let zone = |slot: u32| u32_from_u64(u64_from_u32(slot) * u64_from_u32(groups) / u64_from_u32(count));
    let has_room = |group: &u32| facts[usize_from_u32(*group)].free > 0;
    let half = groups / count / 2;
    let mut middles = (0..count).map(|slot| past_metadata(zone(slot) + half, flex, groups)).filter(has_room);
    let start = |slot| {
        let start = past_metadata(zone(slot), flex, groups);
        if has_room(&start) { start } else { middles.next().unwrap_or(start) }
    };
    (0..count).map(start).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryBitmaps;

    #[test]
    fn streams_of_a_zone_that_starts_full_begin_in_the_middle_of_another() {
        let geometry = MemoryBitmaps::plain_geometry(64, 4);
        let mut facts = MemoryBitmaps::new(geometry, 10).facts();
        assert_eq!(zone_starts(8, &geometry, &facts), [1, 8, 17, 24, 33, 40, 49, 56]);
        facts[16..24].iter_mut().for_each(|facts| facts.free = 0);
        assert_eq!(zone_starts(8, &geometry, &facts), [1, 8, 4, 24, 33, 40, 49, 56]);
        facts[24..32].iter_mut().for_each(|facts| facts.free = 0);
        assert_eq!(zone_starts(8, &geometry, &facts), [1, 8, 4, 12, 33, 40, 49, 56]);
        facts.iter_mut().for_each(|facts| facts.free = 0);
        assert_eq!(zone_starts(8, &geometry, &facts), [1, 8, 17, 24, 33, 40, 49, 56], "nowhere to go");
    }
}
