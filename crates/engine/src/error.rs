//! The engine's error and its only mapping to errno.
//!
//! Public operations fail with [`Error`]. Only [`Error::errno`] chooses a number for it, so the
//! mount, the library and the tests agree.

use crate::Refusal;
use blockyard_device::DeviceError;
use blockyard_disk::{Corruption, InodeNr};

/// Result of an engine operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation failed. Unless a variant or the operation says otherwise, the file system is as
/// it was before the call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device failed. The operation may have been applied in memory, but no structure is left
    /// half changed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Data written to a file earlier could not be written to the device.
    #[error("inode {0}: data written earlier could not be stored")]
    LostData(InodeNr),
    /// The image violates the format. The error names the check and the location.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    /// The orphan list or the orphan file names an inode that cannot be an orphan.
    #[error("inode {inode} is noted as an orphan, but {why}: run a check first")]
    Orphan {
        /// The inode.
        inode: InodeNr,
        /// What is wrong with it.
        why: OrphanDefect,
    },
    /// The log must not be replayed: a committed transaction is damaged, or the log holds a damaged
    /// superblock.
    #[error(transparent)]
    DamagedLog(blockyard_recovery::Error),
    /// The image uses features that this version cannot open.
    #[error("unsupported incompatible features: {0}")]
    UnsupportedFeatures(String),
    /// The image cannot be opened, or cannot be used further, in the way the caller asked for. The
    /// text says why.
    #[error(transparent)]
    Refused(Refusal),
    /// No entry of that name.
    #[error("no such file or directory")]
    NotFound,
    /// The inode number is free, out of range, or reserved without content, or it now belongs to
    /// another inode.
    #[error("inode {0} is not in use")]
    StaleInode(InodeNr),
    /// The name exists already.
    #[error("file exists")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotDirectory,
    /// A directory where none is allowed.
    #[error("is a directory")]
    IsDirectory,
    /// A directory that still has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// No free blocks, or a directory's index is full.
    #[error("no space left on the file system")]
    NoSpace,
    /// No free inode. Their number is fixed when the file system is made.
    #[error("no inode left on the file system: mkfs fixed their number (-N or -i)")]
    NoInodes,
    /// The instance is or has become read-only.
    #[error("read-only file system")]
    ReadOnly,
    /// An argument that the operation does not accept.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// A name longer than 255 bytes, or a target that is too long for a symbolic link.
    #[error("file name too long")]
    NameTooLong,
    /// The inode would get more than 65,000 links.
    #[error("too many links")]
    TooManyLinks,
    /// A file would become larger, or its extent tree deeper, than the format allows.
    #[error("file too large")]
    FileTooLarge,
    /// Refused by the inode's flags, such as immutable and append-only, or a hard link to a
    /// directory.
    #[error("operation not permitted")]
    NotPermitted,
    /// A default access control list for something other than a directory.
    #[error("permission denied")]
    Denied,
    /// Allowed by the format, but not supported by this version.
    #[error("operation not supported: {0}")]
    NotSupported(&'static str),
    /// No extended attribute of that name.
    #[error("no such attribute")]
    NoAttribute,
    /// The length of an attribute's name or value is outside the limits of Linux's calls.
    #[error("{what} has {bytes} bytes, but {possible} are possible")]
    Range {
        /// What has this length: the name or the value.
        what: &'static str,
        /// Its length in bytes.
        bytes: usize,
        /// The lengths that are possible.
        possible: &'static str,
    },
    /// An attribute that fits neither into its inode nor into the inode's attribute block, because
    /// of the other attributes or its own size.
    #[error(
        "an attribute with a value of {bytes} bytes does not fit: all attributes of a file share its inode and \
         one block of {block} bytes (mkfs -O ea_inode stores large values elsewhere)"
    )]
    AttributeRoom {
        /// Bytes of the value.
        bytes: usize,
        /// Bytes of a block.
        block: usize,
    },
    /// A directory whose project is inherited (`chattr +P`) would get a name for an inode of
    /// another project.
    #[error("cross-device link")]
    CrossDevice,
}

/// What is wrong with an inode that is noted as an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum OrphanDefect {
    /// Its number is reserved, the orphan file's own, or beyond the last inode.
    #[error("no file can have its number")]
    Number,
    /// An earlier entry names it: the list may have a loop.
    #[error("it is named twice")]
    Twice,
    /// Its bit in the inode bitmap is clear.
    #[error("it is free")]
    Free,
    /// Its slot in the inode table was never written.
    #[error("it was never used")]
    NeverUsed,
}

impl Error {
    /// The errno that a system call would give for this error (Linux numbers).
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Device(error) if error.is_busy() => 16,
            Self::Device(_) | Self::LostData(_) => 5,
            Self::Corrupt(_) | Self::Orphan { .. } | Self::DamagedLog(_) => 117,
            Self::UnsupportedFeatures(_) | Self::Refused(_) | Self::Invalid(_) => 22,
            Self::NotFound => 2,
            Self::StaleInode(_) => 116,
            Self::Exists => 17,
            Self::NotDirectory => 20,
            Self::IsDirectory => 21,
            Self::NotEmpty => 39,
            Self::NoSpace | Self::NoInodes | Self::AttributeRoom { .. } => 28,
            Self::ReadOnly => 30,
            Self::NameTooLong => 36,
            Self::TooManyLinks => 31,
            Self::FileTooLarge => 27,
            Self::NotPermitted => 1,
            Self::Denied => 13,
            Self::NotSupported(_) => 95,
            Self::NoAttribute => 61,
            Self::Range { .. } => 34,
            Self::CrossDevice => 18,
        }
    }
}

impl From<blockyard_disk::Error> for Error {
    fn from(error: blockyard_disk::Error) -> Self {
        match error {
            blockyard_disk::Error::Corrupt(found) => Self::Corrupt(found),
            blockyard_disk::Error::UnsupportedFeatures(names) => Self::UnsupportedFeatures(names),
            other => Self::Refused(Refusal::Unsupported(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Error, OrphanDefect, Refusal};
    use blockyard_device::DeviceError;
    use blockyard_disk::{BlockNr, Corruption, CorruptionKind, InodeNr};

    /// One row per variant: a pattern, an error that it matches, its errno. The match has no other
    /// arm, so a variant without a row does not compile.
    macro_rules! rows {
        ($( $pattern:pat => $error:expr, $errno:literal; )+) => {{
            let covered = |error: &Error| match error { $( $pattern => (), )+ };
            let rows: Vec<(&str, Error, bool, i32)> = vec![ $( {
                let error = $error;
                let matches = matches!(error, $pattern);
                (stringify!($pattern), error, matches, $errno)
            }, )+ ];
            rows.iter().for_each(|(_, error, _, _)| covered(error));
            rows
        }};
    }

    #[test]
    fn every_variant_has_its_errno() {
        let inode = InodeNr::new(12);
        let outside = DeviceError::OutOfRange { operation: "read", offset: 1, length: 2, size: 2 };
        let rows = rows! {
            Error::Device(_) => Error::from(outside), 5;
            Error::LostData(_) => Error::LostData(inode), 5;
            Error::Corrupt(_) => Error::from(Corruption::new(CorruptionKind::DirHole)), 117;
            Error::Orphan { .. } => Error::Orphan { inode, why: OrphanDefect::Free }, 117;
            Error::DamagedLog(_) => Error::from(damaged_log()), 117;
            Error::UnsupportedFeatures(_) => Error::UnsupportedFeatures("x".to_owned()), 22;
            Error::Refused(_) => Error::Refused(Refusal::NeedsRecovery), 22;
            Error::NotFound => Error::NotFound, 2;
            Error::StaleInode(_) => Error::StaleInode(inode), 116;
            Error::Exists => Error::Exists, 17;
            Error::NotDirectory => Error::NotDirectory, 20;
            Error::IsDirectory => Error::IsDirectory, 21;
            Error::NotEmpty => Error::NotEmpty, 39;
            Error::NoSpace => Error::NoSpace, 28;
            Error::NoInodes => Error::NoInodes, 28;
            Error::ReadOnly => Error::ReadOnly, 30;
            Error::Invalid(_) => Error::Invalid("x"), 22;
            Error::NameTooLong => Error::NameTooLong, 36;
            Error::TooManyLinks => Error::TooManyLinks, 31;
            Error::FileTooLarge => Error::FileTooLarge, 27;
            Error::NotPermitted => Error::NotPermitted, 1;
            Error::Denied => Error::Denied, 13;
            Error::NotSupported(_) => Error::NotSupported("x"), 95;
            Error::NoAttribute => Error::NoAttribute, 61;
            Error::Range { .. } => Error::Range { what: "x", bytes: 2, possible: "1" }, 34;
            Error::AttributeRoom { .. } => Error::AttributeRoom { bytes: 5000, block: 4096 }, 28;
            Error::CrossDevice => Error::CrossDevice, 18;
        };
        for (pattern, error, matches, errno) in rows {
            assert!(matches, "{error:?} stands for {pattern}");
            assert_eq!(error.errno(), errno, "{pattern}");
        }
    }

    /// If a crate below refuses something or cannot load a bitmap, the error becomes a
    /// [`Refusal`] of the matching kind, not corruption.
    #[test]
    fn refusals_keep_their_kind_on_their_way_up() {
        use blockyard_alloc::{AllocError, inode::InodeError};
        let group = blockyard_disk::GroupNr::new(3);
        let load = || Box::new(std::io::Error::other("not there"));
        let found = [
            Error::from(blockyard_disk::Error::Unsupported("x")),
            Error::from(AllocError::BadConfig("x")),
            Error::from(InodeError::BadConfig("x")),
            Error::from(AllocError::Load { group, source: load() }),
            Error::from(InodeError::Load { group, source: load() }),
            Error::from(blockyard_recovery::Error::Unflagged),
        ];
        for error in &found {
            assert_eq!(error.errno(), 22, "{error}");
        }
        let [unsupported, blocks, inodes, block_bitmap, inode_bitmap, journal] = found;
        let Error::Refused(Refusal::Unsupported(what)) = unsupported else { panic!("{unsupported}") };
        assert_eq!(what, blockyard_disk::Error::Unsupported("x"));
        for settings in [blocks, inodes] {
            assert!(matches!(settings, Error::Refused(Refusal::AllocatorConfiguration("x"))));
        }
        for bitmap in [block_bitmap, inode_bitmap] {
            let text = bitmap.to_string();
            assert!(matches!(bitmap, Error::Refused(Refusal::Bitmap { .. })));
            assert_eq!(text, "bitmap of group 3: not there");
        }
        assert!(matches!(journal, Error::Refused(Refusal::Journal(blockyard_recovery::Error::Unflagged))));
        // If the cause is an error of the engine, that error is returned. It does not say that a
        // bitmap was being read.
        let full = AllocError::Load { group, source: Box::new(Error::NoSpace) };
        assert!(matches!(Error::from(full), Error::NoSpace));
    }

    fn damaged_log() -> blockyard_recovery::Error {
        let found = Corruption::new(CorruptionKind::SuperblockMagic);
        blockyard_recovery::Error::LoggedSuperblock(found.into())
    }

    /// Corruption found by the allocators and recovery is corruption here, too.
    #[test]
    fn corruption_stays_corruption_on_its_way_up() {
        let free = Corruption::new(CorruptionKind::BlockBitmapContradiction).in_block(BlockNr::new(7));
        let inodes = Corruption::new(CorruptionKind::InodeBitmapContradiction);
        for error in [
            Error::from(blockyard_alloc::AllocError::from(free)),
            Error::from(blockyard_alloc::inode::InodeError::from(inodes)),
            Error::from(blockyard_disk::Error::from(free)),
            Error::from(blockyard_recovery::Error::from(free)),
            Error::from(damaged_log()),
        ] {
            assert_eq!(error.errno(), 117, "{error}");
        }
        let names = blockyard_disk::Error::UnsupportedFeatures("casefold".to_owned());
        let later = Error::from(blockyard_recovery::Error::LoggedSuperblock(names));
        assert!(matches!(later, Error::UnsupportedFeatures(_)), "{later}");
    }
}
