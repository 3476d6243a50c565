//! Looks up paths in an open image: the path walk of [`blockyard_inspect::path`], with names looked
//! up by the engine.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use blockyard_disk::{FileType, InodeNr};
use blockyard_engine::{Error as EngineError, FileSystem as Engine, Found, InodeId};
use blockyard_inspect::path::{self, LastLink, Located, Tree};

use crate::error::Reason;

/// Where a path leads: the directory that holds its last name, and the inode that has this name, if
/// there is one.
pub(crate) struct Place(Located<Found>);

impl Place {
    /// Looks up a path. Its last name may be missing.
    pub(crate) fn locate(engine: &Engine, path: &Path, last: LastLink) -> Result<Self, Reason> {
        path::locate(&Walk(engine), path.as_os_str().as_bytes(), last).map(Self)
    }

    /// Looks up a name that is to be removed or renamed, or the new name of a rename. A symbolic
    /// link is not followed. A trailing slash after the name of anything but a directory is an
    /// error, as on Linux.
    pub(crate) fn locate_name(engine: &Engine, path: &Path) -> Result<Self, Reason> {
        let place = path::locate(&Walk(engine), path::trimmed(path.as_os_str().as_bytes()), LastLink::Keep)?;
        match &place.node {
            Some(found) if path::names_directory(path.as_os_str().as_bytes()) => {
                if found.kind == FileType::Directory {
                    Ok(Self(place))
                } else {
                    Err(EngineError::NotDirectory.into())
                }
            }
            _ => Ok(Self(place)),
        }
    }

    /// Looks up the place for a new inode of type `kind`. It is an error if the last name exists,
    /// even as a symbolic link, which is not followed. Only the path of a new directory may have a
    /// trailing slash.
    pub(crate) fn locate_new(engine: &Engine, path: &Path, kind: FileType) -> Result<Self, Reason> {
        let bytes = path.as_os_str().as_bytes();
        if path::ends_in_dot(bytes) {
            path::resolve(&Walk(engine), bytes, LastLink::Follow)?;
            return Err(EngineError::Exists.into());
        }
        let place = path::locate(&Walk(engine), path::trimmed(bytes), LastLink::Keep)?;
        if place.node.is_some() {
            return Err(EngineError::Exists.into());
        }
        if path::names_directory(bytes) && kind != FileType::Directory {
            return Err(EngineError::NotFound.into());
        }
        Ok(Self(place))
    }

    /// The inode that the path leads to; `None` if the last name does not exist.
    pub(crate) const fn found(&self) -> Option<Found> {
        self.0.node
    }

    /// The directory that holds the last name.
    pub(crate) const fn directory(&self) -> InodeId {
        self.0.directory.inode
    }

    /// The last component of the path that is not `.`; can be `..`. If the path ended in a symbolic
    /// link that was followed, this is the last component of the link's target. Empty for the root,
    /// and for a link to `/` or `.`.
    pub(crate) fn name(&self) -> &[u8] {
        &self.0.name
    }

    /// Whether the path can only name a directory.
    pub(crate) fn means_directory(&self, path: &Path) -> bool {
        path::names_directory(path.as_os_str().as_bytes())
    }
}

/// The directory tree of an open image.
struct Walk<'a>(&'a Engine);

impl Tree for Walk<'_> {
    type Node = Found;
    type Error = Reason;

    fn root(&self) -> Result<Found, Reason> {
        Ok(self.0.identify(InodeNr::ROOT)?)
    }

    fn look_up(&self, directory: &Found, name: &[u8]) -> Result<Found, Reason> {
        Ok(self.0.find(directory.inode, name)?)
    }

    fn kind(&self, node: &Found) -> Result<FileType, Reason> {
        Ok(node.kind)
    }

    fn read_link(&self, link: &Found) -> Result<Vec<u8>, Reason> {
        Ok(self.0.read_link(link.inode)?)
    }

    fn too_many_symlinks(&self) -> Reason {
        Reason::Loop
    }

    fn not_directory(&self) -> Reason {
        EngineError::NotDirectory.into()
    }

    fn is_missing(&self, error: &Reason) -> bool {
        matches!(error, Reason::FileSystem(EngineError::NotFound))
    }
}
