//! Reading and changing attributes, with the side effects of a change.

use std::time::SystemTime;

use blockyard::{FileType, InodeId, Metadata, SetAttributes, Timestamp};

use super::{Caller, NodeNr, Server};
use crate::errno::{Answer, Errno};

/// The set-user-ID bit.
const SET_UID: u16 = 0o4000;
/// The set-group-ID bit.
pub(super) const SET_GID: u16 = 0o2000;
/// The group's execute bit. On a file without it, the set-group-ID bit once meant mandatory
/// locking.
const GROUP_EXECUTES: u16 = 0o010;
/// The attribute that holds a program's capabilities.
const CAPABILITY: &[u8] = b"security.capability";

/// The new value of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeChange {
    /// The current time.
    Now,
    /// This time.
    At(Timestamp),
}

impl TimeChange {
    fn resolve(self) -> Timestamp {
        match self {
            Self::At(time) => time,
            Self::Now => now(),
        }
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    Timestamp { seconds, nanoseconds: since.subsec_nanos() }
}

/// Attributes to change; `None` keeps the current value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The low 12 bits of the mode.
    pub permissions: Option<u16>,
    /// Owner id.
    pub uid: Option<u32>,
    /// Group id.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Access time.
    pub accessed: Option<TimeChange>,
    /// Modification time of the content.
    pub modified: Option<TimeChange>,
    /// Change time of the inode, if the kernel keeps track of it.
    pub changed: Option<Timestamp>,
    /// Whether the times belong to writes that the kernel accepted earlier. Such times are set even
    /// if the file has become immutable since.
    pub of_cached_writes: bool,
}

/// The permissions of a file after a change of its owner, or a change of its content by a caller
/// who may not keep the set-id bits. The set-user-ID bit is cleared. The set-group-ID bit stays
/// only if the file lacks the group's execute bit and `keeps_group` returns true.
fn kept_permissions(permissions: u16, keeps_group: impl FnOnce() -> bool) -> u16 {
    let kept = permissions & !SET_UID;
    let stays = kept & SET_GID == 0 || (kept & GROUP_EXECUTES == 0 && keeps_group());
    if stays { kept } else { kept & !SET_GID }
}

impl Server {
    /// The attributes of an inode.
    ///
    /// # Errors
    /// `ESTALE` if the inode was deleted.
    pub fn attributes(&self, node: NodeNr) -> Answer<Metadata> {
        Ok(self.inodes().metadata(self.id(node)?)?)
    }

    /// Changes attributes and returns the new ones. As on Linux, a change of owner or size clears
    /// the capabilities and the set-id bits of anything but a directory. There are two exceptions:
    /// - If root changes the size but not the owner, the set-id bits stay.
    /// - On a file without the group's execute bit, the set-group-ID bit stays if the caller is
    ///   root or in the file's group.
    ///
    /// # Errors
    /// `EPERM` for immutable and append-only files, `EFBIG`, `ENOSPC`.
    pub fn set_attributes(&self, caller: Caller, node: NodeNr, changes: &Changes) -> Answer<Metadata> {
        let id = self.id(node)?;
        let mut permissions = changes.permissions;
        let changes_owner = changes.uid.is_some() || changes.gid.is_some();
        let mut drops_privileges = false;
        if changes_owner || changes.size.is_some() {
            let before = self.inodes().metadata(id)?;
            // Linux leaves the set-id bits and capabilities of directories alone.
            drops_privileges = before.file_type() != FileType::Directory;
            let takes = changes_owner || !caller.is_privileged();
            if takes && drops_privileges {
                let keeps_group = || caller.is_privileged() || caller.is_in_group(before.gid());
                let kept = kept_permissions(permissions.unwrap_or_else(|| before.mode()), keeps_group);
                if permissions.is_some() || kept != before.mode() {
                    permissions = Some(kept);
                }
            }
        }
        if let Some(size) = changes.size {
            self.as_caller(caller).by_inode().truncate(id, size)?;
            self.nodes.note_size(id.number);
        }
        if drops_privileges {
            self.remove_capability(id)?;
        }
        // After a change of content, a kernel that caches writes sends the current time as an
        // explicit modification time. Only an explicit access time shows that a program chose the
        // times.
        let times_are_now = !matches!(changes.accessed, Some(TimeChange::At(_)));
        let wanted = SetAttributes {
            permissions,
            uid: changes.uid,
            gid: changes.gid,
            accessed: changes.accessed.map(TimeChange::resolve),
            modified: changes.modified.map(TimeChange::resolve),
            changed: changes.changed,
            times_are_now,
        };
        if wanted != (SetAttributes { times_are_now, ..SetAttributes::default() }) {
            let fs = if changes.of_cached_writes { self.as_caching_caller(caller) } else { self.fs.clone() };
            fs.by_inode().set_attributes(id, &wanted)?;
        }
        Ok(self.inodes().metadata(id)?)
    }

    /// Clears set-id bits and capabilities, because a writer without the right to keep them changes
    /// the file.
    pub(super) fn drop_privileges(&self, writer: Caller, id: InodeId) -> Answer<()> {
        let found = self.inodes().metadata(id)?;
        let mode = found.mode();
        // The kernel also asks for a write to clear the bits if the writer is root but lacks
        // CAP_FSETID. So being root does not count here, only membership in the file's group.
        let kept = kept_permissions(mode, || writer.is_in_group(found.gid()));
        if kept != mode {
            let changes = SetAttributes { permissions: Some(kept), ..SetAttributes::default() };
            self.inodes().set_attributes(id, &changes)?;
        }
        self.remove_capability(id)
    }

    fn remove_capability(&self, id: InodeId) -> Answer<()> {
        match self.inodes().remove_xattr(id, CAPABILITY).map_err(Errno::from) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Records an access if the mount's rules say so. A failure here must not fail the read.
    pub(super) fn note_access(&self, id: InodeId) {
        if let Err(error) = self.inodes().note_access(id, self.access_times) {
            tracing::debug!(inode = %id.number, %error, "the access time was not recorded");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::kept_permissions;

    #[test]
    fn set_id_bits_go_as_on_linux() {
        let kept = |permissions| [true, false].map(|keeps| kept_permissions(permissions, || keeps));
        assert_eq!(kept(0o6755), [0o755; 2]);
        assert_eq!(kept(0o4711), [0o711; 2]);
        assert_eq!(kept(0o2745), [0o2745, 0o745]);
        assert_eq!(kept(0o6644), [0o2644, 0o644]);
        assert_eq!(kept(0o1777), [0o1777; 2]);
    }
}
