//! `lab census`: counts how often an allocation, the free of an extent, and a commit take the
//! allocator's file-system-wide locks, with and without patches of Linux 6.17's scalability series.
//!
//! The same load, single-threaded and repeatable, runs under several policies:
//!
//! - `linux-6.16`, alone and with one or more patches of the series;
//! - `linux-6.18` and `yard`;
//! - any policies that the caller adds.
//!
//! Acquisitions are counted, not waits: one thread never waits, but many CPUs would queue on these
//! locks. Reader-writer locks protect the lists of groups. An acquisition by a reader, who picks a
//! group from a list, counts as much as one by a writer, who changes the list.

use std::sync::Arc;

use anyhow::{Context, Result};
use blockyard_alloc::memory::MemoryBitmaps;
use blockyard_alloc::{
    AllocConfig, AllocError, Allocator, BlockRequest, FreeContext, FreedExtent, InitMode, InodeAlloc,
    LockCensus, Neighbour, Policy, RequestFlags,
};
use blockyard_disk::num::{count_as_f64, u64_from_u32};
use blockyard_disk::{BlockNr, GroupNr, InodeNr, LogicalBlock, TxnId};
use blockyard_sync::{CpuSlot, LockClassFigures};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use crate::figures::Table;
use crate::run::refuse_twice;

/// The built-in arms: the number of the patch with the slot that it changes, and the policy.
const ARMS: [(&str, &str); 14] = [
    ("none: `linux-6.16`", "linux-6.16"),
    ("1 `busy=skip`", "linux-6.16:busy=skip"),
    ("2 `stream_goal=group-only`", "linux-6.16:stream_goal=group-only"),
    ("4 `slot_lock=none`", "linux-6.16:slot_lock=none"),
    ("5 `slots=hashed`", "linux-6.16:slots=hashed"),
    ("8 `free_pending=atomic`", "linux-6.16:free_pending=atomic"),
    ("9 `freed_merge=before`", "linux-6.16:freed_merge=before"),
    ("8 and 9", "linux-6.16:free_pending=atomic:freed_merge=before"),
    ("10 `full_groups=drop`", "linux-6.16:full_groups=drop"),
    ("15 `order_index=by-group`", "linux-6.16:order_index=by-group"),
    ("15, 16 `visit=scan`", "linux-6.16:order_index=by-group:visit=scan"),
    ("15, 16, 17 `sweep=per-range`", "linux-6.16:order_index=by-group:visit=scan:sweep=per-range"),
    ("all: `linux-6.18`", "linux-6.18"),
    ("`yard`", "yard"),
];

const GROUPS: u32 = 64;
const FILES: u32 = 8;
const STEPS: u32 = 6000;
/// Steps between two commits.
const COMMIT_EVERY: u32 = 64;

/// The figures of one arm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CensusRow {
    /// The patch and the slot that it changes, or the policy in backquotes.
    pub arm: String,
    /// Allocations.
    pub allocations: u64,
    /// Freed extents.
    pub freed: u64,
    /// Acquisitions by allocations.
    pub allocating: Taken,
    /// Acquisitions by frees.
    pub freeing: Taken,
    /// Acquisitions by commits.
    pub committing: Taken,
    /// Most acquisitions of shared locks by one allocation.
    pub allocation_most: u64,
    /// Most acquisitions of shared locks by the free of one extent, without its commit.
    pub free_most: u64,
}

/// Acquisitions of shared locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Taken {
    /// Acquisitions of the `md` lock. It guards the lists of freed extents; before patch 4, also
    /// the stream goal; and before patch 8, also the count of pending clusters.
    pub md: u64,
    /// Acquisitions of the locks of the lists of groups.
    pub lists: u64,
}

impl Taken {
    fn of(census: &LockCensus) -> Self {
        let (md, lists): (Vec<_>, Vec<_>) = census.shared.iter().partition(|(name, _)| *name == "md");
        let sum = |locks: Vec<&(&str, LockClassFigures)>| {
            locks.iter().map(|(_, figures)| figures.acquisitions).sum()
        };
        Self { md: sum(md), lists: sum(lists) }
    }

    fn since(self, before: Self) -> Self {
        Self { md: self.md - before.md, lists: self.lists - before.lists }
    }

    fn add(&mut self, more: Self) {
        self.md += more.md;
        self.lists += more.lists;
    }

    /// Acquisitions of all these locks.
    #[must_use]
    pub fn all(self) -> u64 {
        self.md + self.lists
    }
}

/// Number of built-in arms, without the policies that the caller adds.
pub const ARMS_IN_ALL: usize = ARMS.len();

/// Refuses further policies that [`run`] cannot run.
///
/// # Errors
/// Names a policy that is unknown or given twice.
pub fn check(further: &[String]) -> Result<()> {
    for text in further {
        Policy::parse(text).with_context(|| format!("--policy {text} (see blockyard policy list)"))?;
    }
    refuse_twice("--policy", further)
}

/// Runs the load under every built-in arm, then under the `further` policies. `progress` is called
/// before each run with its number (from 1) and policy.
///
/// # Errors
/// Those of [`check`], and those of the allocator, which are not expected.
pub fn run(seed: u64, further: &[String], mut progress: impl FnMut(usize, &str)) -> Result<Vec<CensusRow>> {
    check(further)?;
    let arms = ARMS.iter().map(|&(arm, policy)| (arm.to_owned(), policy.to_owned()));
    let further = further.iter().map(|policy| (format!("`{policy}`"), policy.clone()));
    let one = |(index, (arm, policy)): (usize, (String, String))| {
        progress(index + 1, &policy);
        Load::new(&policy, seed)?.run(&arm).context(arm)
    };
    arms.chain(further).enumerate().map(one).collect()
}

/// The rows as a table.
#[must_use]
pub fn table(rows: &[CensusRow]) -> Table {
    let mut table = Table::new(
        "acquisitions of shared locks, by what is changed from linux-6.16",
        [
            "patch",
            "md / allocation",
            "lists / allocation",
            "most",
            "md / freed extent",
            "most",
            "md / extent at commit",
            "lists / extent at commit",
        ],
    );
    for row in rows {
        let each = |count: u64, of: u64| format!("{:.2}", count_as_f64(count) / count_as_f64(of.max(1)));
        table.push([
            row.arm.clone(),
            each(row.allocating.md, row.allocations),
            each(row.allocating.lists, row.allocations),
            row.allocation_most.to_string(),
            each(row.freeing.md, row.freed),
            row.free_most.to_string(),
            each(row.committing.md, row.freed),
            each(row.committing.lists, row.freed),
        ]);
    }
    table
}

struct File {
    state: InodeAlloc,
    extents: Vec<(BlockNr, u32)>,
    blocks: u32,
}

/// The load: appends to files and frees of their extents at random, with commits in between.
struct Load {
    allocator: Allocator,
    disk: Arc<MemoryBitmaps>,
    files: Vec<File>,
    random: ChaCha8Rng,
    txn: u32,
    row: CensusRow,
}

impl Load {
    fn new(policy: &str, seed: u64) -> Result<Self> {
        let geometry = MemoryBitmaps::plain_geometry(GROUPS, 4);
        let disk = MemoryBitmaps::new(geometry, 100);
        // Few and short free runs, so that an allocation or a free often moves a group in the
        // index.
        for group in geometry.all_groups() {
            disk.write(group, 100, 32_668, true);
            let length = 96 << (group.raw() % 3);
            (1..8).for_each(|run| disk.write(group, run * 4000, length, false));
        }
        let config = AllocConfig {
            policy: Policy::parse(policy)?,
            cpus: FILES,
            init: InitMode::AtOpen,
            ..AllocConfig::new(geometry)
        };
        let allocator = Allocator::open(&config, disk.clone(), &disk.facts())?;
        let file = || File { state: InodeAlloc::new(), extents: Vec::new(), blocks: 0 };
        let files = (0..FILES).map(|_| file()).collect();
        let random = ChaCha8Rng::seed_from_u64(seed);
        Ok(Self { allocator, disk, files, random, txn: 1, row: CensusRow::default() })
    }

    fn run(mut self, arm: &str) -> Result<CensusRow> {
        for step in 1..=STEPS {
            let number = self.random.random_range(0..FILES);
            if self.random.random_range(0..5) < 3 {
                self.append(number)?;
            } else {
                self.free_some(number)?;
            }
            if step % COMMIT_EVERY == 0 {
                self.commit();
            }
        }
        self.commit();
        Ok(CensusRow { arm: arm.to_owned(), ..self.row })
    }

    fn taken(&self) -> Taken {
        Taken::of(&self.allocator.lock_census())
    }

    /// One `fallocate` that appends to a large file: a stream request without normalisation.
    fn append(&mut self, number: u32) -> Result<()> {
        let index = usize::try_from(number)?;
        let clusters = self.random.random_range(1..=96);
        let before = self.taken();
        let file = &self.files[index];
        let logical = 64 + file.blocks;
        let left = file.extents.last().map(|&(first, count)| Neighbour {
            logical: LogicalBlock::new(logical - 1),
            physical: BlockNr::new(first.raw() + u64_from_u32(count) - 1),
        });
        let request = BlockRequest {
            left,
            file_size: u64_from_u32(logical) * 4096,
            cpu: CpuSlot::new(number),
            flags: RequestFlags::DATA | RequestFlags::NO_NORMALIZE,
            ..BlockRequest::data(
                InodeNr::new(12 + number),
                GroupNr::ZERO,
                LogicalBlock::new(logical),
                clusters,
            )
        };
        let claim = self.allocator.allocate(&request, &file.state)?;
        let (first, count) = (claim.first_block(), claim.clusters());
        self.disk.commit(claim);
        let taken = self.taken().since(before);
        self.row.allocations += 1;
        self.row.allocating.add(taken);
        self.row.allocation_most = self.row.allocation_most.max(taken.all());
        let file = &mut self.files[index];
        file.blocks += count;
        file.extents.push((first, count));
        Ok(())
    }

    /// Frees up to four extents of a file, one after the other.
    fn free_some(&mut self, number: u32) -> Result<()> {
        let index = usize::try_from(number)?;
        for _ in 0..4 {
            let count = self.files[index].extents.len();
            if count == 0 {
                break;
            }
            let extent = self.random.random_range(0..count);
            let (first, blocks) = self.files[index].extents.remove(extent);
            let before = self.taken();
            let context = FreeContext {
                txn: Some(TxnId::new(self.txn)),
                cpu: CpuSlot::new(number),
                ..FreeContext::default()
            };
            let disk = &self.disk;
            self.allocator.free_with(first, u64_from_u32(blocks), context, |freed: FreedExtent| {
                disk.write(freed.group, freed.start, freed.count, false);
                Ok::<(), AllocError>(())
            })?;
            let taken = self.taken().since(before);
            self.row.freed += 1;
            self.row.freeing.add(taken);
            self.row.free_most = self.row.free_most.max(taken.all());
        }
        Ok(())
    }

    fn commit(&mut self) {
        let before = self.taken();
        self.allocator.commit(TxnId::new(self.txn), CpuSlot::ZERO);
        let taken = self.taken().since(before);
        self.row.committing.add(taken);
        self.txn += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row<'a>(rows: &'a [CensusRow], arm: &str) -> &'a CensusRow {
        rows.iter().find(|row| row.arm.starts_with(arm)).unwrap()
    }

    /// Checks some counts of `linux-6.16`, and that some patches make these counts lower or 0.
    /// Under `yard`, allocations, frees and commits take no shared lock.
    #[test]
    fn each_patch_removes_its_own_locks() {
        let rows = run(1, &[], |_, _| ()).unwrap();
        println!("{}", table(&rows).markdown());
        let base = row(&rows, "none");
        assert!(base.allocations > 3000 && base.freed > 2000, "{base:?}");
        assert_eq!(base.allocating.md, 2 * base.allocations, "the stream goal is read and written");
        assert!(base.allocating.lists > 0 && base.committing.lists > 0);
        assert!(base.freeing.md > base.freed, "one to three a free");
        assert_eq!(base.free_most, 3);
        assert_eq!(row(&rows, "4 ").allocating.md, 0);
        for other in ["1 ", "2 ", "5 ", "8 ", "9 ", "10 ", "15 "] {
            assert_eq!(row(&rows, other).allocating.md, 2 * row(&rows, other).allocations, "{other}");
        }
        assert_eq!(row(&rows, "8 `").committing.md, 0);
        assert!(row(&rows, "9 ").freeing.md < 2 * base.freeing.md);
        assert_eq!(row(&rows, "8 and 9").free_most, 1);
        for arm in ["15 ", "15, 16 ", "15, 16, 17 "] {
            let row = row(&rows, arm);
            assert_eq!(row.allocating.lists + row.committing.lists, 0, "{arm}");
        }
        let new = row(&rows, "all");
        assert_eq!((new.allocation_most, new.committing), (0, Taken::default()));
        assert!(new.free_most <= 1 && new.freeing.md < new.freed, "{new:?}");
        let ours = row(&rows, "`yard`");
        assert_eq!((ours.allocation_most, ours.free_most, ours.committing), (0, 0, Taken::default()));
    }

    #[test]
    fn further_policies_come_after_the_arms() {
        let further = ["yard".to_owned(), "linux-6.18:busy=wait".to_owned()];
        let rows = run(1, &further, |_, _| ()).unwrap();
        assert_eq!(rows.len(), ARMS_IN_ALL + 2);
        assert_eq!(rows[ARMS_IN_ALL], rows[ARMS_IN_ALL - 1], "yard is the last arm, too");
        assert_eq!(rows[ARMS_IN_ALL + 1].arm, "`linux-6.18:busy=wait`");
        let twice = (["yard", "yard"], "--policy: yard twice");
        for (wrong, part) in [twice, (["yard", "linux-9"], "--policy linux-9")] {
            let text = format!("{:#}", check(&wrong.map(str::to_owned)).unwrap_err());
            assert!(text.contains(part), "{text}");
        }
    }

    /// The table in the documentation is up to date.
    #[test]
    fn the_documented_table_is_true() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/experiments/lock-census.md");
        let documented = std::fs::read_to_string(path).unwrap();
        let table = table(&run(1, &[], |_, _| ()).unwrap()).markdown();
        assert!(
            documented.contains(table.trim()),
            "docs/experiments/lock-census.md shows another table:\n{table}"
        );
    }
}
