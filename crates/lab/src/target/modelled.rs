//! A target in virtual time, in which only the allocator is real.
//!
//! The allocator runs under the policy of the cell, with all its locks, goals, indexes, frees and
//! commits. Two costs, which the machine file states, stand for the rest of the file system: the
//! computation of an operation, and changes to a cache line that all operations share, as the
//! handles of a journal do. An allocation is marked in the on-disk bitmap under its group's lock,
//! as in Linux. Freed clusters wait for the commit.
//!
//! An operation belongs to the transaction that runs when the operation begins. A commit closes
//! that transaction, and waits until all its operations have ended. Operations that begin meanwhile
//! belong to the next transaction and do not wait.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use blockyard_alloc::goals::{inode_goal, neighbour_goal};
use blockyard_alloc::memory::MemoryBitmaps;
use blockyard_alloc::{
    AllocConfig, Allocator, BlockRequest, FreeContext, InitMode, InodeAlloc, Neighbour, Policy, RequestFlags,
    Tunable,
};
use blockyard_device::BlockDevice;
use blockyard_disk::num::{u32_from_u64, u32_from_usize, u64_from_u32, usize_from_u32};
use blockyard_disk::{BlockNr, Geometry, GroupNr, InodeNr, LogicalBlock, TxnId, bitmap};
use blockyard_inspect::reader::Reader;
use blockyard_sync::{Atomic, AtomicInt, Backend, CachePadded, CpuSlot, Ordering, Virtual};

use super::{Cpu, Target};
use crate::machine::Machine;

const BLOCK_BITS: u32 = 12;
/// log2 of the number of groups in a flex group.
const FLEX_BITS: u32 = 4;
/// Number of groups in a flex group.
const FLEX: u32 = 1 << FLEX_BITS;
/// Metadata blocks of each group: two bitmaps and 512 blocks of the inode table. The metadata of a
/// flex group is all in its first group.
const METADATA: u32 = 514;
/// Blocks of a copy of the superblock and the descriptors, with room for more descriptors.
const COPY: u32 = 1100;

const ALLOCATES_ONLY: &str =
    "--interleave virtual takes workloads that allocate only: fallocate2, scanswitch, append64";

/// How long a commit waits before it checks again whether operations are still open.
const HANDLES_AGAIN_NS: u64 = 1000;

/// The running transaction, and the operations that have not ended.
#[derive(Debug)]
struct Transactions {
    running: TxnId,
    /// Open operations of the running and of the committing transaction, by the parity of the
    /// transaction's number.
    open: [u32; 2],
}

impl Transactions {
    /// The number of operations of a transaction that have not ended.
    fn open(&mut self, txn: TxnId) -> &mut u32 {
        &mut self.open[usize_from_u32(txn.raw() % 2)]
    }
}

/// An operation's part in its transaction. The operation ends when the handle is dropped.
struct Handle<'a> {
    txn: TxnId,
    target: &'a ModelledTarget,
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        *self.target.transactions().open(self.txn) -= 1;
    }
}

/// A file system whose allocator runs in virtual time.
pub(crate) struct ModelledTarget {
    pub(crate) allocator: Allocator<Virtual>,
    disk: Arc<MemoryBitmaps>,
    machine: Machine,
    seed: u64,
    /// The cache line that the handles of all operations change.
    handles: CachePadded<<Virtual as Backend>::AtomicU64>,
    /// This is a lock of the host, so it costs nothing in virtual time. No virtual CPU holds it
    /// while another one runs.
    transactions: Mutex<Transactions>,
    files: Mutex<Vec<Arc<ModelledFile>>>,
}

/// A file and the position of its blocks.
pub(crate) struct ModelledFile {
    inode: InodeNr,
    state: InodeAlloc<Virtual>,
    map: Mutex<Map>,
    /// The state of the file's random-number generator. Accesses are relaxed, because only one CPU
    /// at a time works on a file.
    random: std::sync::atomic::AtomicU64,
}

/// The blocks of a file, without holes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Map {
    blocks: u32,
    /// First block and count of each extent, in the order of the file.
    extents: Vec<(BlockNr, u32)>,
}

impl Map {
    fn append(&mut self, first: BlockNr, count: u32) {
        match self.extents.last_mut() {
            Some((start, length)) if start.raw() + u64_from_u32(*length) == first.raw() => *length += count,
            _ => self.extents.push((first, count)),
        }
        self.blocks += count;
    }

    fn last(&self) -> Option<Neighbour> {
        let (first, count) = *self.extents.last()?;
        Some(Neighbour {
            logical: LogicalBlock::new(self.blocks - 1),
            physical: BlockNr::new(first.raw() + u64_from_u32(count) - 1),
        })
    }
}

impl ModelledTarget {
    /// A file system in which the blocks of a [`Start`] are in use. [`empty`] and [`in_use_on`]
    /// make a [`Start`].
    ///
    /// # Errors
    /// Those of the allocator.
    pub(crate) fn new(
        policy: Policy,
        machine: &Machine,
        Start { geometry, disk }: Start,
        rotational: bool,
        (cpus, seed): (u32, u64),
    ) -> Result<Self> {
        let config = AllocConfig {
            policy,
            cpus,
            rotational,
            init: InitMode::AtOpen,
            memory_max: u64::MAX,
            ..AllocConfig::new(geometry)
        };
        let facts = disk.facts();
        let allocator = Allocator::open(&config, Arc::<MemoryBitmaps>::clone(&disk), &facts)?;
        allocator.set_tunable(Tunable::Stats, 1)?;
        Ok(Self {
            allocator,
            disk,
            machine: machine.clone(),
            seed,
            handles: CachePadded::new(Virtual::on_line("journal handles", || Atomic::new(0))),
            transactions: Mutex::new(Transactions { running: TxnId::new(1), open: [0; 2] }),
            files: Mutex::default(),
        })
    }

    /// The extents of each file, in order of creation.
    pub(crate) fn extents(&self) -> Vec<Vec<(BlockNr, u32)>> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.iter().map(|file| file.map().extents.clone()).collect()
    }

    fn transactions(&self) -> std::sync::MutexGuard<'_, Transactions> {
        self.transactions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an operation in the running transaction.
    fn begin(&self) -> Handle<'_> {
        let mut transactions = self.transactions();
        let txn = transactions.running;
        *transactions.open(txn) += 1;
        Handle { txn, target: self }
    }

    /// Closes the running transaction, waits until all its operations have ended, and commits it.
    /// Then the clusters that they freed may be reused. Only one CPU may commit.
    pub(crate) fn commit(&self, cpu: Cpu) {
        let txn = self.close_running();
        while *self.transactions().open(txn) > 0 {
            Virtual::work(HANDLES_AGAIN_NS);
            Virtual::yield_now();
        }
        self.allocator.commit(txn, CpuSlot::new(cpu));
    }

    /// Closes the running transaction and starts the next one.
    fn close_running(&self) -> TxnId {
        let mut transactions = self.transactions();
        let txn = transactions.running;
        transactions.running = TxnId::new(txn.raw() + 1);
        let next = transactions.running;
        debug_assert_eq!(*transactions.open(next), 0, "the transaction before {txn} has not committed");
        txn
    }

    /// Runs one operation: `inner` between the two halves of the work that surrounds it. The time
    /// of that work is drawn uniformly around the machine's constant. If all workers took the same
    /// time, they could fall into step and hardly contend for locks.
    fn operation<R>(&self, file: &ModelledFile, inner: impl FnOnce(TxnId) -> R) -> R {
        let half = |part: u64, shared: u32| {
            Virtual::work(part);
            for _ in 0..shared {
                self.handles.fetch_add(1, Ordering::Relaxed);
            }
        };
        let handle = self.begin();
        let (mean, shared) = (self.machine.operation_ns, self.machine.shared_accesses);
        let most = mean / 100 * u64_from_u32(self.machine.operation_varies_percent);
        let ns = mean - most + file.draw() % (2 * most + 1);
        half(ns / 2, shared - shared / 2);
        let done = inner(handle.txn);
        half(ns - ns / 2, shared / 2);
        done
    }

    fn append(&self, cpu: Cpu, file: &ModelledFile, offset: u64, length: u64) -> Result<()> {
        let geometry = self.allocator.geometry();
        // Only this worker uses the file, so the lock is free. Taking the map out releases the lock
        // before another CPU can run.
        let mut map = core::mem::take(&mut *file.map());
        let end = u32_from_u64((offset + length) >> BLOCK_BITS);
        while map.blocks < end {
            let logical = LogicalBlock::new(map.blocks);
            let left = map.last();
            let goal = match left {
                Some(last) => neighbour_goal(logical, last.logical, last.physical),
                None => inode_goal(geometry, GroupNr::ZERO, true, None),
            };
            let request = BlockRequest {
                goal,
                left,
                file_size: offset,
                writer_open: true,
                cpu: CpuSlot::new(cpu),
                flags: RequestFlags::DATA | RequestFlags::NO_NORMALIZE,
                ..BlockRequest::data(file.inode, GroupNr::ZERO, logical, end - map.blocks)
            };
            let claim = self.allocator.allocate(&request, &file.state).context("fallocate")?;
            let (group, start, count) = (claim.group(), claim.offset().raw(), claim.clusters());
            self.allocator.with_group_locked(group, request.cpu, || {
                self.disk.write(group, start, count, true);
            });
            map.append(claim.first_block(), count);
            claim.commit();
        }
        *file.map() = map;
        Ok(())
    }

    fn cut(&self, cpu: Cpu, file: &ModelledFile, txn: TxnId) -> Result<()> {
        let map = core::mem::take(&mut *file.map());
        let geometry = self.allocator.geometry();
        let context = FreeContext { txn: Some(txn), cpu: CpuSlot::new(cpu), ..FreeContext::default() };
        for (first, count) in map.extents {
            self.allocator.free(first, u64_from_u32(count), context)?;
            let per_group = u64_from_u32(geometry.clusters_per_group());
            let mut at = first.raw();
            let end = at + u64_from_u32(count);
            while at < end {
                let stop = ((at / per_group + 1) * per_group).min(end);
                let group = GroupNr::new(u32_from_u64(at / per_group));
                self.disk.write(group, u32_from_u64(at % per_group), u32_from_u64(stop - at), false);
                at = stop;
            }
        }
        Ok(())
    }
}

/// Which blocks are in use when the workers begin.
pub(crate) struct Start {
    geometry: Geometry,
    disk: Arc<MemoryBitmaps>,
}

impl Start {
    /// Nothing is in use.
    fn unused(groups: u32) -> Self {
        let geometry = MemoryBitmaps::plain_geometry(groups, FLEX_BITS);
        Self { geometry, disk: MemoryBitmaps::new(geometry, 0) }
    }
}

/// An empty file system of `groups` groups of 128 MiB: only metadata is in use.
pub(crate) fn empty(groups: u32) -> Start {
    let start = Start::unused(groups);
    place_metadata(&start.disk, groups);
    start
}

/// A file system of `groups` groups of 128 MiB, in which the same blocks are in use as on an image.
/// Blocks beyond the end of the image count as in use.
///
/// # Errors
/// When the image has blocks, clusters or groups of other sizes, and errors of reading its bitmaps.
pub(crate) fn in_use_on(device: Arc<dyn BlockDevice>, groups: u32) -> Result<Start> {
    let reader = Reader::open(device)?;
    let there = *reader.superblock().geometry();
    let start = Start::unused(groups);
    let per_group = start.geometry.clusters_per_group();
    ensure!(
        (there.block_bits(), there.cluster_ratio_bits(), there.clusters_per_group())
            == (BLOCK_BITS, 0, per_group),
        "--interleave virtual: an aged image has blocks of 4 KiB, groups of 128 MiB and no clusters"
    );
    for group in start.geometry.all_groups() {
        let clusters = if group.raw() < there.groups() { there.clusters_in_group(group) } else { 0 };
        if clusters < per_group {
            start.disk.write(group, clusters, per_group - clusters, true);
        }
        if clusters == 0 {
            continue;
        }
        let bits = reader.block_bitmap(&reader.group(group)?)?;
        let mut at = 0;
        while let Some(first) = bitmap::next_set(&bits, at..clusters) {
            at = bitmap::next_clear(&bits, first..clusters).unwrap_or(clusters);
            start.disk.write(group, first, at - first, true);
        }
    }
    Ok(start)
}

/// Marks the metadata that mkfs writes. The metadata of a flex group is in its first group. Groups
/// 0 and 1 and the powers of 3, 5 and 7 hold the superblock and its copies.
fn place_metadata(disk: &MemoryBitmaps, groups: u32) {
    let copies = (0..groups).filter(|&group| {
        let power_of = |base: u32| core::iter::successors(Some(1u32), move |power| power.checked_mul(base));
        group == 0 || [3, 5, 7].into_iter().any(|base| power_of(base).any(|power| power == group))
    });
    copies.for_each(|group| disk.write(GroupNr::new(group), 0, COPY, true));
    for first in (0..groups).step_by(usize_from_u32(FLEX)) {
        let start = if first == 0 { COPY } else { 0 };
        disk.write(GroupNr::new(first), start, METADATA * FLEX.min(groups - first), true);
    }
}

impl ModelledFile {
    /// The next number of the file's own sequence (splitmix64).
    fn draw(&self) -> u64 {
        let state = self.random.load(Ordering::Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.store(state, Ordering::Relaxed);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn map(&self) -> std::sync::MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Target for ModelledTarget {
    type File = Arc<ModelledFile>;

    fn create(&self, _: Cpu, _: &str) -> Result<Option<Self::File>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let inode = InodeNr::new(12 + u32_from_usize(files.len()));
        let file = Arc::new(ModelledFile {
            inode,
            state: InodeAlloc::new(),
            map: Mutex::default(),
            random: std::sync::atomic::AtomicU64::new(self.seed << 32 | u64_from_u32(inode.raw())),
        });
        files.push(Arc::clone(&file));
        Ok(Some(file))
    }

    fn fallocate(&self, cpu: Cpu, file: &Self::File, offset: u64, length: u64) -> Result<()> {
        self.operation(file, |_| self.append(cpu, file, offset, length))
    }

    fn truncate(&self, cpu: Cpu, file: &Self::File, size: u64) -> Result<()> {
        if size != 0 {
            bail!("--interleave virtual truncates files only to zero bytes");
        }
        self.operation(file, |txn| self.cut(cpu, file, txn))
    }

    fn write(&self, _: Cpu, _: &Self::File, _: u64, _: &[u8]) -> Result<()> {
        bail!(ALLOCATES_ONLY)
    }

    fn write_direct(&self, _: Cpu, _: &Self::File, _: u64, _: &[u8]) -> Result<()> {
        bail!(ALLOCATES_ONLY)
    }

    fn unlink(&self, _: Cpu, _: &str) -> Result<()> {
        bail!(ALLOCATES_ONLY)
    }

    fn read(&self, _: Cpu, _: &Self::File, _: u64, _: &mut [u8]) -> Result<()> {
        bail!(ALLOCATES_ONLY)
    }

    fn fsync(&self, _: Cpu, _: &Self::File) -> Result<()> {
        Ok(())
    }

    fn switch_scan(&self) -> Result<()> {
        self.allocator.set_optimize_scan(!self.allocator.optimize_scan());
        Ok(())
    }

    fn close(&self, _: Cpu, _: Self::File) -> Result<()> {
        Ok(())
    }
}
