//! Claims what a search found: marks it used in core under the group's lock, pins the group, and
//! splits the find into the part that serves the request and the preallocation that keeps the rest.

use std::sync::Arc;

use blockyard_disk::num::u32_from_u64;
use blockyard_disk::num::u64_from_u32;
use blockyard_sync::Backend;

use crate::allocator::Allocator;
use crate::error::Result;
use crate::extent::Extent;
use crate::goals::stream::StreamPlace;
use crate::group::GroupGuard;
use crate::policy::slots::{ShortWindows, StreamLearns};
use crate::prealloc::{Owner, Prealloc};
use crate::request::RequestFlags;
use crate::search::context::Context;
use crate::search::outcome::Find;

impl<B: Backend> Allocator<B> {
    /// Claims `context.search.selection.best` in the group under `guard`, where it was just found
    /// free.
    pub(crate) fn take_found(&self, context: &mut Context<'_, B>, guard: &mut GroupGuard<'_, B>) {
        let mut found = context.search.selection.best;
        found.len = found.len.min(context.search.goal.len);
        found.logical = context.search.goal.logical;
        assert_eq!(found.group, guard.nr, "found in one group, claimed in another");
        assert!(found.len > 0, "nothing was found in group {}", guard.nr);
        guard.mark_used(found.start, found.len);
        let pinned = guard.group.pin();
        assert!(pinned, "group {} was scanned and is not loaded", guard.nr);
        self.remember_success(context, found);
        let mut find = Find { found, served: found, prealloc: None };
        if context.asked.extent.len < found.len {
            self.keep_rest(context, guard, &mut find);
        }
        context.outcome.find = Some(find);
    }

    /// Moves the stream goal to the extent found, if the policy does so for this kind of request.
    fn remember_success(&self, context: &mut Context<'_, B>, found: Extent) {
        let learns = match self.policy.stream_learns {
            StreamLearns::Streams => RequestFlags::STREAM,
            StreamLearns::AllData => RequestFlags::DATA,
        };
        if context.asked.kind.contains(learns) {
            // An exact goal taken before any group was scanned is not a hit of the stream goal.
            if found.group == context.search.goal.group && context.search.scanned > 0 {
                context.outcome.stats.stream_goal_hits[0] += 1;
            }
            let place = StreamPlace { group: found.group, start: found.start };
            self.streams.write(context.asked.request.inode, context.asked.inode, place, context.cpu());
        }
    }

    /// Makes the whole find a preallocation and serves the request from it.
    fn keep_rest(&self, context: &Context<'_, B>, guard: &mut GroupGuard<'_, B>, find: &mut Find<B>) {
        let found = find.found;
        let asked = context.asked.extent;
        let prealloc = if context.asked.kind.contains(RequestFlags::GROUP_ALLOC) {
            let prealloc = Prealloc::new(Owner::Locality, found.group, found.start, found.len);
            find.served.start = prealloc.serve_front(asked.len);
            find.served.len = asked.len;
            prealloc
        } else {
            let ratio_bits = self.table.geometry.cluster_ratio_bits();
            let logical = window_start(context, self.policy.short_windows, found.len, ratio_bits);
            let prealloc = Prealloc::new(Owner::Inode { logical }, found.group, found.start, found.len);
            let (start, count) = part_of(&prealloc, asked.logical, asked.len, ratio_bits);
            find.served.start = start;
            find.served.len = prealloc.serve_at(start, count);
            prealloc
        };
        find.served.logical = asked.logical;
        let (served, end) = (find.served, find.served.start + find.served.len);
        assert!(
            served.len > 0 && found.start <= served.start && end <= found.start + found.len,
            "{served:?} is not part of {found:?}"
        );
        let prealloc = Arc::new(prealloc);
        guard.add_prealloc(Arc::clone(&prealloc));
        self.stats.add_preallocated(context.cpu(), found.len);
        find.prealloc = Some(prealloc);
    }

    /// Takes as much of the best candidate as is still free from its first cluster on. Takes
    /// nothing if that cluster is used or the group is corrupt.
    ///
    /// # Errors
    /// When the candidate's group cannot be loaded again.
    pub(crate) fn take_best(&self, context: &mut Context<'_, B>) -> Result<()> {
        let best = context.search.selection.best;
        let mut guard = self.table.lock_loaded(best.group, context.cpu(), &*self.source)?;
        let run = guard.buddy().map_or(0, |buddy| buddy.run(best.start, best.len));
        if run > 0 && !guard.summary().corrupt() {
            context.search.selection.best.len = run;
            self.take_found(context, &mut guard);
        }
        Ok(())
    }
}

/// First logical block of the preallocation made from a find of `len` clusters.
fn window_start<B: Backend>(context: &Context<'_, B>, rule: ShortWindows, len: u32, ratio_bits: u32) -> u32 {
    let blocks = |clusters: u32| u64_from_u32(clusters) << ratio_bits;
    if len >= context.search.want {
        return context.search.goal.logical;
    }
    let short = ShortFind {
        asked: u64_from_u32(context.asked.extent.logical),
        asked_blocks: blocks(context.asked.extent.len),
        window: u64_from_u32(context.search.goal.logical),
        window_blocks: blocks(context.search.want),
        blocks: blocks(len),
    };
    u32_from_u64(short.start(rule))
}

/// A find that is shorter than the window for which it was searched. `asked` and `window` are first
/// logical blocks; the other fields are lengths in blocks.
struct ShortFind {
    asked: u64,
    asked_blocks: u64,
    window: u64,
    window_blocks: u64,
    blocks: u64,
}

impl ShortFind {
    /// First logical block of the preallocation made from the find.
    fn start(&self, rule: ShortWindows) -> u64 {
        let Self { asked, asked_blocks, window, window_blocks, blocks } = *self;
        if rule == ShortWindows::Least {
            let spare = blocks.saturating_sub(asked_blocks);
            return asked - asked.saturating_sub(window).min(spare).min(asked % blocks);
        }
        let last_start = (window + window_blocks).saturating_sub(blocks);
        if last_start <= asked {
            last_start
        } else if asked + asked_blocks <= window + blocks {
            window
        } else {
            asked
        }
    }
}

/// Which clusters of an inode preallocation serve a request for `len` clusters from block `logical`
/// on. Returns the first one, as an offset in the group, and the count. The count is at most `len`;
/// it may be lower if the preallocation ends first.
///
/// The preallocation may start inside a logical cluster. So the offset is rounded down to a whole
/// cluster, and the count is rounded up.
pub(crate) fn part_of<B: Backend>(
    prealloc: &Prealloc<B>,
    logical: u32,
    len: u32,
    ratio_bits: u32,
) -> (u32, u32) {
    assert!(logical >= prealloc.logical(), "block {logical} lies before its preallocation");
    let offset = u64_from_u32(logical - prealloc.logical());
    let all = u64_from_u32(prealloc.len) << ratio_bits;
    let end = all.min(offset + (u64_from_u32(len) << ratio_bits));
    debug_assert!(offset < end, "block {logical} lies after its preallocation");
    let count = (end - offset).div_ceil(1 << ratio_bits);
    (prealloc.start + u32_from_u64(offset >> ratio_bits), u32_from_u64(count))
}

#[cfg(test)]
mod tests {
    use super::{ShortFind, ShortWindows};

    /// By either rule the preallocation contains the request. The rules give the same start for
    /// requests near the start of the window, and different starts for requests in its middle or at
    /// its end.
    #[test]
    fn a_short_find_covers_the_request_by_either_rule() {
        let starts = |asked| {
            let find = ShortFind { asked, asked_blocks: 4, window: 1024, window_blocks: 512, blocks: 100 };
            [ShortWindows::Nearest, ShortWindows::Least].map(|rule| {
                let start = find.start(rule);
                assert!((asked + 4).saturating_sub(100) <= start && start <= asked, "{asked}: {start}");
                start
            })
        };
        assert_eq!(starts(1024), [1024, 1024]);
        // `Least` steps back by the least of three numbers: 30 blocks to the start of the window,
        // 54 blocks to a multiple of 100, and 96 blocks to spare.
        assert_eq!(starts(1054), [1024, 1024]);
        // `Least` steps back 80 blocks, to a multiple of 100.
        assert_eq!(starts(1280), [1280, 1200]);
        // The window ends at block 1536.
        assert_eq!(starts(1500), [1436, 1500]);
        // The next lower multiple of 100 is 98 blocks back. `Least` steps back only the 96 blocks
        // to spare.
        assert_eq!(starts(1298), [1298, 1202]);
    }
}
