//! Where in the log to find the committed images that are not home yet, and a device that shows
//! them to readers.
//!
//! Memory holds an *entry* for each such image: its position. The images themselves are only on the
//! log's device, so pending checkpoints take little memory. Reading a block that has an entry never
//! waits for a checkpoint. A newer image of the block replaces the entry, and a revoke of the block
//! removes it. Otherwise the entry is removed only after its image was written home. As long as an
//! entry exists, its log block is not overwritten.

use super::blocks::LogBlocks;
use crate::txn::Prepared;
use blockyard_device::{BlockDevice, DeviceError, Result};
use blockyard_disk::jbd2::unescape;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_disk::{BlockNr, TxnId};
use blockyard_sync::{Backend, Native, RwLock, rank};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most bytes of images that a checkpoint reads and writes home at a time.
const PART_BYTES: usize = 1 << 20;

/// The position of the newest committed image of each block whose image is not home yet.
pub(crate) struct Committed<B: Backend = Native> {
    log: Arc<LogBlocks>,
    images: RwLock<BTreeMap<BlockNr, Logged>, B>,
}

/// An image in the log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Logged {
    /// The image's transaction.
    pub(super) tid: TxnId,
    /// The image's log block.
    pub(super) at: u32,
    /// The checksum of the image as logged, if the log has checksums.
    pub(super) checksum: u32,
    /// Whether the image's first word was replaced by 0 in the log, because it was the magic number
    /// of log records.
    pub(super) is_escaped: bool,
}

impl<B: Backend> Committed<B> {
    /// An empty set for this log.
    pub(crate) fn new(log: Arc<LogBlocks>) -> Self {
        Self { log, images: RwLock::new(rank::COMMITTED, BTreeMap::new()) }
    }

    /// The log that holds the images.
    pub(super) const fn log(&self) -> &Arc<LogBlocks> {
        &self.log
    }

    /// Records a committed transaction. Older images of revoked blocks are dropped and never go
    /// home: the blocks may belong to another owner now.
    pub(super) fn insert(&self, images: &[(BlockNr, Logged)], revoked: &[BlockNr]) {
        debug_assert!(
            images.iter().all(|(block, _)| !revoked.contains(block)),
            "a transaction logs a block that it revokes"
        );
        let mut all = self.images.write();
        for block in revoked {
            all.remove(block);
        }
        all.extend(images.iter().copied());
    }

    /// Writes the images of `last` and earlier transactions home, in ascending order of block.
    ///
    /// # Errors
    /// Errors of writing to the home device. If an image cannot be read from the log, the result is
    /// [`Prepared::Unreadable`] instead. Some images may already have been written home, but all of
    /// them are still in the log.
    pub(super) fn bring_home(&self, home: &dyn BlockDevice, last: TxnId) -> Result<Prepared> {
        let images: Vec<(BlockNr, Logged)> = {
            let all = self.images.read();
            all.iter()
                .filter(|(_, image)| !image.tid.is_after(last))
                .map(|(&block, &image)| (block, image))
                .collect()
        };
        let size = self.log.block_size();
        let mut bytes = Vec::new();
        for part in images.chunks((PART_BYTES / size).max(1)) {
            bytes.resize(part.len() * size, 0);
            if let Err(error) = self.read(part, &mut bytes) {
                return Ok(Prepared::Unreadable(error.into()));
            }
            let mut rest = &*bytes;
            for neighbours in part.chunk_by(|(left, _), (right, _)| left.raw() + 1 == right.raw()) {
                let (now, later) = rest.split_at(neighbours.len() * size);
                home.write_at(neighbours[0].0.raw() * u64_from_usize(size), now)?;
                rest = later;
            }
        }
        Ok(Prepared::Ready)
    }

    /// Reads images from the log, adjacent ones in one call. Returns an error if a checksum shows
    /// that the content is not what was written, because such content must not go home.
    fn read(&self, images: &[(BlockNr, Logged)], bytes: &mut [u8]) -> Result<()> {
        let size = self.log.block_size();
        debug_assert_eq!(bytes.len(), images.len() * size, "a block for each image");
        let mut rest = bytes;
        for run in images.chunk_by(|(_, left), (_, right)| left.at + 1 == right.at) {
            let (now, later) = rest.split_at_mut(run.len() * size);
            self.log.read(run[0].1.at, now)?;
            for ((_, image), block) in run.iter().zip(now.chunks_mut(size)) {
                self.verify(image, block)?;
                if image.is_escaped {
                    unescape(block);
                }
            }
            rest = later;
        }
        Ok(())
    }

    fn verify(&self, image: &Logged, logged: &[u8]) -> Result<()> {
        let format = self.log.format();
        if !format.has_block_checksums() || format.data_checksum(image.tid, logged) == image.checksum {
            return Ok(());
        }
        Err(DeviceError::Io {
            operation: "read",
            offset: self.log.offset(image.at),
            length: u64_from_usize(logged.len()),
            source: std::io::Error::new(
                std::io::ErrorKind::InvalidData,
                format!("log block {} does not hold what was written there", image.at),
            ),
        })
    }

    /// Removes the entries of `last` and earlier transactions, after [`Self::bring_home`].
    pub(super) fn remove_up_to(&self, last: TxnId) {
        self.images.write().retain(|_, image| image.tid.is_after(last));
    }

    fn find(&self, block: BlockNr) -> Option<Logged> {
        self.images.read().get(&block).copied()
    }

    /// Reads the committed image of a block from the log. Returns false if there is none, so the
    /// block at home is current; the content of `bytes` is then undefined.
    fn read_newest(&self, block: BlockNr, bytes: &mut [u8]) -> Result<bool> {
        while let Some(image) = self.find(block) {
            let read = self.read(&[(block, image)], bytes);
            // The log block is not overwritten while the entry exists. So if the entry still
            // exists, the image was not overwritten during the read.
            if self.find(block) == Some(image) {
                return read.map(|()| true);
            }
        }
        Ok(false)
    }
}

/// The file system's device. Reads of one block show the block as it will be once all committed
/// images are home.
pub(crate) struct HomeView<B: Backend = Native> {
    home: Arc<dyn BlockDevice>,
    committed: Arc<Committed<B>>,
    block_size: usize,
}

impl<B: Backend> HomeView<B> {
    /// A view of `home`.
    pub(crate) fn new(home: Arc<dyn BlockDevice>, committed: Arc<Committed<B>>, block_size: usize) -> Self {
        assert!(block_size.is_power_of_two(), "blocks of {block_size} bytes");
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

    /// A read of exactly one aligned block gets its committed image, if there is one. Other reads
    /// get the bytes that are at home now.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if buf.len() == self.block_size && usize_from_u64(offset).is_multiple_of(self.block_size) {
            let block = BlockNr::new(offset / u64_from_usize(self.block_size));
            if self.committed.read_newest(block, buf)? {
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

#[cfg(test)]
mod tests {
    use super::{Committed, HomeView, LogBlocks, Logged};
    use crate::journal::Wanted;
    use crate::mkfs;
    use blockyard_device::{BlockDevice, MemoryDevice, Result};
    use blockyard_disk::{BlockNr, TxnId};
    use blockyard_recovery::Session;
    use blockyard_sync::{Mutex, rank};
    use std::sync::{Arc, OnceLock};

    const BLOCK: BlockNr = BlockNr::new(14_000);

    /// What happens after a reader has found an image's position, and before it reads the image.
    type Meanwhile = Box<dyn FnOnce(&MemoryDevice) + Send>;

    /// A device that does something before its first read.
    struct Slow(MemoryDevice, Mutex<Option<Meanwhile>>);

    impl BlockDevice for Slow {
        fn size(&self) -> u64 {
            self.0.size()
        }
        fn is_read_only(&self) -> bool {
            false
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
            let meanwhile = self.1.lock().take();
            if let Some(meanwhile) = meanwhile {
                meanwhile(&self.0);
            }
            self.0.read_at(offset, buf)
        }
        fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
            self.0.write_at(offset, data)
        }
        fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
            self.0.write_zeroes(offset, length)
        }
        fn discard(&self, offset: u64, length: u64) -> Result<()> {
            self.0.discard(offset, length)
        }
        fn flush(&self) -> Result<()> {
            self.0.flush()
        }
    }

    /// A block filled with one number.
    fn filled(with: u8) -> [u8; 1024] {
        [with; 1024]
    }

    /// A reader has found an image's position in the log. Before it reads the image, the image is
    /// written home, or a newer one is committed; then the image's log block is overwritten. The
    /// reader gets the block from home, or the newer image.
    #[test]
    fn who_reads_from_the_log_gets_the_newest_image_of_the_block() {
        for goes_home in [true, false] {
            let device = MemoryDevice::new(16 << 20);
            mkfs::format(&device, &mkfs::Options::ext4().block_size(1024).identity(1, 1)).unwrap();
            let place = Session::open(&device).unwrap().into_journal().unwrap();
            let wanted = Wanted { is_64bit: true, has_checksums: false };
            let log_at = |at: u32| place.physical(at).raw() * 1024;
            device.write_at(log_at(2), &filled(1)).unwrap();
            device.write_at(log_at(5), &filled(2)).unwrap();
            device.write_at(BLOCK.raw() * 1024, &filled(0)).unwrap();
            let (first_place, all) = (log_at(2), Arc::new(OnceLock::<Arc<Committed>>::new()));
            let known = Arc::clone(&all);
            let image =
                |tid, at| [(BLOCK, Logged { tid: TxnId::new(tid), at, checksum: 0, is_escaped: false })];
            let newer = image(8, 5);
            let meanwhile: Meanwhile = Box::new(move |device| {
                let committed = known.get().unwrap();
                if goes_home {
                    device.write_at(BLOCK.raw() * 1024, &filled(1)).unwrap();
                    committed.remove_up_to(TxnId::new(7));
                } else {
                    committed.insert(&newer, &[]);
                }
                device.write_at(first_place, &filled(9)).unwrap();
            });
            let slow: Arc<dyn BlockDevice> =
                Arc::new(Slow(device, Mutex::new(rank::DEVICE, Some(meanwhile))));
            let log = Arc::new(LogBlocks::new(Arc::clone(&slow), None, place, wanted));
            let committed = Arc::new(Committed::new(log));
            committed.insert(&image(7, 2), &[]);
            assert!(all.set(Arc::clone(&committed)).is_ok());
            let mut bytes = filled(77);
            HomeView::new(slow, committed, 1024).read_at(BLOCK.raw() * 1024, &mut bytes).unwrap();
            assert_eq!(bytes, filled(if goes_home { 1 } else { 2 }));
        }
    }
}
