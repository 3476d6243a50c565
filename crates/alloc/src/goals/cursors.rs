//! Cursors of the round-robin search: one for the whole file system, under a lock, or one for each
//! CPU slot.

use blockyard_disk::GroupNr;
use blockyard_disk::num::{u32_from_u64, u64_from_u32, usize_from_u32};
use blockyard_sync::{
    Atomic, AtomicInt, Backend, CachePadded, CpuSlot, LockClass, LockClassFigures, Mutex, Ordering, rank,
};

use crate::config::AllocConfig;
use crate::policy::Cursor;
use crate::policy::slots::{CursorStart, Rotation, Zones};

/// The cursors of a file system. A cursor is a group number.
pub(crate) struct Cursors<B: Backend> {
    rotation: Rotation,
    global: Mutex<u32, B>,
    locks: LockClass,
    /// The cursor of each CPU slot. Accessed relaxed: a cursor is only a hint, and mostly one CPU
    /// uses it.
    cpus: Box<[CachePadded<B::AtomicU32>]>,
    /// Bytes found through each cursor since `advance=per-bytes` last moved it one group further.
    /// Accessed relaxed: bytes that are added while another thread resets the count may be lost.
    spent: Box<[CachePadded<B::AtomicU64>]>,
    groups: u32,
}

impl<B: Backend> Cursors<B> {
    pub(crate) fn new(config: &AllocConfig) -> Self {
        let policy = &config.policy.cursor;
        let (cpus, groups) = (config.cpus, config.geometry.groups());
        let remembered = |cpu: u32| {
            let kept = config.cursors.get(usize_from_u32(cpu)).filter(|group| group.raw() < groups);
            kept.filter(|_| policy.start == CursorStart::Remembered).map(|group| group.raw())
        };
        let start =
            |cpu: u32| remembered(cpu).unwrap_or_else(|| first_group(policy, cpu, cpus, groups, config.seed));
        let global = match policy.start {
            CursorStart::Fixed => 0,
            CursorStart::Remembered => remembered(0).unwrap_or(0),
            CursorStart::Seeded => start(0),
        };
        debug_assert!((0..cpus).all(|cpu| start(cpu) < groups), "a cursor starts outside the file system");
        Self {
            rotation: policy.rotation,
            global: Mutex::new(rank::GOAL, global),
            spent: (0..cpus).map(|_| CachePadded::new(B::AtomicU64::new(0))).collect(),
            locks: LockClass::new("rotating cursor", usize_from_u32(cpus)),
            cpus: (0..cpus).map(|cpu| CachePadded::new(B::AtomicU32::new(start(cpu)))).collect(),
            groups,
        }
    }

    /// The group where a search on `cpu` starts; `None` without rotation.
    pub(crate) fn read(&self, cpu: CpuSlot) -> Option<GroupNr> {
        match self.rotation {
            Rotation::None => None,
            Rotation::Global => Some(GroupNr::new(*self.global.lock_counted(&self.locks, cpu))),
            Rotation::PerCpu => Some(GroupNr::new(self.of(cpu).load(Ordering::Relaxed))),
        }
    }

    /// Moves the caller's cursor.
    pub(crate) fn write(&self, cpu: CpuSlot, group: GroupNr) {
        assert!(group.raw() < self.groups, "a cursor would leave the {} groups for {group}", self.groups);
        match self.rotation {
            Rotation::None => {}
            Rotation::Global => *self.global.lock_counted(&self.locks, cpu) = group.raw(),
            Rotation::PerCpu => self.of(cpu).store(group.raw(), Ordering::Relaxed),
        }
    }

    /// Where the cursors stand; empty without rotation. With `cursor_start=remembered`, the caller
    /// passes these positions to the next open.
    pub(crate) fn positions(&self) -> Vec<GroupNr> {
        match self.rotation {
            Rotation::None => Vec::new(),
            Rotation::Global => vec![GroupNr::new(*self.global.lock())],
            Rotation::PerCpu => {
                self.cpus.iter().map(|cursor| GroupNr::new(cursor.load(Ordering::Relaxed))).collect()
            }
        }
    }

    /// Counts `bytes` found through the caller's cursor. Returns true when the sum reaches `most`;
    /// then the sum starts again from 0.
    pub(crate) fn spend(&self, cpu: CpuSlot, bytes: u64, most: u64) -> bool {
        let cursor = if self.rotation == Rotation::Global { CpuSlot::ZERO } else { cpu };
        let spent = &self.spent[cursor.index(self.spent.len())];
        if spent.fetch_add(bytes, Ordering::Relaxed) + bytes < most {
            return false;
        }
        spent.store(0, Ordering::Relaxed);
        true
    }

    /// The group after `group`, wrapping.
    pub(crate) fn after(&self, group: GroupNr) -> GroupNr {
        debug_assert!(group.raw() < self.groups, "group {group} of {}", self.groups);
        GroupNr::new(if group.raw() + 1 >= self.groups { 0 } else { group.raw() + 1 })
    }

    fn of(&self, cpu: CpuSlot) -> &B::AtomicU32 {
        &self.cpus[cpu.index(self.cpus.len())]
    }

    pub(crate) fn lock_figures(&self) -> Option<(&'static str, LockClassFigures)> {
        (self.rotation == Rotation::Global).then(|| (self.locks.name(), self.locks.figures()))
    }
}

/// Where the cursor of a CPU stands at open, unless its position was remembered.
fn first_group(policy: &Cursor, cpu: u32, cpus: u32, groups: u32, seed: u64) -> u32 {
    if policy.start == CursorStart::Seeded {
        return u32_from_u64(mix(seed ^ u64_from_u32(cpu)) % u64_from_u32(groups));
    }
    match policy.zones {
        Zones::Cpus => cpu * (groups / cpus),
        Zones::Bounded => {
            let zones = cpus.min(groups / 4).max(1);
            cpu % zones * (groups / zones)
        }
    }
}

/// A well-mixed function of a number (the finaliser of splitmix64).
fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;
    use crate::memory::MemoryBitmaps;
    use blockyard_sync::Native;

    #[test]
    fn zones_start_apart_and_are_as_many_as_the_policy_says() {
        let starts = |text: &str, cpus| {
            let config = AllocConfig {
                policy: Policy::parse(text).unwrap(),
                cpus,
                seed: 1,
                ..AllocConfig::new(MemoryBitmaps::plain_geometry(100, 4))
            };
            let cursors = Cursors::<Native>::new(&config);
            (0..cpus).map(|cpu| cursors.read(CpuSlot::new(cpu)).unwrap().raw()).collect::<Vec<_>>()
        };
        assert_eq!(starts("rralloc-v2", 4), [0, 25, 50, 75]);
        assert_eq!(starts("rralloc-v2", 101), [0; 101], "more CPUs than groups");
        assert_eq!(starts("rralloc", 50)[..3], [0, 4, 8]);
        assert_eq!(starts("rralloc:cursor_start=seeded", 3), starts("rralloc:cursor_start=seeded", 3));
    }
}
