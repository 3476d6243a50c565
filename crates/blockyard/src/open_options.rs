//! How to open a file. `file_system/open.rs` does the opening.

/// How to open a file. An option that [`std::fs::OpenOptions`] has means the same here.
///
/// ```
/// use blockyard::{ImageOptions, OpenOptions};
/// use std::io::Write;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let fs = ImageOptions::new().make_in_memory(16 << 20)?;
/// let mut log = OpenOptions::new().append(true).create(true).mode(0o600).open(&fs, "log")?;
/// log.write_all(b"one\n")?;
/// assert!(OpenOptions::new().write(true).create_new(true).open(&fs, "log").is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenOptions {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) append: bool,
    pub(crate) truncate: bool,
    pub(crate) create: bool,
    pub(crate) create_new: bool,
    pub(crate) follow: bool,
    pub(crate) mode: u16,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// No option set. Opening a file needs at least one of reading, writing and appending.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            follow: true,
            mode: 0o644,
        }
    }

    /// Allows reading.
    #[must_use]
    pub const fn read(mut self, yes: bool) -> Self {
        self.read = yes;
        self
    }

    /// Allows writing.
    #[must_use]
    pub const fn write(mut self, yes: bool) -> Self {
        self.write = yes;
        self
    }

    /// Allows writing, but each write goes to the end that the file has at that moment.
    #[must_use]
    pub const fn append(mut self, yes: bool) -> Self {
        self.append = yes;
        self
    }

    /// Truncates a regular file to nothing when it is opened.
    #[must_use]
    pub const fn truncate(mut self, yes: bool) -> Self {
        self.truncate = yes;
        self
    }

    /// Creates the file if it is missing.
    #[must_use]
    pub const fn create(mut self, yes: bool) -> Self {
        self.create = yes;
        self
    }

    /// Creates the file. It is an error if the name exists, even as a dangling symbolic link.
    #[must_use]
    pub const fn create_new(mut self, yes: bool) -> Self {
        self.create_new = yes;
        self
    }

    /// Whether a symbolic link at the end of the path is followed; yes by default. If not, a
    /// symbolic link there is an error (`ELOOP`).
    #[must_use]
    pub const fn follow(mut self, yes: bool) -> Self {
        self.follow = yes;
        self
    }

    /// The permissions of a new file. The default is 0o644; there is no umask here.
    #[must_use]
    pub const fn mode(mut self, mode: u16) -> Self {
        self.mode = mode;
        self
    }
}
