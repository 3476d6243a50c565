//! How to open a file: what is asked for. `file_system/open.rs` does it.

/// How to open a file, as [`std::fs::OpenOptions`]: what is set there and here means the same.
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
    /// Nothing is set: a file opened so can neither be read nor written, and is refused.
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

    /// The file can be read.
    #[must_use]
    pub const fn read(mut self, yes: bool) -> Self {
        self.read = yes;
        self
    }

    /// The file can be written.
    #[must_use]
    pub const fn write(mut self, yes: bool) -> Self {
        self.write = yes;
        self
    }

    /// What is written goes to the end of the file, wherever that is by then.
    #[must_use]
    pub const fn append(mut self, yes: bool) -> Self {
        self.append = yes;
        self
    }

    /// What the file holds is dropped when it is opened.
    #[must_use]
    pub const fn truncate(mut self, yes: bool) -> Self {
        self.truncate = yes;
        self
    }

    /// The file is made when there is none.
    #[must_use]
    pub const fn create(mut self, yes: bool) -> Self {
        self.create = yes;
        self
    }

    /// The file is made; one that is there already is an error.
    #[must_use]
    pub const fn create_new(mut self, yes: bool) -> Self {
        self.create_new = yes;
        self
    }

    /// Whether a symbolic link at the end of the path is followed; the default is yes. One that is
    /// not is an error (`ELOOP`).
    #[must_use]
    pub const fn follow(mut self, yes: bool) -> Self {
        self.follow = yes;
        self
    }

    /// The permissions of a file that is made; the default is 0o644, as there is no umask here.
    #[must_use]
    pub const fn mode(mut self, mode: u16) -> Self {
        self.mode = mode;
        self
    }
}
