//! The destination of transactions when they end: a journal, or the blocks' homes without one.

use crate::{Error, Result};
use blockyard_device::BlockDevice;
use blockyard_disk::num::u64_from_usize;
use blockyard_disk::{BlockNr, Timestamp, TxnId};
use std::sync::Arc;

/// The content of a block at the end of a transaction, with its checksum.
pub(crate) struct Image {
    /// The block's number, which is its home.
    pub(crate) block: BlockNr,
    /// The bytes of one block.
    pub(crate) bytes: Box<[u8]>,
}

/// Whether a transaction can be written.
pub(crate) enum Prepared {
    /// The transaction can be written.
    Ready,
    /// Older transactions must go home first, but reading them failed with this error. All of them
    /// are still in the log.
    Unreadable(Error),
}

impl Prepared {
    /// Turns [`Self::Unreadable`] into an error, for callers that must write the transaction now.
    ///
    /// # Errors
    /// The error of [`Self::Unreadable`].
    pub(crate) fn or_fail(self) -> Result<()> {
        match self {
            Self::Ready => Ok(()),
            Self::Unreadable(error) => Err(error),
        }
    }
}

/// Destination of committed transactions.
///
/// The methods that write are called by one thread at a time. No thread waits for a journal inside
/// a handle. An operation waits for a commit only if it needs the result, if the running
/// transaction has no room for it, or if it runs the commit itself.
pub(crate) trait Journal: Send + Sync {
    /// Whether a committed transaction survives a crash. If not, a transaction may end without
    /// [`commit`](Self::commit) and count as committed.
    fn is_durable(&self) -> bool;

    /// Makes the journal's first write, before the first transaction. Does nothing if the journal
    /// is not durable.
    ///
    /// # Errors
    /// Errors of the device.
    fn start(&self) -> Result<()> {
        Ok(())
    }

    /// The id of the first transaction.
    fn first(&self) -> TxnId;

    /// The most blocks that one transaction may change; a commit is forced before it changes more.
    fn blocks_max(&self) -> usize;

    /// How many images to pass to [`write`](Self::write) at once: few enough to need little memory,
    /// and enough to fill one write to the device.
    fn images_at_once(&self) -> usize;

    /// Makes room for a transaction of `blocks` blocks. Called before the transaction ends, when a
    /// failure to read the log does no harm yet.
    ///
    /// # Errors
    /// Errors of writing to the device; the instance then becomes read-only.
    fn prepare(&self, _blocks: usize) -> Result<Prepared> {
        Ok(Prepared::Ready)
    }

    /// Begins writing transaction `tid`: at most `images_max` images will follow, and no older copy
    /// of the blocks in `revoked` may be replayed. With a durable journal, each `tid` is the
    /// successor of the previous one.
    ///
    /// # Errors
    /// Errors of the device; the instance then becomes read-only.
    fn begin(&self, tid: TxnId, images_max: usize, revoked: &[BlockNr]) -> Result<()>;

    /// Writes images of the current transaction, in ascending order of block. The caller may reuse
    /// their memory.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    fn write(&self, images: &[Image]) -> Result<()>;

    /// Makes the transaction durable, after all images were written. `now` is the time of the
    /// commit.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    fn commit(&self, now: Timestamp) -> Result<()>;

    /// Records in the journal that this instance failed. Committed transactions stay in the
    /// journal.
    ///
    /// # Errors
    /// Errors of the device.
    fn abort(&self) -> Result<()>;

    /// Writes everything home and marks the log empty. A file system makes no other call
    /// afterwards.
    ///
    /// # Errors
    /// Errors of the device.
    fn close(&self) -> Result<()>;
}

/// The most blocks written by one call: few enough that they stay in the CPU's cache between
/// copying and writing.
const RUN_MAX: usize = 64;

/// No journal: images go straight home.
pub(crate) struct NullJournal {
    device: Arc<dyn BlockDevice>,
    /// The most blocks that may be dirty in memory.
    dirty_max: usize,
}

impl NullJournal {
    /// A null journal that lets at most `dirty_max` blocks change between two commits.
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

    /// Writes images to their homes, neighbouring ones in one call.
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
