//! Prefetch: a search tells the source which bitmaps it will probably need soon.
//!
//! A batch of groups begins at the prefetch cursor. When a search visits the group at the cursor,
//! it announces the batch: it calls
//! [`GroupSource::prefetch`](crate::GroupSource::prefetch) for the groups that have free clusters,
//! were neither loaded nor announced before, and have a bitmap on disk. When the search ends, it
//! loads the groups of its last batch that have free clusters, so that the indexes contain them.

use blockyard_disk::GroupNr;
use blockyard_sync::Backend;

use super::context::Context;
use crate::allocator::Allocator;
use crate::config::InitMode;
use crate::criterion::Criterion;
use crate::policy::slots::Unloaded;
use crate::tunables::Tunable;

impl<B: Backend> Allocator<B> {
    /// Announces a batch if the visited group is the one at the prefetch cursor. Under a cheap
    /// criterion, announces nothing once the request has started `mb_prefetch_limit` reads.
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

    /// Loads those groups of the last batch that have free clusters and were never loaded, in
    /// descending order.
    pub(crate) fn finish_prefetch(&self, context: &Context<'_, B>) {
        let groups = self.table.geometry.groups();
        let mut at = context.search.prefetch.cursor;
        for _ in 0..context.search.prefetch.batch {
            at = if at == 0 { groups } else { at } - 1;
            let nr = GroupNr::new(at);
            let summary = self.table.group(nr).summary();
            if !summary.initialised() && summary.free > 0 {
                // The error is dropped, because no request needs the group yet. One that does will
                // load it again, and get the error.
                let _ = self.table.load(nr, context.cpu(), &*self.source);
            }
        }
    }
}
