//! The checker's map of claimed clusters: which are claimed, and which more than once. It has pages
//! of bits, one per group. All threads set bits at the same time. (It is not the block map of a
//! file, which ext2 and ext3 use.)
//!
//! A claim sets the cluster's bit in `found`. If that bit was set already, the claim also sets the
//! bit in `twice`. Each step is an atomic `fetch_or`, so the order of claims does not matter. A
//! second walk finds the owners of the clusters in `twice` (`shared.rs`).
//!
//! `mark` never sets bits of `twice`. So static metadata is marked before the walk over inodes: the
//! claim of a marked cluster then sets its bit in `twice`.
//!
//! A group without claims has no pages. It gets a page of `found` with its first claim, and a page
//! of `twice` when a cluster is claimed again. All operations are relaxed: the maps are read only
//! after the threads were joined, and joining orders the reads after the claims.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use blockyard_disk::num::{u64_from_u32, usize_from_u32, usize_from_u64};
use blockyard_disk::{BlockNr, Geometry, GroupNr};

type Page = Box<[AtomicU64]>;

/// One bit per cluster, in one page per group.
#[derive(Debug)]
struct Bits {
    pages: Vec<OnceLock<Page>>,
    words: usize,
}

impl Bits {
    fn new(groups: u32, clusters_per_group: u32) -> Self {
        let words = usize_from_u32(clusters_per_group.div_ceil(64));
        Self { pages: (0..groups).map(|_| OnceLock::new()).collect(), words }
    }

    fn page(&self, group: usize) -> &Page {
        self.pages[group].get_or_init(|| (0..self.words).map(|_| AtomicU64::new(0)).collect())
    }
}

/// The claims of one check, or of one round of a repair.
#[derive(Debug)]
pub(crate) struct BlockMap {
    found: Bits,
    twice: Bits,
    any_twice: AtomicBool,
    clusters_per_group: u64,
    /// Clusters of the file system.
    clusters: u64,
    ratio_bits: u32,
    first: u64,
}

impl BlockMap {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        let (groups, cpg) = (geometry.groups(), geometry.clusters_per_group());
        assert!(groups > 0 && cpg > 0, "a map of {groups} groups of {cpg} clusters");
        Self {
            found: Bits::new(groups, cpg),
            twice: Bits::new(groups, cpg),
            any_twice: AtomicBool::new(false),
            clusters_per_group: u64_from_u32(cpg),
            clusters: geometry.clusters_count().raw(),
            ratio_bits: geometry.cluster_ratio_bits(),
            first: geometry.first_data_block().raw(),
        }
    }

    /// The cluster of a block of the file system.
    pub(crate) fn cluster(&self, block: BlockNr) -> u64 {
        debug_assert!(block.raw() >= self.first, "block {block} lies before the first one");
        (block.raw() - self.first) >> self.ratio_bits
    }

    /// Calls `visit(group, word, mask)` for every word that a range of clusters touches.
    fn words(&self, cluster: u64, count: u64, mut visit: impl FnMut(usize, usize, u64)) {
        let end = cluster + count;
        assert!(count > 0 && end <= self.clusters, "clusters {cluster}..{end} of {}", self.clusters);
        let mut at = cluster;
        while at < end {
            let (group, inside) = (at / self.clusters_per_group, at % self.clusters_per_group);
            let bit = inside % 64;
            let span = (64 - bit).min(end - at).min(self.clusters_per_group - inside);
            debug_assert!(span > 0 && bit + span <= 64, "{span} bits from bit {bit} of a word");
            let mask = (u64::MAX >> (64 - span)) << bit;
            visit(usize_from_u64(group), usize_from_u64(inside / 64), mask);
            at += span;
        }
    }

    /// Claims clusters; returns whether some were claimed before. The range must lie in the file
    /// system.
    pub(crate) fn claim(&self, cluster: u64, count: u64) -> bool {
        let mut met = false;
        self.words(cluster, count, |group, word, mask| {
            let old = self.found.page(group)[word].fetch_or(mask, Ordering::Relaxed);
            if old & mask != 0 {
                met = true;
                self.twice.page(group)[word].fetch_or(old & mask, Ordering::Relaxed);
            }
        });
        if met {
            self.any_twice.store(true, Ordering::Relaxed);
        }
        met
    }

    /// Claims clusters without a look at earlier claims: metadata objects may share a cluster.
    pub(crate) fn mark(&self, cluster: u64, count: u64) {
        self.words(cluster, count, |group, word, mask| {
            self.found.page(group)[word].fetch_or(mask, Ordering::Relaxed);
        });
    }

    /// Whether any cluster was claimed twice.
    pub(crate) fn has_shared(&self) -> bool {
        self.any_twice.load(Ordering::Relaxed)
    }

    /// How many of these clusters were claimed twice.
    pub(crate) fn shared_in(&self, cluster: u64, count: u64) -> u64 {
        let mut shared = 0;
        self.words(cluster, count, |group, word, mask| {
            if let Some(page) = self.twice.pages[group].get() {
                shared += u64_from_u32((page[word].load(Ordering::Relaxed) & mask).count_ones());
            }
        });
        shared
    }

    /// The first cluster from `from` on that is not claimed.
    pub(crate) fn free_from(&self, from: u64) -> Option<u64> {
        let mut at = from;
        while at < self.clusters {
            let (group, inside) = (at / self.clusters_per_group, at % self.clusters_per_group);
            let Some(page) = self.found.pages[usize_from_u64(group)].get() else { return Some(at) };
            let word = page[usize_from_u64(inside / 64)].load(Ordering::Relaxed) >> (inside % 64);
            let free = u64_from_u32(word.trailing_ones());
            let left = (64 - inside % 64).min(self.clusters_per_group - inside);
            if free < left {
                return Some(at + free).filter(|&found| found < self.clusters);
            }
            at += left;
        }
        None
    }

    /// Runs of blocks that are not claimed, from the end of the file system backwards, `wanted`
    /// blocks at most. The first run may reach beyond the last block, if the last cluster does.
    pub(crate) fn free_at_end(&self, wanted: u64) -> Vec<Range<u64>> {
        let (mut runs, mut found) = (Vec::new(), 0);
        let groups = self.clusters.div_ceil(self.clusters_per_group);
        for group in (0..groups).rev() {
            let first = group * self.clusters_per_group;
            let end = (first + self.clusters_per_group).min(self.clusters);
            let mut in_group = Vec::new();
            let mut at = first;
            while let Some(start) = self.free_from(at).filter(|start| *start < end) {
                at = (start + 1..end).find(|cluster| self.is_claimed(*cluster)).unwrap_or(end);
                in_group.push(self.first_block(start)..self.first_block(at));
            }
            for run in in_group.into_iter().rev() {
                if found >= wanted {
                    return runs;
                }
                let run = run.start.max(run.end.saturating_sub(wanted - found))..run.end;
                found += run.end - run.start;
                assert!(run.start < run.end && found <= wanted, "{run:?} of {wanted} free blocks");
                runs.push(run);
            }
        }
        runs
    }

    fn first_block(&self, cluster: u64) -> u64 {
        self.first + (cluster << self.ratio_bits)
    }

    /// Whether a cluster is claimed.
    pub(crate) fn is_claimed(&self, cluster: u64) -> bool {
        let (group, inside) = (cluster / self.clusters_per_group, cluster % self.clusters_per_group);
        debug_assert!(usize_from_u64(group) < self.found.pages.len(), "cluster {cluster} is outside");
        let page = self.found.pages[usize_from_u64(group)].get();
        page.is_some_and(|page| {
            page[usize_from_u64(inside / 64)].load(Ordering::Relaxed) >> (inside % 64) & 1 == 1
        })
    }

    /// The claims in a group as words of 64 clusters; `None` when there are none.
    pub(crate) fn group_words(&self, group: GroupNr) -> Option<impl Iterator<Item = u64>> {
        let page = self.found.pages[usize_from_u32(group.raw())].get()?;
        Some(page.iter().map(|word| word.load(Ordering::Relaxed)))
    }
}
