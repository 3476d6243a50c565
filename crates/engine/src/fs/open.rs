//! Opening: everything is validated before the first write.

use super::recover::recovered;
use super::super_block::SuperBlock;
use super::{BrokenRule, FileSystem};
use crate::cache::{Allowance, MetaCache};
use crate::directory::NameCache;
use crate::groups::Groups;
use crate::inode::{InodeTable, Places};
use crate::journal::{Committed, Devices, HomeView, Limits, LogBlocks, LogJournal, Wanted};
use crate::orphans::Orphans;
use crate::txn::{DirtyMax, Flushes, Journal, NullJournal, Transactions};
use crate::{Error, OpContext, Result};
use blockyard_alloc::{EventSink, Policy};
use blockyard_device::BlockDevice;
use blockyard_disk::num::{u64_from_usize, usize_from_u32, usize_from_u64};
use blockyard_disk::superblock::{FsState, PRIMARY_OFFSET, RawSuperblock, Superblock};
use blockyard_disk::{Compat, FeatureSet, Incompat, InodeNr, RoCompat};
use blockyard_recovery::{JournalPlace, Session};
use blockyard_sync::{AtomicBool, AtomicU64, CpuSlot, Mutex, rank};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// What to do with a journal that needs recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Recovery {
    /// Replay it: onto the device, or into memory when the instance is read-only.
    #[default]
    Replay,
    /// Refuse to open.
    Refuse,
}

/// Whether changes go through the image's journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum JournalUse {
    /// They do, when the image has a journal.
    #[default]
    Journaled,
    /// They go straight home and the journal stays empty: a crash leaves an image that must be checked. For images
    /// that are thrown away after a crash.
    Ignored,
}

/// What the journal does about file data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DataMode {
    /// Data of new blocks is on the device before the transaction that maps them commits: nobody reads what a block held
    /// before.
    #[default]
    Ordered,
    /// As ordered, but freed data blocks may be used again at once: after a crash a file whose removal was not committed
    /// can show another file's data.
    Writeback,
    /// Data goes through the log, like metadata. Inodes with the flag `j` have it so in every mode.
    Journal,
}

/// Memory that large directories may take for their blocks beyond the cache's, as a multiple of it.
const LARGE_DIRECTORIES: usize = 3;

/// How to open an image.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Refuse changes and write nothing.
    pub read_only: bool,
    /// A journal that needs recovery.
    pub recovery: Recovery,
    /// Whether changes go through the journal.
    pub journal: JournalUse,
    /// What the journal does about file data.
    pub data: DataMode,
    /// CPU slots: shards and per-CPU state are sized by it. At least 1.
    pub cpus: u32,
    /// The allocation policy.
    pub policy: Policy,
    /// Whether the device has seek times: the search then begins linearly.
    pub rotational: bool,
    /// Bytes of metadata to keep in memory; dirty blocks count. While a transaction that changes directories of 256 blocks or
    /// more runs, and while the next one does, the size of these directories comes to it, up to three times as much.
    pub cache_bytes: usize,
    /// Bytes for names of large directories and their inodes, which spare look-ups the blocks; 0 keeps none.
    pub name_cache_bytes: usize,
    /// Bytes of file data that may wait for write-back.
    pub dirty_data_bytes: usize,
    /// Age in seconds at which [`FileSystem::tick`] writes dirty data back.
    pub data_expires_seconds: u32,
    /// Inodes to keep in memory when nobody uses them.
    pub inodes_max: usize,
    /// Handles on one CPU slot between two commit points; the clusters freed meanwhile wait.
    pub commit_point_handles: u64,
    /// Age of a transaction, by the callers' clock, at which the next operation or [`FileSystem::tick`] commits it.
    /// Without a journal nothing is committed by age.
    pub commit_interval_seconds: i64,
    /// Blocks that a transaction may change before it is committed, 64 to three quarters of the log; `None`: a third of it, as
    /// Linux. Never more than three quarters of what the cache may hold, which alone count without a journal.
    pub transaction_blocks: Option<usize>,
    /// Delay the choice of blocks until write-back.
    pub delayed_allocation: bool,
    /// Cut write-back where Linux's page cache would make it cut: for comparing decisions with a kernel's. Costs memory
    /// for each file that is written, also when it is clean.
    pub follow_page_cache: bool,
    /// Seed of the allocation policy's random choices.
    pub seed: u64,
    /// A rule to break; only for tests of crash tests.
    #[doc(hidden)]
    pub broken_rule: Option<BrokenRule>,
    /// Who is told of each decision of the block allocator.
    pub events: Option<Events>,
    /// Who tells when the I/O of write-back has ended: for comparing decisions with a kernel's. Nobody: at once.
    pub io_ends: Option<IoEnds>,
}

/// Receives one event for each decision of the block allocator, in the thread that asked for the blocks.
#[derive(Clone)]
pub struct Events(pub Arc<dyn EventSink>);

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}

/// A piece of a write-back whose I/O has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoEnd {
    /// Its file.
    pub inode: InodeNr,
    /// Its logical blocks.
    pub blocks: Range<u32>,
    /// Where it is converted: what that takes and frees shows in how far this slot's counters lag behind.
    pub cpu: CpuSlot,
}

/// When the I/O of pieces of a write-back ended, as somebody saw it.
pub trait IoEndSource: Send + Sync {
    /// The next piece whose I/O has ended by now and that was not given yet. Asked until there is
    /// none before each place is chosen; called with the locks of a file's content held, so it must not call the engine.
    fn next(&self) -> Option<IoEnd>;

    /// Write-back has mapped a piece, which may have taken no decision.
    fn mapped(&self);

    /// A write that can not delay a block has placed it, or failed to.
    fn placed(&self) {}

    /// What found no space has ended the transaction, to try again. Nothing to do for who does not know of transactions.
    fn committed(&self) {}

    /// A write-back that found no space looks again for what it is to write, as [`Self::committed`].
    fn walks_again(&self) {}
}

/// Tells when the I/O of write-back has ended.
#[derive(Clone)]
pub struct IoEnds(pub Arc<dyn IoEndSource>);

impl fmt::Debug for IoEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IoEnds")
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            recovery: Recovery::Replay,
            journal: JournalUse::Journaled,
            data: DataMode::Ordered,
            cpus: 4,
            policy: Policy::default(),
            rotational: false,
            cache_bytes: 64 << 20,
            name_cache_bytes: 64 << 20,
            dirty_data_bytes: 64 << 20,
            data_expires_seconds: 30,
            inodes_max: 16_384,
            commit_point_handles: 131_072,
            commit_interval_seconds: 5,
            transaction_blocks: None,
            delayed_allocation: true,
            follow_page_cache: false,
            seed: 0,
            broken_rule: None,
            events: None,
            io_ends: None,
        }
    }
}

impl FileSystem {
    /// Opens the image on a device.
    ///
    /// # Errors
    /// [`Error::UnsupportedFeatures`] by name, [`Error::Corrupt`] with the place, [`Error::Refused`] with the reason,
    /// [`Error::Device`]. Nothing has been written then.
    pub fn open(device: Arc<dyn BlockDevice>, options: OpenOptions, ctx: &OpContext) -> Result<Self> {
        Self::open_on(device, None, options, ctx)
    }

    /// As [`FileSystem::open`], for an image whose journal is on a device of its own.
    ///
    /// # Errors
    /// As [`FileSystem::open`]; [`Error::Refused`] when `journal` is not the journal of this image.
    pub fn open_with_journal(
        device: Arc<dyn BlockDevice>,
        journal: Arc<dyn BlockDevice>,
        options: OpenOptions,
        ctx: &OpContext,
    ) -> Result<Self> {
        Self::open_on(device, Some(journal), options, ctx)
    }

    fn open_on(
        device: Arc<dyn BlockDevice>,
        external: Option<Arc<dyn BlockDevice>>,
        options: OpenOptions,
        ctx: &OpContext,
    ) -> Result<Self> {
        let (_, sb) = read_superblock(&*device)?;
        let read_only = options.read_only || device.is_read_only() || must_be_read_only(&sb);
        if !read_only {
            refuse_unwritable(&sb, external.is_some())?;
        }
        let device = recovered(device, external.as_ref(), &sb, read_only, options.recovery)?;
        // Replay may have brought another superblock home.
        let (raw, sb) = read_superblock(&*device)?;
        if !read_only {
            refuse_unwritable(&sb, external.is_some())?;
        }
        let geometry = *sb.geometry();
        let block_size = geometry.block_size();
        let place = if read_only { None } else { find_journal(&device, external.as_ref(), &options)? };
        let committed = place.map(|place| {
            let log = LogBlocks::new(Arc::clone(&device), external, place, wanted_log(&sb));
            Arc::new(Committed::new(Arc::new(log)))
        });
        let view: Arc<dyn BlockDevice> = match &committed {
            Some(committed) => {
                Arc::new(HomeView::new(Arc::clone(&device), Arc::clone(committed), block_size))
            }
            None => Arc::clone(&device),
        };
        let allowance = Allowance::new(options.cache_bytes.saturating_mul(LARGE_DIRECTORIES) / block_size);
        let cache = Arc::new(MetaCache::new(view, block_size, options.cache_bytes, allowance));
        let groups = Arc::new(Groups::open(&*device, &sb, Arc::clone(&cache))?);
        let slots = usize_from_u32(options.cpus.max(1));
        let space = crate::space::Space::open(&sb, &groups, &options)?;
        let super_block =
            SuperBlock::new(&*device, raw, *sb.checksums(), block_size, geometry.cluster_ratio_bits())?;
        let dirty = dirty_max(options.cache_bytes / block_size);
        let journal: Box<dyn Journal> = Box::new(NullJournal::new(Arc::clone(&device), dirty));
        let mut fs = Self {
            super_block: Mutex::new(rank::SUPERBLOCK, super_block),
            inodes: InodeTable::new(options.inodes_max, slots),
            names: NameCache::new(options.name_cache_bytes),
            near: Places::new(dirty.most / 3 * 4),
            txns: Transactions::new(slots, &*journal, Arc::clone(cache.allowance())),
            started: AtomicU64::new(ctx.now.seconds.cast_unsigned()),
            renames: Mutex::new(rank::RENAME, ()),
            journal,
            space,
            failed: AtomicBool::new(false),
            failure_noted: AtomicBool::new(false),
            flushes: Arc::new(Flushes::new(Arc::clone(&device))),
            inodes_created: AtomicU64::new(0),
            dirty_bytes: AtomicU64::new(0),
            device,
            sb,
            cache,
            groups,
            options,
            read_only,
            orphans: Orphans::none(),
        };
        if !read_only {
            fs.start_writing(ctx, committed, dirty)?;
        }
        Ok(fs)
    }

    /// The last validation, then the first writes: the log's superblock, the file system's, and what orphans need.
    fn start_writing(
        &mut self,
        ctx: &OpContext,
        committed: Option<Arc<Committed>>,
        dirty: DirtyMax,
    ) -> Result<()> {
        let journaled = committed.is_some();
        let (orphans, found) = self.find_orphans(journaled)?;
        self.orphans = orphans;
        if let Some(committed) = committed {
            let journal = self.open_journal(committed, dirty)?;
            let slots = usize_from_u32(self.options().cpus.max(1));
            self.txns = Transactions::new(slots, &journal, Arc::clone(self.cache.allowance()));
            self.journal = Box::new(journal);
        }
        let device = Arc::clone(&self.device);
        self.super_block.get_mut().write_opened(&*device, ctx.now, journaled)?;
        self.finish_orphans(ctx, found)
    }

    /// The image's journal, to write it. Its log is empty: it was recovered.
    fn open_journal(&self, committed: Arc<Committed>, dirty: DirtyMax) -> Result<LogJournal> {
        let devices = Devices { home: Arc::clone(&self.device), flushes: Arc::clone(&self.flushes) };
        let limits = Limits { dirty, transaction: self.options().transaction_blocks };
        LogJournal::open(devices, committed, limits, self.options().broken_rule)
    }
}

/// Blocks that may be dirty beside a cache of so many: three quarters, as the rest keeps what operations read. What changes
/// before a commit that is going on has written it is set aside: as much as may be dirty, at most.
fn dirty_max(cache_blocks: usize) -> DirtyMax {
    let usual = (cache_blocks / 4 * 3).max(256);
    DirtyMax { usual, most: usual.saturating_mul(1 + LARGE_DIRECTORIES) }
}

/// The format of the log of this file system.
fn wanted_log(sb: &Superblock) -> Wanted {
    let FeatureSet { incompat, ro_compat, .. } = *sb.features();
    Wanted {
        is_64bit: incompat.contains(Incompat::BIT64),
        has_checksums: ro_compat.contains(RoCompat::METADATA_CSUM),
    }
}

/// Where the image's journal is; `None` when there is none or it is not wanted.
fn find_journal(
    device: &Arc<dyn BlockDevice>,
    external: Option<&Arc<dyn BlockDevice>>,
    options: &OpenOptions,
) -> Result<Option<JournalPlace>> {
    if options.journal == JournalUse::Ignored {
        return Ok(None);
    }
    let session = match external {
        Some(journal) => Session::open_with_journal(&**device, &**journal),
        None => Session::open(&**device),
    };
    Ok(session?.into_journal())
}

fn read_superblock(device: &dyn BlockDevice) -> Result<(RawSuperblock, Superblock)> {
    let mut bytes = [0; RawSuperblock::SIZE];
    device.read_at(PRIMARY_OFFSET, &mut bytes)?;
    let sb = Superblock::parse(&bytes)?;
    let size = sb.geometry().blocks_count().raw() << sb.geometry().block_bits();
    if device.size() < size {
        return Err(Error::Refused(format!(
            "the file system has {size} bytes, the device only {}: the image is cut short",
            device.size()
        )));
    }
    debug_assert!(usize_from_u64(u64_from_usize(bytes.len())) == RawSuperblock::SIZE);
    Ok((*sb.raw(), sb))
}

/// Features that allow reading only.
fn must_be_read_only(sb: &Superblock) -> bool {
    let never_written = RoCompat::READONLY | RoCompat::SHARED_BLOCKS;
    !sb.unknown_ro_compat().is_empty() || sb.features().ro_compat.intersects(never_written)
}

/// Features that must be maintained when writing and are not.
fn refuse_unwritable(sb: &Superblock, has_external: bool) -> Result<()> {
    let FeatureSet { incompat, ro_compat, compat } = *sb.features();
    let is_external = compat.contains(Compat::HAS_JOURNAL) && sb.journal_inode().is_none();
    let refused = [
        (incompat.contains(Incompat::MMP), "mmp"),
        (incompat.contains(Incompat::CASEFOLD), "casefold"),
        (ro_compat.contains(RoCompat::QUOTA), "quota"),
        (is_external && !has_external, "an external journal that was not given"),
        (sb.desc_size() > 64, "group descriptors above 64 bytes"),
    ];
    if let Some((_, name)) = refused.iter().find(|(is, _)| *is) {
        return Err(Error::Refused(format!("{name}: can only be opened read-only")));
    }
    if sb.state().contains(FsState::ERROR) {
        return Err(Error::Refused(
            "the file system is marked as having errors: run a check first".to_owned(),
        ));
    }
    Ok(())
}
