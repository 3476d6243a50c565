//! Names: looking them up, making, moving and removing them.

use blockyard::disk::device_number::DeviceNumber;
use blockyard::{FileType, Metadata, NewInode, RenameMode};

use super::{Caller, HandleNr, NodeNr, Server};
use crate::errno::{Answer, Errno};
use crate::handles::Use;

/// The attribute that holds what new files of a directory may do.
const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";

/// What is to be made, and where.
#[derive(Clone, Debug)]
pub struct Creation {
    /// The directory.
    pub parent: NodeNr,
    /// The name in it.
    pub name: Vec<u8>,
    /// The low 12 bits of the mode, before the mask.
    pub permissions: u16,
    /// Bits that the creator takes away, where the directory has no default access control list.
    pub umask: u16,
}

impl Server {
    /// What a name stands for; the kernel remembers it then.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`.
    pub fn lookup(&self, parent: NodeNr, name: &[u8]) -> Answer<Metadata> {
        let parent = self.id(parent)?;
        loop {
            let found = self.inodes().lookup(parent, name)?;
            match self.nodes.remember(self.inodes(), found.id()) {
                // Removed in between: what the name stands for now is another look.
                Err(Errno::STALE) => {}
                done => return done.map(|()| found),
            }
        }
    }

    /// The permissions of something new: the directory's default list takes the place of the mask
    /// (acl(5)).
    fn permissions(&self, new: &Creation) -> Answer<u16> {
        let masked = new.permissions & !new.umask & 0o7777;
        if new.umask & new.permissions == 0 {
            return Ok(masked);
        }
        match self.inodes().xattr(self.id(new.parent)?, DEFAULT_LIST).map_err(Errno::from) {
            Ok(_) => Ok(new.permissions & 0o7777),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(masked),
            Err(error) => Err(error),
        }
    }

    /// Makes a directory, pipe, socket, device or empty file.
    ///
    /// # Errors
    /// `EEXIST`, `ENOSPC`, and those of look-ups.
    pub fn make(
        &self,
        caller: Caller,
        new: &Creation,
        kind: FileType,
        device: Option<DeviceNumber>,
    ) -> Answer<Metadata> {
        let what = NewInode { kind, permissions: self.permissions(new)?, device };
        let fs = self.as_caller(caller);
        let parent = self.id(new.parent)?;
        let node = self.removals.with_space(|| Ok(fs.by_inode().make_node(parent, &new.name, &what)?))?;
        self.remembered(node.id())
    }

    /// Makes a file and opens it.
    ///
    /// # Errors
    /// As [`Server::make`].
    pub fn create(&self, caller: Caller, new: &Creation) -> Answer<(Metadata, HandleNr)> {
        let permissions = self.permissions(new)?;
        let fs = self.as_caching_caller(caller);
        let parent = self.id(new.parent)?;
        let create = || Ok(fs.by_inode().create(parent, &new.name, permissions)?);
        let (id, file) = self.removals.with_space(create)?;
        let found = self.remembered(id)?;
        Ok((found, self.handles.insert(file, Use::Writing)))
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As [`Server::make`]; `ENAMETOOLONG` for a target that no block holds.
    pub fn symlink(&self, caller: Caller, parent: NodeNr, name: &[u8], target: &[u8]) -> Answer<Metadata> {
        let fs = self.as_caller(caller);
        let parent = self.id(parent)?;
        let id = self.removals.with_space(|| Ok(fs.by_inode().symlink(parent, name, target)?))?;
        self.remembered(id)
    }

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// `EINVAL` for anything else.
    pub fn read_link(&self, node: NodeNr) -> Answer<Vec<u8>> {
        let id = self.id(node)?;
        let target = self.inodes().read_link(id)?;
        self.note_access(id);
        Ok(target)
    }

    /// Gives an inode one more name.
    ///
    /// # Errors
    /// As [`Server::make`]; `EMLINK`, `EPERM`.
    pub fn link(&self, caller: Caller, node: NodeNr, parent: NodeNr, name: &[u8]) -> Answer<Metadata> {
        let id = self.id(node)?;
        self.as_caller(caller).by_inode().link(id, self.id(parent)?, name)?;
        self.remembered(id)
    }

    /// Removes a name of anything but a directory.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `EPERM`.
    pub fn unlink(&self, parent: NodeNr, name: &[u8]) -> Answer<()> {
        self.removals.note();
        Ok(self.inodes().unlink(self.id(parent)?, name)?)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`, `EPERM`.
    pub fn rmdir(&self, parent: NodeNr, name: &[u8]) -> Answer<()> {
        self.removals.note();
        Ok(self.inodes().rmdir(self.id(parent)?, name)?)
    }

    /// Renames.
    ///
    /// # Errors
    /// Those of `renameat2(2)`.
    pub fn rename(&self, from: (NodeNr, &[u8]), to: (NodeNr, &[u8]), mode: RenameMode) -> Answer<()> {
        let (old, new) = (self.id(from.0)?, self.id(to.0)?);
        self.removals.note();
        Ok(self.inodes().rename((old, from.1), (new, to.1), mode)?)
    }
}
