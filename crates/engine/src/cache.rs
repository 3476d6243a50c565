//! The cache of metadata blocks, bounded and sharded. Each block in it has a lock of its own.
//!
//! A block's bytes change under the lock of the block's owner (an inode, a group, a directory). The
//! buffer's own lock is held only while bytes are loaded, read, copied or changed, so owners that
//! share a block (such as the inodes of a table block) do not wait for each other's work. A
//! checksum is stored when a commit writes the block, not when the block changes, so bytes in the
//! cache may have a stale checksum.
//!
//! A full shard evicts buffers that are clean, unreferenced and not used since the hand of its
//! clock (second-chance eviction) last passed them. Dirty buffers stay; the credits of a
//! transaction bound their number ([`crate::txn`]).

mod buffer;
mod shard;

pub(crate) use buffer::{BlockKind, Buffer, Copied};

use crate::Result;
use crate::epoch::Epoch;
use crate::numbers::{SHARDS, shard_of};
use blockyard_device::BlockDevice;
use blockyard_disk::{BlockNr, Corruption, CorruptionKind};
use blockyard_sync::{Backend, CachePadded, Mutex, Native, rank};
use shard::Shard;
use std::sync::Arc;

/// One shard under its lock.
type LockedShard<B> = CachePadded<Mutex<Shard<B>, B>>;

/// Blocks of metadata in memory.
pub(crate) struct MetaCache<B: Backend = Native> {
    device: Arc<dyn BlockDevice>,
    block_size: usize,
    shards: Box<[LockedShard<B>]>,
}

impl<B: Backend> MetaCache<B> {
    /// An empty cache of at most about `bytes_max` bytes, but at least four blocks per shard.
    pub(crate) fn new(device: Arc<dyn BlockDevice>, block_size: usize, bytes_max: usize) -> Self {
        assert!(block_size > 0 && block_size.is_power_of_two(), "blocks of {block_size} bytes");
        let per_shard = (bytes_max / block_size / SHARDS).max(4);
        let shard = || CachePadded::new(Mutex::new(rank::CACHE_SHARD, Shard::new(per_shard)));
        Self { device, block_size, shards: (0..SHARDS).map(|_| shard()).collect() }
    }

    /// Bytes of a block.
    pub(crate) const fn block_size(&self) -> usize {
        self.block_size
    }

    /// The buffer of a block, read from the device if it is not cached; `check` validates what was
    /// read.
    ///
    /// # Errors
    /// Those of the device and of `check`; corruption if the block is in use as metadata of another
    /// class.
    pub(crate) fn read(
        &self,
        block: BlockNr,
        kind: BlockKind,
        check: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<Arc<Buffer<B>>> {
        let buffer = self.buffer(block);
        debug_assert_eq!(buffer.block(), block, "the buffer of another block");
        if !buffer.is_loaded() {
            buffer.load(kind, self.block_size, |bytes| {
                self.device
                    .read_at(block.raw() * blockyard_disk::num::u64_from_usize(self.block_size), bytes)?;
                check(bytes)
            })?;
        }
        if !buffer.is_of_class(kind) {
            return Err(Corruption::new(CorruptionKind::BlockTwoKinds).in_block(block).into());
        }
        Ok(buffer)
    }

    /// Fills a buffer with zeroes, without reading the block from the device.
    pub(crate) fn reset(&self, buffer: &Buffer<B>, kind: BlockKind) {
        buffer.reset(kind, self.block_size);
    }

    /// The buffer of a block if it is in memory.
    pub(crate) fn cached(&self, block: BlockNr) -> Option<Arc<Buffer<B>>> {
        self.shard(block).lock().find(block).filter(|buffer| buffer.is_loaded())
    }

    /// Drops a block whose content no longer matters from `epoch` on.
    pub(crate) fn forget(&self, block: BlockNr, epoch: Epoch) {
        let dropped = self.shard(block).lock().remove(block);
        if let Some(buffer) = dropped {
            buffer.forget(epoch);
        }
    }

    /// The buffer of a block, which may not have been read yet.
    pub(crate) fn buffer(&self, block: BlockNr) -> Arc<Buffer<B>> {
        self.shard(block).lock().find_or_insert(block)
    }

    fn shard(&self, block: BlockNr) -> &Mutex<Shard<B>, B> {
        &self.shards[shard_of(block.raw())]
    }
}
