//! Pass 0, the part after the superblock: checks the group descriptors (checksums, places, flags
//! and counts), the backup superblocks, overlaps of static metadata, the MMP block, and what the
//! resize inode maps.

use blockyard_disk::group_desc::{GroupFlags, RawGroupDesc};
use blockyard_disk::inode::{FileType, RawInode};
use blockyard_disk::num::{u64_from_u32, usize_from_u32, usize_from_u64};
use blockyard_disk::superblock::RawSuperblock;
use blockyard_disk::{BlockCount, BlockNr, Compat, GroupNr, Incompat, RoCompat};
use zerocopy::FromBytes;

use crate::ahead::Ahead;
use crate::code::Code;
use crate::finding::{Sink, Site};
use crate::volume::{Group, Volume};

/// Reads and checks all descriptors into [`Volume::groups`], which stays empty when some cannot be
/// read at all. Returns false when e2fsck would look for a backup: when descriptors cannot be read,
/// or when a bitmap or table lies where it must not, or overlaps other metadata.
pub(crate) fn load(volume: &mut Volume<'_>, sink: &mut Sink) -> bool {
    let per_block = volume.descs_per_block();
    let groups = volume.geometry.groups();
    // Grows as descriptors are read: their number is only a claim of the superblock.
    let mut list = Vec::new();
    let mut ahead = Ahead::default();
    for index in 0..volume.desc_blocks() {
        let place = volume.desc_block(index);
        let more = u64_from_u32(volume.old_desc_blocks().saturating_sub(index + 1));
        let read = if volume.contains(place) { ahead.block(volume, place, more).ok() } else { None };
        let Some(block) = read else {
            sink.add(Code::METADATA_READ, Site::block(place), "group descriptors");
            return false;
        };
        let first = index * per_block;
        for (raw, nr) in block.chunks_exact(volume.desc_size).zip(first..groups.min(first + per_block)) {
            list.push(check_descriptor(volume, GroupNr::new(nr), raw, sink));
        }
    }
    assert_eq!(list.len(), usize_from_u32(groups), "a descriptor of each group");
    volume.groups = list;
    let places = |group: &Group| group.block_bitmap_ok && group.inode_bitmap_ok && group.inode_table_ok;
    volume.groups.iter().all(places) && !overlap(&static_ranges(volume))
}

fn check_descriptor(volume: &Volume<'_>, nr: GroupNr, raw: &[u8], sink: &mut Sink) -> Group {
    let site = Site::group(nr);
    let desc = RawGroupDesc::from_disk(raw);
    let ipg = volume.geometry.inodes_per_group();
    let has_flags = volume.ro_compat.intersects(RoCompat::GDT_CSUM | RoCompat::METADATA_CSUM);
    let sound = volume.checksums.verify_group_desc(nr, raw).is_ok();
    let mut doubtful = !sound;
    if !sound {
        sink.add(Code::GROUP_CHECKSUM, site, "");
    }
    let mut flags = desc.flags();
    if volume.is_backup {
        flags.remove(GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT);
        let group = place_bitmaps(volume, nr, desc, sink);
        return Group { desc, flags, inodes_used: ipg, inodes_believed: ipg, is_sealed: sound, ..group };
    }
    let mut believed = if flags.contains(GroupFlags::INODE_UNINIT) { 0 } else { ipg };
    if !has_flags {
        let uninit = GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
        if flags.intersects(uninit) || desc.itable_unused() != 0 {
            sink.add(Code::UNINIT_WITHOUT_FEATURE, site, "");
            // e2fsck uses `bg_itable_unused` all the same: it subtracts the value from the number
            // after the group's last inode. If the value is larger than that number, the difference
            // overflows, and no inode counts as unused.
            let unused = u64_from_u32(desc.itable_unused());
            let end = u64_from_u32(ipg) * (u64_from_u32(nr.raw()) + 1);
            believed =
                if unused > end + 1 { believed } else { believed.saturating_sub(desc.itable_unused()) };
            doubtful = true;
        }
        flags.remove(uninit);
    } else if desc.itable_unused() > ipg {
        sink.add(Code::ITABLE_UNUSED, site, format!("{} of {ipg}", desc.itable_unused()));
        (believed, doubtful) = (0, true);
    } else {
        believed = believed.saturating_sub(desc.itable_unused());
    }
    if nr.raw() + 1 == volume.geometry.groups() && flags.contains(GroupFlags::BLOCK_UNINIT) {
        // With this flag, the bitmap on disk is not used. Pass 5 reports what is wrong with the
        // bitmap that the flag implies.
        sink.add(Code::LAST_GROUP_UNINIT, site, "");
    }
    if !sound {
        // Like e2fsck, do not believe that bitmaps on disk are not valid if the descriptor's
        // checksum is wrong. They are read.
        flags.remove(GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT);
    }
    let group = place_bitmaps(volume, nr, desc, sink);
    // When the descriptor is in doubt, the whole table is scanned. The exception is a table that is
    // not marked as zeroed: beyond the inodes in use, it may hold anything.
    let filled = !has_flags || desc.flags().contains(GroupFlags::ITABLE_ZEROED);
    let inodes_used = if doubtful && filled { ipg } else { believed };
    assert!(believed <= inodes_used && inodes_used <= ipg, "{believed} and {inodes_used} inodes of {ipg}");
    Group { desc, flags, inodes_used, inodes_believed: believed, is_sealed: sound, ..group }
}

/// Checks that bitmaps and table lie where they may.
fn place_bitmaps(volume: &Volume<'_>, nr: GroupNr, desc: RawGroupDesc, sink: &mut Sink) -> Group {
    let geometry = &volume.geometry;
    let flexible = volume.incompat.contains(Incompat::FLEX_BG);
    let first = geometry.group_first_block(nr).raw();
    let last = first + geometry.blocks_in_group(nr);
    let mut inside = |block: BlockNr, count: u64, code: Code| {
        let in_group = block.raw() >= first && block.raw().checked_add(count).is_some_and(|end| end <= last);
        let ok = block.raw() > 0 && volume.contains_range(block, count) && (flexible || in_group);
        if !ok {
            sink.add(code, Site::group(nr).at_block(block), "");
        }
        ok
    };
    Group {
        desc,
        flags: GroupFlags::empty(),
        inodes_used: 0,
        inodes_believed: 0,
        is_sealed: false,
        block_bitmap_ok: inside(desc.block_bitmap(), 1, Code::BLOCK_BITMAP_PLACE),
        inode_bitmap_ok: inside(desc.inode_bitmap(), 1, Code::INODE_BITMAP_PLACE),
        inode_table_ok: inside(desc.inode_table(), geometry.inode_table_blocks(), Code::INODE_TABLE_PLACE),
    }
}

/// Compares the backup superblocks with the primary one in constants and features, and verifies
/// their checksums. Differences are notes: `e2fsck -f` does not look at backups while the primary
/// is good.
pub(crate) fn check_backups(volume: &Volume<'_>, sink: &mut Sink) {
    for group in volume.superblock_groups().into_iter().filter(|group| group.raw() != 0) {
        let site = Site::group(group).at_block(volume.geometry.group_first_block(group));
        let Ok(block) = volume.block(volume.geometry.group_first_block(group)) else {
            sink.add(Code::BACKUP_SUPERBLOCK, site, "cannot be read");
            continue;
        };
        let (backup, _) = RawSuperblock::read_from_prefix(&block).expect("a block has 1024 bytes");
        let primary = &volume.sb;
        let same = backup.s_magic == primary.s_magic
            && backup.s_uuid == primary.s_uuid
            && backup.s_log_block_size == primary.s_log_block_size
            && backup.blocks_count() == primary.blocks_count()
            && backup.s_inodes_count == primary.s_inodes_count
            // The field has 16 bits, so the copies in later groups hold another number.
            && (group.raw() > 0xFFFF || u32::from(backup.s_block_group_nr.get()) == group.raw());
        if !same {
            sink.add(Code::BACKUP_SUPERBLOCK, site, "constants differ");
        } else if has_other_features(primary, &backup) {
            sink.add(Code::BACKUP_SUPERBLOCK, site, "features differ");
        } else if volume.checksums.verify_superblock(&backup).is_err() {
            sink.add(Code::BACKUP_SUPERBLOCK, site, "checksum does not match");
        }
    }
}

/// Whether a backup has other features than the primary superblock. As observed with e2fsck, most
/// features that Linux sets or clears while the file system is mounted do not count.
pub(crate) fn has_other_features(primary: &RawSuperblock, backup: &RawSuperblock) -> bool {
    let incompat = Incompat::RECOVER | Incompat::EXTENTS;
    let ro_compat = RoCompat::LARGE_FILE | RoCompat::DIR_NLINK | RoCompat::ORPHAN_PRESENT;
    primary.compat() != backup.compat()
        || !(primary.incompat() ^ backup.incompat()).difference(incompat).is_empty()
        || !(primary.ro_compat() ^ backup.ro_compat()).difference(ro_compat).is_empty()
}

/// One object of the file system's own metadata and the blocks it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SystemRange {
    pub(crate) first: BlockNr,
    pub(crate) count: u64,
    pub(crate) group: GroupNr,
    pub(crate) conflict: Code,
}

impl SystemRange {
    /// Whether moving this object costs less than moving the other. A bitmap can be computed anew,
    /// a table holds the inodes, and superblocks and descriptors have fixed places.
    fn is_cheaper_than(&self, other: &Self) -> bool {
        let cost = |range: &Self| match range.conflict {
            Code::METADATA_CONFLICT => 2,
            Code::INODE_TABLE_CONFLICT => 1,
            _ => 0,
        };
        cost(self) < cost(other)
    }
}

/// All static metadata, ascending; overlaps between objects are findings.
pub(crate) fn system_ranges(volume: &Volume<'_>, sink: &mut Sink) -> Vec<SystemRange> {
    let mut ranges = static_ranges(volume);
    if volume.incompat.contains(Incompat::MMP) && volume.contains(BlockNr::new(volume.sb.s_mmp_block.get())) {
        let first = BlockNr::new(volume.sb.s_mmp_block.get());
        let group = volume.geometry.group_of(first);
        ranges.push(SystemRange { first, count: 1, group, conflict: Code::METADATA_CONFLICT });
        ranges.sort_unstable();
    }
    debug_assert!(ranges.is_sorted(), "metadata out of order");
    debug_assert!(
        ranges.iter().all(|range| volume.contains_range(range.first, range.count)),
        "metadata outside the file system"
    );
    report_overlaps(&ranges, sink);
    ranges
}

/// Superblocks, descriptors, bitmaps and tables, ascending.
fn static_ranges(volume: &Volume<'_>) -> Vec<SystemRange> {
    let mut ranges = Vec::new();
    for nr in backup_groups(volume) {
        for (first, count) in volume.backup_area(nr) {
            let last = volume.geometry.blocks_count().raw();
            let count = count.min(last.saturating_sub(first.raw()));
            // A last group of one block has no room for descriptors.
            if count > 0 {
                ranges.push(SystemRange { first, count, group: nr, conflict: Code::METADATA_CONFLICT });
            }
        }
    }
    for (nr, group) in volume.geometry.all_groups().zip(&volume.groups) {
        let desc = &group.desc;
        let objects = [
            (group.block_bitmap_ok, desc.block_bitmap(), 1, Code::BLOCK_BITMAP_CONFLICT),
            (group.inode_bitmap_ok, desc.inode_bitmap(), 1, Code::INODE_BITMAP_CONFLICT),
            (
                group.inode_table_ok,
                desc.inode_table(),
                volume.geometry.inode_table_blocks(),
                Code::INODE_TABLE_CONFLICT,
            ),
        ];
        for (_, first, count, conflict) in objects.into_iter().filter(|object| object.0) {
            ranges.push(SystemRange { first, count, group: nr, conflict });
        }
    }
    ranges.sort_unstable();
    ranges
}

/// Whether two objects share a block.
fn overlap(ranges: &[SystemRange]) -> bool {
    ranges.windows(2).any(|pair| pair[0].first.raw() + pair[0].count > pair[1].first.raw())
}

/// Groups that may hold a superblock or descriptors.
fn backup_groups(volume: &Volume<'_>) -> Vec<GroupNr> {
    if volume.incompat.contains(Incompat::META_BG) {
        volume.geometry.all_groups().collect()
    } else {
        volume.superblock_groups()
    }
}

fn report_overlaps(ranges: &[SystemRange], sink: &mut Sink) {
    let mut end = 0;
    let mut owner: Option<&SystemRange> = None;
    for range in ranges {
        if range.first.raw() < end {
            let blamed = owner.filter(|owner| owner.is_cheaper_than(range)).unwrap_or(range);
            sink.add(blamed.conflict, Site::group(blamed.group).at_block(range.first), "");
        }
        let range_end = range.first.raw() + range.count;
        if range_end > end {
            end = range_end;
            owner = Some(range);
        }
    }
}

/// Whether a range of blocks touches static metadata; `ranges` come from [`system_ranges`].
pub(crate) fn touches(ranges: &[SystemRange], first: BlockNr, count: u64) -> bool {
    let end = first.raw().saturating_add(count);
    // Ranges of a sound image do not overlap, so only the last range that begins before `end` can
    // reach beyond `first`. Overlaps of a damaged image were reported already.
    let after = ranges.partition_point(|range| range.first.raw() < end);
    after > 0 && ranges[after - 1].first.raw() + ranges[after - 1].count > first.raw()
}

/// Checks the MMP block.
pub(crate) fn check_mmp(volume: &Volume<'_>, sink: &mut Sink) {
    use blockyard_disk::mmp::{MAGIC, RawMmp, SEQUENCE_CLEAN, SEQUENCE_FSCK};
    if !volume.incompat.contains(Incompat::MMP) {
        return;
    }
    let place = BlockNr::new(volume.sb.s_mmp_block.get());
    if place.raw() == 0 || !volume.contains(place) {
        sink.add(Code::MMP_BLOCK, Site::block(place), "");
        return;
    }
    let Ok(block) = volume.block(place) else {
        sink.add(Code::METADATA_READ, Site::block(place), "MMP block");
        return;
    };
    let (mmp, _) = RawMmp::read_from_prefix(&block).expect("a block has 1024 bytes");
    if mmp.mmp_magic.get() != MAGIC {
        sink.add(Code::MMP_MAGIC, Site::block(place), "");
    } else if volume.checksums.verify_mmp(&mmp).is_err() {
        sink.add(Code::MMP_CHECKSUM, Site::block(place), "");
    } else if mmp.mmp_seq.get() != SEQUENCE_CLEAN {
        // If this is an ordinary sequence number, e2fsck waits, sees it unchanged, and goes on.
        let stale = mmp.mmp_seq.get() < SEQUENCE_FSCK;
        let code = if stale { Code::MMP_SEQUENCE } else { Code::MMP_IN_USE };
        sink.add(code, Site::block(place), format!("mmp_seq = {:#010x}", mmp.mmp_seq.get()));
    }
}

/// Checks the resize inode: a regular file in use that maps one double-indirect block, whose
/// entries are the reserved descriptor blocks of group 0. Each of these lists its own copies in the
/// backup groups.
pub(crate) fn check_resize_inode(volume: &Volume<'_>, raw: &RawInode, sink: &mut Sink) {
    let site = Site::inode(blockyard_disk::InodeNr::RESIZE);
    if !volume.compat.contains(Compat::RESIZE_INODE) {
        return;
    }
    if raw.file_type() != Some(FileType::Regular) || raw.i_links_count.get() == 0 {
        return sink.add(Code::RESIZE_INODE, site, "not a regular file in use");
    }
    if let Err((code, why)) = resize_structure(volume, &raw.block_words()) {
        sink.add(code, site, why);
    }
}

/// As observed, e2fsck 1.47.0 checks the first quarter of the reserved blocks, and in each only as
/// many entries as should be listed. Faults that it does not look for have a code of our own.
fn resize_structure(volume: &Volume<'_>, words: &[u32; 15]) -> Result<(), (Code, String)> {
    let per_block = u64_from_u32(blockyard_disk::num::u32_from_usize(volume.block_size() / 4));
    let double = BlockNr::new(u64_from_u32(words[13]));
    // Block 0 is no place for a map, even if the first group begins there.
    let is_possible = double != BlockNr::ZERO && volume.contains(double);
    if words[..13].iter().any(|&word| word != 0) || words[14] != 0 || !is_possible {
        return Err((Code::RESIZE_INODE, "map is not one double-indirect block".into()));
    }
    let unread = |error: blockyard_device::DeviceError| (Code::RESIZE_INODE, error.to_string());
    let top = volume.block(double).map_err(unread)?;
    let reserved = u64_from_u32(u32::from(volume.sb.s_reserved_gdt_blocks.get()));
    let first_desc = volume.desc_block(0);
    let mut expected = vec![0u32; volume.block_size() / 4];
    for index in 0..reserved {
        let slot = (u64_from_u32(volume.old_desc_blocks()) + index) % per_block;
        let block = first_desc + BlockCount::new(u64_from_u32(volume.old_desc_blocks()) + index);
        expected[usize_from_u64(slot)] = blockyard_disk::num::low32(block.raw());
    }
    let backups: Vec<GroupNr> =
        volume.superblock_groups().into_iter().filter(|group| group.raw() != 0).collect();
    let mut unseen = words_of(&top).ne(expected.iter().copied());
    let mut ahead = Ahead::default();
    for index in 0..reserved {
        let slot = usize_from_u64((u64_from_u32(volume.old_desc_blocks()) + index) % per_block);
        let block = first_desc + BlockCount::new(u64_from_u32(volume.old_desc_blocks()) + index);
        let list = ahead.block(volume, block, reserved - index - 1).map_err(unread)?;
        let copies: Vec<u32> = backups
            .iter()
            .map(|group| {
                let copy = block.raw() + u64_from_u32(group.raw()) * volume.geometry.blocks_per_group();
                blockyard_disk::num::low32(copy)
            })
            .collect();
        let named = words_of(&top).nth(slot) == Some(expected[slot]);
        let listed = words_of(&list).take(copies.len()).eq(copies.iter().copied());
        if index < reserved / 4 && !(named && listed) {
            return Err((
                Code::RESIZE_INODE,
                format!("reserved block {block} is not listed, or does not list its copies"),
            ));
        }
        unseen |= !named || !listed || words_of(&list).skip(copies.len()).any(|word| word != 0);
    }
    if unseen {
        return Err((Code::RESIZE_REST, "a reserved block is not listed, or lists something else".into()));
    }
    Ok(())
}

fn words_of(block: &[u8]) -> impl Iterator<Item = u32> + use<'_> {
    block.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}
