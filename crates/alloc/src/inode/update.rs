//! What must be written when an inode is allocated or freed.

use blockyard_disk::{GroupNr, InodeNr};

/// What bitmap and descriptor of a group must say after a change. Inodes that others have claimed
/// and not committed count as free.
///
/// Where descriptors carry checksums, a group with an inode in use must not be `BLOCK_UNINIT`. If
/// it is, the caller that sets the bit also clears this flag, and writes the group's block bitmap
/// and count of free clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeUpdate {
    /// The inode.
    pub inode: InodeNr,
    /// Its group.
    pub group: GroupNr,
    /// Its index in the group's table and its bit in the group's bitmap.
    pub index: u32,
    /// Whether the bit is to be set (a new inode) or cleared.
    pub used: bool,
    /// Whether the group was `INODE_UNINIT`. If so, clear the flag and write the whole bitmap
    /// block, with only this bit (and the padding) set.
    pub initialise_bitmap: bool,
    /// Whether no inode at this index was ever used. If so, the bytes at this index of the table
    /// are meaningless and need not be read.
    pub first_use: bool,
    /// `bg_free_inodes_count`.
    pub free_inodes: u32,
    /// `bg_used_dirs_count`.
    pub used_dirs: u32,
    /// `bg_itable_unused`; 0 without descriptor checksums. Freeing an inode does not change it.
    pub itable_unused: u32,
}
