//! Preallocations: clusters that are used in core but not on disk, kept for one inode or for the
//! small files of one CPU slot.
//!
//! Key decision: the state that changes (front, free clusters, users, deleted) is one atomic word,
//! so taking from a preallocation, ending a use and deleting it need no lock. An inode
//! preallocation also has one bit for each of its clusters: whether the cluster was taken. So
//! dropping the preallocation never needs the on-disk bitmap.
//!
//! Invariants: a preallocation is in its group's list exactly while the clusters left in it are
//! marked used in the group's in-core bitmap. Both change together under the group's lock. A caller
//! that takes from a preallocation has pinned the group, which must be loaded, and becomes a user
//! of the preallocation. A preallocation with users is not deleted; a deleted one is never taken
//! from.

pub(crate) mod inode;
pub(crate) mod locality;
pub(crate) mod reservation;
pub(crate) mod windows;

use blockyard_disk::GroupNr;
use blockyard_disk::num::{u32_from_u64, u32_from_usize, u64_from_u32, usize_from_u32};
use blockyard_sync::{Atomic, AtomicInt, Backend, Ordering};

/// Bits for the front, and as many for the free count: enough for the 524,288 clusters of a 64 KiB
/// bitmap.
const COUNT_BITS: u32 = 22;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
const FREE_SHIFT: u32 = COUNT_BITS;
const USER: u64 = 1 << (2 * COUNT_BITS);
const DELETED: u64 = 1 << 63;

/// Who a preallocation is kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// An inode: `logical` is the block that the first cluster stands for.
    Inode { logical: u32 },
    /// The locality group of a CPU slot.
    Locality,
}

/// The state word, unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// Offset in the group of the first cluster (locality: of the first one left).
    pub(crate) front: u32,
    /// Clusters left.
    pub(crate) free: u32,
    users: u32,
    pub(crate) deleted: bool,
}

impl State {
    fn unpack(word: u64) -> Self {
        Self {
            front: u32_from_u64(word & COUNT_MASK),
            free: u32_from_u64((word >> FREE_SHIFT) & COUNT_MASK),
            users: u32_from_u64((word & !DELETED) >> (2 * COUNT_BITS)),
            deleted: word & DELETED != 0,
        }
    }

    fn pack(self) -> u64 {
        debug_assert!(
            u64_from_u32(self.front.max(self.free)) <= COUNT_MASK,
            "{self:?} does not fit one word"
        );
        u64_from_u32(self.front)
            | (u64_from_u32(self.free) << FREE_SHIFT)
            | (u64_from_u32(self.users) * USER)
            | if self.deleted { DELETED } else { 0 }
    }
}

/// A range of clusters kept for later.
pub(crate) struct Prealloc<B: Backend> {
    pub(crate) owner: Owner,
    pub(crate) group: GroupNr,
    /// First cluster and length at creation.
    pub(crate) start: u32,
    pub(crate) len: u32,
    word: B::AtomicU64,
    /// One bit per cluster: whether it was taken. Empty for locality preallocations, which are
    /// taken from the front.
    ///
    /// Relaxed is enough. Only users set bits, and the clusters left are given back only when there
    /// are no users. The changes of the state word order these two steps. Checks for overlaps may
    /// read older bits.
    taken: Box<[B::AtomicU64]>,
    /// Index in the group's list. Accessed relaxed, and only under the group's lock.
    place: B::AtomicU32,
}

impl<B: Backend> Prealloc<B> {
    /// A preallocation with one user: its maker.
    pub(crate) fn new(owner: Owner, group: GroupNr, start: u32, len: u32) -> Self {
        assert!(len > 0, "a preallocation of nothing in group {group}");
        let bits = if owner == Owner::Locality { 0 } else { len };
        let state = State { front: start, free: len, users: 1, deleted: false };
        B::on_line("preallocation", || Self {
            owner,
            group,
            start,
            len,
            word: B::AtomicU64::new(state.pack()),
            taken: (0..bits.div_ceil(64)).map(|_| B::AtomicU64::new(0)).collect(),
            place: B::AtomicU32::new(u32::MAX),
        })
    }

    /// The state at this moment.
    #[inline]
    pub(crate) fn glance(&self) -> State {
        // Acquire pairs with the release of the last change, for the taken bits.
        State::unpack(self.word.load(Ordering::Acquire))
    }

    /// First logical block of an inode preallocation; 0 for a locality preallocation.
    #[inline]
    pub(crate) fn logical(&self) -> u32 {
        match self.owner {
            Owner::Inode { logical } => logical,
            Owner::Locality => 0,
        }
    }

    #[inline]
    fn change(&self, f: impl Fn(State) -> Option<State>) -> Result<State, State> {
        self.word
            .update(Ordering::AcqRel, Ordering::Acquire, |word| f(State::unpack(word)).map(State::pack))
            .map(State::unpack)
            .map_err(State::unpack)
    }

    /// Takes from the front of a locality preallocation that the caller has just made and nobody
    /// else has seen. Returns the first cluster taken. The caller already is a user, so the use
    /// that taking adds is ended again.
    pub(crate) fn serve_front(&self, count: u32) -> u32 {
        let taken = self.take_front(count).unwrap_or(self.start);
        self.put();
        taken
    }

    /// Takes from an inode preallocation that the caller has just made and nobody else has seen.
    /// Returns how many clusters were taken. As in [`Self::serve_front`], the caller already is a
    /// user.
    pub(crate) fn serve_at(&self, start: u32, count: u32) -> u32 {
        let taken = self.take_at(start, count);
        self.put();
        taken
    }

    /// Takes `count` clusters from the front of a locality preallocation and becomes a user.
    /// Returns the first cluster. `None` (and no user) if the preallocation is deleted or has fewer
    /// clusters left.
    pub(crate) fn take_front(&self, count: u32) -> Option<u32> {
        debug_assert_eq!(self.owner, Owner::Locality, "taken from the front of an inode's preallocation");
        self.change(|state| {
            (!state.deleted && state.free >= count).then(|| State {
                front: state.front + count,
                free: state.free - count,
                users: state.users + 1,
                deleted: false,
            })
        })
        .map(|before| before.front)
        .ok()
    }

    /// Takes up to `count` clusters of an inode preallocation, from cluster `start` of the group
    /// on, and becomes a user. Returns how many were taken. If the preallocation is deleted, or
    /// cluster `start` was taken before, takes nothing and does not become a user.
    pub(crate) fn take_at(&self, start: u32, count: u32) -> u32 {
        let became_user = self.change(|state| {
            (!state.deleted && state.free > 0).then_some(State { users: state.users + 1, ..state })
        });
        if became_user.is_err() {
            return 0;
        }
        debug_assert_ne!(self.owner, Owner::Locality, "a locality preallocation is taken from its front");
        assert!(
            self.start <= start && start < self.start + self.len,
            "cluster {start} is not in the preallocation of {} clusters at {}",
            self.len,
            self.start
        );
        let first = start - self.start;
        let end = (first + count).min(self.len);
        let mut at = first;
        while at < end && self.mark_taken(at) {
            at += 1;
        }
        let taken = at - first;
        let users = u32::from(taken == 0);
        let _ = self.change(|state| {
            assert!(taken <= state.free, "{taken} clusters taken of {}", state.free);
            Some(State { free: state.free - taken, users: state.users - users, ..state })
        });
        taken
    }

    /// Marks one cluster taken; false if it already was.
    fn mark_taken(&self, at: u32) -> bool {
        let bit = 1u64 << (at % 64);
        self.taken[usize_from_u32(at / 64)].fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// Ends one use. Returns the state afterwards.
    pub(crate) fn put(&self) -> State {
        let end_use = |state: State| {
            assert!(state.users > 0, "a preallocation was let go more often than it was taken from");
            assert!(!state.deleted, "a preallocation was deleted while in use");
            Some(State { users: state.users - 1, ..state })
        };
        match self.change(end_use) {
            Ok(before) | Err(before) => State { users: before.users - 1, ..before },
        }
    }

    /// Deletes the preallocation unless it is in use or deleted already. Returns whether this call
    /// deleted it.
    pub(crate) fn try_delete(&self) -> bool {
        self.change(|state| (!state.deleted && state.users == 0).then_some(State { deleted: true, ..state }))
            .is_ok()
    }

    /// Whether somebody uses it.
    pub(crate) fn in_use(&self) -> bool {
        self.glance().users > 0
    }

    /// Calls `f(start, count)` for each run of clusters left. The runs are exact only if nobody
    /// takes from the preallocation meanwhile.
    pub(crate) fn for_each_left(&self, mut f: impl FnMut(u32, u32)) {
        let state = self.glance();
        if self.owner == Owner::Locality {
            if state.free > 0 {
                f(state.front, state.free);
            }
            return;
        }
        let left =
            |at: u32| self.taken[usize_from_u32(at / 64)].load(Ordering::Relaxed) >> (at % 64) & 1 == 0;
        debug_assert!(
            !state.deleted || state.free == u32_from_usize((0..self.len).filter(|&at| left(at)).count()),
            "{state:?}: not as many clusters are left"
        );
        let mut at = 0;
        while at < self.len {
            let end = (at..self.len).find(|&next| !left(next)).unwrap_or(self.len);
            if end > at {
                f(self.start + at, end - at);
            }
            at = end + 1;
        }
    }

    /// Index in the group's list. The caller holds the group's lock.
    pub(crate) fn place(&self) -> u32 {
        self.place.load(Ordering::Relaxed)
    }

    /// Sets the index in the group's list. The caller holds the group's lock.
    pub(crate) fn set_place(&self, place: u32) {
        self.place.store(place, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockyard_sync::Native;

    fn left(prealloc: &Prealloc<Native>) -> Vec<(u32, u32)> {
        let mut runs = Vec::new();
        prealloc.for_each_left(|start, count| runs.push((start, count)));
        runs
    }

    #[test]
    fn an_inode_preallocation_gives_back_what_was_not_taken() {
        let prealloc = Prealloc::<Native>::new(Owner::Inode { logical: 0 }, GroupNr::new(1), 100, 70);
        assert_eq!(prealloc.take_at(110, 5), 5);
        assert_eq!(prealloc.take_at(108, 5), 2, "stops at what is taken");
        assert_eq!(prealloc.take_at(112, 5), 0, "taken already");
        assert_eq!(prealloc.take_at(168, 5), 2, "ends at its end");
        assert_eq!(left(&prealloc), [(100, 8), (115, 53)]);
        assert_eq!(prealloc.glance().free, 61);
        assert!(!prealloc.try_delete(), "four users");
        for _ in 0..4 {
            prealloc.put();
        }
        assert!(prealloc.try_delete() && !prealloc.try_delete());
        assert_eq!(prealloc.take_at(100, 1), 0, "deleted");
    }

    #[test]
    fn a_locality_preallocation_is_taken_from_the_front() {
        let prealloc = Prealloc::<Native>::new(Owner::Locality, GroupNr::new(1), 100, 20);
        assert_eq!(prealloc.take_front(15), Some(100));
        assert_eq!(prealloc.take_front(6), None);
        assert_eq!(prealloc.take_front(5), Some(115));
        assert!(left(&prealloc).is_empty());
    }
}
