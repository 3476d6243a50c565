//! Claims, skipped groups, preallocations, pending frees, evictions and trims.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use blockyard_alloc::memory::MemoryBitmaps;
use blockyard_alloc::{
    AllocConfig, AllocError, Allocator, BlockRequest, FreeContext, FreedExtent, GroupSource, InodeAlloc,
    Policy, RequestFlags, SourceError,
};
use blockyard_disk::geometry::GeometryFields;
use blockyard_disk::{BlockCount, BlockNr, ClusterOffset, Geometry, GroupNr, InodeNr, LogicalBlock, TxnId};
use blockyard_sync::{CpuSlot, Shuttle};

use crate::explore::{explore, together};

const CLUSTERS: u32 = 64;
const OVERHEAD: u32 = 4;

/// Policies whose locks and indexes differ.
const POLICIES: [&str; 5] = [
    "linux-6.18:scan=optimized",
    "linux-6.16:scan=optimized",
    "yard",
    "rralloc-v2",
    "linux-6.18:locks=hashed",
];

/// A source whose reads take time: other threads may allocate, commit and evict before and after a
/// read.
struct Slow(Arc<MemoryBitmaps>);

impl GroupSource for Slow {
    fn load(&self, group: GroupNr, bitmap: &mut [u8]) -> Result<(), SourceError> {
        shuttle::thread::yield_now();
        let result = self.0.load(group, bitmap);
        shuttle::thread::yield_now();
        result
    }
}

type Body = crate::explore::Body<Yard>;

/// A small file system, with the owner of each cluster.
struct Yard {
    allocator: Allocator<Shuttle>,
    disk: Arc<MemoryBitmaps>,
    inodes: Vec<InodeAlloc<Shuttle>>,
    owners: Mutex<BTreeMap<(u32, u32), u32>>,
}

impl Yard {
    /// `groups` groups, each with only its first `free` data clusters free.
    fn new(policy: &str, groups: u32, free: u32) -> Arc<Self> {
        let geometry = Geometry::new(GeometryFields {
            block_bits: 10,
            cluster_ratio_bits: 0,
            blocks_count: BlockCount::new(u64::from(groups * CLUSTERS) + 1),
            first_data_block: BlockNr::new(1),
            clusters_per_group: CLUSTERS,
            inodes_per_group: 16,
            inode_size: 256,
            flex_bits: 0,
        })
        .unwrap();
        let disk = MemoryBitmaps::new(geometry, OVERHEAD);
        for group in geometry.all_groups() {
            disk.write(group, OVERHEAD + free, CLUSTERS - OVERHEAD - free, true);
        }
        let config = AllocConfig {
            policy: Policy::parse(policy).unwrap(),
            cpus: 2,
            reserved: Some(0),
            memory_max: 1,
            ..AllocConfig::new(geometry)
        };
        let allocator = Allocator::open(&config, Arc::new(Slow(disk.clone())), &disk.facts()).unwrap();
        let inodes = (0..3).map(|_| InodeAlloc::new()).collect();
        Arc::new(Self { allocator, disk, inodes, owners: Mutex::default() })
    }

    fn ask(&self, who: u32, logical: u32, clusters: u32, flags: RequestFlags) -> Option<FreedExtent> {
        let request = BlockRequest {
            cpu: CpuSlot::new(who),
            file_size: u64::from(logical + clusters) << 10,
            flags,
            ..BlockRequest::data(InodeNr::new(12 + who), GroupNr::ZERO, LogicalBlock::new(logical), clusters)
        };
        match self.allocator.allocate(&request, &self.inodes[who as usize]) {
            Ok(claim) => {
                let extent = FreedExtent {
                    group: claim.group(),
                    start: claim.offset().raw(),
                    count: claim.clusters(),
                };
                self.own(extent, who);
                self.disk.commit(claim);
                Some(extent)
            }
            Err(AllocError::NoSpace(_)) => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn own(&self, extent: FreedExtent, who: u32) {
        let mut owners = self.owners.lock().unwrap();
        for at in extent.start..extent.start + extent.count {
            let before = owners.insert((extent.group.raw(), at), who);
            assert_eq!(before, None, "{extent:?} for {who}: cluster {at} has an owner");
        }
    }

    fn disown(&self, extent: FreedExtent) {
        let mut owners = self.owners.lock().unwrap();
        for at in extent.start..extent.start + extent.count {
            assert!(owners.remove(&(extent.group.raw(), at)).is_some(), "{extent:?}: {at} has no owner");
        }
    }

    /// Frees an extent. The owner marks stay: the caller removes them.
    fn free(&self, extent: FreedExtent, txn: Option<u32>, who: u32) {
        let first = self.allocator.geometry().block_at(extent.group, ClusterOffset::new(extent.start));
        let context =
            FreeContext { txn: txn.map(TxnId::new), cpu: CpuSlot::new(who), ..FreeContext::default() };
        let clear = |run: FreedExtent| {
            shuttle::thread::yield_now();
            self.disk.write(run.group, run.start, run.count, false);
            Ok::<(), AllocError>(())
        };
        self.allocator.free_with(first, u64::from(extent.count), context, clear).unwrap();
    }

    fn owned(&self) -> usize {
        self.owners.lock().unwrap().len()
    }

    /// Checks the counts, the bits on disk, and the groups after reading them again. To be called
    /// after all threads have ended.
    fn check(&self, free_at_start: u32) {
        let geometry = self.allocator.geometry();
        let data = OVERHEAD..OVERHEAD + free_at_start / geometry.groups();
        let owners = self.owners.lock().unwrap().clone();
        for group in geometry.all_groups() {
            let bits = self.disk.bitmap(group);
            for at in data.clone() {
                let used = bits[at as usize / 8] >> (at % 8) & 1 == 1;
                assert_eq!(used, owners.contains_key(&(group.raw(), at)), "bit {at} of group {group}");
            }
        }
        let free = free_at_start as usize - self.owned();
        assert_eq!(self.allocator.free_clusters().free, free as u64);
        self.inodes
            .iter()
            .for_each(|inode| self.allocator.discard_inode_preallocations(inode, CpuSlot::ZERO));
        self.allocator.evict_all(CpuSlot::ZERO);
        assert!(self.allocator.groups().unwrap().iter().all(|line| !line.corrupt));
    }
}

const EXACT: RequestFlags = RequestFlags::DATA.union(RequestFlags::NO_NORMALIZE);

/// Two threads share the last clusters: each gets half, whoever holds which lock.
#[test]
fn the_last_clusters_go_to_those_who_ask() {
    explore(600, || {
        for policy in ["linux-6.18:scan=optimized", "linux-6.16:scan=optimized", "yard"] {
            let yard = Yard::new(policy, 2, 2);
            let body = |who: u32| -> Body {
                Box::new(move |yard| {
                    for at in 0..2 {
                        assert!(yard.ask(who, at, 1, EXACT).is_some(), "{policy}: {who} is refused at {at}");
                    }
                })
            };
            together(&yard, vec![body(0), body(1)]);
            assert_eq!(yard.owned(), 4);
            assert!(yard.ask(0, 2, 1, EXACT).is_none());
            yard.check(4);
        }
    });
}

/// If a claim is released while others search, its clusters can be claimed again. Groups are
/// evicted meanwhile.
#[test]
fn released_claims_and_evictions() {
    explore(400, || {
        for policy in POLICIES {
            let yard = Yard::new(policy, 3, 8);
            let releaser: Body = Box::new(|yard| {
                let request = BlockRequest {
                    flags: EXACT,
                    ..BlockRequest::data(InodeNr::new(12), GroupNr::ZERO, LogicalBlock::ZERO, 5)
                };
                for _ in 0..2 {
                    let claim = yard.allocator.allocate(&request, &yard.inodes[0]).unwrap();
                    let extent = FreedExtent {
                        group: claim.group(),
                        start: claim.offset().raw(),
                        count: claim.clusters(),
                    };
                    yard.own(extent, 0);
                    yard.disown(extent);
                    claim.release();
                }
            });
            let keeper: Body = Box::new(|yard| {
                (0..3).for_each(|at| assert!(yard.ask(1, at * 4, 4, EXACT).is_some()));
            });
            let evicter: Body = Box::new(|yard| {
                (0..2).for_each(|_| _ = yard.allocator.evict_all(CpuSlot::ZERO));
            });
            together(&yard, vec![releaser, keeper, evicter]);
            yard.check(24);
        }
    });
}

/// A bitmap that was read before an eviction is not installed after it, as the bitmap may lack
/// allocations made in between.
#[test]
fn stale_bitmaps_are_not_installed() {
    explore(1000, || {
        let yard = Yard::new("linux-6.18", 1, 8);
        let body = |who: u32| -> Body {
            Box::new(move |yard| {
                assert!(yard.ask(who, 0, 2, EXACT).is_some());
                yard.allocator.evict_all(CpuSlot::ZERO);
            })
        };
        together(&yard, vec![body(0), body(1)]);
        yard.check(8);
    });
}

/// A small file and a stream make preallocations, while a third thread drops those of the stream
/// and evicts groups.
#[test]
fn preallocations_are_taken_and_dropped() {
    explore(400, || {
        for policy in POLICIES {
            let yard = Yard::new(policy, 2, 40);
            let small: Body = Box::new(|yard| {
                (0..3).for_each(|at| assert!(yard.ask(0, at, 1, RequestFlags::DATA).is_some()));
            });
            let stream: Body = Box::new(|yard| {
                (0..3).for_each(|at| assert!(yard.ask(1, 20 + at * 3, 3, RequestFlags::DATA).is_some()));
            });
            let dropper: Body = Box::new(|yard| {
                for _ in 0..2 {
                    yard.allocator.discard_inode_preallocations(&yard.inodes[1], CpuSlot::ZERO);
                    yard.allocator.evict_all(CpuSlot::ZERO);
                }
            });
            together(&yard, vec![small, stream, dropper]);
            yard.check(80);
        }
    });
}

/// One thread frees clusters in the running transaction, while the previous one commits and a third
/// thread allocates. No freed cluster can be allocated before the commit of the transaction that
/// freed it, and none is pending in the end.
#[test]
fn frees_wait_for_their_own_commit() {
    explore(400, || {
        for policy in POLICIES {
            for merge in ["after", "before", "by-group"] {
                let yard = Yard::new(&format!("{policy}:freed_merge={merge}"), 2, 12);
                let first = yard.ask(0, 0, 6, EXACT).unwrap();
                let second = yard.ask(0, 6, 6, EXACT).unwrap();
                yard.free(first, Some(1), 0);
                let freer: Body = Box::new(move |yard| {
                    let half = FreedExtent { count: 3, ..second };
                    yard.free(half, Some(2), 0);
                    yard.free(FreedExtent { start: second.start + 3, ..half }, Some(2), 0);
                });
                let committer: Body = Box::new(move |yard| {
                    yard.disown(first);
                    yard.allocator.commit(TxnId::new(1), CpuSlot::ZERO);
                });
                let asker: Body = Box::new(|yard| {
                    (0..2).for_each(|at| assert!(yard.ask(1, at * 6, 6, EXACT).is_some()));
                });
                together(&yard, vec![freer, committer, asker]);
                assert_eq!(yard.allocator.pending_clusters(), 6);
                yard.disown(second);
                yard.allocator.commit(TxnId::new(2), CpuSlot::ZERO);
                assert_eq!(yard.allocator.pending_clusters(), 0);
                yard.check(24);
            }
        }
    });
}

/// Clusters that are freed without a transaction can be allocated again at once, but never while
/// their bits are still set.
#[test]
fn frees_without_a_transaction_race_with_evictions() {
    explore(400, || {
        for policy in POLICIES {
            let yard = Yard::new(policy, 2, 6);
            let extent = yard.ask(0, 0, 6, EXACT).unwrap();
            let freer: Body = Box::new(move |yard| {
                yard.disown(extent);
                yard.free(extent, None, 0);
            });
            let asker: Body = Box::new(|yard| {
                (0..4).for_each(|at| _ = yard.ask(1, at * 4, 4, EXACT));
            });
            let evicter: Body = Box::new(|yard| {
                (0..2).for_each(|_| _ = yard.allocator.evict_all(CpuSlot::ZERO));
            });
            together(&yard, vec![freer, asker, evicter]);
            yard.check(12);
        }
    });
}

/// While clusters are trimmed, nobody can allocate them, but no request is refused because of them.
/// The next trim discards at most what is free, and the one after it nothing.
#[test]
fn trimmed_clusters_are_nobodys() {
    const DEVICE: u32 = 9;
    explore(400, || {
        for policy in POLICIES {
            let yard = Yard::new(policy, 1, 8);
            let trim = |yard: &Yard| {
                let discard = |first: BlockNr, blocks: BlockCount| {
                    let at = u32::try_from(first.raw() - 1).unwrap() % CLUSTERS;
                    let run = FreedExtent {
                        group: GroupNr::ZERO,
                        start: at,
                        count: u32::try_from(blocks.raw()).unwrap(),
                    };
                    yard.own(run, DEVICE);
                    shuttle::thread::yield_now();
                    yard.disown(run);
                    Ok::<(), AllocError>(())
                };
                yard.allocator.trim_group(GroupNr::ZERO, 0..CLUSTERS, 0, CpuSlot::ZERO, discard).unwrap()
            };
            let trimmer: Body = Box::new(move |yard| _ = trim(yard));
            let user: Body = Box::new(|yard| {
                // The request succeeds even while every free cluster is held for the discard.
                let extent = yard.ask(1, 0, 3, EXACT).unwrap();
                yard.disown(extent);
                yard.free(extent, None, 1);
                assert!(yard.ask(1, 4, 2, EXACT).is_some());
            });
            let evicter: Body = Box::new(|yard| _ = yard.allocator.evict_all(CpuSlot::ZERO));
            together(&yard, vec![trimmer, user, evicter]);
            yard.check(8);
            let again = trim(&yard).raw();
            assert!(again <= 8 - yard.owned() as u64);
            assert_eq!(trim(&yard).raw(), 0, "nothing became free");
        }
    });
}
