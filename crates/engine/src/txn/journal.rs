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
    /// home, so that no copy of the whole transaction is made. False when they are to come with the commit.
    ///
    /// # Errors
    /// Of the device.
    fn write_early(&self, _images: &[Image]) -> Result<bool> {
        Ok(false)
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

    fn write_early(&self, images: &[Image]) -> Result<bool> {
        write_home(&*self.device, images.iter().map(|image| (image.block, &*image.bytes)))?;
        Ok(true)
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

/// Images written early at once: few enough that they stay in the CPU's cache between copying and writing.
pub(crate) const EARLY_MAX: usize = 64;
/// Blocks written by one call at most.
const RUN_MAX: usize = 256;

/// Writes images to their homes, neighbours in one call; they come in ascending order of block.
pub(crate) fn write_home<'a>(
    device: &dyn BlockDevice,
    images: impl Iterator<Item = (BlockNr, &'a [u8])>,
) -> Result<()> {
    let images: Vec<(BlockNr, &[u8])> = images.collect();
    let mut together: Vec<u8> = Vec::new();
    for neighbours in images.chunk_by(|(left, _), (right, _)| left.raw() + 1 == right.raw()) {
        for run in neighbours.chunks(RUN_MAX) {
            let (block, first) = run[0];
            let offset = block.raw() * u64_from_usize(first.len());
            if run.len() == 1 {
                device.write_at(offset, first)?;
                continue;
            }
            together.clear();
            for (_, bytes) in run {
                together.extend_from_slice(bytes);
            }
            device.write_at(offset, &together)?;
        }
    }
    Ok(())
}
