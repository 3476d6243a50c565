//! Checks on several threads that no cluster has two owners. Every cluster has an owner mark: a
//! thread that gets the cluster must find the mark clear, and sets it. The mark is cleared just
//! before the cluster becomes free again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, RwLock};

use blockyard_alloc::{
    AllocError, Allocator, BlockRequest, FreeContext, FreedExtent, InodeAlloc, Policy, RequestFlags,
};
use blockyard_disk::{BlockNr, ClusterCount, ClusterOffset, GroupNr, InodeNr, LogicalBlock, TxnId};
use blockyard_sync::CpuSlot;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::shapes::{CPUS, SHAPES, Shape};

const STEPS: u32 = 1500;

/// State that the threads share.
struct Arena<'a> {
    allocator: Allocator,
    disk: std::sync::Arc<blockyard_alloc::memory::MemoryBitmaps>,
    shape: &'a Shape,
    /// Owner marks by group and cluster; 0 is a clear mark.
    owners: Vec<Vec<AtomicU32>>,
    /// Number of the running transaction. It changes only while no thread frees.
    txn: RwLock<u32>,
    pending: Mutex<BTreeMap<u32, Vec<FreedExtent>>>,
}

/// On several threads, no cluster has two owners, and all clusters are free at the end.
///
/// # Panics
/// When the property does not hold.
pub fn threads_never_share_a_cluster(policy: Policy) {
    let seed = blockyard_testkit::seed(0x7123);
    for shape in &SHAPES {
        let disk = shape.disk();
        let geometry = shape.geometry();
        let marks = |group| (0..geometry.clusters_in_group(group)).map(|_| AtomicU32::new(0)).collect();
        let arena = Arena {
            allocator: Allocator::open(&shape.config(policy), disk.clone(), &disk.facts()).unwrap(),
            disk,
            shape,
            owners: geometry.all_groups().map(marks).collect(),
            txn: RwLock::new(1),
            pending: Mutex::default(),
        };
        std::thread::scope(|scope| {
            for cpu in 0..CPUS + 1 {
                let arena = &arena;
                scope.spawn(move || worker(arena, cpu, seed));
            }
        });
        arena.commit();
        assert_eq!(arena.allocator.free_clusters().free, shape.usable(), "{policy}: all was given back");
        assert_eq!(arena.allocator.pending_clusters(), 0);
    }
}

/// Allocates and frees; frees everything at the end.
fn worker(arena: &Arena<'_>, cpu: u32, seed: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed ^ u64::from(cpu));
    let inode = InodeAlloc::new();
    let mut logical = 0;
    let mut owned: Vec<FreedExtent> = Vec::new();
    for _ in 0..STEPS {
        match random.random_range(0..20) {
            0 => arena.commit(),
            1 => drop(arena.allocator.evict_all(CpuSlot::new(cpu))),
            2 => arena.allocator.discard_inode_preallocations(&inode, CpuSlot::new(cpu)),
            3..9 if !owned.is_empty() => {
                let extent = owned.swap_remove(random.random_range(0..owned.len()));
                arena.free(extent, cpu, random.random_bool(0.8));
            }
            _ => {
                let clusters = random.random_range(1..60);
                let got = arena.allocate(&inode, cpu, logical, clusters, random.random_bool(0.9));
                logical += clusters << arena.allocator.geometry().cluster_ratio_bits();
                owned.extend(got);
            }
        }
    }
    arena.allocator.discard_inode_preallocations(&inode, CpuSlot::new(cpu));
    owned.into_iter().for_each(|extent| arena.free(extent, cpu, true));
}

impl Arena<'_> {
    fn allocate(
        &self,
        inode: &InodeAlloc,
        cpu: u32,
        logical: u32,
        clusters: u32,
        keep: bool,
    ) -> Option<FreedExtent> {
        let request = BlockRequest {
            goal: BlockNr::new(u64::from(cpu) * 1000),
            file_size: u64::from(logical) << self.allocator.geometry().block_bits(),
            cpu: CpuSlot::new(cpu),
            flags: RequestFlags::DATA,
            ..BlockRequest::data(InodeNr::new(12 + cpu), GroupNr::ZERO, LogicalBlock::new(logical), clusters)
        };
        let claim = match self.allocator.allocate(&request, inode) {
            Ok(claim) => claim,
            Err(AllocError::NoSpace(_)) => return None,
            Err(error) => panic!("{error}"),
        };
        let extent =
            FreedExtent { group: claim.group(), start: claim.offset().raw(), count: claim.clusters() };
        self.mark(extent, 0, cpu + 1);
        if keep {
            self.disk.commit(claim);
            return Some(extent);
        }
        self.mark(extent, cpu + 1, 0);
        claim.release();
        None
    }

    fn free(&self, extent: FreedExtent, cpu: u32, journal: bool) {
        let geometry = self.allocator.geometry();
        let first = geometry.block_at(extent.group, ClusterOffset::new(extent.start));
        let blocks = geometry.blocks_in(ClusterCount::new(u64::from(extent.count)));
        let txn = self.txn.read().unwrap();
        if journal {
            self.pending.lock().unwrap().entry(*txn).or_default().push(extent);
        } else {
            self.mark(extent, cpu + 1, 0);
        }
        let context = FreeContext {
            txn: journal.then(|| TxnId::new(*txn)),
            cpu: CpuSlot::new(cpu),
            ..FreeContext::default()
        };
        let write = |run: FreedExtent| {
            self.disk.write(run.group, run.start, run.count, false);
            Ok::<(), AllocError>(())
        };
        self.allocator.free_with(first, blocks.raw(), context, write).unwrap();
    }

    /// Clears the marks of the clusters that the running transaction freed, then commits the
    /// transaction.
    fn commit(&self) {
        let mut txn = self.txn.write().unwrap();
        let committed = *txn;
        *txn += 1;
        for extent in self.pending.lock().unwrap().remove(&committed).unwrap_or_default() {
            let owner =
                self.owners[extent.group.raw() as usize][extent.start as usize].load(Ordering::Relaxed);
            assert_ne!(owner, 0, "{extent:?} lost its owner on {:?}", self.shape);
            self.mark(extent, owner, 0);
        }
        self.allocator.commit(TxnId::new(committed), CpuSlot::ZERO);
    }

    fn mark(&self, extent: FreedExtent, from: u32, to: u32) {
        for at in extent.start..extent.start + extent.count {
            let mark = &self.owners[extent.group.raw() as usize][at as usize];
            let swapped = mark.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
            assert_eq!(swapped, Ok(from), "{extent:?}: cluster {at} on {:?}", self.shape);
        }
    }
}
