//! Prefetch: a search announces the groups whose bitmaps it will need soon.
//!
//! A batch of groups begins at the prefetch cursor. When a search visits the group at the cursor,
//! it calls [`GroupSource::prefetch`](crate::GroupSource::prefetch) for those groups of the batch
//! that were not read yet. The last batch is loaded at the end of the search, from its last group
//! down to its first. From then on the indexes contain these groups.

use blockyard_disk::GroupNr;
use blockyard_sync::Backend;

use super::context::Context;
use crate::allocator::Allocator;
use crate::config::InitMode;
use crate::criterion::Criterion;
use crate::policy::slots::Unloaded;
use crate::tunables::Tunable;

impl<B: Backend> Allocator<B> {
    /// Announces the next batch if the visited group is the one at the prefetch cursor.
    #[inline]
    pub(crate) fn prefetch_at(&self, context: &mut Context<'_, B>, group: GroupNr, criterion: Criterion) {
        let is_none_due = self.init == InitMode::AtOpen || self.policy.unloaded == Unloaded::Load;
        if group.raw() != context.search.prefetch.cursor || is_none_due {
            return;
        }
        let started = context.search.prefetch.started;
        if criterion.is_cheap() && started >= self.tunables.value(Tunable::PrefetchLimit) {
            return;
        }
        let flex = self.table.geometry.flex_size();
        let mut batch = self.tunables.value(Tunable::Prefetch);
        if flex > 1 {
            batch = batch.min(flex - (group.raw() & (flex - 1)));
        }
        context.search.prefetch.batch = batch;
        context.search.prefetch.cursor =
            self.announce(group.raw(), batch, &mut context.search.prefetch.started);
    }

    /// Announces to the source the unread groups of a batch that have free clusters. Returns the
    /// group after the batch.
    fn announce(&self, first: u32, batch: u32, started: &mut u32) -> u32 {
        let groups = self.table.geometry.groups();
        let mut at = first;
        for _ in 0..batch {
            let group = self.table.group(GroupNr::new(at));
            let summary = group.summary();
            let unread = !summary.initialised() && !summary.prefetched() && summary.free > 0;
            // A bitmap that was never written needs no reading.
            if unread && group.note_prefetch() && !summary.block_uninit() {
                *started += 1;
                self.source.prefetch(GroupNr::new(at), 1);
            }
            at = if at + 1 >= groups { 0 } else { at + 1 };
        }
        at
    }

    /// Loads the last batch, descending.
    pub(crate) fn finish_prefetch(&self, context: &Context<'_, B>) {
        let groups = self.table.geometry.groups();
        let mut at = context.search.prefetch.cursor;
        for _ in 0..context.search.prefetch.batch {
            at = if at == 0 { groups } else { at } - 1;
            let nr = GroupNr::new(at);
            let summary = self.table.group(nr).summary();
            if !summary.initialised() && summary.free > 0 {
                // This load is optional: a request that needs the group will get the error.
                let _ = self.table.load(nr, context.cpu(), &*self.source);
            }
        }
    }
}
