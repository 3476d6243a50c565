//! Two writers append in turns, and each truncates its file before it writes the next. Under `yard`
//! each stays in its lane, even if the lane's group is full of clusters that wait for a commit.
//!
//! Without `overflow=lane`, a writer whose group is full takes a group from the index. The index
//! contains only groups that were loaded, among them the group of the other writer.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::Arc;

use blockyard_alloc::memory::MemoryBitmaps;
use blockyard_alloc::{
    AllocConfig, Allocator, BlockRequest, FreeContext, FreedExtent, InodeAlloc, Neighbour, Policy,
    RequestFlags,
};
use blockyard_disk::num::u64_from_u32;
use blockyard_disk::{BlockNr, Geometry, GroupNr, InodeNr, LogicalBlock, TxnId};
use blockyard_sync::CpuSlot;

/// Clusters of one request.
const STEP: u32 = 2;
/// Clusters of a file when it is truncated.
const SIZE: u32 = 256;
/// Files that a writer writes before a commit. Together they have 1.5 times as many clusters as a
/// group.
const FILES: u32 = 192;

/// A writer on a CPU of its own, and the file that it extends as fallocate does.
struct Writer {
    cpu: CpuSlot,
    alloc: InodeAlloc,
    extents: Vec<FreedExtent>,
}

struct Bench {
    allocator: Allocator,
    disk: Arc<MemoryBitmaps>,
    geometry: Geometry,
}

impl Bench {
    fn new(policy: &str) -> Self {
        let mut config = AllocConfig::new(MemoryBitmaps::plain_geometry(64, 4));
        config.policy = Policy::parse(policy).unwrap();
        config.reserved = Some(0);
        config.cpus = 2;
        let disk = MemoryBitmaps::new(config.geometry, 10);
        let allocator = Allocator::open(&config, disk.clone(), &disk.facts()).unwrap();
        Self { allocator, disk, geometry: config.geometry }
    }

    fn block(&self, group: GroupNr, start: u32) -> BlockNr {
        BlockNr::new(self.geometry.group_first_block(group).raw() + u64_from_u32(start))
    }

    /// Appends to the file, whose inode is in group 0.
    fn append(&self, writer: &mut Writer) {
        let at: u32 = writer.extents.iter().map(|extent| extent.count).sum();
        let left = writer.extents.last().map(|last| Neighbour {
            logical: LogicalBlock::new(at - 1),
            physical: self.block(last.group, last.start + last.count - 1),
        });
        let inode = InodeNr::new(12 + writer.cpu.raw());
        let request = BlockRequest {
            goal: left.map_or(self.block(GroupNr::new(1), 0), |left| BlockNr::new(left.physical.raw() + 1)),
            left,
            file_size: 4096 * u64_from_u32(at + STEP),
            cpu: writer.cpu,
            flags: RequestFlags::DATA | RequestFlags::NO_NORMALIZE,
            ..BlockRequest::data(inode, GroupNr::new(0), LogicalBlock::new(at), STEP)
        };
        let got = self.disk.commit(self.allocator.allocate(&request, &writer.alloc).unwrap());
        match writer.extents.last_mut() {
            Some(last) if last.group == got.group && last.start + last.count == got.start => {
                last.count += got.count;
            }
            _ => writer.extents.push(got),
        }
    }

    fn truncate(&self, writer: &mut Writer, txn: TxnId) {
        let context = FreeContext {
            txn: Some(txn),
            cpu: writer.cpu,
            keep_partial_first: false,
            keep_partial_last: false,
            reserve_again: false,
        };
        for extent in writer.extents.drain(..) {
            let first = self.block(extent.group, extent.start);
            self.allocator.free(first, u64_from_u32(extent.count), context).unwrap();
            self.disk.write(extent.group, extent.start, extent.count, false);
        }
    }

    /// Lets two writers append in turns. Commits when each has written [`FILES`] files, three times
    /// in all. Returns the highest number of extents of a file, and the groups to which both wrote.
    fn write_in_turns(&self) -> (usize, Vec<GroupNr>) {
        let mut writers = [0, 1].map(|cpu| Writer {
            cpu: CpuSlot::new(cpu),
            alloc: InodeAlloc::new(),
            extents: Vec::new(),
        });
        let mut groups = [BTreeSet::new(), BTreeSet::new()];
        let mut most = 0;
        for txn in 1..=3 {
            let txn = TxnId::new(txn);
            for _ in 0..FILES {
                for _ in 0..SIZE / STEP {
                    writers.iter_mut().for_each(|writer| self.append(writer));
                }
                for (writer, groups) in writers.iter_mut().zip(&mut groups) {
                    most = most.max(writer.extents.len());
                    groups.extend(writer.extents.iter().map(|extent| extent.group));
                    self.truncate(writer, txn);
                }
            }
            self.allocator.commit(txn, CpuSlot::ZERO);
        }
        (most, groups[0].intersection(&groups[1]).copied().collect())
    }
}

#[test]
fn writers_do_not_meet_where_clusters_wait_for_a_commit() {
    assert_eq!(Bench::new("yard").write_in_turns(), (1, Vec::new()));
}

/// Both slots are needed. Without `overflow=lane` the writers share a group, and a file has several
/// extents. Without `room=run` they share none, but a file has several extents.
#[test]
fn without_lanes_that_go_on_writers_meet() {
    let (most, shared) = Bench::new("yard:overflow=index").write_in_turns();
    assert!(most > 1 && !shared.is_empty(), "{most} extents, both wrote to {shared:?}");
    let (most, shared) = Bench::new("yard:room=any").write_in_turns();
    assert!(most > 1 && shared.is_empty(), "{most} extents, both wrote to {shared:?}");
}
