//! What the listings of one directory remember of its damage.
//!
//! A damaged index no longer leads to all leaves, so a listing must search the directory for them.
//! It does so once, unless another listing begins meanwhile: the first batch that needs the leaves
//! keeps them here for the batches that follow.
//!
//! Names may change between these batches. A listing forgets the leaves when it begins, so its
//! batches use leaves that were kept later. Whoever searched for them held the inode lock until
//! they were kept, and names change only under the exclusive lock. So the leaves were right when
//! they were kept: a name that stays during the listing lies between the first and the last
//! position of its leaf. Only a split moves names, and it adds a block, which [`Leaves::are_of`]
//! sees.

use blockyard_disk::dirhash::DirHasher;
use blockyard_sync::{AtomicU64, Mutex, Ordering, rank};
use std::sync::Arc;

/// The damage of one directory, for its listings.
pub(crate) struct ListingDamage {
    /// Batches that met damage since the whole directory was last read without any. Relaxed:
    /// whoever continues a listing got the position from an answer that came after this was
    /// counted.
    met: AtomicU64,
    leaves: Mutex<Option<Arc<Leaves>>>,
}

impl ListingDamage {
    /// No damage was met yet.
    pub(crate) fn none() -> Self {
        Self { met: AtomicU64::new(0), leaves: Mutex::new(rank::LEAF, None) }
    }

    /// How many batches have met damage; 0 if the directory is not known to be damaged.
    pub(crate) fn met(&self) -> u64 {
        self.met.load(Ordering::Relaxed)
    }

    /// A batch met damage.
    pub(super) fn note(&self) {
        self.met.fetch_add(1, Ordering::Relaxed);
    }

    /// The whole directory was read without damage. `met` is the count from before that. If others
    /// have met damage meanwhile, the count stays, and a later listing reads the directory again.
    /// The leaves that they kept are forgotten, so they search once more.
    pub(crate) fn is_gone(&self, met: u64) {
        self.forget_leaves();
        let _ = self.met.compare_exchange(met, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(super) fn leaves(&self) -> Option<Arc<Leaves>> {
        self.leaves.lock().clone()
    }

    pub(super) fn keep_leaves(&self, leaves: &Arc<Leaves>) {
        *self.leaves.lock() = Some(Arc::clone(leaves));
    }

    /// Called when a listing begins.
    pub(crate) fn forget_leaves(&self) {
        *self.leaves.lock() = None;
    }
}

/// A block with names, and the positions of the first and the last of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaf {
    pub(super) logical: u32,
    pub(super) first: u64,
    pub(super) last: u64,
}

/// The leaves of a directory that have names, in the order of their first names.
pub(super) struct Leaves {
    /// `last` is the greatest of this leaf and of all before it.
    leaves: Box<[Leaf]>,
    /// Blocks that the directory had.
    blocks: u32,
    /// What the positions were computed with.
    hasher: DirHasher,
}

impl Leaves {
    pub(super) fn new(mut leaves: Vec<Leaf>, blocks: u32, hasher: DirHasher) -> Self {
        leaves.sort_by_key(|leaf| leaf.first);
        let mut last = 0;
        for leaf in &mut leaves {
            debug_assert!(leaf.first <= leaf.last && leaf.logical < blocks, "{leaf:?} of {blocks} blocks");
            last = last.max(leaf.last);
            leaf.last = last;
        }
        Self { leaves: leaves.into_boxed_slice(), blocks, hasher }
    }

    /// Whether these are the leaves of a directory of so many blocks, by the positions that a hash
    /// function gives to its names.
    pub(super) fn are_of(&self, blocks: u32, hasher: &DirHasher) -> bool {
        self.blocks == blocks && self.hasher == *hasher
    }

    /// The leaves that may have names at or behind a position, in groups. The names of a group were
    /// all before those of the next one. Under a sound index each leaf is a group of its own,
    /// unless one hash fills several leaves.
    pub(super) fn groups_from(&self, place: u64) -> impl Iterator<Item = &[Leaf]> {
        let start = self.leaves.partition_point(|leaf| leaf.last < place);
        self.leaves[start..].chunk_by(|leaf, next| leaf.last >= next.first)
    }
}
