//! A deterministic model of overlapping operations: how files interleave when many CPUs append at
//! the same time.
//!
//! In a round every CPU whose file is not full appends once, in CPU order. Under
//! [`Interleave::Overlap`] all operations of a round are in flight together: each seems to keep the
//! lock of the group it allocated in until the round ends. So a policy that skips busy groups
//! allocates in another group. A policy that waits for busy groups does not wait here: it allocates
//! in the group at once, as it would after the wait. Under [`Interleave::Lockstep`] the operations
//! run one after another. One thread does everything, so a run is repeatable to the block.
//!
//! The workload is the published `append64` as pure allocation: each CPU appends blocks to its own
//! file with `fallocate`, without preallocating the whole file.

use std::sync::Arc;

use blockyard_alloc::goals::{inode_goal, neighbour_goal};
use blockyard_alloc::memory::MemoryBitmaps;
use blockyard_alloc::{
    AllocConfig, AllocError, Allocator, BlockRequest, InitMode, InodeAlloc, LockCensus, Neighbour, Policy,
    RequestFlags, Tunable,
};
use blockyard_disk::num::{count_as_f64, u32_from_usize, u64_from_u32};
use blockyard_disk::{BlockNr, GroupNr, InodeNr, LogicalBlock};
use blockyard_sync::{CpuSlot, Native};

use crate::held_locks::HeldLocks;

/// How the operations of a round relate in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interleave {
    /// One after the other.
    Lockstep,
    /// All in flight until the round ends.
    Overlap,
}

/// One run of the model.
#[derive(Clone, Debug)]
pub struct OverlapRun {
    /// The policy.
    pub policy: Policy,
    /// How operations relate in time.
    pub interleave: Interleave,
    /// Number of groups. Each has 128 MiB in blocks of 4 KiB, and a flex group has 16 groups.
    pub groups: u32,
    /// CPUs, each with one file.
    pub cpus: u32,
    /// Blocks after which a file is full. Its last append may end beyond them.
    pub blocks_per_file: u32,
    /// Blocks per append.
    pub append: u32,
}

impl OverlapRun {
    /// The published `append64`: 64 files of 1 GiB in steps of 4 KiB on 200 GiB.
    #[must_use]
    pub fn append64(policy: Policy, interleave: Interleave) -> Self {
        Self { policy, interleave, groups: 1600, cpus: 64, blocks_per_file: 262_144, append: 1 }
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct OverlapFigures {
    /// Mean number of extents of a file.
    pub extents_per_file: f64,
    /// Most extents of a file.
    pub extents_per_file_max: u32,
    /// Free runs over the whole file system, joined across groups.
    pub free_extents: u64,
    /// Mean length of a free run in blocks.
    pub free_extent_mean: f64,
    /// Requests served.
    pub requests: u64,
    /// Index entries visited.
    pub index_entries: u64,
    /// Groups skipped because they were busy.
    pub busy_skips: u64,
    /// Groups whose bitmap was scanned.
    pub groups_scanned: u64,
    /// Lock acquisitions.
    pub locks: LockCensus,
}

/// One file being appended to.
#[derive(Default)]
struct File {
    state: InodeAlloc<Native>,
    blocks: u32,
    last: Option<Neighbour>,
    extents: u32,
}

/// Runs the model.
///
/// # Errors
/// [`AllocError::NoSpace`] when the files do not fit.
pub fn run(run: &OverlapRun) -> Result<OverlapFigures, AllocError> {
    let geometry = MemoryBitmaps::plain_geometry(run.groups, 4);
    let disk = MemoryBitmaps::new(geometry, 0);
    let config = AllocConfig {
        policy: run.policy,
        cpus: run.cpus,
        init: InitMode::AtOpen,
        memory_max: u64::MAX,
        ..AllocConfig::new(geometry)
    };
    let allocator = Allocator::<Native>::open(&config, disk.clone(), &disk.facts())?;
    allocator.set_tunable(Tunable::Stats, 1)?;
    let held = Arc::new(HeldLocks::new(&allocator));
    allocator.set_lock_model(Some(Arc::<HeldLocks>::clone(&held)));
    let mut files: Vec<File> = (0..run.cpus).map(|_| File::default()).collect();
    while files.iter().any(|file| file.blocks < run.blocks_per_file) {
        for (cpu, file) in (0..).zip(&mut files) {
            if file.blocks >= run.blocks_per_file {
                continue;
            }
            let group = append(&allocator, run, cpu, file)?;
            if run.interleave == Interleave::Overlap {
                held.hold(&allocator, group);
            }
        }
        held.release_all();
    }
    Ok(figures(&allocator, &files))
}

/// Appends to a file by one `fallocate`; returns the group it allocated in.
fn append(allocator: &Allocator, run: &OverlapRun, cpu: u32, file: &mut File) -> Result<GroupNr, AllocError> {
    let geometry = allocator.geometry();
    // Files in one directory: their inodes are adjacent in the group of the directory.
    let inode = InodeNr::new(12 + cpu);
    let logical = LogicalBlock::new(file.blocks);
    let goal = match file.last {
        Some(last) => neighbour_goal(logical, last.logical, last.physical),
        None => inode_goal(geometry, GroupNr::ZERO, true, None),
    };
    let request = BlockRequest {
        goal,
        left: file.last,
        file_size: u64_from_u32(file.blocks) << geometry.block_bits(),
        cpu: CpuSlot::new(cpu),
        flags: RequestFlags::DATA | RequestFlags::NO_NORMALIZE,
        ..BlockRequest::data(inode, GroupNr::ZERO, logical, run.append)
    };
    let claim = allocator.allocate(&request, &file.state)?;
    let (first, count, group) = (claim.first_block(), claim.clusters(), claim.group());
    claim.commit();
    let follows = file.last.is_some_and(|last| last.physical.raw() + 1 == first.raw());
    file.extents += u32::from(!follows);
    file.blocks += count;
    file.last = Some(Neighbour {
        logical: LogicalBlock::new(file.blocks - 1),
        physical: BlockNr::new(first.raw() + u64_from_u32(count) - 1),
    });
    Ok(group)
}

fn figures(allocator: &Allocator, files: &[File]) -> OverlapFigures {
    let stats = allocator.stats();
    let (free_extents, free) = allocator.free_runs();
    let extents: u32 = files.iter().map(|file| file.extents).sum();
    OverlapFigures {
        extents_per_file: f64::from(extents) / f64::from(u32_from_usize(files.len())),
        extents_per_file_max: files.iter().map(|file| file.extents).max().unwrap_or(0),
        free_extents,
        free_extent_mean: count_as_f64(free) / count_as_f64(free_extents.max(1)),
        requests: stats.requests[0],
        index_entries: stats.index_entries[0],
        busy_skips: stats.busy_skips[0],
        groups_scanned: stats.groups_scanned[0],
        locks: allocator.lock_census(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(policy: &str, interleave: Interleave) -> f64 {
        let policy = Policy::parse(policy).unwrap();
        let small =
            OverlapRun { policy, interleave, groups: 64, cpus: 8, blocks_per_file: 40_000, append: 1 };
        run(&small).unwrap().extents_per_file
    }

    /// In lockstep, under both kernels' policies, nearly every block is an extent of its own.
    #[test]
    fn lockstep_interleaves_under_both_kernels() {
        for policy in ["linux-6.16", "linux-6.18"] {
            let extents = extents(policy, Interleave::Lockstep);
            assert!(extents > 39_000.0, "{policy}: {extents}");
        }
    }

    /// With overlap, the writers spread apart if the policy skips busy groups and has several
    /// stream goals.
    #[test]
    fn overlap_parts_the_writers_when_busy_groups_are_skipped() {
        assert!(extents("linux-6.16", Interleave::Overlap) > 39_000.0);
        let new = extents("linux-6.18", Interleave::Overlap);
        assert!(new < 400.0, "{new}");
        assert!(extents("yard", Interleave::Overlap) <= new);
    }

    /// Two files that grow in turns of one block get one extent for every block.
    #[test]
    fn figures_are_those_of_the_files_and_of_what_they_left() {
        let policy = Policy::parse("linux-6.18").unwrap();
        let (groups, cpus, blocks_per_file) = (2, 2, 50);
        let interleave = Interleave::Lockstep;
        let left = run(&OverlapRun { policy, interleave, groups, cpus, blocks_per_file, append: 1 }).unwrap();
        assert_eq!((left.extents_per_file, left.extents_per_file_max), (50.0, 50));
        // The files are adjacent, at a position that the goals determine. Everything before and
        // after is free.
        let free = count_as_f64(left.free_extents) * left.free_extent_mean;
        assert!(left.free_extents <= 2 && free == f64::from(2 * 32_768 - 100), "{left:?}");
        assert_eq!((left.requests, left.busy_skips), (100, 0));
        assert!(left.groups_scanned > 0, "{left:?}");
        let alone =
            run(&OverlapRun { policy, interleave, groups, cpus: 1, blocks_per_file: 60, append: 3 }).unwrap();
        // While the file is small, its blocks come from the locality group; later it gets space of
        // its own.
        assert_eq!((alone.extents_per_file, alone.requests), (2.0, 20));
    }

    #[test]
    fn files_count_alike_in_the_mean() {
        let geometry = MemoryBitmaps::plain_geometry(2, 4);
        let disk = MemoryBitmaps::new(geometry, 100);
        let config = AllocConfig { init: InitMode::AtOpen, ..AllocConfig::new(geometry) };
        let allocator = Allocator::<Native>::open(&config, disk.clone(), &disk.facts()).unwrap();
        let files = [3, 5, 7, 1].map(|extents| File { extents, ..File::default() });
        let left = figures(&allocator, &files);
        assert_eq!((left.extents_per_file, left.extents_per_file_max), (4.0, 7));
        // The metadata at the start of each group separates the free runs.
        assert_eq!((left.free_extents, left.free_extent_mean), (2, 32_668.0));
    }
}
