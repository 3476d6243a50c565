//! Attributes of copies on the host: owner, permissions, extended attributes, times, flags.
//!
//! What the host refuses to users other than root is left out, as with cp -p. The summary counts
//! the set-id bits and extended attributes that are left out. No copy may gain privileges on the
//! host: a program that does not get its original owner loses its set-id bits, with which it would
//! run as its new owner.

use std::os::unix::fs::{MetadataExt, lchown};
use std::path::Path;

use anyhow::{Context, Result};
use blockyard_disk::FileType;
use blockyard_disk::inode::InodeFlags;

use super::shortage::is_full;
use super::{Copy, Item, folder, shown};
use crate::commands::host::{self, Kept, Links, OnHost};

/// Flags that are copied if the host has them.
const COPIED_FLAGS: InodeFlags = InodeFlags::SECRM
    .union(InodeFlags::UNRM)
    .union(InodeFlags::SYNC)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::TOPDIR);

/// Flags that prevent changes or removal. They are set only on request.
const FIXING_FLAGS: InodeFlags = InodeFlags::IMMUTABLE.union(InodeFlags::APPEND);

/// What was left out, which is no error.
#[derive(Default)]
pub(super) struct LeftOut {
    pub(super) lost_and_found: bool,
    set_id: u64,
    attributes: u64,
    flags: u64,
}

impl LeftOut {
    /// One line about what was left out, if anything was.
    pub(super) fn text(&self) -> Option<String> {
        let mut parts = Vec::new();
        if self.lost_and_found {
            parts.push("the empty /lost+found".to_owned());
        }
        for (count, what) in [
            (self.set_id, "set-id bits of files that could not get their owner"),
            (self.attributes, "extended attributes that the host does not take"),
            (self.flags, "immutable or append-only flags (--preserve-flags sets them)"),
        ] {
            if count > 0 {
                parts.push(format!("{count} {what}"));
            }
        }
        (!parts.is_empty()).then(|| format!("left out: {}", parts.join(", ")))
    }
}

/// Whether the host still has more than 1 MiB free, although `failed` says that an attribute of the
/// file at `path` found no space. Then the attribute is too large for the host's file system.
/// Returns false if a quota was exceeded.
fn has_space(failed: &anyhow::Error, path: &Path) -> bool {
    let error = host::host_error(failed).map(|host| host.cause().kind());
    if error == Some(std::io::ErrorKind::QuotaExceeded) {
        return false;
    }
    let free = rustix::fs::statvfs(folder(path)).map_or(0, |at| at.f_bavail.saturating_mul(at.f_frsize));
    free > 1 << 20
}

/// The text of an error without the path on the host, because the file still has a temporary name.
fn cause(failed: &anyhow::Error) -> String {
    let error = host::host_error(failed).map_or_else(|| failed.to_string(), |host| host.cause().to_string());
    format!("{failed}: {error}")
}

impl Copy<'_> {
    /// Sets owner, permissions, extended attributes and times of the copy at `path`. Flags are only
    /// noted; [`Self::set_flags`] sets them at the end.
    pub(super) fn attributes(&mut self, item: &Item, path: &Path) -> Result<()> {
        let owned = self.give_owner(item, path);
        let is_lost = !matches!(owned, Ok(Kept::Yes));
        if !self.args.no_xattrs {
            for attribute in self.reader.xattrs(&item.inode).with_context(|| shown(item))? {
                match host::set_xattr(path, &attribute.name, &attribute.value, self.is_root) {
                    Ok(Kept::Yes) => {}
                    Ok(Kept::No) => self.left_out.attributes += 1,
                    Err(failed) if is_full(&failed) && !has_space(&failed, path) => return Err(failed),
                    // The file without this attribute is better than no file.
                    Err(failed) => {
                        let what =
                            if is_full(&failed) { " (too large for the host's file system)" } else { "" };
                        self.report(&format!("{}: {}{what}", item.whole_to().display(), cause(&failed)));
                    }
                }
            }
        }
        let mut mode = item.inode.mode();
        if is_lost && mode & 0o6000 != 0 && item.inode.file_type() != FileType::Symlink {
            mode &= !0o6000;
            self.left_out.set_id += 1;
        }
        if item.inode.file_type() != FileType::Symlink {
            host::set_permissions(path, mode)?;
        }
        let slot = item.inode.slot();
        host::set_times(path, slot.accessed(), slot.modified())?;
        self.note_flags(item);
        owned.map(|_| ())
    }

    /// Sets owner and group. If the host refuses this to root, it is an error. If the host refuses
    /// this to another user, only the group is set, as far as the host allows that. Returns whether
    /// the copy has the wanted owner and group.
    fn give_owner(&self, item: &Item, path: &Path) -> Result<Kept> {
        let raw = item.inode.slot().raw();
        let (uid, gid) = (raw.uid(), raw.gid());
        let done = lchown(path, Some(uid), Some(gid));
        if done.is_ok() || self.is_root {
            done.on_host(path)?;
            return Ok(Kept::Yes);
        }
        let _ = lchown(path, None, Some(gid));
        let now = Links::Kept.metadata(path)?;
        Ok(if (now.uid(), now.gid()) == (uid, gid) { Kept::Yes } else { Kept::No })
    }

    fn note_flags(&mut self, item: &Item) {
        if !matches!(item.inode.file_type(), FileType::Regular | FileType::Directory) {
            return;
        }
        let flags = item.inode.slot().raw().flags();
        let mut wanted = flags & COPIED_FLAGS;
        if self.args.preserve_flags {
            wanted |= flags & FIXING_FLAGS;
        } else if flags.intersects(FIXING_FLAGS) {
            self.left_out.flags += 1;
        }
        if !wanted.is_empty() {
            self.flags.push((item.to.clone(), item.base.clone(), wanted));
        }
    }

    /// Sets the flags of all copies in the order in which they were completed, so each directory
    /// after its entries. A failure is reported only if a copy should become immutable or
    /// append-only.
    pub(super) fn set_flags(&mut self) -> Result<()> {
        for (path, _base, flags) in std::mem::take(&mut self.flags) {
            let set = host::add_flags(&path, flags.bits());
            if flags.intersects(FIXING_FLAGS) {
                self.settle(set.on_host(&path).map_err(Into::into))?;
            }
        }
        Ok(())
    }
}
