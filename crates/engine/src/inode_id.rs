//! The identity of an inode, which tells it apart from all others, even from earlier ones with the
//! same number.

use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;

/// One inode: its number, and a generation. The generation is pseudo-random, so it almost certainly
/// differs from that of an earlier inode with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId {
    /// The number.
    pub number: InodeNr,
    /// The generation.
    pub generation: u32,
}

/// How a caller names an inode. A number alone means whichever inode has it now. With a generation,
/// operations fail with [`Error::StaleInode`](crate::Error::StaleInode) once the inode is deleted,
/// even if another inode has its number by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeRef {
    /// The number.
    pub number: InodeNr,
    /// The generation that it must have; `None` accepts any.
    pub generation: Option<u32>,
}

/// The inode that a name in a directory stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The inode.
    pub inode: InodeId,
    /// The inode's type.
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
