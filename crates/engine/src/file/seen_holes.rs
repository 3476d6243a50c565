//! What Linux learns of holes when it looks for blocks.

use super::Files;
use crate::data::FileData;
use crate::extents::{self, Lookup};
use crate::inode::InodeCore;
use blockyard_disk::inode::InodeMap;

impl Files {
    /// Where the page cache is followed: remembers the hole that a look-up of `logical` found, if it did. What lies before the
    /// first extent is remembered from `logical` on only.
    pub(crate) fn remember_hole(&self, data: &mut FileData, here: &Lookup, logical: u32) {
        if self.volume.options().follow_page_cache && here.found.is_none() {
            let start = match (here.left, here.right) {
                (Some(left), _) => left.end(),
                (None, Some(_)) => logical,
                (None, None) => 0,
            };
            let hole = start..here.right.map_or(u32::MAX, |right| right.logical);
            data.remember_hole(hole, logical);
        }
    }

    /// Notes what Linux learns when it looks for a block: nothing where it knows that it is in a hole.
    pub(crate) fn note_lookup(&self, data: &mut FileData, core: &InodeCore, here: &Lookup, logical: u32) {
        if here.found.is_none() && data.holes.end_of(logical).is_none() {
            self.remember_gaps(data, core);
            self.remember_hole(data, here, logical);
        }
    }

    /// Where the page cache is followed: remembers what Linux learns of holes when it reads the mapping.
    pub(crate) fn remember_gaps(&self, data: &mut FileData, core: &InodeCore) {
        if self.volume.options().follow_page_cache && core.map == InodeMap::Extents {
            extents::gaps_in_root(core.root()).for_each(|gap| data.remember_gap(gap));
        }
    }
}
