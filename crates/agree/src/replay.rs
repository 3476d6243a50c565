//! Replays a recording into `blockyard_alloc`, decision by decision.
//!
//! The allocator is opened on the recorded bitmaps with `linux-6.18` and the recorded tunables.
//! Every group is loaded, unless the recording began right after a mount. The recorded events are
//! applied in order. Each request takes effect with our own outcome, not the recorded one, so a
//! first difference can cause later ones. Requests ran as root, so the blocks reserved for root are
//! not held back. Counts that the tracepoint keeps in 16 bits are compared modulo 65,536.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Context;
use blockyard_alloc::memory::MemoryBitmaps;
use blockyard_alloc::{
    AllocConfig, AllocError, AllocEvent, Allocator, BlockRequest, EventExtent, EventKind, EventRings,
    FreeContext, InitMode, InodeAlloc, Mapping, Neighbour, Policy, RequestFlags, Tunable,
};
use blockyard_disk::geometry::GeometryFields;
use blockyard_disk::num::{low16, low32, usize_from_u32};
use blockyard_disk::{BlockCount, BlockNr, ClusterOffset, Geometry, GroupNr, InodeNr, LogicalBlock, TxnId};
use blockyard_lab::figures::states::{FRESH, Stated};
use blockyard_sync::CpuSlot;
use serde::Serialize;

use super::recording::{Delayed, End, Free, Image, Line, Recording, Request, Spot, Via};

/// How well a replay agreed with its recording.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Agreement {
    /// Name of the load.
    pub load: String,
    /// Name of the image kind.
    pub image: String,
    /// State of the image at the start: `fresh`, or the ageing of the image.
    pub state: String,
    /// Whether the kernel's scan mode was the optimised one (`mb_optimize_scan`).
    pub optimize_scan: bool,
    /// Seed of the ageing and of the load.
    pub seed: u64,
    /// Requests compared.
    pub requests: u64,
    /// Requests for which the kernel searched. The others were served from preallocations, or
    /// refused without a search.
    pub searches: u64,
    /// Requests with equal first block and length, or refused on both sides.
    pub placements: u64,
    /// Searches with equal criterion.
    pub criteria: u64,
    /// Searches with an equal number of candidates.
    pub candidates: u64,
    /// Searches with an equal number of groups scanned.
    pub groups: u64,
    /// Searches in which all of these are equal: the request after admission, the final goal, the
    /// extent found, and the final flags.
    pub decisions: u64,
    /// Whether `mb_groups` is equal at the end.
    pub mb_groups: bool,
    /// Whether `mb_structs_summary` is equal at the end.
    pub summary: bool,
    /// Whether the counts of `mb_stats`, except those of buddies, are equal at the end.
    pub stats: bool,
    /// [`End::overlaps`] of the recording.
    pub overlaps: u32,
    /// The first difference, explained.
    pub first: Option<String>,
}

impl Stated for Agreement {
    fn state(&self) -> &str {
        &self.state
    }

    fn as_fresh(&self) -> Self {
        Self { state: FRESH.to_owned(), ..self.clone() }
    }
}

impl Agreement {
    /// Per cent of requests placed equally.
    #[must_use]
    pub fn percent(&self) -> f64 {
        share(self.placements, self.requests)
    }
}

/// `part` in per cent of `whole`, rounded down to thousandths; 100 when `whole` is zero.
#[must_use]
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 100.0;
    }
    // Thousandths of a per cent, rounded down: 100 % is printed only when all are equal.
    f64::from(u32::try_from(part * 100_000 / whole).unwrap_or(u32::MAX)) / 1000.0
}

/// Replays a recording and compares every decision.
///
/// # Errors
/// When the recorded geometry is invalid, the image line names a group that does not exist, or the
/// allocator fails for a reason other than lack of space. A free or a reservation that fails is no
/// error but a difference.
pub fn replay(recording: &Recording) -> anyhow::Result<Agreement> {
    let mut replay = Replay::new(&recording.image)?;
    for line in &recording.events {
        replay.event(line)?;
    }
    replay.finish(recording)
}

struct Replay {
    allocator: Allocator,
    disk: Arc<MemoryBitmaps>,
    geometry: Geometry,
    rings: Arc<EventRings>,
    inodes: HashMap<u32, InodeAlloc>,
    mapping: Mapping,
    agreement: Agreement,
}

impl Replay {
    fn new(image: &Image) -> anyhow::Result<Self> {
        let geometry = geometry(image)?;
        let disk = bitmaps(image, geometry);
        let scan = if image.optimize_scan { "optimized" } else { "linear" };
        let config = AllocConfig {
            policy: Policy::parse(&format!("linux-6.18:scan={scan}"))?,
            cpus: image.possible_cpus,
            rotational: image.tunables.max_linear_groups > 0,
            stripe: image.stripe,
            root_reserved: 0,
            reserved: Some(image.reserved_clusters),
            extents: image.extents,
            init: if image.lazy { InitMode::Lazy } else { InitMode::AtOpen },
            memory_max: u64::MAX,
            ..AllocConfig::new(geometry)
        };
        let rings = Arc::new(EventRings::new(config.cpus, 16));
        let mut facts = disk.facts();
        for &group in &image.block_uninit {
            facts.get_mut(usize_from_u32(group)).context("a group that is not there")?.block_uninit = true;
        }
        let allocator = Allocator::open(&config, disk.clone(), &facts)?.with_events(Arc::clone(&rings));
        if !image.lazy {
            // Load full groups too, as the kernel does when mb_groups is read.
            allocator.groups()?;
        }
        let t = image.tunables;
        let mut first = None;
        for (tunable, value) in [
            (Tunable::Stats, 1),
            (Tunable::MaxToScan, t.max_to_scan),
            (Tunable::MinToScan, t.min_to_scan),
            (Tunable::Order2Req, t.order2_req),
            (Tunable::StreamReq, t.stream_req),
            (Tunable::GroupPrealloc, t.group_prealloc),
            (Tunable::MaxLinearGroups, t.max_linear_groups),
            (Tunable::BestAvailMaxTrimOrder, t.best_avail_max_trim_order),
        ] {
            let ours = allocator.tunable(tunable);
            if tunable != Tunable::Stats && ours != value {
                first = Some(format!("default of {}: kernel {value}, ours {ours}", tunable.name()));
            }
            allocator.set_tunable(tunable, u64::from(value))?;
        }
        let agreement = Agreement {
            first,
            load: image.load.clone(),
            image: image.image.clone(),
            state: image.state.clone(),
            optimize_scan: image.optimize_scan,
            seed: image.seed,
            ..Agreement::default()
        };
        let mapping = if image.extents { Mapping::Extents } else { Mapping::Indirect };
        Ok(Self { allocator, disk, geometry, rings, inodes: HashMap::new(), mapping, agreement })
    }

    fn event(&mut self, line: &Line) -> anyhow::Result<()> {
        match line {
            Line::Req(request) => self.request(request),
            Line::Drop(dropped) => {
                if let Some(inode) = self.inodes.get(&dropped.ino) {
                    self.allocator.discard_inode_preallocations(inode, CpuSlot::ZERO);
                }
                Ok(())
            }
            Line::Free(free) => {
                self.free(*free);
                Ok(())
            }
            Line::Inode(made) => {
                let group = made.ino.saturating_sub(1) / self.geometry.inodes_per_group();
                self.allocator.note_bitmap_written(GroupNr::new(group));
                Ok(())
            }
            Line::Commit(commit) => {
                self.allocator.commit(TxnId::new(commit.tid), CpuSlot::ZERO);
                Ok(())
            }
            Line::Delayed(delayed) => {
                self.delayed(*delayed);
                Ok(())
            }
            Line::Image(_) | Line::End(_) => Ok(()),
        }
    }

    fn differ(&mut self, text: impl FnOnce() -> String) {
        self.agreement.first.get_or_insert_with(text);
    }

    fn delayed(&mut self, delayed: Delayed) {
        let clusters = delayed.delta.unsigned_abs();
        if delayed.delta < 0 {
            self.allocator.release_delayed(clusters, CpuSlot::ZERO);
        } else if let Err(error) =
            self.allocator.reserve_delayed(clusters, RequestFlags::USE_ROOT, CpuSlot::ZERO)
        {
            self.differ(|| format!("the kernel reserved {clusters} delayed clusters, we refuse: {error}"));
        }
    }

    fn free(&mut self, free: Free) {
        let group = GroupNr::new(free.group);
        let first = self.geometry.block_at(group, ClusterOffset::new(free.start));
        let end = self.geometry.group_first_block(group).raw() + self.geometry.blocks_in_group(group);
        let blocks = (u64::from(free.len) << self.geometry.cluster_ratio_bits()).min(end - first.raw());
        let context = FreeContext { txn: free.tid.map(TxnId::new), ..FreeContext::default() };
        let freed = self.allocator.free_with(first, blocks, context, |extent| {
            self.disk.write(extent.group, extent.start, extent.count, false);
            Ok::<(), AllocError>(())
        });
        if let Err(error) = freed {
            self.differ(|| format!("free {free:?}: {error}"));
        }
    }

    fn request(&mut self, theirs: &Request) -> anyhow::Result<()> {
        let request = self.translate(theirs);
        let inode = self.inodes.entry(theirs.ino).or_default();
        let ours = match self.allocator.allocate(&request, inode) {
            Ok(claim) => {
                let place = (claim.first_block().raw(), claim.clusters());
                self.disk.commit(claim);
                Some(place)
            }
            Err(AllocError::NoSpace(_)) => None,
            Err(error) => return Err(error).with_context(|| format!("{theirs:?}")),
        };
        let event = self.rings.drain().0.pop();
        self.compare(theirs, ours, event.as_ref());
        Ok(())
    }

    fn translate(&self, theirs: &Request) -> BlockRequest {
        let neighbour = |(logical, physical): (u32, u64)| {
            (physical != 0)
                .then(|| Neighbour { logical: LogicalBlock::new(logical), physical: BlockNr::new(physical) })
        };
        let inode_group = theirs.ino.saturating_sub(1) / self.geometry.inodes_per_group();
        BlockRequest {
            inode: InodeNr::new(theirs.ino),
            inode_group: GroupNr::new(inode_group),
            mapping: self.mapping,
            logical: LogicalBlock::new(theirs.log),
            clusters: theirs.len,
            goal: BlockNr::new(theirs.goal),
            left: neighbour(theirs.left),
            right: neighbour(theirs.right),
            file_size: theirs.size,
            writer_open: theirs.open,
            cpu: CpuSlot::new(theirs.cpu),
            colour: 0,
            flags: RequestFlags::from_bits_truncate(theirs.flags),
        }
    }

    fn compare(&mut self, theirs: &Request, ours: Option<(u64, u32)>, event: Option<&AllocEvent>) {
        let did = &theirs.did;
        // A request that failed has length 0, even if the kernel searched for it.
        let placed = ours == (did.len > 0).then_some((did.block, did.len));
        let agreement = &mut self.agreement;
        agreement.requests += 1;
        agreement.placements += u64::from(placed);
        let mut same = placed;
        if did.via == Via::Search {
            let searched = event.filter(|event| event.kind != EventKind::Prealloc);
            let test =
                |equal: fn(&AllocEvent, &Request) -> bool| searched.is_some_and(|event| equal(event, theirs));
            let criterion = test(|event, theirs| event.criterion == theirs.did.cr);
            let candidates = test(|event, theirs| low16(event.found) == theirs.did.found);
            let groups = test(|event, theirs| event.scanned == theirs.did.groups);
            let decision = test(|event, theirs| {
                let did = &theirs.did;
                (spot(event.original), spot(event.goal), spot(event.result), u32::from(event.flags))
                    == (did.orig, did.goal, did.result, did.flags)
            });
            agreement.searches += 1;
            agreement.criteria += u64::from(criterion);
            agreement.candidates += u64::from(candidates);
            agreement.groups += u64::from(groups);
            agreement.decisions += u64::from(decision);
            same &= criterion && candidates && groups && decision;
        }
        let number = agreement.requests;
        if !same {
            self.differ(|| format!("request {number}: kernel {theirs:?}; ours {ours:?}, {}", explain(event)));
        }
    }

    fn finish(mut self, recording: &Recording) -> anyhow::Result<Agreement> {
        self.compare_groups(&recording.end)?;
        self.compare_summary(&recording.end);
        self.compare_stats(&recording.end);
        self.agreement.overlaps = recording.end.overlaps;
        Ok(self.agreement)
    }

    fn compare_groups(&mut self, end: &End) -> anyhow::Result<()> {
        let lines = self.allocator.groups()?;
        let ours: Vec<Vec<u32>> = lines
            .iter()
            .map(|line| [&[line.free, line.fragments, line.first_free][..], &line.chunks].concat())
            .collect();
        let theirs = &end.groups;
        // The kernel prints columns of zeroes above the largest order.
        let equal = |(ours, theirs): (&Vec<u32>, &Vec<u32>)| {
            let width = ours.len().max(theirs.len());
            (0..width).all(|at| ours.get(at).unwrap_or(&0) == theirs.get(at).unwrap_or(&0))
        };
        let wrong = ours.iter().zip(theirs).position(|pair| !equal(pair));
        self.agreement.mb_groups = wrong.is_none() && ours.len() == theirs.len();
        if let Some(at) = wrong {
            self.differ(|| format!("mb_groups, group {at}: kernel {:?}, ours {:?}", theirs[at], ours[at]));
        }
        Ok(())
    }

    fn compare_summary(&mut self, end: &End) {
        let summary = self.allocator.structs_summary();
        self.agreement.summary =
            summary.max_free_order == end.largest && summary.avg_fragment_size == end.average;
        if !self.agreement.summary {
            self.differ(|| {
                format!("mb_structs_summary: kernel {:?} {:?}, ours {summary:?}", end.largest, end.average)
            });
        }
    }

    /// Compares the counts of `mb_stats`, except those of buddies: when buddies are built depends
    /// on the kernel's page cache.
    fn compare_stats(&mut self, end: &End) {
        let ours = self.allocator.mb_stats();
        let counts = |line: &&str| !line.contains("buddies");
        let ours: Vec<&str> = ours.lines().filter(counts).map(str::trim).collect();
        let theirs: Vec<&str> = end.stats.iter().map(String::as_str).filter(counts).map(str::trim).collect();
        self.agreement.stats = ours == theirs;
        if let Some((theirs, ours)) = theirs.iter().zip(&ours).find(|(theirs, ours)| theirs != ours) {
            let text = format!("mb_stats: kernel {theirs:?}, ours {ours:?}");
            self.differ(|| text);
        }
    }
}

fn spot(extent: EventExtent) -> Spot {
    Spot(extent.group, extent.start.cast_signed(), extent.len, low32(u64::from(extent.logical)))
}

fn explain(event: Option<&AllocEvent>) -> String {
    event.map_or_else(
        || "no decision".to_owned(),
        |event| {
            format!(
                "orig {:?} goal {:?} result {:?} found {} groups {} criterion {} flags {:#x} {:?}",
                spot(event.original),
                spot(event.goal),
                spot(event.result),
                event.found,
                event.scanned,
                event.criterion,
                event.flags,
                event.kind
            )
        },
    )
}

fn geometry(image: &Image) -> anyhow::Result<Geometry> {
    Ok(Geometry::new(GeometryFields {
        block_bits: image.block_bits,
        cluster_ratio_bits: image.cluster_ratio_bits,
        blocks_count: BlockCount::new(image.blocks),
        first_data_block: BlockNr::new(image.first_data_block),
        clusters_per_group: image.clusters_per_group,
        inodes_per_group: image.inodes_per_group,
        inode_size: image.inode_size,
        flex_bits: image.flex_bits,
    })?)
}

/// Bitmaps in which everything is in use except the recorded free extents.
fn bitmaps(image: &Image, geometry: Geometry) -> Arc<MemoryBitmaps> {
    let disk = MemoryBitmaps::new(geometry, 0);
    for (group, free) in geometry.all_groups().zip(&image.free) {
        disk.write(group, 0, geometry.clusters_in_group(group), true);
        for &(start, count) in free {
            disk.write(group, start, count, false);
        }
    }
    disk
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::{Outcome, Tunables};

    /// Two groups of 32,768 clusters; the first 100 clusters are used.
    fn image() -> Image {
        Image {
            block_bits: 12,
            blocks: 65_536,
            clusters_per_group: 32_768,
            inodes_per_group: 8192,
            inode_size: 256,
            flex_bits: 4,
            extents: true,
            possible_cpus: 1,
            tunables: Tunables {
                max_to_scan: 200,
                min_to_scan: 10,
                order2_req: 2,
                stream_req: 16,
                group_prealloc: 512,
                max_linear_groups: 0,
                best_avail_max_trim_order: 3,
            },
            free: vec![vec![(100, 32_668)], vec![(0, 32_768)]],
            ..Image::default()
        }
    }

    fn theirs() -> Request {
        let spot = Spot(1, 5, 8, 3);
        let did = Outcome {
            via: Via::Search,
            orig: spot,
            goal: spot,
            result: spot,
            found: 2,
            groups: 3,
            cr: 1,
            flags: 0x20,
            new: None,
            block: 32_773,
            len: 8,
        };
        Request { ino: 12, len: 8, log: 3, did, ..Request::default() }
    }

    fn ours() -> AllocEvent {
        let extent = EventExtent { group: 1, start: 5, len: 8, logical: 3 };
        AllocEvent {
            original: extent,
            goal: extent,
            result: extent,
            found: 2,
            scanned: 3,
            flags: 0x20,
            criterion: 1,
            kind: EventKind::Search,
            ..AllocEvent::default()
        }
    }

    /// What one comparison counts: requests, searches, placements, criteria, candidates, groups and
    /// decisions; and whether it saw a difference.
    fn compared(theirs: &Request, placed: Option<(u64, u32)>, event: &AllocEvent) -> ([u64; 7], bool) {
        let mut replay = Replay::new(&image()).unwrap();
        replay.agreement.first = None;
        replay.compare(theirs, placed, Some(event));
        let all = replay.agreement;
        let counts = [
            all.requests,
            all.searches,
            all.placements,
            all.criteria,
            all.candidates,
            all.groups,
            all.decisions,
        ];
        (counts, all.first.is_some())
    }

    /// Each figure of a decision is compared with its counterpart, and only equality counts.
    #[test]
    fn what_is_not_equal_is_not_counted() {
        let place = Some((32_773, 8));
        assert_eq!(compared(&theirs(), place, &ours()), ([1, 1, 1, 1, 1, 1, 1], false));
        let many = AllocEvent { found: 65_536 + 2, ..ours() };
        assert_eq!(compared(&theirs(), place, &many), ([1, 1, 1, 1, 1, 1, 1], false), "16 bits are kept");
        assert_eq!(compared(&theirs(), Some((32_774, 8)), &ours()), ([1, 1, 0, 1, 1, 1, 1], true));
        assert_eq!(compared(&theirs(), Some((32_773, 7)), &ours()), ([1, 1, 0, 1, 1, 1, 1], true));
        assert_eq!(compared(&theirs(), None, &ours()), ([1, 1, 0, 1, 1, 1, 1], true));
        for criterion in [0, 2] {
            let event = AllocEvent { criterion, ..ours() };
            assert_eq!(compared(&theirs(), place, &event), ([1, 1, 1, 0, 1, 1, 1], true));
        }
        for found in [1, 3] {
            let event = AllocEvent { found, ..ours() };
            assert_eq!(compared(&theirs(), place, &event), ([1, 1, 1, 1, 0, 1, 1], true));
        }
        for scanned in [2, 4] {
            let event = AllocEvent { scanned, ..ours() };
            assert_eq!(compared(&theirs(), place, &event), ([1, 1, 1, 1, 1, 0, 1], true));
        }
        let goal = EventExtent { start: 6, ..ours().goal };
        for event in [AllocEvent { goal, ..ours() }, AllocEvent { flags: 0x22, ..ours() }] {
            assert_eq!(compared(&theirs(), place, &event), ([1, 1, 1, 1, 1, 1, 0], true));
        }
        let prealloc = AllocEvent { kind: EventKind::Prealloc, ..ours() };
        assert_eq!(compared(&theirs(), place, &prealloc), ([1, 1, 1, 0, 0, 0, 0], true));
    }

    #[test]
    fn what_failed_or_was_preallocated_is_no_search() {
        let mut refused = theirs();
        refused.did = Outcome::default();
        assert_eq!(compared(&refused, None, &ours()), ([1, 0, 1, 0, 0, 0, 0], false));
        assert_eq!(compared(&refused, Some((1, 1)), &ours()), ([1, 0, 0, 0, 0, 0, 0], true));
    }

    /// Inodes are numbered from 1: the last of the first group is 8192.
    #[test]
    fn requests_keep_every_field() {
        let replay = Replay::new(&image()).unwrap();
        let theirs = Request {
            ino: 8193,
            cpu: 3,
            goal: 900,
            left: (2, 850),
            right: (60, 0),
            size: 5000,
            open: true,
            flags: 0x20,
            ..theirs()
        };
        let request = replay.translate(&theirs);
        assert_eq!((request.inode_group, request.logical.raw(), request.clusters), (GroupNr::new(1), 3, 8));
        assert_eq!((request.goal.raw(), request.file_size, request.writer_open), (900, 5000, true));
        let left = Neighbour { logical: LogicalBlock::new(2), physical: BlockNr::new(850) };
        assert_eq!((request.left, request.right), (Some(left), None));
        assert_eq!((request.cpu, request.flags), (CpuSlot::new(3), RequestFlags::DATA));
        assert_eq!(replay.translate(&Request { ino: 8192, ..theirs }).inode_group, GroupNr::ZERO);
    }

    /// The 32,668 clusters from 100 on form one chunk of 4 clusters, one of 8, one of 16, one of
    /// each power of two from 128 to 4096, and three of 8192. Columns of zeroes above the largest
    /// order do not matter.
    #[test]
    fn groups_are_equal_in_every_column() {
        let first = [32_668, 1, 100, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 3];
        let mut second = [0; 17];
        (second[0], second[1], second[16]) = (32_768, 1, 4);
        let is_equal = |groups: Vec<Vec<u32>>| {
            let mut replay = Replay::new(&image()).unwrap();
            replay.compare_groups(&End { groups, ..End::default() }).unwrap();
            replay.agreement.mb_groups
        };
        assert!(is_equal(vec![first.to_vec(), second.to_vec()]));
        assert!(is_equal(vec![[&first[..], &[0]].concat(), second.to_vec()]), "columns of nothing");
        assert!(!is_equal(vec![[&first[..], &[1]].concat(), second.to_vec()]));
        assert!(!is_equal(vec![first.to_vec()]) && !is_equal(vec![first.to_vec(), first.to_vec()]));
    }

    #[test]
    fn every_count_of_mb_stats_but_those_of_buddies_is_compared() {
        let text = Replay::new(&image()).unwrap().allocator.mb_stats();
        let stats: Vec<String> = text.lines().map(str::to_owned).collect();
        let is_equal = |stats: Vec<String>| {
            let mut replay = Replay::new(&image()).unwrap();
            replay.compare_stats(&End { stats, ..End::default() });
            replay.agreement.stats
        };
        assert!(is_equal(stats.clone()));
        for at in 0..stats.len() {
            let mut changed = stats.clone();
            changed[at].push('9');
            assert_eq!(is_equal(changed), stats[at].contains("buddies"), "{}", stats[at]);
        }
    }

    /// A free of three clusters of four blocks each adds three to the free clusters of the group.
    #[test]
    fn frees_are_counted_in_clusters() {
        let image = Image { cluster_ratio_bits: 2, blocks: 131_072, free: vec![vec![(100, 50)]], ..image() };
        let mut replay = Replay::new(&image).unwrap();
        replay.free(Free { ino: 12, group: 0, start: 200, len: 3, tid: None });
        let group = &replay.allocator.groups().unwrap()[0];
        assert_eq!((group.free, group.fragments, group.first_free), (53, 2, 100));
    }
}
