//! Images of committed transactions that are not at home yet, and a device that shows them.
//!
//! A reader of the metadata cache that finds a block here never waits for a checkpoint: an image leaves only after
//! its home write has returned.

use crate::txn::Image;
use blockyard_device::{BlockDevice, Result};
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_disk::{BlockNr, TxnId};
use blockyard_sync::{Backend, Native, RwLock, rank};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The newest committed image of each block that is not at home.
pub(crate) struct Committed<B: Backend = Native> {
    images: RwLock<BTreeMap<BlockNr, Entry>, B>,
}

struct Entry {
    tid: TxnId,
    /// Boxed, so that the image is not copied.
    bytes: Arc<Box<[u8]>>,
}

impl<B: Backend> Committed<B> {
    /// Nothing.
    pub(crate) fn new() -> Self {
        Self { images: RwLock::new(rank::COMMITTED, BTreeMap::new()) }
    }

    /// Blocks that are not at home.
    pub(super) fn len(&self) -> usize {
        self.images.read().len()
    }

    /// A transaction has committed. Revoked blocks never go home: they may belong to somebody else now.
    pub(super) fn insert(&self, tid: TxnId, images: Vec<Image>, revoked: &[BlockNr]) {
        let mut all = self.images.write();
        for block in revoked {
            all.remove(block);
        }
        all.extend(
            images.into_iter().map(|image| (image.block, Entry { tid, bytes: Arc::new(image.bytes) })),
        );
    }

    /// The images of `last` and of earlier transactions, in ascending order of block.
    pub(super) fn up_to(&self, last: TxnId) -> Vec<(BlockNr, Arc<Box<[u8]>>)> {
        let all = self.images.read();
        all.iter()
            .filter(|(_, entry)| !entry.tid.is_after(last))
            .map(|(&block, entry)| (block, Arc::clone(&entry.bytes)))
            .collect()
    }

    /// What [`Self::up_to`] gave is at home.
    pub(super) fn remove_up_to(&self, last: TxnId) {
        self.images.write().retain(|_, entry| entry.tid.is_after(last));
    }

    fn find(&self, block: BlockNr) -> Option<Arc<Box<[u8]>>> {
        self.images.read().get(&block).map(|entry| Arc::clone(&entry.bytes))
    }
}

/// The file system's device as it will be when everything committed is at home.
pub(crate) struct HomeView<B: Backend = Native> {
    home: Arc<dyn BlockDevice>,
    committed: Arc<Committed<B>>,
    block_size: usize,
}

impl<B: Backend> HomeView<B> {
    /// A view of `home`.
    pub(crate) fn new(home: Arc<dyn BlockDevice>, committed: Arc<Committed<B>>, block_size: usize) -> Self {
        Self { home, committed, block_size }
    }
}

impl<B: Backend> BlockDevice for HomeView<B> {
    fn size(&self) -> u64 {
        self.home.size()
    }

    fn is_read_only(&self) -> bool {
        self.home.is_read_only()
    }

    /// Reads of one block each; others go through.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if buf.len() == self.block_size && usize_from_u64(offset).is_multiple_of(self.block_size) {
            let block = BlockNr::new(offset / u64_from_usize(self.block_size));
            if let Some(bytes) = self.committed.find(block) {
                buf.copy_from_slice(&bytes);
                return Ok(());
            }
        }
        self.home.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.home.write_at(offset, data)
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
        self.home.write_zeroes(offset, length)
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.home.discard(offset, length)
    }

    fn flush(&self) -> Result<()> {
        self.home.flush()
    }
}
