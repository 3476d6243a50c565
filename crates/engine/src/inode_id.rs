//! What tells an inode from all others, also from those that had its number before.

use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;

/// One inode: its number, and the generation that differs from those of the inodes that had the
/// number before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId {
    /// The number.
    pub number: InodeNr,
    /// The generation.
    pub generation: u32,
}

/// An inode as an operation is told which: by its number alone, whoever has that now, or by its
/// identity, so that the operation fails with [`Error::StaleInode`](crate::Error::StaleInode) once
/// another one has the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeRef {
    /// The number.
    pub number: InodeNr,
    /// The generation that it must have.
    pub generation: Option<u32>,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The inode.
    pub inode: InodeId,
    /// Its type.
    pub kind: FileType,
}

impl From<InodeNr> for InodeRef {
    fn from(number: InodeNr) -> Self {
        Self { number, generation: None }
    }
}

impl From<InodeId> for InodeRef {
    fn from(id: InodeId) -> Self {
        Self { number: id.number, generation: Some(id.generation) }
    }
}
