//! One scan of an image: free space, the extents of every file, allocation maps, and the figures
//! that e2freefrag and e4defrag would give.

use std::collections::BTreeSet;
use std::sync::Arc;

use blockyard_device::BlockDevice;
use blockyard_disk::inode::{FileType, InodeMap};
use blockyard_disk::num::{count_as_f64, u32_from_u64, u64_from_u32, u64_from_usize, usize_from_u32};
use blockyard_disk::{BlockNr, Geometry, GroupNr, Inode, InodeNr, bitmap};

use crate::frag::defrag::DefragTotals;
use crate::frag::file::{Record, contiguous_runs};
use crate::frag::free_space::{BadChunkSize, FreeSpace};
use crate::map::AllocationMap;
use crate::reader::{Error, Reader, Result};

/// What a scan found.
#[derive(Clone, Debug)]
pub struct ImageScan {
    /// Free extents in blocks.
    pub free: FreeSpace,
    /// Totals of `e4defrag -c`, which counts a file once for each of its names.
    pub defrag: DefragTotals,
    /// Contiguous runs of all files that are counted in `files`.
    pub runs: u64,
    /// Regular files that have blocks and are not empty.
    pub files: u64,
    /// Blocks of these files.
    pub blocks: u64,
    /// Groups that hold data of regular files.
    pub groups_touched: u64,
    /// Used clusters, group by group.
    pub map: AllocationMap,
    /// Clusters of regular files, group by group.
    pub file_map: AllocationMap,
    /// Bytes of a block.
    pub block_size: u64,
}

/// What a scan does in addition, or differently.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScanOptions {
    /// Also counts free aligned chunks of this many bytes (`e2freefrag -c`).
    pub chunk_bytes: Option<u64>,
    /// Reads the bitmap of a bigalloc image as e2freefrag 1.47 does. That program divides by the
    /// cluster size twice, and so reads only the first part of the bitmap.
    pub as_e2freefrag: bool,
}

impl ImageScan {
    /// Scans an image as it is on the device: no journal is replayed.
    ///
    /// # Errors
    /// Errors of the device, and errors for structures that fail a check.
    pub fn of(device: Arc<dyn BlockDevice>) -> Result<Self> {
        let reader = Reader::open(device)?;
        let free = FreeSpace::new(u64_from_u32(1 << reader.superblock().geometry().block_bits()));
        Self::empty(&reader, free).filled(&reader, false, &mut |_, _, _| Ok::<(), Error>(()))
    }

    /// Scans an image and calls `visit` with every name of every regular file that has content.
    ///
    /// # Errors
    /// As [`Self::of`]; a chunk size that breaks the rules; errors that `visit` returns.
    pub fn watched<E>(reader: &Reader, options: ScanOptions, visit: &mut FileVisit<'_, E>) -> Result<Self, E>
    where
        E: From<Error> + From<BadChunkSize>,
    {
        let geometry = *reader.superblock().geometry();
        let mut free = FreeSpace::new(u64_from_u32(1 << geometry.block_bits()));
        if let Some(bytes) = options.chunk_bytes {
            free = free.with_chunks(bytes)?;
        }
        let divide_twice = options.as_e2freefrag && geometry.cluster_ratio_bits() > 0;
        Self::empty(reader, free).filled(reader, divide_twice, visit)
    }

    /// Counts the free space and the files of the image.
    fn filled<E: From<Error>>(
        mut self,
        reader: &Reader,
        divide_twice: bool,
        visit: &mut FileVisit<'_, E>,
    ) -> Result<Self, E> {
        self.free_space(reader, divide_twice)?;
        self.files(reader, visit)?;
        Ok(self)
    }

    /// A scan that has counted nothing yet.
    fn empty(reader: &Reader, free: FreeSpace) -> Self {
        let geometry = *reader.superblock().geometry();
        let last = GroupNr::new(geometry.groups() - 1);
        let empty_map = || {
            AllocationMap::new(
                usize_from_u32(geometry.groups()),
                geometry.clusters_per_group(),
                geometry.clusters_in_group(last),
            )
        };
        Self {
            free,
            defrag: totals(reader),
            runs: 0,
            files: 0,
            blocks: 0,
            groups_touched: 0,
            map: empty_map(),
            file_map: empty_map(),
            block_size: u64_from_u32(1 << geometry.block_bits()),
        }
    }

    /// Counts the free runs of all groups, joined across group borders, and maps the used clusters.
    fn free_space(&mut self, reader: &Reader, divide_twice: bool) -> Result<()> {
        let geometry = *reader.superblock().geometry();
        let ratio_bits = geometry.cluster_ratio_bits();
        let mut joined = Joined { free: &mut self.free, open: None };
        for group in geometry.all_groups() {
            let descriptor = reader.group(group)?;
            let bits = reader.block_bitmap(&descriptor)?;
            let clusters = geometry.clusters_in_group(group);
            let first = geometry.group_first_block(group).raw();
            let mut at = 0;
            while at < clusters {
                let start = bitmap::next_clear(&bits, at..clusters).unwrap_or(clusters);
                if start > at {
                    self.map.add_used(usize_from_u32(group.raw()), at, start - at);
                }
                let end = bitmap::next_set(&bits, start..clusters).unwrap_or(clusters);
                // When divided twice, a bit of the bitmap stands for `cluster_ratio` clusters.
                let bits = if divide_twice { 2 * ratio_bits } else { ratio_bits };
                let before = u64::from(group.raw()) * u64::from(geometry.clusters_per_group());
                let run = match divide_twice {
                    true => (before + u64::from(start)) << bits,
                    false => first + (u64::from(start) << bits),
                };
                let blocks = u64::from(end - start) << bits;
                joined.add(run, blocks.min(geometry.blocks_count().raw().saturating_sub(run)));
                at = end;
            }
        }
        joined.finish();
        Ok(())
    }

    /// Walks the tree. Counts each name of a regular file in `defrag`, unless e4defrag skips that
    /// name. Counts each file that has blocks once in the other figures.
    fn files<E: From<Error>>(&mut self, reader: &Reader, visit: &mut FileVisit<'_, E>) -> Result<(), E> {
        let geometry = *reader.superblock().geometry();
        let mut groups = BTreeSet::new();
        let mut seen = BTreeSet::new();
        each_file::<E>(reader, b"", reader.root()?, &mut |name, inode, records| {
            if !is_left_out(name) {
                self.defrag.add(name, records);
            }
            visit(name, inode, records)?;
            if inode.map() == InodeMap::Inline || records.is_empty() || !seen.insert(inode.number()) {
                return Ok(());
            }
            self.files += 1;
            self.runs += contiguous_runs(records);
            self.blocks += records.iter().map(|record| record.length).sum::<u64>();
            let mut marked = None;
            for record in records {
                let first = geometry.group_of(BlockNr::new(record.physical));
                let last = geometry.group_of(BlockNr::new(record.physical + record.length - 1));
                groups.extend(first.raw()..=last.raw());
                self.add_file_run(&geometry, record, &mut marked);
            }
            Ok(())
        })?;
        self.groups_touched = u64_from_usize(groups.len());
        Ok(())
    }

    /// Marks the clusters of a record in the map of files. `marked` is the end of the cluster that
    /// was marked last. The next record may begin in that cluster, which must not be marked twice.
    fn add_file_run(&mut self, geometry: &Geometry, record: &Record, marked: &mut Option<u64>) {
        let end = record.physical + record.length;
        let ratio = u64::from(geometry.cluster_ratio());
        let data = geometry.first_data_block().raw();
        let cluster_end = |block: u64| data + ((block - data) / ratio + 1) * ratio;
        let is_marked = *marked == Some(cluster_end(record.physical));
        let mut at = if is_marked { cluster_end(record.physical) } else { record.physical };
        *marked = Some(cluster_end(end - 1));
        while at < end {
            let group = geometry.group_of(BlockNr::new(at));
            let first = geometry.group_first_block(group).raw();
            let stop = end.min(first + geometry.blocks_per_group());
            let cluster = |block: u64| u32_from_u64((block - first) >> geometry.cluster_ratio_bits());
            self.file_map.add_used(
                usize_from_u32(group.raw()),
                cluster(at),
                cluster(stop - 1) + 1 - cluster(at),
            );
            at = stop;
        }
    }

    /// Share (0..=1) of the free blocks that lie in runs of at least `bytes`, a power of two; 0
    /// without free blocks.
    #[must_use]
    pub fn free_share_of_runs(&self, bytes: u64) -> f64 {
        let order = (bytes / self.block_size).max(1).ilog2();
        self.free.share_in_runs_of(usize_from_u32(order))
    }

    /// Mean contiguous runs per file; 0 without files.
    #[must_use]
    pub fn extents_per_file(&self) -> f64 {
        if self.files == 0 { 0.0 } else { count_as_f64(self.runs) / count_as_f64(self.files) }
    }

    /// Mean length of a contiguous run in KiB; 0 without files.
    #[must_use]
    pub fn mean_extent_kb(&self) -> f64 {
        if self.runs == 0 {
            0.0
        } else {
            count_as_f64(self.blocks * (self.block_size / 1024)) / count_as_f64(self.runs)
        }
    }
}

/// The map of an image's used clusters.
///
/// # Errors
/// Errors of the device, and errors for structures that fail a check.
pub fn map_of(reader: &Reader) -> Result<AllocationMap> {
    let mut scan = ImageScan::empty(reader, FreeSpace::new(1));
    scan.free_space(reader, false)?;
    Ok(scan.map)
}

/// The map of the clusters that hold content of regular files.
///
/// # Errors
/// As [`map_of`].
pub fn map_of_files(reader: &Reader) -> Result<AllocationMap> {
    let mut scan = ImageScan::empty(reader, FreeSpace::new(1));
    scan.files(reader, &mut |_, _, _| Ok::<(), Error>(()))?;
    Ok(scan.file_map)
}

/// Called with the path of a file, its inode, and the records of its content.
pub type FileVisit<'a, E> = dyn FnMut(&[u8], &Inode, &[Record]) -> Result<(), E> + 'a;

/// Empty totals of `e4defrag -c` for an image.
#[must_use]
pub fn totals(reader: &Reader) -> DefragTotals {
    let geometry = reader.superblock().geometry();
    DefragTotals::new(
        u64_from_u32(1 << geometry.block_bits()),
        geometry.blocks_per_group(),
        u64::from(geometry.flex_size()),
    )
}

/// Calls `visit` for every name of every regular file with content ([`has_content`]) below
/// `directory`, whose path is `path`. The order is that of a walk of the mounted file system.
///
/// # Errors
/// Errors of the device, errors for structures that fail a check, and errors that `visit` returns.
pub fn each_file<E: From<Error>>(
    reader: &Reader,
    path: &[u8],
    directory: Inode,
    visit: &mut FileVisit<'_, E>,
) -> Result<(), E> {
    let mut visited = BTreeSet::from([directory.number()]);
    let mut looked = Looked::default();
    let mut open = vec![(path.to_owned(), reader.listed(&directory)?.into_iter())];
    while let Some((path, entries)) = open.last_mut() {
        let Some(entry) = entries.next() else {
            open.pop();
            continue;
        };
        if entry.name == b"." || entry.name == b".." {
            continue;
        }
        let name = [path, &b"/"[..], &entry.name].concat();
        let inode = reader.inode(entry.inode)?;
        if inode.is_directory() {
            // A directory reached twice is damage; walking it once is enough.
            if visited.insert(inode.number()) {
                open.push((name, reader.listed(&inode)?.into_iter()));
            }
        } else if has_content(&inode) {
            let found =
                if is_left_out(&name) { records(reader, &inode) } else { looked.records(reader, &inode) };
            visit(&name, &inode, &found?)?;
        }
    }
    Ok(())
}

/// Whether e4defrag skips a path of the image: any that begins with `/lost+found`.
fn is_left_out(path: &[u8]) -> bool {
    path.starts_with(b"/lost+found")
}

/// The files with several names whose records were already read. When FIEMAP is called for such a
/// file again, by another name, Linux returns the extents that it has cached. In this cache,
/// contiguous extents are joined.
#[derive(Debug, Default)]
pub struct Looked {
    linked: BTreeSet<InodeNr>,
}

impl Looked {
    /// The records that FIEMAP returns now: those of [`records`]. If the file has several names and
    /// its records were read before, contiguous records of the same state are joined.
    ///
    /// # Errors
    /// As [`records`].
    pub fn records(&mut self, reader: &Reader, inode: &Inode) -> Result<Vec<Record>> {
        let first = records(reader, inode)?;
        if inode.links() < 2 || self.linked.insert(inode.number()) {
            return Ok(first);
        }
        let mut joined: Vec<Record> = Vec::new();
        for record in first {
            match joined.last_mut() {
                Some(before) if before.joins(&record) && record.length > 0 => before.length += record.length,
                _ => joined.push(record),
            }
        }
        Ok(joined)
    }
}

/// Whether e4defrag looks at an inode: a regular file that is not empty and has blocks or inline
/// data.
#[must_use]
pub fn has_content(inode: &Inode) -> bool {
    inode.file_type() == FileType::Regular
        && inode.size() > 0
        && (inode.sectors() > 0 || inode.map() == InodeMap::Inline)
}

/// The records that the first FIEMAP of a file after a mount returns. (Later calls may join more
/// extents: see [`Looked`].)
///
/// - Extents in the inode are not joined.
/// - Of the extents in a node of the tree, the first is not joined. When Linux reads the node for
///   this extent, it caches the others, and joins those that are contiguous and in the same state.
/// - A run of a block map is cut after the direct blocks, and wherever another indirect block
///   begins to map it.
/// - Content in the inode is one record without blocks.
///
/// # Errors
/// Errors of the device, and errors for structures that fail a check.
pub fn records(reader: &Reader, inode: &Inode) -> Result<Vec<Record>> {
    if inode.map() == InodeMap::Inline {
        return Ok(vec![Record { logical: 0, physical: 0, length: 0, unwritten: false }]);
    }
    let mut records: Vec<Record> = Vec::new();
    let mut walk = reader.extents(inode);
    // The node of the previous extent, and whether that extent was the first of its node.
    let mut last: Option<(BlockNr, bool)> = None;
    while let Some(extent) = walk.next() {
        let extent = extent?;
        let record = Record {
            logical: u64::from(extent.logical.raw()),
            physical: extent.physical.raw(),
            length: u64::from(extent.length),
            unwritten: extent.unwritten,
        };
        if inode.map() == InodeMap::Indirect {
            records.extend(cut_at_indirect_blocks(record, reader.superblock().geometry().block_size()));
            continue;
        }
        let is_first = walk.node() != last.map(|(node, _)| node);
        match records.last_mut() {
            Some(before) if !is_first && last.is_some_and(|(_, first)| !first) && before.joins(&record) => {
                before.length += record.length;
            }
            _ => records.push(record),
        }
        last = walk.node().map(|node| (node, is_first));
    }
    Ok(records)
}

/// The parts of a run, each mapped by one indirect block or by the inode.
fn cut_at_indirect_blocks(run: Record, block_size: usize) -> impl Iterator<Item = Record> {
    let reach = u64_from_usize(block_size / 4);
    let direct = u64_from_usize(blockyard_disk::indirect::DIRECT);
    let mut left = run;
    std::iter::from_fn(move || {
        if left.length == 0 {
            return None;
        }
        let end = if left.logical < direct {
            direct
        } else {
            direct + ((left.logical - direct) / reach + 1) * reach
        };
        let length = left.length.min(end - left.logical);
        let part = Record { length, ..left };
        left.logical += length;
        left.physical += length;
        left.length -= length;
        Some(part)
    })
}

/// Passes free runs on to `free`, each joined with the runs that follow it directly.
struct Joined<'f> {
    free: &'f mut FreeSpace,
    open: Option<(u64, u64)>,
}

impl Joined<'_> {
    fn add(&mut self, run: u64, blocks: u64) {
        if blocks == 0 {
            return;
        }
        self.open = match self.open {
            Some((from, length)) if from + length == run => Some((from, length + blocks)),
            Some((from, length)) => {
                self.free.add_run(from, length);
                Some((run, blocks))
            }
            None => Some((run, blocks)),
        };
    }

    fn finish(self) {
        if let Some((from, length)) = self.open {
            self.free.add_run(from, length);
        }
    }
}
