//! The errno that the kernel gets for a failed operation.

use std::fmt;

/// The errno of a failed operation (Linux numbers).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(i32);

/// Result of an operation as the kernel gets it.
pub type Answer<T> = Result<T, Errno>;

impl Errno {
    /// Operation not permitted.
    pub const PERM: Self = Self(1);
    /// Input/output error.
    pub const IO: Self = Self(5);
    /// No such device or address: a seek beyond the last data.
    pub const NXIO: Self = Self(6);
    /// Bad file descriptor.
    pub const BADF: Self = Self(9);
    /// Invalid argument.
    pub const INVAL: Self = Self(22);
    /// File too large.
    pub const FBIG: Self = Self(27);
    /// No space left.
    pub const NOSPC: Self = Self(28);
    /// Read-only file system.
    pub const ROFS: Self = Self(30);
    /// Inappropriate ioctl.
    pub const NOTTY: Self = Self(25);
    /// Not implemented: the kernel does not send this kind of request again.
    pub const NOSYS: Self = Self(38);
    /// No such attribute.
    pub const NODATA: Self = Self(61);
    /// Operation not supported.
    pub const OPNOTSUPP: Self = Self(95);
    /// The inode was deleted, and its number may belong to another.
    pub const STALE: Self = Self(116);

    /// Structure needs cleaning: the file system is damaged.
    pub const UCLEAN: Self = Self(117);

    /// The number.
    #[must_use]
    pub const fn raw(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl From<blockyard::Error> for Errno {
    fn from(error: blockyard::Error) -> Self {
        match error.reason() {
            // The file system was closed for an unmount. The program's descriptor is valid, so
            // EBADF would be wrong.
            blockyard::Reason::Closed => Self::IO,
            _ => Self(error.errno()),
        }
    }
}
