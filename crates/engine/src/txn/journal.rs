//! What happens to a transaction when it ends.

use crate::Result;
use blockyard_device::BlockDevice;
use blockyard_disk::num::u64_from_usize;
use blockyard_disk::{BlockNr, Timestamp, TxnId};
use std::sync::Arc;

/// The content of a block at the end of a transaction, with its checksum.
pub(crate) struct Image {
    /// Its home.
    pub(crate) block: BlockNr,
    /// One block.
    pub(crate) bytes: Box<[u8]>,
}

/// Where committed transactions go.
///
/// Called by one thread at a time, with no handle waiting on it but those that need the result.
pub(crate) trait Journal: Send + Sync {
    /// Whether a transaction survives a crash once it committed. Where nothing does, a transaction may end without
    /// [`commit`](Self::commit) and be taken for committed.
    fn keeps_promises(&self) -> bool;

    /// The id of the first transaction.
    fn first(&self) -> TxnId;

    /// Most blocks that one transaction may change; a commit is forced before.
    fn blocks_max(&self) -> usize;

    /// Images of the transaction that is about to end, in ascending order of block: who promises nothing may write them
    /// home and take them out, so that no copy of the whole transaction is made.
    ///
    /// # Errors
    /// Of the device.
    fn write_early(&self, _images: &mut Vec<Image>) -> Result<()> {
        Ok(())
    }

    /// Makes a transaction durable: `images` in ascending order of block, and the blocks of which no older copy may
    /// be replayed. Transactions come without gaps; `now` is the time of the commit.
    ///
    /// # Errors
    /// Of the device; the instance turns read-only then.
    fn commit(&self, tid: TxnId, images: Vec<Image>, revoked: &[BlockNr], now: Timestamp) -> Result<()>;

    /// Notes for the next user that this one gave up; what was committed stays.
    ///
    /// # Errors
    /// Of the device.
    fn abort(&self) -> Result<()>;

    /// Brings everything home and marks the log empty; the last call.
    ///
    /// # Errors
    /// Of the device.
    fn close(&self) -> Result<()>;
}

/// No journal: images go straight home.
pub(crate) struct NullJournal {
    device: Arc<dyn BlockDevice>,
    blocks_max: usize,
}

impl NullJournal {
    /// A null journal that lets `blocks_max` blocks change between two writes.
    pub(crate) fn new(device: Arc<dyn BlockDevice>, blocks_max: usize) -> Self {
        Self { device, blocks_max }
    }
}

impl Journal for NullJournal {
    fn keeps_promises(&self) -> bool {
        false
    }

    fn first(&self) -> TxnId {
        TxnId::new(1)
    }

    fn blocks_max(&self) -> usize {
        self.blocks_max
    }

    fn write_early(&self, images: &mut Vec<Image>) -> Result<()> {
        write_home(&*self.device, images.iter().map(|image| (image.block, &*image.bytes)))?;
        images.clear();
        Ok(())
    }

    fn commit(&self, _: TxnId, images: Vec<Image>, _: &[BlockNr], _: Timestamp) -> Result<()> {
        write_home(&*self.device, images.iter().map(|image| (image.block, &*image.bytes)))?;
        Ok(self.device.flush()?)
    }

    fn abort(&self) -> Result<()> {
        Ok(())
    }

    fn close(&self) -> Result<()> {
        Ok(self.device.flush()?)
    }
}

/// Blocks written by one call at most.
pub(crate) const RUN_MAX: usize = 256;

/// Writes images to their homes, neighbours in one call; they come in ascending order of block.
pub(crate) fn write_home<'a>(
    device: &dyn BlockDevice,
    images: impl Iterator<Item = (BlockNr, &'a [u8])>,
) -> Result<()> {
    let mut together: Vec<u8> = Vec::new();
    let (mut offset, mut next, mut count) = (0, None, 0);
    for (block, bytes) in images {
        if count > 0 && (next != Some(block.raw()) || count == RUN_MAX) {
            device.write_at(offset, &together)?;
            together.clear();
            count = 0;
        }
        if count == 0 {
            offset = block.raw() * u64_from_usize(bytes.len());
        }
        together.extend_from_slice(bytes);
        count += 1;
        next = Some(block.raw() + 1);
    }
    if count > 0 {
        device.write_at(offset, &together)?;
    }
    Ok(())
}
