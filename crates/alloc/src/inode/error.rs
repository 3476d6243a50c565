//! Errors of inode allocation.

use blockyard_disk::{Corruption, CorruptionKind, GroupNr, InodeNr};

/// Why no inode was allocated or freed.
#[derive(Debug, thiserror::Error)]
pub enum InodeError {
    /// No group has a free inode, or the placement rule found no group.
    #[error("no free inodes")]
    NoInodes,
    /// The bitmap of a group could not be read.
    #[error("inode bitmap of group {group}: {source}")]
    Load {
        /// The group.
        group: GroupNr,
        /// The error of the source of bitmaps.
        source: Box<dyn std::error::Error + Send + Sync + 'static>,
    },
    /// The inode to be freed is free already, reserved or beyond the last, or the bitmap of its
    /// group is wrong. In such a group, no inode is claimed or freed any more.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    /// The configuration is impossible.
    #[error("impossible inode allocator configuration: {0}")]
    BadConfig(&'static str),
}

impl InodeError {
    /// The inode to be freed is free already.
    pub(super) fn not_in_use(inode: InodeNr) -> Self {
        Corruption::new(CorruptionKind::InodeBitmapContradiction).in_inode(inode).into()
    }

    /// The inode to be freed is reserved or beyond the last.
    pub(super) fn out_of_range(inode: InodeNr) -> Self {
        Corruption::new(CorruptionKind::InodeNumber).in_inode(inode).into()
    }

    /// A group whose bitmap cannot be trusted.
    pub(super) fn corrupt_group(group: GroupNr) -> Self {
        Corruption::new(CorruptionKind::InodeBitmapContradiction).in_group(group).into()
    }
}
