//! From logical blocks to physical ones: extent trees and block maps as one stream of extents.
//!
//! [`MapWalk`] yields the mapped runs in ascending order from a given block on. It keeps a list
//! of the nodes still to visit, and never recurses. The walk is bounded. An extent node must have
//! the range and the depth that its parent gives. At most as many indirect blocks are visited as
//! the file system has blocks.

use std::ops::Range;

use blockyard_disk::extent::Child;
use blockyard_disk::indirect;
use blockyard_disk::num::{u32_from_u64, usize_from_u64};
use blockyard_disk::{
    BlockCount, BlockNr, Corruption, CorruptionKind, Extent, ExtentNode, Inode, InodeMap, LogicalBlock,
};

use super::{Reader, Result};

/// A part of a file: where it is, or why it reads as zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First logical block.
    pub logical: u64,
    /// Length in blocks.
    pub blocks: u64,
    /// What is there.
    pub kind: RunKind,
}

/// What a [`Run`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunKind {
    /// Data from this physical block on.
    Data(BlockNr),
    /// Allocated from this physical block on, but not written.
    Unwritten(BlockNr),
    /// Nothing is allocated.
    Hole,
}

impl Reader {
    /// The mapped extents of an inode from `first` on, ascending, including those beyond its size.
    /// The first extent may begin before `first`. Empty for inodes without blocks.
    pub fn extents_from(&self, inode: &Inode, first: LogicalBlock) -> MapWalk<'_> {
        let walk = match inode.map() {
            InodeMap::Extents => Walk::Extents(ExtentWalk::new(first)),
            InodeMap::Indirect => Walk::Indirect(IndirectWalk::new(self, inode, first)),
            InodeMap::None | InodeMap::Device(_) | InodeMap::FastSymlink | InodeMap::Inline => Walk::Done,
        };
        MapWalk { reader: self, inode: inode.clone(), walk }
    }

    /// All mapped extents of an inode.
    pub fn extents(&self, inode: &Inode) -> MapWalk<'_> {
        self.extents_from(inode, LogicalBlock::ZERO)
    }

    /// The runs that fill `range` of an inode's logical blocks, holes included.
    pub fn runs(&self, inode: &Inode, range: Range<u64>) -> impl Iterator<Item = Result<Run>> + use<'_> {
        let first = u32::try_from(range.start).unwrap_or(u32::MAX);
        Runs {
            walk: self.extents_from(inode, LogicalBlock::new(first)),
            next: None,
            at: range.start,
            end: range.end,
        }
    }
}

/// Iterator over the mapped extents of an inode. Ends after the first error.
#[derive(Debug)]
pub struct MapWalk<'r> {
    reader: &'r Reader,
    inode: Inode,
    walk: Walk,
}

#[derive(Debug)]
enum Walk {
    Extents(ExtentWalk),
    Indirect(IndirectWalk),
    Done,
}

impl MapWalk<'_> {
    /// The block of the extent node that the last extent came from; `None` when that node lies in
    /// the inode, for block maps, and after the end of the walk.
    #[must_use]
    pub fn node(&self) -> Option<BlockNr> {
        match &self.walk {
            Walk::Extents(walk) => walk.node,
            Walk::Indirect(_) | Walk::Done => None,
        }
    }
}

impl Iterator for MapWalk<'_> {
    type Item = Result<Extent>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = match &mut self.walk {
            Walk::Extents(walk) => walk.step(self.reader, &self.inode),
            Walk::Indirect(walk) => walk.step(self.reader, &self.inode),
            Walk::Done => Ok(None),
        };
        if !matches!(step, Ok(Some(_))) {
            self.walk = Walk::Done;
        }
        step.transpose()
    }
}

/// Depth-first walk over an extent tree.
#[derive(Debug)]
struct ExtentWalk {
    first: LogicalBlock,
    started: bool,
    /// Children still to visit, one list per level from the root down, each in descending order.
    pending: Vec<Vec<Child>>,
    /// Extents still to yield, in descending order.
    extents: Vec<Extent>,
    /// The block that the extents came from; `None` for the inode.
    node: Option<BlockNr>,
}

impl ExtentWalk {
    const fn new(first: LogicalBlock) -> Self {
        Self { first, started: false, pending: Vec::new(), extents: Vec::new(), node: None }
    }

    fn step(&mut self, reader: &Reader, inode: &Inode) -> Result<Option<Extent>> {
        let geometry = reader.superblock().geometry();
        if !self.started {
            self.started = true;
            let root = ExtentNode::parse_root(geometry, inode.block_field());
            self.enter(&root.map_err(|found| found.in_inode(inode.number()))?);
        }
        loop {
            if let Some(extent) = self.extents.pop() {
                return Ok(Some(extent));
            }
            let Some(level) = self.pending.last_mut() else { return Ok(None) };
            let Some(child) = level.pop() else {
                self.pending.pop();
                continue;
            };
            let block = reader.block(child.block)?;
            self.node = Some(child.block);
            let node = ExtentNode::parse_block(geometry, &block, child.bounds, inode.checksum_seed());
            self.enter(&node.map_err(|found| found.in_inode(inode.number()).in_block(child.block))?);
        }
    }

    /// Queues the extents or the children of a node, from the first wanted block on.
    fn enter(&mut self, node: &ExtentNode<'_>) {
        let from = node.find(self.first).unwrap_or(0);
        if node.depth() == 0 {
            let wanted = (from..node.len()).rev().filter_map(|position| node.extent(position));
            self.extents.extend(wanted.filter(|extent| extent.end() > self.first.raw()));
        } else {
            self.pending.push((from..node.len()).rev().filter_map(|position| node.child(position)).collect());
        }
    }
}

/// Depth-first walk over a block map; adjacent blocks are joined.
#[derive(Debug)]
struct IndirectWalk {
    first: u64,
    /// Pointers still to visit, in descending order.
    pending: Vec<Pointer>,
    /// The run being joined.
    joined: Option<Extent>,
    /// Indirect blocks that may still be visited.
    budget: u64,
}

/// One pointer of the map, with the number of levels of indirect blocks below it and the first
/// logical block that it maps.
#[derive(Clone, Copy, Debug)]
struct Pointer {
    raw: u32,
    levels: usize,
    logical: u64,
}

impl IndirectWalk {
    fn new(reader: &Reader, inode: &Inode, first: LogicalBlock) -> Self {
        let geometry = reader.superblock().geometry();
        let words = inode.slot().raw().block_words();
        let mut logical = 0;
        let mut pending = Vec::new();
        for (position, raw) in words.into_iter().enumerate() {
            let levels = (position + 1).saturating_sub(indirect::DIRECT);
            pending.push(Pointer { raw, levels, logical });
            logical += indirect::span(geometry.block_bits(), levels);
        }
        pending.reverse();
        Self { first: u64::from(first.raw()), pending, joined: None, budget: geometry.blocks_count().raw() }
    }

    fn step(&mut self, reader: &Reader, inode: &Inode) -> Result<Option<Extent>> {
        let geometry = reader.superblock().geometry();
        while let Some(pointer) = self.pending.pop() {
            let behind = pointer.logical + indirect::span(geometry.block_bits(), pointer.levels);
            if pointer.raw == 0 || behind <= self.first || pointer.logical >= u64::from(u32::MAX) {
                continue;
            }
            let place = |found: Corruption| {
                found.in_inode(inode.number()).in_logical(LogicalBlock::new(u32_from_u64(pointer.logical)))
            };
            let Some(block) = indirect::pointer(geometry, pointer.raw).map_err(place)? else { continue };
            if pointer.levels > 0 {
                let spent = || place(Corruption::new(CorruptionKind::IndirectLoop).in_block(block));
                self.budget = self.budget.checked_sub(1).ok_or_else(spent)?;
                self.descend(reader, pointer, block)?;
            } else if let Some(done) = self.join(pointer.logical, block) {
                return Ok(Some(done));
            }
        }
        Ok(self.joined.take())
    }

    fn descend(&mut self, reader: &Reader, pointer: Pointer, number: BlockNr) -> Result<()> {
        let block = reader.block(number)?;
        let levels = pointer.levels - 1;
        let span = indirect::span(reader.superblock().geometry().block_bits(), levels);
        let mut logical = pointer.logical;
        let start = self.pending.len();
        for raw in indirect::pointers(&block) {
            if raw.get() != 0 {
                self.pending.push(Pointer { raw: raw.get(), levels, logical });
            }
            logical += span;
        }
        self.pending[start..].reverse();
        Ok(())
    }

    /// Adds one block to the run being joined. If it does not continue that run, begins a new run
    /// and returns the old one.
    fn join(&mut self, logical: u64, physical: BlockNr) -> Option<Extent> {
        let logical = u32_from_u64(logical);
        if let Some(run) = &mut self.joined {
            let behind = run.physical + BlockCount::new(u64::from(run.length));
            if run.end() == logical && behind == physical {
                run.length += 1;
                return None;
            }
        }
        let fresh = Extent { logical: LogicalBlock::new(logical), length: 1, physical, unwritten: false };
        self.joined.replace(fresh)
    }
}

/// Extents with the holes between them, cut to a range.
struct Runs<'r> {
    walk: MapWalk<'r>,
    next: Option<Extent>,
    at: u64,
    end: u64,
}

impl Iterator for Runs<'_> {
    type Item = Result<Run>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.end {
            return None;
        }
        // The extent at hand is used up once the position has reached its end.
        while self.next.is_none_or(|extent| u64::from(extent.end()) <= self.at) {
            match self.walk.next() {
                Some(Ok(extent)) => self.next = Some(extent),
                Some(Err(error)) => {
                    self.at = self.end;
                    return Some(Err(error));
                }
                None => {
                    self.next = None;
                    break;
                }
            }
        }
        let run = match self.next {
            Some(extent) if u64::from(extent.logical.raw()) <= self.at => self.inside(&extent),
            Some(extent) => self.hole(u64::from(extent.logical.raw())),
            None => self.hole(self.end),
        };
        self.at += run.blocks;
        Some(Ok(run))
    }
}

impl Runs<'_> {
    fn inside(&self, extent: &Extent) -> Run {
        let blocks = u64::from(extent.end()).min(self.end) - self.at;
        let physical = extent.physical_at(LogicalBlock::new(u32_from_u64(self.at)));
        let kind = if extent.unwritten { RunKind::Unwritten(physical) } else { RunKind::Data(physical) };
        Run { logical: self.at, blocks, kind }
    }

    fn hole(&self, until: u64) -> Run {
        Run { logical: self.at, blocks: until.min(self.end) - self.at, kind: RunKind::Hole }
    }
}

impl Run {
    /// The device offset of a byte of the run; `None` for what reads as zeroes.
    pub(super) fn device_offset(&self, block_bits: u32, within: u64) -> Option<u64> {
        match self.kind {
            RunKind::Data(physical) => Some((physical.raw() << block_bits) + within),
            RunKind::Unwritten(_) | RunKind::Hole => None,
        }
    }

    /// Length in bytes.
    pub(super) fn bytes(&self, block_bits: u32) -> usize {
        usize_from_u64(self.blocks << block_bits)
    }
}
