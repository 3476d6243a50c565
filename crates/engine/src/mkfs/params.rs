//! From options to checked parameters: one block size, one feature set, all values in range and
//! possible together.
//!
//! Does no I/O. Key decision: whatever the options and the size of the device alone show to be
//! impossible is refused here, with an error of one line that usually names the option. Invariant
//! of [`Params`]: sizes are powers of two in their ranges, and `blocks` is a multiple of the
//! cluster ratio.

use super::error::{Error, Result, bad_value};
use super::feature::{
    self, BIGALLOC, BIT64, CSUM_SEED, EXTENT, FAST_COMMIT, FLEX_BG, HAS_JOURNAL, INLINE_DATA, META_BG,
    METADATA_CSUM, MMP, ORPHAN_FILE, RESIZE_INODE, SPARSE_SUPER, UNINIT_BG,
};
use super::options::{Amount, Options};
use super::profile::{DEFAULTS, Overrides, Usage};
use blockyard_disk::Timestamp;
use blockyard_disk::features::FeatureSet;
use blockyard_disk::jbd2;

/// The fewest bits of a group's block bitmap that mke2fs accepts.
const CLUSTERS_PER_GROUP_MIN: u32 = 256;
/// The allowed numbers of bytes per inode (`-i`).
const RATIO_RANGE: std::ops::RangeInclusive<u32> = 1024..=64 << 20;
/// The most bits that a group's block bitmap may have: the free counts in 32-byte descriptors have
/// 16 bits.
pub(super) const CLUSTERS_PER_GROUP_MAX: u32 = (1 << 16) - 8;

/// Checked parameters of one file system.
#[derive(Clone, Debug)]
pub(super) struct Params {
    pub(super) features: FeatureSet,
    /// log2 of the block size.
    pub(super) block_bits: u32,
    /// log2 of blocks per cluster.
    pub(super) cluster_ratio_bits: u32,
    /// Blocks wanted, a multiple of the cluster ratio. A short last group may be dropped later.
    pub(super) blocks: u64,
    /// Blocks asked for, not rounded to clusters. The number of inodes, the blocks kept for
    /// privileged users and the descriptor blocks for `-E resize=` are computed from it.
    pub(super) blocks_asked: u64,
    /// First block of group 0.
    pub(super) first_block: u64,
    /// Bits wanted in a group's block bitmap. May be lowered later, so that the inodes fit.
    pub(super) clusters_per_group: u32,
    /// Inodes wanted.
    pub(super) inodes: u64,
    pub(super) inode_size: u32,
    pub(super) flex_bits: u32,
    pub(super) reserved_percent: f64,
    /// Descriptor blocks to reserve, if `-E resize=` says so.
    pub(super) reserved_gdt: Option<u64>,
    /// Journal blocks, the fast-commit area included; `None`: no journal.
    pub(super) journal: Option<JournalSize>,
    /// Blocks of the orphan file; `None`: no orphan file.
    pub(super) orphan_blocks: Option<u64>,
    pub(super) revision: u32,
    /// Number of groups with backups under sparse_super2.
    pub(super) backup_superblocks: u32,
}

/// Blocks of the largest journal, with its fast-commit area.
const JOURNAL_BLOCKS_MAX: u64 = 10_240_000;

/// Blocks of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JournalSize {
    /// Blocks of the whole file.
    pub(super) total: u64,
    /// Blocks at the end of the file that are kept for fast commits.
    pub(super) fast_commit: u64,
}

impl Params {
    /// Checks the options for a device of `device_bytes` bytes.
    pub(super) fn resolve(options: &Options, device_bytes: u64) -> Result<Self> {
        let defaults = size_class(options, device_bytes);
        let block_size = block_size(options, &defaults)?;
        let mut features = feature_set(options)?;
        let cluster_ratio_bits = cluster_ratio_bits(options, &features, block_size)?;
        let blocks_asked = block_count(options, device_bytes, block_size);
        let blocks = blocks_asked >> cluster_ratio_bits << cluster_ratio_bits;
        check_block_count(&mut features, blocks, block_size)?;
        let inode_size = inode_size(options, &defaults, block_size)?;
        let mut params = Self {
            features,
            block_bits: block_size.trailing_zeros(),
            cluster_ratio_bits,
            blocks,
            blocks_asked,
            first_block: u64::from(block_size == 1024 && !features.contains(BIGALLOC)),
            clusters_per_group: clusters_per_group(options, block_size)?,
            inodes: 0,
            inode_size,
            flex_bits: flex_bits(options, &features)?,
            reserved_percent: reserved_percent(options)?,
            reserved_gdt: None,
            journal: None,
            orphan_blocks: None,
            revision: options.revision.unwrap_or(1),
            backup_superblocks: options.backup_superblocks.unwrap_or(2).min(2),
        };
        params.inodes = params.inodes_wanted(options, &defaults)?;
        params.reserved_gdt = params.resize_blocks(options)?;
        params.check_features()?;
        if params.features.contains(ORPHAN_FILE) && !params.features.contains(HAS_JOURNAL) {
            return Err(Error::Conflict("-O orphan_file needs a journal; add has_journal".to_owned()));
        }
        params.journal = params.journal_size(options)?;
        if params.journal.is_none() {
            // The file system is too small for a journal, or none was requested. An orphan file
            // needs a journal.
            params.features.set(HAS_JOURNAL, false);
            params.features.set(ORPHAN_FILE, false);
        }
        params.orphan_blocks = params.orphan_size(options)?;
        check_texts(options)?;
        check_time(options, params.inode_size)?;
        Ok(params)
    }

    /// Block size in bytes.
    pub(super) const fn block_size(&self) -> u64 {
        1 << self.block_bits
    }

    /// Bytes of one group descriptor.
    pub(super) const fn desc_size(&self) -> u64 {
        if self.features.contains(BIT64) { 64 } else { 32 }
    }

    /// Descriptors in one block.
    pub(super) const fn descs_per_block(&self) -> u64 {
        self.block_size() / self.desc_size()
    }

    /// Blocks per cluster.
    pub(super) const fn cluster_ratio(&self) -> u64 {
        1 << self.cluster_ratio_bits
    }

    fn inodes_wanted(&self, options: &Options, defaults: &Overrides) -> Result<u64> {
        let bytes = self.blocks_asked << self.block_bits;
        let ratio = match options.bytes_per_inode {
            Some(ratio) if !RATIO_RANGE.contains(&ratio) => {
                return Err(bad_value(
                    format!("-i {ratio}"),
                    format!(
                        "bytes per inode must be between {} and {}",
                        RATIO_RANGE.start(),
                        RATIO_RANGE.end()
                    ),
                ));
            }
            Some(ratio) => u64::from(ratio),
            // A default never asks for more inodes than there are clusters.
            None => {
                let cluster_size = self.block_size() << self.cluster_ratio_bits;
                u64::from(defaults.bytes_per_inode.unwrap_or(DEFAULTS.1)).max(cluster_size)
            }
        };
        let inodes = match (options.inodes, bytes / ratio) {
            (Some(asked), _) => u64::from(asked),
            // If the ratio results in no inode: one per 4 KiB, or one per block if blocks are
            // larger.
            (None, 0) => bytes / self.block_size().max(4096),
            (None, several) => several,
        };
        if inodes > u64::from(u32::MAX) {
            return Err(Error::Size(format!(
                "{inodes} inodes are more than 2^32 - 1; raise -i above {ratio}"
            )));
        }
        if inodes * u64::from(self.inode_size) >= bytes {
            return Err(Error::Size(format!(
                "{inodes} inodes of {} bytes do not fit a file system of {} blocks; raise -i or lower -N",
                self.inode_size, self.blocks
            )));
        }
        Ok(inodes)
    }

    /// How many descriptor blocks `-E resize=` needs beyond those of the current size; `None`
    /// without the option, or if it needs no more. If it needs some, adds resize_inode to the
    /// features.
    fn resize_blocks(&mut self, options: &Options) -> Result<Option<u64>> {
        let Some(amount) = options.resize else { return Ok(None) };
        let wanted = amount.in_blocks(self.block_size());
        if wanted <= self.blocks_asked {
            return Err(bad_value(
                "-E resize=",
                format!("{wanted} blocks are not more than the file system's {}; ask for more", self.blocks),
            ));
        }
        // mke2fs counts groups of `-g` blocks. Without `-g`, it counts groups of as many blocks as
        // a block has bits, even if groups are longer (clusters) or shorter (large blocks).
        let per_group = options.blocks_per_group.map_or(self.block_size() * 8, u64::from);
        let desc_blocks = |blocks: u64| blocks.div_ceil(per_group).div_ceil(self.descs_per_block());
        let reserved = (desc_blocks(wanted) - desc_blocks(self.blocks_asked)).min(self.block_size() / 4);
        if reserved == 0 {
            return Ok(None);
        }
        if self.features.contains(META_BG) {
            return Err(Error::Conflict(
                "-E resize= needs the resize inode, which meta_bg excludes; leave one of them out".to_owned(),
            ));
        }
        self.features.set(RESIZE_INODE, true);
        Ok(Some(reserved))
    }

    fn check_features(&mut self) -> Result<()> {
        let f = &mut self.features;
        let conflict = |text: &str| Err(Error::Conflict(text.to_owned()));
        if f.contains(META_BG) && f.contains(RESIZE_INODE) {
            return conflict("-O meta_bg and resize_inode exclude each other; add ^resize_inode");
        }
        if f.contains(RESIZE_INODE) && !f.contains(SPARSE_SUPER) {
            return conflict("-O resize_inode needs sparse_super; add sparse_super or ^resize_inode");
        }
        if f.contains(BIT64) && !f.contains(EXTENT) {
            return conflict("-O 64bit needs extent; add extent or ^64bit");
        }
        if f.contains(BIGALLOC) && !f.contains(EXTENT) {
            return conflict("-O bigalloc needs extent; add extent");
        }
        if f.contains(CSUM_SEED) && !f.contains(METADATA_CSUM) {
            return conflict("-O metadata_csum_seed needs metadata_csum; add metadata_csum");
        }
        if f.contains(INLINE_DATA) && self.inode_size == 128 {
            return conflict("-O inline_data needs inodes above 128 bytes; give -I 256 or more");
        }
        if f.contains(METADATA_CSUM) {
            // The stronger checksum replaces the weaker one.
            f.set(UNINIT_BG, false);
        }
        if self.revision == 0 && *f != FeatureSet::default() {
            return conflict("-r 0 has no features; leave -O out");
        }
        Ok(())
    }

    fn journal_size(&self, options: &Options) -> Result<Option<JournalSize>> {
        if !self.features.contains(HAS_JOURNAL) {
            return Ok(None);
        }
        let Some(default) = jbd2::default_blocks(self.blocks) else {
            // The file system is too small for a journal. As in mke2fs, this is no error, even if a
            // journal was requested: the file system gets none.
            return Ok(None);
        };
        let location = options.journal_location.map_or(0, |place| place.in_blocks(self.block_size()));
        if location >= self.blocks {
            return Err(bad_value(
                "-J location=",
                format!("block {location} is beyond the file system's {}; give a lower one", self.blocks),
            ));
        }
        let log = options.journal_mib.map_or(default, |mib| (u64::from(mib) << 20) / self.block_size());
        if log < 1024 {
            return Err(bad_value(
                "-J size=",
                format!("{log} blocks are fewer than the 1024 that a journal needs; give more MiB"),
            ));
        }
        let fast_commit = self.fast_commit_blocks(options);
        let total = log + fast_commit;
        if total > JOURNAL_BLOCKS_MAX {
            return Err(bad_value(
                "-J size=",
                format!("{total} blocks are above the maximum of {JOURNAL_BLOCKS_MAX}; give fewer MiB"),
            ));
        }
        Ok(Some(JournalSize { total, fast_commit }))
    }

    fn fast_commit_blocks(&self, options: &Options) -> u64 {
        if !self.features.contains(FAST_COMMIT) {
            return 0;
        }
        match options.fast_commit_kib {
            Some(kib) => (u64::from(kib) << 10) / self.block_size(),
            // Follows from the size of the file system, even if a journal size was requested.
            None => jbd2::default_blocks(self.blocks).unwrap_or(0) / 64,
        }
    }

    fn orphan_size(&self, options: &Options) -> Result<Option<u64>> {
        if !self.features.contains(ORPHAN_FILE) {
            return Ok(None);
        }
        let blocks = match options.orphan_file_size {
            Some(amount) => amount.in_blocks(self.block_size()),
            None => default_orphan_blocks(self.blocks),
        };
        let blocks = blocks.next_multiple_of(self.cluster_ratio());
        if blocks == 0 || blocks > 512 {
            return Err(bad_value(
                "-E orphan_file_size=",
                format!("{blocks} blocks; between 1 and 512 are possible"),
            ));
        }
        Ok(Some(blocks))
    }
}

/// Default size of the orphan file: a 4096th of the file system, 32 to 512 blocks.
fn default_orphan_blocks(blocks: u64) -> u64 {
    (blocks / 4096).clamp(32, 512)
}

/// The combined overrides of the requested usage types. If none is requested, the overrides of the
/// usage type that fits the size.
fn size_class(options: &Options, device_bytes: u64) -> Overrides {
    let assumed = options.block_size.unwrap_or(1024);
    let bytes = options.size.map_or(device_bytes, |size| match size {
        Amount::Bytes(bytes) => bytes,
        Amount::Blocks(blocks) => blocks.saturating_mul(u64::from(assumed)),
    });
    let by_size = [Usage::for_size(bytes)];
    let usages = if options.usage.is_empty() { &by_size[..] } else { &options.usage[..] };
    usages.iter().fold(Overrides::default(), |sum, usage| {
        let next = usage.overrides();
        Overrides {
            block_size: next.block_size.or(sum.block_size),
            bytes_per_inode: next.bytes_per_inode.or(sum.bytes_per_inode),
            inode_size: next.inode_size.or(sum.inode_size),
        }
    })
}

fn block_size(options: &Options, defaults: &Overrides) -> Result<u32> {
    match options.block_size {
        None => Ok(defaults.block_size.unwrap_or(DEFAULTS.0)),
        Some(size) if size.is_power_of_two() && (1024..=65536).contains(&size) => Ok(size),
        Some(size) => {
            Err(bad_value(format!("-b {size}"), "the block size must be a power of two from 1024 to 65536"))
        }
    }
}

fn block_count(options: &Options, device_bytes: u64, block_size: u32) -> u64 {
    let block_size = u64::from(block_size);
    match options.size {
        Some(amount) => amount.in_blocks(block_size),
        // As in mke2fs, the size of a whole device is rounded down to a multiple of a page.
        None => (device_bytes & !4095) / block_size,
    }
}

fn feature_set(options: &Options) -> Result<FeatureSet> {
    let mut features = options.profile.features();
    if options.revision.is_some_and(|revision| revision > 1) {
        return Err(bad_value("-r", "the revision must be 0 or 1"));
    }
    if options.revision == Some(0) {
        features = FeatureSet::default();
    }
    for edits in &options.features {
        feature::edit(&mut features, edits)?;
    }
    if options.journal_mib.is_some() {
        features.set(HAS_JOURNAL, true);
    }
    if options.mmp_update_interval.is_some() && !features.contains(MMP) {
        return Err(Error::Conflict("-E mmp_update_interval= needs the feature mmp; add -O mmp".to_owned()));
    }
    if options.fast_commit_kib.is_some() && !features.contains(FAST_COMMIT) {
        return Err(Error::Conflict(
            "-J fast_commit_size= needs the feature fast_commit; add -O fast_commit".to_owned(),
        ));
    }
    Ok(features)
}

fn cluster_ratio_bits(options: &Options, features: &FeatureSet, block_size: u32) -> Result<u32> {
    let Some(size) = options.cluster_size else {
        return Ok(if features.contains(BIGALLOC) { 4 } else { 0 });
    };
    if !features.contains(BIGALLOC) {
        return Err(Error::Conflict("-C needs the feature bigalloc; add -O bigalloc".to_owned()));
    }
    if !size.is_power_of_two() || !(2048..=256 << 20).contains(&size) || size < block_size {
        return Err(bad_value(
            format!("-C {size}"),
            "the cluster size must be a power of two from 2048 to 256 MiB and at least the block size",
        ));
    }
    Ok(size.trailing_zeros() - block_size.trailing_zeros())
}

/// Refuses a number of blocks that the features or the format cannot express. Clears resize_inode
/// above 2^32 - 1 blocks, because the resize inode's block map has 32-bit pointers.
fn check_block_count(features: &mut FeatureSet, blocks: u64, block_size: u32) -> Result<()> {
    if blocks == 0 {
        return Err(Error::Size("0 blocks are too few for a file system; ask for more".to_owned()));
    }
    let most_short = u64::from(u32::MAX);
    if blocks > most_short {
        if !features.contains(BIT64) {
            return Err(Error::Size(format!(
                "{blocks} blocks of {block_size} bytes need 64-bit block numbers; add -O 64bit or a larger -b"
            )));
        }
        features.set(RESIZE_INODE, false);
    }
    if blocks > blockyard_disk::Geometry::BLOCKS_MAX {
        return Err(Error::Size(format!("{blocks} blocks are more than the format's 2^48; ask for less")));
    }
    Ok(())
}

fn inode_size(options: &Options, defaults: &Overrides, block_size: u32) -> Result<u32> {
    if options.revision == Some(0) {
        return Ok(128);
    }
    let size = options.inode_size.or(defaults.inode_size).unwrap_or(DEFAULTS.2);
    // The superblock's field for the inode size has 16 bits.
    let most = block_size.min(1 << 15);
    if !size.is_power_of_two() || !(128..=most).contains(&size) {
        return Err(bad_value(
            format!("-I {size}"),
            format!(
                "with blocks of {block_size} bytes, the inode size must be a power of two from 128 to {most}"
            ),
        ));
    }
    Ok(size)
}

fn clusters_per_group(options: &Options, block_size: u32) -> Result<u32> {
    let most = (block_size * 8).min(CLUSTERS_PER_GROUP_MAX);
    match options.blocks_per_group {
        None => Ok(most),
        Some(count) if count.is_multiple_of(8) && (CLUSTERS_PER_GROUP_MIN..=most).contains(&count) => {
            Ok(count)
        }
        Some(count) => Err(bad_value(
            format!("-g {count}"),
            format!("blocks per group must be a multiple of 8 from {CLUSTERS_PER_GROUP_MIN} to {most}"),
        )),
    }
}

fn flex_bits(options: &Options, features: &FeatureSet) -> Result<u32> {
    if options.packed_meta_blocks && !features.contains(FLEX_BG) {
        return Err(Error::Conflict(
            "-E packed_meta_blocks=1 needs the feature flex_bg; add -O flex_bg".to_owned(),
        ));
    }
    match options.flex_groups {
        Some(_) if !features.contains(FLEX_BG) => {
            Err(Error::Conflict("-G needs the feature flex_bg; add -O flex_bg".to_owned()))
        }
        Some(groups) if groups.is_power_of_two() => Ok(groups.trailing_zeros()),
        Some(groups) => {
            Err(bad_value(format!("-G {groups}"), "groups per flex group must be a power of two"))
        }
        None => Ok(if features.contains(FLEX_BG) { 4 } else { 0 }),
    }
}

fn reserved_percent(options: &Options) -> Result<f64> {
    match options.reserved_percent {
        None => Ok(5.0),
        Some(percent) if (0.0..=50.0).contains(&percent) => Ok(percent),
        Some(percent) => Err(bad_value(format!("-m {percent}"), "reserved percent must be between 0 and 50")),
    }
}

/// Checks that inodes can store the creation time: without extra fields they have 32 signed bits
/// for a time, otherwise two bits more.
fn check_time(options: &Options, inode_size: u32) -> Result<()> {
    let most = if inode_size == 128 { Timestamp::SECONDS_MAX_SHORT } else { Timestamp::SECONDS_MAX };
    if options.time > most.unsigned_abs() {
        return Err(bad_value(
            format!("--time {}", options.time),
            format!("inodes of {inode_size} bytes hold times up to {most} seconds after 1970"),
        ));
    }
    Ok(())
}

fn check_texts(options: &Options) -> Result<()> {
    if options.label.len() > 16 {
        return Err(bad_value(format!("-L {}", options.label), "a label has at most 16 bytes"));
    }
    if options.last_mounted.len() > 64 {
        return Err(bad_value(
            format!("-M {}", options.last_mounted),
            "a directory has at most 64 bytes here",
        ));
    }
    if options.stride.is_some_and(|stride| stride > u32::from(u16::MAX)) {
        return Err(bad_value("-E stride=", "the stride must be below 65536 blocks"));
    }
    if options.mmp_update_interval.is_some_and(|seconds| seconds > 300) {
        return Err(bad_value("-E mmp_update_interval=", "the interval must be at most 300 seconds"));
    }
    if options.backup_superblocks.is_some_and(|count| count > 2) {
        return Err(bad_value("-E num_backup_sb=", "0, 1 or 2 backups are possible"));
    }
    Ok(())
}
