//! Attribute values in inodes of their own (`ea_inode`): created for values that fit nowhere else,
//! shared, and reference-counted.
//!
//! The reference count is in the inode's change time (high half) and version (low half), the hash
//! of the value in its access time. An attribute in a block counts once, however many inodes share
//! the block. A value inode that loses its last reference is an orphan until it is deleted, so a
//! crash in between leaks no space.

use super::{CREDITS, VALUE_MAX};
use crate::cache::Buffer;
use crate::inode::{Inode, InodeCore};
use crate::txn::Handle;
use crate::xattr::Xattrs;
use crate::{Error, NewInode, OpContext, Result};
use blockyard_disk::inode::{FileType, InodeFlags};
use blockyard_disk::num::{low32, u32_from_usize, usize_from_u32};
use blockyard_disk::xattr::{Attribute, AttributeList, Value, ValueReference, entry_hash_of_inode_value};
use blockyard_disk::{BlockNr, Corruption, CorruptionKind, Incompat, InodeNr, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The inodes that hold values of one inode's attributes, each with its block of the inode table.
/// They are loaded before anything changes, so that a change of reference counts cannot fail
/// halfway.
#[derive(Default)]
pub(crate) struct ValueInodes(BTreeMap<u32, (Arc<Inode>, Arc<Buffer>)>);

/// The most blocks of the orphan file in which one change records value inodes without a reference;
/// usually it is one.
const NOTES: usize = 2;

impl ValueInodes {
    /// Metadata blocks that change if all these reference counts change.
    pub(crate) fn credits(&self) -> usize {
        let tables: BTreeSet<BlockNr> = self.0.values().map(|(_, table)| table.block()).collect();
        if tables.is_empty() { 0 } else { tables.len() + NOTES }
    }

    fn find(&self, number: u32) -> Option<&Arc<Inode>> {
        self.0.get(&number).map(|(value, _)| value)
    }
}

/// A value that was just written, and its hash.
#[derive(Clone, Copy)]
pub(super) struct FreshValue<'a> {
    /// The inode that holds the value.
    pub(super) inode: &'a Arc<Inode>,
    /// The hash of the value's bytes, which the inode stores and readers check.
    pub(super) hash: u32,
}

/// The numbers of the value inodes that a list refers to, one for each reference.
pub(super) fn values_of(list: &AttributeList) -> impl Iterator<Item = u32> {
    list.iter().filter_map(|attribute| attribute.value.inode())
}

impl Xattrs {
    pub(super) fn keeps_values_in_inodes(&self) -> bool {
        self.volume.sb.features().incompat.contains(Incompat::EA_INODE)
    }

    /// Loads the value inodes that an inode's attributes refer to. For a value inode the result is
    /// empty: it has no attributes.
    pub(crate) fn value_inodes(&self, inode: &Arc<Inode>, core: &InodeCore) -> Result<ValueInodes> {
        let mut held = ValueInodes::default();
        if !self.keeps_values_in_inodes() || core.flags().contains(InodeFlags::EA_INODE) {
            return Ok(held);
        }
        let places = self.attribute_places(inode, core)?;
        let block = places.block.iter().flat_map(|(_, list)| values_of(list));
        for number in values_of(&places.in_inode).chain(block) {
            let value = self.volume.inodes.inode(InodeNr::new(number))?;
            if number == inode.number().raw() || !value.core_of_value().flags().contains(InodeFlags::EA_INODE)
            {
                return Err(Corruption::new(CorruptionKind::XattrValueInode).in_inode(inode.number()).into());
            }
            let table = self.volume.inodes.table_of(InodeNr::new(number))?.0;
            held.0.insert(number, (value, table));
        }
        Ok(held)
    }

    /// The value of an attribute of `owner`. As in Linux (observed on 6.18), a value in an inode of
    /// its own is checked by its size and by the hashes in the attribute's entry and in the value
    /// inode. Value inodes from before there were hashes name their owner instead.
    pub(super) fn value_of(&self, owner: &Arc<Inode>, attribute: &Attribute) -> Result<Vec<u8>> {
        let (number, size, entry_hash) = match &attribute.value {
            Value::Bytes(bytes) => return Ok(bytes.clone()),
            Value::Inode { inode, size, entry_hash } => (*inode, *size, *entry_hash),
        };
        let damaged = || Corruption::new(CorruptionKind::XattrValueInode).in_inode(owner.number());
        if number == owner.number().raw() || number < self.volume.sb.first_inode().raw() {
            return Err(damaged().into());
        }
        let generation = owner.core().slot.raw().i_generation.get();
        let holder = self.volume.inodes.inode(InodeNr::new(number)).map_err(|error| match error {
            Error::StaleInode(_) => damaged().into(),
            other => other,
        })?;
        let _content = holder.read_value();
        let core = holder.core_of_value();
        // Check the bound before allocating memory for the value.
        let is_too_large = usize_from_u32(size) > VALUE_MAX;
        if is_too_large || !core.flags().contains(InodeFlags::EA_INODE) || core.size != u64::from(size) {
            return Err(damaged().into());
        }
        let mut bytes = vec![0; usize_from_u32(size)];
        self.files.read_content(&holder, &core, 0, &mut bytes)?;
        let reference =
            ValueReference { name: &attribute.name, entry_hash, owner: owner.number(), generation };
        if reference.is_to(core.slot.raw(), self.value_hash(&bytes)) {
            Ok(bytes)
        } else {
            Err(damaged().into())
        }
    }

    /// Adds a reference to each value. The caller holds the owner's core lock.
    pub(super) fn count_values(
        &self,
        handle: &Handle<'_>,
        held: &ValueInodes,
        values: impl IntoIterator<Item = u32>,
    ) -> Result<()> {
        for value in values.into_iter().filter_map(|number| held.find(number)) {
            let mut core = value.core_mut_of_value();
            self.volume.inodes.join_inode(handle, value, &mut core)?;
            let count = references(&core) + 1;
            set_references(&mut core, count);
        }
        Ok(())
    }

    /// Removes a reference from each value. Returns the value inodes with none left, which the
    /// caller must delete once the handle has ended. The caller holds the owner's core lock.
    pub(crate) fn drop_values(
        &self,
        handle: &Handle<'_>,
        held: &ValueInodes,
        values: impl IntoIterator<Item = u32>,
    ) -> Result<Vec<Arc<Inode>>> {
        let mut unused = Vec::new();
        for value in values.into_iter().filter_map(|number| held.find(number)) {
            let mut core = value.core_mut_of_value();
            self.volume.inodes.join_inode(handle, value, &mut core)?;
            let count = references(&core).saturating_sub(1);
            set_references(&mut core, count);
            if count == 0 && core.links() > 0 {
                // Linux refuses an orphan that has the flag of a value inode (observed on 6.18).
                // With the flag, Linux would never delete this inode after a crash.
                let flags = core.flags().difference(InodeFlags::EA_INODE);
                core.slot.raw_mut().set_flags(flags);
                core.slot.raw_mut().i_links_count.set(0);
                self.volume.orphans.add_orphan(handle, value, &mut core);
                unused.push(Arc::clone(value));
            }
        }
        Ok(unused)
    }

    /// Releases all attributes of an inode that is being deleted. Returns the value inodes that
    /// nothing refers to any more.
    pub(crate) fn release_attributes(
        &self,
        handle: &Handle<'_>,
        inode: &Arc<Inode>,
        core: &mut InodeCore,
        held: &ValueInodes,
    ) -> Result<Vec<Arc<Inode>>> {
        let in_inode = if held.0.is_empty() {
            Vec::new()
        } else {
            values_of(&self.attribute_places(inode, core)?.in_inode).collect()
        };
        let mut unused = self.drop_values(handle, held, in_inode)?;
        unused.extend(self.release_attribute_block(handle, core, held)?);
        Ok(unused)
    }

    /// Blocks that a value in an inode of its own adds to `i_blocks` of its owner: its size rounded
    /// up to whole clusters.
    pub(super) fn value_blocks(&self, value: &Value) -> i64 {
        let Value::Inode { size, .. } = value else { return 0 };
        let cluster_bits = self.volume.geometry().block_bits() + self.volume.geometry().cluster_ratio_bits();
        self.volume.groups.blocks_in(size.div_ceil(1 << cluster_bits)).cast_signed()
    }

    /// Writes a value into an inode of its own, which has no reference yet. This inode is an open
    /// orphan until [`Self::adopt_value`] or [`Self::abandon_value`]. The caller holds no handle.
    /// The only content lock it may hold is that of the owner or, if the owner is still to be
    /// created, that of the owner's directory.
    pub(super) fn make_value(&self, ctx: &OpContext, owner: &Arc<Inode>, bytes: &[u8]) -> Result<Arc<Inode>> {
        let value = {
            let handle = self.volume.begin(ctx, CREDITS + 4)?;
            let mut core = owner.core_mut();
            core.check_alive(owner.number())?;
            self.volume.inodes.join_inode(&handle, owner, &mut core)?;
            let new = NewInode { kind: FileType::Regular, permissions: 0o600, device: None };
            let value = self.volume.new_inode(ctx, &handle, (owner.number(), &mut core), None, &new)?;
            let mut inner = value.core_mut_of_value();
            let flags = inner.flags().intersection(InodeFlags::EXTENTS);
            inner.slot.raw_mut().set_flags(flags);
            // Linux was never seen to write a value as inline data, so readers may not expect it.
            inner.may_be_inline = false;
            value.opens.open(false);
            self.volume.orphans.add_orphan(&handle, &value, &mut inner);
            drop(inner);
            value
        };
        match self.files.write_value(ctx, &value, bytes) {
            Ok(()) => Ok(value),
            Err(error) => {
                self.abandon_value(ctx, &value)?;
                Err(error)
            }
        }
    }

    /// Deletes a value inode that nothing refers to.
    pub(super) fn abandon_value(&self, ctx: &OpContext, value: &Arc<Inode>) -> Result<()> {
        value.opens.end_all();
        self.delete_if_unused(ctx, value)
    }

    /// A reference to the value in an inode, for an attribute with this name.
    pub(super) fn reference_to(value: &Inode, name: &[u8], size: usize, hash: u32) -> Value {
        let entry_hash = entry_hash_of_inode_value(name, hash);
        Value::Inode { inode: value.number().raw(), size: u32_from_usize(size), entry_hash }
    }

    /// The hash of a value, which its inode stores and readers check.
    pub(super) fn value_hash(&self, bytes: &[u8]) -> u32 {
        self.volume.sb.value_hash(bytes)
    }

    /// Gives a new value its first reference, and the user and group of `owner`. The caller holds
    /// the owner's core lock.
    pub(super) fn adopt_value(
        &self,
        handle: &Handle<'_>,
        owner: &InodeCore,
        FreshValue { inode: value, hash }: FreshValue<'_>,
    ) -> Result<()> {
        let mut core = value.core_mut_of_value();
        self.volume.inodes.join_inode(handle, value, &mut core)?;
        debug_assert_eq!(core.links(), 0, "value {} has a reference already", value.number());
        let flags = core.flags().union(InodeFlags::EA_INODE);
        let (uid, gid) = (owner.slot.raw().uid(), owner.slot.raw().gid());
        let raw = core.slot.raw_mut();
        raw.set_flags(flags);
        raw.set_uid(uid);
        raw.set_gid(gid);
        raw.i_links_count.set(1);
        // The hash uses all 32 bits. `set_accessed` would clamp it in an inode without extra words.
        core.slot.set_accessed(Timestamp::default());
        core.slot.raw_mut().i_atime.set(hash);
        set_references(&mut core, 1);
        self.volume.orphans.remove_orphan(handle, &mut core);
        value.opens.end_all();
        Ok(())
    }
}

fn references(core: &InodeCore) -> u64 {
    let raw = core.slot.raw();
    u64::from(raw.i_ctime.get()) << 32 | u64::from(raw.i_version.get())
}

fn set_references(core: &mut InodeCore, count: u64) {
    // Also sets the extra word of the change time, which Linux reads too.
    core.slot.set_changed(Timestamp::from_seconds((count >> 32).cast_signed()));
    core.slot.raw_mut().i_version.set(low32(count));
}
