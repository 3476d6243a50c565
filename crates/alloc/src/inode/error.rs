//! Errors of inode allocation.

use blockyard_disk::{GroupNr, InodeNr};

/// Why no inode was allocated or freed.
#[derive(Debug, thiserror::Error)]
pub enum InodeError {
    /// No group has a free inode.
    #[error("no free inodes")]
    NoInodes,
    /// The bitmap of a group could not be read.
    #[error("inode bitmap of group {group}: {source}")]
    Load {
        /// The group.
        group: GroupNr,
        /// What the source said.
        source: Box<dyn std::error::Error + Send + Sync + 'static>,
    },
    /// An inode was freed that is free already.
    #[error("inode {0} is freed but not in use")]
    NotInUse(InodeNr),
    /// A reserved inode, or one beyond the last.
    #[error("inode {0} can not be freed: reserved, or beyond the last")]
    OutOfRange(InodeNr),
    /// A group that was taken out of use is not changed any more.
    #[error("the inode bitmap of group {0} is corrupt")]
    CorruptGroup(GroupNr),
    /// The configuration is impossible.
    #[error("impossible inode allocator configuration: {0}")]
    BadConfig(&'static str),
}
