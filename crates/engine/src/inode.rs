//! Inodes in memory.
//!
//! An inode has two main locks. [`Inode::content`] is for the content as a whole: a writer has it
//! alone, and lookups of names and attributes share it. Reads of a file hold [`Inode::shape`]
//! instead. The content lock is taken before a handle, and may be held while waiting for a handle,
//! for data or for other inodes. [`Inode::core`] guards the raw inode and the mapping below it. It
//! may be taken inside a handle, and is never held while waiting for one. So a commit, which waits
//! for handles only, can always encode every inode.
//!
//! The raw inode (`slot`) is the truth, edited in place. Size, sectors and mapping kind are kept
//! beside it because operations read them often. A changed inode is encoded into its table block by
//! the commit, or by the first thread that changes it again before the commit has reached it. It is
//! encoded earlier if many inodes are waiting and nobody holds it.

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

/// Where an inode is recorded as an orphan; part of the inode, under its core lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrphanNote {
    /// On the list, under this key.
    List(u64),
    /// In a slot of the orphan file.
    File {
        /// Block of the file.
        block: usize,
        /// Slot in the block.
        slot: usize,
    },
}

/// An inode in memory, shared by everybody who uses it.
pub(crate) struct Inode {
    number: InodeNr,
    generation: u32,
    kind: FileType,
    /// The group that goals start from.
    group: GroupNr,
    content: RwLock<FileData>,
    /// Held shared while content is read, exclusively while blocks are taken away: blocks that a
    /// reader has looked up stay the file's.
    shape: RwLock<()>,
    waiting: RwLock<Waiting>,
    core: RwLock<InodeCore>,
    /// The [`Epoch`] in which the inode changed, if it was not encoded since. Relaxed: changed
    /// under the core's lock.
    epoch: AtomicU32,
    /// 1 + the last transaction that changed the inode, 0 for none. Changed under the core's lock.
    /// Relaxed: a caller that asks for durability has ordered itself behind the change.
    pub(crate) changed_in: AtomicU64,
    /// As `changed_in`, for changes needed to find the content: size and mapping.
    pub(crate) remapped_in: AtomicU64,
    /// The flush that covers the last written data; see [`Flushes::ticket`]. Changed under the
    /// content lock; relaxed.
    pub(crate) written: AtomicU64,
    /// Clusters reserved for dirty data, for readers without the content lock. Changed under that
    /// lock. A cluster is subtracted only after it was mapped or its data was dropped; the release
    /// pairs with the reader's acquire, so the file never shows less space than it has data.
    delayed: AtomicU64,
    /// Where the file was read last.
    pub(crate) read_ahead: ReadAhead,
    /// Data could not be written and nobody was told yet. Relaxed: a flag.
    pub(crate) lost_data: AtomicBool,
    /// Open references, which keep an inode without links alive.
    pub(crate) opens: OpenCounts,
    /// When its data became dirty; see [`InodeTable::note_dirty_data`].
    pub(crate) dirty_since: DirtySince,
    /// The file was truncated to nothing. As in Linux its data is written back when a user closes
    /// it, so that replacing a file by truncation leaves no empty file after a crash. Relaxed: a
    /// hint.
    pub(crate) written_at_close: AtomicBool,
    /// The damage of a directory, which a listing tells at its end.
    pub(crate) damage: ListingDamage,
    /// Accessed since the table's hand passed. Relaxed: a hint.
    touched: AtomicBool,
    /// The allocator's state of this inode.
    pub(crate) space: InodeAlloc,
    /// The cached dentries of a directory.
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
    /// What the superblock must announce.
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

/// The bytes of an inode of any size. Up to 256, the usual size, lie in the core itself.
pub(crate) type SlotBytes = SmallVec<[u8; 256]>;

/// What the core lock guards.
pub(crate) struct InodeCore {
    /// The raw inode. Its size is what the disk may know; [`InodeCore::size`] may be ahead of it.
    pub(crate) slot: InodeSlot<SlotBytes>,
    /// How the content is found.
    pub(crate) map: InodeMap,
    /// Size in bytes as users see it.
    pub(crate) size: u64,
    /// Allocated space in 512-byte sectors.
    pub(crate) sectors: u64,
    /// Seed of the checksums of this inode's blocks; `None` without metadata_csum.
    pub(crate) seed: Option<u32>,
    /// The table block and the offset in it. Pinned while there is something to encode.
    table: Option<(Arc<Buffer>, usize)>,
    /// Where the last child of a directory was placed.
    pub(crate) children: InodeDirAlloc,
    /// Where the inode is recorded as an orphan.
    pub(crate) orphan: Option<OrphanNote>,
    /// Created without a name, but may still get one.
    pub(crate) nameable: bool,
    /// A new file or directory that has had no content yet: the first may go into the inode. As in
    /// Linux (observed on 6.18), an inode that is loaded later stays out.
    pub(crate) may_be_inline: bool,
    /// The transaction in which a new file's first content came into the inode. While it runs, no
    /// crash can show that content.
    pub(crate) inline_since: Option<TxnId>,
    /// A truncation is running, or an error ended it midway: blocks may lie behind the end. Those
    /// that an error left are freed before the file grows, or at close.
    pub(crate) unfinished: bool,
    /// Deleted: links and references were 0 and the inode was freed.
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

    /// Its type, which never changes.
    pub(crate) const fn kind(&self) -> FileType {
        self.kind
    }

    /// The group that goals start from.
    pub(crate) const fn group(&self) -> GroupNr {
        self.group
    }

    /// Shared use of the content.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, FileData> {
        self.content.read_ordered(u64::from(self.number.raw()))
    }

    /// As [`Inode::read`], for the value of an attribute whose owner's content the caller holds.
    pub(crate) fn read_value(&self) -> RwLockReadGuard<'_, FileData> {
        self.content.read_ordered((1 << 32) + u64::from(self.number.raw()))
    }

    /// Exclusive use of the content. Lock several inodes in ascending order of number.
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, FileData> {
        self.content.write_ordered(u64::from(self.number.raw()))
    }

    /// As [`Inode::write`], for an inode whose directory's or owner's content the caller may hold:
    /// children come after parents, whatever their numbers.
    pub(crate) fn write_child(&self) -> RwLockWriteGuard<'_, FileData> {
        self.content.write_ordered((1 << 32) + u64::from(self.number.raw()))
    }

    /// Exclusive use of the content if nobody uses it now.
    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, FileData>> {
        self.content.try_write()
    }

    /// While this is held, no block is taken away from the file. Readers of the file do not need
    /// the content lock then.
    pub(crate) fn hold_shape(&self) -> RwLockReadGuard<'_, ()> {
        self.shape.read_ordered(u64::from(self.number.raw()))
    }

    /// The lock of the file's shape, for taking blocks away. The caller holds the content lock
    /// exclusively.
    pub(crate) fn change_shape(&self) -> RwLockWriteGuard<'_, ()> {
        self.shape.write_ordered(u64::from(self.number.raw()))
    }

    /// The data that is not written yet, or not yet mapped as written. The caller holds the content
    /// lock, or the core lock shared. The latter suffices because data is mapped before it is
    /// removed from here.
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

    /// As [`Inode::core`], for an inode whose directory's or owner's core the caller holds.
    pub(crate) fn core_child(&self) -> RwLockReadGuard<'_, InodeCore> {
        self.core.read_ordered((1 << 32) + u64::from(self.number.raw()))
    }

    /// As [`Inode::core_mut`], for an inode whose directory's core the caller holds: children come
    /// after parents, whatever their numbers.
    pub(crate) fn core_mut_child(&self) -> RwLockWriteGuard<'_, InodeCore> {
        self.core.write_ordered((1 << 32) + u64::from(self.number.raw()))
    }

    /// As [`Inode::core`], for the value of an attribute: values come after the inodes that own
    /// them, new ones too.
    pub(crate) fn core_of_value(&self) -> RwLockReadGuard<'_, InodeCore> {
        self.core.read_ordered((2 << 32) + u64::from(self.number.raw()))
    }

    /// As [`Inode::core_mut`], for the value of an attribute.
    pub(crate) fn core_mut_of_value(&self) -> RwLockWriteGuard<'_, InodeCore> {
        self.core.write_ordered((2 << 32) + u64::from(self.number.raw()))
    }

    /// Notes that data was written to the device, and the write has returned.
    pub(crate) fn note_written(&self, flushes: &Flushes) {
        self.written.fetch_max(flushes.ticket(), Ordering::Relaxed);
    }

    /// Clusters reserved for dirty data. Read this before the mapping.
    pub(crate) fn delayed_clusters(&self) -> u64 {
        self.delayed.load(Ordering::Acquire)
    }

    /// Notes that the reservations for dirty data changed; `data` is what the content lock guards,
    /// which the caller holds exclusively.
    pub(crate) fn note_delayed(&self, data: &FileData) {
        self.delayed.store(u64_from_usize(data.reserved_len()), Ordering::Release);
    }

    /// If an error of the device kept data from being written, notes that for the next fsync.
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
    /// block's content of that epoch was set aside for the commit, the inode is copied there too.
    pub(crate) fn encode(&self, epoch: Epoch, encoding: &Encoding<'_>) {
        let mut core = self.core_mut_child();
        if self.epoch() == epoch {
            self.encode_core(&mut core, encoding);
            core.table = None;
        }
    }

    /// [`Self::encode`] for a caller that holds the core, whatever the epoch.
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

    /// What the dentry cache knows about a name. The caller holds the content lock of the
    /// directory.
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
    /// Fails when the inode was deleted while the caller waited for it.
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

    /// Whether nothing is left to do: no orphan record to remove, no truncation to finish, no
    /// deletion, and no size that the disk does not know yet.
    fn owes_nothing(&self) -> bool {
        let is_told = self.size <= self.slot.raw().size();
        self.orphan.is_none() && !self.unfinished && (is_told && self.links() > 0 || self.deleted)
    }

    /// The most bytes of content that the inode can hold; `None` if its content lies in blocks, or
    /// other attributes leave no room.
    pub(crate) fn inline_room(&self, number: InodeNr) -> Result<Option<usize>> {
        if self.map != InodeMap::Inline && !self.may_be_inline {
            return Ok(None);
        }
        inline_data::room(self.slot.attribute_area())
            .map_err(|kind| Error::from(Corruption::new(kind).in_inode(number)))
    }

    /// Stores the two parts of inline content. They must fit, see [`Self::inline_room`]. The caller
    /// sets the size.
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

    /// Whether no old data can lie behind the end: the size is a multiple of the block, and no
    /// truncation was left midway.
    pub(crate) fn has_clear_end(&self, block_size: usize) -> bool {
        !self.unfinished && self.size.is_multiple_of(u64_from_usize(block_size))
    }

    /// Whether a change of content at the caller's time changes the times.
    pub(crate) fn times_change(&self, ctx: &OpContext) -> bool {
        !ctx.caches_writes && (self.slot.modified() != ctx.now || self.slot.changed() != ctx.now)
    }

    /// Sets the times of a change of content, unless the caller keeps times itself.
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

    /// The table block and the offset in it, while there is something to encode.
    pub(crate) fn table(&self) -> Option<(Arc<Buffer>, usize)> {
        self.table.clone()
    }

    /// Sets the next older inode of the orphan list, 0 for none.
    pub(crate) fn set_orphan_link(&mut self, older: InodeNr) {
        self.slot.raw_mut().i_dtime.set(older.raw());
    }

    /// As [`Self::set_orphan_link`], for an inode whose table block has joined the transaction
    /// separately.
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
