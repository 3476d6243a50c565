//! The library's error: what failed, and on which path, inode or image.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use blockyard_device::DeviceError;
use blockyard_disk::InodeNr;
use blockyard_engine::{Error as EngineError, mkfs};

/// Result of the library's operations.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Reason {
    /// The file system refused the operation, the image is damaged, or its device failed.
    FileSystem(EngineError),
    /// The image cannot be made as asked.
    Make(mkfs::Error),
    /// The image's device could not be opened, made or claimed.
    Device(DeviceError),
    /// An I/O error of the standard library: a copy failed on a file outside the image, a call
    /// through an I/O trait failed, text is not UTF-8, or a background thread cannot be started.
    ///
    /// `FileSystem::read`, `read_to_string`, `write`, `copy` and `copy_in` use I/O traits. So their
    /// errors may have this reason instead of [`Reason::FileSystem`]. To recognise, for example, a
    /// lack of space, use [`Error::kind`] or [`Error::errno`].
    Host(io::Error),
    /// The path passes more symbolic links than Linux follows, or ends in one that must not be
    /// followed ([`OpenOptions::follow`](crate::OpenOptions::follow)).
    Loop,
    /// The operation reads a file that was not opened for reading, or writes to one that was not
    /// opened for writing.
    NotOpenForThis,
    /// The file system has been closed.
    Closed,
    /// The operation cannot be done with these arguments (`EINVAL`). The text says why.
    Invalid(&'static str),
}

/// The path or inode that an error is about, or `Whole` for the image as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
enum About {
    Path(PathBuf),
    Inode(InodeNr),
    Whole,
}

/// A failed operation: why, and on what.
///
/// ```
/// # fn main() -> blockyard::Result<()> {
/// let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
/// let error = fs.read("no/such/file").unwrap_err();
/// assert_eq!(error.to_string(), "no/such/file: no such file or directory");
/// assert_eq!(error.errno(), 2);
/// let error = std::io::Error::from(error);
/// assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
/// assert_eq!(error.raw_os_error(), Some(2));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Error {
    reason: Reason,
    about: About,
}

impl Error {
    /// Why the operation failed.
    ///
    /// ```
    /// use blockyard::Reason;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let error = fs.write("no/such/folder", "text").unwrap_err();
    /// assert!(matches!(error.reason(), Reason::FileSystem(_)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn reason(&self) -> &Reason {
        &self.reason
    }

    /// The path that the error is about, if there is one:
    ///
    /// - for an operation on paths, a path that was passed to the operation (for a rename, always
    ///   the old path);
    /// - for an operation on a tree, a path that was passed to the operation, or one below it;
    /// - for an operation on an open file, [`File::path`](crate::File::path);
    /// - if an image cannot be opened or made, the path of the image.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let error = fs.read("missing").unwrap_err();
    /// assert_eq!(error.path(), Some("missing".as_ref()));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match &self.about {
            About::Path(path) => Some(path),
            About::Inode(_) | About::Whole => None,
        }
    }

    /// The inode that the error is about, if an operation of [`ByInode`](crate::ByInode) failed;
    /// otherwise `None`.
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// let root = inodes.root()?;
    /// let (id, file) = inodes.create(root, b"file", 0o644)?;
    /// drop(file);
    /// inodes.unlink(root, b"file")?;
    /// assert_eq!(inodes.metadata(id).unwrap_err().inode(), Some(id.number));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn inode(&self) -> Option<InodeNr> {
        match self.about {
            About::Inode(inode) => Some(inode),
            About::Path(_) | About::Whole => None,
        }
    }

    /// The errno with which a system call would fail (Linux numbers).
    ///
    /// ```
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// assert_eq!(fs.remove_dir("missing").unwrap_err().errno(), 2);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn errno(&self) -> i32 {
        match &self.reason {
            Reason::FileSystem(EngineError::Device(error)) | Reason::Device(error) => errno_of_device(error),
            Reason::FileSystem(error) => error.errno(),
            Reason::Make(mkfs::Error::Device(error)) => errno_of_device(error),
            Reason::Make(_) | Reason::Invalid(_) => 22,
            Reason::Host(error) => error.raw_os_error().unwrap_or(5),
            Reason::Loop => 40,
            Reason::NotOpenForThis | Reason::Closed => 9,
        }
    }

    /// The kind, in the standard library's terms. It follows from [`Error::errno`] alone. So it
    /// suits a `match` better than [`Error::reason`], which also depends on the call that failed.
    ///
    /// Text that is not UTF-8 has no kind of its own here. To recognise it, look for
    /// [`io::ErrorKind::InvalidData`] as the kind of the [`io::Error`] in [`Reason::Host`].
    ///
    /// ```
    /// use std::io::ErrorKind;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// assert_eq!(fs.create_dir("lost+found").unwrap_err().kind(), ErrorKind::AlreadyExists);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        io::Error::from_raw_os_error(self.errno()).kind()
    }

    /// Whether the inode that was asked for does not exist, or no longer (`ESTALE`): its number is
    /// free, another inode has it, or it belongs to the file system itself.
    ///
    /// ```
    /// use blockyard::InodeNr;
    /// # fn main() -> blockyard::Result<()> {
    /// # let fs = blockyard::ImageOptions::new().make_in_memory(16 << 20)?;
    /// let inodes = fs.by_inode();
    /// assert!(inodes.identify(InodeNr::new(4000)).unwrap_err().is_stale());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn is_stale(&self) -> bool {
        matches!(self.reason, Reason::FileSystem(EngineError::StaleInode(_)))
    }

    /// Whether the image is in use elsewhere (`EBUSY`).
    ///
    /// ```
    /// use blockyard::{ImageOptions, device::MemoryDevice};
    /// use std::sync::Arc;
    /// # fn main() -> blockyard::Result<()> {
    /// let memory = Arc::new(MemoryDevice::new(16 << 20));
    /// let _fs = ImageOptions::new().make_on(Arc::clone(&memory))?;
    /// assert!(ImageOptions::new().open_device(memory).unwrap_err().is_busy());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.errno() == 16
    }

    pub(crate) fn at(path: &Path, reason: impl Into<Reason>) -> Self {
        Self { reason: reason.into(), about: About::Path(path.to_owned()) }
    }

    pub(crate) fn of_inode(inode: InodeNr, reason: impl Into<Reason>) -> Self {
        Self { reason: reason.into(), about: About::Inode(inode) }
    }

    pub(crate) fn whole(reason: impl Into<Reason>) -> Self {
        Self { reason: reason.into(), about: About::Whole }
    }

    /// Whether a name was not found.
    pub(crate) const fn is_missing(&self) -> bool {
        matches!(self.reason, Reason::FileSystem(EngineError::NotFound))
    }
}

fn errno_of_device(error: &DeviceError) -> i32 {
    match error {
        error if error.is_busy() => 16,
        DeviceError::Open { source, .. } | DeviceError::Io { source, .. } => {
            source.raw_os_error().unwrap_or(5)
        }
        DeviceError::ReadOnly { .. } => 30,
        _ => 5,
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FileSystem(error) => error.fmt(f),
            Self::Make(error) => error.fmt(f),
            Self::Device(error) => error.fmt(f),
            Self::Host(error) => error.fmt(f),
            Self::Loop => f.write_str("too many levels of symbolic links"),
            Self::NotOpenForThis => f.write_str("the file was not opened for this operation"),
            Self::Closed => f.write_str("the file system is closed"),
            Self::Invalid(what) => write!(f, "invalid argument: {what}"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.about {
            About::Path(path) => write!(f, "{}: {}", path.display(), self.reason),
            // The engine's message names the inode already.
            About::Inode(_) if self.is_stale() => self.reason.fmt(f),
            About::Inode(inode) => write!(f, "inode {inode}: {}", self.reason),
            About::Whole => self.reason.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.reason {
            Reason::FileSystem(error) => Some(error),
            Reason::Make(error) => Some(error),
            Reason::Device(error) => Some(error),
            Reason::Host(error) => Some(error),
            Reason::Loop | Reason::NotOpenForThis | Reason::Closed | Reason::Invalid(_) => None,
        }
    }
}

impl From<Error> for io::Error {
    /// Keeps the kind and the errno. The text is that of the errno.
    fn from(error: Error) -> Self {
        Self::from_raw_os_error(error.errno())
    }
}

impl From<io::Error> for Error {
    /// Lets a function that returns [`Error`] use `?` on calls through the I/O traits.
    fn from(error: io::Error) -> Self {
        Self::whole(error)
    }
}

impl From<EngineError> for Reason {
    fn from(error: EngineError) -> Self {
        Self::FileSystem(error)
    }
}

impl From<mkfs::Error> for Reason {
    fn from(error: mkfs::Error) -> Self {
        Self::Make(error)
    }
}

impl From<DeviceError> for Reason {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

impl From<io::Error> for Reason {
    fn from(error: io::Error) -> Self {
        Self::Host(error)
    }
}

/// A result whose error has no path yet.
pub(crate) type Bare<T> = std::result::Result<T, Reason>;
