//! Runs an allocator beside a model that records the state and the owner of every cluster, and
//! compares each answer of the allocator with the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use blockyard_alloc::memory::MemoryBitmaps;
use blockyard_alloc::{
    AllocError, AllocEvent, Allocator, BlockRequest, Claim, EventKind, EventRings, FreeContext, FreedExtent,
    GroupLine, InodeAlloc, Mapping, Neighbour, Policy, RequestFlags,
};
use blockyard_disk::{BlockCount, BlockNr, CorruptionKind, Geometry, GroupNr, InodeNr, LogicalBlock, TxnId};
use blockyard_sync::CpuSlot;

use crate::shapes::{CPUS, OVERHEAD, Shape};

/// Number of files in a run.
pub(crate) const FILES: usize = 6;

/// Flag in an event: the request used the preallocations of a locality group. Linux calls it
/// `EXT4_MB_HINT_GROUP_ALLOC`.
const GROUP_ALLOC: u16 = 0x80;

/// State of a cluster. A cluster without an entry is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Claimed,
    Used,
    /// Freed by a transaction that has not committed.
    Pending(u32),
}

/// Owner of a preallocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeper {
    File(usize),
    Cpu(u32),
}

/// A request to make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) file: usize,
    pub(crate) clusters: u32,
    pub(crate) kind: Kind,
    pub(crate) cpu: u32,
    /// Selects a goal when the file has no neighbour to follow.
    pub(crate) goal: u64,
    /// Whether to leave a gap in the file before the requested range.
    pub(crate) gap: bool,
}

/// Kinds of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Data of a growing file: small at first, then a stream.
    Append,
    /// Data of a file without an open writer.
    AppendClosed,
    /// Data of a request that must not be normalised.
    Exact,
    /// Blocks of a directory.
    Directory,
    /// Metadata blocks.
    Metadata,
    /// Data of a file with indirect blocks.
    Indirect,
}

#[derive(Debug, Default)]
struct File {
    alloc: InodeAlloc,
    /// Extents by their first logical cluster.
    mapped: BTreeMap<u32, FreedExtent>,
    end: u32,
}

/// The allocator and its model.
pub(crate) struct Bench<'a> {
    allocator: &'a Allocator,
    disk: &'a MemoryBitmaps,
    rings: Arc<EventRings>,
    geometry: Geometry,
    cells: BTreeMap<(u32, u32), Cell>,
    keepers: BTreeMap<(u32, u32), Keeper>,
    discarded: u64,
    files: Vec<File>,
    open: Vec<(Claim<'a>, usize, u32)>,
    /// The running transaction. `committing` is the transaction before it, until that is durable.
    txn: u32,
    committing: Option<u32>,
    /// Every answer, for comparing runs.
    pub(crate) answers: Vec<Option<FreedExtent>>,
}

/// Runs `body` on a fresh allocator and its model.
pub(crate) fn with_bench<R>(shape: &Shape, policy: Policy, body: impl FnOnce(&mut Bench<'_>) -> R) -> R {
    let disk = shape.disk();
    let rings = Arc::new(EventRings::new(CPUS, 64));
    let allocator = Allocator::open(&shape.config(policy), disk.clone(), &disk.facts())
        .unwrap()
        .with_events(Arc::clone(&rings));
    body(&mut Bench {
        allocator: &allocator,
        disk: &disk,
        rings,
        geometry: shape.geometry(),
        cells: BTreeMap::new(),
        keepers: BTreeMap::new(),
        discarded: 0,
        files: (0..FILES).map(|_| File::default()).collect(),
        open: Vec::new(),
        txn: 1,
        committing: None,
        answers: Vec::new(),
    })
}

impl Bench<'_> {
    /// Asks for clusters. Those allocated stay in an open claim. Returns how many were allocated.
    pub(crate) fn ask(&mut self, ask: &Ask) -> u32 {
        let request = self.request(ask);
        let answer = self.allocator.allocate(&request, &self.files[ask.file].alloc);
        let (events, _) = self.rings.drain();
        match answer {
            Ok(claim) => {
                let extent = extent_of(&claim);
                assert!((1..=ask.clusters).contains(&extent.count), "{extent:?} for {ask:?}");
                self.answers.push(Some(extent));
                self.take(extent, ask);
                self.note_prealloc(events.last().unwrap(), extent, ask);
                let file = &mut self.files[ask.file];
                let at = request.logical.raw() >> self.geometry.cluster_ratio_bits();
                file.end = file.end.max(at + extent.count);
                self.open.push((claim, ask.file, at));
                extent.count
            }
            Err(error) => {
                self.answers.push(None);
                self.check_no_space(&error);
                0
            }
        }
    }

    fn request(&self, ask: &Ask) -> BlockRequest {
        let file = &self.files[ask.file];
        let ratio_bits = self.geometry.cluster_ratio_bits();
        let at = file.end + if ask.gap { 5 } else { 0 };
        let flags = match ask.kind {
            Kind::Append | Kind::AppendClosed | Kind::Indirect => RequestFlags::DATA,
            Kind::Exact => RequestFlags::DATA | RequestFlags::NO_NORMALIZE,
            Kind::Directory => RequestFlags::DIRECTORY,
            Kind::Metadata => RequestFlags::METADATA,
        };
        let left = file.mapped.last_key_value().map(|(&start, extent)| {
            let last = start + extent.count - 1;
            let cluster = blockyard_disk::ClusterOffset::new(extent.start + extent.count - 1);
            let inside = (1u64 << ratio_bits) - 1;
            Neighbour {
                logical: LogicalBlock::new((last << ratio_bits) + inside as u32),
                physical: self.geometry.block_at(extent.group, cluster) + BlockCount::new(inside),
            }
        });
        let blocks = self.geometry.blocks_count().raw();
        BlockRequest {
            mapping: if ask.kind == Kind::Indirect { Mapping::Indirect } else { Mapping::Extents },
            // Some goals are beyond the end of the file system. The allocator then takes the first
            // data block instead.
            goal: left.map_or(BlockNr::new(ask.goal % (blocks + blocks / 8)), |left| left.physical),
            left,
            file_size: u64::from(file.end + ask.clusters) << (ratio_bits + self.geometry.block_bits()),
            writer_open: ask.kind != Kind::AppendClosed,
            cpu: CpuSlot::new(ask.cpu),
            flags,
            ..BlockRequest::data(
                InodeNr::new(12 + ask.file as u32),
                GroupNr::new(ask.file as u32 % self.geometry.groups()),
                LogicalBlock::new(at << ratio_bits),
                ask.clusters,
            )
        }
    }

    /// Marks clusters as claimed. They must be free, inside the data area of a group, and not
    /// preallocated for another owner.
    fn take(&mut self, extent: FreedExtent, ask: &Ask) {
        self.forget_discarded();
        let clusters = self.geometry.clusters_in_group(extent.group);
        assert!(extent.start >= OVERHEAD && extent.start + extent.count <= clusters, "{extent:?}");
        for at in extent.start..extent.start + extent.count {
            let place = (extent.group.raw(), at);
            assert_eq!(self.cells.insert(place, Cell::Claimed), None, "{extent:?}: cluster {at} is taken");
            match self.keepers.remove(&place) {
                Some(Keeper::File(file)) => assert_eq!(file, ask.file, "{extent:?}: {at} is preallocated"),
                Some(Keeper::Cpu(cpu)) => assert_eq!(cpu, ask.cpu, "{extent:?}: {at} is preallocated"),
                None => {}
            }
        }
    }

    /// Records as preallocated what a search found beyond the clusters that the request got.
    fn note_prealloc(&mut self, event: &AllocEvent, served: FreedExtent, ask: &Ask) {
        assert_eq!(event.inode, 12 + ask.file as u32);
        if event.kind == EventKind::Prealloc {
            return;
        }
        let locality = event.flags & GROUP_ALLOC != 0;
        let keeper = if locality { Keeper::Cpu(ask.cpu) } else { Keeper::File(ask.file) };
        for at in event.result.start..event.result.start + event.result.len {
            let place = (event.result.group, at);
            if self.cells.contains_key(&place) {
                let inside = (served.start..served.start + served.count).contains(&at);
                assert!(inside && event.result.group == served.group.raw(), "{event:?}: {at} is taken");
            } else {
                assert_eq!(self.keepers.insert(place, keeper), None, "{event:?}: {at} is preallocated");
            }
        }
    }

    /// When the allocator has discarded preallocations, the model cannot tell which, and forgets
    /// all of them.
    fn forget_discarded(&mut self) {
        let discarded = self.allocator.stats().discarded[0];
        if discarded != self.discarded {
            self.discarded = discarded;
            self.keepers.clear();
        }
    }

    fn check_no_space(&self, error: &AllocError) {
        let AllocError::NoSpace(space) = error else { panic!("{error}") };
        let total: u32 =
            self.geometry.all_groups().map(|group| self.geometry.clusters_in_group(group) - OVERHEAD).sum();
        let free = total as usize - self.cells.len();
        assert_eq!(free, 0, "no space, but {free} clusters are free");
        let pending = self.cells.values().filter(|cell| matches!(cell, Cell::Pending(_))).count();
        assert_eq!(space.pending_clusters, pending as u64);
    }

    /// Commits or releases an open claim.
    pub(crate) fn end_claim(&mut self, choice: usize, keep: bool) {
        if self.open.is_empty() {
            return;
        }
        let (claim, file, at) = self.open.swap_remove(choice % self.open.len());
        let extent = extent_of(&claim);
        if keep {
            self.disk.commit(claim);
            self.files[file].mapped.insert(at, extent);
        } else {
            claim.release();
        }
        for cluster in extent.start..extent.start + extent.count {
            match keep {
                true => self.cells.insert((extent.group.raw(), cluster), Cell::Used),
                false => self.cells.remove(&(extent.group.raw(), cluster)),
            };
        }
    }

    /// Frees an extent of a file, or its second half, in the running transaction or at once.
    /// Freeing it again must be refused.
    pub(crate) fn free(&mut self, file: usize, choice: usize, half: bool, journal: bool) {
        let count = self.files[file].mapped.len();
        if count == 0 {
            return;
        }
        let (&at, &whole) = self.files[file].mapped.iter().nth(choice % count).unwrap();
        let kept = if half { whole.count / 2 } else { 0 };
        let extent = FreedExtent { start: whole.start + kept, count: whole.count - kept, ..whole };
        self.files[file].mapped.remove(&at);
        if kept > 0 {
            self.files[file].mapped.insert(at, FreedExtent { count: kept, ..whole });
        }
        let context = FreeContext { txn: journal.then(|| TxnId::new(self.txn)), ..FreeContext::default() };
        self.free_blocks(extent, context).unwrap();
        for cluster in extent.start..extent.start + extent.count {
            let place = (extent.group.raw(), cluster);
            let before = match journal {
                true => self.cells.insert(place, Cell::Pending(self.txn)),
                false => self.cells.remove(&place),
            };
            assert_eq!(before, Some(Cell::Used));
        }
        let again = self.free_blocks(extent, context);
        let Err(AllocError::Corrupt(found)) = again else { panic!("freed twice: {again:?}") };
        assert_eq!(
            (found.kind, found.at.group),
            (CorruptionKind::BlockBitmapContradiction, Some(extent.group))
        );
    }

    fn free_blocks(&self, extent: FreedExtent, context: FreeContext) -> Result<u64, AllocError> {
        let first = self.geometry.block_at(extent.group, blockyard_disk::ClusterOffset::new(extent.start));
        let clusters = blockyard_disk::ClusterCount::new(u64::from(extent.count));
        self.allocator.free_with(first, self.geometry.blocks_in(clusters).raw(), context, |run| {
            assert_eq!(run, extent);
            self.disk.write(run.group, run.start, run.count, false);
            Ok(())
        })
    }

    /// Does the next step of a commit. Either the running transaction stops taking frees and
    /// another one starts, or the transaction that was stopped before becomes durable.
    pub(crate) fn commit_step(&mut self) {
        let Some(txn) = self.committing.take() else {
            self.committing = Some(self.txn);
            self.txn += 1;
            return;
        };
        let mut freed = Vec::new();
        self.allocator.commit_with(TxnId::new(txn), CpuSlot::ZERO, |extent| freed.push(extent));
        for extent in freed {
            for at in extent.start..extent.start + extent.count {
                let before = self.cells.remove(&(extent.group.raw(), at));
                assert_eq!(before, Some(Cell::Pending(txn)), "{extent:?} became free");
            }
        }
        assert!(!self.cells.values().any(|cell| *cell == Cell::Pending(txn)), "some still wait");
    }

    /// Commits every transaction.
    fn commit_all(&mut self) {
        if self.committing.is_some() {
            self.commit_step();
        }
        (0..2).for_each(|_| self.commit_step());
    }

    /// Drops a file's preallocations.
    pub(crate) fn discard(&mut self, file: usize) {
        self.allocator.discard_inode_preallocations(&self.files[file].alloc, CpuSlot::ZERO);
        self.keepers.retain(|_, keeper| *keeper != Keeper::File(file));
        self.forget_discarded();
    }

    /// Evicts the bitmaps that nothing pins.
    pub(crate) fn evict(&mut self) {
        self.allocator.evict_all(CpuSlot::ZERO);
    }

    /// Switches between linear and optimised scans.
    pub(crate) fn toggle_scan(&mut self) {
        self.allocator.set_optimize_scan(!self.allocator.optimize_scan());
    }

    /// Asserts that the free and pending counts equal the model's. Preallocated and pending
    /// clusters count as free.
    pub(crate) fn check_counts(&self) {
        let usable: u64 = self
            .geometry
            .all_groups()
            .map(|group| u64::from(self.geometry.clusters_in_group(group) - OVERHEAD))
            .sum();
        let taken = self.cells.values().filter(|cell| !matches!(cell, Cell::Pending(_))).count() as u64;
        assert_eq!(self.allocator.free_clusters().free, usable - taken);
        let pending = self.cells.len() as u64 - taken;
        assert_eq!(self.allocator.pending_clusters(), pending);
    }

    /// The state of all groups, with `first_free` set to 0: this lower bound depends on the
    /// history.
    fn group_lines(&self) -> Vec<GroupLine> {
        let lines = self.allocator.groups().unwrap();
        lines.into_iter().map(|line| GroupLine { first_free: 0, ..line }).collect()
    }

    /// Ends all claims, allocates until no cluster is free, frees everything, and checks that each
    /// group is one free run again. Evicted groups must read back as they were.
    pub(crate) fn settle(&mut self) {
        while !self.open.is_empty() {
            self.end_claim(0, true);
        }
        self.commit_all();
        self.check_counts();
        let before = self.group_lines();
        self.evict();
        assert_eq!(before, self.group_lines(), "groups read again");
        let ask = Ask { file: 0, clusters: 40, kind: Kind::Exact, cpu: 0, goal: 0, gap: false };
        while self.ask(&ask) > 0 {
            self.end_claim(0, true);
        }
        self.check_counts();
        for file in 0..FILES {
            self.discard(file);
            while !self.files[file].mapped.is_empty() {
                self.free(file, 0, false, file % 2 == 0);
            }
        }
        self.commit_all();
        self.check_counts();
        assert!(self.cells.is_empty());
        for line in self.allocator.groups().unwrap() {
            let all = self.geometry.clusters_in_group(GroupNr::new(line.group)) - OVERHEAD;
            assert_eq!((line.free, line.fragments, line.corrupt), (all, 1, false), "{line:?}");
        }
    }
}

fn extent_of(claim: &Claim<'_>) -> FreedExtent {
    FreedExtent { group: claim.group(), start: claim.offset().raw(), count: claim.clusters() }
}
