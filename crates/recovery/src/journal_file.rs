//! Finding the blocks of the journal: by its inode, or by the superblock's copy of the inode's map.
//!
//! The journal's inode is mapped by extents or indirect blocks. The superblock's copy of its map
//! and size is used instead, if the copy is usable, in two cases:
//!
//! - The inode is unusable.
//! - The inode's map contains a block of a bitmap or inode table, and the copy's map does not.

use std::collections::BTreeSet;

use blockyard_device::BlockDevice;
use blockyard_disk::extent::Child;
use blockyard_disk::group_desc::RawGroupDesc;
use blockyard_disk::indirect;
use blockyard_disk::num::{join32, u32_from_u64, u64_from_usize, usize_from_u64};
use blockyard_disk::{
    BlockCount, BlockNr, Corruption, CorruptionKind, ExtentNode, FileType, Inode, InodeMap, InodeNr,
    LogicalBlock, Superblock,
};

use crate::error::{Error, Result};
use crate::journal_map::{JournalMap, Run, read};
use crate::metadata;
use crate::report::JournalSource;

/// `s_jnl_backup_type` when `s_jnl_blocks` holds a copy of the inode's map.
const BACKUP_IN_SUPERBLOCK: u8 = 1;

/// What maps a file: the 60 bytes of `i_block`, how to read them, the size in bytes, and the
/// checksum seed for blocks of the extent tree. Without a seed, these checksums are not verified.
struct FileMap {
    i_block: [u8; 60],
    is_extents: bool,
    size: u64,
    checksum_seed: Option<u32>,
}

/// The internal journal.
pub(crate) struct Found {
    pub(crate) map: JournalMap,
    pub(crate) source: JournalSource,
    /// Set if the journal shares a block with a bitmap or an inode table, according to the
    /// descriptors on the device. This is an error only if there is nothing to replay, because a
    /// replay may change those descriptors.
    pub(crate) conflict: Option<Error>,
}

/// Finds the internal journal and maps all of it.
pub(crate) fn find(device: &dyn BlockDevice, sb: &Superblock, number: InodeNr) -> Result<Found> {
    let by_inode = file_map_of_inode(device, sb, number)
        .and_then(|file| Found::by_map(device, sb, &file, JournalSource::Inode));
    let by_superblock = || {
        let file = file_map_of_superblock(sb)?;
        Found::by_map(device, sb, &file, JournalSource::SuperblockBackup).ok()
    };
    match by_inode {
        Ok(found) if found.conflict.is_none() => Ok(found),
        Ok(found) => Ok(by_superblock().filter(|other| other.conflict.is_none()).unwrap_or(found)),
        Err(Error::Device(error)) => Err(Error::Device(error)),
        // If the copy is unusable too, the inode's error is the one to report.
        Err(error) => by_superblock().ok_or(error),
    }
}

impl Found {
    fn by_map(
        device: &dyn BlockDevice,
        sb: &Superblock,
        file: &FileMap,
        source: JournalSource,
    ) -> Result<Self> {
        let map = map(device, sb, file)?;
        let on_device = |block, bytes: &mut [u8]| read(device, bytes.len(), block, 0, bytes);
        let conflict = match metadata::keep_off_tables(sb, &map, on_device) {
            Err(Error::Device(error)) => return Err(Error::Device(error)),
            kept_off => kept_off.err(),
        };
        Ok(Self { map, source, conflict })
    }
}

fn file_map_of_inode(device: &dyn BlockDevice, sb: &Superblock, number: InodeNr) -> Result<FileMap> {
    let bad = || Corruption::new(CorruptionKind::JournalInode).in_inode(number);
    let slot = read_slot(device, sb, number)?;
    let inode = Inode::parse(sb, number, &slot)?;
    let is_extents = match inode.map() {
        InodeMap::Extents => true,
        InodeMap::Indirect => false,
        _ => return Err(bad().into()),
    };
    if inode.file_type() != FileType::Regular || inode.links() == 0 {
        return Err(bad().into());
    }
    let checksum_seed = sb.checksums().inode_seed(number, inode.slot().raw().i_generation.get());
    Ok(FileMap { i_block: *inode.block_field(), is_extents, size: inode.size(), checksum_seed })
}

/// The bytes of an inode. Of the group descriptor, only the position of the inode table is used and
/// checked. A wrong checksum of the descriptor is tolerated, because the log may hold a newer
/// descriptor.
fn read_slot(device: &dyn BlockDevice, sb: &Superblock, number: InodeNr) -> Result<Vec<u8>> {
    let geometry = sb.geometry();
    if number.raw() == 0 || number.raw() > geometry.inodes_count() {
        return Err(Corruption::new(CorruptionKind::JournalInode).in_inode(number).into());
    }
    let (group, index) = geometry.locate_inode(number);
    let (block, offset) = sb.descriptor_place(group);
    let mut descriptor = vec![0; sb.desc_size()];
    read(device, geometry.block_size(), block, offset, &mut descriptor)?;
    let table = RawGroupDesc::from_disk(&descriptor).inode_table();
    let end = table.checked_add(BlockCount::new(geometry.inode_table_blocks()));
    if !geometry.contains(table) || end.is_none_or(|end| end.raw() > geometry.blocks_count().raw()) {
        return Err(Corruption::new(CorruptionKind::GroupDescInodeTable).in_group(group).into());
    }
    let mut slot = vec![0; usize::from(geometry.inode_size())];
    let place = u64::from(index) * u64::from(geometry.inode_size());
    read(device, geometry.block_size(), table, usize_from_u64(place), &mut slot)?;
    Ok(slot)
}

/// The superblock's copy of the journal inode's map, if there is one. Checksums of the extent
/// tree's blocks cannot be verified, because their seed comes from the inode.
fn file_map_of_superblock(sb: &Superblock) -> Option<FileMap> {
    let raw = sb.raw();
    if raw.s_jnl_backup_type != BACKUP_IN_SUPERBLOCK {
        return None;
    }
    let mut i_block = [0; 60];
    for (bytes, word) in i_block.chunks_exact_mut(4).zip(&raw.s_jnl_blocks) {
        bytes.copy_from_slice(&word.get().to_le_bytes());
    }
    let is_extents = u16::from_le_bytes([i_block[0], i_block[1]]) == blockyard_disk::extent::MAGIC;
    let size = join32(raw.s_jnl_blocks[15].get(), raw.s_jnl_blocks[16].get());
    Some(FileMap { i_block, is_extents, size, checksum_seed: None })
}

fn map(device: &dyn BlockDevice, sb: &Superblock, file: &FileMap) -> Result<JournalMap> {
    let blocks = file.size / u64_from_usize(sb.geometry().block_size());
    // Each log block must have a block of its own, so a valid journal has no more blocks than the
    // file system.
    if blocks == 0 || blocks > sb.geometry().blocks_count().raw().min(u64::from(u32::MAX)) {
        return Err(Corruption::new(CorruptionKind::JournalInode).into());
    }
    let mut mapper = Mapper { device, sb, runs: Vec::new(), tree: Vec::new(), blocks: u32_from_u64(blocks) };
    if file.is_extents {
        mapper.walk_extents(file)?;
    } else {
        mapper.walk_indirect(file)?;
    }
    if mapper.next() < mapper.blocks {
        return Err(hole(mapper.next()).into());
    }
    let map = JournalMap::new(mapper.runs)?;
    if let Some(shared) = mapper.tree.into_iter().find(|block| map.contains(*block)) {
        return Err(Corruption::new(CorruptionKind::JournalMapping).in_block(shared).into());
    }
    metadata::keep_off_heads(sb, &map)?;
    Ok(map)
}

fn hole(logical: u32) -> Corruption {
    Corruption::new(CorruptionKind::JournalMapping).in_logical(LogicalBlock::new(logical))
}

/// Collects the runs of the journal's first `blocks` blocks.
struct Mapper<'a> {
    device: &'a dyn BlockDevice,
    sb: &'a Superblock,
    runs: Vec<Run>,
    /// The blocks that hold the map itself.
    tree: Vec<BlockNr>,
    blocks: u32,
}

impl Mapper<'_> {
    /// The first log block that is not mapped yet.
    fn next(&self) -> u32 {
        self.runs.last().map_or(0, |run| run.log + run.length)
    }

    fn push(&mut self, physical: BlockNr, length: u32) {
        let log = self.next();
        let length = length.min(self.blocks - log);
        match self.runs.last_mut() {
            Some(last) if last.end() == physical => last.length += length,
            _ if length > 0 => self.runs.push(Run { log, physical, length }),
            _ => {}
        }
    }

    /// Walks the extent tree from left to right. The walk terminates even on a corrupt tree. The
    /// depth of a tree block must be one less than its parent's depth, and its first key must equal
    /// the key of its entry in the parent. So no block with entries is visited twice.
    fn walk_extents(&mut self, file: &FileMap) -> Result<()> {
        let geometry = self.sb.geometry();
        let mut waiting = Vec::new();
        self.take_node(&ExtentNode::parse_root(geometry, &file.i_block)?, &mut waiting)?;
        let mut block = vec![0; geometry.block_size()];
        while let Some(child) = waiting.pop() {
            read(self.device, geometry.block_size(), child.block, 0, &mut block)?;
            self.tree.push(child.block);
            let node = ExtentNode::parse_block(geometry, &block, child.bounds, file.checksum_seed)
                .map_err(|found| found.in_block(child.block))?;
            self.take_node(&node, &mut waiting)?;
        }
        Ok(())
    }

    /// Adds the extents of a leaf to the runs, or puts the children of an index node on the stack,
    /// first child on top. Refuses a hole or an unwritten extent.
    fn take_node(&mut self, node: &ExtentNode<'_>, waiting: &mut Vec<Child>) -> Result<(), Corruption> {
        waiting.extend((0..node.len()).rev().filter_map(|position| node.child(position)));
        for extent in (0..node.len()).filter_map(|position| node.extent(position)) {
            let next = self.next();
            if next == self.blocks {
                break;
            }
            if extent.unwritten || extent.logical.raw() != next {
                return Err(hole(next));
            }
            self.push(extent.physical, extent.length);
        }
        Ok(())
    }

    /// Looks up every log block in turn. For each level of the path, keeps the indirect block that
    /// was read last, so that each indirect block is read only once. Refuses a pointer to any other
    /// indirect block that was read before.
    ///
    /// Two successive pointers to one indirect block are not noticed here. But then a block is
    /// mapped twice, or is both an indirect block and mapped, and the caller refuses the map.
    fn walk_indirect(&mut self, file: &FileMap) -> Result<()> {
        let bits = self.sb.geometry().block_bits();
        let mut seen = BTreeSet::new();
        let mut levels: [(BlockNr, Vec<u32>); indirect::LEVELS_MAX] = Default::default();
        for logical in 0..self.blocks {
            let path = indirect::path(bits, LogicalBlock::new(logical)).ok_or_else(|| hole(logical))?;
            let mut raw = word(&file.i_block, path.root);
            for (level, &index) in levels.iter_mut().zip(&path.indexes).take(path.levels) {
                let block = self.pointer(raw, logical)?;
                if level.0 != block {
                    if !seen.insert(block) {
                        return Err(Corruption::new(CorruptionKind::JournalMapping).in_block(block).into());
                    }
                    *level = (block, self.read_pointers(block)?);
                }
                raw = level.1[index];
            }
            let block = self.pointer(raw, logical)?;
            self.push(block, 1);
        }
        Ok(())
    }

    fn pointer(&self, raw: u32, logical: u32) -> Result<BlockNr, Corruption> {
        indirect::pointer(self.sb.geometry(), raw)?.ok_or_else(|| hole(logical))
    }

    fn read_pointers(&mut self, block: BlockNr) -> Result<Vec<u32>> {
        self.tree.push(block);
        let mut bytes = vec![0; self.sb.geometry().block_size()];
        read(self.device, bytes.len(), block, 0, &mut bytes)?;
        Ok(indirect::pointers(&bytes).iter().map(|pointer| pointer.get()).collect())
    }
}

fn word(i_block: &[u8; 60], index: usize) -> u32 {
    let bytes = &i_block[index * 4..index * 4 + 4];
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}
