//! The counts that placement reads: exact ones per group and flex group, lagging ones for the whole
//! file system.
//!
//! The counters here are read without a lock while other threads change them. The counts of inodes
//! and directories change under the group's lock, after the bitmap. Relaxed operations are enough,
//! because the claim checks the result of a search under that lock.

use blockyard_disk::num::usize_from_u32;
use blockyard_disk::{FlexNr, Geometry, GroupNr};
use blockyard_sync::{Atomic, AtomicInt, Backend, CpuSlot, LaggedCounter, Native, Ordering};

use super::config::{InodeConfig, InodeGroupFacts};

/// Free clusters as inode placement reads them.
///
/// The counts of groups and flex groups change when bits of the on-disk block bitmap are set or
/// cleared. So a claim on clusters changes these counts only when it is committed, but it may
/// change the total at once. A preallocation changes no count.
pub trait FreeClusters: Send + Sync + core::fmt::Debug {
    /// Free clusters of a group.
    fn in_group(&self, group: GroupNr) -> u32;
    /// Free clusters of a flex group; without flex groups, of the group with this number.
    fn in_flex(&self, flex: FlexNr) -> u64;
    /// Free clusters of the file system. Lags as Linux's per-CPU counter does (see
    /// [`LaggedCounter`]).
    fn total_approximate(&self) -> u64;
}

/// [`FreeClusters`] as counters, which the code that marks bitmaps must update.
#[derive(Debug)]
pub struct ClusterCounts<B: Backend = Native> {
    flex_bits: u32,
    groups: Box<[B::AtomicU32]>,
    /// Empty without flex groups; then the counts of `groups` are used.
    flexes: Box<[B::AtomicU64]>,
    total: LaggedCounter<B>,
}

impl<B: Backend> ClusterCounts<B> {
    /// Counts that start at `free`: the number of free clusters of each group, in group order.
    #[must_use]
    pub fn new(geometry: &Geometry, free: &[u32], cpus: u32) -> Self {
        let total: u64 = free.iter().map(|&n| u64::from(n)).sum();
        Self {
            flex_bits: geometry.fields().flex_bits,
            groups: free.iter().map(|&n| B::AtomicU32::new(n)).collect(),
            flexes: by_flex(geometry, free.iter().copied()).map(B::AtomicU64::new).collect(),
            total: LaggedCounter::new(
                total.cast_signed(),
                usize_from_u32(cpus),
                LaggedCounter::<B>::linux_batch(cpus),
            ),
        }
    }

    /// Records that clusters of a group became free (positive) or used (negative).
    pub fn changed(&self, group: GroupNr, clusters: i32, slot: CpuSlot) {
        // Two's complement: a wrapping add is a signed add.
        self.groups[usize_from_u32(group.raw())].fetch_add(clusters.cast_unsigned(), Ordering::Relaxed);
        if let Some(flex) = self.flexes.get(usize_from_u32(group.raw() >> self.flex_bits)) {
            flex.fetch_add(i64::from(clusters).cast_unsigned(), Ordering::Relaxed);
        }
        self.total.add(slot, i64::from(clusters));
    }
}

impl<B: Backend> FreeClusters for ClusterCounts<B> {
    fn in_group(&self, group: GroupNr) -> u32 {
        self.groups[usize_from_u32(group.raw())].load(Ordering::Relaxed)
    }

    fn in_flex(&self, flex: FlexNr) -> u64 {
        match self.flexes.get(usize_from_u32(flex.raw())) {
            Some(count) => count.load(Ordering::Relaxed),
            None => u64::from(self.in_group(GroupNr::new(flex.raw()))),
        }
    }

    fn total_approximate(&self) -> u64 {
        self.total.approximate()
    }
}

/// The largest debt of a group; counting stops there.
pub(super) const DEBT_MAX: u32 = 255;

/// Free inodes and directories.
#[derive(Debug)]
pub(super) struct InodeCounts<B: Backend> {
    flex_bits: u32,
    groups: Box<[Pair<B>]>,
    /// Empty without flex groups; then the counts of `groups` are used.
    flexes: Box<[Pair<B>]>,
    free: LaggedCounter<B>,
    directories: LaggedCounter<B>,
    /// The debt of each group, between 0 and [`DEBT_MAX`]: a new directory adds 1, any other new
    /// inode takes 1 away. `None` unless the policy reads debts.
    debts: Option<Box<[B::AtomicU32]>>,
    /// Whether a directory changes the free inodes of its flex group where it should change that
    /// flex group's directories. This reproduces a bug of the first releases of ext4.
    used_dirs_fault: bool,
}

/// Free inodes and directories of a group or a flex group.
#[derive(Debug)]
struct Pair<B: Backend> {
    free: B::AtomicU32,
    directories: B::AtomicU32,
}

impl<B: Backend> Pair<B> {
    fn new(free: u32, directories: u32) -> Self {
        Self { free: B::AtomicU32::new(free), directories: B::AtomicU32::new(directories) }
    }
}

impl<B: Backend> InodeCounts<B> {
    pub(super) fn new(geometry: &Geometry, facts: &[InodeGroupFacts], config: &InodeConfig) -> Self {
        let cpus = config.cpus;
        let narrow = blockyard_disk::num::u32_from_u64;
        let free = by_flex(geometry, facts.iter().map(|f| f.free_inodes));
        let directories = by_flex(geometry, facts.iter().map(|f| f.used_dirs));
        let total = |of: fn(&InodeGroupFacts) -> u32| {
            let sum: i64 = facts.iter().map(|f| i64::from(of(f))).sum();
            LaggedCounter::new(sum, usize_from_u32(cpus), LaggedCounter::<B>::linux_batch(cpus))
        };
        Self {
            flex_bits: geometry.fields().flex_bits,
            groups: facts.iter().map(|f| Pair::new(f.free_inodes, f.used_dirs)).collect(),
            flexes: free.zip(directories).map(|(f, d)| Pair::new(narrow(f), narrow(d))).collect(),
            free: total(|f| f.free_inodes),
            directories: total(|f| f.used_dirs),
            debts: config.switches.debt.then(|| facts.iter().map(|_| B::AtomicU32::new(0)).collect()),
            used_dirs_fault: config.switches.used_dirs_fault,
        }
    }

    pub(super) fn free_in_group(&self, group: GroupNr) -> u32 {
        self.groups[usize_from_u32(group.raw())].free.load(Ordering::Relaxed)
    }

    pub(super) fn directories_in_group(&self, group: GroupNr) -> u32 {
        self.groups[usize_from_u32(group.raw())].directories.load(Ordering::Relaxed)
    }

    /// Free inodes of a flex group; without flex groups, of a group.
    pub(super) fn free_in_flex(&self, flex: FlexNr) -> u32 {
        self.unit(flex).free.load(Ordering::Relaxed)
    }

    /// Directories of a flex group; without flex groups, of a group.
    pub(super) fn directories_in_flex(&self, flex: FlexNr) -> u32 {
        self.unit(flex).directories.load(Ordering::Relaxed)
    }

    /// Free inodes of the file system as placement sees them.
    pub(super) fn free_approximate(&self) -> u64 {
        self.free.approximate()
    }

    /// Directories of the file system as placement sees them.
    pub(super) fn directories_approximate(&self) -> u64 {
        self.directories.approximate()
    }

    pub(super) fn free_total(&self) -> u64 {
        self.free.sum().max(0).unsigned_abs()
    }

    /// The debt of a group; `None` unless the policy reads debts.
    pub(super) fn debt_of(&self, group: GroupNr) -> Option<u32> {
        let debts = self.debts.as_ref()?;
        Some(debts[usize_from_u32(group.raw())].load(Ordering::Relaxed))
    }

    /// Counts a claim on an inode of a group.
    pub(super) fn claimed(&self, group: GroupNr, directory: bool, slot: CpuSlot) {
        for pair in self.pairs(group) {
            pair.free.fetch_sub(1, Ordering::Relaxed);
        }
        self.free.add(slot, -1);
        if let Some(debts) = &self.debts {
            let debt = &debts[usize_from_u32(group.raw())];
            let owes = |debt: u32| if directory { (debt + 1).min(DEBT_MAX) } else { debt.saturating_sub(1) };
            let _ = debt.update(Ordering::Relaxed, Ordering::Relaxed, |debt| Some(owes(debt)));
        }
        if directory {
            for count in self.directory_counts(group) {
                count.fetch_add(1, Ordering::Relaxed);
            }
            self.directories.add(slot, 1);
        }
    }

    /// Counts that an inode of a group was freed, or that a claim on it was released.
    pub(super) fn freed(&self, group: GroupNr, directory: bool, slot: CpuSlot) {
        for pair in self.pairs(group) {
            pair.free.fetch_add(1, Ordering::Relaxed);
        }
        self.free.add(slot, 1);
        if directory {
            for count in self.directory_counts(group) {
                count.fetch_sub(1, Ordering::Relaxed);
            }
            self.directories.add(slot, -1);
        }
    }

    /// The counters that a new or deleted directory changes: the directories of its group and of
    /// its flex group. With `used_dirs_fault`, the flex group's free inodes take the place of the
    /// flex group's directories.
    fn directory_counts(&self, group: GroupNr) -> impl Iterator<Item = &B::AtomicU32> {
        let flex = self.flexes.get(usize_from_u32(group.raw() >> self.flex_bits));
        let in_flex = flex.map(|pair| if self.used_dirs_fault { &pair.free } else { &pair.directories });
        core::iter::once(&self.groups[usize_from_u32(group.raw())].directories).chain(in_flex)
    }

    /// Notes that `count` free inodes of a corrupt group cannot be used any more. As in the kernel,
    /// only the file system's total drops; the counts of the group and the flex group stay.
    pub(super) fn lost(&self, count: u32, slot: CpuSlot) {
        self.free.add(slot, -i64::from(count));
    }

    fn unit(&self, flex: FlexNr) -> &Pair<B> {
        let units = if self.flexes.is_empty() { &self.groups } else { &self.flexes };
        &units[usize_from_u32(flex.raw())]
    }

    fn pairs(&self, group: GroupNr) -> impl Iterator<Item = &Pair<B>> {
        let flex = self.flexes.get(usize_from_u32(group.raw() >> self.flex_bits));
        core::iter::once(&self.groups[usize_from_u32(group.raw())]).chain(flex)
    }
}

/// Sums of a per-group number over each flex group; empty without flex groups.
fn by_flex(geometry: &Geometry, values: impl Iterator<Item = u32>) -> impl Iterator<Item = u64> {
    let flexes = if geometry.flex_size() > 1 { geometry.flex_groups() } else { 0 };
    let mut sums = vec![0u64; usize_from_u32(flexes)];
    if flexes > 0 {
        for (group, value) in geometry.all_groups().zip(values) {
            sums[usize_from_u32(geometry.flex_of(group).raw())] += u64::from(value);
        }
    }
    sums.into_iter()
}
