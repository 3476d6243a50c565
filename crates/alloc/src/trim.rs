//! Trimming: holds free clusters for a moment while the device is told that it may discard their
//! content.
//!
//! Before a whole group is trimmed, it is noted as trimmed. When a cluster is freed in the group
//! later, even during the trim, the note is cleared. A trim passes over a group with this note.
//!
//! If clusters were held while a search found nothing, the request waits until none are held and
//! searches again. So trimming causes no false "no space". The exception is a request that takes
//! only its goal: it does not search again.

use core::ops::Range;

use blockyard_disk::num::u64_from_u32;
use blockyard_disk::{BlockCount, BlockNr, ClusterCount, ClusterOffset, GroupNr};
use blockyard_sync::{Backend, CpuSlot, MutexGuard};

use crate::allocator::Allocator;
use crate::error::{AllocError, Result};

/// A run of free clusters that nobody can allocate until this value is dropped. Holding it does not
/// change the file system's free count.
struct HeldRun<'a, B: Backend> {
    allocator: &'a Allocator<B>,
    _turn: MutexGuard<'a, (), B>,
    group: GroupNr,
    start: u32,
    count: u32,
    cpu: CpuSlot,
}

impl<B: Backend> HeldRun<'_, B> {
    fn first_block(&self) -> BlockNr {
        self.allocator.table.geometry.block_at(self.group, ClusterOffset::new(self.start))
    }

    /// How many blocks of the run exist: the file system may end inside the last cluster.
    fn blocks(&self) -> BlockCount {
        let geometry = &self.allocator.table.geometry;
        let blocks = geometry.blocks_in(ClusterCount::new(u64_from_u32(self.count))).raw();
        BlockCount::new(blocks.min(geometry.blocks_count().raw() - self.first_block().raw()))
    }
}

impl<B: Backend> Drop for HeldRun<'_, B> {
    fn drop(&mut self) {
        let mut guard = self.allocator.table.lock(self.group, self.cpu);
        let freed = guard.give_back(self.start, self.count);
        assert!(freed.is_ok(), "held clusters of group {} were free: {freed:?}", self.group);
        guard.group.unpin();
        self.allocator.trims.note();
        drop(guard);
        self.allocator.note_change(self.cpu);
    }
}

impl<B: Backend> Allocator<B> {
    /// Calls `discard` for each run of at least `at_least` free clusters in `within` (offsets in
    /// the group). Of a run that reaches beyond `within`, only the part inside counts. During the
    /// call nobody can allocate the run, and the group's lock is not held. Returns the number of
    /// blocks in the discarded runs.
    ///
    /// Does nothing in a corrupt group, or in one that was trimmed as a whole and in which nothing
    /// was freed after that.
    ///
    /// # Errors
    /// [`AllocError::Load`], and errors of `discard`. The runs before the error were trimmed.
    pub fn trim_group<E: From<AllocError>>(
        &self,
        group: GroupNr,
        within: Range<u32>,
        at_least: u32,
        cpu: CpuSlot,
        mut discard: impl FnMut(BlockNr, BlockCount) -> core::result::Result<(), E>,
    ) -> core::result::Result<BlockCount, E> {
        let clusters = self.table.geometry.clusters_in_group(group);
        let state = self.table.group(group);
        let mut trimmed = 0;
        if state.is_trimmed() {
            return Ok(BlockCount::new(trimmed));
        }
        let is_whole = within.start == 0 && within.end >= clusters && at_least <= 1;
        if is_whole {
            state.note_trimmed();
        }
        let mut at = within.start;
        loop {
            let held = self.hold_free_run(group, at..within.end.min(clusters), at_least, cpu);
            let run = match held {
                Ok(Some(run)) => run,
                Ok(None) => return Ok(BlockCount::new(trimmed)),
                Err(error) => {
                    state.note_untrimmed();
                    return Err(error.into());
                }
            };
            if let Err(error) = discard(run.first_block(), run.blocks()) {
                state.note_untrimmed();
                return Err(error);
            }
            trimmed += run.blocks().raw();
            at = run.start + run.count;
        }
    }

    fn hold_free_run(
        &self,
        group: GroupNr,
        within: Range<u32>,
        at_least: u32,
        cpu: CpuSlot,
    ) -> Result<Option<HeldRun<'_, B>>> {
        let turn = self.trims.lock();
        let mut guard = self.table.lock_loaded(group, cpu, &*self.source)?;
        let Some(buddy) = guard.buddy().filter(|_| !guard.summary().corrupt()) else { return Ok(None) };
        let mut at = within.start;
        let (start, count) = loop {
            let Some(start) = buddy.next_free(at).filter(|&start| start < within.end) else {
                return Ok(None);
            };
            let end = buddy.next_used(start).min(within.end);
            if end - start >= at_least {
                break (start, end - start);
            }
            at = end;
        };
        self.trims.note();
        guard.mark_used(start, count);
        let pinned = guard.group.pin();
        assert!(pinned, "group {group} is loaded under this guard");
        Ok(Some(HeldRun { allocator: self, _turn: turn, group, start, count, cpu }))
    }
}
