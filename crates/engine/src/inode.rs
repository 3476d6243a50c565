//! Inodes in memory.
//!
//! An inode has three main locks:
//! * [`Inode::content`] guards the content as a whole. A writer holds it exclusively; lookups of
//!   names and attributes hold it shared. It is taken before a handle, and may be held while
//!   waiting for a handle, for data or for other inodes.
//! * [`Inode::shape`] guards which blocks a file has. Reads of a file hold it instead of the
//!   content lock.
//! * [`Inode::core`] guards the raw inode and the mapping. It may be taken inside a handle, but no
//!   thread waits for a handle while it holds this lock. So a commit, which waits for the open
//!   handles to end, can encode every inode.
//!
//! The raw inode ([`InodeCore::slot`]) is edited in place. Size, sectors and kind of mapping are
//! also kept decoded beside it, because operations read them often. A changed inode is encoded into
//! its table block by the commit, or by the first thread that changes it again before the commit
//! has encoded it. If many inodes wait to be encoded, the creation of another inode encodes some
//! that no thread uses.

mod dirty_files;
mod load;
mod open_counts;
mod table;

pub(crate) use table::InodeTable;

use crate::cache::{Buffer, MetaCache};
use crate::data::{FileData, ReadAhead, Waiting};
use crate::directory::{Dentries, Dentry, DentryCache, ListingDamage};
use crate::epoch::Epoch;
use crate::features::NewFeatures;
use crate::groups::Groups;
use crate::inode_id::InodeId;
use crate::requests::{Pages, Rules};
use crate::txn::{Flushes, Handle, Transactions};
use crate::{Error, OpContext, Result};
use blockyard_alloc::InodeAlloc;
use blockyard_alloc::inode::InodeDirAlloc;
use blockyard_disk::inline_data;
use blockyard_disk::inode::{FileType, InodeFlags, InodeMap, InodeSlot};
use blockyard_disk::num::u64_from_usize;
use blockyard_disk::superblock::Superblock;
use blockyard_disk::{Checksums, Corruption, GroupNr, InodeNr, TxnId};
use blockyard_sync::{
    AtomicBool, AtomicU32, AtomicU64, Ordering, RwLock, RwLockReadGuard, RwLockWriteGuard, rank,
};
use dirty_files::DirtySince;
use open_counts::OpenCounts;
use smallvec::SmallVec;
use std::sync::Arc;

/// Where an inode is recorded as an orphan. Kept in [`InodeCore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrphanNote {
    /// On the orphan list, under this key. Newer entries have higher keys.
    List(u64),
    /// In a slot of the orphan file.
    File {
        /// Index of the block in the file.
        block: usize,
        /// Index of the slot in the block.
        slot: usize,
    },
}

/// An inode in memory, shared by everybody who uses it.
pub(crate) struct Inode {
    number: InodeNr,
    generation: u32,
    kind: FileType,
    /// The inode's block group, from which the goals for its blocks are derived.
    group: GroupNr,
    content: RwLock<FileData>,
    /// Held shared while content is read, and exclusively while blocks are removed from the file.
    /// So blocks that a reader has looked up belong to the file until it has read them.
    shape: RwLock<()>,
    waiting: RwLock<Waiting>,
    core: RwLock<InodeCore>,
    /// The [`Epoch`] in which the inode changed; [`Epoch::NONE`] if it was encoded since. Accessed
    /// relaxed, because it changes under the core lock.
    epoch: AtomicU32,
    /// 1 + the id of the last transaction that changed the inode; 0 for none. Changes under the
    /// core lock. Accessed relaxed: a thread that wants a change to be durable has already
    /// synchronised with the thread that made it.
    pub(crate) changed_in: AtomicU64,
    /// As `changed_in`, but only for changes of size and mapping, which are needed to find the
    /// content.
    pub(crate) remapped_in: AtomicU64,
    /// The number of the first flush that makes the last written data durable; see
    /// [`Flushes::ticket`]. Accessed relaxed, because it changes under the content lock.
    pub(crate) written: AtomicU64,
    /// The number of clusters reserved for dirty data, for readers without the content lock. It
    /// changes under that lock. A cluster is subtracted only after it was mapped or its data was
    /// dropped. The release store pairs with the acquire load of readers, which read the mapped
    /// blocks afterwards. So `st_blocks` never misses a cluster that has data.
    delayed: AtomicU64,
    /// Where the file was last read, to detect sequential reads.
    pub(crate) read_ahead: ReadAhead,
    /// Data could not be written to the device, and this error was not reported yet. Accessed
    /// relaxed: the flag guards no other data.
    pub(crate) lost_data: AtomicBool,
    /// Open references, which keep an inode without links alive.
    pub(crate) opens: OpenCounts,
    /// When the file's data became dirty; see [`InodeTable::note_dirty_data`].
    pub(crate) dirty_since: DirtySince,
    /// The file was truncated to length 0. As in Linux, data that is written to the file afterwards
    /// is written back when the file is closed. So a file whose content a program replaced in this
    /// way is less likely to be empty after a crash. Accessed relaxed: only a hint.
    pub(crate) written_at_close: AtomicBool,
    /// Damage found in a directory, which a listing reports at its end.
    pub(crate) damage: ListingDamage,
    /// Whether the inode was accessed since the clock hand of [`InodeTable`] last passed it.
    /// Accessed relaxed: only a hint.
    touched: AtomicBool,
    /// The allocator's state for this inode.
    pub(crate) space: InodeAlloc,
    /// The cached dentries of a directory; `None` for other types.
    names: Option<Arc<Dentries>>,
}

/// The inodes of a volume: those in memory, how they are loaded from their table and how they join
/// transactions.
pub(crate) struct Inodes {
    pub(crate) table: InodeTable,
    pub(crate) sb: Arc<Superblock>,
    pub(crate) cache: Arc<MetaCache>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) txns: Arc<Transactions>,
    pub(crate) flushes: Arc<Flushes>,
    /// The dentry cache: names of large directories, beside their blocks.
    pub(crate) names: Arc<DentryCache>,
    pub(crate) rules: Rules,
    /// Features in use that the superblock must announce.
    pub(crate) features: Arc<NewFeatures>,
}

/// What encoding an inode needs besides the inode.
pub(crate) struct Encoding<'a> {
    pub(crate) checksums: &'a Checksums,
    /// Whether `i_blocks` may count blocks instead of sectors.
    pub(crate) huge_file: bool,
    pub(crate) block_bits: u32,
    pub(crate) features: &'a NewFeatures,
}

/// The bytes of a raw inode of any size. Up to 256 bytes, the usual size, they need no heap
/// allocation of their own.
pub(crate) type SlotBytes = SmallVec<[u8; 256]>;

/// What the core lock guards.
pub(crate) struct InodeCore {
    /// The raw inode. Its `i_size` is the size to be stored on disk; [`InodeCore::size`] may be
    /// greater while data waits for write-back.
    pub(crate) slot: InodeSlot<SlotBytes>,
    /// How the content is found.
    pub(crate) map: InodeMap,
    /// Size in bytes as users see it.
    pub(crate) size: u64,
    /// Allocated space in 512-byte sectors.
    pub(crate) sectors: u64,
    /// Seed of the checksums of this inode's blocks; `None` without metadata_csum.
    pub(crate) seed: Option<u32>,
    /// The buffer of the inode's table block, and the byte offset in it. Kept, and so pinned, while
    /// the inode has changes to encode.
    table: Option<(Arc<Buffer>, usize)>,
    /// Where the last child of a directory was placed.
    pub(crate) children: InodeDirAlloc,
    /// Where the inode is recorded as an orphan.
    pub(crate) orphan: Option<OrphanNote>,
    /// Created without a name (`O_TMPFILE`), and may still be linked.
    pub(crate) nameable: bool,
    /// A new file or directory that has had no content yet: its first content may be stored inline.
    /// As in Linux (observed on 6.18), an inode that was read from disk does not become inline.
    pub(crate) may_be_inline: bool,
    /// The transaction in which a new file's first content was stored inline. Until this
    /// transaction commits, that content cannot appear after a crash.
    pub(crate) inline_since: Option<TxnId>,
    /// A truncation is running, or an error ended it midway: there may be blocks beyond the end of
    /// the file. If an error left them, they are freed before the file grows, or at close.
    pub(crate) unfinished: bool,
    /// Deleted: it had no links and no open references, and was freed.
    pub(crate) deleted: bool,
}

impl Inode {
    /// The inode's number.
    pub(crate) const fn number(&self) -> InodeNr {
        self.number
    }

    /// Tells this inode apart from earlier ones with the same number.
    pub(crate) const fn id(&self) -> InodeId {
        InodeId { number: self.number, generation: self.generation }
    }

    /// The inode's type, which never changes.
    pub(crate) const fn kind(&self) -> FileType {
        self.kind
    }

    /// The inode's block group, from which the goals for its blocks are derived.
    pub(crate) const fn group(&self) -> GroupNr {
        self.group
    }

    /// Takes the content lock, shared.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, FileData> {
        self.content.read_ordered(u64::from(self.number.raw()))
    }

    /// As [`Inode::read`], for a value inode: the caller may hold the content lock of its owner.
    pub(crate) fn read_value(&self) -> RwLockReadGuard<'_, FileData> {
        self.content.read_ordered((1 << 32) + u64::from(self.number.raw()))
    }

    /// Takes the content lock, exclusively. Lock several inodes in ascending order of number.
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, FileData> {
        self.content.write_ordered(u64::from(self.number.raw()))
    }

    /// As [`Inode::write`], for a child or value inode: the caller may hold the content lock of its
    /// directory or owner. In the lock order, children come after all parents, whatever their
    /// numbers.
    pub(crate) fn write_child(&self) -> RwLockWriteGuard<'_, FileData> {
        self.content.write_ordered((1 << 32) + u64::from(self.number.raw()))
    }

    /// Takes the content lock, exclusively, if it is free.
    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, FileData>> {
        self.content.try_write()
    }

    /// Takes the shape lock, shared. While it is held, no block is removed from the file, so
    /// readers do not need the content lock.
    pub(crate) fn hold_shape(&self) -> RwLockReadGuard<'_, ()> {
        self.shape.read_ordered(u64::from(self.number.raw()))
    }

    /// Takes the shape lock, exclusively, for removing blocks. The caller holds the content lock
    /// exclusively.
    pub(crate) fn change_shape(&self) -> RwLockWriteGuard<'_, ()> {
        self.shape.write_ordered(u64::from(self.number.raw()))
    }

    /// The data that is not on the device yet, or whose blocks are not mapped as written yet. The
    /// caller holds the content lock, or the core lock shared. The core lock suffices because data
    /// leaves [`Waiting`] only after its blocks were mapped: data that the mapping lacks is still
    /// in [`Waiting`].
    pub(crate) fn waiting(&self) -> RwLockReadGuard<'_, Waiting> {
        self.waiting.read()
    }

    /// [`Self::waiting`], mutable. The caller holds the content lock exclusively.
    pub(crate) fn waiting_mut(&self) -> RwLockWriteGuard<'_, Waiting> {
        self.waiting.write()
    }

    /// Read access to the raw inode and the mapping.
    pub(crate) fn core(&self) -> RwLockReadGuard<'_, InodeCore> {
        self.core.read_ordered(u64::from(self.number.raw()))
    }

    /// Write access to the raw inode and the mapping, inside a handle.
    pub(crate) fn core_mut(&self) -> RwLockWriteGuard<'_, InodeCore> {
        self.core.write_ordered(u64::from(self.number.raw()))
    }

    /// As [`Inode::core`], for a child or value inode: the caller holds the core lock of its
    /// directory or owner.
    pub(crate) fn core_child(&self) -> RwLockReadGuard<'_, InodeCore> {
        self.core.read_ordered((1 << 32) + u64::from(self.number.raw()))
    }

    /// As [`Inode::core_mut`], for a child: the caller holds the core lock of its directory. In the
    /// lock order, children come after all parents, whatever their numbers.
    pub(crate) fn core_mut_child(&self) -> RwLockWriteGuard<'_, InodeCore> {
        self.core.write_ordered((1 << 32) + u64::from(self.number.raw()))
    }

    /// As [`Inode::core`], for a value inode. In the lock order, value inodes come after all
    /// owners, even those that were locked as children.
    pub(crate) fn core_of_value(&self) -> RwLockReadGuard<'_, InodeCore> {
        self.core.read_ordered((2 << 32) + u64::from(self.number.raw()))
    }

    /// As [`Inode::core_mut`], for a value inode; see [`Inode::core_of_value`].
    pub(crate) fn core_mut_of_value(&self) -> RwLockWriteGuard<'_, InodeCore> {
        self.core.write_ordered((2 << 32) + u64::from(self.number.raw()))
    }

    /// Notes that data was written to the device. Call it after the write has returned.
    pub(crate) fn note_written(&self, flushes: &Flushes) {
        self.written.fetch_max(flushes.ticket(), Ordering::Relaxed);
    }

    /// The number of clusters reserved for dirty data. Read it before the mapped blocks, so that a
    /// cluster that is being mapped is not missed.
    pub(crate) fn delayed_clusters(&self) -> u64 {
        self.delayed.load(Ordering::Acquire)
    }

    /// Notes that the reservations for dirty data changed. The caller holds the content lock
    /// exclusively; `data` is what that lock guards.
    pub(crate) fn note_delayed(&self, data: &FileData) {
        self.delayed.store(u64_from_usize(data.reserved_len()), Ordering::Release);
    }

    /// If a device error kept data from being written, notes that, so that the next fsync reports
    /// it.
    pub(crate) fn note_lost<T>(&self, written: &Result<T>) {
        if matches!(written, Err(Error::Device(_))) {
            self.lost_data.store(true, Ordering::Relaxed);
        }
    }

    /// Notes that size or mapping changed in this handle's transaction.
    pub(crate) fn note_remapped(&self, handle: &Handle<'_>) {
        let mark = u64::from(handle.tid().raw()) + 1;
        if self.remapped_in.load(Ordering::Relaxed) != mark {
            self.remapped_in.store(mark, Ordering::Relaxed);
        }
    }

    /// The epoch of the changes that are not encoded yet.
    fn epoch(&self) -> Epoch {
        Epoch::from_raw(self.epoch.load(Ordering::Relaxed))
    }

    /// Whether there is something to encode.
    pub(crate) fn is_dirty(&self) -> bool {
        self.epoch() != Epoch::NONE
    }

    /// Copies the raw inode with its checksum to its table block, if it changed in `epoch`. If the
    /// block's content at the end of that epoch was set aside for the commit, the inode is copied
    /// into that content too.
    pub(crate) fn encode(&self, epoch: Epoch, encoding: &Encoding<'_>) {
        let mut core = self.core_mut_child();
        if self.epoch() == epoch {
            self.encode_core(&mut core, encoding);
            core.table = None;
        }
    }

    /// As [`Self::encode`], whatever the epoch in which the inode changed. The caller holds the
    /// core lock.
    fn encode_core(&self, core: &mut InodeCore, encoding: &Encoding<'_>) {
        let epoch = self.epoch();
        debug_assert!(epoch != Epoch::NONE, "inode {} has nothing to encode", self.number);
        debug_assert!(
            core.slot.raw().size() <= core.size,
            "the disk would know more than users of inode {}",
            self.number
        );
        debug_assert!(!core.deleted || core.orphan.is_none(), "orphan {} is deleted", self.number);
        debug_assert!(!core.deleted || core.links() == 0, "inode {} is deleted and has names", self.number);
        core.store_sectors(encoding.huge_file, encoding.block_bits);
        if self.kind == FileType::Regular {
            encoding.features.note_size(core.slot.raw().size());
        }
        encoding.checksums.seal_inode(self.number, &mut core.slot);
        debug_assert!(encoding.checksums.verify_inode(self.number, &core.slot).is_ok());
        self.epoch.store(Epoch::NONE.raw(), Ordering::Relaxed);
        let Some((buffer, offset)) = &core.table else { return };
        let bytes = core.slot.bytes();
        buffer.write_late(epoch, |block| block[*offset..offset + bytes.len()].copy_from_slice(bytes));
    }

    /// The cached dentries of a directory.
    pub(crate) fn names(&self) -> Option<&Arc<Dentries>> {
        self.names.as_ref()
    }

    /// What the dentry cache has about a name. The caller holds the content lock of the directory.
    pub(crate) fn dentry(&self, name: &[u8]) -> Dentry {
        self.names.as_ref().map_or(Dentry::Unknown, |names| names.ask(name))
    }

    /// An inode that nobody uses yet. For a directory, `names` may have cached dentries.
    pub(crate) fn new(
        number: InodeNr,
        kind: FileType,
        group: GroupNr,
        core: InodeCore,
        names: &DentryCache,
        pages: Pages,
    ) -> Self {
        debug_assert!(number != InodeNr::ZERO, "an inode without a number");
        Self {
            names: (kind == FileType::Directory).then(|| names.of(number)),
            number,
            generation: core.slot.raw().i_generation.get(),
            kind,
            group,
            content: RwLock::new(rank::INODE, FileData::new(pages)),
            shape: RwLock::new(rank::INODE_SHAPE, ()),
            waiting: RwLock::new(rank::WAITING_DATA, Waiting::new()),
            core: RwLock::new(rank::MAPPING, core),
            epoch: AtomicU32::new(Epoch::NONE.raw()),
            changed_in: AtomicU64::new(0),
            remapped_in: AtomicU64::new(0),
            written: AtomicU64::new(0),
            delayed: AtomicU64::new(0),
            read_ahead: ReadAhead::default(),
            lost_data: AtomicBool::new(false),
            opens: OpenCounts::none(),
            dirty_since: DirtySince::default(),
            written_at_close: AtomicBool::new(false),
            damage: ListingDamage::none(),
            touched: AtomicBool::new(false),
            space: InodeAlloc::new(),
        }
    }
}

impl InodeCore {
    /// Fails if the inode was deleted, perhaps while the caller waited for the core lock.
    pub(crate) fn check_alive(&self, number: InodeNr) -> Result<()> {
        if self.deleted { Err(Error::StaleInode(number)) } else { Ok(()) }
    }

    /// The link count.
    pub(crate) fn links(&self) -> u16 {
        self.slot.raw().i_links_count.get()
    }

    /// The core of a raw inode whose fields were verified.
    pub(crate) fn new(
        slot: InodeSlot<SlotBytes>,
        map: InodeMap,
        size: u64,
        sectors: u64,
        seed: Option<u32>,
    ) -> Self {
        Self {
            slot,
            map,
            size,
            sectors,
            seed,
            table: None,
            children: InodeDirAlloc::default(),
            orphan: None,
            nameable: false,
            may_be_inline: false,
            inline_since: None,
            unfinished: false,
            deleted: false,
        }
    }

    /// Whether no work on the inode is left: no orphan record to remove, no truncation to finish,
    /// no pending deletion, and no size that is not yet on disk.
    fn owes_nothing(&self) -> bool {
        let is_told = self.size <= self.slot.raw().size();
        self.orphan.is_none() && !self.unfinished && (is_told && self.links() > 0 || self.deleted)
    }

    /// The most bytes of content that can be stored inline. `None` if the content may not be
    /// inline, or if other attributes leave no room.
    pub(crate) fn inline_room(&self, number: InodeNr) -> Result<Option<usize>> {
        if self.map != InodeMap::Inline && !self.may_be_inline {
            return Ok(None);
        }
        inline_data::room(self.slot.attribute_area())
            .map_err(|kind| Error::from(Corruption::new(kind).in_inode(number)))
    }

    /// Stores inline content: `head` in `i_block`, `tail` among the attributes. They must fit, see
    /// [`Self::inline_room`]. The caller sets the size.
    pub(crate) fn store_inline(
        &mut self,
        number: InodeNr,
        head: &[u8; inline_data::HEAD_LEN],
        tail: &[u8],
    ) -> Result<()> {
        debug_assert!(
            self.map == InodeMap::Inline || self.may_be_inline,
            "the content of inode {number} lies in blocks"
        );
        let area_at = self.slot.bytes().len() - self.slot.attribute_area().len();
        let stored = inline_data::set_tail(&mut self.slot.bytes_mut()[area_at..], tail)
            .map_err(|kind| Corruption::new(kind).in_inode(number))?;
        assert!(stored, "{} bytes beside the attributes of inode {number}", tail.len());
        *self.root_mut() = *head;
        let flags = self.flags().difference(InodeFlags::EXTENTS) | InodeFlags::INLINE_DATA;
        self.slot.raw_mut().set_flags(flags);
        self.map = InodeMap::Inline;
        self.may_be_inline = false;
        Ok(())
    }

    /// Whether there can be no stale data beyond the end of the file: its size is a multiple of the
    /// block size, and no truncation is unfinished.
    pub(crate) fn has_clear_end(&self, block_size: usize) -> bool {
        !self.unfinished && self.size.is_multiple_of(u64_from_usize(block_size))
    }

    /// Whether a change of content at `ctx.now` changes the modification or change time.
    pub(crate) fn times_change(&self, ctx: &OpContext) -> bool {
        !ctx.caches_writes && (self.slot.modified() != ctx.now || self.slot.changed() != ctx.now)
    }

    /// Sets modification and change time after a change of content, unless the caller keeps these
    /// times itself ([`OpContext::caches_writes`]).
    pub(crate) fn touch(&mut self, ctx: &OpContext) {
        if !ctx.caches_writes {
            self.slot.set_modified(ctx.now);
            self.slot.set_changed(ctx.now);
        }
    }

    /// The 60 bytes of `i_block`.
    pub(crate) fn root(&self) -> &[u8; 60] {
        &self.slot.raw().i_block
    }

    /// The root of the extent tree, if there is one.
    pub(crate) fn extent_root(&self) -> Option<&[u8; 60]> {
        (self.map == InodeMap::Extents).then(|| self.root())
    }

    /// The 60 bytes of `i_block`, mutable.
    pub(crate) fn root_mut(&mut self) -> &mut [u8; 60] {
        &mut self.slot.raw_mut().i_block
    }

    /// `i_flags`.
    pub(crate) fn flags(&self) -> InodeFlags {
        self.slot.raw().flags()
    }

    /// The buffer of the table block and the byte offset in it, while the inode has changes to
    /// encode.
    pub(crate) fn table(&self) -> Option<(Arc<Buffer>, usize)> {
        self.table.clone()
    }

    /// Sets the link to the next older inode of the orphan list, 0 for none.
    pub(crate) fn set_orphan_link(&mut self, older: InodeNr) {
        self.slot.raw_mut().i_dtime.set(older.raw());
    }

    /// As [`Self::set_orphan_link`], for an inode that perhaps has not joined the transaction. Its
    /// table block, whose buffer is in `table`, has joined.
    pub(crate) fn relink_orphan(&mut self, older: InodeNr, table: (Arc<Buffer>, usize)) {
        self.set_orphan_link(older);
        self.table.get_or_insert(table);
    }

    /// Sets the size that users see and the one on disk.
    pub(crate) fn set_size(&mut self, size: u64) {
        self.size = size;
        self.slot.raw_mut().set_size(size);
    }

    /// Adds to the allocated space; `blocks` may be negative.
    pub(crate) fn add_blocks(&mut self, blocks: i64, block_bits: u32) {
        let sectors = blocks << (block_bits - 9);
        debug_assert!(
            self.sectors.checked_add_signed(sectors).is_some(),
            "{} sectors and {sectors}",
            self.sectors
        );
        self.sectors = self.sectors.saturating_add_signed(sectors);
    }

    /// Stores `i_blocks` in 512-byte units. If that does not fit 48 bits and `huge_file` is set,
    /// stores it in blocks and sets the inode's flag that says so.
    fn store_sectors(&mut self, huge_file: bool, block_bits: u32) {
        let sectors = self.sectors;
        let raw = self.slot.raw_mut();
        let mut flags = raw.flags();
        let in_blocks = huge_file && sectors >= 1 << 48;
        flags.set(InodeFlags::HUGE_FILE, in_blocks);
        raw.set_flags(flags);
        raw.set_blocks_field(if in_blocks { sectors >> (block_bits - 9) } else { sectors });
    }
}
