//! Finding a name through the hash index of a directory.
//!
//! The search keeps the index blocks on its way from the root to a leaf. If names of the same hash
//! may continue in the next leaf, the search goes on to that leaf. The search is bounded: the root
//! states the depth, a step only moves forward in an index block, and the leaves are counted.

use std::sync::Arc;

use blockyard_disk::dirblock::{self, DirLayout};
use blockyard_disk::dirhash::{DirHasher, HashSeed, HashVersion};
use blockyard_disk::features::Incompat;
use blockyard_disk::htree::{HtreeDefect, Index, IndexKind, RootInfo};
use blockyard_disk::num::u32_from_u64;
use blockyard_disk::{Corruption, CorruptionKind, Inode, InodeNr, LogicalBlock};

use super::{Error, Reader, Result};

/// One index block on the way down and the entry that was followed.
struct Step {
    block: Arc<[u8]>,
    kind: IndexKind,
    logical: u32,
    position: usize,
}

/// A descent to the leaf of one hash.
pub(super) struct Descent<'r> {
    reader: &'r Reader,
    directory: &'r Inode,
    layout: DirLayout,
    /// Blocks of the directory. Every block number in the index must be less.
    blocks: u32,
    hash: u32,
    /// How many index blocks lead to a leaf, the root included.
    levels: usize,
    way: Vec<Step>,
    /// Leaves that may still be visited. A directory has at most as many leaves as the file system
    /// has blocks.
    budget: u64,
}

impl<'r> Descent<'r> {
    /// Verifies the root and hashes the name.
    pub(super) fn start(reader: &'r Reader, directory: &'r Inode, name: &[u8]) -> Result<Self> {
        let sb = reader.superblock();
        let layout = reader.dir_layout();
        let large_dir = sb.features().incompat.contains(Incompat::LARGE_DIR);
        let blocks = directory.size() >> sb.geometry().block_bits();
        let bad = |defect| bad(directory, 0, defect);
        let root = reader.dir_block(directory, 0)?;
        let info = RootInfo::verify(&root, &layout, large_dir).map_err(bad)?;
        let version = HashVersion::from_raw(info.hash_version)
            .ok_or_else(|| bad(HtreeDefect::HashVersion(info.hash_version)))?
            .with_unsigned_chars(sb.has_unsigned_hash());
        let hasher = DirHasher::new(version, HashSeed::new(sb.raw().hash_seed()));
        Ok(Self {
            reader,
            directory,
            layout,
            blocks: u32_from_u64(blocks.min(u64::from(u32::MAX))),
            hash: hasher.hash(name).major,
            levels: usize::from(info.indirect_levels) + 1,
            budget: sb.geometry().blocks_count().raw(),
            way: vec![Step { block: root, kind: IndexKind::Root, logical: 0, position: 0 }],
        })
    }

    /// Searches the leaves that may hold the name.
    pub(super) fn find(mut self, name: &[u8]) -> Result<Option<InodeNr>> {
        let (mut leaf, mut logical) = self.descend(true)?;
        loop {
            self.budget = self.budget.checked_sub(1).ok_or_else(|| {
                Corruption::new(CorruptionKind::DirBlocks).in_inode(self.directory.number())
            })?;
            let found = dirblock::find(&leaf, self.layout, name)
                .map_err(|defect| bad(self.directory, logical, HtreeDefect::Linear(defect)))?;
            if let Some(found) = found {
                return Ok(Some(InodeNr::new(found.inode)));
            }
            if !self.advance()? {
                return Ok(None);
            }
            (leaf, logical) = self.descend(false)?;
        }
    }

    /// Extends the way down to a leaf. With `by_hash`, each index block is searched for the entry
    /// of the hash. Without it, the last step of the way follows the entry at its position, and
    /// each new step follows the first entry of its block.
    fn descend(&mut self, by_hash: bool) -> Result<(Arc<[u8]>, u32)> {
        loop {
            let step = self.way.last().expect("the way holds at least the root");
            let index = self.index_of(step)?;
            let position = if by_hash { index.find(self.hash) } else { step.position };
            let logical = index.entry(position).block;
            let block = self.reader.dir_block(self.directory, logical)?;
            self.way.last_mut().expect("as above").position = position;
            if self.way.len() == self.levels {
                return Ok((block, logical));
            }
            self.way.push(Step { block, kind: IndexKind::Node, logical, position: 0 });
        }
    }

    /// Moves the way to the next entry of the index. Returns whether there is such an entry, and
    /// the leaf below it may hold names of the same hash.
    fn advance(&mut self) -> Result<bool> {
        while let Some(step) = self.way.last() {
            let next = step.position + 1;
            let index = self.index_of(step)?;
            if next < index.count() {
                let continues = index.entry(next).continues(self.hash);
                self.way.last_mut().expect("as above").position = next;
                return Ok(continues);
            }
            self.way.pop();
        }
        Ok(false)
    }

    fn index_of<'s>(&self, step: &'s Step) -> Result<Index<'s>> {
        Index::parse(&step.block, step.kind, &self.layout, self.blocks)
            .map_err(|defect| bad(self.directory, step.logical, defect))
    }
}

fn bad(directory: &Inode, logical: u32, defect: HtreeDefect) -> Error {
    let kind = match defect {
        HtreeDefect::Linear(defect) => CorruptionKind::Directory(defect),
        other => CorruptionKind::Index(other),
    };
    Corruption::new(kind).in_inode(directory.number()).in_logical(LogicalBlock::new(logical)).into()
}
