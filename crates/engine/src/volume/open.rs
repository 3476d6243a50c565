//! Opening a volume: after recovery, the superblock and all group descriptors are verified before
//! the first write.

use super::Volume;
use super::recover::recovered;
use super::super_block::SuperBlock;
use crate::cache::MetaCache;
use crate::directory::DentryCache;
use crate::features::NewFeatures;
use crate::groups::Groups;
use crate::inode::{InodeTable, Inodes};
use crate::journal::{Committed, Devices, HomeView, Limits, LogBlocks, LogJournal, Wanted};
use crate::options::{JournalUse, OpenOptions};
use crate::orphans::Orphans;
use crate::requests::Rules;
use crate::space::Space;
use crate::txn::{Flushes, Journal, NullJournal, Transactions};
use crate::{Error, OpContext, Refusal, Result};
use blockyard_device::{BlockDevice, Claim};
use blockyard_disk::num::{u64_from_usize, usize_from_u32, usize_from_u64};
use blockyard_disk::superblock::{FsState, PRIMARY_OFFSET, RawSuperblock, Superblock};
use blockyard_disk::{Compat, CorruptionKind, FeatureSet, Incompat, RoCompat};
use blockyard_recovery::{JournalPlace, Session};
use blockyard_sync::{AtomicBool, AtomicU64, Mutex, rank};
use std::sync::Arc;

impl Volume {
    /// Recovers the image, and verifies its superblock and group descriptors. Writes nothing except
    /// what recovery writes.
    pub(crate) fn open(
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
        let claims = claim(&[Some(&device), external.as_ref()], read_only, &options)?;
        let device = recovered(device, external.as_ref(), &sb, read_only, options.recovery)?;
        // The replay may have overwritten the superblock.
        let (raw, sb) = read_superblock(&*device)?;
        if !read_only {
            refuse_unwritable(&sb, external.is_some())?;
        }
        let (geometry, block_size) = (*sb.geometry(), sb.geometry().block_size());
        let place = if read_only { None } else { find_journal(&device, external.as_ref(), &options)? };
        let internal = place.as_ref().filter(|_| external.is_none());
        let journal = internal.map_or_else(Vec::new, |place| place.runs().collect());
        let committed = place.map(|place| open_log(&device, external, place, &sb));
        let view = home_view(&device, committed.as_ref(), block_size);
        let cache = Arc::new(MetaCache::new(view, block_size, options.cache_bytes));
        let groups = Arc::new(Groups::open(&*device, &sb, Arc::clone(&cache), journal)?);
        let space = Space::open(&sb, &groups, &options)?;
        let super_block =
            SuperBlock::new(&*device, raw, *sb.checksums(), block_size, geometry.cluster_ratio_bits())?;
        let flushes = Arc::new(Flushes::new(Arc::clone(&device)));
        let journal = open_journal(&device, &flushes, committed, &options, block_size)?;
        let slots = usize_from_u32(options.cpus.max(1));
        let txns = Arc::new(Transactions::new(slots, &*journal));
        let names = Arc::new(DentryCache::new(options.name_cache_bytes));
        let (sb, rules) = (Arc::new(sb), Rules::of(&options));
        let inodes = Inodes {
            table: InodeTable::new(options.inodes_max, slots, &rules),
            sb: Arc::clone(&sb),
            cache: Arc::clone(&cache),
            groups: Arc::clone(&groups),
            txns: Arc::clone(&txns),
            flushes: Arc::clone(&flushes),
            names: Arc::clone(&names),
            rules: rules.clone(),
            features: Arc::new(NewFeatures::none()),
        };
        Ok(Self {
            super_block: Mutex::new(rank::SUPERBLOCK, super_block),
            inodes,
            names,
            txns,
            started: AtomicU64::new(ctx.now.seconds.cast_unsigned()),
            journal,
            space,
            failed: AtomicBool::new(false),
            failure_noted: AtomicBool::new(false),
            damage_logged: Mutex::new(rank::LEAF, Vec::new()),
            flushes,
            _claims: claims,
            inodes_created: AtomicU64::new(u64::from(sb.raw().s_mnt_count.get()) << 32),
            device,
            sb,
            cache,
            groups,
            options,
            rules,
            read_only,
            orphans: Orphans::none(),
        })
    }

    /// Makes the first writes: the journal's superblock, if there is a journal, and the file
    /// system's superblock. `orphans` holds the orphan records that were found in the image.
    pub(crate) fn start_writing(&mut self, ctx: &OpContext, orphans: Orphans) -> Result<()> {
        self.orphans = orphans;
        self.journal.start()?;
        let journaled = self.journal.is_durable();
        let device = Arc::clone(&self.device);
        if let Some(place) = &self.options.last_mounted {
            self.super_block.get_mut().set_last_mounted(place);
        }
        self.super_block.get_mut().write_opened(&*device, ctx.now, journaled)
    }
}

/// The log at `place`, with an index of the logged blocks that no checkpoint has written home yet.
/// The index begins empty.
fn open_log(
    device: &Arc<dyn BlockDevice>,
    external: Option<Arc<dyn BlockDevice>>,
    place: JournalPlace,
    sb: &Superblock,
) -> Arc<Committed> {
    let log = LogBlocks::new(Arc::clone(device), external, place, wanted_log(sb));
    Arc::new(Committed::new(Arc::new(log)))
}

/// Claims the devices: for exclusive use if the instance may write, otherwise for shared reading.
/// With [`OpenOptions::shared`], a read-only instance claims nothing, so others may write
/// meanwhile.
fn claim(
    devices: &[Option<&Arc<dyn BlockDevice>>],
    read_only: bool,
    options: &OpenOptions,
) -> Result<Vec<Claim>> {
    let devices = devices.iter().flatten();
    if read_only {
        let alone = devices.filter(|_| !options.shared);
        return Ok(alone.map(|device| Claim::read(device)).collect::<std::result::Result<_, _>>()?);
    }
    Ok(devices.map(|device| Claim::write(device)).collect::<std::result::Result<_, _>>()?)
}

/// The file system's blocks as of the last commit: if the log holds a newer copy of a block, that
/// copy is read instead of the block at home.
fn home_view(
    device: &Arc<dyn BlockDevice>,
    committed: Option<&Arc<Committed>>,
    block_size: usize,
) -> Arc<dyn BlockDevice> {
    let device = Arc::clone(device);
    match committed {
        Some(committed) => Arc::new(HomeView::new(device, Arc::clone(committed), block_size)),
        None => device,
    }
}

/// Opens the journal in `committed` for writing; recovery has emptied its log. If `committed` is
/// `None` (the image has no journal, the caller does not want it, or the instance is read-only),
/// returns a [`NullJournal`], which writes straight home.
fn open_journal(
    device: &Arc<dyn BlockDevice>,
    flushes: &Arc<Flushes>,
    committed: Option<Arc<Committed>>,
    options: &OpenOptions,
    block_size: usize,
) -> Result<Box<dyn Journal>> {
    let dirty_max = dirty_max(options.cache_bytes / block_size);
    let Some(committed) = committed else {
        return Ok(Box::new(NullJournal::new(Arc::clone(device), dirty_max)));
    };
    let devices = Devices { home: Arc::clone(device), flushes: Arc::clone(flushes) };
    let limits = Limits { dirty_max, transaction: options.instruments.transaction_blocks };
    Ok(Box::new(LogJournal::open(devices, committed, limits, options.instruments.broken_rule)?))
}

/// The most dirty blocks for a cache of this many blocks: three quarters, but at least 256. The
/// rest is for clean blocks that operations read.
///
/// If a block changes again before a commit in progress has copied it, its old content is kept in a
/// copy. These copies are not counted here. There are at most as many copies as dirty blocks.
fn dirty_max(cache_blocks: usize) -> usize {
    (cache_blocks / 4 * 3).max(256)
}

/// The log format that this file system wants.
fn wanted_log(sb: &Superblock) -> Wanted {
    let FeatureSet { incompat, ro_compat, .. } = *sb.features();
    Wanted {
        is_64bit: incompat.contains(Incompat::BIT64),
        has_checksums: ro_compat.contains(RoCompat::METADATA_CSUM),
    }
}

/// Where the image's journal is; `None` if there is none or it is not wanted.
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
    if device.size() == 0 {
        return Err(Error::Refused(Refusal::Empty));
    }
    let mut bytes = [0; RawSuperblock::SIZE];
    if device.size() < PRIMARY_OFFSET + u64_from_usize(bytes.len()) {
        return Err(Error::Refused(Refusal::NoFileSystem));
    }
    device.read_at(PRIMARY_OFFSET, &mut bytes)?;
    let sb = Superblock::parse(&bytes).map_err(|error| match error {
        blockyard_disk::Error::Corrupt(found) if found.kind == CorruptionKind::SuperblockMagic => {
            Error::Refused(Refusal::NoFileSystem)
        }
        other => other.into(),
    })?;
    let size = sb.geometry().blocks_count().raw() << sb.geometry().block_bits();
    if device.size() < size {
        return Err(Error::Refused(Refusal::CutShort { needed: size, device: device.size() }));
    }
    debug_assert!(usize_from_u64(u64_from_usize(bytes.len())) == RawSuperblock::SIZE);
    Ok((*sb.raw(), sb))
}

/// Whether features allow reading only.
fn must_be_read_only(sb: &Superblock) -> bool {
    let never_written = RoCompat::READONLY | RoCompat::SHARED_BLOCKS;
    !sb.unknown_ro_compat().is_empty() || sb.features().ro_compat.intersects(never_written)
}

/// Refuses to write an image if
/// * writing does not support one of its features or the size of its group descriptors,
/// * its journal is external and was not given, or
/// * it is marked as having errors.
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
        return Err(Error::Refused(Refusal::OnlyReadable(name)));
    }
    if sb.state().contains(FsState::ERROR) {
        return Err(Error::Refused(Refusal::MarkedErrors));
    }
    Ok(())
}
