//! The verified superblock: no feature prevents reading the image, the geometry is consistent, and
//! the numbers are within the bounds that later arithmetic needs.

use zerocopy::FromBytes;

use super::bounds;
use super::raw::{FsFlags, FsState, RawSuperblock};
use crate::checksum::object::ea_inode_hash;
use crate::checksum::{Checksums, crc32c_raw};
use crate::error::{Corruption, CorruptionKind, Error, Result};
use crate::features::{Compat, FeatureSet, Incompat, RoCompat};
use crate::geometry::Geometry;
use crate::group_head::{GroupHead, HeadLayout};
use crate::units::{BlockCount, BlockNr, GroupNr, InodeNr};

/// A superblock that passed every check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    raw: RawSuperblock,
    features: FeatureSet,
    geometry: Geometry,
    heads: HeadLayout,
    checksums: Checksums,
}

/// Incompatible features with which an image can be read.
pub const INCOMPAT_READABLE: Incompat = Incompat::FILETYPE
    .union(Incompat::RECOVER)
    .union(Incompat::META_BG)
    .union(Incompat::EXTENTS)
    .union(Incompat::BIT64)
    .union(Incompat::MMP)
    .union(Incompat::FLEX_BG)
    .union(Incompat::EA_INODE)
    .union(Incompat::CSUM_SEED)
    .union(Incompat::LARGE_DIR)
    .union(Incompat::INLINE_DATA)
    .union(Incompat::ENCRYPT)
    .union(Incompat::CASEFOLD);

/// Read-only-compatible features whose meaning is known.
pub const RO_COMPAT_KNOWN: RoCompat = RoCompat::SPARSE_SUPER
    .union(RoCompat::LARGE_FILE)
    .union(RoCompat::HUGE_FILE)
    .union(RoCompat::GDT_CSUM)
    .union(RoCompat::DIR_NLINK)
    .union(RoCompat::EXTRA_ISIZE)
    .union(RoCompat::QUOTA)
    .union(RoCompat::BIGALLOC)
    .union(RoCompat::METADATA_CSUM)
    .union(RoCompat::READONLY)
    .union(RoCompat::PROJECT)
    .union(RoCompat::SHARED_BLOCKS)
    .union(RoCompat::VERITY)
    .union(RoCompat::ORPHAN_PRESENT);

/// A failed check of the superblock.
fn bad(kind: CorruptionKind) -> Error {
    Error::Corrupt(Corruption::new(kind))
}

fn check(ok: bool, kind: CorruptionKind) -> Result<()> {
    if ok { Ok(()) } else { Err(bad(kind)) }
}

impl Superblock {
    /// Verifies the 1024 bytes of a superblock copy.
    ///
    /// # Errors
    /// [`Error::UnsupportedFeatures`] for incompatible features outside [`INCOMPAT_READABLE`],
    /// [`Error::Unsupported`] for a revision above 1, [`Error::Corrupt`] with a `Superblock*` kind
    /// for the first check that fails ([`CorruptionKind::SuperblockMagic`] also for fewer than 1024
    /// bytes).
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let (raw, _) =
            RawSuperblock::read_from_prefix(bytes).map_err(|_| bad(CorruptionKind::SuperblockMagic))?;
        Self::verify(raw)
    }

    /// As [`Self::parse`], for a raw superblock.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn verify(raw: RawSuperblock) -> Result<Self> {
        check(raw.s_magic.get() == super::MAGIC, CorruptionKind::SuperblockMagic)?;
        let features =
            FeatureSet { compat: raw.compat(), incompat: raw.incompat(), ro_compat: raw.ro_compat() };
        refuse_unreadable(&raw, &features)?;
        let checksums = Checksums::of(&raw);
        check(
            !features.has_metadata_csum() || raw.s_checksum_type == 1,
            CorruptionKind::SuperblockChecksumType,
        )?;
        checksums.verify_superblock(&raw)?;
        check_feature_combination(&features)?;
        let geometry = bounds::geometry(&raw)?;
        let heads = heads_of(&raw, &features, &geometry)?;
        check_inodes(&raw, &geometry)?;
        Ok(Self { raw, features, geometry, heads, checksums })
    }

    /// The bytes, for fields that have no accessor here.
    #[must_use]
    pub const fn raw(&self) -> &RawSuperblock {
        &self.raw
    }

    /// All features.
    #[must_use]
    pub const fn features(&self) -> &FeatureSet {
        &self.features
    }

    /// The read-only-compatible features outside [`RO_COMPAT_KNOWN`]. An image with such a feature
    /// may be read but must not be written.
    #[must_use]
    pub fn unknown_ro_compat(&self) -> RoCompat {
        self.features.ro_compat.difference(RO_COMPAT_KNOWN)
    }

    /// Groups, blocks, clusters, inodes.
    #[must_use]
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Positions of superblock copies and descriptors.
    #[must_use]
    pub const fn heads(&self) -> &HeadLayout {
        &self.heads
    }

    /// The kind and seed of the metadata checksums.
    #[must_use]
    pub const fn checksums(&self) -> &Checksums {
        &self.checksums
    }

    /// Bytes of one group descriptor.
    #[must_use]
    pub const fn desc_size(&self) -> usize {
        self.heads.desc_size
    }

    /// Whether a group has a superblock copy.
    #[must_use]
    pub fn has_super(&self, group: GroupNr) -> bool {
        self.heads.has_super(group)
    }

    /// Superblock copy, descriptors and reserved descriptor blocks of a group.
    #[must_use]
    pub fn head(&self, group: GroupNr) -> GroupHead {
        self.heads.head(&self.geometry, group)
    }

    /// Where the primary copy of a group's descriptor lies: its block, and the byte offset in it.
    #[must_use]
    pub fn descriptor_place(&self, group: GroupNr) -> (BlockNr, usize) {
        self.heads.descriptor_place(&self.geometry, group)
    }

    /// Free blocks according to the superblock. After a crash this may be wrong although the counts
    /// of the group descriptors are right.
    #[must_use]
    pub fn free_blocks_count(&self) -> BlockCount {
        self.raw.free_blocks_count()
    }

    /// Blocks kept for privileged users.
    #[must_use]
    pub fn reserved_blocks_count(&self) -> BlockCount {
        self.raw.reserved_blocks_count()
    }

    /// First inode that is not reserved.
    #[must_use]
    pub fn first_inode(&self) -> InodeNr {
        InodeNr::new(if self.raw.s_rev_level.get() == 0 {
            bounds::FIRST_INODE_OLD
        } else {
            self.raw.s_first_ino.get()
        })
    }

    /// Hash of an attribute value that lies in an inode of its own. The seed is the seed of the
    /// metadata checksums. Without metadata_csum, it is computed from the UUID.
    #[must_use]
    pub fn value_hash(&self, value: &[u8]) -> u32 {
        let seed = self.checksums().fs_seed().unwrap_or_else(|| crc32c_raw(!0, &self.raw.s_uuid));
        ea_inode_hash(seed, value)
    }

    /// The inode of the internal journal; `None` if there is no such journal.
    #[must_use]
    pub fn journal_inode(&self) -> Option<InodeNr> {
        let has = self.features.compat.contains(crate::features::Compat::HAS_JOURNAL);
        Some(InodeNr::new(self.raw.s_journal_inum.get())).filter(|inode| has && *inode != InodeNr::ZERO)
    }

    /// The inode of the orphan file; `None` if there is no such file.
    #[must_use]
    pub fn orphan_file_inode(&self) -> Option<InodeNr> {
        let has = self.features.compat.contains(crate::features::Compat::ORPHAN_FILE);
        Some(InodeNr::new(self.raw.s_orphan_file_inum.get())).filter(|inode| has && *inode != InodeNr::ZERO)
    }

    /// `s_state`.
    #[must_use]
    pub fn state(&self) -> FsState {
        self.raw.state()
    }

    /// Whether the journal may hold transactions that were not yet checkpointed.
    #[must_use]
    pub const fn needs_recovery(&self) -> bool {
        self.features.incompat.contains(Incompat::RECOVER)
    }

    /// Whether directory hashes take name bytes as unsigned.
    #[must_use]
    pub fn has_unsigned_hash(&self) -> bool {
        self.raw.flags().contains(FsFlags::UNSIGNED_HASH)
    }

    /// Whether `i_blocks` has 48 bits and may count file system blocks.
    #[must_use]
    pub const fn has_huge_file(&self) -> bool {
        self.features.ro_compat.contains(RoCompat::HUGE_FILE)
    }
}

fn refuse_unreadable(raw: &RawSuperblock, features: &FeatureSet) -> Result<()> {
    let unreadable = features.incompat.difference(INCOMPAT_READABLE);
    if !unreadable.is_empty() {
        return Err(Error::UnsupportedFeatures(unreadable.to_string()));
    }
    if raw.s_rev_level.get() > 1 {
        return Err(Error::Unsupported("superblock revision above 1"));
    }
    Ok(())
}

fn check_feature_combination(features: &FeatureSet) -> Result<()> {
    let bigalloc = features.ro_compat.contains(RoCompat::BIGALLOC);
    let seed = features.incompat.contains(Incompat::CSUM_SEED);
    let possible = (!bigalloc || features.incompat.contains(Incompat::EXTENTS))
        && (!seed || features.has_metadata_csum());
    check(possible, CorruptionKind::SuperblockFeatureCombination)
}

fn heads_of(raw: &RawSuperblock, features: &FeatureSet, geometry: &Geometry) -> Result<HeadLayout> {
    let desc_size = bounds::desc_size(raw)?;
    bounds::reserved_gdt(raw, geometry)?;
    let reserved = raw.s_reserved_gdt_blocks.get();
    let backups = raw.s_backup_bgs.map(|group| group.get());
    let heads = HeadLayout::of(features, desc_size, backups, raw.s_first_meta_bg.get(), reserved);
    bounds::first_meta_bg(raw, heads.descriptor_blocks(geometry))?;
    check(descriptors_fit(&heads, geometry), CorruptionKind::SuperblockDescriptorTable)?;
    Ok(heads)
}

/// Whether the descriptor table lies inside the file system. Checks the descriptor blocks in group
/// 0 and the last descriptor block. With meta_bg, the descriptor blocks of meta groups have
/// ascending block numbers, so the last one stands for all of them.
fn descriptors_fit(heads: &HeadLayout, geometry: &Geometry) -> bool {
    let end = geometry.blocks_count().raw();
    let classic = heads.head(geometry, GroupNr::new(0)).descriptors.end.raw();
    let last = heads.descriptor_block(geometry, heads.descriptor_blocks(geometry) - 1).raw();
    classic <= end && last < end
}

/// Checks the inode count, the inode numbers in the superblock, and the sizes that the superblock
/// gives for the extra fields of inodes.
fn check_inodes(raw: &RawSuperblock, geometry: &Geometry) -> Result<()> {
    bounds::inodes_count(raw, geometry)?;
    bounds::first_inode(raw, geometry)?;
    // The inode numbers of the quota files have a meaning only with the feature quota, and that of
    // the orphan file only with orphan_file.
    let quota = raw.ro_compat().contains(RoCompat::QUOTA);
    let numbers = [
        (true, raw.s_journal_inum),
        (quota, raw.s_usr_quota_inum),
        (quota, raw.s_grp_quota_inum),
        (quota, raw.s_prj_quota_inum),
        (raw.compat().contains(Compat::ORPHAN_FILE), raw.s_orphan_file_inum),
    ];
    let count = geometry.inodes_count();
    let possible = numbers.iter().all(|(is_read, number)| !is_read || number.get() <= count);
    check(possible, CorruptionKind::SuperblockInodeNumber)?;
    bounds::extra_isize(geometry, "s_min_extra_isize", raw.s_min_extra_isize.get())?;
    Ok(bounds::extra_isize(geometry, "s_want_extra_isize", raw.s_want_extra_isize.get())?)
}
