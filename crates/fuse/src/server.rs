//! What a kernel asks of a mounted file system, in types of our own: the seam between it and
//! whatever carries its requests.
//!
//! [`Server`] answers one request after another, from many threads; it knows nothing of the
//! protocol, and can be asked without a kernel. `adapter.rs` brings the requests of FUSE here.
//! Permissions were checked by the kernel.

mod attributes;
mod controls;
mod data;
mod directories;
mod names;
mod xattrs;

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

/// On whose behalf a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Caller {
    /// Root.
    pub const ROOT: Self = Self { uid: 0, gid: 0 };

    /// Whether the kernel would let it keep set-id bits, and use what is reserved for root. The
    /// protocol does not tell capabilities.
    const fn is_privileged(self) -> bool {
        self.uid == 0
    }
}

/// Answers the requests of a mounted file system.
pub struct Server {
    /// On behalf of root.
    fs: FileSystem,
    nodes: Nodes,
    handles: Handles,
    removals: Removals,
    access_times: AccessTimes,
    block_size: u32,
}

impl Server {
    /// Over an open image.
    ///
    /// # Errors
    /// When the root directory can not be read.
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

    /// The file system on behalf of somebody.
    fn as_caller(&self, caller: Caller) -> FileSystem {
        self.fs.with_context(Context::new().user(caller.uid, caller.gid))
    }

    /// As [`Server::as_caller`], for files of which the kernel caches what is written: it tells
    /// their times and hands over the bytes later.
    fn as_caching_caller(&self, caller: Caller) -> FileSystem {
        self.fs.with_context(Context::new().user(caller.uid, caller.gid).caches_writes(true))
    }

    fn id(&self, node: NodeNr) -> Answer<InodeId> {
        self.nodes.id(node)
    }

    /// Remembers what is told of to the kernel.
    fn remembered(&self, id: InodeId) -> Answer<Metadata> {
        let found = self.inodes().metadata(id)?;
        self.nodes.remember(self.inodes(), id)?;
        Ok(found)
    }

    /// Forgets an inode as often as the kernel does; gives whether that was the last time.
    pub fn forget(&self, node: NodeNr, lookups: u64) -> bool {
        self.nodes.forget(node, lookups)
    }

    /// Sizes and counts.
    ///
    /// # Errors
    /// When it was closed.
    pub fn statfs(&self) -> Answer<Statistics> {
        Ok(self.fs.statfs()?)
    }

    /// Bytes of a block.
    #[must_use]
    pub const fn block_size(&self) -> u32 {
        self.block_size
    }

    /// The image that is served.
    #[must_use]
    pub const fn file_system(&self) -> &FileSystem {
        &self.fs
    }

    /// Inodes that the kernel remembers, and files that are open.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.nodes.len(), self.handles.len())
    }

    /// Gives up what is open and remembered: nobody asks any more.
    pub fn end(&self) {
        self.handles.clear();
        self.nodes.clear();
    }
}
