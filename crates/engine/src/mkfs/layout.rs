//! Every position of a future file system, without any I/O.
//!
//! Blocks are given out in this order: heads of all groups, bitmaps and inode tables, root
//! directory, lost+found, resize inode, journal, MMP block, orphan file. With bigalloc, everything
//! up to the inode tables is placed block by block. Then every cluster with a used block counts as
//! used, and files take whole clusters.

use blockyard_disk::num::{u32_from_u64, u64_from_u32, usize_from_u32};
use blockyard_disk::{BlockNr, Geometry, GroupNr, InodeNr};

use super::content::Content;
use super::error::{Error, Result};
use super::feature::{EXTENT, FLEX_BG, INLINE_DATA, LARGE_FILE, MMP, RESIZE_INODE};
use super::files::{Allocator, FileBlocks, lost_found_blocks};
use super::heads::Heads;
use super::options::Options;
use super::params::{JournalSize, Params};
use super::reserved::{self, LOST_FOUND, resize_size};
use super::shape::Shape;
use super::space::Space;
use super::tables::{self, GroupPlaces, Rules};

/// Files of at least this size need large_file.
const LARGE_FILE_MIN: u64 = 1 << 31;

/// The positions of everything in a future file system.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) params: Params,
    pub(super) geometry: Geometry,
    pub(super) heads: Heads,
    pub(super) reserved_blocks: u64,
    /// The positions of each group's bitmaps and inode table, by group number.
    pub(super) places: Vec<GroupPlaces>,
    /// Blocks in use, whole clusters.
    pub(super) space: Space,
    /// Blocks in use before any file was placed: heads, bitmaps and inode tables.
    pub(super) static_space: Space,
    pub(super) files: Files,
    /// The content besides `files`.
    pub(super) content: Content,
    /// Whether bitmaps and inode tables of several groups are packed together.
    is_flexed: bool,
}

impl Layout {
    /// Plans a file system for a device of `device_bytes` bytes.
    pub(super) fn plan(options: &Options, device_bytes: u64) -> Result<Self> {
        let mut params = Params::resolve(options, device_bytes)?;
        let Shape { geometry, heads, reserved_blocks } = Shape::find(&mut params)?;
        let needed = reserved::count(params.orphan_blocks.is_some());
        if geometry.inodes_count() < needed {
            let have = geometry.inodes_count();
            return Err(Error::Size(format!(
                "room for {have} inodes, {needed} are needed; ask for more blocks"
            )));
        }
        let mut space = Space::new(geometry.blocks_count().raw());
        // With blocks of 1 KiB and without bigalloc, the boot block is before group 0.
        space.mark(0..params.first_block);
        for group in geometry.all_groups() {
            space.mark(heads.range(&geometry, group));
        }
        if options.journal_mib.is_some() {
            check_journal_room(&params, &geometry, &heads)?;
        }
        let rules = rules(options, &params, &geometry);
        let places = tables::place_all(&geometry, rules, &mut space)?;
        space.widen(params.cluster_ratio());
        let static_space = space.clone();

        let files = Files::place(options, &params, &geometry, &heads, &mut space)?;
        if files.largest_bytes(&params) >= LARGE_FILE_MIN {
            params.features.set(LARGE_FILE, true);
        }
        Ok(Self {
            params,
            geometry,
            heads,
            reserved_blocks,
            places,
            space,
            static_space,
            files,
            content: Content::default(),
            is_flexed: rules.flex > 1,
        })
    }

    /// The blocks of a group.
    pub(super) fn group_range(&self, group: GroupNr) -> std::ops::Range<u64> {
        let first = self.geometry.group_first_block(group).raw();
        first..first + self.geometry.blocks_in_group(group)
    }

    /// Number of free clusters in a group.
    pub(super) fn free_clusters(&self, group: GroupNr) -> u32 {
        let used = self.used_clusters(&self.space, group);
        assert!(used <= self.geometry.clusters_in_group(group), "group {group} uses more than it has");
        self.geometry.clusters_in_group(group) - used
    }

    fn used_clusters(&self, space: &Space, group: GroupNr) -> u32 {
        let ratio = self.params.cluster_ratio();
        let used =
            space.ranges_in(self.group_range(group)).map(|used| (used.end - used.start).div_ceil(ratio));
        u32_from_u64(used.sum())
    }

    /// Number of inodes that every file system with these features has: the reserved ones,
    /// lost+found, and the orphan file if there is one.
    pub(super) fn own_inodes(&self) -> u32 {
        reserved::count(self.files.orphan.is_some())
    }

    /// Number of inodes in use: [`Self::own_inodes`], followed by those of the content.
    pub(super) fn used_inodes(&self) -> u32 {
        self.own_inodes() + self.content.inodes
    }

    /// Number of inodes in use in a group.
    pub(super) fn used_inodes_of(&self, group: GroupNr) -> u32 {
        let per_group = self.geometry.inodes_per_group();
        self.used_inodes().saturating_sub(group.raw() * per_group).min(per_group)
    }

    /// Number of free blocks of the file system, in whole clusters.
    pub(super) fn free_blocks(&self) -> u64 {
        let free = self.geometry.all_groups().map(|group| u64_from_u32(self.free_clusters(group)));
        free.sum::<u64>() * self.params.cluster_ratio()
    }

    /// Whether a group's block bitmap is left uninitialised. There are three conditions:
    /// * The file system has group checksums.
    /// * The group is not the last one, and none of its inodes is in use.
    /// * The group's used blocks are only those that a reader can derive without the bitmap: the
    ///   head and, without flex groups, the group's own bitmaps and inode table.
    pub(super) fn is_block_uninit(&self, group: GroupNr) -> bool {
        let is_last = group.raw() + 1 == self.geometry.groups();
        let has_inodes = self.used_inodes_of(group) > 0;
        if has_inodes || is_last || !self.params.features.has_group_checksum() {
            return false;
        }
        let range = self.group_range(group);
        let mut own = Space::new(range.end);
        own.mark(self.heads.range(&self.geometry, group));
        if !self.is_flexed {
            self.own_tables(group).into_iter().for_each(|table| own.mark(table));
        }
        own.widen(self.params.cluster_ratio());
        self.space.used_in(range.clone()) == own.used_in(range)
    }

    /// Blocks of a group's bitmaps and table.
    fn own_tables(&self, group: GroupNr) -> [std::ops::Range<u64>; 3] {
        self.places[usize_from_u32(group.raw())].ranges(&self.geometry)
    }

    /// The groups that hold copies of the superblock, without group 0.
    pub(super) fn backups(&self) -> Vec<GroupNr> {
        self.heads.backup_groups().filter(|group| group.raw() != 0).collect()
    }

    /// The block that contains the superblock (with 1 KiB blocks it fills block 1).
    pub(super) fn superblock_at(&self) -> u64 {
        self.heads.superblock(&self.geometry, GroupNr::ZERO).expect("group 0 always has the superblock")
    }

    /// Number of clusters that hold static metadata and the journal, without the blocks of the
    /// journal's mapping.
    pub(super) fn overhead_clusters(&self) -> u64 {
        let ratio = self.params.cluster_ratio();
        let fixed = self.static_space.used_in(self.params.first_block..self.geometry.blocks_count().raw());
        let journal = self.files.journal.as_ref().map_or(0, FileBlocks::blocks);
        (self.params.first_block + fixed + journal) / ratio
    }

    /// First block of a group's inode table.
    pub(super) fn inode_table(&self, group: GroupNr) -> BlockNr {
        self.places[usize_from_u32(group.raw())].inode_table
    }
}

/// Blocks of the files that mkfs itself makes, and of MMP.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) root: FileBlocks,
    pub(super) lost_found: FileBlocks,
    /// The double-indirect block of the resize inode.
    pub(super) resize: Option<u64>,
    pub(super) journal: Option<FileBlocks>,
    pub(super) mmp: Option<u64>,
    pub(super) orphan: Option<FileBlocks>,
}

impl Files {
    /// Takes the blocks of these files, in the order of the fields.
    fn place(
        options: &Options,
        params: &Params,
        geometry: &Geometry,
        heads: &Heads,
        space: &mut Space,
    ) -> Result<Self> {
        let has = |feature| params.features.contains(feature);
        let mut allocator = Allocator {
            space,
            block_size: params.block_size(),
            step: params.cluster_ratio(),
            extents: has(EXTENT),
        };
        let root = allocator.file(1, params.first_block)?;
        let lost_found = allocator.file(lost_found_len(params), inode_goal(geometry, LOST_FOUND))?;
        let resize = match has(RESIZE_INODE) {
            true => Some(allocator.block(resize_goal(params, geometry, heads))?),
            false => None,
        };
        let journal = match params.journal {
            Some(size) => {
                let goal = journal_goal(options, params, geometry, allocator.space);
                Some(allocator.file(size.total, goal)?)
            }
            None => None,
        };
        let mmp = match has(MMP) {
            true => Some(allocator.block(params.first_block)?),
            false => None,
        };
        let orphan = match params.orphan_blocks {
            Some(blocks) => Some(allocator.file(blocks, params.first_block)?),
            None => None,
        };
        Ok(Self { root, lost_found, resize, journal, mmp, orphan })
    }

    /// Size of the largest file.
    fn largest_bytes(&self, params: &Params) -> u64 {
        let files = [&self.journal, &self.orphan].into_iter().flatten();
        let largest = files.map(FileBlocks::blocks).max().unwrap_or(0) << params.block_bits;
        largest.max(self.resize.map_or(0, |_| resize_size(params)))
    }
}

fn rules(options: &Options, params: &Params, geometry: &Geometry) -> Rules {
    let groups = u64_from_u32(geometry.groups());
    let flex = match params.features.contains(FLEX_BG) {
        true if options.packed_meta_blocks => groups.next_power_of_two(),
        true => u64_from_u32(geometry.flex_size()),
        false => 1,
    };
    let stride = options.stride.filter(|_| !options.packed_meta_blocks);
    Rules { flex, stride: u64::from(stride.unwrap_or(0)) }
}

/// Number of blocks of lost+found: one less with inline_data, where its content begins in the
/// inode.
const fn lost_found_len(params: &Params) -> u64 {
    lost_found_blocks(1 << params.block_bits) - if params.features.contains(INLINE_DATA) { 1 } else { 0 }
}

/// Goal for an inode's blocks: the start of its flex group if there is one, else of its group.
fn inode_goal(geometry: &Geometry, inode: InodeNr) -> u64 {
    let (group, _) = geometry.locate_inode(inode);
    let first = group.raw() / geometry.flex_size() * geometry.flex_size();
    geometry.group_first_block(GroupNr::new(first)).raw()
}

/// Goal for the resize inode's block: the last block of group 0's metadata, as if there were no
/// flex groups.
const fn resize_goal(params: &Params, geometry: &Geometry, heads: &Heads) -> u64 {
    params.first_block + 2 + heads.classic_blocks() + geometry.inode_table_blocks()
}

/// Checks that a journal of the requested size takes at most half of the blocks that the heads
/// leave free. Without flex groups, bitmaps and inode tables are subtracted too.
fn check_journal_room(params: &Params, geometry: &Geometry, heads: &Heads) -> Result<()> {
    let Some(JournalSize { total, .. }) = params.journal else { return Ok(()) };
    let tables = if params.features.contains(FLEX_BG) { 0 } else { 2 + geometry.inode_table_blocks() };
    let own = |group| {
        let head = heads.range(geometry, group);
        head.end - head.start + tables
    };
    let taken: u64 = geometry.all_groups().map(own).sum();
    let free = (geometry.blocks_count().raw() - params.first_block).saturating_sub(taken);
    if total <= free / 2 {
        return Ok(());
    }
    Err(Error::Size(format!(
        "-J size=: {total} blocks are more than half of the file system's {free} free ones; give fewer MiB"
    )))
}

/// Goal for the journal.
fn journal_goal(options: &Options, params: &Params, geometry: &Geometry, space: &Space) -> u64 {
    match options.journal_location {
        // As in mke2fs, a block-mapped journal or packed metadata starts at the front, whatever
        // position is requested.
        _ if !params.features.contains(EXTENT) || options.packed_meta_blocks => params.first_block,
        Some(location) => location.in_blocks(params.block_size()),
        None => middle_goal(params, geometry, space),
    }
}

/// The first block of the group with the most free blocks near the middle of the device.
fn middle_goal(params: &Params, geometry: &Geometry, space: &Space) -> u64 {
    let groups = geometry.groups();
    let middle_block = (geometry.blocks_count().raw() - params.first_block) / 2;
    let middle = u32_from_u64((middle_block - params.first_block) / geometry.blocks_per_group());
    let flex = geometry.flex_size();
    let free = |group: u32| {
        let first = geometry.group_first_block(GroupNr::new(group)).raw();
        let len = geometry.blocks_in_group(GroupNr::new(group));
        len - space.used_in(first..first + len)
    };
    let first = if flex > 1 && middle > flex {
        let aligned = middle / flex * flex;
        (aligned..groups).find(|&group| free(group) > 0).unwrap_or(0)
    } else {
        middle.saturating_sub(1)
    };
    let last = (middle_or(first, middle, flex) + 1).min(groups - 1);
    let best = (first..=last).fold(first, |best, group| if free(group) > free(best) { group } else { best });
    geometry.group_first_block(GroupNr::new(best)).raw()
}

/// The last but one of the groups that [`middle_goal`] compares, if the file system has so many.
const fn middle_or(first: u32, middle: u32, flex: u32) -> u32 {
    if flex > 1 && middle > flex { first } else { middle }
}

#[cfg(test)]
#[allow(clippy::as_conversions)]
mod tests {
    use super::{GroupNr, Layout, Options};

    fn plan(bytes: u64, options: &Options) -> Layout {
        Layout::plan(options, bytes).unwrap()
    }

    /// Block bitmap, inode bitmap and table of a group.
    fn tables(layout: &Layout, group: usize) -> (u64, u64, u64) {
        let places = &layout.places[group];
        (places.block_bitmap.raw(), places.inode_bitmap.raw(), places.inode_table.raw())
    }

    fn journal_start(layout: &Layout) -> u64 {
        layout.files.journal.as_ref().unwrap().runs[0].physical
    }

    #[test]
    fn thirty_two_gib_as_measured() {
        let layout = plan(32 << 30, &Options::ext4());
        assert_eq!((layout.geometry.groups(), layout.geometry.inodes_per_group()), (256, 8192));
        assert_eq!((layout.heads.desc_blocks(), layout.heads.reserved_gdt()), (4, 1024));
        assert_eq!(tables(&layout, 0), (1029, 1045, 1061));
        assert_eq!(tables(&layout, 15), (1044, 1060, 1061 + 15 * 512));
        assert_eq!(tables(&layout, 16), (524_288, 524_304, 524_320));
        assert_eq!(
            (layout.files.root.runs[0].physical, layout.files.lost_found.runs[0].physical),
            (9253, 9254)
        );
        assert_eq!((layout.files.resize, journal_start(&layout)), (Some(9258), 4_227_072));
        assert_eq!(layout.free_clusters(GroupNr::new(0)), 23_509);
        assert_eq!(layout.free_clusters(GroupNr::new(16)), 24_544);
    }

    #[test]
    fn thirty_two_gib_of_ext3_as_measured() {
        let layout = plan(32 << 30, &Options::ext3());
        assert_eq!(tables(&layout, 0), (1025, 1026, 1027));
        let first = layout.geometry.group_first_block(GroupNr::new(2)).raw();
        assert_eq!(tables(&layout, 2), (first, first + 1, first + 2));
        assert_eq!((layout.files.resize, journal_start(&layout)), (Some(1544), 1545));
        assert_eq!(layout.free_clusters(GroupNr::new(3)), 31_229);
        assert_eq!(layout.free_clusters(GroupNr::new(4)), 32_254);
    }

    #[test]
    fn sixty_four_gib_with_clusters_as_measured() {
        // Cluster size, reserved descriptor blocks, tables of group 0, root, lost+found, resize
        // block, free clusters.
        let cases = [
            (16384, 510, (513, 529, 545), 33_316, 33_320, 33_324, 24_436),
            (65536, 127, (129, 145, 161), 32_944, 32_960, 32_976, 30_706),
            (262_144, 31, (33, 41, 49), 16_448, 16_512, 16_576, 32_508),
            (1 << 20, 7, (9, 11, 13), 4352, 4608, 4864, 32_748),
        ];
        for (size, reserved, group0, root, lost_found, resize, free) in cases {
            let layout = plan(64 << 30, &Options::ext4().cluster_size(size));
            assert_eq!(layout.heads.reserved_gdt(), reserved, "{size}");
            assert_eq!(tables(&layout, 0), group0, "{size}");
            assert_eq!(
                (layout.files.root.runs[0].physical, layout.files.lost_found.runs[0].physical),
                (root, lost_found)
            );
            assert_eq!(
                (layout.files.resize, layout.free_clusters(GroupNr::new(0))),
                (Some(resize), free),
                "{size}"
            );
        }
    }

    #[test]
    fn the_journal_lies_in_the_middle() {
        let flexed = Options { flex_groups: Some(8), ..Options::ext4().block_size(1024) };
        assert_eq!(journal_start(&plan(512 << 20, &flexed)) / 8192, 25);
        let flat = Options::ext4().block_size(1024).features("^flex_bg");
        assert_eq!(journal_start(&plan(512 << 20, &flat)) / 8192, 30);
    }

    #[test]
    fn a_short_last_group_is_dropped() {
        let ext2 = Options::ext2().block_size(4096).inodes(2000);
        let blocks = |more: u64| plan((65536 + more) << 12, &ext2).geometry.blocks_count().raw();
        // As in mke2fs, the third group needs 42 blocks for its inode table, two for bitmaps, and
        // 50 more.
        assert_eq!((blocks(93), blocks(94)), (65536, 65630));
    }

    #[test]
    fn tiny_file_systems_have_no_journal() {
        let journal = |kib: u64| plan(kib << 10, &Options::ext4()).params.journal.map(|size| size.total);
        assert_eq!((journal(2044), journal(2048)), (None, Some(1024)));
        assert_eq!((journal(32764), journal(32768)), (Some(1024), Some(4096)));
        assert_eq!((journal((256 << 10) - 4), journal(256 << 10)), (Some(4096), Some(8192)));
    }

    #[test]
    fn no_block_is_given_out_twice() {
        for options in [
            Options::ext4(),
            Options::ext3(),
            Options::ext4().block_size(1024).features("meta_bg,^resize_inode"),
        ] {
            let layout = plan(3 << 30, &options);
            let all = || layout.geometry.all_groups();
            let used: u64 = all().map(|g| layout.space.used_in(layout.group_range(g))).sum();
            let heads: u64 = all().map(|g| layout.heads.range(&layout.geometry, g).count() as u64).sum();
            let tables = layout.places.len() as u64 * (2 + layout.geometry.inode_table_blocks());
            let files =
                [Some(&layout.files.root), Some(&layout.files.lost_found), layout.files.journal.as_ref()];
            let files: u64 = files.into_iter().flatten().map(|file| file.allocated).sum();
            assert_eq!(used, heads + tables + files + u64::from(layout.files.resize.is_some()));
        }
    }
}
