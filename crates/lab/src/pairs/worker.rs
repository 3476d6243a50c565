//! The smallest load that shows whether an allocator scales: allocate/free pairs in memory.
//!
//! A pair is one allocation of 8 KiB and the free of its clusters. The allocation is requested as
//! by `fallocate`, and continues a file that is past the small-file limit. So a pair is one
//! decision, one claim, and two changes to a group. Each worker has its own file and a CPU slot.
//! The caller starts the threads and measures the time.

use blockyard_alloc::memory::MemoryBitmaps;
use blockyard_alloc::{
    AllocConfig, AllocError, Allocator, BlockRequest, EventRings, FreeContext, InitMode, InodeAlloc,
    Neighbour, Policy, RequestFlags,
};
use blockyard_disk::{BlockNr, GroupNr, InodeNr, LogicalBlock};
use blockyard_sync::{Backend, CpuSlot, Native};

/// Blocks that a file has before each pair: more than the small-file limit.
const SIZE: u32 = 64;
/// Blocks that a pair allocates and frees.
const LENGTH: u32 = 2;
/// Metadata clusters at the start of each group.
const OVERHEAD: u32 = 600;
/// Groups of 128 MiB each: 64 GiB in all.
const GROUPS: u32 = 512;
/// Events kept for each CPU slot.
const EVENTS: u32 = 256;

/// The allocator of an empty file system of 64 GiB in memory, all groups loaded, events on.
///
/// # Errors
/// [`AllocError::BadConfig`] for no CPU or a policy that cannot work.
pub fn open<B: Backend>(policy: Policy, cpus: u32) -> Result<Allocator<B>, AllocError> {
    let geometry = MemoryBitmaps::plain_geometry(GROUPS, 4);
    let disk = MemoryBitmaps::new(geometry, OVERHEAD);
    let facts = disk.facts();
    let config = AllocConfig { policy, cpus, init: InitMode::AtOpen, ..AllocConfig::new(geometry) };
    Ok(Allocator::open(&config, disk, &facts)?.with_events(EventRings::<B>::new(cpus, EVENTS)))
}

/// One file and the CPU slot that works on it.
#[derive(Debug)]
pub struct PairWorker<'a, B: Backend = Native> {
    allocator: &'a Allocator<B>,
    inode: InodeAlloc<B>,
    cpu: u32,
    /// The number of its file.
    file: u32,
    left: Option<Neighbour>,
}

impl<'a, B: Backend> PairWorker<'a, B> {
    /// The worker of a CPU slot.
    #[must_use]
    pub fn new(allocator: &'a Allocator<B>, cpu: u32) -> Self {
        Self::of_file(allocator, cpu, cpu)
    }

    /// One of several workers of a CPU slot. `file` is the number of its file.
    #[must_use]
    pub fn of_file(allocator: &'a Allocator<B>, file: u32, cpu: u32) -> Self {
        Self { allocator, inode: InodeAlloc::new(), cpu, file, left: None }
    }

    /// Makes pairs, one after the other.
    ///
    /// # Errors
    /// Those of the allocator; none on a file system with space for every worker.
    // Not inlined, so that every caller measures the same machine code.
    #[inline(never)]
    pub fn run(&mut self, pairs: u64) -> Result<(), AllocError> {
        let slot = CpuSlot::new(self.cpu);
        for _ in 0..pairs {
            let request = BlockRequest {
                left: self.left,
                file_size: u64::from(SIZE) * 4096,
                cpu: slot,
                flags: RequestFlags::DATA | RequestFlags::NO_NORMALIZE,
                ..BlockRequest::data(
                    InodeNr::new(12 + self.file),
                    GroupNr::ZERO,
                    LogicalBlock::new(SIZE),
                    LENGTH,
                )
            };
            let claim = self.allocator.allocate(&request, &self.inode)?;
            let first = claim.first_block();
            claim.commit();
            let context = FreeContext { cpu: slot, ..FreeContext::default() };
            self.allocator.free(first, u64::from(LENGTH), context)?;
            self.left = Some(Neighbour {
                logical: LogicalBlock::new(SIZE - 1),
                physical: BlockNr::new(first.raw() - 1),
            });
        }
        Ok(())
    }

    /// The group of the last pair; group 0 before the first pair.
    #[must_use]
    pub fn group(&self) -> GroupNr {
        self.left.map_or(GroupNr::ZERO, |left| self.allocator.geometry().group_of(left.physical))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After the pairs, as many clusters are free as before. Under linux-6.16 a pair takes a lock
    /// that all workers share; under the other two policies it takes no such lock.
    #[test]
    fn pairs_leave_nothing_behind() {
        for policy in ["linux-6.16", "linux-6.18", "yard"] {
            let allocator: Allocator = open(Policy::parse(policy).unwrap(), 2).unwrap();
            let before = allocator.free_clusters();
            for cpu in [0, 1] {
                PairWorker::new(&allocator, cpu).run(100).unwrap();
            }
            assert_eq!(allocator.free_clusters(), before);
            let shared = allocator.lock_census().shared_acquisitions();
            assert_eq!(shared > 0, policy == "linux-6.16", "{policy}: {shared}");
        }
    }
}
