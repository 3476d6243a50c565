//! What is remembered of damage that the listings of one directory found.
//!
//! A listing of an indexed directory reads entries in batches, in the order of their positions. The
//! position of an entry is the hash of its name. A damaged index no longer leads to all leaves, so
//! a listing must search the directory for them. The first batch that needs the leaves does this,
//! and keeps them here for the batches that follow. So most listings search once.
//!
//! Names may change between batches. A name that stays during the whole listing is found
//! nevertheless:
//! - A listing forgets the kept leaves when it begins, so its batches use only leaves that were
//!   found later, when the name was in one of them.
//! - A search holds the directory's content lock until it has kept the leaves here, so no name
//!   changes in between.
//! - Only the split of a leaf moves names to another leaf. A split adds a block, so
//!   [`Leaves::are_of`] rejects the leaves afterwards.

use blockyard_disk::dirhash::DirHasher;
use blockyard_sync::{AtomicU64, Mutex, Ordering, rank};
use std::sync::Arc;

/// The damage of one directory, for its listings.
pub(crate) struct ListingDamage {
    /// How many batches met damage since the whole directory was last read without meeting any.
    /// Accessed relaxed: a batch counts its damage before it returns the position where the next
    /// batch begins, so the next batch sees that count.
    met: AtomicU64,
    leaves: Mutex<Option<Arc<Leaves>>>,
}

impl ListingDamage {
    /// The state of a directory in which no damage was met yet.
    pub(crate) fn none() -> Self {
        Self { met: AtomicU64::new(0), leaves: Mutex::new(rank::LEAF, None) }
    }

    /// How many batches have met damage; 0 if the directory is not known to be damaged.
    pub(crate) fn met(&self) -> u64 {
        self.met.load(Ordering::Relaxed)
    }

    /// Counts a batch that met damage.
    pub(super) fn note(&self) {
        self.met.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the whole directory was read without meeting damage, and forgets the leaves.
    /// `met` is what [`Self::met()`] returned before that reading. If the count has risen since,
    /// another listing has met damage, and the count stays.
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

    /// Forgets the leaves that were found. Called when a listing begins.
    pub(crate) fn forget_leaves(&self) {
        *self.leaves.lock() = None;
    }
}

/// A block with names, and the positions of the first and the last of them in hash order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaf {
    pub(super) logical: u32,
    pub(super) first: u64,
    pub(super) last: u64,
}

/// The leaves of a directory that have names, in the order of their first names.
pub(super) struct Leaves {
    /// The `last` of each leaf is the greatest position in this leaf and all leaves before it.
    leaves: Box<[Leaf]>,
    /// How many blocks the directory had when the leaves were found.
    blocks: u32,
    /// The hash function that gave the positions.
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

    /// Whether the leaves were found while the directory had this many blocks, with positions that
    /// this hash function gave.
    pub(super) fn are_of(&self, blocks: u32, hasher: &DirHasher) -> bool {
        self.blocks == blocks && self.hasher == *hasher
    }

    /// The leaves that may have names at or behind a position, in groups. When the leaves were
    /// found, all names of a group were before all names of the next group. Under a sound index
    /// each leaf is a group of its own, unless one hash fills several leaves.
    pub(super) fn groups_from(&self, place: u64) -> impl Iterator<Item = &[Leaf]> {
        let start = self.leaves.partition_point(|leaf| leaf.last < place);
        self.leaves[start..].chunk_by(|leaf, next| leaf.last >= next.first)
    }
}
