//! Directories of an open file system. [`crate::directory`] has the algorithms; this module gives
//! them the blocks of a directory.

use crate::cache::{BlockKind, Buffer};
use crate::directory::{Directory, DirectoryRules, DirectoryStore, ListingDamage, Names, Role};
use crate::extents::NodeBlock;
use crate::file::Files;
use crate::inode::{Inode, InodeCore};
use crate::mapping::How;
use crate::mapping::Mapping;
use crate::pool::Pool;
use crate::txn::Handle;
use crate::volume::Volume;
use crate::{Error, OpContext, Result};
use blockyard_disk::checksum::{verify_dir_leaf, verify_htree};
use blockyard_disk::dirblock::{self, DirLayout};
use blockyard_disk::dirhash::{HashSeed, HashVersion};
use blockyard_disk::htree::Index;
use blockyard_disk::inline_data::{self, HEAD_LEN, InlineData, PackedDir};
use blockyard_disk::inode::{FileType, InodeFlags, InodeMap};
use blockyard_disk::num::{u32_from_u64, u32_from_usize, u64_from_usize, usize_from_u32, usize_from_u64};
use blockyard_disk::{BlockNr, Compat, Corruption, CorruptionKind, Incompat, InodeNr, LogicalBlock};
use std::cell::{Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// An entry as `readdir` returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The inode.
    pub inode: InodeNr,
    /// The type that the entry records; `None` if the file system's directories record none.
    pub kind: Option<FileType>,
    /// The name's bytes.
    pub name: Vec<u8>,
    /// Where to continue after this entry. Stays valid whatever is created or removed. Entries
    /// whose names have the same hash have the same `next`, and are always returned together. A
    /// caller must take all of them: continuing after one skips the others.
    pub next: u64,
}

/// A listing reads at least this many entries at a time, if the directory has them.
const BATCH: usize = 128;

/// One block of a directory: a buffer, or a synthesised block for a directory that lies in its
/// inode. After a change, the entries of a synthesised block are put back into the inode if they
/// fit.
#[derive(Clone)]
pub(crate) enum DirBlock {
    Buffer(Arc<Buffer>),
    InInode(Rc<RefCell<Vec<u8>>>),
}

impl NodeBlock for DirBlock {
    fn read<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Self::Buffer(buffer) => buffer.read(f),
            Self::InInode(bytes) => f(&bytes.borrow()),
        }
    }

    fn write<R>(&self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        match self {
            Self::Buffer(buffer) => buffer.write(f),
            Self::InInode(bytes) => f(&mut bytes.borrow_mut()),
        }
    }
}

/// The raw inode of the directory, to read or to change.
enum CoreAccess<'a> {
    Shared(&'a InodeCore),
    Alone(RefCell<&'a mut InodeCore>),
}

/// The blocks of one directory.
pub(crate) struct DirBlocks<'a> {
    directories: &'a Directories,
    inode: &'a Arc<Inode>,
    core: CoreAccess<'a>,
    change: Option<(&'a OpContext, &'a Handle<'a>)>,
    /// The synthesised block of a directory that lies in its inode, during a change.
    in_inode: Option<Rc<RefCell<Vec<u8>>>>,
}

impl DirBlocks<'_> {
    fn with_core<R>(&self, f: impl FnOnce(&InodeCore) -> R) -> R {
        match &self.core {
            CoreAccess::Shared(core) => f(core),
            CoreAccess::Alone(core) => {
                let core: Ref<'_, &mut InodeCore> = core.borrow();
                f(&core)
            }
        }
    }
}

impl DirectoryStore for DirBlocks<'_> {
    type Block = DirBlock;

    fn inode(&self) -> InodeNr {
        self.inode.number()
    }

    fn blocks(&self) -> u32 {
        self.with_core(|core| match core.map {
            InodeMap::Inline => 1,
            _ => self.directories.dir_blocks(core),
        })
    }

    fn load(&self, logical: u32, role: Role) -> Result<DirBlock> {
        if let Some(bytes) = &self.in_inode {
            return Ok(DirBlock::InInode(Rc::clone(bytes)));
        }
        self.with_core(|core| {
            if core.map == InodeMap::Inline {
                let layout = self.directories.dir_layout();
                let bytes = self.directories.inline_directory(self.inode, core, layout)?;
                return Ok(DirBlock::InInode(Rc::new(RefCell::new(bytes))));
            }
            self.directories.load_dir_block(self.inode, core, logical, role).map(DirBlock::Buffer)
        })
    }

    fn prepare(&self, block: &DirBlock) -> Result<()> {
        match (block, self.change) {
            (DirBlock::Buffer(buffer), Some((_, handle))) => {
                handle.join(buffer);
                Ok(())
            }
            (DirBlock::InInode(_), Some(_)) if self.in_inode.is_some() => Ok(()),
            _ => Err(Error::ReadOnly),
        }
    }

    fn append(&self, count: usize) -> Result<Vec<(u32, DirBlock)>> {
        let (Some((ctx, handle)), CoreAccess::Alone(core), None) = (self.change, &self.core, &self.in_inode)
        else {
            return Err(Error::ReadOnly);
        };
        let mut core = core.borrow_mut();
        let added =
            self.directories.append_dir_blocks(ctx, handle, self.inode, &mut core, u32_from_usize(count))?;
        Ok(added.into_iter().map(|(logical, buffer)| (logical, DirBlock::Buffer(buffer))).collect())
    }

    fn names(&self) -> Option<Names<'_>> {
        self.inode.names().map(|directory| Names { directory, cache: &self.directories.volume.names })
    }

    fn damage(&self) -> &ListingDamage {
        &self.inode.damage
    }

    fn set_role(&self, block: &DirBlock, role: Role) {
        if let DirBlock::Buffer(buffer) = block {
            buffer.set_kind(self.with_core(|core| block_kind(core, role)));
        }
    }
}

fn block_kind(core: &InodeCore, role: Role) -> BlockKind {
    match role {
        Role::Leaf => BlockKind::DirectoryLeaf(core.seed),
        Role::Index(kind) => BlockKind::DirectoryIndex(core.seed, kind),
    }
}

/// The directories of a file system.
pub(crate) struct Directories {
    volume: Arc<Volume>,
    mapping: Arc<Mapping>,
    files: Arc<Files>,
}

impl Directories {
    /// The directories of a volume.
    pub(crate) fn new(volume: &Arc<Volume>, mapping: &Arc<Mapping>, files: &Arc<Files>) -> Self {
        Self { volume: Arc::clone(volume), mapping: Arc::clone(mapping), files: Arc::clone(files) }
    }

    /// What all directories of this file system share.
    pub(crate) fn dir_rules(&self) -> DirectoryRules {
        let (features, raw) = (self.volume.sb.features(), self.volume.sb.raw());
        let unsigned_hash = self.volume.sb.has_unsigned_hash();
        // An unknown version is taken as half-MD4, the usual one.
        let version = HashVersion::from_raw(raw.s_def_hash_version).unwrap_or(HashVersion::HalfMd4);
        DirectoryRules {
            layout: self.dir_layout(),
            hash_seed: HashSeed::new(raw.hash_seed()),
            hash_version: version.with_unsigned_chars(unsigned_hash),
            unsigned_hash,
            may_index: features.compat.contains(Compat::DIR_INDEX),
            large: features.incompat.contains(Incompat::LARGE_DIR),
        }
    }

    /// The layout of directory blocks on this file system.
    pub(crate) fn dir_layout(&self) -> DirLayout {
        DirLayout {
            block_size: self.volume.block_size(),
            tail: self.volume.sb.features().has_metadata_csum(),
            file_types: self.volume.sb.features().incompat.contains(Incompat::FILETYPE),
            inodes_count: self.volume.geometry().inodes_count(),
        }
    }

    /// Blocks of a directory.
    pub(crate) fn dir_blocks(&self, core: &InodeCore) -> u32 {
        u32_from_u64((core.size >> self.volume.geometry().block_bits()).min(u64::from(u32::MAX)))
    }

    fn is_indexed(&self, core: &InodeCore) -> bool {
        core.flags().contains(InodeFlags::INDEX)
            && core.map != InodeMap::Inline
            && self.volume.sb.features().compat.contains(Compat::DIR_INDEX)
    }

    /// Runs `f` on a directory to read it. The caller holds its content lock.
    pub(crate) fn in_directory<R>(
        &self,
        inode: &Arc<Inode>,
        core: &InodeCore,
        f: impl FnOnce(&Directory<'_, DirBlocks<'_>>) -> Result<R>,
    ) -> Result<R> {
        let core_access = CoreAccess::Shared(core);
        let store = DirBlocks { directories: self, inode, core: core_access, change: None, in_inode: None };
        f(&Directory::new(&store, &self.dir_rules(), self.is_indexed(core)))
    }

    /// Runs `f` on a directory to change it. The caller holds its content lock exclusively, and the
    /// inode has joined the transaction. If the directory lies in its inode and no longer fits
    /// there after `f`, the change is dropped, the directory moves into a block, and `f` runs
    /// again.
    pub(crate) fn change_directory<R>(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        inode: &Arc<Inode>,
        core: &mut InodeCore,
        mut f: impl FnMut(&mut Directory<'_, DirBlocks<'_>>) -> Result<R>,
    ) -> Result<R> {
        if core.map == InodeMap::Inline {
            if let Some(result) = self.change_in_inode((ctx, handle), inode, core, &mut f)? {
                return Ok(result);
            }
            self.leave_inline_directory(ctx, handle, inode, core)?;
        }
        let indexed = self.is_indexed(core);
        if !indexed && core.flags().contains(InodeFlags::INDEX) {
            // The file system no longer has `dir_index`, so the index is not maintained: new names
            // overwrite it, as in Linux (observed on 6.18).
            let flags = core.flags().difference(InodeFlags::INDEX);
            core.slot.raw_mut().set_flags(flags);
        }
        let rules = self.dir_rules();
        let (result, indexed_now) = {
            let store = DirBlocks {
                directories: self,
                inode,
                core: CoreAccess::Alone(RefCell::new(core)),
                change: Some((ctx, handle)),
                in_inode: None,
            };
            let mut directory = Directory::new(&store, &rules, indexed);
            let result = f(&mut directory);
            (result, directory.is_indexed())
        };
        if indexed_now && !indexed {
            let flags = core.flags() | InodeFlags::INDEX;
            core.slot.raw_mut().set_flags(flags);
        }
        result
    }

    /// The inode of a name other than `.` and `..`. The caller holds the directory's content lock.
    pub(crate) fn find_name(
        &self,
        inode: &Arc<Inode>,
        core: &InodeCore,
        name: &[u8],
    ) -> Result<Option<InodeNr>> {
        let Some(known) = inode.dentry(name).answer() else {
            return self.in_directory(inode, core, |directory| directory.find(name));
        };
        debug_assert!(
            self.is_in_blocks(inode, core, name, known),
            "the dentry cache and the blocks disagree"
        );
        Ok(known)
    }

    /// Whether a search of the blocks for a name finds `known`, the answer of the dentry cache.
    /// True if the blocks cannot be read.
    pub(super) fn is_in_blocks(
        &self,
        inode: &Arc<Inode>,
        core: &InodeCore,
        name: &[u8],
        known: Option<InodeNr>,
    ) -> bool {
        let found = self.in_directory(inode, core, |directory| directory.lookup(name));
        found.map_or(true, |entry| entry.map(|entry| entry.inode) == known)
    }

    /// Whether a directory holds nothing but `.` and `..`.
    pub(crate) fn is_empty_directory(&self, inode: &Arc<Inode>, core: &InodeCore) -> Result<bool> {
        self.in_directory(inode, core, |directory| directory.is_empty())
    }

    /// Initialises a new directory, without names. If it may lie in its inode and has room there,
    /// it needs no block. Otherwise it gets its first block, with `.` and `..`.
    pub(crate) fn format_directory(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        inode: &Arc<Inode>,
        core: &mut InodeCore,
        parent: InodeNr,
    ) -> Result<()> {
        if core.inline_room(inode.number())?.is_some() {
            let PackedDir { head, tail } = inline_data::pack_names(parent.raw(), &[], self.dir_layout());
            debug_assert!(tail.is_empty(), "no names need {} bytes", tail.len());
            core.store_inline(inode.number(), &head, &tail)?;
            core.set_size(u64_from_usize(HEAD_LEN));
            return Ok(());
        }
        core.may_be_inline = false;
        for (_, buffer) in self.append_dir_blocks(ctx, handle, inode, core, 1)? {
            let (own, up) = (inode.number().raw(), parent.raw());
            buffer.write(|bytes| dirblock::init_dots(bytes, self.dir_layout(), own, up));
            debug_assert!(buffer.read(|bytes| dirblock::dots(bytes, self.dir_layout())).is_ok());
        }
        Ok(())
    }

    /// Calls `visit` with the entries of a directory from a position on until `visit` returns
    /// false.
    ///
    /// Damaged blocks are passed over. A call that gets to the end of the directory then returns
    /// the first error that it met. If it met none, but an earlier call did, it reads the whole
    /// directory and returns the first error of this reading, if any.
    pub(crate) fn each_entry(
        &self,
        inode: &Arc<Inode>,
        core: &InodeCore,
        from: u64,
        visit: &mut dyn FnMut(DirEntry) -> bool,
    ) -> Result<()> {
        if from == 0 {
            inode.damage.forget_leaves();
        }
        let (mut cookie, mut found) = (from, None);
        loop {
            let batch = self.in_directory(inode, core, |directory| Ok(directory.read(cookie, BATCH)))?;
            if let Some(error) = batch.error {
                found.get_or_insert(error);
            }
            let Some(last) = batch.entries.last() else {
                return found.map_or_else(|| self.check_listed(inode, core), Err);
            };
            cookie = last.cookie;
            for entry in batch.entries {
                let crate::directory::DirectoryEntry { inode, file_type, name, cookie } = entry;
                if !visit(DirEntry { inode, kind: file_type, name, next: cookie }) {
                    return Ok(());
                }
            }
        }
    }

    /// For a call of [`Self::each_entry`] that got to the end and met no error. If earlier calls
    /// met damage, reads the whole directory and returns the first error. If there is none, the
    /// damage is gone, and later calls need not look for it.
    fn check_listed(&self, inode: &Arc<Inode>, core: &InodeCore) -> Result<()> {
        let met = inode.damage.met();
        if met == 0 {
            return Ok(());
        }
        let mut cookie = 0;
        loop {
            let batch = self.in_directory(inode, core, |directory| Ok(directory.read(cookie, BATCH)))?;
            match (batch.error, batch.entries.last()) {
                (Some(error), _) => return Err(error),
                (None, Some(last)) => cookie = last.cookie,
                (None, None) => {
                    inode.damage.is_gone(met);
                    return Ok(());
                }
            }
        }
    }

    /// Loads one block of a directory. If it is read from the device, it is verified for its role.
    fn load_dir_block(
        &self,
        inode: &Inode,
        core: &InodeCore,
        logical: u32,
        role: Role,
    ) -> Result<Arc<Buffer>> {
        let mapped = self.mapping.map_block(inode, core, logical, 1)?;
        let place = mapped.physical.filter(|_| !mapped.unwritten).map(BlockNr::new);
        let Some(block) = place else {
            return Err(Corruption::new(CorruptionKind::DirHole).in_inode(inode.number()).into());
        };
        self.volume.cache.read(block, block_kind(core, role), |bytes| {
            let verified = match role {
                Role::Leaf => verify_dir_leaf(core.seed, bytes),
                Role::Index(kind) => verify_htree(core.seed, bytes, kind.entries_at()),
            };
            verified.map_err(|found| Error::from(found.in_inode(inode.number()).in_block(block)))?;
            let Role::Index(kind) = role else { return Ok(()) };
            // All entries are checked here, once, so that a lookup need not do it.
            let checked = Index::parse(bytes, kind, &self.dir_layout(), self.dir_blocks(core));
            checked.map(drop).map_err(|defect| {
                let found = Corruption::new(defect.into()).in_inode(inode.number());
                found.in_logical(LogicalBlock::new(logical)).in_block(block).into()
            })
        })
    }

    /// Appends `count` zeroed blocks to a directory, or none. They are leaves until
    /// [`DirectoryStore::set_role`] changes that.
    fn append_dir_blocks(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        inode: &Arc<Inode>,
        core: &mut InodeCore,
        count: u32,
    ) -> Result<Vec<(u32, Arc<Buffer>)>> {
        let first = self.dir_blocks(core);
        let limit =
            if self.volume.sb.features().incompat.contains(Incompat::LARGE_DIR) { u64::MAX } else { 1 << 31 };
        let block_size = u64_from_usize(self.volume.block_size());
        let end = first.checked_add(count).filter(|end| u64::from(*end) * block_size <= limit);
        let Some(end) = end else { return Err(Error::NoSpace) };
        let mut added = Vec::with_capacity(2);
        for logical in first..end {
            match self.map_directory_block(ctx, handle, inode, core, logical) {
                Ok(block) => {
                    added.push((logical, handle.create(block, BlockKind::DirectoryLeaf(core.seed))));
                }
                Err(error) => {
                    let range = first..logical;
                    if !range.is_empty() {
                        let undone = self.mapping.remove_and_free(ctx, handle, inode, core, range);
                        self.volume.apply(undone)?;
                    }
                    return Err(error);
                }
            }
        }
        debug_assert_eq!(added.len(), usize_from_u32(count), "as many blocks as were asked for");
        core.set_size(u64::from(end) * block_size);
        Ok(added)
    }

    /// Allocates and maps one block of a directory or a symbolic link.
    pub(crate) fn map_directory_block(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        inode: &Arc<Inode>,
        core: &mut InodeCore,
        logical: u32,
    ) -> Result<BlockNr> {
        let here = self.mapping.lookup_block(inode, core, logical)?;
        let how = How { unwritten: false, pool: Pool::Ordinary, exact: true };
        let plan = self.mapping.plan_blocks(ctx, inode, core, &here, (logical, 1), how)?;
        debug_assert_eq!(plan.extent.len, 1, "one block was asked for");
        let physical = plan.extent.physical;
        self.mapping.apply_plan(ctx, handle, inode, core, plan)?;
        Ok(BlockNr::new(physical))
    }

    /// Changes a directory that lies in its inode. `f` runs on a synthesised block, which has room
    /// for one more name of any length. Returns `None`, with nothing changed, if the result does
    /// not fit into the inode.
    fn change_in_inode<R>(
        &self,
        change: (&OpContext, &Handle<'_>),
        inode: &Arc<Inode>,
        core: &mut InodeCore,
        f: &mut impl FnMut(&mut Directory<'_, DirBlocks<'_>>) -> Result<R>,
    ) -> Result<Option<R>> {
        let names = usize_from_u64(core.size) + 2 * DirLayout::entry_len(2);
        let roomy = (names + DirLayout::entry_len(dirblock::NAME_LEN_MAX)).next_multiple_of(4);
        let block_size = roomy.max(self.volume.block_size());
        let layout = DirLayout { block_size, tail: false, ..self.dir_layout() };
        let rules = DirectoryRules { layout, ..self.dir_rules() };
        let block = Rc::new(RefCell::new(self.inline_directory(inode, core, layout)?));
        let result = {
            let store = DirBlocks {
                directories: self,
                inode,
                core: CoreAccess::Alone(RefCell::new(core)),
                change: Some(change),
                in_inode: Some(Rc::clone(&block)),
            };
            f(&mut Directory::new(&store, &rules, false))?
        };
        let is_back = put_back_inline(inode, core, &block.borrow(), layout)?;
        Ok(is_back.then_some(result))
    }

    /// The entries of a directory that lies in its inode, as a linear block.
    fn inline_directory(&self, inode: &Inode, core: &InodeCore, layout: DirLayout) -> Result<Vec<u8>> {
        let damaged = |kind: CorruptionKind| Corruption::new(kind).in_inode(inode.number());
        let tail = inline_data::tail_of(core.slot.attribute_area()).map_err(damaged)?;
        let mut block = vec![0; layout.block_size];
        InlineData { head: core.root(), tail }
            .convert_dir(inode.number().raw(), &mut block, layout)
            .map_err(|defect| damaged(defect.into()))?;
        Ok(block)
    }

    /// Moves a directory out of its inode into a block.
    fn leave_inline_directory(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        inode: &Arc<Inode>,
        core: &mut InodeCore,
    ) -> Result<()> {
        let bytes = self.inline_directory(inode, core, self.dir_layout())?;
        let (slot, map, size) = (core.slot.clone(), core.map, usize_from_u64(core.size));
        self.files.clear_inline(core);
        core.set_size(0);
        match self.append_dir_blocks(ctx, handle, inode, core, 1) {
            Ok(blocks) => {
                for (_, buffer) in blocks {
                    buffer.write(|block| block.copy_from_slice(&bytes));
                }
                Ok(())
            }
            Err(error) => {
                (core.slot, core.map) = (slot, map);
                core.set_size(u64_from_usize(size));
                Err(error)
            }
        }
    }
}

/// Puts the entries of a changed directory back into its inode: into `i_block` and the value of the
/// attribute `system.data`. Returns whether the entries fit.
///
/// If the value is empty but is needed now, it gets all the room that the inode has at this moment.
/// It never grows later, as in Linux (observed on 6.18).
fn put_back_inline(inode: &Inode, core: &mut InodeCore, block: &[u8], layout: DirLayout) -> Result<bool> {
    let damaged = |kind: CorruptionKind| Corruption::new(kind).in_inode(inode.number());
    let tail_len = inline_data::tail_of(core.slot.attribute_area()).map_err(damaged)?.len();
    let pack = |tail_len| {
        inline_data::pack_dir(block, layout, tail_len).map_err(|defect| Error::from(damaged(defect.into())))
    };
    let mut packed = pack(tail_len)?;
    if packed.is_none() && tail_len == 0 {
        let most = core.inline_room(inode.number())?.map_or(0, |room| room - HEAD_LEN);
        packed = if most >= DirLayout::entry_len(1) { pack(most)? } else { None };
    }
    let Some(PackedDir { head, tail }) = packed else { return Ok(false) };
    if tail.is_empty() {
        // The attribute is not stored. It may be missing, and the inode may lack room even for an
        // empty one.
        *core.root_mut() = head;
    } else {
        core.store_inline(inode.number(), &head, &tail)?;
        core.set_size(u64_from_usize(HEAD_LEN + tail.len()));
    }
    Ok(true)
}
