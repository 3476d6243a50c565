//! One metadata block in memory.

use crate::Result;
use crate::epoch::Epoch;
use crate::extents::{NodeBlock, has_sound_header};
use blockyard_disk::checksum::{
    Checksums, seal_dir_leaf, seal_extent_block, seal_htree, seal_orphan_block, verify_dir_leaf,
    verify_extent_block, verify_htree, verify_orphan_block,
};
use blockyard_disk::htree::IndexKind;
use blockyard_disk::orphan_file::OrphanBlock;
use blockyard_disk::xattr::BlockHeader;
use blockyard_disk::{BlockNr, GroupNr};
use blockyard_sync::{Atomic, Backend, Native, Ordering, RwLock, rank};
use std::sync::Arc;

/// What a block holds. This decides where its checksum goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockKind {
    /// Without a checksum of its own: indirect blocks, symbolic links, logged file data, inode
    /// tables (each inode has its own).
    Plain,
    /// The block bitmap of a group; its checksum is in the descriptor.
    BlockBitmap(GroupNr),
    /// The inode bitmap of a group; its checksum is in the descriptor.
    InodeBitmap(GroupNr),
    /// An extent tree node of the inode with this checksum seed.
    Extents(Option<u32>),
    /// A linear block of the directory with this checksum seed.
    DirectoryLeaf(Option<u32>),
    /// An index block of the directory with this checksum seed. The [`IndexKind`] says where its
    /// entries begin.
    DirectoryIndex(Option<u32>, IndexKind),
    /// An extended attribute block.
    Attributes,
    /// A block of the orphan file, whose inode has this checksum seed.
    OrphanFile(Option<u32>),
}

impl BlockKind {
    /// The class of this kind, never 0. A block keeps its class while it is in use: a directory's
    /// leaf may become an index block, but never an extent node.
    const fn class(self) -> u32 {
        match self {
            Self::Plain => 1,
            Self::BlockBitmap(_) => 2,
            Self::InodeBitmap(_) => 3,
            Self::Extents(_) => 4,
            Self::DirectoryLeaf(_) | Self::DirectoryIndex(..) => 5,
            Self::Attributes => 6,
            Self::OrphanFile(_) => 7,
        }
    }
}

/// A cached block. [`crate::cache`] says who may change it, and when.
// The fields that a reader needs are in the first 64 bytes after the `Arc`'s reference counts, so
// that a read touches few cache lines. When thousands of buffers are read in turn, each line that
// is touched is a cache miss.
#[repr(C)]
pub(crate) struct Buffer<B: Backend = Native> {
    /// The [`Epoch`] in which the block changed. Set under the lock of `content`, with release,
    /// after the old content was set aside. Pairs with the acquire of a thread that finds the
    /// running epoch here.
    epoch: B::AtomicU32,
    /// [`BlockKind::class`], or 0 until the block is loaded. Set with release after the load; pairs
    /// with the acquire that reads it.
    class: B::AtomicU32,
    /// Whether the buffer was used since the clock's hand last passed it. Accessed relaxed: it is
    /// only a hint for eviction.
    used: B::AtomicBool,
    content: RwLock<Content, B>,
    block: BlockNr,
}

#[repr(C)]
struct Content {
    bytes: Box<[u8]>,
    kind: BlockKind,
    /// The content at the end of the previous epoch, until the commit has taken it.
    aside: Option<Box<Copied>>,
}

/// The content of a block at the end of a transaction. Its checksum is stale until [`Self::seal`].
pub(crate) struct Copied {
    bytes: Box<[u8]>,
    kind: BlockKind,
}

impl<B: Backend> Buffer<B> {
    /// A buffer without content.
    pub(super) fn new(block: BlockNr) -> Self {
        Self {
            block,
            content: RwLock::new(
                rank::BUFFER,
                Content { bytes: Box::default(), kind: BlockKind::Plain, aside: None },
            ),
            class: B::AtomicU32::new(0),
            epoch: B::AtomicU32::new(Epoch::NONE.raw()),
            used: B::AtomicBool::new(true),
        }
    }

    /// The block's number.
    pub(crate) const fn block(&self) -> BlockNr {
        self.block
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.class.load(Ordering::Acquire) != 0
    }

    /// Whether the loaded block is of the same class as `kind`. A damaged image may name one block
    /// as two kinds of metadata.
    pub(super) fn is_of_class(&self, kind: BlockKind) -> bool {
        self.class.load(Ordering::Acquire) == kind.class()
    }

    /// Fills the buffer unless it is loaded already. If `fill` fails, the buffer stays empty.
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
        debug_assert!(!self.is_dirty(), "block {} changed before it was read", self.block);
        (content.bytes, content.kind) = (bytes, kind);
        self.class.store(kind.class(), Ordering::Release);
        Ok(())
    }

    /// Replaces the content with zeroes.
    pub(super) fn reset(&self, kind: BlockKind, block_size: usize) {
        let mut content = self.content.write_ordered(self.block.raw());
        (content.bytes, content.kind) = (vec![0; block_size].into_boxed_slice(), kind);
        self.class.store(kind.class(), Ordering::Release);
    }

    /// Runs `f` on the bytes. `f` must be short: no I/O, and no lock that ranks before a buffer's
    /// lock.
    pub(crate) fn read<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(&self.content.read_ordered(self.block.raw()).bytes)
    }

    /// Runs `f` on the bytes to change them. The buffer must have [joined](Self::join) the
    /// transaction. `f` must be short.
    pub(crate) fn write<R>(&self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        debug_assert!(self.is_dirty(), "block {} is changed outside a transaction", self.block);
        f(&mut self.content.write_ordered(self.block.raw()).bytes)
    }

    /// Sets what the block holds from now on. While a block is in use, its kind changes only in a
    /// directory, where a leaf may become an index block.
    pub(crate) fn set_kind(&self, kind: BlockKind) {
        debug_assert!(
            matches!(kind, BlockKind::DirectoryLeaf(_) | BlockKind::DirectoryIndex(..)),
            "block {} becomes {kind:?}",
            self.block
        );
        let mut content = self.content.write_ordered(self.block.raw());
        content.kind = kind;
    }

    /// The epoch of the last change that no commit has copied yet. [`Epoch::NONE`] if there is no
    /// such change, or if the block was forgotten.
    pub(crate) fn changed_in(&self) -> Epoch {
        Epoch::from_raw(self.epoch.load(Ordering::Acquire))
    }

    /// Whether the block must be written.
    pub(crate) fn is_dirty(&self) -> bool {
        self.changed_in() != Epoch::NONE
    }

    /// Puts the block into the transaction of `epoch`. Returns the block's kind, or `None` if the
    /// block was already in it. Content of the previous epoch that the commit has not copied yet is
    /// set aside.
    pub(crate) fn join(&self, epoch: Epoch) -> Option<BlockKind> {
        debug_assert!(epoch != Epoch::NONE, "block {} joins no transaction", self.block);
        if self.changed_in() == epoch {
            return None;
        }
        let mut content = self.content.write_ordered(self.block.raw());
        let before = self.changed_in();
        if before == epoch {
            return None;
        }
        if before != Epoch::NONE {
            content.set_aside();
        }
        self.epoch.store(epoch.raw(), Ordering::Release);
        Some(content.kind)
    }

    /// Notes that the content no longer matters from `epoch` on. A commit in progress still gets
    /// the content.
    pub(super) fn forget(&self, epoch: Epoch) {
        debug_assert!(epoch != Epoch::NONE, "block {} is forgotten in no transaction", self.block);
        let mut content = self.content.write_ordered(self.block.raw());
        let before = self.changed_in();
        if before != Epoch::NONE && before != epoch {
            content.set_aside();
        }
        self.epoch.store(Epoch::NONE.raw(), Ordering::Release);
    }

    /// Runs `f` on the present bytes. If the block changed again or was forgotten after `epoch`,
    /// `f` also runs on the bytes that were set aside. An inode needs this: it changes in `epoch`,
    /// but may be encoded into its table block after that epoch ended.
    pub(crate) fn write_late(&self, epoch: Epoch, f: impl Fn(&mut [u8])) {
        debug_assert!(self.is_loaded(), "a part of block {} is encoded before the rest was read", self.block);
        let mut content = self.content.write_ordered(self.block.raw());
        if self.changed_in() != epoch
            && let Some(aside) = &mut content.aside
        {
            f(&mut aside.bytes);
        }
        f(&mut content.bytes);
    }

    /// For the commit: the content at the end of `epoch`; `None` if the block was forgotten in that
    /// epoch. Afterwards the block is clean unless it has joined the next transaction. The copy may
    /// use the memory of one of the `spare` blocks.
    pub(crate) fn take_copy(&self, epoch: Epoch, spare: &mut Vec<Box<[u8]>>) -> Option<Copied> {
        debug_assert!(epoch != Epoch::NONE, "block {} is copied for no transaction", self.block);
        let mut content = self.content.write_ordered(self.block.raw());
        if content.aside.is_some() {
            return content.aside.take().map(|aside| *aside);
        }
        if self.changed_in() != epoch {
            return None;
        }
        debug_assert!(self.is_loaded(), "block {} changed and was never read", self.block);
        self.epoch.store(Epoch::NONE.raw(), Ordering::Release);
        let bytes = match spare.pop() {
            Some(mut bytes) => {
                debug_assert_eq!(bytes.len(), content.bytes.len(), "block {} has another size", self.block);
                bytes.copy_from_slice(&content.bytes);
                bytes
            }
            None => content.bytes.clone(),
        };
        Some(Copied { bytes, kind: content.kind })
    }

    pub(crate) fn touch(&self) {
        // Stores only if the value changes, so that the cache line of a hot buffer stays shared
        // between CPUs.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Call when the clock's hand passes the buffer. Returns whether the buffer is clean and was
    /// not used since the last pass, and clears `used`.
    pub(super) fn pass_hand(&self) -> bool {
        !self.used.swap(false, Ordering::Relaxed) && !self.is_dirty()
    }
}

impl Content {
    fn set_aside(&mut self) {
        debug_assert!(self.aside.is_none(), "a commit has not yet taken the content set aside before");
        self.aside = Some(Box::new(Copied { bytes: self.bytes.clone(), kind: self.kind }));
    }
}

impl Copied {
    /// What the block holds.
    pub(crate) const fn kind(&self) -> BlockKind {
        self.kind
    }

    /// The bytes. Their checksum may be stale.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes with their checksum, ready for the device.
    pub(crate) fn seal(self, block: BlockNr, checksums: &Checksums) -> Box<[u8]> {
        let mut bytes = self.bytes;
        match self.kind {
            BlockKind::Plain | BlockKind::BlockBitmap(_) | BlockKind::InodeBitmap(_) => {}
            BlockKind::Extents(seed) => seal_extent_block(seed, &mut bytes),
            BlockKind::DirectoryLeaf(seed) => seal_dir_leaf(seed, &mut bytes),
            BlockKind::DirectoryIndex(seed, kind) => seal_htree(seed, &mut bytes, kind.entries_at()),
            BlockKind::Attributes => checksums.seal_xattr_block(block, &mut bytes),
            BlockKind::OrphanFile(seed) => seal_orphan_block(seed, block, &mut bytes),
        }
        debug_assert!(self.kind.would_be_read(block, checksums, &bytes), "block {block}: {:?}", self.kind);
        bytes
    }
}

impl BlockKind {
    /// Whether the block's checksum is in a group descriptor.
    pub(crate) const fn is_bitmap(self) -> bool {
        matches!(self, Self::BlockBitmap(_) | Self::InodeBitmap(_))
    }

    /// Whether a block about to be written passes the checks of a read, except those of its
    /// entries: in a damaged image the entries may be wrong, and stay wrong.
    fn would_be_read(self, block: BlockNr, checksums: &Checksums, bytes: &[u8]) -> bool {
        match self {
            Self::Plain | Self::BlockBitmap(_) | Self::InodeBitmap(_) => true,
            Self::Extents(seed) => has_sound_header(bytes) && verify_extent_block(seed, bytes).is_ok(),
            Self::DirectoryLeaf(seed) => verify_dir_leaf(seed, bytes).is_ok(),
            Self::DirectoryIndex(seed, kind) => verify_htree(seed, bytes, kind.entries_at()).is_ok(),
            Self::Attributes => {
                checksums.verify_xattr_block(block, bytes).is_ok() && BlockHeader::read(bytes).is_ok()
            }
            Self::OrphanFile(seed) => {
                OrphanBlock::parse(bytes).is_ok() && verify_orphan_block(seed, block, bytes).is_ok()
            }
        }
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
