//! Operations, and the lines of a trace.

use serde::{Deserialize, Serialize};

/// One line of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// The operation.
    #[serde(flatten)]
    pub op: Op,
    /// CPU slot of the acting worker.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub worker: u32,
    /// Virtual time in seconds since the start of the trace; `None` for the time of the line
    /// before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// When the operation arrived, in microseconds since the start. Only in traces recorded from a
    /// mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub us: Option<u64>,
    /// The errno with which the operation failed on the recorded mount. `None` if it succeeded, or
    /// if the trace was not recorded from a mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(worker: &u32) -> bool {
    *worker == 0
}

const fn default_directory_mode() -> u32 {
    0o755
}

const fn default_node_mode() -> u32 {
    0o010_644
}

/// An operation. Offsets and lengths are in bytes; `fd` is any number that the trace chose at
/// `open`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// Makes a directory.
    Mkdir {
        /// The new directory.
        path: String,
        /// Permission bits, 0755 by default.
        #[serde(default = "default_directory_mode")]
        mode: u32,
    },
    /// Opens a file.
    Open {
        /// The number that later lines use for the open file.
        fd: u32,
        /// The file.
        path: String,
        /// Comma-separated list of `r`, `w`, `rw`, `create`, `excl`, `trunc`, `append`, `direct`.
        flags: String,
    },
    /// Writes computed content.
    Pwrite {
        /// Open file.
        fd: u32,
        /// First byte. A file opened with `append` is written at its end, but with the content that
        /// belongs to this offset.
        off: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Changes the allocation of a range, as fallocate(2) does.
    Fallocate {
        /// Open file.
        fd: u32,
        /// A comma-separated list of `keep_size`, `punch_hole`, `zero_range`, `collapse_range`,
        /// `insert_range`; empty by default.
        #[serde(default)]
        mode: String,
        /// First byte.
        off: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Sets the size.
    Ftruncate {
        /// Open file.
        fd: u32,
        /// New size in bytes.
        len: u64,
    },
    /// Makes a file durable.
    Fsync {
        /// Open file.
        fd: u32,
    },
    /// Makes a file's data durable.
    Fdatasync {
        /// Open file.
        fd: u32,
    },
    /// Closes a file.
    Close {
        /// Open file.
        fd: u32,
    },
    /// Removes a name of anything but a directory.
    Unlink {
        /// The file.
        path: String,
    },
    /// Removes an empty directory.
    Rmdir {
        /// The directory.
        path: String,
    },
    /// Renames a file or directory, and replaces one that has the new name.
    Rename {
        /// Old name.
        from: String,
        /// New name.
        to: String,
    },
    /// Adds a name to an inode.
    Link {
        /// Existing name.
        #[serde(alias = "from")]
        target: String,
        /// New name.
        #[serde(alias = "to")]
        path: String,
    },
    /// Makes a symbolic link.
    Symlink {
        /// What it points to.
        target: String,
        /// Its name.
        path: String,
    },
    /// Makes a device, FIFO or socket.
    Mknod {
        /// The new file.
        path: String,
        /// Type and permission bits; a FIFO with 0644 by default.
        #[serde(default = "default_node_mode")]
        mode: u32,
        /// Device number: major.
        #[serde(default)]
        major: u32,
        /// Device number: minor.
        #[serde(default)]
        minor: u32,
    },
    /// Sets an extended attribute to `len` bytes of computed content.
    Setxattr {
        /// The file.
        path: String,
        /// Full name, such as `user.x`.
        name: String,
        /// Length of the value in bytes.
        len: u64,
    },
    /// A call to a recorded mount that players skip, because they cannot repeat it. The reason is
    /// one of these: traces have no operation for the call (such as a read), the path is not known,
    /// no line opened the file, or the call failed in a way that would not recur.
    Note {
        /// The call: `getattr`, `read`, `chmod` ...
        call: String,
        /// The file, where its name is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<String>,
        /// First byte.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        off: Option<u64>,
        /// Length in bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        len: Option<u64>,
    },
    /// Writes back all data and commits.
    Sync,
    /// Drops clean caches.
    DropCaches,
    /// Closes all files, unmounts and mounts again.
    Remount,
}

impl Op {
    /// The number of the open file that the operation acts on. `None` for `open` itself, and for an
    /// operation that acts on no open file.
    #[must_use]
    pub const fn file(&self) -> Option<u32> {
        match *self {
            Self::Pwrite { fd, .. }
            | Self::Fallocate { fd, .. }
            | Self::Ftruncate { fd, .. }
            | Self::Fsync { fd }
            | Self::Fdatasync { fd }
            | Self::Close { fd } => Some(fd),
            _ => None,
        }
    }
}

impl From<Op> for Line {
    fn from(op: Op) -> Self {
        Self { op, worker: 0, at: None, us: None, errno: None }
    }
}
