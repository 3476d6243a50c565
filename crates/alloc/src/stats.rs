//! Statistics: what the kernel's `mb_stats` counts, and more (index entries, busy skips, lock
//! census).
//!
//! A request counts in a record of its own. When the request ends, the record is added to the shard
//! of the request's CPU slot, if the tunable `mb_stats` is on. Four totals are always kept:
//! `preallocated`, `discarded`, `lost` and `buddies_generated`.

pub(crate) mod format;

use core::fmt;

use blockyard_disk::num::u64_from_u32;
use blockyard_sync::{Atomic, AtomicInt, Backend, CachePadded, CpuSlot, LockClassFigures, Ordering};

/// Number of criteria of the ladder.
pub const CRITERIA: usize = 5;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident[$size:expr],)+) => {
        /// The totals so far. Most of them grow only while the tunable `mb_stats` is on (see
        /// [`Allocator::stats`](crate::Allocator::stats)).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct MbStats {
            $($(#[$doc])* pub $name: [u64; $size],)+
        }

        /// The counts of one request.
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct RequestStats {
            $(pub(crate) $name: [u32; $size],)+
        }

        #[derive(Debug)]
        struct Shard<B: Backend> {
            $($name: [B::AtomicU64; $size],)+
        }

        impl<B: Backend> Shard<B> {
            fn new() -> Self {
                B::on_line("statistics", || Self { $($name: core::array::from_fn(|_| B::AtomicU64::new(0)),)+ })
            }

            // Relaxed is enough: these are only statistics.
            fn add(&self, request: &RequestStats) {
                $(for (total, &n) in self.$name.iter().zip(&request.$name) {
                    if n > 0 {
                        total.fetch_add(u64_from_u32(n), Ordering::Relaxed);
                    }
                })+
            }

            fn sum_into(&self, totals: &mut MbStats) {
                $(for (total, n) in totals.$name.iter_mut().zip(&self.$name) {
                    *total += n.load(Ordering::Relaxed);
                })+
            }
        }
    };
}

counters! {
    /// Requests that were served (by a search or by a preallocation) or that found nothing.
    /// Requests refused at admission, and those ended by a group that could not be read, are not
    /// counted.
    requests[1],
    /// Requests that got at least as much as they asked for.
    success[1],
    /// Groups scanned.
    groups_scanned[1],
    /// Searches that found space, by criterion. Three kinds are left out: hits of the exact goal,
    /// runs that a cursor search found by the floor (`accept=floor`), and the best candidate taken
    /// after all criteria (`visit=scan`).
    hits[CRITERIA],
    /// Pre-checks of groups, by criterion. Walks over an index count each entry in addition.
    groups_considered[CRITERIA],
    /// Candidates looked at under each criterion.
    extents_scanned[CRITERIA],
    /// Complete walks without a result, by criterion. As in the kernel, the count of the first
    /// criterion also includes best candidates taken after all criteria (`visit=scan`).
    useless_loops[CRITERIA],
    /// How often a request picked a group from an index again, after its first pick under the same
    /// criterion had succeeded (`visit=choose`).
    bad_suggestions[CRITERIA],
    /// All candidates, those of exact goals included.
    extents_scanned_total[1],
    /// Results that start exactly at the final goal.
    goal_hits[1],
    /// Streams (with `stream_learns=all-data`, all data requests) that found space in the group of
    /// their goal. Exact goals taken before any group was scanned are left out.
    stream_goal_hits[1],
    /// Results whose length equals the normalised length.
    len_goal_hits[1],
    /// Searches that the power-of-two criterion ended.
    power2_hits[1],
    /// Requests that looked at more than the allowed number of candidates.
    breaks[1],
    /// Times that another thread took the best candidate before it could be used.
    lost[1],
    /// Buddies built.
    buddies_generated[1],
    /// Clusters put into preallocations.
    preallocated[1],
    /// Clusters given back by dropped preallocations.
    discarded[1],
    /// Entries of group indexes looked at (not counted by the kernel).
    index_entries[1],
    /// Groups passed over because their lock was held (not counted by the kernel).
    busy_skips[1],
}

/// All counters, one shard per CPU slot.
pub(crate) struct Stats<B: Backend> {
    shards: Box<[CachePadded<Shard<B>>]>,
}

impl<B: Backend> Stats<B> {
    pub(crate) fn new(cpus: u32) -> Self {
        Self { shards: (0..cpus.max(1)).map(|_| CachePadded::new(Shard::new())).collect() }
    }

    fn shard(&self, cpu: CpuSlot) -> &Shard<B> {
        &self.shards[cpu.index(self.shards.len())]
    }

    pub(crate) fn add(&self, cpu: CpuSlot, request: &RequestStats) {
        debug_assert_eq!(request.requests[0], 1, "a request counts once");
        let scanned: u32 = request.extents_scanned.iter().sum();
        debug_assert!(
            scanned <= request.extents_scanned_total[0],
            "{scanned} candidates of the criteria, {} in all",
            request.extents_scanned_total[0]
        );
        debug_assert!(
            request.hits.iter().sum::<u32>() <= 1,
            "a request ended at two criteria: {:?}",
            request.hits
        );
        self.shard(cpu).add(request);
    }

    // Relaxed is enough, here and in the two functions below: these are only statistics.
    pub(crate) fn add_preallocated(&self, cpu: CpuSlot, clusters: u32) {
        self.shard(cpu).preallocated[0].fetch_add(u64_from_u32(clusters), Ordering::Relaxed);
    }

    pub(crate) fn add_discarded(&self, cpu: CpuSlot, clusters: u32) {
        self.shard(cpu).discarded[0].fetch_add(u64_from_u32(clusters), Ordering::Relaxed);
    }

    pub(crate) fn add_lost(&self, cpu: CpuSlot) {
        self.shard(cpu).lost[0].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn totals(&self) -> MbStats {
        let mut totals = MbStats::default();
        for shard in &self.shards {
            shard.sum_into(&mut totals);
        }
        totals
    }
}

/// One line of the kernel's `mb_groups`, as data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLine {
    /// Group number.
    pub group: u32,
    /// Free clusters in core: preallocated and pending ones count as used.
    pub free: u32,
    /// Free runs.
    pub fragments: u32,
    /// A position below which no cluster is free.
    pub first_free: u32,
    /// Free chunks of each order.
    pub chunks: Vec<u32>,
    /// Whether the bitmap contradicts the descriptor.
    pub corrupt: bool,
}

/// The kernel's `mb_structs_summary`, as data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StructsSummary {
    /// Whether optimised scanning is on.
    pub optimize_scan: bool,
    /// Groups in each set of the largest-order index.
    pub max_free_order: Vec<u32>,
    /// Groups in each set of the average-fragment index.
    pub avg_fragment_size: Vec<u32>,
}

/// How often the locks of allocation and freeing were taken and waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockCensus {
    /// All group locks together.
    pub groups: LockClassFigures,
    /// Locks shared by the whole file system, by name: those that
    /// [`Allocator::lock_census`](crate::Allocator::lock_census) lists.
    pub shared: Vec<(&'static str, LockClassFigures)>,
}

impl LockCensus {
    /// Acquisitions of all locks in `shared`.
    #[must_use]
    pub fn shared_acquisitions(&self) -> u64 {
        self.shared.iter().map(|(_, figures)| figures.acquisitions).sum()
    }
}

impl fmt::Display for LockCensus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, name: &str, figures: &LockClassFigures| {
            writeln!(f, "{name}: {} acquisitions, {} waits", figures.acquisitions, figures.waits)
        };
        line(f, "groups", &self.groups)?;
        self.shared.iter().try_for_each(|(name, figures)| line(f, name, figures))
    }
}
