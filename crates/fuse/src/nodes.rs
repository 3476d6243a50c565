//! The inodes that the kernel remembers.
//!
//! Each answer that tells the kernel of an inode raises the inode's look-up count. The kernel may
//! use the inode's number until the kernel's `forget` requests have lowered the count to 0. This
//! number is the inode's number in the file system. Only the root directory has another number: 1,
//! as the protocol demands.
//!
//! a number other than the root's is in the table <=> its look-up count is more than 0.
//!
//! The inode of each number in the table is held, so that the number is not reused. The exception
//! is an inode that cannot be read: a listing tells the kernel its number, which the kernel forgets
//! at once. So such an inode is not held.

use std::collections::HashMap;

use blockyard::{ByInode, InodeId, InodeNr, Node};
use blockyard_sync::{Mutex, rank};

use crate::errno::{Answer, Errno};

/// The kernel's number for an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeNr(pub u64);

impl NodeNr {
    /// The root directory.
    pub const ROOT: Self = Self(1);

    /// The kernel's number for an inode.
    #[must_use]
    pub fn of(inode: InodeNr) -> Self {
        if inode == InodeNr::ROOT { Self::ROOT } else { Self(u64::from(inode.raw())) }
    }

    /// The inode's number in the file system; `None` if the kernel's number is too large to be one.
    fn inode(self) -> Option<InodeNr> {
        match self {
            Self::ROOT => Some(InodeNr::ROOT),
            Self(number) => u32::try_from(number).ok().map(InodeNr::new),
        }
    }
}

/// An inode that the kernel was told of.
#[derive(Default)]
struct Remembered {
    /// `None` if the kernel was told only of the number, because the inode could not be read.
    node: Option<Node>,
    /// The look-up count.
    lookups: u64,
    /// A cached write beyond the largest file size failed, but the kernel still assumes the size
    /// that the write would have given. Attributes that are sent to the kernel do not change that.
    /// The kernel assumes this size until the file's size is set, or until it forgets the file.
    is_overlong: bool,
}

/// One shard of the table.
type Shard = Mutex<HashMap<u32, Remembered>>;

/// Shards of the table: enough that threads rarely wait for each other.
const SHARDS: usize = 64;

/// The table of the inodes that the kernel remembers.
pub(crate) struct Nodes {
    root: InodeId,
    shards: Box<[Shard]>,
}

impl Nodes {
    /// A table with only the root directory, which is always remembered.
    pub(crate) fn new(root: InodeId) -> Self {
        let shard = |_| Mutex::new(rank::LEAF, HashMap::new());
        Self { root, shards: (0..SHARDS).map(shard).collect() }
    }

    fn shard(&self, inode: InodeNr) -> &Shard {
        &self.shards[blockyard::disk::num::usize_from_u32(inode.raw()) % SHARDS]
    }

    /// The inode that a number stands for.
    pub(crate) fn id(&self, node: NodeNr) -> Answer<InodeId> {
        let inode = node.inode().ok_or(Errno::STALE)?;
        if inode == InodeNr::ROOT {
            return Ok(self.root);
        }
        let shard = self.shard(inode).lock();
        let node = shard.get(&inode.raw()).and_then(|known| known.node.as_ref());
        node.map(Node::id).ok_or(Errno::STALE)
    }

    /// Records that the kernel is told of an inode.
    pub(crate) fn remember(&self, inodes: ByInode<'_>, id: InodeId) -> Answer<()> {
        if id == self.root || self.count(id) {
            return Ok(());
        }
        // The inode is held before the lock is taken, because no file system call may happen under
        // the lock.
        let node = inodes.hold(id)?;
        let spare = {
            let mut shard = self.shard(id.number).lock();
            let known = shard.entry(id.number.raw()).or_default();
            known.lookups += 1;
            if let Some(held) = &known.node {
                assert_eq!(held.id(), id, "a held inode keeps its number");
                Some(node)
            } else {
                known.node = Some(node);
                None
            }
        };
        drop(spare);
        Ok(())
    }

    /// Records that the kernel is told the number of an inode that cannot be read.
    pub(crate) fn note_unreadable(&self, node: NodeNr) {
        if let Some(inode) = node.inode().filter(|inode| *inode != InodeNr::ROOT) {
            self.shard(inode).lock().entry(inode.raw()).or_default().lookups += 1;
        }
    }

    /// Counts another look-up if the inode is remembered already.
    fn count(&self, id: InodeId) -> bool {
        let mut shard = self.shard(id.number).lock();
        let is_held = |known: &&mut Remembered| known.node.as_ref().is_some_and(|node| node.id() == id);
        if let Some(known) = shard.get_mut(&id.number.raw()).filter(is_held) {
            known.lookups += 1;
            return true;
        }
        false
    }

    /// Lowers the look-up count of an inode by `lookups`. Returns whether the inode is now
    /// forgotten, after which it may be freed.
    pub(crate) fn forget(&self, node: NodeNr, lookups: u64) -> bool {
        let Some(inode) = node.inode().filter(|inode| *inode != InodeNr::ROOT) else { return false };
        let gone = {
            let mut shard = self.shard(inode).lock();
            let Some(known) = shard.get_mut(&inode.raw()) else { return false };
            known.lookups = known.lookups.saturating_sub(lookups);
            if known.lookups > 0 {
                return false;
            }
            shard.remove(&inode.raw())
        };
        // Dropped outside the lock, because this deletes an inode without names.
        drop(gone);
        true
    }

    /// Records that the kernel assumes a size that the file cannot have.
    pub(crate) fn note_overlong(&self, inode: InodeNr) {
        debug_assert!(inode != InodeNr::ROOT, "a directory has no written bytes");
        if let Some(known) = self.shard(inode).lock().get_mut(&inode.raw()) {
            known.is_overlong = true;
        }
    }

    /// Records that the size of a file was set. The kernel then assumes the size that the file has.
    pub(crate) fn note_size(&self, inode: InodeNr) {
        if let Some(known) = self.shard(inode).lock().get_mut(&inode.raw()) {
            known.is_overlong = false;
        }
    }

    /// Whether the kernel assumes a size that the file cannot have.
    pub(crate) fn is_overlong(&self, inode: InodeNr) -> bool {
        self.shard(inode).lock().get(&inode.raw()).is_some_and(|known| known.is_overlong)
    }

    /// The number of remembered inodes, without the root directory.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Forgets everything, before the file system is closed.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let all = std::mem::take(&mut *shard.lock());
            drop(all);
        }
    }
}
