//! Changes of long ranges. Making a range unwritten is cut into steps, each with a handle of its
//! own. Moving the tail of a file cannot be cut, so one handle gets the credits for all of it.

use super::limits::RUN_CREDITS;
use crate::cache::Buffer;
use crate::extents::{self, HeldNodes};
use crate::file::Files;
use crate::inode::{Inode, InodeCore};
use crate::mapping::ExtentStore;
use crate::{Error, OpContext, Result};
use std::ops::Range;
use std::sync::Arc;

/// The most extents and holes in the part of a range that one handle makes unwritten.
const EXTENTS_MAX: usize = 64;

/// What moving the tail of a file needs. The nodes of the tail are held in memory, because a failed
/// read midway would leave the tail half moved.
pub(crate) struct Shift {
    /// Metadata blocks that may change.
    pub(crate) credits: usize,
    _nodes: HeldNodes<Arc<Buffer>>,
}

impl Files {
    /// Makes the mapped blocks of a range unwritten, in as many handles as needed. After a crash
    /// midway, perhaps only the beginning of the range reads as zeroes.
    pub(crate) fn mark_unwritten(
        &self,
        ctx: &OpContext,
        inode: &Arc<Inode>,
        range: Range<u32>,
    ) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let handle = self.volume.begin(ctx, RUN_CREDITS)?;
            handle.set_pool(self.volume.rules.zero);
            let mut core = inode.core_mut();
            self.volume.inodes.join_inode(&handle, inode, &mut core)?;
            let mut end = at;
            for extents in 0..EXTENTS_MAX {
                // `RUN_CREDITS` is for the ends of the range, where extents may be split. Each
                // further extent may be the only one of its leaf, which then takes one credit.
                if end >= range.end || (extents > 0 && !handle.extend(RUN_CREDITS + extents)) {
                    break;
                }
                end = self.extent_end(inode, &core, end)?.min(range.end);
            }
            debug_assert!(at < end && end <= range.end, "{at} to {end} of {range:?}");
            self.mapping.edit_tree(ctx, &handle, inode, &mut core, |tree| tree.set_state(at..end, true))?;
            at = end;
        }
        Ok(())
    }

    /// Where the extent or hole at `at` ends.
    fn extent_end(&self, inode: &Inode, core: &InodeCore, at: u32) -> Result<u32> {
        let here = self.mapping.lookup_block(inode, core, at)?;
        Ok(match (here.found, here.right) {
            (Some(extent), _) => extent.end(),
            (None, Some(right)) => right.logical,
            (None, None) => u32::MAX,
        })
    }

    /// Prepares to move everything at and behind `from` in a file with extents. The move must
    /// happen in one transaction, and may change every tree node that maps blocks at or behind
    /// `from`. The caller holds the content lock, so the result stays valid.
    ///
    /// # Errors
    /// [`Error::NotSupported`] when the journal is too small for that many nodes.
    pub(crate) fn prepare_shift(&self, inode: &Inode, from: u32) -> Result<Shift> {
        let core = inode.core();
        let store = ExtentStore::reader(&self.mapping, inode, core.seed);
        let most = self.volume.journal.blocks_max();
        let nodes = extents::hold_from(core.root(), &store, from, most)?;
        let credits = RUN_CREDITS + nodes.count();
        if credits > most {
            return Err(Error::NotSupported("the file has more extents than the journal can move at once"));
        }
        Ok(Shift { credits, _nodes: nodes })
    }
}
