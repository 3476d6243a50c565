//! What happens to a transaction when it ends.

use crate::Result;
use blockyard_device::BlockDevice;
use blockyard_disk::num::u64_from_usize;
use blockyard_disk::{BlockNr, TxnId};
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
    /// Whether a transaction that ended without [`commit`](Self::commit) may be taken for committed: true when
    /// nothing promises to survive a crash anyway.
    fn allows_empty_commit_points(&self) -> bool;

    /// Most blocks that one transaction may change; a commit is forced before.
    fn blocks_max(&self) -> usize;

    /// Makes a transaction durable: `images` in ascending order of block, and the blocks of which no older copy may
    /// be replayed.
    ///
    /// # Errors
    /// Of the device; the instance turns read-only then.
    fn commit(&self, transaction: TxnId, images: Vec<Image>, revoked: &[BlockNr]) -> Result<()>;

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
    fn allows_empty_commit_points(&self) -> bool {
        true
    }

    fn blocks_max(&self) -> usize {
        self.blocks_max
    }

    fn commit(&self, _: TxnId, images: Vec<Image>, _: &[BlockNr]) -> Result<()> {
        write_home(&*self.device, &images)?;
        Ok(self.device.flush()?)
    }

    fn close(&self) -> Result<()> {
        Ok(self.device.flush()?)
    }
}

/// Blocks written by one call at most.
const RUN_MAX: usize = 256;

/// Writes images to their homes, neighbours in one call.
pub(crate) fn write_home(device: &dyn BlockDevice, images: &[Image]) -> Result<()> {
    let mut together = Vec::new();
    for run in images.chunk_by(|left, right| left.block.raw() + 1 == right.block.raw()) {
        for part in run.chunks(RUN_MAX) {
            let offset = part[0].block.raw() * u64_from_usize(part[0].bytes.len());
            if let [only] = part {
                device.write_at(offset, &only.bytes)?;
                continue;
            }
            together.clear();
            part.iter().for_each(|image| together.extend_from_slice(&image.bytes));
            device.write_at(offset, &together)?;
        }
    }
    Ok(())
}
