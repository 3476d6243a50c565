//! Setting and removing access control lists (acl(5)), and their agreement with the mode, as in
//! Linux (observed on 6.18):
//!
//! * Setting a value without entries removes the list.
//! * An access list that the mode alone can express is not stored: only the mode is set.
//! * Otherwise mode & 0o777 = what the access list grants owner, mask (or owning group) and others.
//! * `XattrMode` does not matter: a list may be set or removed whether or not there was one before.

use super::values::FreshValue;
use super::{ACCESS_LIST, Change, DEFAULT_LIST, XattrMode, Xattrs, damaged};
use crate::inode::Inode;
use crate::{Error, InodeRef, OpContext, Result};
use blockyard_disk::inode::FileType;
use blockyard_disk::xattr::{
    AclDefect, Attribute, Value, acl_exceeds_mode, acl_from_posix, acl_is_whole, acl_mode, acl_with_mode,
};
use std::sync::Arc;

impl Xattrs {
    /// Sets a list from `value`, which has the form that the system calls use.
    ///
    /// # Errors
    /// [`Error::NotSupported`] for another version of that form and on symbolic links,
    /// [`Error::Denied`] for a default list of anything but a directory, [`Error::Invalid`] for a
    /// value that is not a complete list; and the errors of setting any other attribute.
    pub(super) fn set_list(&self, ctx: &OpContext, inode: InodeRef, index: u8, value: &[u8]) -> Result<()> {
        let list = acl_from_posix(value).map_err(|defect| match defect {
            AclDefect::Version => Error::NotSupported("this version of access control lists"),
            AclDefect::Entry => Error::Invalid("not an access control list"),
        })?;
        let Some(list) = list else { return self.remove_list(ctx, inode, index) };
        let kind = self.kind_with_lists(inode)?;
        if index == DEFAULT_LIST && kind != FileType::Directory {
            return Err(Error::Denied);
        }
        if !acl_is_whole(&list) {
            return Err(Error::Invalid("an incomplete access control list"));
        }
        if index == ACCESS_LIST && !acl_exceeds_mode(&list) {
            let change = Change { permissions: acl_mode(&list), ..Change::default() };
            return self.change_xattrs(ctx, inode, (index, b""), change, XattrMode::Set);
        }
        self.set_value(ctx, inode, (index, b""), &list, XattrMode::Set)
    }

    /// Removes a list, if there is one. The mode stays.
    pub(super) fn remove_list(&self, ctx: &OpContext, inode: InodeRef, index: u8) -> Result<()> {
        self.kind_with_lists(inode)?;
        self.change_xattrs(ctx, inode, (index, b""), Change::default(), XattrMode::Set)
    }

    /// The kind of an inode; an error if inodes of this kind have no lists.
    fn kind_with_lists(&self, inode: InodeRef) -> Result<FileType> {
        match self.volume.inodes.inode(inode)?.kind() {
            FileType::Symlink => Err(Error::NotSupported("access control lists of symbolic links")),
            kind => Ok(kind),
        }
    }

    /// Adapts the access control list of an inode, if there is one, to the mode that the inode is
    /// about to get. If that changes the list, this also sets the nine bits that list and mode
    /// share. The caller holds the inode's content lock exclusively.
    pub(crate) fn fit_access_list(
        &self,
        ctx: &OpContext,
        inode: &Arc<Inode>,
        permissions: u16,
    ) -> Result<()> {
        let places = self.attribute_places(inode, &inode.core())?;
        let Some(old) = places.find(ACCESS_LIST, b"") else { return Ok(()) };
        let bytes = self.value_of(inode, old)?;
        let list = acl_with_mode(&bytes, permissions).ok_or_else(|| damaged(inode))?;
        if list == bytes {
            return Ok(());
        }
        let permissions = acl_mode(&list);
        let set = |value, fresh| {
            let attribute = Attribute { index: ACCESS_LIST, name: Vec::new(), value };
            let change = Change { attribute: Some(attribute), fresh, permissions };
            self.change_in(ctx, inode, (ACCESS_LIST, b""), change, XattrMode::Set)
        };
        let unused = match &old.value {
            Value::Bytes(_) => set(Value::Bytes(list), None)?,
            Value::Inode { .. } => {
                // The new list goes into a new inode: other attributes may share the old inode.
                let value = self.make_value(ctx, inode, &list)?;
                let hash = self.value_hash(&list);
                let reference = Self::reference_to(&value, b"", list.len(), hash);
                let set = set(reference, Some(FreshValue { inode: &value, hash }));
                if set.is_err() {
                    self.abandon_value(ctx, &value)?;
                }
                set?
            }
        };
        unused.iter().try_for_each(|value| self.delete_if_unused(ctx, value))
    }
}

/// The bits of the mode that change with an attribute whose value has this on-disk form.
pub(super) fn permissions_of(index: u8, value: &[u8]) -> Option<u16> {
    if index == ACCESS_LIST { acl_mode(value) } else { None }
}
