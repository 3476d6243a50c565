//! The file systems that the suite runs on. They have few clusters, so that they are often full.

use std::sync::Arc;

use blockyard_alloc::memory::MemoryBitmaps;
use blockyard_alloc::{AllocConfig, Policy};
use blockyard_disk::geometry::GeometryFields;
use blockyard_disk::{BlockCount, BlockNr, Geometry};

/// Number of CPU slots.
pub(crate) const CPUS: u32 = 3;
/// Metadata clusters at the start of every group.
pub(crate) const OVERHEAD: u32 = 9;

/// A small file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    block_bits: u32,
    ratio_bits: u32,
    clusters_per_group: u32,
    groups: u32,
    /// Clusters of the last group.
    last_group: u32,
    flex_bits: u32,
    stripe: u32,
}

/// In this order: 1 KiB blocks with flex groups of 4; 4 KiB blocks without flex groups but with a
/// stripe; clusters of 16 blocks with enough groups for searches that use the group indexes.
pub(crate) const SHAPES: [Shape; 3] = [
    Shape {
        block_bits: 10,
        ratio_bits: 0,
        clusters_per_group: 768,
        groups: 6,
        last_group: 100,
        flex_bits: 2,
        stripe: 0,
    },
    Shape {
        block_bits: 12,
        ratio_bits: 0,
        clusters_per_group: 1024,
        groups: 3,
        last_group: 1024,
        flex_bits: 0,
        stripe: 16,
    },
    Shape {
        block_bits: 12,
        ratio_bits: 4,
        clusters_per_group: 96,
        groups: 19,
        last_group: 30,
        flex_bits: 3,
        stripe: 0,
    },
];

impl Shape {
    pub(crate) fn geometry(&self) -> Geometry {
        let first = u64::from(self.block_bits == 10 && self.ratio_bits == 0);
        let clusters = u64::from(self.clusters_per_group * (self.groups - 1) + self.last_group);
        Geometry::new(GeometryFields {
            block_bits: self.block_bits,
            cluster_ratio_bits: self.ratio_bits,
            blocks_count: BlockCount::new((clusters << self.ratio_bits) + first),
            first_data_block: BlockNr::new(first),
            clusters_per_group: self.clusters_per_group,
            inodes_per_group: 64,
            inode_size: 256,
            flex_bits: self.flex_bits,
        })
        .unwrap()
    }

    /// An empty file system of this shape.
    pub(crate) fn disk(&self) -> Arc<MemoryBitmaps> {
        MemoryBitmaps::new(self.geometry(), OVERHEAD)
    }

    /// A configuration without reserves, and with memory for only three groups, so that groups are
    /// evicted and loaded again.
    pub(crate) fn config(&self, policy: Policy) -> AllocConfig {
        AllocConfig {
            policy,
            cpus: CPUS,
            reserved: Some(0),
            stripe: self.stripe,
            memory_max: 3 * (2 * (1 << self.block_bits) + 512),
            seed: 7,
            ..AllocConfig::new(self.geometry())
        }
    }

    /// Clusters that data may use.
    pub(crate) fn usable(&self) -> u64 {
        let geometry = self.geometry();
        geometry.all_groups().map(|group| u64::from(geometry.clusters_in_group(group) - OVERHEAD)).sum()
    }
}
