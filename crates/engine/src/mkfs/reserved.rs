//! The inodes that mkfs itself makes, and constants of inodes that several parts of mkfs need.

use blockyard_disk::InodeNr;

use super::params::Params;

/// lost+found: the first inode that is not reserved.
pub(super) const LOST_FOUND: InodeNr = InodeNr::new(11);
/// The orphan file, which follows lost+found.
pub(super) const ORPHAN_FILE: InodeNr = InodeNr::new(12);

/// `i_extra_isize` of inodes larger than 128 bytes: how many bytes after the first 128 hold fields.
pub(super) const EXTRA_ISIZE: u16 = 32;

/// How many inodes a new file system uses: the reserved ones, lost+found, and the orphan file if
/// there is one.
pub(super) fn count(with_orphan_file: bool) -> u32 {
    LOST_FOUND.raw() + u32::from(with_orphan_file)
}

/// Size in bytes of the resize inode: all that direct, indirect and double-indirect blocks can map.
pub(super) const fn resize_size(params: &Params) -> u64 {
    let fan_out = params.block_size() / 4;
    (12 + fan_out + fan_out * fan_out) << params.block_bits
}
