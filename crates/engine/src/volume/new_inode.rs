//! Creating inodes.

use crate::inode::{Inode, InodeCore, SlotBytes};
use crate::txn::Handle;
use crate::volume::Volume;
use crate::{Error, OpContext, Result};
use blockyard_alloc::inode::{InodeRequest, top_name_hash};
use blockyard_alloc::policy::slots::TopFlag;
use blockyard_disk::device_number::DeviceNumber;
use blockyard_disk::dirhash::HashSeed;
use blockyard_disk::inode::{FileType, InodeFlags, InodeMap, InodeSlot, RawInode};
use blockyard_disk::num::low32;
use blockyard_disk::{Incompat, InodeNr};
use std::sync::Arc;

/// The properties of a new inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewInode {
    /// Type.
    pub kind: FileType,
    /// The low 12 bits of the mode.
    pub permissions: u16,
    /// The device number of a character or block device; `None` for all other types.
    pub device: Option<DeviceNumber>,
}

/// Flags that a new directory inherits from its parent. Under some policies it also inherits
/// TOPDIR. Other types inherit fewer.
const INHERITED: InodeFlags = InodeFlags::SECRM
    .union(InodeFlags::UNRM)
    .union(InodeFlags::COMPR)
    .union(InodeFlags::SYNC)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::JOURNAL_DATA)
    .union(InodeFlags::NOTAIL)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::DAX)
    .union(InodeFlags::PROJINHERIT);

/// The only flags that an inode inherits if it is neither a directory nor a regular file.
const FOR_SPECIAL: InodeFlags = InodeFlags::NODUMP.union(InodeFlags::NOATIME);

impl Volume {
    /// Allocates an inode number and creates the inode in memory, with no links yet. `parent` is
    /// the number and core of the parent directory. `name` is `None` for an inode without a name.
    pub(crate) fn new_inode(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        parent: (InodeNr, &mut InodeCore),
        name: Option<&[u8]>,
        new: &NewInode,
    ) -> Result<Arc<Inode>> {
        let directory = new.kind == FileType::Directory;
        let extents = self.sb.features().incompat.contains(Incompat::EXTENTS);
        let map = match new.kind {
            FileType::Regular | FileType::Directory if extents => InodeMap::Extents,
            FileType::Regular | FileType::Directory => InodeMap::Indirect,
            FileType::Symlink => InodeMap::FastSymlink,
            FileType::CharDevice | FileType::BlockDevice => {
                let number = new.device.ok_or(Error::Invalid("a device needs a number"))?;
                number.to_disk().ok_or(Error::Invalid("major beyond 12 bits or minor beyond 20 bits"))?;
                InodeMap::Device(number)
            }
            FileType::Fifo | FileType::Socket => InodeMap::None,
        };
        let number = self.choose_inode(ctx, handle, parent.0, parent.1, name, directory)?;
        let slot = self.new_slot(ctx, number, parent.1, new);
        let seed = self.sb.checksums().inode_seed(number, slot.raw().i_generation.get());
        let (group, _) = self.geometry().locate_inode(number);
        let mut core = InodeCore::new(slot, map, 0, 0, seed);
        core.may_be_inline = self.may_be_inline(new.kind, core.flags());
        let inode = Arc::new(Inode::new(number, new.kind, group, core, &self.names, self.rules.pages()));
        {
            let mut core = inode.core_mut_child();
            // The inode goes into the table before it joins the transaction: without the table's
            // reference, `encode_waiting`, which counts references, would take it for unused.
            self.inodes.table.insert(&inode);
            self.inodes
                .join_inode(handle, &inode, &mut core)
                .inspect_err(|_| self.inodes.table.remove(number))?;
        }
        inode.note_remapped(handle);
        Ok(inode)
    }

    /// Whether a new inode may keep its content as inline data (`inline_data`). As in Linux
    /// (observed on 6.18), only directories and regular files without the DAX flag may.
    fn may_be_inline(&self, kind: FileType, flags: InodeFlags) -> bool {
        self.sb.features().incompat.contains(Incompat::INLINE_DATA)
            && match kind {
                FileType::Directory => true,
                FileType::Regular => !flags.contains(InodeFlags::DAX),
                _ => false,
            }
    }

    /// Chooses a free inode by the placement rule and marks it as used.
    fn choose_inode(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        parent: InodeNr,
        dir: &mut InodeCore,
        name: Option<&[u8]>,
        directory: bool,
    ) -> Result<InodeNr> {
        let request = InodeRequest {
            parent,
            parent_is_top: parent == InodeNr::ROOT || dir.flags().contains(InodeFlags::TOPDIR),
            directory,
            name_hash: name.map(|name| top_name_hash(name, self.hash_seed())),
            goal: None,
            slot: ctx.cpu,
            now: low32(ctx.now.seconds.cast_unsigned()),
        };
        let claim = self.space.claim_inode(&request, &mut dir.children)?;
        let (number, group) = (claim.inode(), claim.group());
        assert!(number >= self.sb.first_inode(), "inode {number} is reserved");
        assert!(number.raw() <= self.geometry().inodes_count(), "inode {number} is behind the last");
        self.groups.pin_inode_bitmap(handle, group)?;
        let unused_from = self.groups.never_used_from(group);
        self.inodes.reserve_table_block(handle, number, unused_from)?;
        if self.sb.features().has_group_checksum() && self.groups.initialize_block_bitmap(handle, group) {
            self.space.allocator().note_bitmap_written(group);
        }
        let marked = claim.commit(|_| self.groups.mark_inode_used(handle, number, directory));
        self.apply(marked)?;
        Ok(number)
    }

    /// The seed of name hashes.
    pub(crate) fn hash_seed(&self) -> HashSeed {
        let mut bytes = [0; 16];
        for (place, word) in bytes.chunks_exact_mut(4).zip(self.sb.raw().hash_seed()) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        HashSeed::from_bytes(bytes)
    }

    /// Frees an inode's number on disk and in core. The inode bitmap of its group must be in
    /// memory.
    pub(crate) fn free_inode_number(&self, handle: &Handle<'_>, inode: &Inode) -> Result<()> {
        let directory = inode.kind() == FileType::Directory;
        self.space.inodes.free(inode.number(), directory, handle.slot(), |_| {
            self.groups.mark_inode_free(handle, inode.number(), directory)
        })?
    }

    fn new_slot(
        &self,
        ctx: &OpContext,
        number: InodeNr,
        parent: &InodeCore,
        new: &NewInode,
    ) -> InodeSlot<SlotBytes> {
        let size = usize::from(self.geometry().inode_size());
        let mut slot = InodeSlot::new(SlotBytes::from_elem(0, size));
        if size > RawInode::SIZE {
            slot.set_extra_isize(self.sb.raw().s_want_extra_isize.get().clamp(32, 128));
        }
        let from_parent = parent.slot.raw();
        let set_gid = from_parent.i_mode.get() & 0o2000 != 0;
        let mut permissions = new.permissions & 0o7777;
        if set_gid && new.kind == FileType::Directory {
            permissions |= 0o2000;
        }
        let gid = if set_gid { from_parent.gid() } else { ctx.gid };
        let mut flags = parent.flags() & INHERITED;
        if self.options().policy.top_flag == TopFlag::Inherited && new.kind == FileType::Directory {
            flags |= parent.flags() & InodeFlags::TOPDIR;
        }
        match new.kind {
            FileType::Directory => {}
            FileType::Regular => flags.remove(InodeFlags::DIRSYNC | InodeFlags::PROJINHERIT),
            _ => flags &= FOR_SPECIAL,
        }
        let mapped = matches!(new.kind, FileType::Regular | FileType::Directory);
        let extents = mapped && self.sb.features().incompat.contains(Incompat::EXTENTS);
        flags.set(InodeFlags::EXTENTS, extents);
        if parent.flags().contains(InodeFlags::PROJINHERIT) {
            slot.set_project(parent.slot.project());
        }
        let raw = slot.raw_mut();
        raw.i_mode.set(new.kind.mode_bits() | permissions);
        raw.set_uid(ctx.uid);
        raw.set_gid(gid);
        raw.set_flags(flags);
        raw.i_generation.set(self.generation(number));
        if extents {
            raw.i_block = crate::extents::empty_root();
        }
        let is_device = matches!(new.kind, FileType::CharDevice | FileType::BlockDevice);
        let device = new.device.filter(|_| is_device);
        if let Some((old, wide)) = device.and_then(DeviceNumber::to_disk) {
            let mut words = [0; 15];
            (words[0], words[1]) = (old, wide);
            raw.set_block_words(words);
        }
        slot.set_accessed(ctx.now);
        slot.set_modified(ctx.now);
        slot.set_changed(ctx.now);
        slot.set_created(ctx.now);
        slot
    }

    /// The generation of a new inode. It is pseudo-random, so it almost certainly differs from the
    /// generation of the previous inode with this number, even if an earlier instance created that
    /// inode. The same seed and operations yield the same generations.
    fn generation(&self, number: InodeNr) -> u32 {
        let draw = self.inodes_created.fetch_add(1, blockyard_sync::Ordering::Relaxed);
        let mixed = (self.options().seed ^ draw ^ (u64::from(number.raw()) << 32))
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .wrapping_add(draw);
        blockyard_disk::num::high32(mixed)
    }

    /// Undoes [`Self::new_inode`] for an operation that failed before anything referred to the
    /// inode.
    pub(crate) fn unmake_inode(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        inode: &Arc<Inode>,
    ) -> Result<()> {
        let mut core = inode.core_mut_child();
        core.deleted = true;
        core.slot.raw_mut().i_links_count.set(0);
        self.set_deletion_time(ctx, &mut core);
        drop(core);
        self.retire(handle, inode);
        self.free_inode_number(handle, inode)
    }

    /// Sets the deletion time, of which the format keeps 32 bits. The field doubles as the orphan
    /// list's link. A time that could be an inode number would look like a leftover link, so such a
    /// time is raised above all inode numbers.
    pub(crate) fn set_deletion_time(&self, ctx: &OpContext, core: &mut InodeCore) {
        let seconds = low32(ctx.now.seconds.cast_unsigned());
        core.slot.raw_mut().i_dtime.set(seconds.max(self.geometry().inodes_count().saturating_add(1)));
    }

    /// Takes a deleted inode out of memory before its number is reused. Encodes pending changes
    /// now, so that they cannot overwrite the next user of the number.
    pub(crate) fn retire(&self, handle: &Handle<'_>, inode: &Inode) {
        debug_assert!(inode.core_child().deleted, "inode {} is in use", inode.number());
        inode.encode(handle.epoch(), &self.inodes.encoding());
        self.inodes.table.remove(inode.number());
        if inode.kind() == FileType::Directory {
            self.names.remove(inode.number());
        }
    }
}
