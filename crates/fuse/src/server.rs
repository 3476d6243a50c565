//! The requests that a kernel sends to a mounted file system, in types of our own. This interface
//! does not depend on how the requests arrive.
//!
//! [`Server`] answers requests one by one, from many threads. It works without a kernel, and needs
//! few details of the protocol, such as the number of the root directory and the size of a
//! directory entry. `adapter.rs` feeds it the requests of FUSE. The kernel has checked permissions
//! already, except some of those for ioctls.

mod attributes;
mod controls;
mod data;
mod directories;
mod names;
mod xattrs;

use std::time::Duration;

use blockyard::{AccessTimes, ByInode, Context, FileSystem, InodeId, Metadata, Statistics};

use crate::handles::Handles;
use crate::nodes::Nodes;
use crate::removals::Removals;

pub use crate::errno::{Answer, Errno};
pub use crate::handles::HandleNr;
pub use crate::nodes::NodeNr;
pub use attributes::{Changes, TimeChange};
pub use controls::Control;
pub use data::{Opened, Transfer, Written};
pub use directories::Listed;
pub use names::Creation;

/// Size in bytes of inodes that have only the fields of ext2: their times have no nanoseconds.
const INODE_SIZE_OF_EXT2: u16 = 128;

/// On whose behalf a request comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// The process or thread that waits for the answer; 0 if it is not in our PID namespace.
    pub process: u32,
}

impl Caller {
    /// Root.
    pub const ROOT: Self = Self { uid: 0, gid: 0, process: 0 };

    /// Whether the caller may do what Linux allows only with a capability: keep set-id bits, set
    /// the flags of others' files, set or clear the immutable and append-only flags, discard free
    /// blocks, see `trusted` attributes. The protocol does not transmit capabilities, so only root
    /// may.
    const fn is_privileged(self) -> bool {
        self.uid == 0
    }

    /// Whether the caller is in a group. The protocol does not transmit supplementary groups, so
    /// they come from `/proc`. If they cannot be read there, only the caller's `gid` counts.
    fn is_in_group(self, gid: u32) -> bool {
        self.gid == gid || supplementary_groups(self.process).contains(&gid)
    }
}

fn supplementary_groups(process: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_whitespace().filter_map(|group| group.parse().ok()).collect()
}

/// Answers the requests of a mounted file system.
pub struct Server {
    /// The file system, for operations on behalf of root.
    fs: FileSystem,
    nodes: Nodes,
    handles: Handles,
    removals: Removals,
    access_times: AccessTimes,
    block_size: u32,
}

impl Server {
    /// A server for an open image.
    ///
    /// # Errors
    /// The root directory cannot be read.
    pub fn new(fs: FileSystem, access_times: AccessTimes) -> blockyard::Result<Self> {
        let fs = fs.with_context(Context::new());
        let root = fs.by_inode().root()?;
        let block_size = fs.statfs()?.block_size;
        let (nodes, handles, removals) = (Nodes::new(root), Handles::new(), Removals::new());
        Ok(Self { fs, nodes, handles, removals, access_times, block_size })
    }

    fn inodes(&self) -> ByInode<'_> {
        self.fs.by_inode()
    }

    /// The file system, for operations on behalf of a caller.
    fn as_caller(&self, caller: Caller) -> FileSystem {
        self.fs.with_context(Context::new().user(caller.uid, caller.gid))
    }

    /// As [`Server::as_caller`], for files whose writes the kernel caches. The kernel sets the
    /// times of these files and sends the bytes later.
    fn as_caching_caller(&self, caller: Caller) -> FileSystem {
        self.fs.with_context(Context::new().user(caller.uid, caller.gid).caches_writes(true))
    }

    fn id(&self, node: NodeNr) -> Answer<InodeId> {
        self.nodes.id(node)
    }

    /// The attributes of an inode, for an answer that tells the kernel of this inode. Remembers the
    /// inode.
    fn remembered(&self, id: InodeId) -> Answer<Metadata> {
        let found = self.inodes().metadata(id)?;
        self.nodes.remember(self.inodes(), id)?;
        Ok(found)
    }

    /// Lowers the look-up count of an inode by `lookups`, as a `forget` request asks. Returns
    /// whether the inode is now forgotten.
    pub fn forget(&self, node: NodeNr, lookups: u64) -> bool {
        self.nodes.forget(node, lookups)
    }

    /// Sizes and counts of the file system, as `statfs(2)` reports them.
    ///
    /// # Errors
    /// The file system was closed.
    pub fn statfs(&self) -> Answer<Statistics> {
        Ok(self.fs.statfs()?)
    }

    /// Block size in bytes.
    #[must_use]
    pub const fn block_size(&self) -> u32 {
        self.block_size
    }

    /// The unit in which inodes store times: nanoseconds, or seconds if the inodes are too small.
    #[must_use]
    pub fn time_granularity(&self) -> Duration {
        let size = self.fs.with_engine(|engine, _| Ok(engine.superblock().geometry().inode_size()));
        let is_small = size.is_ok_and(|size| size <= INODE_SIZE_OF_EXT2);
        if is_small { Duration::from_secs(1) } else { Duration::from_nanos(1) }
    }

    /// The file system that is served.
    #[must_use]
    pub const fn file_system(&self) -> &FileSystem {
        &self.fs
    }

    /// The number of inodes that the kernel remembers, without the root directory, and the number
    /// of open files.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.nodes.len(), self.handles.len())
    }

    /// Releases everything open and remembered, before the file system is closed.
    pub fn end(&self) {
        self.handles.clear();
        self.nodes.clear();
    }
}
