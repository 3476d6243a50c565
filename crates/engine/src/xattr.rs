//! Extended attributes: in the inode, else in one block, which several inodes may share.
//!
//! A change is first computed on copies of the inode's attribute area and of the block. A new
//! block, if needed, is allocated before anything changes. A shared block is copied before it is
//! changed. If the image has `ea_inode`, values that fit neither into the inode nor into the block
//! go into inodes of their own ([`values`]).

mod deletion;
mod inheritance;
mod lists;
mod values;

use crate::cache::{BlockKind, Buffer};
use crate::file::Files;
use crate::inode::{Inode, InodeCore};
use crate::space::{Wanted, WantedFor};
use crate::txn::Handle;
use crate::volume::Volume;
use crate::{Error, InodeRef, OpContext, Result};
use blockyard_disk::inline_data::{XATTR_INDEX, XATTR_NAME};
use blockyard_disk::inode::{FileType, InodeFlags, InodeMap};
use blockyard_disk::xattr::{
    Attribute, AttributeList, BlockHeader, Home, Value, acl_to_posix, has_magic, join_name, split_name,
};
use blockyard_disk::{BlockNr, Corruption, CorruptionKind};
pub(crate) use inheritance::Inherited;
use lists::permissions_of;
use std::sync::Arc;
pub(crate) use values::ValueInodes;
use values::{FreshValue, values_of};

/// What `set_xattr` does with an existing or a missing name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum XattrMode {
    /// Sets the attribute in both cases.
    #[default]
    Set,
    /// Refuses an existing name.
    Create,
    /// Refuses a missing name.
    Replace,
}

/// The most metadata blocks that a change touches, except for those of [`ValueInodes::credits`].
const CREDITS: usize = 12;
/// Longest value in bytes.
const VALUE_MAX: usize = 65_536;
/// The name indices of access control lists.
const ACLS: [u8; 2] = [ACCESS_LIST, DEFAULT_LIST];
/// The name index of the access list, which shares nine permission bits with the mode.
const ACCESS_LIST: u8 = 2;
/// The name index of the default list, which new inodes in a directory inherit.
const DEFAULT_LIST: u8 = 3;

/// The name index of rich access control lists, which no released kernel supports.
const RICH_ACL: u8 = 8;
/// The prefixes that any name may follow.
const OPEN_PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Longest name in bytes, with its prefix: the limit of the kernel's system calls.
const NAME_MAX: usize = 255;

/// Splits an attribute's name into the index of its prefix and the rest. Refuses names that Linux
/// does not support: of the `system.` names, it supports only the two access control lists.
fn attribute_name(name: &[u8]) -> Result<(u8, &[u8])> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Error::Range { what: "the attribute's name", bytes: name.len(), possible: "1 to 255" });
    }
    if name.contains(&0) {
        return Err(Error::Invalid("a name with NUL in it"));
    }
    match split_name(name) {
        Some((index, rest)) if is_served(index) => Ok((index, rest)),
        None if OPEN_PREFIXES.contains(&name) => Err(Error::Invalid("a name that is only a prefix")),
        _ => Err(Error::NotSupported("attributes of this prefix")),
    }
}

/// Whether attributes with this name index can be read, set and listed.
fn is_served(index: u8) -> bool {
    index != XATTR_INDEX && index != RICH_ACL
}

/// The extended attributes of inodes, and the deletion of inodes. They belong together: deleting an
/// inode releases its attributes, and releasing an attribute may delete the inode that holds its
/// value.
pub(crate) struct Xattrs {
    volume: Arc<Volume>,
    files: Arc<Files>,
}

/// A change of one attribute of an inode.
#[derive(Default)]
struct Change<'a> {
    /// The new attribute; `None` removes it.
    attribute: Option<Attribute>,
    /// The new inode that holds the value; `None` if `attribute` itself holds it.
    fresh: Option<FreshValue<'a>>,
    /// The new permission bits (`mode & 0o777`), if they change with the attribute.
    permissions: Option<u16>,
}

impl Change<'_> {
    /// Whether the old attribute and the mode already are as requested.
    fn is_done(&self, old: Option<&Attribute>, mode: u16) -> bool {
        let is_same = match (&self.attribute, old) {
            (Some(new), Some(old)) => self.fresh.is_none() && new.value == old.value,
            (new, old) => new.is_none() && old.is_none(),
        };
        is_same && self.permissions.is_none_or(|permissions| mode & 0o777 == permissions)
    }
}

/// The attributes of one inode, by location.
struct Places {
    in_inode: AttributeList,
    block: Option<(Arc<Buffer>, AttributeList)>,
}

impl Places {
    fn find(&self, index: u8, name: &[u8]) -> Option<&Attribute> {
        let block = self.block.as_ref().map(|(_, list)| list);
        [Some(&self.in_inode), block].into_iter().flatten().find_map(|list| list.find(index, name))
    }
}

impl Xattrs {
    /// The attributes of a volume's inodes.
    pub(crate) fn new(volume: &Arc<Volume>, files: &Arc<Files>) -> Self {
        Self { volume: Arc::clone(volume), files: Arc::clone(files) }
    }

    /// See [`crate::FileSystem::xattr`].
    pub(crate) fn xattr(&self, inode: InodeRef, name: &[u8]) -> Result<Vec<u8>> {
        let (index, rest) = attribute_name(name)?;
        let inode = self.volume.inodes.inode(inode)?;
        let _shared = inode.read();
        let value = {
            let core = inode.core();
            core.check_alive(inode.number())?;
            let places = self.attribute_places(&inode, &core)?;
            places.find(index, rest).ok_or(Error::NoAttribute)?.clone()
        };
        let bytes = self.value_of(&inode, &value)?;
        if ACLS.contains(&index) { acl_to_posix(&bytes).ok_or_else(|| damaged(&inode)) } else { Ok(bytes) }
    }

    /// See [`crate::FileSystem::xattr_names`].
    pub(crate) fn xattr_names(&self, inode: InodeRef) -> Result<Vec<Vec<u8>>> {
        let inode = self.volume.inodes.inode(inode)?;
        let _shared = inode.read();
        let core = inode.core();
        core.check_alive(inode.number())?;
        let places = self.attribute_places(&inode, &core)?;
        let block = places.block.iter().flat_map(|(_, list)| list.iter());
        let shown = places.in_inode.iter().chain(block).filter(|attribute| is_served(attribute.index));
        Ok(shown.filter_map(|attribute| join_name(attribute.index, &attribute.name)).collect())
    }

    /// See [`crate::FileSystem::set_xattr`].
    pub(crate) fn set_xattr(
        &self,
        ctx: &OpContext,
        inode: InodeRef,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let (index, rest) = attribute_name(name)?;
        if value.len() > VALUE_MAX {
            let bytes = value.len();
            return Err(Error::Range { what: "the attribute's value", bytes, possible: "0 to 65536" });
        }
        if ACLS.contains(&index) {
            return self.set_list(ctx, inode, index, value);
        }
        self.set_value(ctx, inode, (index, rest), value, mode)
    }

    /// Sets an attribute: in the inode, in the attribute block, or in an inode of its own. `value`
    /// has the on-disk form.
    fn set_value(
        &self,
        ctx: &OpContext,
        inode: InodeRef,
        (index, name): (u8, &[u8]),
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let attribute = Attribute { index, name: name.to_vec(), value: Value::Bytes(value.to_vec()) };
        let permissions = permissions_of(index, value);
        let change = Change { attribute: Some(attribute), fresh: None, permissions };
        match self.change_xattrs(ctx, inode, (index, name), change, mode) {
            Err(Error::NoSpace | Error::AttributeRoom { .. }) if self.keeps_values_in_inodes() => {
                self.set_xattr_in_inode(ctx, inode, (index, name), value, mode)
            }
            other => other,
        }
    }

    /// Sets an attribute whose value goes into an inode of its own, because it does not fit
    /// elsewhere or a block for it could not be allocated.
    fn set_xattr_in_inode(
        &self,
        ctx: &OpContext,
        inode: InodeRef,
        (index, name): (u8, &[u8]),
        bytes: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let owner = self.volume.inodes.inode(inode)?;
        if owner.core().map == InodeMap::FastSymlink {
            // `i_blocks` of a fast symbolic link must stay 0: otherwise e2fsck 1.47 takes the
            // target for a block map. (Linux adds the value's blocks all the same.)
            return Err(Error::AttributeRoom { bytes: bytes.len(), block: self.volume.block_size() });
        }
        let unused = {
            let _alone = owner.write();
            if self.touch_if_same(ctx, &owner, (index, name), bytes, mode)? {
                return Ok(());
            }
            let value = self.make_value(ctx, &owner, bytes)?;
            let hash = self.value_hash(bytes);
            let reference = Self::reference_to(&value, name, bytes.len(), hash);
            let attribute = Attribute { index, name: name.to_vec(), value: reference };
            let fresh = Some(FreshValue { inode: &value, hash });
            let permissions = permissions_of(index, bytes);
            let change = Change { attribute: Some(attribute), fresh, permissions };
            let set = self.change_in(ctx, &owner, (index, name), change, mode);
            if set.is_err() {
                self.abandon_value(ctx, &value)?;
            }
            set?
        };
        unused.iter().try_for_each(|value| self.delete_if_unused(ctx, value))
    }

    /// If a value inode already holds this value for the attribute, keeps that inode, sets the
    /// owner's change time as Linux does (observed on 6.18), and returns true. Otherwise does
    /// nothing and returns false, as it always does with [`XattrMode::Create`] and for access
    /// control lists. The caller holds the owner's content lock exclusively.
    fn touch_if_same(
        &self,
        ctx: &OpContext,
        owner: &Arc<Inode>,
        (index, name): (u8, &[u8]),
        bytes: &[u8],
        mode: XattrMode,
    ) -> Result<bool> {
        if mode == XattrMode::Create || ACLS.contains(&index) {
            return Ok(false);
        }
        let old = self.attribute_places(owner, &owner.core())?.find(index, name).cloned();
        let Some(old) = old.filter(|old| old.value.inode().is_some() && old.value.size() == bytes.len())
        else {
            return Ok(false);
        };
        // A damaged value is replaced.
        if self.value_of(owner, &old).ok().as_deref() != Some(bytes) {
            return Ok(false);
        }
        let handle = self.volume.begin(ctx, CREDITS)?;
        let mut core = owner.core_mut();
        core.check_alive(owner.number())?;
        check_changeable(&core)?;
        self.volume.inodes.join_inode(&handle, owner, &mut core)?;
        core.slot.set_changed(ctx.now);
        Ok(true)
    }

    /// See [`crate::FileSystem::remove_xattr`].
    pub(crate) fn remove_xattr(&self, ctx: &OpContext, inode: InodeRef, name: &[u8]) -> Result<()> {
        let (index, rest) = attribute_name(name)?;
        if ACLS.contains(&index) {
            return self.remove_list(ctx, inode, index);
        }
        self.change_xattrs(ctx, inode, (index, rest), Change::default(), XattrMode::Replace)
    }

    fn change_xattrs(
        &self,
        ctx: &OpContext,
        inode: InodeRef,
        (index, name): (u8, &[u8]),
        change: Change<'_>,
        mode: XattrMode,
    ) -> Result<()> {
        if (index, name) == (XATTR_INDEX, XATTR_NAME) {
            return Err(Error::NotSupported("changing system.data"));
        }
        let inode = self.volume.inodes.inode(inode)?;
        let unused = {
            let _alone = inode.write();
            self.change_in(ctx, &inode, (index, name), change, mode)?
        };
        unused.iter().try_for_each(|value| self.delete_if_unused(ctx, value))
    }

    /// Changes one attribute. The caller holds the inode's content lock exclusively. Returns the
    /// value inodes that nothing refers to any more.
    fn change_in(
        &self,
        ctx: &OpContext,
        inode: &Arc<Inode>,
        (index, name): (u8, &[u8]),
        change: Change<'_>,
        mode: XattrMode,
    ) -> Result<Vec<Arc<Inode>>> {
        let held = self.value_inodes(inode, &inode.core())?;
        let handle = self.volume.begin(ctx, CREDITS + held.credits())?;
        let mut core = inode.core_mut();
        core.check_alive(inode.number())?;
        check_changeable(&core)?;
        let Places { mut in_inode, block } = self.attribute_places(inode, &core)?;
        let (buffer, old_list) = block.map_or((None, None), |(buffer, list)| (Some(buffer), Some(list)));
        let old_list = old_list.unwrap_or_default();
        let mut in_block = old_list.clone();
        let from_inode = in_inode.remove(index, name);
        let old = from_inode.clone().or_else(|| in_block.remove(index, name));
        match (&old, mode) {
            (Some(_), XattrMode::Create) => return Err(Error::Exists),
            (None, XattrMode::Replace) => return Err(Error::NoAttribute),
            _ => {}
        }
        let mode_now = core.slot.raw().i_mode.get();
        if change.is_done(old.as_ref(), mode_now) {
            // As in Linux (observed on 6.18), not even the change time changes.
            return Ok(Vec::new());
        }
        let Change { attribute: new, fresh, permissions } = change;
        let is_set = new.is_some();
        let added = new.as_ref().map_or(0, |new| self.value_blocks(&new.value));
        let area = self.place_attribute(&core, &mut in_inode, &mut in_block, new)?;
        self.volume.inodes.join_inode(&handle, inode, &mut core)?;
        if is_set {
            self.volume.inodes.features.note_attribute();
        }
        let mut unused = Vec::new();
        if old_list != in_block {
            unused =
                self.store_block(ctx, &handle, inode, &mut core, buffer, (&old_list, &in_block), &held)?;
        }
        let taken_out = from_inode.iter().filter_map(|attribute| attribute.value.inode());
        unused.extend(self.drop_values(&handle, &held, taken_out)?);
        if let Some(value) = fresh {
            self.adopt_value(&handle, &core, value)?;
        }
        let removed = old.as_ref().map_or(0, |old| self.value_blocks(&old.value));
        core.add_blocks(added - removed, self.volume.geometry().block_bits());
        let area_at = core.slot.bytes().len() - area.len();
        core.slot.bytes_mut()[area_at..].copy_from_slice(&area);
        if let Some(permissions) = permissions {
            core.slot.raw_mut().i_mode.set(mode_now & !0o777 | permissions);
        }
        core.slot.set_changed(ctx.now);
        Ok(unused)
    }

    /// Adds `new` (if there is a new attribute) to the list of the inode, or to the list of the
    /// block if the inode has no room. Returns the new content of the inode's attribute area.
    fn place_attribute(
        &self,
        core: &InodeCore,
        in_inode: &mut AttributeList,
        in_block: &mut AttributeList,
        new: Option<Attribute>,
    ) -> Result<Vec<u8>> {
        let write = |list: &AttributeList| {
            let mut area = core.slot.attribute_area().to_vec();
            if list.is_empty() {
                area.fill(0);
                return Some(area);
            }
            list.write_inode_area(&mut area).then_some(area)
        };
        let Some(new) = new else { return write(in_inode).ok_or(Error::NoSpace) };
        let bytes = new.value.size();
        let mut with_new = in_inode.clone();
        with_new.set(new.clone());
        if let Some(area) = write(&with_new) {
            *in_inode = with_new;
            return Ok(area);
        }
        let is_value = matches!(new.value, Value::Bytes(_));
        in_block.set(new);
        if (is_value && !self.leaves_room(in_block))
            || !in_block.write_block(&mut vec![0; self.volume.block_size()], 1)
        {
            return Err(Error::AttributeRoom { bytes, block: self.volume.block_size() });
        }
        write(in_inode).ok_or(Error::NoSpace)
    }

    /// Whether a block may hold these attributes, one of which is new. With `ea_inode`, a new value
    /// goes into the block only if all values there then take at most 7/8 of the block (observed on
    /// Linux 6.18).
    fn leaves_room(&self, block: &AttributeList) -> bool {
        let length = |attribute: &Attribute| match &attribute.value {
            Value::Bytes(bytes) => bytes.len().next_multiple_of(4),
            _ => 0,
        };
        let all: usize = block.iter().map(length).sum();
        !self.keeps_values_in_inodes() || all <= self.volume.block_size() / 8 * 7
    }

    /// Stores `list` as the inode's attribute block. If only this inode uses the old block, the
    /// list is stored in place, otherwise in a new block. If the list is empty, the inode has no
    /// block afterwards. Returns the value inodes that nothing refers to any more. Each attribute
    /// in a block is one reference to its value inode, however many inodes share the block.
    #[allow(clippy::too_many_arguments, reason = "what a change of the block needs")]
    fn store_block(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        inode: &Arc<Inode>,
        core: &mut InodeCore,
        old: Option<Arc<Buffer>>,
        (old_list, list): (&AttributeList, &AttributeList),
        held: &ValueInodes,
    ) -> Result<Vec<Arc<Inode>>> {
        // A reference count of 1 means that only this inode uses the block. The count stays 1,
        // because the caller holds the inode's content lock.
        if let Some(buffer) = &old
            && !list.is_empty()
            && buffer.read(refcount) == 1
        {
            handle.join(buffer);
            let written = buffer.write(|bytes| list.write_block(bytes, 1));
            debug_assert!(written, "the list was found to fit");
            return self.drop_values(handle, held, without(values_of(old_list), values_of(list)));
        }
        let _released = self.reserve_attribute_block(handle, core)?;
        let fresh =
            if list.is_empty() { None } else { Some(self.new_attribute_block(ctx, handle, inode, list)?) };
        // A new value is not in `held`: it gets its first reference from [`Self::adopt_value`].
        self.count_values(handle, held, values_of(list))?;
        let unused =
            if old.is_some() { self.release_attribute_block(handle, core, held)? } else { Vec::new() };
        if inode.kind() == FileType::Regular && (old.is_some() || fresh.is_some()) {
            // `i_blocks` changes. That queues the file for write-back, as a write to the file does.
            self.files.note_dirtied(ctx, inode);
        }
        if let Some(block) = fresh {
            core.slot.raw_mut().set_file_acl(block);
            core.add_blocks(
                self.volume.groups.blocks_in(1).cast_signed(),
                self.volume.geometry().block_bits(),
            );
        }
        Ok(unused)
    }

    fn new_attribute_block(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        inode: &Arc<Inode>,
        list: &AttributeList,
    ) -> Result<BlockNr> {
        let goal = self.volume.geometry().group_first_block(inode.group());
        let wanted = Wanted { goal, ..Wanted::new(inode, WantedFor::Metadata) };
        let (block, buffer) = self.volume.space.new_metadata_block(
            ctx,
            handle,
            &wanted,
            &inode.space,
            BlockKind::Attributes,
        )?;
        let written = buffer.write(|bytes| list.write_block(bytes, 1));
        debug_assert!(written, "the list was found to fit");
        debug_assert!(buffer.read(|bytes| AttributeList::parse(bytes, Home::Block)).is_ok(), "block {block}");
        Ok(block)
    }

    /// Prepares for [`Self::release_attribute_block`]: reserves the bitmap of the inode's attribute
    /// block and loads the block, which stays in memory while the returned buffer lives.
    pub(crate) fn reserve_attribute_block(
        &self,
        handle: &Handle<'_>,
        core: &InodeCore,
    ) -> Result<Option<Arc<Buffer>>> {
        let block = core.slot.raw().file_acl();
        if block == BlockNr::ZERO {
            return Ok(None);
        }
        self.volume.groups.reserve_bitmaps(handle, block, 1)?;
        self.attribute_block(block).map(Some)
    }

    /// Removes an inode's reference to its attribute block, and frees the block if no reference is
    /// left. Returns the value inodes that nothing refers to any more. Call
    /// [`Self::reserve_attribute_block`] first.
    pub(crate) fn release_attribute_block(
        &self,
        handle: &Handle<'_>,
        core: &mut InodeCore,
        held: &ValueInodes,
    ) -> Result<Vec<Arc<Inode>>> {
        let block = core.slot.raw().file_acl();
        if block == BlockNr::ZERO {
            return Ok(Vec::new());
        }
        let buffer =
            handle.read_for_write(block, BlockKind::Attributes, |bytes| self.check_block(block, bytes))?;
        let last = buffer.write(|bytes| {
            let users = refcount(bytes);
            debug_assert!(users > 0, "block {block} has no user to lose");
            if users > 1 {
                bytes[4..8].copy_from_slice(&(users - 1).to_le_bytes());
            }
            users <= 1
        });
        let mut unused = Vec::new();
        if last {
            let list = buffer
                .read(|bytes| AttributeList::parse(bytes, Home::Block))
                .map_err(|defect| Corruption::new(defect.into()).in_block(block))?;
            unused = self.drop_values(handle, held, values_of(&list))?;
            self.volume.apply(self.volume.space.free_metadata_block(handle, block))?;
        }
        core.slot.raw_mut().set_file_acl(BlockNr::ZERO);
        core.add_blocks(-self.volume.groups.blocks_in(1).cast_signed(), self.volume.geometry().block_bits());
        Ok(unused)
    }

    fn attribute_places(&self, inode: &Arc<Inode>, core: &InodeCore) -> Result<Places> {
        let area = core.slot.attribute_area();
        let in_inode = if has_magic(area) {
            AttributeList::parse(area, Home::Inode)
                .map_err(|defect| Corruption::new(defect.into()).in_inode(inode.number()))?
        } else {
            AttributeList::default()
        };
        let number = core.slot.raw().file_acl();
        if number == BlockNr::ZERO {
            return Ok(Places { in_inode, block: None });
        }
        let buffer = self.attribute_block(number)?;
        let list = buffer
            .read(|bytes| AttributeList::parse(bytes, Home::Block))
            .map_err(|defect| Corruption::new(defect.into()).in_inode(inode.number()).in_block(number))?;
        Ok(Places { in_inode, block: Some((buffer, list)) })
    }

    fn attribute_block(&self, number: BlockNr) -> Result<Arc<Buffer>> {
        self.volume.cache.read(number, BlockKind::Attributes, |bytes| self.check_block(number, bytes))
    }

    fn check_block(&self, number: BlockNr, bytes: &[u8]) -> Result<()> {
        if !self.volume.groups.system_zones().may_map(number.raw(), 1) {
            return Err(Corruption::new(CorruptionKind::InodeFileAcl).in_block(number).into());
        }
        self.volume.sb.checksums().verify_xattr_block(number, bytes)?;
        let found = BlockHeader::read(bytes);
        found.map(drop).map_err(|defect| Corruption::new(defect.into()).in_block(number).into())
    }
}

/// `all` without the elements of `kept`. Each element of `kept` takes only one equal element out: a
/// value inode may occur several times, because attributes may share it.
fn without(all: impl Iterator<Item = u32>, kept: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut all: Vec<u32> = all.collect();
    for value in kept {
        if let Some(at) = all.iter().position(|other| *other == value) {
            all.swap_remove(at);
        }
    }
    all
}

fn check_changeable(core: &InodeCore) -> Result<()> {
    let is_fixed = core.flags().intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND);
    if is_fixed { Err(Error::NotPermitted) } else { Ok(()) }
}

fn refcount(bytes: &[u8]) -> u32 {
    BlockHeader::read(bytes).map_or(1, |header| header.refcount)
}

fn damaged(inode: &Inode) -> Error {
    Corruption::new(CorruptionKind::XattrAcl).in_inode(inode.number()).into()
}
