//! What one group's lock guards: its inode bitmap while that is in memory, and the bookkeeping of
//! its table.

use super::bitmap::{self, Recency};
use super::config::InodeGroupFacts;

/// The inodes of one group.
///
/// Pinned (not evictable) while `claims > 0`, because the bitmap on disk lacks uncommitted claims.
#[derive(Debug)]
pub(super) struct GroupState {
    /// One bit per inode, 1 = used or claimed; `None` while the bitmap is not in memory.
    bits: Option<Box<[u64]>>,
    /// Inodes at the end of the table that were never in use. A claim is not a use.
    itable_unused: u32,
    /// Claims that are neither committed nor released.
    claims: u32,
    /// How many of those claims are for directories.
    claimed_directories: u32,
    /// Evictions so far, modulo 2^16. If it changed during a load, the bitmap that was read may be
    /// stale.
    generation: u16,
    /// `INODE_UNINIT`: the bitmap was never written.
    uninit: bool,
    corrupt: bool,
}

impl GroupState {
    pub(super) fn new(facts: &InodeGroupFacts) -> Self {
        Self {
            bits: None,
            itable_unused: facts.itable_unused,
            claims: 0,
            claimed_directories: 0,
            generation: 0,
            uninit: facts.inode_uninit,
            corrupt: false,
        }
    }

    pub(super) const fn is_loaded(&self) -> bool {
        self.bits.is_some()
    }

    pub(super) const fn is_corrupt(&self) -> bool {
        self.corrupt
    }

    pub(super) const fn generation(&self) -> u16 {
        self.generation
    }

    pub(super) const fn claims(&self) -> u32 {
        self.claims
    }

    pub(super) const fn claimed_directories(&self) -> u32 {
        self.claimed_directories
    }

    pub(super) const fn itable_unused(&self) -> u32 {
        self.itable_unused
    }

    /// Inodes at the start of the table that may have been used.
    pub(super) const fn used_prefix(&self, per_group: u32) -> u32 {
        if self.uninit { 0 } else { per_group - self.itable_unused }
    }

    /// If the bitmap was never written to disk, creates it with all inodes free. Returns false if
    /// the bitmap must be read instead.
    pub(super) fn synthesise(&mut self, per_group: u32) -> bool {
        if self.uninit {
            self.bits = Some(bitmap::all_free(per_group));
        }
        self.uninit
    }

    /// Installs a bitmap that was read at `generation`, unless the group was loaded or evicted
    /// meanwhile.
    pub(super) fn install(&mut self, generation: u16, bytes: &[u8], per_group: u32) {
        if self.bits.is_none() && self.generation == generation {
            self.bits = Some(bitmap::from_bytes(bytes, per_group));
        }
    }

    /// Drops the bitmap from memory unless it is pinned. Returns whether a bitmap was dropped.
    pub(super) fn evict(&mut self) -> bool {
        let evictable = self.bits.is_some() && self.claims == 0;
        if evictable {
            assert_eq!(self.claimed_directories, 0, "claims on directories in a group without claims");
            self.bits = None;
            self.generation = self.generation.wrapping_add(1);
        }
        evictable
    }

    /// Takes the group out of use. Returns false if it was out of use already.
    pub(super) fn mark_corrupt(&mut self) -> bool {
        !core::mem::replace(&mut self.corrupt, true)
    }

    /// The first free bit at or after `start` whose inode was not deleted recently; if there is
    /// none, a bit of a recently deleted inode.
    pub(super) fn find_free(&self, start: u32, per_group: u32, recency: Option<&Recency<'_>>) -> Option<u32> {
        bitmap::find_free(self.bits.as_deref()?, start, per_group, recency)
    }

    pub(super) fn claim(&mut self, index: u32, directory: bool) {
        let was_free = self.bits.as_mut().is_some_and(|bits| bitmap::set(bits, index));
        assert!(was_free, "a claim on inode index {index}, which is not free");
        self.claims += 1;
        self.claimed_directories += u32::from(directory);
    }

    /// Turns a claim into a used inode. Returns whether the bitmap block must be written for the
    /// first time, and whether no inode was ever used at this index.
    pub(super) fn commit(&mut self, index: u32, directory: bool, per_group: u32) -> (bool, bool) {
        assert!(index < per_group, "inode index {index} of {per_group}");
        self.end_claim(directory);
        let first_use = index >= self.used_prefix(per_group);
        if first_use {
            self.itable_unused = per_group - (index + 1);
        }
        (core::mem::replace(&mut self.uninit, false), first_use)
    }

    /// Undoes a claim.
    pub(super) fn release(&mut self, index: u32, directory: bool) {
        self.end_claim(directory);
        let was_used = self.clear(index);
        assert!(was_used, "a claim on inode index {index} was lost");
    }

    /// Frees a bit; false if it was free already, or no bitmap is loaded.
    pub(super) fn clear(&mut self, index: u32) -> bool {
        self.bits.as_mut().is_some_and(|bits| bitmap::clear(bits, index))
    }

    fn end_claim(&mut self, directory: bool) {
        assert!(self.claims > 0 && self.bits.is_some(), "a claim ended in a group that has none");
        assert!(!directory || self.claimed_directories > 0, "no claim on a directory was open");
        self.claims -= 1;
        self.claimed_directories -= u32::from(directory);
        debug_assert!(self.claimed_directories <= self.claims, "more claims on directories than claims");
    }
}

#[cfg(all(test, not(debug_assertions)))]
mod tests {
    use super::GroupState;
    use blockyard_sync::{Mutex, Native};

    #[test]
    fn a_group_whose_bitmap_is_not_loaded_takes_at_most_40_bytes() {
        assert!(size_of::<Mutex<GroupState, Native>>() <= 40);
    }
}
