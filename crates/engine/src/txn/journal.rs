//! What happens to a transaction when it ends.

use crate::{Error, Result};
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

/// Whether a transaction can be written.
pub(crate) enum Prepared {
    /// It can.
    Ready,
    /// Older ones have to go home first, and could not be read for this reason. All is as it was.
    Unreadable(Error),
}

impl Prepared {
    /// An error instead of waiting, for callers that cannot wait.
    ///
    /// # Errors
    /// Why it is not ready.
    pub(crate) fn or_fail(self) -> Result<()> {
        match self {
            Self::Ready => Ok(()),
            Self::Unreadable(error) => Err(error),
        }
    }
}

/// Where committed transactions go.
///
/// Called by one thread at a time, with no handle waiting on it but those that need the result.
pub(crate) trait Journal: Send + Sync {
    /// Whether a transaction survives a crash once it committed. Where nothing does, a transaction
    /// may end without [`commit`](Self::commit) and be taken for committed.
    fn is_durable(&self) -> bool;

    /// The first write: before the first transaction. Nothing to do for one that keeps nothing.
    ///
    /// # Errors
    /// Errors of the device.
    fn start(&self) -> Result<()> {
        Ok(())
    }

    /// The id of the first transaction.
    fn first(&self) -> TxnId;

    /// Most blocks that one transaction may change; a commit is forced before.
    fn blocks_max(&self) -> usize;

    /// Images to give to [`write`](Self::write) at once: few enough that they are not much memory,
    /// and enough for one call of the device.
    fn images_at_once(&self) -> usize;

    /// Sees to it that a transaction of `blocks` blocks has room, before one ends: what cannot be
    /// read for that harms nothing yet.
    ///
    /// # Errors
    /// Errors of the device when it was written to; the instance turns read-only then.
    fn prepare(&self, _blocks: usize) -> Result<Prepared> {
        Ok(Prepared::Ready)
    }

    /// A transaction is about to be written: `images_max` images at most will come, and no older
    /// copy of the blocks `revoked` may be replayed. Transactions come without gaps.
    ///
    /// # Errors
    /// Errors of the device; the instance turns read-only then.
    fn begin(&self, tid: TxnId, images_max: usize, revoked: &[BlockNr]) -> Result<()>;

    /// Images of the transaction that was begun, in ascending order of block. The caller may use
    /// their memory again.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    fn write(&self, images: &[Image]) -> Result<()>;

    /// All images were written: makes the transaction durable. `now` is the time of the commit.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    fn commit(&self, now: Timestamp) -> Result<()>;

    /// Notes for the next user that this one gave up; what was committed stays.
    ///
    /// # Errors
    /// Errors of the device.
    fn abort(&self) -> Result<()>;

    /// Brings everything home and marks the log empty; the last call.
    ///
    /// # Errors
    /// Errors of the device.
    fn close(&self) -> Result<()>;
}

/// Blocks written by one call at most: few enough that they stay in the CPU's cache between copying
/// and writing.
const RUN_MAX: usize = 64;

/// No journal: images go straight home.
pub(crate) struct NullJournal {
    device: Arc<dyn BlockDevice>,
    /// Blocks that may be dirty in memory.
    dirty_max: usize,
}

impl NullJournal {
    /// A null journal that lets as many blocks change between two writes as memory holds.
    pub(crate) fn new(device: Arc<dyn BlockDevice>, dirty_max: usize) -> Self {
        Self { device, dirty_max }
    }
}

impl Journal for NullJournal {
    fn is_durable(&self) -> bool {
        false
    }

    fn first(&self) -> TxnId {
        TxnId::new(1)
    }

    fn blocks_max(&self) -> usize {
        self.dirty_max
    }

    fn images_at_once(&self) -> usize {
        RUN_MAX
    }

    fn begin(&self, _: TxnId, _: usize, _: &[BlockNr]) -> Result<()> {
        Ok(())
    }

    /// Writes images to their homes, neighbours in one call.
    fn write(&self, images: &[Image]) -> Result<()> {
        debug_assert!(
            images.is_sorted_by(|one, next| one.block < next.block),
            "images come in ascending order, each block once"
        );
        let mut together: Vec<u8> = Vec::new();
        for neighbours in images.chunk_by(|left, right| left.block.raw() + 1 == right.block.raw()) {
            for run in neighbours.chunks(RUN_MAX) {
                let offset = run[0].block.raw() * u64_from_usize(run[0].bytes.len());
                if let [alone] = run {
                    self.device.write_at(offset, &alone.bytes)?;
                    continue;
                }
                together.clear();
                for image in run {
                    together.extend_from_slice(&image.bytes);
                }
                self.device.write_at(offset, &together)?;
            }
        }
        Ok(())
    }

    fn commit(&self, _: Timestamp) -> Result<()> {
        Ok(self.device.flush()?)
    }

    fn abort(&self) -> Result<()> {
        Ok(())
    }

    fn close(&self) -> Result<()> {
        Ok(self.device.flush()?)
    }
}
