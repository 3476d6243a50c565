//! Extended attributes, which are stored in the inode and in its attribute block. Large values can
//! have inodes of their own.

use blockyard_disk::inline_data;
use blockyard_disk::inode::InodeFlags;
use blockyard_disk::num::usize_from_u32;
use blockyard_disk::xattr::{self, Home, RawEntry, ValueReference};
use blockyard_disk::{Corruption, CorruptionKind, Inode, InodeNr};

use super::{Reader, Result};

/// One attribute as programs see it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Xattr {
    /// Full name, such as `user.colour`.
    pub name: Vec<u8>,
    /// Value; an access control list has the form that system calls exchange.
    pub value: Vec<u8>,
}

impl Reader {
    /// The attributes of an inode, sorted by name. Leaves out inline data and attributes that
    /// programs never see (encryption contexts).
    ///
    /// # Errors
    /// [`super::Error::Device`], [`super::Error::Disk`].
    pub fn xattrs(&self, inode: &Inode) -> Result<Vec<Xattr>> {
        let mut found = Vec::new();
        let area = inode.slot().attribute_area();
        if xattr::has_magic(area) {
            self.collect(inode, area, Home::Inode, &mut found)?;
        }
        if let Some(number) = inode.file_acl() {
            let block = self.block(number)?;
            self.superblock()
                .checksums()
                .verify_xattr_block(number, &block)
                .map_err(|bad| bad.in_inode(inode.number()))?;
            self.collect(inode, &block, Home::Block, &mut found)?;
        }
        found.sort();
        Ok(found)
    }

    fn collect(&self, inode: &Inode, area: &[u8], home: Home, out: &mut Vec<Xattr>) -> Result<()> {
        let entries = xattr::parse(area, home).map_err(|defect| {
            let found = Corruption::new(defect.into()).in_inode(inode.number());
            match (home, inode.file_acl()) {
                (Home::Block, Some(number)) => found.in_block(number),
                _ => found,
            }
        })?;
        for entry in &entries {
            if (entry.name_index, entry.name) == (inline_data::XATTR_INDEX, inline_data::XATTR_NAME) {
                continue;
            }
            let Some(name) = xattr::join_name(entry.name_index, entry.name) else { continue };
            let value = self.value_of(inode, entry)?;
            out.push(Xattr { name, value });
        }
        Ok(())
    }

    fn value_of(&self, inode: &Inode, entry: &RawEntry<'_>) -> Result<Vec<u8>> {
        let bad = |kind| Corruption::new(kind).in_inode(inode.number());
        let stored =
            if entry.value_inode == 0 { entry.value.to_vec() } else { self.value_in_inode(inode, entry)? };
        if is_acl(entry.name_index) {
            let shown = xattr::acl_to_posix(&stored).ok_or_else(|| bad(CorruptionKind::XattrAcl))?;
            return Ok(shown);
        }
        Ok(stored)
    }

    /// Reads a value from its value inode. The inode must be flagged as a value inode, and its size
    /// and hashes must match the entry.
    fn value_in_inode(&self, owner: &Inode, entry: &RawEntry<'_>) -> Result<Vec<u8>> {
        let damaged = || Corruption::new(CorruptionKind::XattrValueInode).in_inode(owner.number());
        let number = InodeNr::new(entry.value_inode);
        if number == owner.number() || number < self.superblock().first_inode() {
            return Err(damaged().into());
        }
        let holder = self.inode(number)?;
        let matches =
            holder.flags().contains(InodeFlags::EA_INODE) && holder.size() == u64::from(entry.value_size);
        if !matches {
            return Err(damaged().into());
        }
        // The entry was checked: a value has at most 64 KiB.
        let mut value = vec![0; usize_from_u32(entry.value_size)];
        self.read(&holder, 0, &mut value)?;
        let generation = owner.slot().raw().i_generation.get();
        let reference =
            ValueReference { name: entry.name, entry_hash: entry.hash, owner: owner.number(), generation };
        let hash = self.superblock().value_hash(&value);
        if reference.is_to(holder.slot().raw(), hash) { Ok(value) } else { Err(damaged().into()) }
    }
}

/// Whether a name index stands for an access control list.
const fn is_acl(index: u8) -> bool {
    matches!(index, 2 | 3)
}
