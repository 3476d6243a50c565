//! Which physical blocks hold the logical blocks of an inode, whatever kind of mapping it has.
//!
//! [`lookup`] looks up, maps and unmaps blocks. [`allocate`] chooses blocks for a hole and maps
//! them. [`removal`] unmaps blocks and frees them. Extent trees get their blocks from [`store`];
//! the block maps of ext2 and ext3 are in [`indirect`].

mod allocate;
pub(crate) mod indirect;
mod lookup;
mod removal;
mod store;

pub(crate) use allocate::{How, Plan};
pub(crate) use store::ExtentStore;

use crate::inode::{Inode, InodeCore};
use crate::options::DataMode;
use crate::volume::Volume;
use blockyard_disk::inode::{FileType, InodeFlags};
use std::sync::Arc;

/// The mappings of all inodes.
pub(crate) struct Mapping {
    volume: Arc<Volume>,
}

impl Mapping {
    /// The mappings of a volume.
    pub(crate) fn new(volume: &Arc<Volume>) -> Self {
        Self { volume: Arc::clone(volume) }
    }

    /// Whether the data of a file is written to the journal before it is written home.
    pub(crate) fn logs_data(&self, inode: &Inode, core: &InodeCore) -> bool {
        let wanted = self.volume.options().data == DataMode::Journal
            || core.flags().contains(InodeFlags::JOURNAL_DATA);
        wanted && inode.kind() == FileType::Regular && self.volume.journal.is_durable()
    }

    /// Whether the blocks of an inode are metadata for the journal: those of directories and
    /// symbolic links, and logged data.
    pub(crate) fn holds_metadata(&self, inode: &Inode, core: &InodeCore) -> bool {
        inode.kind() != FileType::Regular || self.logs_data(inode, core)
    }
}
