//! The head of each group: superblock copy, descriptor blocks, blocks reserved for more
//! descriptors.
//!
//! There are two ways to keep descriptors. In the classic way, every superblock copy is followed by
//! the whole descriptor table. With meta_bg, the groups whose descriptors fill one block are a meta
//! group, and the first, second and last of them hold that descriptor block. Invariant: a head
//! occupies consecutive blocks from the first block of its group (block 1 in group 0 with 1 KiB
//! blocks, even with bigalloc).

use std::ops::Range;

use blockyard_disk::num::u64_from_u32;
use blockyard_disk::{Geometry, GroupNr};

use super::error::Result;
use super::feature::{META_BG, RESIZE_INODE, SPARSE_SUPER, SPARSE_SUPER2};
use super::params::Params;

/// Where superblock copies and descriptors are.
#[derive(Clone, Debug)]
pub(super) struct Heads {
    rule: BackupRule,
    /// Number of blocks of the descriptor table.
    desc_blocks: u64,
    /// Number of descriptor blocks kept in the classic way: all, or 0 with meta_bg.
    classic_desc_blocks: u64,
    reserved_gdt: u64,
    /// `s_reserved_gdt_blocks`.
    reserved_gdt_field: u64,
    descs_per_block: u64,
    groups: u32,
    /// Whether group 0 begins with the boot block, so that the superblock is in block 1.
    super_at_one: bool,
}

/// Which groups hold copies of the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BackupRule {
    All,
    PowersOf357,
    Named([u32; 2]),
}

impl Heads {
    /// Plans the heads. If the descriptor table and the blocks reserved for its growth would take
    /// more than three quarters of a group, switches to meta_bg and drops the resize inode.
    pub(super) fn plan(params: &mut Params, geometry: &Geometry) -> Result<Self> {
        let descs_per_block = params.descs_per_block();
        let desc_blocks = u64::from(geometry.groups()).div_ceil(descs_per_block);
        let mut reserved_gdt = match params.reserved_gdt {
            _ if !params.features.contains(RESIZE_INODE) => 0,
            Some(blocks) => blocks,
            None => default_reserve(params, geometry, desc_blocks),
        };
        if desc_blocks + reserved_gdt > geometry.blocks_per_group() * 3 / 4 {
            params.features.set(META_BG, true);
            params.features.set(RESIZE_INODE, false);
            // As in mke2fs, `s_reserved_gdt_blocks` keeps the requested number, although no block
            // is reserved.
            reserved_gdt = 0;
        }
        Ok(Self {
            rule: BackupRule::of(params, geometry.groups()),
            desc_blocks,
            classic_desc_blocks: if params.features.contains(META_BG) { 0 } else { desc_blocks },
            reserved_gdt,
            reserved_gdt_field: params.reserved_gdt.unwrap_or(reserved_gdt),
            descs_per_block,
            groups: geometry.groups(),
            super_at_one: geometry.block_bits() == 10 && params.first_block == 0,
        })
    }

    /// Number of blocks of the descriptor table.
    pub(super) const fn desc_blocks(&self) -> u64 {
        self.desc_blocks
    }

    /// Number of blocks reserved for the growth of the descriptor table.
    pub(super) const fn reserved_gdt(&self) -> u64 {
        self.reserved_gdt
    }

    /// `s_reserved_gdt_blocks`: the number of reserved blocks, or the requested number even if none
    /// is reserved.
    pub(super) const fn reserved_gdt_field(&self) -> u64 {
        self.reserved_gdt_field
    }

    /// Number of blocks of the longest head: superblock, descriptors, and as many blocks as
    /// `s_reserved_gdt_blocks` says, even if none is reserved.
    pub(super) const fn full_head_blocks(&self) -> u64 {
        let desc = if self.classic_desc_blocks == 0 { 1 } else { self.classic_desc_blocks };
        1 + desc + self.reserved_gdt_field
    }

    /// Number of blocks after a superblock copy: the classic table and the blocks reserved for its
    /// growth.
    pub(super) const fn classic_blocks(&self) -> u64 {
        self.classic_desc_blocks + self.reserved_gdt
    }

    /// `s_backup_bgs`.
    pub(super) const fn named_backups(&self) -> [u32; 2] {
        match self.rule {
            BackupRule::Named(groups) => groups,
            BackupRule::All | BackupRule::PowersOf357 => [0, 0],
        }
    }

    /// Whether a group holds a copy of the superblock, or in group 0 the superblock itself.
    pub(super) fn has_backup(&self, group: GroupNr) -> bool {
        match (group.raw(), self.rule) {
            (0, _) | (_, BackupRule::All) | (1, BackupRule::PowersOf357) => true,
            (n, BackupRule::Named(groups)) => groups.contains(&n),
            (n, BackupRule::PowersOf357) => [3, 5, 7].into_iter().any(|base| is_power_of(n, base)),
        }
    }

    /// Group 0 and all groups with a copy of the superblock, in ascending order.
    pub(super) fn backup_groups(&self) -> impl Iterator<Item = GroupNr> {
        (0..self.groups).map(GroupNr::new).filter(|group| self.has_backup(*group))
    }

    /// The block of a group's superblock copy; `None` if the group has none.
    pub(super) fn superblock(&self, geometry: &Geometry, group: GroupNr) -> Option<u64> {
        let at = geometry.group_first_block(group).raw() + u64::from(group.raw() == 0 && self.super_at_one);
        self.has_backup(group).then_some(at)
    }

    /// The block after a group's superblock copy, where a classic descriptor table begins; `None`
    /// if the group has no superblock copy.
    pub(super) fn classic_table(&self, geometry: &Geometry, group: GroupNr) -> Option<u64> {
        self.superblock(geometry, group).map(|at| at + 1)
    }

    /// The one descriptor block that a group keeps for its meta group, and that block's number in
    /// the table; `None` if it keeps none.
    pub(super) fn meta_desc(&self, geometry: &Geometry, group: GroupNr) -> Option<(u64, u64)> {
        let number = u64_from_u32(group.raw()) / self.descs_per_block;
        let inside = u64_from_u32(group.raw()) % self.descs_per_block;
        let keeps = number >= self.classic_desc_blocks && (inside < 2 || inside == self.descs_per_block - 1);
        let after = match self.superblock(geometry, group) {
            Some(at) => at + 1,
            None => geometry.group_first_block(group).raw(),
        };
        keeps.then_some((after, number))
    }

    /// The blocks of a group's head, and the boot block before it if the group contains it; empty
    /// if the group has no head.
    pub(super) fn range(&self, geometry: &Geometry, group: GroupNr) -> Range<u64> {
        let first = geometry.group_first_block(group).raw();
        let mut end = match self.superblock(geometry, group) {
            Some(at) => at + 1 + self.classic_blocks(),
            None => first,
        };
        if self.meta_desc(geometry, group).is_some() {
            end += 1;
        }
        first..end
    }
}

impl BackupRule {
    fn of(params: &Params, groups: u32) -> Self {
        if params.features.contains(SPARSE_SUPER2) {
            match (params.backup_superblocks, groups) {
                (0, _) | (_, 1) => Self::Named([0, 0]),
                // The group of a single backup is in the second field.
                (1, _) | (_, 2) => Self::Named([0, 1]),
                _ => Self::Named([1, groups - 1]),
            }
        } else if params.features.contains(SPARSE_SUPER) {
            Self::PowersOf357
        } else {
            Self::All
        }
    }
}

/// How many blocks to reserve for the descriptor table to grow, so that the file system can grow to
/// 1024 times its size, or to 2^32 - 1 blocks if that is less. At most as many as a double-indirect
/// block has pointers.
fn default_reserve(params: &Params, geometry: &Geometry, desc_blocks: u64) -> u64 {
    let most_blocks = geometry.blocks_count().raw().saturating_mul(1024).min(u64::from(u32::MAX));
    let most_groups = (most_blocks - params.first_block).div_ceil(geometry.blocks_per_group());
    let most_desc = most_groups.div_ceil(params.descs_per_block());
    most_desc.saturating_sub(desc_blocks).min(params.block_size() / 4)
}

/// Whether `n` is a power (with exponent one or more) of `base`.
fn is_power_of(n: u32, base: u32) -> bool {
    let (n, base) = (u64::from(n), u64::from(base));
    let mut power = base;
    while power < n {
        power *= base;
    }
    power == n
}

#[cfg(test)]
mod tests {
    use super::is_power_of;

    #[test]
    fn powers_of_three_below_a_hundred() {
        let powers: Vec<u32> = (0..100).filter(|n| is_power_of(*n, 3)).collect();
        assert_eq!(powers, [3, 9, 27, 81]);
    }
}
