//! Writes a planned file system: its metadata in ascending order, then the primary superblock, then
//! one flush.
//!
//! The device is cleared first, so pieces that are all zeroes are not written.
//!
//! With `no_discard`, only the places of old signatures are cleared: the first 4 KiB and the last
//! 64 KiB of the file system. The inode tables and the journal are cleared too, if the options say
//! that they are not initialised lazily. As the rest of the device is not cleared, pieces that are
//! all zeroes are written.

use blockyard_device::BlockDevice;
use blockyard_disk::checksum::Checksums;
use blockyard_disk::num::{u64_from_u32, u64_from_usize, usize_from_u32, usize_from_u64};
use blockyard_disk::superblock::RawSuperblock;
use blockyard_disk::{GroupNr, InodeNr};
use zerocopy::IntoBytes;

use super::error::Result;
use super::feature::META_BG;
use super::files::FileBlocks;
use super::identity::Identity;
use super::layout::Layout;
use super::options::Options;
use super::reserved::{LOST_FOUND, ORPHAN_FILE};
use super::{groups, inodes, journal, superblock};

/// The most bytes gathered for one write.
const BATCH: usize = 1 << 20;
/// Bytes cleared at the end of the file system: RAID keeps superblocks at the end of a device.
const TAIL: u64 = 64 << 10;

/// The content of one or more blocks.
enum Piece {
    Superblock(GroupNr),
    /// The whole descriptor table.
    DescTable,
    /// One block of the descriptor table.
    DescBlock(u64),
    BlockBitmap(GroupNr),
    InodeBitmap(GroupNr),
    Bytes(Vec<u8>),
}

/// Writes the image.
pub(super) fn write(device: &dyn BlockDevice, layout: &Layout, options: &Options) -> Result<()> {
    let writer = Writer::new(device, layout, options);
    writer.clear()?;
    let mut pieces = writer.pieces_around();
    writer.inode_pieces(&mut pieces);
    writer.content_of(&layout.files.root, inodes::root_block(layout, &writer.checksums), &mut pieces);
    writer.finish(pieces)
}

/// Writes the image around its content: all except the root directory and the inode tables.
pub(super) fn write_around(device: &dyn BlockDevice, layout: &Layout, options: &Options) -> Result<()> {
    let writer = Writer::new(device, layout, options);
    writer.finish(writer.pieces_around())
}

/// Clears the device before it is written.
pub(super) fn clear(device: &dyn BlockDevice, layout: &Layout, options: &Options) -> Result<()> {
    Writer::new(device, layout, options).clear()
}

struct Writer<'a> {
    device: &'a dyn BlockDevice,
    layout: &'a Layout,
    options: &'a Options,
    identity: Identity,
    checksums: Checksums,
    sb: RawSuperblock,
}

impl<'a> Writer<'a> {
    fn new(device: &'a dyn BlockDevice, layout: &'a Layout, options: &'a Options) -> Self {
        let identity = Identity::of(options);
        let sb = superblock::build(layout, options, &identity);
        Self { device, layout, options, identity, checksums: Checksums::of(&sb), sb }
    }

    fn clear(&self) -> Result<()> {
        let size = self.layout.geometry.blocks_count().raw() << self.layout.params.block_bits;
        if !self.options.no_discard {
            self.device.write_zeroes(0, self.device.size())?;
            return Ok(());
        }
        // Nobody must find the old superblock or an old RAID superblock again.
        self.device.write_zeroes(0, (4096).min(size))?;
        let tail = TAIL.min(size);
        self.device.write_zeroes(size - tail, tail)?;
        if self.options.lazy_itable_init == Some(false) {
            self.clear_tables()?;
        }
        if self.options.lazy_journal_init == Some(false) {
            for run in self.layout.files.journal.iter().flat_map(|journal| &journal.runs) {
                self.clear_blocks(run.physical, run.len)?;
            }
        }
        Ok(())
    }

    fn clear_tables(&self) -> Result<()> {
        let len = self.layout.geometry.inode_table_blocks();
        self.layout.places.iter().try_for_each(|places| self.clear_blocks(places.inode_table.raw(), len))
    }

    fn clear_blocks(&self, start: u64, len: u64) -> Result<()> {
        let bits = self.layout.params.block_bits;
        Ok(self.device.write_zeroes(start << bits, len << bits)?)
    }

    /// Whether inode tables are known to be zero.
    fn tables_are_zeroed(&self) -> bool {
        !self.options.no_discard || self.options.lazy_itable_init == Some(false)
    }

    /// Writes the pieces in ascending order, then the primary superblock, and flushes.
    fn finish(&self, mut pieces: Vec<(u64, Piece)>) -> Result<()> {
        let table = groups::table(self.layout, &self.checksums, self.tables_are_zeroed());
        pieces.sort_by_key(|(at, _)| *at);
        let mut batch =
            Batch { device: self.device, skip_zero: !self.options.no_discard, at: 0, bytes: Vec::new() };
        let bits = self.layout.params.block_bits;
        for (block, piece) in pieces {
            let at = block << bits;
            match piece {
                Piece::Superblock(group) => batch.add(at, &self.superblock_block(group))?,
                Piece::DescTable => batch.add(at, &table)?,
                Piece::DescBlock(number) => {
                    let start = usize_from_u64(number << bits);
                    batch.add(at, &table[start..start + (1 << bits)])?;
                }
                Piece::BlockBitmap(group) => batch.add(at, &groups::block_bitmap(self.layout, group))?,
                Piece::InodeBitmap(group) => batch.add(at, &groups::inode_bitmap(self.layout, group))?,
                Piece::Bytes(bytes) => batch.add(at, &bytes)?,
            }
        }
        batch.finish()?;
        self.write_superblock()?;
        Ok(self.device.flush()?)
    }

    /// All pieces except the primary superblock, the root directory and the inode tables.
    fn pieces_around(&self) -> Vec<(u64, Piece)> {
        let mut pieces = Vec::new();
        for group in self.layout.geometry.all_groups() {
            self.group_pieces(group, &mut pieces);
        }
        self.file_pieces(&mut pieces);
        pieces
    }

    /// Adds `bytes` as the content of a file; they fill all its blocks.
    fn content_of(&self, file: &FileBlocks, bytes: Vec<u8>, pieces: &mut Vec<(u64, Piece)>) {
        let block = usize_from_u64(self.layout.params.block_size());
        for run in &file.runs {
            let from = usize_from_u64(run.logical) * block;
            let to = from + usize_from_u64(run.len) * block;
            pieces.push((run.physical, Piece::Bytes(bytes[from..to].to_vec())));
        }
    }

    fn group_pieces(&self, group: GroupNr, pieces: &mut Vec<(u64, Piece)>) {
        let layout = self.layout;
        let geometry = &layout.geometry;
        if let Some(at) = layout.heads.superblock(geometry, group).filter(|_| group.raw() != 0) {
            pieces.push((at, Piece::Superblock(group)));
        }
        if let Some(at) =
            layout.heads.classic_table(geometry, group).filter(|_| !layout.params.features.contains(META_BG))
        {
            pieces.push((at, Piece::DescTable));
        }
        if let Some((at, number)) = layout.heads.meta_desc(geometry, group) {
            pieces.push((at, Piece::DescBlock(number)));
        }
        let places = &layout.places[usize_from_u32(group.raw())];
        if !layout.is_block_uninit(group) {
            pieces.push((places.block_bitmap.raw(), Piece::BlockBitmap(group)));
        }
        if !groups::is_inode_uninit(layout, group) {
            pieces.push((places.inode_bitmap.raw(), Piece::InodeBitmap(group)));
        }
    }

    /// Adds the used part of the inode tables, group by group.
    fn inode_pieces(&self, pieces: &mut Vec<(u64, Piece)>) {
        let layout = self.layout;
        let table = inodes::table(layout, self.options, &self.checksums);
        let per_group =
            u64_from_u32(layout.geometry.inodes_per_group()) * u64::from(layout.geometry.inode_size());
        let block_size = usize_from_u64(layout.params.block_size());
        for (group, part) in layout.geometry.all_groups().zip(table.chunks(usize_from_u64(per_group))) {
            let mut bytes = part.to_vec();
            bytes.resize(bytes.len().next_multiple_of(block_size), 0);
            pieces.push((layout.inode_table(group).raw(), Piece::Bytes(bytes)));
        }
    }

    fn file_pieces(&self, pieces: &mut Vec<(u64, Piece)>) {
        let layout = self.layout;
        let lost_found = inodes::lost_found_content(layout, &self.checksums);
        self.content_of(&layout.files.lost_found, lost_found, pieces);
        if let (Some(file), Some(size)) = (&layout.files.journal, layout.params.journal) {
            let first = journal::superblock(layout, size, &self.identity);
            pieces.push((file.runs[0].physical, Piece::Bytes(first)));
        }
        for (owner, file) in self.files() {
            let blocks = inodes::map_blocks(layout, &self.checksums, owner, file);
            pieces.extend(blocks.into_iter().map(|(at, bytes)| (at, Piece::Bytes(bytes))));
        }
        if let Some(at) = layout.files.resize {
            pieces.push((at, Piece::Bytes(inodes::resize_block(layout))));
            let reserved = inodes::reserved_blocks(layout);
            pieces.extend(reserved.map(|(at, _)| (at, Piece::Bytes(inodes::reserved_content(layout, at)))));
        }
        for run in layout.files.orphan.iter().flat_map(|orphan| &orphan.runs) {
            let blocks = run.physical..run.physical + run.len;
            pieces.extend(
                blocks.map(|at| (at, Piece::Bytes(inodes::orphan_block(layout, &self.checksums, at)))),
            );
        }
        if let Some(at) = layout.files.mmp {
            pieces.push((at, Piece::Bytes(journal::mmp_block(layout, self.options, &self.checksums))));
        }
    }

    fn files(&self) -> impl Iterator<Item = (InodeNr, &FileBlocks)> {
        let fixed = [(InodeNr::ROOT, &self.layout.files.root), (LOST_FOUND, &self.layout.files.lost_found)];
        let journal = self.layout.files.journal.iter().map(|file| (InodeNr::JOURNAL, file));
        let orphan = self.layout.files.orphan.iter().map(|file| (ORPHAN_FILE, file));
        fixed.into_iter().chain(journal).chain(orphan)
    }

    /// A copy of the superblock, padded to a block.
    fn superblock_block(&self, group: GroupNr) -> Vec<u8> {
        let mut block = vec![0; usize_from_u64(self.layout.params.block_size())];
        let copy = superblock::copy_for(&self.sb, group, &self.checksums);
        block[..RawSuperblock::SIZE].copy_from_slice(copy.as_bytes());
        block
    }

    fn write_superblock(&self) -> Result<()> {
        let copy = superblock::copy_for(&self.sb, GroupNr::ZERO, &self.checksums);
        Ok(self.device.write_at(1024, copy.as_bytes())?)
    }
}

/// Joins adjacent pieces into long writes.
struct Batch<'a> {
    device: &'a dyn BlockDevice,
    skip_zero: bool,
    at: u64,
    bytes: Vec<u8>,
}

impl Batch<'_> {
    fn add(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        if self.skip_zero && bytes.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let end = self.at + u64_from_usize(self.bytes.len());
        assert!(at >= end, "a piece at byte {at} overlaps what ends at {end}");
        if at != end || self.bytes.len() + bytes.len() > BATCH {
            self.finish()?;
            self.at = at;
        }
        if bytes.len() > BATCH {
            self.device.write_at(at, bytes)?;
            self.at = at + u64_from_usize(bytes.len());
            return Ok(());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        if !self.bytes.is_empty() {
            self.device.write_at(self.at, &self.bytes)?;
            self.at += u64_from_usize(self.bytes.len());
            self.bytes.clear();
        }
        Ok(())
    }
}
