//! The configuration of an inode allocator, its requests, and the source of its bitmaps.

use blockyard_disk::num::usize_from_u32;
use blockyard_disk::{Geometry, GroupNr, InodeNr};
use blockyard_sync::CpuSlot;

use super::error::InodeError;
use crate::policy::Switches;
use crate::policy::slots::InodeGroup;

/// What an [`super::InodeAllocator`] is opened with.
#[derive(Clone, Copy, Debug)]
pub struct InodeConfig {
    /// The placement rule.
    pub placement: InodeGroup,
    /// Which rules of older kernels are on.
    pub switches: Switches,
    /// Number of CPU slots. The totals lag as the kernel's do with that many CPUs.
    pub cpus: u32,
    /// Lowest inode number that may be handed out (`s_first_ino`, usually 11).
    pub first_inode: u32,
    /// Whether descriptors carry checksums, so that `itable_unused` and the uninitialised flags
    /// mean something.
    pub descriptor_checksums: bool,
    /// Whether there is no journal. Then the numbers of inodes that were deleted within the last
    /// minute (six minutes if their table block is dirty) are passed over, as long as another free
    /// number is found in the group.
    pub without_journal: bool,
    /// Seed for searches that start at a random group.
    pub seed: u64,
}

impl Default for InodeConfig {
    fn default() -> Self {
        Self {
            placement: InodeGroup::OrlovFlex,
            switches: Switches::default(),
            cpus: 1,
            first_inode: 11,
            descriptor_checksums: true,
            without_journal: false,
            seed: 0,
        }
    }
}

impl InodeConfig {
    pub(super) fn check(&self, geometry: &Geometry, facts: &[InodeGroupFacts]) -> Result<(), InodeError> {
        let per_group = geometry.inodes_per_group();
        let refuse = |why| Err(InodeError::BadConfig(why));
        if self.first_inode == 0 {
            return refuse("the first inode is 0");
        }
        if facts.len() != usize_from_u32(geometry.groups()) {
            return refuse("one set of facts for each group is needed");
        }
        if facts.iter().any(|f| f.free_inodes > per_group || f.itable_unused > per_group) {
            return refuse("a group has more free or unused inodes than inodes");
        }
        if facts.iter().any(|f| f.inode_uninit && !self.descriptor_checksums) {
            return refuse("uninitialised groups need descriptor checksums");
        }
        Ok(())
    }
}

/// What the descriptor of a group says at open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeGroupFacts {
    /// `bg_free_inodes_count`.
    pub free_inodes: u32,
    /// `bg_used_dirs_count`.
    pub used_dirs: u32,
    /// `bg_itable_unused`: inodes at the end of the table that were never used.
    pub itable_unused: u32,
    /// `INODE_UNINIT`: the bitmap was never written, all inodes are free.
    pub inode_uninit: bool,
}

/// A request for one inode.
#[derive(Clone, Copy, Debug)]
pub struct InodeRequest {
    /// The directory the inode is created in.
    pub parent: InodeNr,
    /// Whether that directory is the root or carries the TOPDIR flag, so that its subdirectories
    /// are spread.
    pub parent_is_top: bool,
    /// Whether the new inode is a directory.
    pub directory: bool,
    /// [`super::top_name_hash`] of the new name. Only `inode=orlov-flex` without `random_start`
    /// reads it, and only for a directory under a top directory: the search starts at the flex
    /// group `hash % flex groups`. Without a hash, that search starts at random.
    pub name_hash: Option<u32>,
    /// The inode number to start from, instead of the placement rule's choice. A number beyond the
    /// last inode is ignored.
    pub goal: Option<InodeNr>,
    /// The CPU slot of the caller.
    pub slot: CpuSlot,
    /// Unix time in seconds, low 32 bits; read only without a journal.
    pub now: u32,
}

/// What a source found where an inode bitmap should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitmapLoad {
    /// The bitmap was filled in.
    Filled,
    /// The bitmap is damaged: the group is passed over from now on.
    Corrupt,
}

/// A deleted inode, as its cached table block shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecentDeletion {
    /// `i_dtime`: Unix time in seconds; 0 for an inode that was never deleted.
    pub deleted_at: u32,
    /// Whether the cached table block waits to be written.
    pub dirty: bool,
}

/// Provides the on-disk inode bitmaps and deletion times.
pub trait InodeSource: Send + Sync + core::fmt::Debug {
    /// Fills `bits` (zeroed, one bit per inode, 1 = used) with the bitmap of a group. The result
    /// must contain every change that a commit or a free has written. The allocator calls this on
    /// any thread, without a group's lock, and never for an uninitialised group.
    ///
    /// # Errors
    /// Errors of the device. The request that needed the bitmap fails with [`InodeError::Load`].
    fn load(
        &self,
        group: GroupNr,
        bits: &mut [u8],
    ) -> Result<BitmapLoad, Box<dyn std::error::Error + Send + Sync + 'static>>;

    /// The deletion time of the inode at an index of a group's table; `None` if that block of the
    /// table is not cached. The allocator calls this only if there is no journal. It then holds the
    /// group's lock, so an implementation must not do I/O. The default knows no deletion times, so
    /// no inode counts as recently deleted.
    fn deletion(&self, _group: GroupNr, _index: u32) -> Option<RecentDeletion> {
        None
    }
}
