//! Extended attributes, including access control lists.

use blockyard::{SetAttributes, XattrMode};

use super::attributes::SET_GID;
use super::{Caller, NodeNr, Server};
use crate::errno::{Answer, Errno};

impl Server {
    /// The value of an attribute.
    ///
    /// # Errors
    /// `ENODATA`, `EOPNOTSUPP`.
    pub fn xattr(&self, node: NodeNr, name: &[u8]) -> Answer<Vec<u8>> {
        Ok(self.inodes().xattr(self.id(node)?, name)?)
    }

    /// The names of all attributes that a caller may see, each terminated by a zero byte. Only root
    /// sees `trusted` attributes.
    ///
    /// # Errors
    /// A device error.
    pub fn xattr_names(&self, caller: Caller, node: NodeNr) -> Answer<Vec<u8>> {
        let names = self.inodes().xattr_names(self.id(node)?)?;
        let seen = |name: &&Vec<u8>| caller.is_privileged() || !name.starts_with(b"trusted.");
        let mut list = Vec::new();
        for name in names.iter().filter(seen) {
            list.extend_from_slice(name);
            list.push(0);
        }
        Ok(list)
    }

    /// Sets an attribute; `flags` are those of `setxattr(2)`.
    ///
    /// # Errors
    /// `EEXIST`, `ENODATA`, `ENOSPC`, `EOPNOTSUPP`; `EINVAL` for unknown flags.
    pub fn set_xattr(
        &self,
        caller: Caller,
        node: NodeNr,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Answer<()> {
        const CREATE: u32 = 1;
        const REPLACE: u32 = 2;
        let mode = match flags {
            0 => XattrMode::Set,
            CREATE => XattrMode::Create,
            REPLACE => XattrMode::Replace,
            _ => return Err(Errno::INVAL),
        };
        Ok(self.as_caller(caller).by_inode().set_xattr(self.id(node)?, name, value, mode)?)
    }

    /// Clears the set-group-ID bit if the caller is neither root nor in the file's group. Linux
    /// does so when such a caller sets the file's access control list. If the bit stayed, the list
    /// could let others run the file as that group.
    ///
    /// # Errors
    /// The errors of changing attributes.
    pub fn clear_set_group_id(&self, caller: Caller, node: NodeNr) -> Answer<()> {
        let found = self.inodes().metadata(self.id(node)?)?;
        let (mode, gid) = (found.mode(), found.gid());
        if mode & SET_GID == 0 || caller.is_privileged() || caller.is_in_group(gid) {
            return Ok(());
        }
        let changes = SetAttributes { permissions: Some(mode & !SET_GID), ..SetAttributes::default() };
        Ok(self.inodes().set_attributes(found.id(), &changes)?)
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// `ENODATA`.
    pub fn remove_xattr(&self, node: NodeNr, name: &[u8]) -> Answer<()> {
        Ok(self.inodes().remove_xattr(self.id(node)?, name)?)
    }
}
