//! Names: look-ups, creation, renames and removals.

use blockyard::disk::device_number::DeviceNumber;
use blockyard::{FileType, Metadata, NewInode, RenameMode};

use super::{Caller, HandleNr, NodeNr, Server};
use crate::errno::{Answer, Errno};
use crate::handles::Use;

/// The attribute that holds the default access control list for new files in a directory.
const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";

/// What to make, and where.
#[derive(Clone, Debug)]
pub struct Creation {
    /// The directory.
    pub parent: NodeNr,
    /// The name in it.
    pub name: Vec<u8>,
    /// The low 12 bits of the mode, before the umask.
    pub permissions: u16,
    /// The creator's umask. It applies unless the directory has a default access control list.
    pub umask: u16,
}

impl Server {
    /// Looks up a name. The kernel remembers the inode from then on.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`.
    pub fn lookup(&self, parent: NodeNr, name: &[u8]) -> Answer<Metadata> {
        let parent = self.id(parent)?;
        loop {
            let found = self.inodes().lookup(parent, name)?;
            match self.nodes.remember(self.inodes(), found.id()) {
                // The inode was removed meanwhile. Look again: the name may have a new inode.
                Err(Errno::STALE) => {}
                done => return done.map(|()| found),
            }
        }
    }

    /// The permissions of a new file. A default access control list of the directory replaces the
    /// umask (acl(5)).
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
    /// `EEXIST`, `ENOSPC`, and the errors of look-ups.
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
    /// As [`Server::make`]; `ENAMETOOLONG` for a target that does not fit in a block.
    pub fn symlink(&self, caller: Caller, parent: NodeNr, name: &[u8], target: &[u8]) -> Answer<Metadata> {
        let fs = self.as_caller(caller);
        let parent = self.id(parent)?;
        let id = self.removals.with_space(|| Ok(fs.by_inode().symlink(parent, name, target)?))?;
        self.remembered(id)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `EINVAL` for anything but a symbolic link.
    pub fn read_link(&self, node: NodeNr) -> Answer<Vec<u8>> {
        let id = self.id(node)?;
        let target = self.inodes().read_link(id)?;
        self.note_access(id);
        Ok(target)
    }

    /// Adds a name to an inode.
    ///
    /// # Errors
    /// As [`Server::make`]; `EMLINK`, `EPERM`.
    pub fn link(&self, caller: Caller, node: NodeNr, parent: NodeNr, name: &[u8]) -> Answer<Metadata> {
        let id = self.id(node)?;
        let (fs, parent) = (self.as_caller(caller), self.id(parent)?);
        self.removals.with_space(|| Ok(fs.by_inode().link(id, parent, name)?))?;
        self.remembered(id)
    }

    /// Removes a name of anything other than a directory.
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

    /// Renames `from` to `to`. Each is a directory and a name in it.
    ///
    /// # Errors
    /// The errors of `renameat2(2)`.
    pub fn rename(&self, from: (NodeNr, &[u8]), to: (NodeNr, &[u8]), mode: RenameMode) -> Answer<()> {
        let (old, new) = (self.id(from.0)?, self.id(to.0)?);
        self.removals.note();
        self.removals.with_space(|| Ok(self.inodes().rename((old, from.1), (new, to.1), mode)?))
    }
}
