//! What every preset must do, checked against a map of clusters: never hand out a cluster twice, nor one that is
//! reserved by metadata, freed and uncommitted, or kept for another file; say "no space" only when there is none; do
//! the same for the same requests. Failing operation sequences shrink.

#![allow(clippy::unwrap_used, clippy::as_conversions)]

use std::collections::BTreeMap;
use std::sync::Arc;

use blockyard_alloc::memory::MemoryBitmaps;
use blockyard_alloc::{
    AllocConfig, AllocError, Allocator, BlockRequest, FreeContext, FreedExtent, InitMode, InodeAlloc,
    Neighbour, Policy, RequestFlags,
};
use blockyard_disk::geometry::GeometryFields;
use blockyard_disk::{BlockCount, BlockNr, Geometry, GroupNr, InodeNr, LogicalBlock, TxnId};
use blockyard_sync::CpuSlot;
use proptest::prelude::*;

const FILES: usize = 6;
const OVERHEAD: u32 = 20;

#[derive(Clone, Debug)]
enum Op {
    /// Append to a file: clusters, kind of request, CPU.
    Append {
        file: usize,
        clusters: u32,
        kind: u8,
        cpu: u32,
    },
    /// Allocate, then give the claim back.
    Release {
        file: usize,
        clusters: u32,
    },
    /// Free the last clusters of a file in the running transaction, or at once.
    Truncate {
        file: usize,
        clusters: u32,
        at_once: bool,
    },
    Commit,
    Close {
        file: usize,
    },
    Evict,
    ToggleScan,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let file = 0..FILES;
    let op = prop_oneof![
        8 => (file.clone(), prop_oneof![1..20u32, 1..700u32], 0..4u8, 0..3u32)
            .prop_map(|(file, clusters, kind, cpu)| Op::Append { file, clusters, kind, cpu }),
        1 => (file.clone(), 1..100u32).prop_map(|(file, clusters)| Op::Release { file, clusters }),
        4 => (file.clone(), 1..900u32, prop::bool::weighted(0.3))
            .prop_map(|(file, clusters, at_once)| Op::Truncate { file, clusters, at_once }),
        2 => Just(Op::Commit),
        1 => file.prop_map(|file| Op::Close { file }),
        1 => Just(Op::Evict),
        1 => Just(Op::ToggleScan),
    ];
    prop::collection::vec(op, 1..250)
}

/// What a cluster is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Metadata,
    File(usize),
    Pending,
}

struct Model {
    allocator: Allocator,
    disk: Arc<MemoryBitmaps>,
    geometry: Geometry,
    inodes: Vec<InodeAlloc>,
    /// Blocks of each file, one per cluster, in logical order.
    files: Vec<Vec<u64>>,
    used: BTreeMap<u64, Use>,
    pending: Vec<u64>,
    txn: TxnId,
    places: Vec<(u64, u32)>,
}

fn geometry(ratio_bits: u32) -> Geometry {
    Geometry::new(GeometryFields {
        block_bits: 12,
        cluster_ratio_bits: ratio_bits,
        blocks_count: BlockCount::new((20 * 1024 - 100) << ratio_bits),
        first_data_block: BlockNr::ZERO,
        clusters_per_group: 1024,
        inodes_per_group: 512,
        inode_size: 256,
        flex_bits: 2,
    })
    .unwrap()
}

impl Model {
    fn new(policy: &str, ratio_bits: u32) -> Self {
        let geometry = geometry(ratio_bits);
        let disk = MemoryBitmaps::new(geometry, OVERHEAD);
        let mut config = AllocConfig::new(geometry);
        config.policy = Policy::parse(policy).unwrap();
        config.reserved = Some(0);
        config.cpus = 3;
        config.init = InitMode::Lazy;
        config.memory_max = 60_000;
        let allocator = Allocator::open(&config, disk.clone(), &disk.facts()).unwrap();
        let mut used = BTreeMap::new();
        for group in geometry.all_groups() {
            let first = geometry.cluster_of(geometry.group_first_block(group)).raw();
            for cluster in first..first + u64::from(OVERHEAD) {
                used.insert(cluster, Use::Metadata);
            }
        }
        Self {
            allocator,
            disk,
            geometry,
            inodes: (0..FILES).map(|_| InodeAlloc::new()).collect(),
            files: vec![Vec::new(); FILES],
            used,
            pending: Vec::new(),
            txn: TxnId::new(7),
            places: Vec::new(),
        }
    }

    fn request(&self, file: usize, clusters: u32, kind: u8, cpu: u32) -> BlockRequest {
        let ratio = self.geometry.cluster_ratio();
        let logical = self.files[file].len() as u32 * ratio;
        let left = self.files[file].last().map(|&cluster| Neighbour {
            logical: LogicalBlock::new(logical - 1),
            physical: BlockNr::new((cluster + 1) * u64::from(ratio) - 1),
        });
        let flags = match kind {
            0 | 1 => RequestFlags::DATA,
            2 => RequestFlags::DATA | RequestFlags::NO_NORMALIZE,
            _ => RequestFlags::METADATA,
        };
        BlockRequest {
            flags,
            left,
            goal: left.map_or(BlockNr::new(file as u64 * 3000), |left| BlockNr::new(left.physical.raw() + 1)),
            file_size: (u64::from(logical) + u64::from(clusters * ratio)) * 4096,
            writer_open: kind != 1,
            cpu: CpuSlot::new(cpu),
            ..BlockRequest::data(
                InodeNr::new(12 + file as u32),
                GroupNr::new(file as u32),
                LogicalBlock::new(logical),
                clusters,
            )
        }
    }

    fn clusters_free(&self) -> u64 {
        self.geometry.clusters_count().raw() - self.used.len() as u64
    }

    /// Clusters that are free and kept for nobody: all that anybody may be refused for is what others hold.
    fn allocate(&mut self, file: usize, clusters: u32, kind: u8, cpu: u32, keep: bool) {
        let request = self.request(file, clusters, kind, cpu);
        match self.allocator.allocate(&request, &self.inodes[file]) {
            Ok(claim) => {
                assert!(claim.clusters() >= 1 && claim.clusters() <= clusters);
                let first = self.geometry.cluster_of(claim.first_block()).raw();
                let range = first..first + u64::from(claim.clusters());
                self.places.push((first, claim.clusters()));
                for cluster in range.clone() {
                    assert_eq!(self.used.get(&cluster), None, "cluster {cluster} was handed out");
                }
                if !keep {
                    return claim.release();
                }
                self.disk.commit(claim);
                for cluster in range {
                    self.used.insert(cluster, Use::File(file));
                    self.files[file].push(cluster);
                }
            }
            Err(AllocError::NoSpace(why)) => {
                assert_eq!(self.clusters_free(), 0, "refused although clusters are free");
                assert_eq!(why.pending_clusters, self.pending.len() as u64);
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn truncate(&mut self, file: usize, clusters: u32, at_once: bool) {
        let cpu = CpuSlot::ZERO;
        self.allocator.discard_inode_preallocations(&self.inodes[file], cpu);
        let ratio = u64::from(self.geometry.cluster_ratio());
        for _ in 0..clusters {
            let Some(cluster) = self.files[file].pop() else { break };
            let (group, offset) = self.geometry.locate(BlockNr::new(cluster * ratio));
            let context = FreeContext { txn: (!at_once).then_some(self.txn), cpu, ..FreeContext::default() };
            let blocks = ratio.min(self.geometry.blocks_count().raw() - cluster * ratio);
            let clear = |extent: FreedExtent| {
                assert_eq!((extent.group, extent.start, extent.count), (group, offset.raw(), 1));
                self.disk.write(group, offset.raw(), 1, false);
                Ok::<(), AllocError>(())
            };
            let first = BlockNr::new(cluster * ratio);
            assert_eq!(self.allocator.free_with(first, blocks, context, clear).unwrap(), 1);
            let again = self.allocator.free(first, blocks, context);
            assert!(matches!(again, Err(AllocError::DoubleFree { .. })), "{again:?}");
            if at_once {
                self.used.remove(&cluster);
            } else {
                self.used.insert(cluster, Use::Pending);
                self.pending.push(cluster);
            }
        }
    }

    fn commit(&mut self) {
        self.allocator.commit(self.txn, CpuSlot::ZERO);
        self.txn = self.txn.next();
        for cluster in self.pending.drain(..) {
            self.used.remove(&cluster);
        }
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Append { file, clusters, kind, cpu } => self.allocate(file, clusters, kind, cpu, true),
            Op::Release { file, clusters } => self.allocate(file, clusters, 0, 0, false),
            Op::Truncate { file, clusters, at_once } => self.truncate(file, clusters, at_once),
            Op::Commit => self.commit(),
            Op::Close { file } => {
                self.allocator.discard_inode_preallocations(&self.inodes[file], CpuSlot::ZERO);
            }
            Op::Evict => {
                self.allocator.evict_all(CpuSlot::ZERO);
            }
            Op::ToggleScan => self.allocator.set_optimize_scan(!self.allocator.optimize_scan()),
        }
    }

    /// With everything committed and every preallocation used up, what is left is exactly what the map has left.
    fn finish(mut self) {
        self.commit();
        assert_eq!(self.allocator.pending_clusters(), 0);
        assert_eq!(self.allocator.free_clusters().free, self.clusters_free());
        let before = self.allocator.groups().unwrap();
        self.allocator.evict_all(CpuSlot::ZERO);
        let after = self.allocator.groups().unwrap();
        for (before, after) in before.iter().zip(&after) {
            assert!(!after.corrupt, "group {} after a reload", after.group);
            assert_eq!(
                (before.free, before.fragments, &before.chunks),
                (after.free, after.fragments, &after.chunks)
            );
        }
        while self.clusters_free() > 0 {
            self.allocate(0, 700, 2, 0, true);
        }
        self.allocate(0, 1, 2, 0, true);
    }
}

fn conform(policy: &str, ops: &[Op]) {
    for ratio_bits in [0, 4] {
        let mut model = Model::new(policy, ratio_bits);
        let mut twin = Model::new(policy, ratio_bits);
        for op in ops {
            model.run(op);
            twin.run(op);
        }
        assert_eq!(model.places, twin.places, "the same requests, other places");
        model.finish();
    }
}

fn config() -> ProptestConfig {
    let cases = if blockyard_testkit::full_matrix() { 400 } else { 12 };
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) }
}

macro_rules! conformance {
    ($($name:ident: $policy:literal,)+) => {
        proptest! {
            #![proptest_config(config())]
            $(#[test]
            fn $name(ops in ops()) {
                conform($policy, &ops);
            })+
        }

        #[test]
        fn every_preset_is_checked() {
            let checked = [$($policy),+];
            for preset in blockyard_alloc::policy::PRESETS {
                assert!(checked.contains(&preset.policy.preset), "{}", preset.policy.preset);
            }
        }
    };
}

conformance! {
    linux_6_16: "linux-6.16",
    linux_6_18: "linux-6.18",
    rotalloc_v1: "rotalloc-v1",
    rralloc_v2: "rralloc-v2",
    rralloc_v3_regular: "rralloc-v3-regular",
    inode_cursor: "inode-cursor",
    rralloc: "rralloc",
    first_fit: "first-fit",
    best_fit: "best-fit",
    yard: "yard",
    series_up_to_15: "linux-6.18:visit=choose:sweep=per-set",
    series_up_to_16: "linux-6.18:sweep=per-set:locks=hashed",
    stable_backport: "linux-6.18:stream_goal=offset:slot_lock=md:slots=one:free_pending=md:freed_merge=after",
}
