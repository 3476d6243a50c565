//! Regular files: reading, writing, and the operations that change which blocks a file has.
//!
//! Data goes first, metadata second: a delayed block gets a claim, its data is written to the
//! claimed clusters, and only then a handle marks the clusters as used, maps them and raises the
//! size on disk. So nobody can ever read what the clusters held before, and no handle is open
//! during this I/O. But inline content that moves to a block is written inside a handle.
//!
//! [`Files`] is the entry point: it finds the inode and takes its content lock. It also has the
//! operations that need no such lock. [`LockedFile`] is a file whose content lock is held. Each
//! source file of this folder has at most one `impl` block for each of the two types.

mod convert;
mod direct;
mod extents;
mod fallocate;
mod inline;
mod limits;
mod logged;
mod page_cache;
mod part;
mod read;
#[cfg(test)]
mod reservation_tests;
mod reservations;
mod room;
mod steps;
mod times;
mod truncate;
mod write;
mod write_back;
mod writing;

pub use extents::{FileExtent, Seek};
pub use fallocate::Fallocate;
pub(crate) use limits::{FREE_CREDITS, RUN_CREDITS};

use crate::OpContext;
use crate::data::{BufferPool, DataStore, FileData};
use crate::inode::Inode;
use crate::mapping::Mapping;
use crate::volume::Volume;
use blockyard_disk::inode::FileType;
use blockyard_disk::num::u64_from_usize;
use blockyard_sync::{AtomicU64, Ordering};
use page_cache::PageCache;
use std::sync::Arc;
use writing::{Whole, Writing};

/// The content of files.
pub(crate) struct Files {
    volume: Arc<Volume>,
    mapping: Arc<Mapping>,
    writing: Box<dyn Writing>,
    /// Reads and writes data on the device.
    store: DataStore,
    /// Memory for dirty data.
    buffers: Arc<BufferPool>,
    /// Bytes of dirty file data. Accessed relaxed: the number is only compared with thresholds and
    /// reported.
    dirty_bytes: AtomicU64,
}

impl Files {
    /// The files of a volume.
    pub(crate) fn new(volume: &Arc<Volume>, mapping: &Arc<Mapping>) -> Self {
        let instruments = &volume.options().instruments;
        let writing: Box<dyn Writing> = if instruments.page_cache {
            Box::new(PageCache::new(instruments.io_ends.clone(), volume.delays_allocation()))
        } else {
            Box::new(Whole)
        };
        let (block_bits, options) = (volume.geometry().block_bits(), volume.options());
        Self {
            volume: Arc::clone(volume),
            mapping: Arc::clone(mapping),
            writing,
            store: DataStore::new(Arc::clone(&volume.device), block_bits, options.clean_data_bytes),
            buffers: BufferPool::new(block_bits, options.dirty_data_bytes),
            dirty_bytes: AtomicU64::new(0),
        }
    }

    /// Bytes of dirty data, and the number of clusters that the allocator counts as reserved for
    /// this data and its mappings.
    pub(crate) fn owed(&self) -> (u64, u64) {
        (self.dirty_bytes.load(Ordering::Relaxed), self.volume.space.delayed_clusters())
    }

    /// A file whose content lock the caller holds; `data` is what the lock guards.
    pub(crate) fn locked<'a>(
        &'a self,
        ctx: &'a OpContext,
        inode: &'a Arc<Inode>,
        data: &'a mut FileData,
    ) -> LockedFile<'a> {
        debug_assert!(
            inode.kind() == FileType::Regular || inode.waiting().dirty.is_empty(),
            "inode {} is not a file and has waiting data",
            inode.number()
        );
        debug_assert_eq!(
            inode.delayed_clusters(),
            u64_from_usize(data.reserved_len()),
            "the reservations of inode {} were not noted",
            inode.number()
        );
        LockedFile { files: self, ctx, inode, data }
    }
}

/// A file whose content lock an operation holds.
pub(crate) struct LockedFile<'a> {
    files: &'a Files,
    ctx: &'a OpContext,
    inode: &'a Arc<Inode>,
    data: &'a mut FileData,
}
