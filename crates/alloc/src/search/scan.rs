//! Scans one group for free extents: pure functions from a buddy to candidates.

use blockyard_disk::GroupNr;
use blockyard_disk::num::{u32_from_u64, u64_from_u32, usize_from_u32};

use super::candidates::{Selection, Status};
use crate::buddy::Buddy;
use crate::extent::Extent;

fn candidate(group: GroupNr, start: u32, len: u32) -> Extent {
    Extent { group, start, len, logical: 0 }
}

/// Takes `want` clusters of the lowest free chunk of the smallest order, from `order2` on, that has
/// a free chunk.
pub(crate) fn power_of_two(buddy: &Buddy, group: GroupNr, order2: u32, want: u32, selection: &mut Selection) {
    debug_assert!(order2 > 0 && want <= 1 << order2, "{want} clusters of a chunk of order {order2}");
    for order in order2..u32_from_len(buddy.counters()) {
        if buddy.counters()[usize_from_u32(order)] == 0 {
            continue;
        }
        if let Some(start) = buddy.first_chunk(order) {
            selection.take(candidate(group, start, want));
            return;
        }
    }
}

fn u32_from_len(counters: &[u32]) -> u32 {
    blockyard_disk::num::u32_from_usize(counters.len())
}

/// The stripe of the device, and where a group begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stripe {
    /// First block of the group, counted from block 0.
    pub(crate) group_first_block: u64,
    /// Stripe in blocks.
    pub(crate) blocks: u32,
    /// Stripe in clusters.
    pub(crate) clusters: u32,
    /// Blocks per cluster.
    pub(crate) ratio: u32,
}

/// Takes the run ([`Buddy::run`]) at the first aligned position where a whole stripe is free, but
/// at most `want` clusters.
pub(crate) fn stripe_aligned(
    buddy: &Buddy,
    group: GroupNr,
    stripe: Stripe,
    want: u32,
    selection: &mut Selection,
) {
    let first = stripe.group_first_block.next_multiple_of(u64_from_u32(stripe.blocks));
    let mut at = u32_from_u64((first - stripe.group_first_block) / u64_from_u32(stripe.ratio));
    while at < buddy.clusters() {
        let run = buddy.run(at, stripe.clusters);
        if run >= stripe.clusters {
            selection.take(candidate(group, at, run.min(want)));
            return;
        }
        at += stripe.clusters;
    }
}

/// Offers the free runs of the group, lowest first. A long run is offered in pieces: a piece ends
/// with the first buddy chunk that brings it to at least `want` clusters.
///
/// With `whole_runs`, runs shorter than `want` are passed over. Only the goal-fast and
/// best-available criteria ask for that. They accept a group only if its average run has at least
/// `want` clusters, so the group has a run that is long enough.
pub(crate) fn general(buddy: &Buddy, group: GroupNr, want: u32, whole_runs: bool, selection: &mut Selection) {
    let mut at = buddy.first_free();
    let mut left = buddy.free();
    while left > 0 && selection.status == Status::Continue {
        let Some(start) = buddy.next_free(at) else { break };
        if whole_runs && !buddy.is_run(start, want) {
            let end = buddy.next_used(start);
            left = left.saturating_sub(end - start);
            at = end;
            continue;
        }
        // A chunk starts at `start`, as `run_from` demands: the cluster before `start` is used, or
        // is the end of the piece offered last, and a piece ends with a whole chunk.
        let run = buddy.run_from(start, want);
        debug_assert!(run <= left, "a run of {run} clusters where {left} are left");
        selection.offer(candidate(group, start, run), want);
        at = start + run;
        left = left.saturating_sub(run);
    }
    selection.check_limits(want, true);
}

/// Takes the first run of at least `floor` clusters, but at most its first `want` clusters.
pub(crate) fn first_above(buddy: &Buddy, group: GroupNr, want: u32, floor: u32, selection: &mut Selection) {
    let mut at = buddy.first_free();
    while let Some(start) = buddy.next_free(at) {
        let end = buddy.next_used(start);
        if end - start >= floor {
            selection.take(candidate(group, start, (end - start).min(want)));
            return;
        }
        at = end;
    }
}

/// Takes the first `want` clusters of the shortest run that has that many. If no run is long enough
/// and `any` is set, takes the longest run.
pub(crate) fn best_fit(buddy: &Buddy, group: GroupNr, want: u32, any: bool, selection: &mut Selection) {
    let mut best: Option<(u32, u32)> = None;
    let mut at = 0;
    while let Some(start) = buddy.next_free(at) {
        let end = buddy.next_used(start);
        let len = end - start;
        selection.found += 1;
        let better =
            best.is_none_or(|(_, best)| if best < want { len > best } else { len >= want && len < best });
        if better {
            best = Some((start, len));
        }
        if len == want {
            break;
        }
        at = end;
    }
    if let Some((start, len)) = best.filter(|&(_, len)| any || len >= want) {
        selection.found -= 1;
        selection.take(candidate(group, start, len.min(want)));
    }
}
