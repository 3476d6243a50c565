//! One metadata block in memory.

use crate::Result;
use crate::extents::NodeBlock;
use blockyard_disk::checksum::{Checksums, seal_dir_leaf, seal_extent_block, seal_htree, seal_orphan_block};
use blockyard_disk::{BlockNr, GroupNr};
use blockyard_sync::{AtomicBool, Ordering, RwLock, rank};
use std::sync::Arc;

/// What a block holds: decides where its checksum goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockKind {
    /// Without a checksum of its own: indirect blocks, symbolic links, inode tables (sealed inode by inode).
    Plain,
    /// The block bitmap of a group; its checksum is in the descriptor.
    BlockBitmap(GroupNr),
    /// The inode bitmap of a group; its checksum is in the descriptor.
    InodeBitmap(GroupNr),
    /// An extent tree node of the inode with this checksum seed.
    Extents(Option<u32>),
    /// A linear directory block.
    DirectoryLeaf(Option<u32>),
    /// A directory index block with its entries at this offset.
    DirectoryIndex(Option<u32>, usize),
    /// An extended attribute block.
    Attributes,
    /// A block of the orphan file, whose inode has this checksum seed.
    OrphanFile(Option<u32>),
}

/// A cached block. See the module's text for who may change it when.
pub(crate) struct Buffer {
    block: BlockNr,
    content: RwLock<Content>,
    /// Set with release after the first load, read with acquire: pairs the two.
    loaded: AtomicBool,
    /// In the list of blocks to write. Changed under the content lock; read without it by the clock's hand.
    dirty: AtomicBool,
    /// Used since the hand passed. Relaxed: a hint.
    used: AtomicBool,
}

struct Content {
    bytes: Box<[u8]>,
    kind: BlockKind,
}

impl Buffer {
    /// A buffer without content.
    pub(super) fn new(block: BlockNr) -> Self {
        Self {
            block,
            content: RwLock::new(rank::BUFFER, Content { bytes: Box::default(), kind: BlockKind::Plain }),
            loaded: AtomicBool::new(false),
            dirty: AtomicBool::new(false),
            used: AtomicBool::new(true),
        }
    }

    /// The block's number.
    pub(crate) const fn block(&self) -> BlockNr {
        self.block
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.loaded.load(Ordering::Acquire)
    }

    /// Fills the buffer once, by whoever comes first; a failed fill leaves it empty.
    pub(super) fn load(
        &self,
        kind: BlockKind,
        block_size: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let mut content = self.content.write_ordered(self.block.raw());
        if self.is_loaded() {
            return Ok(());
        }
        let mut bytes = vec![0; block_size].into_boxed_slice();
        fill(&mut bytes)?;
        *content = Content { bytes, kind };
        self.loaded.store(true, Ordering::Release);
        Ok(())
    }

    /// Replaces the content by zeroes.
    pub(super) fn reset(&self, kind: BlockKind, block_size: usize) {
        let mut content = self.content.write_ordered(self.block.raw());
        *content = Content { bytes: vec![0; block_size].into_boxed_slice(), kind };
        self.loaded.store(true, Ordering::Release);
    }

    /// Runs `f` on the bytes. `f` must be short: no I/O, no other lock below a buffer's rank.
    pub(crate) fn read<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(&self.content.read_ordered(self.block.raw()).bytes)
    }

    /// Runs `f` on the bytes to change them. The buffer must have joined the transaction; `f` must be short.
    pub(crate) fn write<R>(&self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        debug_assert!(self.is_dirty(), "block {} is changed outside a transaction", self.block);
        f(&mut self.content.write_ordered(self.block.raw()).bytes)
    }

    /// What the block holds from now on (a directory block becomes an index block).
    pub(crate) fn set_kind(&self, kind: BlockKind) {
        self.content.write_ordered(self.block.raw()).kind = kind;
    }

    /// What the block holds.
    pub(crate) fn kind(&self) -> BlockKind {
        self.content.read_ordered(self.block.raw()).kind
    }

    /// Marks the block as changed; true when it was not before. Relaxed is enough: the list that it then joins is
    /// under a lock, and commits look at it only while no handle is open.
    pub(crate) fn mark_dirty(&self) -> bool {
        !self.dirty.swap(true, Ordering::Relaxed)
    }

    /// Marks the block as written, or as not worth writing.
    pub(crate) fn mark_clean(&self) {
        self.dirty.store(false, Ordering::Relaxed);
    }

    /// Whether the block is to be written.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Relaxed)
    }

    /// A copy with its checksum, ready for the device.
    pub(crate) fn sealed_copy(&self, checksums: &Checksums) -> Box<[u8]> {
        let content = self.content.read_ordered(self.block.raw());
        let mut bytes = content.bytes.clone();
        match content.kind {
            BlockKind::Plain | BlockKind::BlockBitmap(_) | BlockKind::InodeBitmap(_) => {}
            BlockKind::Extents(seed) => seal_extent_block(seed, &mut bytes),
            BlockKind::DirectoryLeaf(seed) => seal_dir_leaf(seed, &mut bytes),
            BlockKind::DirectoryIndex(seed, at) => seal_htree(seed, &mut bytes, at),
            BlockKind::Attributes => checksums.seal_xattr_block(self.block, &mut bytes),
            BlockKind::OrphanFile(seed) => seal_orphan_block(seed, self.block, &mut bytes),
        }
        bytes
    }

    pub(super) fn touch(&self) {
        // A load first: a hot buffer's line stays shared between the caches of many CPUs.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// The clock's hand: whether the buffer may go; clears the mark of use.
    pub(super) fn pass_hand(&self) -> bool {
        !self.used.swap(false, Ordering::Relaxed) && !self.is_dirty()
    }
}

impl NodeBlock for Arc<Buffer> {
    fn read<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        Buffer::read(self, f)
    }

    fn write<R>(&self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        Buffer::write(self, f)
    }
}
