//! The placement of ext4's first releases: one rule for all inodes, flex group by flex group.
//!
//! A bug of these releases is kept: the search looks at the parent's flex group first, and never
//! again unless it is the lowest. So the search may find nothing although the parent's flex group
//! has free inodes.

use blockyard_disk::num::low32;
use blockyard_disk::{FlexNr, GroupNr};
use blockyard_sync::Backend;

use super::{Family, Search};

/// A good flex group has free inodes, and more than this percentage of its blocks free (rounded
/// down).
const FREE_PERCENT: i32 = 10;

impl<B: Backend> Search<'_, B> {
    /// Chooses a flex group and returns its first group with free inodes. Flex groups are tried in
    /// this order: the parent's, the one before that, then all others from the lowest on. The first
    /// good one is chosen.
    ///
    /// If none is good, the flex group with the most free blocks is chosen among those with free
    /// inodes. The parent's flex group is left out of this choice unless it is flex group 0.
    ///
    /// Returns `None` if no flex group with free inodes is left, or if the chosen one has no free
    /// block.
    pub(in crate::inode) fn flex_2008(&self, family: &Family) -> Option<GroupNr> {
        let parent = self.geometry.flex_of(family.group);
        if self.is_good(parent) {
            return self.first_group_with_inodes(parent);
        }
        let mut best = parent;
        if let Some(before) = parent.raw().checked_sub(1) {
            best = FlexNr::new(before);
            if self.is_good(best) {
                return self.first_group_with_inodes(best);
            }
        }
        let tried = best;
        for flex in (0..self.units()).map(FlexNr::new).filter(|flex| ![parent, tried].contains(flex)) {
            if self.is_good(flex) {
                return self.first_group_with_inodes(flex);
            }
            let has_more = self.clusters_in(flex) > self.clusters_in(best);
            if self.counts.free_in_flex(best) == 0 || (has_more && self.counts.free_in_flex(flex) != 0) {
                best = flex;
            }
        }
        let usable = self.counts.free_in_flex(best) != 0 && self.clusters_in(best) != 0;
        usable.then(|| self.first_group_with_inodes(best)).flatten()
    }

    /// Whether a flex group has free inodes and more than [`FREE_PERCENT`] percent of its blocks
    /// free. A last flex group that is shorter than the others is measured as if it were whole.
    fn is_good(&self, flex: FlexNr) -> bool {
        // In signed 32 bits, as in the kernel.
        let free = low32(self.clusters_in(flex)).cast_signed();
        let whole = low32(self.geometry.blocks_per_group() * u64::from(self.geometry.flex_size()));
        let percent = free.wrapping_mul(100) / whole.cast_signed().max(1);
        self.counts.free_in_flex(flex) != 0 && percent > FREE_PERCENT
    }
}
