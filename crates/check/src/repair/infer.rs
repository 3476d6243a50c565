//! Infers a superblock from the structures that it described, when neither it nor a copy of it is
//! left.
//!
//! The search looks for the root: a slot of a directory whose first block begins with entries for
//! inode 2. The likeliest such slot gives the sizes of blocks and inodes and the place of the first
//! inode table. The number of inodes follows from the padding of their bitmap, or from the first
//! blocks in use after the table. Features follow from the inodes. What cannot be known gets a
//! default: no label, no reserved blocks, and another hash seed, so that indexes are rebuilt. If
//! the journal still has the old UUID, it is used, and checksums stay on if they match it.
//! Otherwise the UUID is new.
//!
//! As a rule only a file system of one group gets here: others have backups. If what is inferred
//! does not lead to a clean file system, nothing is written.

use std::collections::BTreeSet;

use blockyard_device::{BlockDevice, DeviceError};
use blockyard_disk::checksum::crc32c_raw;
use blockyard_disk::dirblock::{DirLayout, Entries, Entry};
use blockyard_disk::extent::{self, RawExtent, RawExtentHeader, RawExtentIndex};
use blockyard_disk::group_desc::RawGroupDesc;
use blockyard_disk::inode::{FileType, InodeFlags, InodeSlot, RawInode};
use blockyard_disk::jbd2::{RawHeader, RawJournalSuperblock};
use blockyard_disk::num::{low16, low32, u32_from_usize, u64_from_u32, u64_from_usize, usize_from_u32};
use blockyard_disk::num::{u32_from_u64, usize_from_u64};
use blockyard_disk::superblock::{FsFlags, FsState, MAGIC, PRIMARY_OFFSET, RawSuperblock};
use blockyard_disk::{BlockCount, Checksums, Compat, Incompat, InodeNr, RoCompat};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros};

/// Bytes read at a time while looking for the root.
const CHUNK: usize = 1 << 20;
/// The search for candidates ends after the chunk in which their number reaches this limit. There
/// can be many, because a journal holds copies of the root.
const ROOTS_MAX: usize = 256;
/// The most slots of the inode table that are looked at.
const SLOTS_MAX: u32 = 8192;
/// The most clusters in a group. Only groups with blocks of 8 KiB or more reach it. The limit is
/// there because counts of free blocks once had 16 bits.
const BLOCKS_PER_GROUP_MAX: u32 = 65_528;
/// The most inodes in a group are this number minus the inodes of one block: mke2fs makes no more,
/// and e2fsck refuses more.
const INODES_PER_GROUP_LIMIT: usize = 65_536;
/// Logarithm of the largest cluster that is looked for, in blocks.
const CLUSTER_POWER_MAX: u32 = 15;
/// How many blocks before the first table are searched for its inode bitmap. That is room for the
/// descriptors, the blocks reserved for them, and the bitmaps of more than 64 groups.
const BITMAP_DISTANCE_MAX: u64 = 4096;
/// The most inodes whose maps are read to find out where the tables end.
const BEHIND_MAX: u32 = 512;
/// In an inode bitmap, one bit in this many may be wrong.
const WRONG_SHARE_MAX: usize = 32;
/// The most groups whose tables mke2fs puts together by default.
const FLEX_GROUPS: u64 = 16;
/// The most blocks of the root whose names are compared with the table.
const ROOT_BLOCKS_MAX: usize = 64;
/// First ordinary inode.
const FIRST_INODE: u32 = 11;
const CRC32C: u8 = 1;
/// The only known value of `s_encoding`.
const ENCODING_UTF8: u16 = 1;
const SLOT_MIN: usize = RawInode::SIZE;

/// The first inode table: its place, and the sizes that go with it.
#[derive(Clone, Copy, Debug)]
struct Table {
    bits: u32,
    inode_size: usize,
    /// Byte offset.
    at: u64,
}

impl Table {
    fn slot(&self, device: &dyn BlockDevice, inode: u32) -> Option<InodeSlot<Vec<u8>>> {
        assert!(inode > 0, "inodes are numbered from 1");
        let mut bytes = vec![0; self.inode_size];
        let at = self.at + u64_from_u32(inode - 1) * u64_from_usize(self.inode_size);
        device.read_at(at, &mut bytes).ok()?;
        Some(InodeSlot::new(bytes))
    }

    fn block_size(&self) -> usize {
        1 << self.bits
    }

    fn first_data_block(&self) -> u64 {
        u64::from(self.bits == 10)
    }
}

/// Where the UUID of an inferred superblock comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UuidOrigin {
    /// The journal superblock still has the old UUID.
    Journal,
    /// Nothing has the old UUID, so the UUID is new.
    New,
}

impl UuidOrigin {
    /// A clause for the user.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Journal => "the UUID is the journal's",
            Self::New => "the UUID is new",
        }
    }
}

/// Infers a superblock from what is left on a device. `None` when no root is left, when nothing
/// shows the inodes per group, or when the blocks or inodes are too many for 32 bits.
fn superblock(device: &dyn BlockDevice, now: u64) -> Option<(RawSuperblock, UuidOrigin)> {
    let table =
        tables(device).into_iter().max_by_key(|table| (rate(device, table), std::cmp::Reverse(table.at)))?;
    let desc_size = desc_size(device, &table);
    let per_group = inodes_per_group(device, &table, desc_size.is_some())?;
    let mut sb = RawSuperblock::new_zeroed();
    let ratio = cluster_ratio(device, &table, per_group);
    put_geometry(&mut sb, device.size(), &table, (per_group, ratio))?;
    put_defaults(&mut sb, now);
    put_features(&mut sb, device, &table, per_group);
    if ratio > 1 {
        sb.set_ro_compat(sb.ro_compat() | RoCompat::BIGALLOC);
    }
    if desc_size == Some(64) && sb.incompat().contains(Incompat::EXTENTS) {
        sb.set_incompat(sb.incompat() | Incompat::BIT64);
        sb.s_desc_size = U16::new(64);
    }
    let uuid = put_identity(&mut sb, device, &table);
    Checksums::of(&sb).seal_superblock(&mut sb);
    debug_assert!(Checksums::of(&sb).verify_superblock(&sb).is_ok(), "a superblock that was just sealed");
    Some((sb, uuid))
}

/// Candidates for the first inode table: each has what may be the root in its second slot.
fn tables(device: &dyn BlockDevice) -> Vec<Table> {
    let mut tables = Vec::new();
    let mut buffer = vec![0; CHUNK];
    let mut start = 0;
    while start < device.size() && tables.len() < ROOTS_MAX {
        let length = usize_from_u64((device.size() - start).min(u64_from_usize(CHUNK)));
        if device.read_at(start, &mut buffer[..length]).is_ok() {
            let slots = buffer[..length].chunks_exact(SLOT_MIN);
            for (slot, at) in slots.zip((start..).step_by(SLOT_MIN)) {
                tables.extend(tables_around(device, slot, at));
            }
        }
        start += u64_from_usize(CHUNK);
    }
    tables
}

/// The candidates whose second slot is the one at byte `at`: one for each pair of block size and
/// inode size that is possible.
fn tables_around(device: &dyn BlockDevice, slot: &[u8], at: u64) -> Vec<Table> {
    let root = InodeSlot::new(slot);
    let raw = root.raw();
    if raw.file_type() != Some(FileType::Directory) || raw.i_links_count.get() < 2 || raw.i_dtime.get() != 0 {
        return Vec::new();
    }
    let Some(block) = first_block(raw) else { return Vec::new() };
    let mut tables = Vec::new();
    for bits in (10..=16).filter(|bits| names_root(device, block, *bits)) {
        for inode_size in (7..=12).map(|log| 1usize << log).filter(|size| *size <= 1 << bits) {
            let begin = at.checked_sub(u64_from_usize(inode_size));
            let begin = begin.filter(|begin| begin.is_multiple_of(1 << bits) && *begin > 0);
            tables.extend(begin.map(|at| Table { bits, inode_size, at }));
        }
    }
    tables
}

/// The first physical block that an inode maps, if `i_block` itself names it.
fn first_block(raw: &RawInode) -> Option<u64> {
    if raw.flags().contains(InodeFlags::INLINE_DATA) {
        return None;
    }
    if !raw.flags().contains(InodeFlags::EXTENTS) {
        return Some(u64_from_u32(raw.block_words()[0])).filter(|block| *block > 0);
    }
    let (header, rest) = RawExtentHeader::read_from_prefix(&raw.i_block).ok()?;
    let leaf =
        header.eh_magic.get() == extent::MAGIC && header.eh_depth.get() == 0 && header.eh_entries.get() > 0;
    let (first, _) = RawExtent::read_from_prefix(rest).ok().filter(|_| leaf)?;
    Some(first.start().raw()).filter(|block| *block > 0)
}

/// The blocks that `i_block` names: data blocks (of an extent only the first), and blocks that hold
/// more of the map.
fn named_blocks(raw: &RawInode) -> Vec<u64> {
    if raw.flags().contains(InodeFlags::INLINE_DATA) {
        return Vec::new();
    }
    if !raw.flags().contains(InodeFlags::EXTENTS) {
        return raw.block_words().into_iter().filter(|word| *word > 0).map(u64_from_u32).collect();
    }
    let header = RawExtentHeader::read_from_prefix(&raw.i_block).ok();
    let Some((header, rest)) = header.filter(|(header, _)| header.eh_magic.get() == extent::MAGIC) else {
        return Vec::new();
    };
    let start = |entry: &[u8]| {
        if header.eh_depth.get() == 0 {
            RawExtent::read_from_bytes(entry).ok().map(|extent| extent.start().raw())
        } else {
            RawExtentIndex::read_from_bytes(entry).ok().map(|index| index.leaf().raw())
        }
    };
    let entries = rest.chunks_exact(RawExtent::SIZE).take(usize::from(header.eh_entries.get()));
    entries.filter_map(start).collect()
}

/// Whether a block begins as the root's does: entries for `.` and `..`, both of inode 2.
fn names_root(device: &dyn BlockDevice, block: u64, bits: u32) -> bool {
    let mut head = [0; 24];
    let Some(at) = block.checked_mul(1 << bits) else { return false };
    if device.read_at(at, &mut head).is_err() {
        return false;
    }
    let root = InodeNr::ROOT.raw().to_le_bytes();
    head[..4] == root
        && head[4..7] == [12, 0, 1]
        && head[8] == b'.'
        && head[12..16] == root
        && head[18] == 2
        && head[20..22] == *b".."
}

/// A score: how many of the first inodes are what they should be.
fn rate(device: &dyn BlockDevice, table: &Table) -> usize {
    let is = |inode: u32, kind: FileType| {
        table.slot(device, inode).is_some_and(|slot| slot.raw().file_type() == Some(kind))
    };
    let reserved = [(7, FileType::Regular), (8, FileType::Regular), (FIRST_INODE, FileType::Directory)];
    let known = reserved.into_iter().filter(|(inode, kind)| is(*inode, *kind)).count();
    let ordinary = (FIRST_INODE..FIRST_INODE + 64).filter(|inode| {
        let slot = table.slot(device, *inode);
        slot.is_some_and(|slot| slot.raw().file_type().is_some() && slot.raw().i_links_count.get() > 0)
    });
    4 * known + ordinary.count()
}

fn read_block(device: &dyn BlockDevice, table: &Table, block: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; table.block_size()];
    device.read_at(block.checked_mul(1 << table.bits)?, &mut bytes).ok()?;
    Some(bytes)
}

/// The descriptor of the first group, when it names the table.
fn first_descriptor(device: &dyn BlockDevice, table: &Table) -> Option<(RawGroupDesc, Vec<u8>)> {
    let block = read_block(device, table, table.first_data_block() + 1)?;
    let desc = RawGroupDesc::from_disk(&block[..32]);
    let fits = desc.inode_table().raw() == table.at >> table.bits;
    fits.then_some((desc, block))
}

/// Bytes of a descriptor; `None` if the first descriptor does not name the table. The size is 64 if
/// the 32 bytes after the first 32 are neither zeroes nor look like another descriptor: then they
/// hold the checksums that end a long descriptor.
fn desc_size(device: &dyn BlockDevice, table: &Table) -> Option<usize> {
    let (_, block) = first_descriptor(device, table)?;
    let wide_sums = block[32..64].iter().any(|byte| *byte != 0);
    let second = RawGroupDesc::from_disk(&block[32..64]);
    let is_second = second.inode_table().raw() > 0 && second.block_bitmap().raw() > 0;
    Some(if wide_sums && !is_second { 64 } else { 32 })
}

/// Inodes per group. The padding of the inode bitmap tells their number. If it does not, the table
/// is taken to end at a block that an inode maps: at the lowest or second lowest of
/// [`blocks_behind`]. With flex_bg, several tables may lie before that block.
fn inodes_per_group(device: &dyn BlockDevice, table: &Table, described: bool) -> Option<u32> {
    let per_block = table.block_size() / table.inode_size;
    let fits = |count: usize| {
        count > usize_from_u32(FIRST_INODE)
            && count.is_multiple_of(8)
            && count.is_multiple_of(per_block)
            && count <= (8 * table.block_size()).min(INODES_PER_GROUP_LIMIT - per_block)
    };
    let described = if described { first_descriptor(device, table) } else { None };
    let bitmap = described.and_then(|(desc, _)| read_block(device, table, desc.inode_bitmap().raw()));
    let padded = bitmap.or_else(|| inode_bitmap(device, table, fits)).map(|bitmap| unpadded(&bitmap));
    let begin = table.at >> table.bits;
    let room = |block: u64, tables: u64| usize_from_u64((block - begin) / tables).saturating_mul(per_block);
    // The padding may be damaged. But the table must end before the blocks that its inodes map. One
    // of these blocks may be wrong, so the second lowest decides.
    let has_room = |count: &usize| {
        let blocks = blocks_behind(device, table, u32_from_usize(*count));
        blocks.iter().nth(1).or(blocks.first()).is_none_or(|block| *count <= room(*block, 1))
    };
    let padded = padded.filter(has_room);
    let behind = blocks_behind(device, table, BEHIND_MAX);
    let ends = together(device, table)
        .into_iter()
        .flat_map(|tables| behind.iter().take(2).map(move |block| (tables, room(*block, tables) / 8 * 8)))
        .filter(|(tables, count)| fits(*count) && leads_to_directories(device, table, *tables, *count))
        .map(|(_, count)| count);
    let found = padded.filter(|count| fits(*count)).into_iter().chain(ends).next()?;
    Some(u32_from_usize(found))
}

/// Whether `tables` consecutive tables of `count` inodes each have directories in the slots that
/// the root's entries for directories name. One entry in 16 may be wrong. If there are fewer than
/// 16 entries, one may be wrong.
fn leads_to_directories(device: &dyn BlockDevice, table: &Table, tables: u64, count: usize) -> bool {
    let count = u64_from_usize(count);
    let groups = groups(device.size() >> table.bits, table, cluster_ratio(device, table, BEHIND_MAX));
    let is_wrong = |inode: &&u32| {
        let inode = **inode;
        let is_directory = || {
            table.slot(device, inode).is_some_and(|slot| slot.raw().file_type() == Some(FileType::Directory))
        };
        let number = u64_from_u32(inode);
        number > count * groups || (number <= count * tables && !is_directory())
    };
    let named = directories_in_root(device, table);
    let wrong = named.iter().filter(is_wrong).count();
    debug_assert!(wrong <= named.len(), "{wrong} of {} names", named.len());
    wrong <= (named.len() / 16).max(1)
}

/// The inode numbers of the directories that entries in the first blocks of the root name.
fn directories_in_root(device: &dyn BlockDevice, table: &Table) -> Vec<u32> {
    let Some(root) = table.slot(device, InodeNr::ROOT.raw()) else { return Vec::new() };
    let layout =
        DirLayout { block_size: table.block_size(), tail: false, file_types: true, inodes_count: u32::MAX };
    let directory = FileType::Directory.dirent_byte();
    let mut named = Vec::new();
    for block in mapped_blocks(root.raw()).into_iter().take(ROOT_BLOCKS_MAX) {
        let Some(bytes) = read_block(device, table, block) else { continue };
        let entries = Entries::new(&bytes, layout).into_iter().flatten().map_while(Result::ok);
        let is_below = |entry: &Entry<'_>| {
            entry.inode > 0 && entry.file_type == directory && !matches!(entry.name, b"." | b"..")
        };
        named.extend(entries.filter(is_below).map(|entry| entry.inode));
    }
    named
}

/// The blocks of a file, as far as `i_block` itself maps them.
fn mapped_blocks(raw: &RawInode) -> Vec<u64> {
    let header = RawExtentHeader::read_from_prefix(&raw.i_block).ok();
    match header {
        Some((header, rest)) if raw.flags().contains(InodeFlags::EXTENTS) => {
            let extents = rest.chunks_exact(RawExtent::SIZE).take(usize::from(header.eh_entries.get()));
            let extents = extents.filter_map(|bytes| RawExtent::read_from_bytes(bytes).ok());
            let is_leaf = header.eh_magic.get() == extent::MAGIC && header.eh_depth.get() == 0;
            let blocks = extents.filter(|_| is_leaf).flat_map(|extent| {
                let start = extent.start().raw();
                start..start + u64::from(extent.length())
            });
            blocks.take(ROOT_BLOCKS_MAX).collect()
        }
        _ => raw.block_words().into_iter().take(12).filter(|word| *word > 0).map(u64_from_u32).collect(),
    }
}

/// For each of the first `slots` inodes, the lowest block that it maps behind the beginning of the
/// table. Blocks before the table are possible, but do not count: with large blocks, mke2fs leaves
/// much room between the bitmaps, and files use it. Symbolic links and special files are left out,
/// because their `i_block` may be no map.
fn blocks_behind(device: &dyn BlockDevice, table: &Table, slots: u32) -> BTreeSet<u64> {
    let begin = table.at >> table.bits;
    let slots = (1..=slots.min(BEHIND_MAX)).filter_map(|inode| table.slot(device, inode));
    let used = slots.filter(|slot| {
        let is_mapped =
            matches!(slot.raw().file_type(), None | Some(FileType::Regular | FileType::Directory));
        is_mapped && slot.raw().i_links_count.get() > 0
    });
    let first_behind =
        |slot: InodeSlot<Vec<u8>>| named_blocks(slot.raw()).into_iter().filter(|block| *block > begin).min();
    used.filter_map(first_behind).collect()
}

/// How many tables may lie one behind the other, in the order in which to try the numbers. If the
/// root has no extents, there is probably no flex_bg, and the table stands alone. With flex_bg,
/// mke2fs puts the tables of up to [`FLEX_GROUPS`] groups together, like one long table.
fn together(device: &dyn BlockDevice, table: &Table) -> Vec<u64> {
    let root = table.slot(device, InodeNr::ROOT.raw());
    if root.is_none_or(|root| !root.raw().flags().contains(InodeFlags::EXTENTS)) {
        return vec![1];
    }
    let ratio = cluster_ratio(device, table, BEHIND_MAX);
    let groups = groups(device.size() >> table.bits, table, ratio);
    debug_assert!(groups > 0, "the table lies in a group");
    if groups > FLEX_GROUPS { vec![FLEX_GROUPS, 1] } else { vec![1, groups] }
}

/// The number of bits of a bitmap before its padding, which is all bytes of 0xFF at its end.
fn unpadded(bitmap: &[u8]) -> usize {
    8 * (bitmap.len() - bitmap.iter().rev().take_while(|byte| **byte == 0xFF).count())
}

/// Looks for the inode bitmap of the first group among the blocks before the table: returns the
/// block whose bits agree best with the slots in use. A block counts only under three conditions:
/// - `fits` accepts the number of inodes that the block's padding implies.
/// - Few bits are wrong ([`WRONG_SHARE_MAX`]).
/// - At least half of the slots in use are marked. If few slots are in use, a block of zeroes has
///   few wrong bits, too.
fn inode_bitmap(device: &dyn BlockDevice, table: &Table, fits: impl Fn(usize) -> bool) -> Option<Vec<u8>> {
    let slots = 1..=(8 * u32_from_usize(table.block_size())).min(SLOTS_MAX);
    let is_used = |inode| table.slot(device, inode).is_some_and(|slot| slot.raw().i_links_count.get() > 0);
    let used: Vec<bool> = slots.map(|inode| inode < FIRST_INODE || is_used(inode)).collect();
    debug_assert!(used[0], "the first inode is reserved");
    let end = table.at >> table.bits;
    let blocks = end.saturating_sub(BITMAP_DISTANCE_MAX).max(table.first_data_block() + 1)..end;
    let rated = blocks.filter_map(|block| {
        let bitmap = read_block(device, table, block)?;
        let count = unpadded(&bitmap).min(used.len());
        let is_set = |index: usize| bitmap[index / 8] >> (index % 8) & 1 == 1;
        let wrong = (0..count).filter(|index| is_set(*index) != used[*index]).count();
        let in_use = (0..count).filter(|index| used[*index]).count();
        let missed = (0..count).filter(|index| used[*index] && !is_set(*index)).count();
        let is_likely = wrong <= count / WRONG_SHARE_MAX && 2 * missed <= in_use;
        (fits(unpadded(&bitmap)) && is_likely).then_some((wrong, bitmap))
    });
    rated.min_by_key(|(wrong, _)| *wrong).map(|(_, bitmap)| bitmap)
}

/// Blocks per cluster: the largest power of two that divides the block counts of the root and of
/// nearly all inodes with extents. It is 1 instead if that power is impossibly large, or if no
/// directory has more blocks than its size needs.
fn cluster_ratio(device: &dyn BlockDevice, table: &Table, per_group: u32) -> u32 {
    let sectors = u64_from_usize(table.block_size() / 512);
    let (mut powers, mut of_root, mut has_wide) = (Vec::new(), 0, false);
    let ordinary = FIRST_INODE..=per_group.min(SLOTS_MAX);
    for inode in std::iter::once(InodeNr::ROOT.raw()).chain(ordinary) {
        let Some(slot) = table.slot(device, inode) else { continue };
        let raw = slot.raw();
        let blocks = raw.blocks_field(true) / sectors;
        let is_counted = raw.i_links_count.get() > 0
            && blocks > 0
            && raw.flags().contains(InodeFlags::EXTENTS)
            && !raw.flags().contains(InodeFlags::HUGE_FILE);
        if !is_counted {
            continue;
        }
        powers.push(blocks.trailing_zeros());
        if inode == InodeNr::ROOT.raw() {
            of_root = blocks.trailing_zeros();
        }
        let attributes = u64::from(raw.i_file_acl_lo.get() > 0);
        has_wide |= raw.file_type() == Some(FileType::Directory)
            && blocks > raw.size().div_ceil(u64_from_usize(table.block_size())) + attributes;
    }
    powers.sort_unstable();
    let power = powers.get(powers.len() / 16).map_or(0, |power| (*power).min(of_root));
    if has_wide && power <= CLUSTER_POWER_MAX { 1 << power } else { 1 }
}

fn clusters_per_group(table: &Table) -> u32 {
    (8u32 << table.bits).min(BLOCKS_PER_GROUP_MAX)
}

/// The block with which the first group begins. With bigalloc it is block 0, even if the superblock
/// is in block 1.
fn first_block_of_groups(table: &Table, ratio: u32) -> u64 {
    if ratio > 1 { 0 } else { table.first_data_block() }
}

/// The number of groups of a file system that has `blocks` blocks, and `ratio` blocks per cluster.
fn groups(blocks: u64, table: &Table, ratio: u32) -> u64 {
    assert!(ratio > 0, "a cluster has a block");
    let per_group = u64_from_u32(clusters_per_group(table)) * u64_from_u32(ratio);
    (blocks - first_block_of_groups(table, ratio)).div_ceil(per_group)
}

/// Sets the numbers of blocks, inodes and groups, given the inodes per group and the blocks per
/// cluster.
fn put_geometry(
    sb: &mut RawSuperblock,
    size: u64,
    table: &Table,
    (inodes_per_group, ratio): (u32, u32),
) -> Option<()> {
    let blocks = size >> table.bits;
    let clusters = clusters_per_group(table);
    let per_group = clusters.checked_mul(ratio)?;
    let first = first_block_of_groups(table, ratio);
    let groups = groups(blocks, table, ratio);
    sb.s_magic = U16::new(MAGIC);
    sb.set_blocks_count(BlockCount::new(blocks));
    sb.s_log_block_size = U32::new(table.bits - 10);
    sb.s_log_cluster_size = U32::new(table.bits - 10 + ratio.ilog2());
    sb.s_blocks_per_group = U32::new(per_group);
    sb.s_clusters_per_group = U32::new(clusters);
    sb.s_first_data_block = U32::new(u32_from_u64(first));
    sb.s_inodes_per_group = U32::new(inodes_per_group);
    sb.s_inodes_count = U32::new(u32::try_from(groups * u64_from_u32(inodes_per_group)).ok()?);
    sb.s_inode_size = U16::new(low16(u32_from_usize(table.inode_size)));
    sb.s_rev_level = U32::new(1);
    sb.s_first_ino = U32::new(FIRST_INODE);
    (blocks <= u64_from_u32(u32::MAX)).then_some(())
}

fn put_defaults(sb: &mut RawSuperblock, now: u64) {
    sb.s_max_mnt_count = U16::new(u16::MAX);
    sb.s_errors = U16::new(1);
    sb.set_state(FsState::empty());
    sb.s_def_hash_version = 1;
    sb.set_flags(FsFlags::SIGNED_HASH);
    sb.s_mkfs_time = U32::new(low32(now));
    if sb.s_inode_size.get() > 128 {
        sb.s_min_extra_isize = U16::new(32);
        sb.s_want_extra_isize = U16::new(32);
    }
}

/// Sets the features that the inodes of the first table use, and those that usually go with them.
fn put_features(sb: &mut RawSuperblock, device: &dyn BlockDevice, table: &Table, per_group: u32) {
    let mut compat = Compat::EXT_ATTR;
    let mut incompat = Incompat::empty();
    let mut ro_compat = RoCompat::SPARSE_SUPER | RoCompat::LARGE_FILE;
    for slot in (1..=per_group.min(SLOTS_MAX)).filter_map(|inode| table.slot(device, inode)) {
        let raw = slot.raw();
        if raw.i_links_count.get() == 0 || raw.file_type().is_none() || is_garbage(raw) {
            continue;
        }
        let flags = raw.flags();
        for (flag, feature) in [
            (InodeFlags::EXTENTS, Incompat::EXTENTS),
            (InodeFlags::INLINE_DATA, Incompat::INLINE_DATA),
            (InodeFlags::EA_INODE, Incompat::EA_INODE),
            (InodeFlags::ENCRYPT, Incompat::ENCRYPT),
            (InodeFlags::CASEFOLD, Incompat::CASEFOLD),
        ] {
            let possible = flag != InodeFlags::CASEFOLD || raw.file_type() == Some(FileType::Directory);
            if flags.contains(flag) && possible {
                incompat |= feature;
            }
        }
        if flags.contains(InodeFlags::INDEX) {
            compat |= Compat::DIR_INDEX;
        }
    }
    if incompat.contains(Incompat::EXTENTS) {
        incompat |= Incompat::FLEX_BG;
        ro_compat |= RoCompat::HUGE_FILE | RoCompat::DIR_NLINK;
        sb.s_log_groups_per_flex = 4;
    }
    if incompat.contains(Incompat::CASEFOLD) {
        sb.s_encoding = U16::new(ENCODING_UTF8);
    }
    if table.inode_size > SLOT_MIN {
        ro_compat |= RoCompat::EXTRA_ISIZE;
    }
    let root = table.slot(device, InodeNr::ROOT.raw());
    let block =
        root.and_then(|slot| first_block(slot.raw())).and_then(|block| read_block(device, table, block));
    if block.is_some_and(|block| block[7] == 2) {
        incompat |= Incompat::FILETYPE;
    }
    let journal = table.slot(device, InodeNr::JOURNAL.raw());
    let is_journal = |slot: &InodeSlot<Vec<u8>>| {
        slot.raw().file_type() == Some(FileType::Regular) && slot.raw().i_links_count.get() == 1
    };
    if journal.as_ref().is_some_and(is_journal) {
        compat |= Compat::HAS_JOURNAL;
        sb.s_journal_inum = U32::new(InodeNr::JOURNAL.raw());
    }
    sb.set_compat(compat);
    sb.set_incompat(incompat);
    sb.set_ro_compat(ro_compat);
}

/// Whether a slot has values that no inode has: unknown flags, or the address of a fragment.
fn is_garbage(raw: &RawInode) -> bool {
    let named = raw.flags().iter_names().fold(InodeFlags::empty(), |all, (_, flag)| all | flag);
    raw.flags() != named || raw.i_obso_faddr.get() != 0
}

/// Sets the UUID to the one in the journal, and turns checksums on if the checksum of the root's
/// inode matches this UUID. If the journal has no UUID, one is computed from the root's inode. The
/// hash seed is computed in both cases.
fn put_identity(sb: &mut RawSuperblock, device: &dyn BlockDevice, table: &Table) -> UuidOrigin {
    let root = table.slot(device, InodeNr::ROOT.raw());
    let journal = table.slot(device, InodeNr::JOURNAL.raw()).and_then(|slot| first_block(slot.raw()));
    let block = journal.and_then(|block| read_block(device, table, block));
    let log = block.filter(|block| RawHeader::read(block).is_some());
    let uuid = |block: Vec<u8>| Some(RawJournalSuperblock::read_from_prefix(&block).ok()?.0.s_uuid);
    let known = log.and_then(uuid).filter(|uuid| *uuid != [0; 16]);
    let bytes = root.as_ref().map(|slot| slot.bytes().to_vec()).unwrap_or_default();
    for (nth, piece) in (0u32..).zip(sb.s_uuid.chunks_exact_mut(4)) {
        piece.copy_from_slice(&crc32c_raw(nth, &bytes).to_le_bytes());
    }
    let seed = [0, 1, 2, 3].map(|nth| crc32c_raw(16 + nth, &bytes));
    sb.set_hash_seed(seed);
    let Some(uuid) = known else { return UuidOrigin::New };
    sb.s_uuid = uuid;
    let mut sealed = *sb;
    sealed.set_ro_compat(sb.ro_compat() | RoCompat::METADATA_CSUM);
    sealed.s_checksum_type = CRC32C;
    let matches = root.is_some_and(|slot| Checksums::of(&sealed).verify_inode(InodeNr::ROOT, &slot).is_ok());
    if matches {
        *sb = sealed;
    }
    UuidOrigin::Journal
}

/// Writes an inferred superblock, and returns where its UUID comes from; `None` when no superblock
/// can be inferred.
pub(super) fn write(device: &dyn BlockDevice, now: u64) -> Result<Option<UuidOrigin>, DeviceError> {
    let Some((sb, uuid)) = superblock(device, now) else { return Ok(None) };
    device.write_at(PRIMARY_OFFSET, zerocopy::IntoBytes::as_bytes(&sb))?;
    Ok(Some(uuid))
}
