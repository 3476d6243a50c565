//! Pass 5: compares bitmaps and counters with what the earlier passes found.

use blockyard_disk::group_desc::GroupFlags;
use blockyard_disk::num::{u64_from_u32, u64_from_usize, usize_from_u32};
use blockyard_disk::{BlockNr, ClusterOffset, GroupNr};
use rayon::prelude::*;

use crate::Part;
use crate::block_map::BlockMap;
use crate::code::Code;
use crate::facts::{Facts, GroupFacts};
use crate::finding::{Ledger, Sink, Site};
use crate::volume::Volume;

/// Groups handed to the threads at a time.
const BATCH: usize = 4096;
/// The most ranges of each kind reported for one bitmap. One finding sums up the rest.
const RANGES_MAX: usize = 64;

/// What a group adds to the totals.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    free_clusters: u64,
    free_inodes: u64,
}

/// Compares all bitmaps and counters; returns how many blocks and inodes are really free.
pub(crate) fn check(volume: &Volume<'_>, map: &BlockMap, facts: &Facts, ledger: &mut Ledger) -> (u64, u64) {
    let groups: Vec<GroupNr> = volume.geometry.all_groups().collect();
    let mut totals = Totals::default();
    let count = u64_from_usize(groups.len());
    assert_eq!(groups.len(), facts.groups.len(), "facts of each group whose bitmaps are compared");
    let check_group = |group: GroupNr| {
        let checked = check_group(volume, map, &facts.groups[usize_from_u32(group.raw())], group);
        volume.watch.tell(Part::Groups, 1, count);
        checked
    };
    for batch in groups.chunks(BATCH) {
        let done: Vec<(Totals, Sink)> =
            batch.par_iter().with_min_len(16).map(|&group| check_group(group)).collect();
        for (group, sink) in done {
            totals.free_clusters += group.free_clusters;
            totals.free_inodes += group.free_inodes;
            ledger.absorb(sink);
        }
    }
    let (clusters, inodes) = (volume.geometry.clusters_count().raw(), volume.geometry.inodes_count());
    assert!(totals.free_clusters <= clusters, "{} free clusters of {clusters}", totals.free_clusters);
    assert!(totals.free_inodes <= u64_from_u32(inodes), "{} free inodes of {inodes}", totals.free_inodes);
    let mut sink = Sink::default();
    let free_blocks = totals.free_clusters << volume.geometry.cluster_ratio_bits();
    let stored = volume.sb.free_blocks_count().raw();
    if stored != free_blocks {
        sink.add(Code::FREE_BLOCKS_TOTAL, Site::NOWHERE, format!("{stored}, counted {free_blocks}"));
    }
    let stored = u64_from_u32(volume.sb.s_free_inodes_count.get());
    if stored != totals.free_inodes {
        sink.add(Code::FREE_INODES_TOTAL, Site::NOWHERE, format!("{stored}, counted {}", totals.free_inodes));
    }
    ledger.absorb(sink);
    (free_blocks, totals.free_inodes)
}

fn check_group(volume: &Volume<'_>, map: &BlockMap, facts: &GroupFacts, nr: GroupNr) -> (Totals, Sink) {
    let mut sink = Sink::default();
    let totals = Totals {
        free_clusters: check_blocks(volume, map, nr, &mut sink),
        free_inodes: check_inodes(volume, facts, nr, &mut sink),
    };
    (totals, sink)
}

/// Compares the block bitmap and free count of a group; returns how many clusters are really free.
fn check_blocks(volume: &Volume<'_>, map: &BlockMap, nr: GroupNr, sink: &mut Sink) -> u64 {
    let group = volume.group_of(nr);
    let clusters = volume.geometry.clusters_in_group(nr);
    let found: Option<Vec<u64>> = map.group_words(nr).map(Iterator::collect);
    let used: u64 = found.iter().flatten().map(|word| u64_from_u32(word.count_ones())).sum();
    assert!(used <= u64_from_u32(clusters), "{used} clusters of group {nr} claimed, it has {clusters}");
    let free = u64_from_u32(clusters) - used;
    let uninit = group.flags.contains(GroupFlags::BLOCK_UNINIT);
    if uninit {
        if used > metadata_clusters(volume, nr) {
            sink.add(Code::BLOCK_UNINIT_USED, Site::group(nr), format!("{used} clusters in use"));
        }
        if clusters < volume.geometry.clusters_per_group() {
            // For a group with this flag, e2fsck makes up a bitmap whose padding is clear, and
            // then reports the padding.
            sink.add(Code::BLOCK_BITMAP_PADDING, Site::group(nr), "BLOCK_UNINIT in the last group");
        }
    } else if group.block_bitmap_ok {
        let words = found.unwrap_or_default();
        compare_block_bitmap(volume, nr, &words, sink);
    }
    let stored = u64_from_u32(group.desc.free_clusters());
    if stored != free {
        sink.add(Code::FREE_BLOCKS_GROUP, Site::group(nr), format!("{stored}, counted {free}"));
    }
    free
}

/// How many clusters of a group hold its own static metadata.
fn metadata_clusters(volume: &Volume<'_>, nr: GroupNr) -> u64 {
    let geometry = &volume.geometry;
    let first = geometry.group_first_block(nr).raw();
    let end = first + geometry.blocks_in_group(nr);
    let bits = geometry.cluster_ratio_bits();
    let group = volume.group_of(nr);
    let mut ranges = volume.backup_area(nr);
    // Tables of other groups may lie here too, but mke2fs never marks such a group BLOCK_UNINIT.
    ranges.push((group.desc.block_bitmap(), 1));
    ranges.push((group.desc.inode_bitmap(), 1));
    ranges.push((group.desc.inode_table(), geometry.inode_table_blocks()));
    let mut clusters: Vec<u64> = ranges
        .into_iter()
        .flat_map(|(block, count)| block.raw()..block.raw().saturating_add(count))
        .filter(|&block| block >= first && block < end)
        .map(|block| (block - first) >> bits)
        .collect();
    clusters.sort_unstable();
    clusters.dedup();
    u64_from_usize(clusters.len())
}

fn compare_block_bitmap(volume: &Volume<'_>, nr: GroupNr, found: &[u64], sink: &mut Sink) {
    let group = volume.group_of(nr);
    let place = group.desc.block_bitmap();
    let site = Site::group(nr).at_block(place);
    let Ok(bitmap) = volume.block(place) else {
        return sink.add(Code::BITMAP_READ, site, "block bitmap");
    };
    let cpg = volume.geometry.clusters_per_group();
    let clusters = volume.geometry.clusters_in_group(nr);
    let is_free = !volume.is_backup && group.is_read_in_doubt(GroupFlags::BLOCK_UNINIT);
    let judge = |bitmap: &[u8]| {
        let sum = volume.checksums.verify_block_bitmap(&group.desc, volume.desc_size, bitmap, cpg);
        let checksum_ok = is_free || sum.is_ok();
        (checksum_ok, Differences::between(bitmap, found, clusters))
    };
    let (mut checksum_ok, mut differences) = judge(&bitmap);
    if !checksum_ok || differences.exist() {
        let filled = with_uninit_metadata(volume, nr, &bitmap);
        let (filled_ok, filled_differences) = judge(&filled);
        if filled != bitmap && filled_ok && !filled_differences.exist() {
            sink.add(Code::BITMAP_UNINIT_METADATA, site, "");
            (checksum_ok, differences) = (true, filled_differences);
        }
    }
    if !checksum_ok {
        sink.add(Code::BLOCK_BITMAP_CHECKSUM, site, "");
    }
    let block = |bit: u32| volume.geometry.block_at(nr, ClusterOffset::new(bit));
    report(sink, Code::BLOCKS_MARKED_FREE_RANGE, nr, &differences.only_stored, |bit| block(bit).to_string());
    report(sink, Code::BLOCKS_MARKED_USED_RANGE, nr, &differences.only_found, |bit| block(bit).to_string());
    if !all_set(&bitmap, clusters, cpg.max(8 * blockyard_disk::num::u32_from_usize(bitmap.len()))) {
        sink.add(Code::BLOCK_BITMAP_PADDING, site, "");
    }
}

/// The bitmap with bits added for the metadata of BLOCK_UNINIT groups of the same flex group.
/// e2fsck sets these bits when it reads a bitmap, and then verifies the checksum. So it does not
/// notice that they are missing on disk.
fn with_uninit_metadata(volume: &Volume<'_>, nr: GroupNr, bitmap: &[u8]) -> Vec<u8> {
    let geometry = &volume.geometry;
    let flex = geometry.flex_of(nr);
    let mut filled = bitmap.to_vec();
    let first = flex.raw() << geometry.fields().flex_bits;
    let of_flex =
        (first..geometry.groups()).map(GroupNr::new).take_while(|group| geometry.flex_of(*group) == flex);
    for other in of_flex {
        let group = volume.group_of(other);
        let sound = group.block_bitmap_ok && group.inode_bitmap_ok && group.inode_table_ok;
        if !sound || !group.flags.contains(GroupFlags::BLOCK_UNINIT) {
            continue;
        }
        let table = (group.desc.inode_table(), geometry.inode_table_blocks());
        for (start, count) in [(group.desc.block_bitmap(), 1), (group.desc.inode_bitmap(), 1), table] {
            for block in (start.raw()..start.raw() + count).map(BlockNr::new) {
                let (home, offset) = geometry.locate(block);
                if home == nr {
                    let bit = usize_from_u32(offset.raw());
                    filled[bit / 8] |= 1 << (bit % 8);
                }
            }
        }
    }
    filled
}

/// Compares the inode bitmap and counts of a group; returns how many inodes are really free.
fn check_inodes(volume: &Volume<'_>, facts: &GroupFacts, nr: GroupNr, sink: &mut Sink) -> u64 {
    let group = volume.group_of(nr);
    let ipg = volume.geometry.inodes_per_group();
    let mut found = vec![0u64; usize_from_u32(ipg.div_ceil(64))];
    let (mut used, mut directories) = (0u32, 0u32);
    for index in facts.marked() {
        found[index / 64] |= 1 << (index % 64);
        used += 1;
        directories += u32::from(facts.kinds[index].is_directory());
    }
    let beyond =
        facts.kinds.iter().skip(usize_from_u32(group.inodes_believed)).filter(|kind| kind.is_used()).count();
    if beyond > 0 {
        let detail = format!("{beyond} inodes in use that the descriptor calls unused");
        sink.add(Code::INODE_UNINIT_USED, Site::group(nr), detail);
    }
    if group.flags.contains(GroupFlags::INODE_UNINIT) {
        // The bitmap on disk means nothing.
    } else if group.inode_bitmap_ok {
        compare_inode_bitmap(volume, nr, &found, sink);
    }
    assert!(
        directories <= used && used <= ipg,
        "{directories} directories, {used} inodes of {ipg} in group {nr}"
    );
    let free = u64_from_u32(ipg - used);
    let stored = u64_from_u32(group.desc.free_inodes());
    if stored != free {
        sink.add(Code::FREE_INODES_GROUP, Site::group(nr), format!("{stored}, counted {free}"));
    }
    let stored = group.desc.used_dirs();
    if stored != directories {
        sink.add(Code::USED_DIRS_GROUP, Site::group(nr), format!("{stored}, counted {directories}"));
    }
    free
}

fn compare_inode_bitmap(volume: &Volume<'_>, nr: GroupNr, found: &[u64], sink: &mut Sink) {
    let group = volume.group_of(nr);
    let place = group.desc.inode_bitmap();
    let site = Site::group(nr).at_block(place);
    let Ok(bitmap) = volume.block(place) else {
        return sink.add(Code::BITMAP_READ, site, "inode bitmap");
    };
    let ipg = volume.geometry.inodes_per_group();
    let is_free = !volume.is_backup && group.is_read_in_doubt(GroupFlags::INODE_UNINIT);
    let sum = volume.checksums.verify_inode_bitmap(&group.desc, volume.desc_size, &bitmap, ipg);
    if sum.is_err() && !is_free {
        sink.add(Code::INODE_BITMAP_CHECKSUM, site, "");
    }
    let differences = Differences::between(&bitmap, found, ipg);
    let inode = |bit: u32| volume.geometry.inode_at(nr, bit).to_string();
    report(sink, Code::INODES_MARKED_RANGE, nr, &differences.only_stored, inode);
    report(sink, Code::INODES_UNMARKED_RANGE, nr, &differences.only_found, inode);
    if !all_set(&bitmap, ipg, 8 * blockyard_disk::num::u32_from_usize(bitmap.len())) {
        sink.add(Code::INODE_BITMAP_PADDING, site, "");
    }
}

/// Ranges of bits in which the stored bitmap differs from the one that the check computed.
#[derive(Debug, Default)]
struct Differences {
    only_stored: Ranges,
    only_found: Ranges,
}

/// The first [`RANGES_MAX`] ranges of bits, and how many bits there are in all.
#[derive(Debug, Default)]
struct Ranges {
    ranges: Vec<(u32, u32)>,
    bits: u64,
}

impl Ranges {
    fn push(&mut self, bit: u32) {
        debug_assert!(
            self.ranges.last().is_none_or(|&(_, last)| last < bit),
            "bit {bit} after {:?}",
            self.ranges.last()
        );
        self.bits += 1;
        let full = self.ranges.len() >= RANGES_MAX;
        match self.ranges.last_mut() {
            Some((_, last)) if *last + 1 == bit => *last = bit,
            _ if full => {}
            _ => self.ranges.push((bit, bit)),
        }
    }
}

impl Differences {
    fn exist(&self) -> bool {
        self.only_stored.bits + self.only_found.bits > 0
    }

    fn between(stored: &[u8], found: &[u64], bits: u32) -> Self {
        assert!(
            stored.len() * 8 >= usize_from_u32(bits),
            "{bits} bits in a bitmap of {} bytes",
            stored.len()
        );
        let mut differences = Self::default();
        for (index, word) in stored.chunks_exact(8).enumerate() {
            let first = blockyard_disk::num::u32_from_usize(index * 64);
            if first >= bits {
                break;
            }
            let stored = u64::from_le_bytes(word.try_into().expect("8 bytes"));
            let found = found.get(index).copied().unwrap_or(0);
            let left = bits - first;
            let mask = if left >= 64 { u64::MAX } else { (1 << left) - 1 };
            let mut differing = (stored ^ found) & mask;
            while differing != 0 {
                let bit = differing.trailing_zeros();
                differing &= differing - 1;
                let side = if stored >> bit & 1 == 1 {
                    &mut differences.only_stored
                } else {
                    &mut differences.only_found
                };
                side.push(first + bit);
            }
        }
        differences
    }
}

fn report(sink: &mut Sink, code: Code, nr: GroupNr, ranges: &Ranges, name: impl Fn(u32) -> String) {
    let mut listed = 0;
    for &(first, last) in &ranges.ranges {
        listed += u64::from(last - first) + 1;
        let detail = if first == last { name(first) } else { format!("{} to {}", name(first), name(last)) };
        sink.add(code, Site::group(nr).at_offset(usize_from_u32(first)), detail);
    }
    debug_assert!(listed <= ranges.bits, "{listed} bits listed of {}", ranges.bits);
    if listed < ranges.bits {
        let next = ranges.ranges.last().map_or(0, |(_, last)| usize_from_u32(*last) + 1);
        sink.add(code, Site::group(nr).at_offset(next), format!("{} more", ranges.bits - listed));
    }
}

/// Whether all bits from `from` up to `to` are set.
fn all_set(bitmap: &[u8], from: u32, to: u32) -> bool {
    (from..to).all(|bit| {
        let byte = bitmap.get(usize_from_u32(bit / 8)).copied().unwrap_or(0xFF);
        // Most bytes of padding are all ones. A byte past the bitmap counts as all ones, too.
        byte == 0xFF || byte >> (bit % 8) & 1 == 1
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_are_not_listed_have_the_offset_after_the_last_listed_one() {
        let mut ranges = Ranges::default();
        let listed = blockyard_disk::num::u32_from_usize(RANGES_MAX);
        (0..=listed).for_each(|nth| ranges.push(2 * nth));
        let mut sink = Sink::default();
        report(&mut sink, Code::BLOCKS_MARKED_FREE_RANGE, GroupNr::new(0), &ranges, |bit| bit.to_string());
        let findings = sink.into_findings();
        let last = findings.last().expect("findings were added");
        assert_eq!(last.detail, "1 more");
        assert_eq!(last.site.offset, Some(2 * RANGES_MAX - 1));
    }
}
