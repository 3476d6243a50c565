//! What new inodes inherit from their directory's default access control list (acl(5)), as in Linux
//! (observed on 6.18):
//!
//! * Mode & 0o777 = the requested mode & what the default list grants owner, mask (or owning group)
//!   and others. The other bits are as requested.
//! * Access list = the default list with that mode. It is not stored if the mode alone expresses
//!   it.
//! * A directory also inherits the default list itself.
//! * A symbolic link inherits nothing.
//!
//! Before the handle that creates the inode begins, everything is read, and lists that fit only
//! into inodes of their own are written.

use super::values::FreshValue;
use super::{ACCESS_LIST, CREDITS, DEFAULT_LIST, damaged};
use crate::inode::{Inode, InodeCore};
use crate::txn::Handle;
use crate::xattr::Xattrs;
use crate::xattr::values::ValueInodes;
use crate::{NewInode, OpContext, Result};
use blockyard_disk::BlockNr;
use blockyard_disk::inode::FileType;
use blockyard_disk::xattr::{
    Attribute, AttributeList, Value, acl_exceeds_mode, acl_mode, acl_with_mode, has_magic,
};
use std::sync::Arc;

/// The properties of a new inode, with what it inherits from its directory.
pub(crate) struct Inherited {
    new: NewInode,
    lists: Vec<InheritedList>,
}

/// One list that a new inode gets.
struct InheritedList {
    attribute: Attribute,
    /// The inode that holds the list, and the hash of the list; `None` if `attribute` holds the
    /// list.
    fresh: Option<(Arc<Inode>, u32)>,
}

impl Inherited {
    /// The properties of the inode.
    pub(crate) const fn new_inode(&self) -> &NewInode {
        &self.new
    }

    /// Metadata blocks that storing the lists may change.
    pub(crate) fn credits(&self) -> usize {
        if self.lists.is_empty() { 0 } else { CREDITS }
    }
}

impl Xattrs {
    /// What a new inode, with or without a name, inherits from its directory `parent`. The caller
    /// holds the parent's content lock and no handle.
    pub(crate) fn inherit(&self, ctx: &OpContext, parent: &Arc<Inode>, new: &NewInode) -> Result<Inherited> {
        let nothing = Inherited { new: *new, lists: Vec::new() };
        let has_attributes = {
            let core = parent.core();
            core.slot.raw().file_acl() != BlockNr::ZERO || has_magic(core.slot.attribute_area())
        };
        if !has_attributes || new.kind == FileType::Symlink {
            return Ok(nothing);
        }
        let default = {
            let core = parent.core();
            let places = self.attribute_places(parent, &core)?;
            places.find(DEFAULT_LIST, b"").cloned()
        };
        let Some(default) = default else { return Ok(nothing) };
        let default = self.value_of(parent, &default)?;
        let granted = acl_mode(&default).ok_or_else(|| damaged(parent))?;
        let permissions = new.permissions & (!0o777 | granted);
        let access = acl_with_mode(&default, permissions).ok_or_else(|| damaged(parent))?;
        let mut lists = Vec::new();
        if acl_exceeds_mode(&access) {
            lists.push((ACCESS_LIST, access));
        }
        if new.kind == FileType::Directory {
            lists.push((DEFAULT_LIST, default));
        }
        let mut inherited = Inherited { new: NewInode { permissions, ..*new }, lists: Vec::new() };
        let mut in_block = AttributeList::default();
        for (index, bytes) in lists {
            let listed = self.inherited_list(ctx, parent, (index, bytes), &mut in_block);
            match listed {
                Ok(list) => inherited.lists.push(list),
                Err(error) => {
                    self.abandon_inherited(ctx, &inherited)?;
                    return Err(error);
                }
            }
        }
        Ok(inherited)
    }

    /// Prepares one list. If a block cannot hold the list beside those in `in_block`, and the file
    /// system has value inodes, writes the list into an inode of its own.
    fn inherited_list(
        &self,
        ctx: &OpContext,
        parent: &Arc<Inode>,
        (index, bytes): (u8, Vec<u8>),
        in_block: &mut AttributeList,
    ) -> Result<InheritedList> {
        let attribute = |value| Attribute { index, name: Vec::new(), value };
        let mut with_it = in_block.clone();
        with_it.set(attribute(Value::Bytes(bytes.clone())));
        let fits =
            self.leaves_room(&with_it) && with_it.write_block(&mut vec![0; self.volume.block_size()], 1);
        if fits || !self.keeps_values_in_inodes() {
            *in_block = with_it;
            return Ok(InheritedList { attribute: attribute(Value::Bytes(bytes)), fresh: None });
        }
        let value = self.make_value(ctx, parent, &bytes)?;
        let hash = self.value_hash(&bytes);
        let reference = Self::reference_to(&value, b"", bytes.len(), hash);
        Ok(InheritedList { attribute: attribute(reference), fresh: Some((value, hash)) })
    }

    /// Gives a new inode its lists. After an error the inode has no list, or the instance is
    /// read-only.
    pub(crate) fn give_inherited(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        (inode, core): (&Arc<Inode>, &mut InodeCore),
        inherited: &Inherited,
    ) -> Result<()> {
        if inherited.lists.is_empty() {
            return Ok(());
        }
        let (mut in_inode, mut in_block) = (AttributeList::default(), AttributeList::default());
        let mut area = core.slot.attribute_area().to_vec();
        for list in &inherited.lists {
            area = self.place_attribute(core, &mut in_inode, &mut in_block, Some(list.attribute.clone()))?;
        }
        if !in_block.is_empty() {
            let nothing = AttributeList::default();
            let held = ValueInodes::default();
            self.store_block(ctx, handle, inode, core, None, (&nothing, &in_block), &held)?;
        }
        let area_at = core.slot.bytes().len() - area.len();
        core.slot.bytes_mut()[area_at..].copy_from_slice(&area);
        self.volume.inodes.features.note_attribute();
        for list in &inherited.lists {
            if let Some((value, hash)) = &list.fresh {
                core.add_blocks(
                    self.value_blocks(&list.attribute.value),
                    self.volume.geometry().block_bits(),
                );
                let adopted = self.adopt_value(handle, core, FreshValue { inode: value, hash: *hash });
                self.volume.apply(adopted)?;
            }
        }
        Ok(())
    }

    /// Undoes [`Self::give_inherited`] in the transaction that created the inode, if nothing refers
    /// to the inode. The value inodes of its lists become orphans again;
    /// [`Self::abandon_inherited`] deletes them.
    pub(crate) fn take_back(
        &self,
        handle: &Handle<'_>,
        inode: &Arc<Inode>,
        core: &mut InodeCore,
    ) -> Result<()> {
        let held = self.value_inodes(inode, core)?;
        let _block = self.reserve_attribute_block(handle, core)?;
        self.release_attributes(handle, inode, core, &held).map(drop)
    }

    /// Deletes the value inodes that were written for the lists of an inode that was not created.
    pub(crate) fn abandon_inherited(&self, ctx: &OpContext, inherited: &Inherited) -> Result<()> {
        let mut fresh = inherited.lists.iter().filter_map(|list| list.fresh.as_ref());
        fresh.try_for_each(|(value, _)| self.abandon_value(ctx, value))
    }
}
