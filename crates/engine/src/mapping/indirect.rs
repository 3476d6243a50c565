//! Inodes with block maps (ext2 and ext3): 12 direct pointers, then trees of one, two and three
//! levels.
//!
//! A lookup reads only the pointer arrays on the path to its logical block. The run or hole that it
//! finds ends no later than the lowest array, the one that holds the block's own pointer. The
//! kernel's requests end there, too. But if an indirect block is missing, the hole extends to the
//! end of the blocks that the missing one would map.

use crate::cache::{BlockKind, Buffer};
use crate::data::FileData;
use crate::extents::{Extent, Lookup};
use crate::inode::{Inode, InodeCore};
use crate::mapping::Mapping;
use crate::space::{Wanted, WantedFor};
use crate::txn::Handle;
use crate::{Error, OpContext, Result};
use blockyard_alloc::Claim;
use blockyard_disk::indirect::{DIRECT, LEVELS_MAX, path, pointer, pointers, span};
use blockyard_disk::num::{low32, u32_from_u64, u32_from_usize, u64_from_usize, usize_from_u64};
use blockyard_disk::{BlockNr, Corruption, CorruptionKind, LogicalBlock};
use std::ops::Range;
use std::sync::Arc;

/// The most blocks that one handle unmaps: as many as 16 pointer arrays of 1 KiB map.
const REMOVAL_MAX: u32 = 1 << 12;
/// How many logical blocks are searched at a time for mapped ones.
const WINDOW: u32 = 1 << 16;

/// The array that holds the pointer of a logical block.
struct Array {
    /// The raw pointers.
    words: Vec<u32>,
    /// Index of the logical block's pointer.
    index: usize,
    /// The block that holds the array; `None` if the inode holds it.
    block: Option<BlockNr>,
}

/// Where a walk to a logical block ended.
enum Walk {
    /// At the array that holds the block's pointer.
    Found(Array),
    /// At a missing indirect block.
    Missing(Missing),
}

/// Where the path to a logical block ends, because an indirect block is missing.
struct Missing {
    /// Length in blocks of the hole that starts at the logical block.
    hole: u64,
    /// Number of missing levels of indirect blocks.
    levels: usize,
    /// The goal for the first missing indirect block. This is the target of the nearest pointer
    /// before the missing block's own pointer in the same array, or else the block that holds this
    /// array. `None` if the inode holds the array and has no such pointer.
    near: Option<BlockNr>,
}

/// Blocks to map by pointers in one array.
pub(super) struct Run<'a> {
    pub(super) extent: Extent,
    /// Claims for the missing indirect blocks above these blocks, from the top. A missing indirect
    /// block without a claim here is claimed when it is needed.
    pub(super) branch: Vec<Claim<'a>>,
}

/// The path to an array: the topmost indirect block if it exists, claims for missing indirect
/// blocks, and the index in each block of the path.
struct Way<'a> {
    root: Option<BlockNr>,
    branch: Vec<Claim<'a>>,
    indexes: &'a [usize],
}

impl Mapping {
    /// See [`Mapping::lookup_block`]. An extent found starts at the requested block.
    pub(crate) fn lookup_indirect(&self, core: &InodeCore, logical: u32) -> Result<Lookup> {
        let nothing = Lookup { found: None, left: None, right: None, leaf: None, first_in_leaf: None };
        let array = match self.walk(core, logical)? {
            None => return Ok(nothing),
            Some(Walk::Missing(missing)) => {
                let end = u32::try_from(u64::from(logical) + missing.hole).unwrap_or(u32::MAX);
                return Ok(Lookup { right: Some(border(end)), leaf: missing.near, ..nothing });
            }
            Some(Walk::Found(array)) => array,
        };
        let rest = &array.words[array.index..];
        // The last array may extend beyond the largest logical block number.
        let at = |offset: usize| logical.saturating_add(u32_from_usize(offset));
        if let Some(first) = self.target(rest[0])? {
            let run = rest.iter().zip(first.raw()..).take_while(|(word, block)| u64::from(**word) == *block);
            let len = u32_from_usize(run.count());
            self.check_target(first, u64::from(len))?;
            let found = Extent { logical, len, physical: first.raw(), unwritten: false };
            return Ok(Lookup { found: Some(found), right: Some(border(found.end())), ..nothing });
        }
        let next = rest.iter().position(|word| *word != 0).unwrap_or(rest.len());
        let goal = nearest_before(&array.words, array.index).or(array.block);
        Ok(Lookup { right: Some(border(at(next))), leaf: goal, ..nothing })
    }

    /// The block to which a pointer points; `None` for a hole.
    fn target(&self, word: u32) -> Result<Option<BlockNr>> {
        let block = pointer(self.volume.geometry(), word)?;
        block.map_or(Ok(()), |block| self.check_target(block, 1))?;
        Ok(block)
    }

    fn check_target(&self, first: BlockNr, len: u64) -> Result<()> {
        let may_map = self.volume.groups.system_zones().may_map(first.raw(), len);
        if may_map { Ok(()) } else { Err(Corruption::new(CorruptionKind::IndirectPhysical).into()) }
    }

    fn walk(&self, core: &InodeCore, logical: u32) -> Result<Option<Walk>> {
        let bits = self.volume.geometry().block_bits();
        let Some(way) = path(bits, LogicalBlock::new(logical)) else { return Ok(None) };
        let words = core.slot.raw().block_words();
        if way.levels == 0 {
            let words = words[..DIRECT].to_vec();
            return Ok(Some(Walk::Found(Array { words, index: way.root, block: None })));
        }
        let mut next = self.target(words[way.root])?;
        let mut near = nearest_before(&words, way.root);
        for level in 0..way.levels {
            let Some(block) = next else {
                let left = (level..way.levels).fold(0, |sum, at| {
                    sum + u64_from_usize(way.indexes[at]) * span(bits, way.levels - 1 - at)
                });
                let (hole, levels) = (span(bits, way.levels - level) - left, way.levels - level);
                return Ok(Some(Walk::Missing(Missing { hole, levels, near })));
            };
            let buffer = self.volume.cache.read(block, BlockKind::Plain, |_| Ok(()))?;
            let index = way.indexes[level];
            if level + 1 == way.levels {
                let words = buffer.read(|bytes| pointers(bytes).iter().map(|word| word.get()).collect());
                return Ok(Some(Walk::Found(Array { words, index, block: Some(block) })));
            }
            let words: Vec<u32> =
                buffer.read(|bytes| pointers(bytes).iter().map(|word| word.get()).collect());
            next = self.target(words[index])?;
            near = nearest_before(&words, index).or(Some(block));
        }
        Ok(None)
    }

    /// How many indirect blocks are missing above a block.
    pub(crate) fn missing_indirect(&self, core: &InodeCore, logical: u32) -> Result<usize> {
        Ok(match self.walk(core, logical)? {
            Some(Walk::Missing(missing)) => missing.levels,
            Some(Walk::Found(_)) | None => 0,
        })
    }

    /// Maps a run of blocks in one array. Makes the missing indirect blocks first.
    pub(super) fn insert_indirect(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        inode: &Inode,
        core: &mut InodeCore,
        Run { extent: run, branch }: Run<'_>,
    ) -> Result<()> {
        debug_assert!(run.len <= left_in_array(self.volume.geometry().block_bits(), run.logical), "{run:?}");
        let bits = self.volume.geometry().block_bits();
        let way = path(bits, LogicalBlock::new(run.logical)).ok_or(Error::FileTooLarge)?;
        let mut words = core.slot.raw().block_words();
        let values = |n: usize| low32(run.physical + u64_from_usize(n));
        let count = usize_from_u64(u64::from(run.len));
        if way.levels == 0 {
            for n in 0..count {
                words[way.root + n] = values(n);
            }
            core.slot.raw_mut().set_block_words(words);
            return Ok(());
        }
        let root = self.target(words[way.root])?;
        let indexes = &way.indexes[..way.levels];
        let (chain, fresh) = self.chain(ctx, handle, inode, Way { root, branch, indexes })?;
        for (level, pair) in chain.windows(2).enumerate() {
            put(&pair[0], way.indexes[level], low32(pair[1].block().raw()));
        }
        if root.is_none() {
            words[way.root] = low32(chain[0].block().raw());
            core.slot.raw_mut().set_block_words(words);
        }
        for n in 0..count {
            put(&chain[way.levels - 1], way.indexes[way.levels - 1] + n, values(n));
        }
        core.add_blocks(u64_from_usize(fresh).cast_signed(), bits);
        Ok(())
    }

    /// The indirect blocks on the path, joined to the transaction. Missing ones are allocated, all
    /// or none, but no pointer to them is stored yet. Also returns how many were allocated.
    fn chain(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        inode: &Inode,
        Way { root, branch, indexes }: Way<'_>,
    ) -> Result<(Vec<Arc<Buffer>>, usize)> {
        let mut branch = branch.into_iter();
        let mut chain: Vec<Arc<Buffer>> = Vec::with_capacity(LEVELS_MAX);
        let mut fresh = 0;
        let mut next = root;
        for (level, index) in indexes.iter().enumerate() {
            let step = match next {
                Some(block) => handle.read_for_write(block, BlockKind::Plain, |_| Ok(())),
                None => {
                    fresh += 1;
                    let above = chain.last().map(|buffer| buffer.block());
                    let claim =
                        branch.next().map_or_else(|| self.claim_indirect(ctx, handle, inode, above), Ok);
                    let made = claim.and_then(|claim| {
                        self.volume.space.metadata_block_of(handle, claim, BlockKind::Plain)
                    });
                    made.map(|(_, buffer)| buffer)
                }
            };
            match step {
                Ok(buffer) => chain.push(buffer),
                Err(error) => {
                    let made = if next.is_none() { fresh - 1 } else { fresh };
                    for buffer in chain.iter().rev().take(made) {
                        self.volume.space.free_metadata_block(handle, buffer.block())?;
                    }
                    return Err(error);
                }
            }
            let last = level + 1 == indexes.len();
            next = match chain.last() {
                Some(buffer) if !last && fresh == 0 => {
                    self.target(buffer.read(|bytes| pointers(bytes)[*index].get()))?
                }
                _ => None,
            };
        }
        debug_assert_eq!(chain.len(), indexes.len(), "a block for each level");
        Ok((chain, fresh))
    }

    /// Claims an indirect block for which there is no claim yet.
    fn claim_indirect(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        inode: &Inode,
        above: Option<BlockNr>,
    ) -> Result<Claim<'_>> {
        let goal = above.unwrap_or_else(|| self.inode_goal(ctx, inode, 0));
        let pool = handle.pool();
        let wanted = Wanted { goal, indirect: true, pool, ..Wanted::new(inode, WantedFor::Metadata) };
        self.volume.space.claim(ctx, &wanted, &inode.space)
    }

    /// Loads the bitmaps that are needed to free the last part of a range, with at most
    /// [`REMOVAL_MAX`] mapped blocks. Returns where that part starts, or `None` if nothing is left
    /// to free.
    pub(crate) fn reserve_indirect_removal(
        &self,
        handle: &Handle<'_>,
        core: &InodeCore,
        range: Range<u32>,
    ) -> Result<Option<u32>> {
        let words = core.slot.raw().block_words();
        let bits = self.volume.geometry().block_bits();
        let mut end = 12;
        for level in 1..=LEVELS_MAX {
            if words[DIRECT + level - 1..].iter().any(|word| *word != 0) {
                end += span(bits, level);
            }
        }
        let mut end = range.end.min(u32::try_from(end).unwrap_or(u32::MAX));
        while range.start < end {
            let start = range.start.max(end.saturating_sub(WINDOW));
            let mapped = self.mapped_runs(core, start..end)?;
            if let Some(last) = mapped.last() {
                // The last run may end beyond the range.
                let start = start.max(last.end().min(end).saturating_sub(REMOVAL_MAX));
                for run in mapped.iter().filter(|run| run.end() > start) {
                    self.volume.groups.reserve_bitmaps(
                        handle,
                        BlockNr::new(run.physical),
                        u64::from(run.len),
                    )?;
                }
                return Ok(Some(start));
            }
            end = start;
        }
        // Nothing is mapped any more. If everything is to be removed and indirect blocks are left,
        // one more removal frees them.
        let hollow = range.start == 0 && words[DIRECT..].iter().any(|word| *word != 0);
        Ok(hollow.then_some(0))
    }

    /// The mapped runs of a range, in ascending order. The last may end beyond the range.
    fn mapped_runs(&self, core: &InodeCore, range: Range<u32>) -> Result<Vec<Extent>> {
        let mut runs = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let here = self.lookup_indirect(core, at)?;
            runs.extend(here.found);
            let next = match (here.found, here.right) {
                (Some(run), _) => run.end(),
                (None, Some(right)) => right.logical,
                (None, None) => range.end,
            };
            at = next.max(at + 1);
        }
        Ok(runs)
    }

    /// Unmaps a range. Reports each unmapped block to `freed`, in descending logical order; the
    /// caller frees these blocks. This function frees indirect blocks that become empty.
    pub(crate) fn remove_indirect(
        &self,
        handle: &Handle<'_>,
        core: &mut InodeCore,
        range: Range<u32>,
        freed: &mut dyn FnMut(Extent),
    ) -> Result<()> {
        let bits = self.volume.geometry().block_bits();
        let range = u64::from(range.start)..u64::from(range.end);
        let mut words = core.slot.raw().block_words();
        let mut gone = 0;
        let mut failed = Ok(());
        let mut base = 12;
        let mut roots = [(DIRECT, 1, 12); LEVELS_MAX];
        for (level, root) in roots.iter_mut().enumerate() {
            *root = (DIRECT + level, level + 1, base);
            base += span(bits, level + 1);
        }
        for (word, levels, first) in roots.into_iter().rev() {
            let cleared = match self.target(words[word]) {
                Ok(Some(block)) => self.clear_subtree(handle, block, levels, first, &range, &mut gone, freed),
                Ok(None) => continue,
                Err(error) => Err(error),
            };
            match cleared {
                Ok(true) => words[word] = 0,
                Ok(false) => {}
                Err(error) => {
                    failed = Err(error);
                    break;
                }
            }
            // Stored at once, so that the inode keeps no pointer to a freed block if an error
            // follows.
            core.slot.raw_mut().set_block_words(words);
        }
        for index in (0..DIRECT).rev() {
            let logical = u64_from_usize(index);
            if failed.is_err() || !range.contains(&logical) {
                continue;
            }
            match self.target(words[index]) {
                Ok(Some(_)) => {
                    report(logical, words[index], freed);
                    words[index] = 0;
                }
                Ok(None) => {}
                Err(error) => failed = Err(error),
            }
        }
        core.slot.raw_mut().set_block_words(words);
        core.add_blocks(-gone, bits);
        failed
    }

    /// Clears the pointers of `range` in an indirect block and in the indirect blocks below it. The
    /// block maps the logical blocks from `first` on. If no pointer is left in the block, frees it
    /// and returns true. The recursion is at most `levels` deep, so at most 3.
    #[expect(clippy::too_many_arguments, reason = "the state of one walk; a struct would only rename it")]
    fn clear_subtree(
        &self,
        handle: &Handle<'_>,
        block: BlockNr,
        levels: usize,
        first: u64,
        range: &Range<u64>,
        gone: &mut i64,
        freed: &mut dyn FnMut(Extent),
    ) -> Result<bool> {
        debug_assert!((1..=LEVELS_MAX).contains(&levels), "{levels} levels of indirect blocks");
        let bits = self.volume.geometry().block_bits();
        let below = span(bits, levels - 1);
        if range.end <= first || range.start >= first + span(bits, levels) {
            return Ok(false);
        }
        let buffer = handle.read_for_write(block, BlockKind::Plain, |_| Ok(()))?;
        // Freeing the block at the end of this function must not fail.
        self.volume.groups.reserve_bitmaps(handle, block, 1)?;
        let words: Vec<u32> = buffer.read(|bytes| pointers(bytes).iter().map(|word| word.get()).collect());
        let mut left = words.iter().filter(|word| **word != 0).count();
        for (index, &word) in words.iter().enumerate().rev() {
            let start = first + u64_from_usize(index) * below;
            if word == 0 || range.end <= start || range.start >= start + below {
                continue;
            }
            let Some(child) = self.target(word)? else { continue };
            let cleared = if levels == 1 {
                report(start, word, freed);
                true
            } else {
                self.clear_subtree(handle, child, levels - 1, start, range, gone, freed)?
            };
            if cleared {
                put(&buffer, index, 0);
                left -= 1;
            }
        }
        if left == 0 {
            *gone += 1;
            self.volume.space.free_metadata_block(handle, block)?;
        }
        Ok(left == 0)
    }
}

fn report(logical: u64, word: u32, freed: &mut dyn FnMut(Extent)) {
    freed(Extent { logical: u32_from_u64(logical), len: 1, physical: u64::from(word), unwritten: false });
}

/// The target of the nearest nonzero pointer before `index`.
fn nearest_before(words: &[u32], index: usize) -> Option<BlockNr> {
    let near = words[..index].iter().rev().find(|word| **word != 0);
    near.map(|word| BlockNr::new(u64::from(*word)))
}

fn put(buffer: &Buffer, index: usize, word: u32) {
    buffer.write(|bytes| bytes[4 * index..4 * index + 4].copy_from_slice(&word.to_le_bytes()));
}

/// Blocks from `logical` to the end of its pointer array; 0 beyond the end of the map.
pub(crate) fn left_in_array(block_bits: u32, logical: u32) -> u32 {
    match path(block_bits, LogicalBlock::new(logical)) {
        Some(way) if way.levels == 0 => u32_from_usize(DIRECT - way.root),
        Some(way) => u32_from_u64(span(block_bits, 1)) - u32_from_usize(way.indexes[way.levels - 1]),
        None => 0,
    }
}

/// An extent that only marks where a run or a hole ends. Its logical block need not be mapped.
const fn border(logical: u32) -> Extent {
    Extent { logical, len: 1, physical: 0, unwritten: false }
}

/// An upper bound on the number of indirect blocks that mapping the blocks `new` needs. For each
/// lowest pointer array it counts all indirect blocks on the path, even if they exist or are shared
/// with another array. Leaves out arrays below which `data` has a reservation already.
pub(crate) fn blocks_for_arrays(block_bits: u32, data: &FileData, new: &[Range<u32>]) -> u64 {
    let mut last = 0..0;
    let mut wanted = 0;
    for logical in new.iter().cloned().flatten().filter(|&logical| logical >= u32_from_usize(DIRECT)) {
        if last.contains(&logical) {
            continue;
        }
        let (array, levels) = array_of(logical, block_bits - 2);
        if !data.has_reserved_in(&array) {
            wanted += levels;
        }
        last = array;
    }
    wanted
}

/// The logical blocks that share the lowest pointer array with `logical`, and the number of levels
/// above them.
fn array_of(logical: u32, bits: u32) -> (Range<u32>, u64) {
    let behind = logical - u32_from_usize(DIRECT);
    let levels = match u64::from(behind >> bits) {
        0 => 1,
        above if above - 1 < 1 << bits => 2,
        _ => 3,
    };
    let start = logical - (behind & ((1 << bits) - 1));
    (start..start.saturating_add(1 << bits), levels)
}

#[cfg(test)]
mod tests {
    use super::array_of;

    #[test]
    fn arrays_of_pointers_begin_behind_the_direct_blocks() {
        assert_eq!(array_of(12, 8), (12..268, 1));
        assert_eq!(array_of(267, 8), (12..268, 1));
        assert_eq!(array_of(268, 8), (268..524, 2));
        assert_eq!(array_of(12 + 256 + 65_535, 8).1, 2);
        assert_eq!(array_of(12 + 256 + 65_536, 8).1, 3);
    }
}
