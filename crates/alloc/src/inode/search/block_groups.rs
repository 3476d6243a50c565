//! Placement by block groups, which ignores flex groups: ext3's Orlov allocator, and the older rule
//! that ext3 uses with the mount option `oldalloc`.

use blockyard_disk::GroupNr;
use blockyard_sync::Backend;

use super::{Family, Search};
use crate::inode::counts::DEBT_MAX;

/// The least number of blocks that a directory and its content are assumed to use.
const BLOCKS_PER_DIRECTORY_MIN: u64 = 256;

impl<B: Backend> Search<'_, B> {
    /// A directory under a top directory: among the groups with at least average free inodes and
    /// blocks, the one with the fewest directories. If several have equally few, the first in ring
    /// order from a random group.
    pub(in crate::inode) fn top_directory_by_group(&self, draw: u32) -> Option<GroupNr> {
        let groups = self.geometry.groups();
        let inodes_min = self.average_inodes();
        let blocks_min = self.average_blocks();
        let start = GroupNr::new(draw % groups);
        let mut fewest = self.geometry.inodes_per_group();
        let mut choice = None;
        for group in self.ring_of_groups(start) {
            let free = self.counts.free_in_group(group);
            let directories = self.counts.directories_in_group(group);
            let fits = free > 0
                && directories < fewest
                && u64::from(free) >= inodes_min
                && u64::from(self.clusters.in_group(group)) >= blocks_min;
            if fits {
                fewest = directories;
                choice = Some(group);
            }
        }
        choice.or_else(|| self.fallback_from(start))
    }

    /// A directory under an ordinary directory: the first group, from the parent's on, that has few
    /// enough directories, enough free inodes and blocks, and no high debt.
    pub(in crate::inode) fn ordinary_directory_by_group(&self, family: &Family) -> Option<GroupNr> {
        let per_group = self.geometry.inodes_per_group();
        let groups = u64::from(self.geometry.groups());
        let directories_below = self.counts.directories_approximate() / groups + u64::from(per_group / 16);
        // A lower bound that would be negative is 0 and excludes no group.
        let inodes_min = self.average_inodes().saturating_sub(u64::from(per_group / 4));
        let blocks_min = self.average_blocks().saturating_sub(self.geometry.blocks_per_group() / 4);
        let debt_max = self.debt_max();
        let fits = |&group: &GroupNr| {
            let free = self.counts.free_in_group(group);
            free > 0
                && u64::from(self.counts.directories_in_group(group)) < directories_below
                && u64::from(free) >= inodes_min
                && u64::from(self.clusters.in_group(group)) >= blocks_min
                && self.counts.debt_of(group).is_none_or(|debt| debt < debt_max)
        };
        self.ring_of_groups(family.group).find(fits).or_else(|| self.fallback_from(family.group))
    }

    /// A directory by the rule of oldalloc: of the groups with at least average free inodes, the
    /// one with the most free blocks; among equals, the lowest.
    pub(in crate::inode) fn most_free_blocks(&self) -> Option<GroupNr> {
        let least = self.average_inodes();
        let fits = |group: &GroupNr| {
            let free = self.counts.free_in_group(*group);
            free > 0 && u64::from(free) >= least
        };
        let mut choice: Option<(u32, GroupNr)> = None;
        for group in self.ring_of_groups(GroupNr::ZERO).filter(fits) {
            let blocks = self.clusters.in_group(group);
            if choice.is_none_or(|(most, _)| blocks > most) {
                choice = Some((blocks, group));
            }
        }
        // In ext3 the rule of oldalloc has no fallback. Here it needs one: if the totals lag, the
        // average may be above what any group has. Without the fallback, a small file system would
        // then report that it has no free inodes although it has some.
        choice.map(|(_, group)| group).or_else(|| self.fallback_from(GroupNr::ZERO))
    }

    /// The debt from which on a group is passed over.
    fn debt_max(&self) -> u32 {
        let directories = self.counts.directories_approximate().max(1);
        let used = self.geometry.blocks_count().raw().saturating_sub(self.clusters.total_approximate());
        let most = self.geometry.blocks_per_group() / (used / directories).max(BLOCKS_PER_DIRECTORY_MIN);
        let per_group = u64::from(self.geometry.inodes_per_group());
        let most = if most * 64 > per_group { per_group / 64 } else { most };
        blockyard_disk::num::u32_from_u64(most.clamp(1, u64::from(DEBT_MAX)))
    }

    fn average_inodes(&self) -> u64 {
        self.counts.free_approximate() / u64::from(self.geometry.groups())
    }

    fn average_blocks(&self) -> u64 {
        self.clusters.total_approximate() / u64::from(self.geometry.groups())
    }
}
