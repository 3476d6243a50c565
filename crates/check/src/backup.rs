//! Backups of the superblock and the descriptors, for file systems whose primary ones are unusable.
//!
//! Like e2fsck, a check takes the backup of group 1. If only the descriptors are bad, the
//! superblock says where that backup is. Otherwise the check tries each block size in turn, and
//! assumes groups of the usual size: as many blocks as a bitmap block has bits. A repair tries more
//! backups.
//!
//! A check lays the backup over the device in memory: nothing is written. That a backup was used is
//! only a note, because e2fsck calls such a file system clean if nothing else is wrong.

use blockyard_device::{BlockDevice, OverlayDevice};
use blockyard_disk::num::{u64_from_u32, u64_from_usize, usize_from_u64};
use blockyard_disk::superblock::{MAGIC, PRIMARY_OFFSET, RawSuperblock};
use blockyard_disk::{BlockNr, Checksums, Compat, GroupNr, Incompat, RoCompat};
use zerocopy::{FromBytes, IntoBytes};

use crate::Place;
use crate::volume::Volume;

/// Base-2 logarithms of the block sizes, 1 KiB to 64 KiB.
const BLOCK_BITS: std::ops::RangeInclusive<u32> = 10..=16;

/// Bytes read at a time while looking for copies.
const CHUNK: usize = 1 << 20;
/// The most copies that are tried.
const COPIES_MAX: usize = 16;

/// A copy of the superblock that was read and is sound.
#[derive(Debug)]
pub(crate) struct Backup {
    /// The block that holds it.
    pub(crate) block: BlockNr,
    bits: u32,
    sb: RawSuperblock,
    kind: Kind,
}

/// Where a copy of the superblock lies. This decides whether descriptors follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Where a backup belongs: descriptors follow.
    Backup,
    /// Elsewhere: a copy in a journal, or what an old journal left.
    Loose,
}

/// The backup of group 1 in groups of the usual size, for the smallest block size that has one.
pub(crate) fn find(device: &dyn BlockDevice) -> Option<Backup> {
    let mut bits = BLOCK_BITS;
    bits.find_map(|bits| read(device, (8 << bits) + u64::from(bits == 10), bits))
}

/// The backups in the first ten backup groups of `sparse_super`, for groups of the usual size.
/// Sorted by block size, then by group.
pub(crate) fn all(device: &dyn BlockDevice) -> Vec<Backup> {
    let groups = [1, 3, 5, 7, 9, 25, 27, 49, 81, 125];
    BLOCK_BITS
        .flat_map(|bits| groups.map(|group| (group * (8u64 << bits) + u64::from(bits == 10), bits)))
        .filter_map(|(block, bits)| read(device, block, bits))
        .collect()
}

/// Backups in the order in which they are trusted. Those with the same UUID stay together, and the
/// UUIDs keep their order. Within a UUID, backups that describe the same layout as the primary
/// superblock come first. The others are sorted by how many backups describe the same layout, the
/// largest number first. `primary` may be damaged.
pub(crate) fn by_trust(backups: Vec<Backup>, primary: &RawSuperblock) -> Vec<Backup> {
    let essence: Vec<Essence> = backups.iter().map(|backup| Essence::of(&backup.sb)).collect();
    let first = |uuid: [u8; 16]| backups.iter().position(|backup| backup.sb.s_uuid == uuid);
    let key = |at: usize| {
        let votes = essence.iter().filter(|other| **other == essence[at]).count();
        let is_other = essence[at] != Essence::of(primary);
        (first(backups[at].sb.s_uuid), is_other, std::cmp::Reverse(votes))
    };
    let mut keyed: Vec<_> = (0..backups.len()).map(key).collect();
    let mut ordered: Vec<_> = keyed.drain(..).zip(backups).collect();
    ordered.sort_by_key(|(key, _)| *key);
    ordered.into_iter().map(|(_, backup)| backup).collect()
}

/// The fields of a superblock that describe the layout, and stay the same while the file system is
/// in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Essence {
    features: [u32; 3],
    sizes: [u32; 4],
    groups: [u32; 4],
}

impl Essence {
    fn of(sb: &RawSuperblock) -> Self {
        // The kernel changes these features only in the primary superblock.
        let compat = sb.compat().difference(Compat::EXT_ATTR);
        let incompat = sb.incompat().difference(Incompat::RECOVER);
        let ro_compat = sb.ro_compat().difference(RoCompat::LARGE_FILE | RoCompat::ORPHAN_PRESENT);
        Self {
            features: [compat.bits(), incompat.bits(), ro_compat.bits()],
            sizes: [
                sb.s_log_block_size.get(),
                sb.s_log_cluster_size.get(),
                u32::from(sb.s_inode_size.get()),
                u32::from(sb.s_desc_size.get()),
            ],
            groups: [
                sb.s_first_data_block.get(),
                sb.s_blocks_per_group.get(),
                sb.s_inodes_per_group.get(),
                u32::from(sb.s_reserved_gdt_blocks.get()),
            ],
        }
    }
}

/// The superblock at the place that the user gave.
pub(crate) fn at(device: &dyn BlockDevice, place: Place) -> Option<Backup> {
    let mut bits = BLOCK_BITS.filter(|bits| place.block_size.is_none_or(|size| size == 1 << bits));
    bits.find_map(|bits| read(device, place.block, bits))
}

/// The backup of group 1 of a file system whose superblock is good.
pub(crate) fn of(volume: &Volume<'_>) -> Option<Backup> {
    (volume.geometry.groups() > 1).then(|| in_group(volume, GroupNr::new(1))).flatten()
}

/// The backups of a file system whose superblock is good: that of group 1, then the others, at most
/// [`COPIES_MAX`].
pub(crate) fn all_of(volume: &Volume<'_>) -> Vec<Backup> {
    let others = volume.superblock_groups().into_iter().filter(|group| group.raw() > 1);
    let others = others.filter_map(|group| in_group(volume, group));
    of(volume).into_iter().chain(others).take(COPIES_MAX).collect()
}

fn in_group(volume: &Volume<'_>, group: GroupNr) -> Option<Backup> {
    let block = volume.geometry.group_first_block(group).raw();
    read(volume.device, block, volume.geometry.block_bits())
}

fn read(device: &dyn BlockDevice, block: u64, bits: u32) -> Option<Backup> {
    let mut bytes = [0; RawSuperblock::SIZE];
    let offset = block.checked_mul(1 << bits)?;
    device.read_at(offset, &mut bytes).ok()?;
    let sb = RawSuperblock::read_from_bytes(&bytes).ok()?;
    let same_size = sb.s_log_block_size.get() == bits - 10;
    let sound = sb.s_magic.get() == MAGIC && Checksums::of(&sb).verify_superblock(&sb).is_ok();
    (same_size && sound).then_some(Backup { block: BlockNr::new(block), bits, sb, kind: Kind::Backup })
}

/// The copies of a superblock on the device, except the primary one, wherever they lie: at most
/// [`COPIES_MAX`]. Backups in groups of any size come first, then copies that a journal left, each
/// kind newest first. Reads the whole device.
pub(crate) fn scattered(device: &dyn BlockDevice) -> Vec<Backup> {
    let mut found = Vec::new();
    let mut buffer = vec![0; CHUNK];
    let mut start = 0;
    while start + u64_from_usize(RawSuperblock::SIZE) <= device.size() {
        let length = usize_from_u64(device.size().saturating_sub(start).min(u64_from_usize(CHUNK)));
        if device.read_at(start, &mut buffer[..length]).is_ok() {
            let pieces = buffer[..length].chunks_exact(RawSuperblock::SIZE);
            for (piece, at) in pieces.zip((start..).step_by(RawSuperblock::SIZE)) {
                found.extend(copy_at(at, piece).filter(|_| at != PRIMARY_OFFSET));
            }
        }
        if found.len() > 8 * COPIES_MAX {
            keep_best(&mut found);
        }
        start += u64_from_usize(CHUNK);
    }
    keep_best(&mut found);
    found
}

fn keep_best(copies: &mut Vec<Backup>) {
    copies.sort_by_key(|copy| (copy.kind, std::cmp::Reverse(copy.sb.write_time()), copy.block));
    copies.truncate(COPIES_MAX);
}

/// Reads 1024 bytes of the device as a superblock. `None` if they are not a superblock, or if no
/// copy may lie at this offset.
fn copy_at(offset: u64, bytes: &[u8]) -> Option<Backup> {
    let sb = RawSuperblock::read_from_bytes(bytes).ok()?;
    let bits = sb.s_log_block_size.get().checked_add(10)?;
    let known = sb.s_magic.get() == MAGIC && BLOCK_BITS.contains(&bits);
    if !known || Checksums::of(&sb).verify_superblock(&sb).is_err() {
        return None;
    }
    let (block, inside) = (offset >> bits, offset & ((1 << bits) - 1));
    let group = u64::from(sb.s_block_group_nr.get());
    let first = u64_from_u32(sb.s_first_data_block.get());
    let home = first + group * u64_from_u32(sb.s_blocks_per_group.get());
    let kind = if group > 0 && inside == 0 && block == home {
        Kind::Backup
    } else if group == 0 && inside == PRIMARY_OFFSET & ((1 << bits) - 1) {
        Kind::Loose
    } else {
        return None;
    };
    Some(Backup { block: BlockNr::new(block), bits, sb, kind })
}

impl Backup {
    /// The superblock that it holds.
    pub(crate) const fn superblock(&self) -> &RawSuperblock {
        &self.sb
    }

    /// Whether it lies where a backup belongs.
    pub(crate) fn is_at_home(&self) -> bool {
        self.kind == Kind::Backup
    }

    /// The device with the backup in the place of the primary superblock; `None` when that place
    /// cannot be read.
    pub(crate) fn laid_over<'a>(
        &self,
        device: &'a dyn BlockDevice,
    ) -> Option<OverlayDevice<&'a dyn BlockDevice>> {
        let overlay = OverlayDevice::new(device);
        self.write_over(&overlay).then_some(overlay)
    }

    /// Writes the backup to the place of the primary superblock; false when it cannot be written.
    pub(crate) fn write_over(&self, device: &dyn BlockDevice) -> bool {
        let mut sb = self.sb;
        // The primary has 0 here, and only the primary records whether the journal needs recovery.
        sb.s_block_group_nr.set(0);
        let incompat = sb.incompat().difference(Incompat::RECOVER);
        sb.s_feature_incompat.set(incompat.bits());
        Checksums::of(&sb).seal_superblock(&mut sb);
        device.write_at(PRIMARY_OFFSET, sb.as_bytes()).is_ok()
    }

    /// Copies the descriptors after the backup, and the second copies in meta groups, over the
    /// primary descriptors. `volume` was read through `overlay`. A block that cannot be read is
    /// left as it is. Does nothing for a copy that is not where a backup belongs.
    pub(crate) fn lay_descriptors(&self, volume: &Volume<'_>, overlay: &dyn BlockDevice) {
        if self.kind == Kind::Loose {
            return;
        }
        assert_eq!(self.bits, volume.geometry.block_bits(), "blocks of the backup and of the file system");
        let mut block = vec![0; 1 << self.bits];
        for index in 0..volume.desc_blocks() {
            let behind = BlockNr::new(self.block.raw() + 1 + u64_from_u32(index));
            let copy =
                if index < volume.old_desc_blocks() { Some(behind) } else { volume.second_meta_block(index) };
            let Some(copy) = copy else { continue };
            let from = copy.raw() << self.bits;
            let to = volume.desc_block(index).raw() << self.bits;
            if overlay.read_at(from, &mut block).is_ok() {
                let _ = overlay.write_at(to, &block);
            }
        }
    }
}
