//! The attributes of an inode: owner, permissions, times, extended attributes, flags.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};
use blockyard_disk::inode::InodeFlags;
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::{Error, SetAttributes, XattrMode};

use super::Copy;
use crate::commands::host::{self, Links};
use crate::commands::volume::AtPath;

/// Flags that are copied: those that chattr can set and that every image supports.
const COPIED_FLAGS: InodeFlags = InodeFlags::SECRM
    .union(InodeFlags::UNRM)
    .union(InodeFlags::SYNC)
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::TOPDIR);

impl Copy<'_, '_> {
    /// Sets owner, permissions, extended attributes and times.
    pub(super) fn attributes(
        &mut self,
        inode: InodeNr,
        (source, links): (&Path, Links),
        metadata: &Metadata,
        path: &[u8],
    ) -> Result<()> {
        let (fs, ctx) = (&self.volume.fs, &self.volume.ctx);
        if !self.args.no_xattrs {
            let attributes = host::xattrs(source, links)?;
            // Remove an access control list that was inherited from the directory but that the
            // source does not have.
            for name in fs.xattr_names(inode).at(path)?.iter().filter(|name| is_access_list(name)) {
                if attributes.iter().all(|(kept, _)| kept != name) {
                    fs.remove_xattr(ctx, inode, name).at(path)?;
                }
            }
            for (name, value) in attributes {
                match fs.set_xattr(ctx, inode, &name, &value, XattrMode::Set) {
                    // ext4 cannot hold this attribute, for example one that only another file
                    // system defines.
                    Err(Error::NotSupported(_)) => self.left_out.attributes += 1,
                    done => done.at(path).with_context(|| about_attribute(&name, value.len()))?,
                }
            }
        }
        let (accessed, modified) = self.times(metadata);
        let changes = SetAttributes {
            permissions: (!metadata.is_symlink()).then(|| host::permissions(metadata)),
            uid: Some(self.owner.uid.unwrap_or(metadata.uid())),
            gid: Some(self.owner.gid.unwrap_or(metadata.gid())),
            accessed,
            modified: Some(modified),
            ..SetAttributes::default()
        };
        Ok(fs.set_attributes(ctx, inode, &changes).at(path)?)
    }

    /// The access time of a copy, if it is to be set, and its modification time.
    fn times(&self, metadata: &Metadata) -> (Option<Timestamp>, Timestamp) {
        let time = |seconds, nanoseconds: i64| Timestamp {
            seconds,
            nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
        };
        let modified = time(metadata.mtime(), metadata.mtime_nsec());
        if let Some(latest) = self.volume.fixed_time {
            let modified = modified.min(latest);
            return (Some(modified), modified);
        }
        let accessed = time(metadata.atime(), metadata.atime_nsec());
        (self.args.preserve_atime.then_some(accessed), modified)
    }

    /// Sets the inode flags that chattr can set. They come last, because an immutable inode accepts
    /// no other changes.
    pub(super) fn set_flags(&self, inode: InodeNr, flags: u32, path: &[u8]) -> Result<()> {
        let wanted = InodeFlags::from_bits_retain(flags) & COPIED_FLAGS;
        let now = self.volume.fs.attributes(inode).at(path)?.flags;
        if InodeFlags::from_bits_retain(now) & COPIED_FLAGS != wanted {
            self.volume.fs.set_flags(&self.volume.ctx, inode, wanted.bits()).at(path)?;
        }
        Ok(())
    }

    /// Sets the flags that had to wait until all names of their inodes were made.
    pub(super) fn set_late_flags(&mut self) -> Result<()> {
        for (inode, flags, path) in std::mem::take(&mut self.flags) {
            let done = self.set_flags(inode, flags, &path);
            self.volume.settle(done)?;
        }
        Ok(())
    }
}

/// Whether an attribute is an access control list, which a new inode may inherit from its
/// directory.
fn is_access_list(name: &[u8]) -> bool {
    name.starts_with(b"system.posix_acl_")
}

/// Names an attribute that cannot be set, and says what to do.
fn about_attribute(name: &[u8], length: usize) -> String {
    let name = String::from_utf8_lossy(name);
    format!("attribute {name} of {length} bytes (--no-xattrs leaves all of them out)")
}
