//! A small read-only reader for commands such as `stat`, `ls`, `cat` and `map`.
//!
//! The reader keeps only the superblock and a fixed number of metadata blocks in memory. It
//! verifies a structure each time it reads it. It never replays a journal: an image that needs
//! recovery shows the state before the replay.
//!
//! Loops over disk data are bounded: those over extent trees by the depths and ranges in the nodes,
//! those over block maps and directories by the number of blocks of the file system.

mod attributes;
mod bitmaps;
mod cache;
mod content;
mod directory;
mod error;
mod index;
mod map;
mod path;

pub use attributes::Xattr;
pub use directory::{DirEntries, DirEntry};
pub use error::{Error, Result};
pub use map::{MapWalk, Run, RunKind};

use std::sync::Arc;

use blockyard_device::BlockDevice;
use blockyard_disk::num::{u64_from_usize, usize_from_u32};
use blockyard_disk::superblock::PRIMARY_OFFSET;
use blockyard_disk::{
    BlockNr, Corruption, CorruptionKind, GroupDescriptor, GroupNr, Inode, InodeNr, Superblock,
};

use cache::BlockCache;

/// A file system opened for reading by one thread. Each thread needs a reader of its own; to open
/// one costs one read of the device.
pub struct Reader {
    device: Arc<dyn BlockDevice>,
    superblock: Superblock,
    cache: BlockCache,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("geometry", self.superblock.geometry()).finish_non_exhaustive()
    }
}

impl Reader {
    /// Reads and verifies the primary superblock.
    ///
    /// # Errors
    /// [`Error::Device`]; [`Error::Disk`] when the device is too small for a superblock, or the
    /// superblock fails a check or has features that cannot be read; [`Error::DeviceTooSmall`] when
    /// the device ends before the file system does.
    pub fn open(device: Arc<dyn BlockDevice>) -> Result<Self> {
        let mut bytes = [0; 1024];
        if device.size() < PRIMARY_OFFSET + u64_from_usize(bytes.len()) {
            return Err(Error::from(Corruption::new(CorruptionKind::SuperblockMagic)));
        }
        device.read_at(PRIMARY_OFFSET, &mut bytes)?;
        let superblock = Superblock::parse(&bytes)?;
        let geometry = superblock.geometry();
        let needed = geometry.blocks_count().raw() << geometry.block_bits();
        if device.size() < needed {
            return Err(Error::DeviceTooSmall { size: device.size(), needed });
        }
        Ok(Self { cache: BlockCache::new(), device, superblock })
    }

    /// The verified superblock.
    #[must_use]
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The device that is read.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// One block, from the cache if it is there. Its content is not verified.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn block(&self, number: BlockNr) -> Result<Arc<[u8]>> {
        if let Some(block) = self.cache.find(number) {
            return Ok(block);
        }
        let geometry = self.superblock.geometry();
        let mut bytes = vec![0; geometry.block_size()];
        self.device.read_at(number.raw() << geometry.block_bits(), &mut bytes)?;
        let block: Arc<[u8]> = bytes.into();
        self.cache.keep(number, Arc::clone(&block));
        Ok(block)
    }

    /// The verified descriptor of a group, whose number must be below the group count.
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::Disk`].
    pub fn group(&self, group: GroupNr) -> Result<GroupDescriptor> {
        let (number, offset) = self.superblock.descriptor_place(group);
        let block = self.block(number)?;
        GroupDescriptor::parse(&self.superblock, group, &block[offset..])
            .map_err(|found| Error::from(found.in_block(number)))
    }

    /// The inode with this number, verified.
    ///
    /// # Errors
    /// [`Error::Device`]; [`Error::Disk`], also when the number is out of range or the inode is not
    /// in use.
    pub fn inode(&self, number: InodeNr) -> Result<Inode> {
        let geometry = self.superblock.geometry();
        if number.raw() == 0 || number.raw() > geometry.inodes_count() {
            return Err(Error::from(Corruption::new(CorruptionKind::InodeNumber).in_inode(number)));
        }
        let (group, index) = geometry.locate_inode(number);
        let table = self.group(group)?.inode_table();
        let size = usize::from(geometry.inode_size());
        let per_block = geometry.block_size() / size;
        let index = usize_from_u32(index);
        let block_nr = table + blockyard_disk::BlockCount::new(u64_from_usize(index / per_block));
        let block = self.block(block_nr)?;
        let offset = index % per_block * size;
        Inode::parse(&self.superblock, number, &block[offset..offset + size])
            .map_err(|found| Error::from(found.in_block(block_nr)))
    }

    /// The root directory.
    ///
    /// # Errors
    /// As [`Self::inode`].
    pub fn root(&self) -> Result<Inode> {
        self.inode(InodeNr::ROOT)
    }
}
