//! One scan of an image: free space, the extents of every file, and what the instruments make of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Result;
use blockyard_device::BlockDevice;
use blockyard_disk::num::{u64_from_u32, usize_from_u32};
use blockyard_disk::{Inode, bitmap};
use blockyard_engine::reader::Reader;

use crate::frag::defrag::DefragTotals;
use crate::frag::file::{Record, contiguous_runs};
use crate::frag::free_space::FreeSpace;
use crate::map::AllocationMap;
use crate::row::count_as_f64;

/// What a scan saw.
#[derive(Clone, Debug)]
pub struct ImageScan {
    /// Free extents in blocks.
    pub free: FreeSpace,
    /// Totals of `e4defrag -c`, one name a directory entry.
    pub defrag: DefragTotals,
    /// Contiguous runs of all regular files with blocks.
    pub runs: u64,
    /// Regular files with blocks.
    pub files: u64,
    /// Blocks of them.
    pub blocks: u64,
    /// Groups that hold data of regular files.
    pub groups_touched: u64,
    /// Used clusters, group by group.
    pub map: AllocationMap,
    /// Bytes of a block.
    pub block_size: u64,
}

impl ImageScan {
    /// Scans an image that was closed cleanly.
    ///
    /// # Errors
    /// Of the device, and for structures that fail a check.
    pub fn of(device: Arc<dyn BlockDevice>) -> Result<Self> {
        let reader = Reader::open(device)?;
        let superblock = reader.superblock();
        let geometry = *superblock.geometry();
        let block_size = u64_from_u32(1 << geometry.block_bits());
        let last = blockyard_disk::GroupNr::new(geometry.groups() - 1);
        let mut scan = Self {
            free: FreeSpace::new(block_size),
            defrag: DefragTotals::new(
                block_size,
                geometry.blocks_per_group(),
                u64::from(geometry.flex_size()),
            ),
            runs: 0,
            files: 0,
            blocks: 0,
            groups_touched: 0,
            map: AllocationMap::new(
                usize_from_u32(geometry.groups()),
                geometry.clusters_per_group(),
                geometry.clusters_in_group(last),
            ),
            block_size,
        };
        scan.free_space(&reader)?;
        scan.files(&reader)?;
        Ok(scan)
    }

    /// Free runs of all groups, joined across their borders.
    fn free_space(&mut self, reader: &Reader) -> Result<()> {
        let geometry = *reader.superblock().geometry();
        let mut open: Option<(u64, u64)> = None;
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
                if end > start {
                    let run = first + (u64::from(start) << geometry.cluster_ratio_bits());
                    let blocks = (u64::from(end - start) << geometry.cluster_ratio_bits())
                        .min(geometry.blocks_count().raw() - run);
                    open = match open {
                        Some((from, length)) if from + length == run => Some((from, length + blocks)),
                        Some((from, length)) => {
                            self.free.add_run(from, length);
                            Some((run, blocks))
                        }
                        None => Some((run, blocks)),
                    };
                }
                at = end;
            }
        }
        if let Some((from, length)) = open {
            self.free.add_run(from, length);
        }
        Ok(())
    }

    /// Walks the tree, counting every name of every regular file.
    fn files(&mut self, reader: &Reader) -> Result<()> {
        let geometry = *reader.superblock().geometry();
        let mut groups = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut stack = vec![(String::new(), reader.root()?)];
        let mut visited = BTreeSet::from([blockyard_disk::InodeNr::ROOT]);
        while let Some((path, directory)) = stack.pop() {
            for entry in reader.entries(&directory)? {
                let entry = entry?;
                if entry.name == b"." || entry.name == b".." {
                    continue;
                }
                let name = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
                let inode = reader.inode(entry.inode)?;
                if inode.is_directory() {
                    // A directory reached twice is damage; walking it once is enough.
                    if visited.insert(inode.number()) {
                        stack.push((name, inode));
                    }
                } else if inode.file_type() == blockyard_disk::inode::FileType::Regular
                    && inode.size() > 0
                    && inode.sectors() > 0
                {
                    let records = records(reader, &inode)?;
                    self.defrag.add(&name, &records);
                    if seen.insert(inode.number()) && !records.is_empty() {
                        self.files += 1;
                        self.runs += contiguous_runs(&records);
                        self.blocks += records.iter().map(|record| record.length).sum::<u64>();
                        for record in &records {
                            let first = geometry.group_of(blockyard_disk::BlockNr::new(record.physical));
                            let end = record.physical + record.length - 1;
                            let last = geometry.group_of(blockyard_disk::BlockNr::new(end));
                            groups.extend(first.raw()..=last.raw());
                        }
                    }
                }
            }
        }
        self.groups_touched = blockyard_disk::num::u64_from_usize(groups.len());
        Ok(())
    }

    /// Mean contiguous runs a file; 0 without files.
    #[must_use]
    pub fn extents_per_file(&self) -> f64 {
        if self.files == 0 { 0.0 } else { count_as_f64(self.runs) / count_as_f64(self.files) }
    }

    /// Mean contiguous run in KiB; 0 without files.
    #[must_use]
    pub fn mean_extent_kb(&self) -> f64 {
        if self.runs == 0 {
            0.0
        } else {
            count_as_f64(self.blocks * (self.block_size / 1024)) / count_as_f64(self.runs)
        }
    }
}

fn records(reader: &Reader, inode: &Inode) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    for extent in reader.extents(inode) {
        let extent = extent?;
        records.push(Record {
            logical: u64::from(extent.logical.raw()),
            physical: extent.physical.raw(),
            length: u64::from(extent.length),
            unwritten: extent.unwritten,
        });
    }
    Ok(records)
}
