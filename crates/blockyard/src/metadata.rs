//! What `stat` reports about a file.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use blockyard_disk::inode::InodeFlags;
use blockyard_disk::{FileType, InodeNr, Timestamp};
use blockyard_engine::{Attributes, InodeId};

/// Flags of a file, as `chattr` sets them.
pub type Flags = InodeFlags;

/// What `stat` reports about a file.
///
/// ```
/// # fn main() -> blockyard::Result<()> {
/// let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
/// fs.write("file", b"12345")?;
/// let found = fs.metadata("file")?;
/// assert!(found.is_file() && found.len() == 5 && found.nlink() == 1 && found.mode() == 0o644);
/// assert!(fs.metadata("/")?.is_dir());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata(Attributes);

impl Metadata {
    pub(crate) const fn new(attributes: Attributes) -> Self {
        Self(attributes)
    }

    /// All attributes, in the engine's form.
    #[must_use]
    pub const fn attributes(&self) -> &Attributes {
        &self.0
    }

    /// The file type.
    #[must_use]
    pub const fn file_type(&self) -> FileType {
        self.0.kind
    }

    /// Whether it is a directory.
    #[must_use]
    pub const fn is_dir(&self) -> bool {
        matches!(self.0.kind, FileType::Directory)
    }

    /// Whether it is a regular file.
    #[must_use]
    pub const fn is_file(&self) -> bool {
        matches!(self.0.kind, FileType::Regular)
    }

    /// Whether it is a symbolic link. Never true for the result of
    /// [`FileSystem::metadata`](crate::FileSystem::metadata), which follows links.
    #[must_use]
    pub const fn is_symlink(&self) -> bool {
        matches!(self.0.kind, FileType::Symlink)
    }

    /// The size in bytes.
    #[expect(clippy::len_without_is_empty, reason = "as the standard library has it")]
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.0.size
    }

    /// The permissions, and the set-id and sticky bits.
    #[must_use]
    pub const fn mode(&self) -> u16 {
        self.0.permissions
    }

    /// The owner's user id.
    #[must_use]
    pub const fn uid(&self) -> u32 {
        self.0.uid
    }

    /// The owning group's id.
    #[must_use]
    pub const fn gid(&self) -> u32 {
        self.0.gid
    }

    /// The link count: how many names (hard links) the inode has. For a directory, the entry `.`
    /// and the entry `..` of each subdirectory count, too.
    #[must_use]
    pub const fn nlink(&self) -> u32 {
        self.0.links
    }

    /// The inode number.
    #[must_use]
    pub const fn ino(&self) -> InodeNr {
        self.0.inode
    }

    /// The inode number and its generation. Later inodes with the same number have other
    /// generations.
    #[must_use]
    pub const fn id(&self) -> InodeId {
        InodeId { number: self.0.inode, generation: self.0.generation }
    }

    /// Space on the device, in units of 512 bytes.
    #[must_use]
    pub const fn blocks(&self) -> u64 {
        self.0.sectors
    }

    /// The flags, as `lsattr` shows them.
    #[must_use]
    pub const fn flags(&self) -> Flags {
        Flags::from_bits_retain(self.0.flags)
    }

    /// When it was last accessed. Reading through this library does not update this time;
    /// [`ByInode::note_access`](crate::ByInode::note_access) does.
    #[must_use]
    pub fn accessed(&self) -> SystemTime {
        system_time(self.0.accessed)
    }

    /// When its content last changed.
    #[must_use]
    pub fn modified(&self) -> SystemTime {
        system_time(self.0.modified)
    }

    /// When its inode last changed.
    #[must_use]
    pub fn changed(&self) -> SystemTime {
        system_time(self.0.changed)
    }

    /// When it was created; `None` if the inode is too small to hold that time.
    #[must_use]
    pub fn created(&self) -> Option<SystemTime> {
        self.0.created.map(system_time)
    }
}

fn system_time(time: Timestamp) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 { UNIX_EPOCH - seconds } else { UNIX_EPOCH + seconds };
    whole + Duration::from_nanos(time.nanoseconds.into())
}

/// Converts a time of the standard library to a [`Timestamp`].
pub(crate) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: since.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            let seconds = i64::try_from(before.as_secs()).map_or(i64::MIN, |seconds| -seconds);
            match before.subsec_nanos() {
                0 => Timestamp { seconds, nanoseconds: 0 },
                nanoseconds => {
                    Timestamp { seconds: seconds.saturating_sub(1), nanoseconds: 1_000_000_000 - nanoseconds }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{system_time, timestamp};
    use blockyard_disk::Timestamp;

    #[test]
    fn times_go_there_and_back_on_both_sides_of_1970() {
        for (seconds, nanoseconds) in [(0, 0), (1, 999_999_999), (-1, 0), (-1, 1), (-2, 999_999_999)] {
            let time = Timestamp { seconds, nanoseconds };
            assert_eq!(timestamp(system_time(time)), time);
        }
    }
}
