//! The table of records that `filefrag -v` prints.
//!
//! The width of a column depends on the size of the file or of the file system. If the inode holds
//! the content, position and length are shown in bytes instead of blocks.

use std::fmt;

use blockyard_disk::inode::InodeMap;
use blockyard_disk::num::{u64_from_u32, u64_from_usize, usize_from_u32};
use blockyard_disk::{Inode, InodeNr};

use super::file::{Record, expected_physical};
use crate::reader::{Reader, Result};

/// The lines that are printed once, before the first file's table.
#[must_use]
pub fn heading(reader: &Reader, inode: &Inode) -> String {
    let mut text = "Filesystem type is: ef53\n".to_owned();
    if inode.map() == InodeMap::Indirect {
        let geometry = reader.superblock().geometry();
        let overhead = u64_from_u32(reader.superblock().raw().s_overhead_clusters.get());
        let blocks = geometry.blocks_count().raw().saturating_sub(overhead << geometry.cluster_ratio_bits());
        let groups = blocks.div_ceil(8 * u64_from_usize(geometry.block_size()));
        text += &format!("Filesystem cylinder groups approximately {groups}\n");
    }
    text
}

/// One file's records, to be printed.
pub struct FileTable<'a> {
    name: &'a str,
    size: u64,
    block_size: u64,
    /// Number of blocks of the file system, which sets the width of the physical block numbers.
    blocks: u64,
    records: &'a [Record],
    map: InodeMap,
    /// Byte on the device where the content begins, if the inode holds it; otherwise 0.
    inline_at: u64,
}

impl<'a> FileTable<'a> {
    /// The table of one file.
    ///
    /// # Errors
    /// The errors of [`Reader::group`], when the content lies in the inode.
    pub fn new(reader: &Reader, name: &'a str, inode: &Inode, records: &'a [Record]) -> Result<Self> {
        let geometry = reader.superblock().geometry();
        let inline_at = match inode.map() {
            InodeMap::Inline => inode_place(reader, inode.number())? + 40,
            _ => 0,
        };
        Ok(Self {
            name,
            size: inode.size(),
            block_size: u64_from_usize(geometry.block_size()),
            blocks: geometry.blocks_count().raw(),
            records,
            map: inode.map(),
            inline_at,
        })
    }

    /// The flags, with a blank before them; empty when there are none.
    fn flags(&self, record: &Record, is_last: bool) -> String {
        let is_inline = self.map == InodeMap::Inline;
        let end = (record.logical + record.length) * self.block_size;
        let flags = [
            ("last", is_last),
            ("not_aligned,inline", is_inline),
            ("unwritten", record.unwritten),
            ("merged", self.map == InodeMap::Indirect),
            ("eof", is_inline || end >= self.size),
        ];
        let set: Vec<_> = flags.into_iter().filter(|(_, holds)| *holds).map(|(name, _)| name).collect();
        if set.is_empty() { String::new() } else { format!(" {}", set.join(",")) }
    }
}

/// Byte on the device where an inode begins.
fn inode_place(reader: &Reader, inode: InodeNr) -> Result<u64> {
    let sb = reader.superblock();
    let geometry = sb.geometry();
    let index = inode.raw() - 1;
    let group = blockyard_disk::GroupNr::new(index / geometry.inodes_per_group());
    let table = reader.group(group)?.inode_table().raw() << geometry.block_bits();
    Ok(table + u64_from_u32(index % geometry.inodes_per_group()) * u64::from(geometry.inode_size()))
}

impl fmt::Display for FileTable<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks = self.size.div_ceil(self.block_size);
        let plural = if blocks == 1 { "" } else { "s" };
        let (name, size, unit) = (self.name, self.size, self.block_size);
        writeln!(out, "File size of {name} is {size} ({blocks} block{plural} of {unit} bytes)")?;
        if self.records.is_empty() {
            return Ok(());
        }
        let logical_width = digits(blocks).max(8);
        let physical_width = digits(self.blocks).max(10);
        writeln!(
            out,
            " ext: {:>l$} {:>p$} length: {:>e$} flags:",
            "logical_offset:",
            "physical_offset:",
            "expected:",
            l = logical_width * 2 + 3,
            p = physical_width * 2 + 3,
            e = physical_width + 1,
        )?;
        let mut previous = None;
        for (index, record) in self.records.iter().enumerate() {
            let (logical, physical, length) = match self.map {
                InodeMap::Inline => (0, self.inline_at, self.size),
                _ => (record.logical, record.physical, record.length),
            };
            let expected = expected_physical(previous, record).filter(|_| self.map != InodeMap::Inline);
            let expected = expected.map_or(String::new(), |block| format!("{block}:"));
            writeln!(
                out,
                "{index:>4}: {logical:>lw$}..{:>lw$}: {physical:>pw$}..{:>pw$}: {length:>6}: {expected:>ew$}{}",
                logical + length.max(1) - 1,
                physical + length.max(1) - 1,
                self.flags(record, index + 1 == self.records.len()),
                lw = logical_width,
                pw = physical_width,
                ew = physical_width + 1,
            )?;
            previous = Some(record);
        }
        Ok(())
    }
}

fn digits(number: u64) -> usize {
    usize_from_u32(number.checked_ilog10().unwrap_or(0)) + 1
}
