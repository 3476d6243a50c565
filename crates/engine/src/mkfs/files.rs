//! Blocks of the files that mkfs itself makes: the root directory and lost+found, and if the
//! features request them, the resize inode, the journal and the orphan file.
//!
//! Does no I/O. Blocks are taken first-fit from a goal on, in whole clusters. Extent-mapped files
//! get one extent per free run, or several if the run is longer than 32768 blocks. Block-mapped
//! files get their indirect blocks from the same sequence, each before the data that it maps.

use blockyard_disk::extent::WRITTEN_LEN_MAX;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};

use super::error::{Error, Result};
use super::extent_tree::{ExtentTree, Run};
use super::space::Space;

/// How a file's blocks are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mapping {
    /// Extents.
    Extents(ExtentTree),
    /// The words of `i_block`, and the content of each indirect block.
    Blocks { words: [u32; 15], indirect: Vec<(u64, Vec<u32>)> },
}

/// A file's mapping and size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileBlocks {
    pub(super) mapping: Mapping,
    /// Data blocks in logical order.
    pub(super) runs: Vec<Run>,
    /// Number of blocks taken, for data and for the mapping, in whole clusters.
    pub(super) allocated: u64,
}

impl FileBlocks {
    /// Number of data blocks.
    pub(super) fn blocks(&self) -> u64 {
        self.runs.iter().map(|run| run.len).sum()
    }
}

/// Takes blocks for files.
pub(super) struct Allocator<'a> {
    pub(super) space: &'a mut Space,
    pub(super) block_size: u64,
    /// Blocks per cluster.
    pub(super) step: u64,
    pub(super) extents: bool,
}

impl Allocator<'_> {
    /// Takes the blocks of a file of `len` blocks, at or after `goal` as long as blocks are free
    /// there.
    pub(super) fn file(&mut self, len: u64, goal: u64) -> Result<FileBlocks> {
        if self.extents { self.extent_file(len, goal) } else { self.block_file(len, goal) }
    }

    /// Takes the first free cluster at or after `goal`, else before it. Returns its first block.
    pub(super) fn block(&mut self, goal: u64) -> Result<u64> {
        let goal = goal - goal % self.step;
        let start = self
            .space
            .find(goal, u64::MAX, self.step, self.step)
            .or_else(|| self.space.find(0, goal, self.step, self.step))
            .ok_or_else(no_room)?;
        self.space.mark(start..start + self.step);
        Ok(start)
    }

    fn extent_file(&mut self, len: u64, goal: u64) -> Result<FileBlocks> {
        let goal = goal - goal % self.step;
        let mut tree = ExtentTree::default();
        let longest = u64::from(WRITTEN_LEN_MAX).next_multiple_of(self.step);
        let (mut logical, mut from, mut allocated) = (0, goal, 0);
        while logical < len {
            let wanted = (len - logical).next_multiple_of(self.step);
            let start = self
                .space
                .find(from, u64::MAX, self.step, self.step)
                .or_else(|| self.space.find(0, goal, self.step, self.step))
                .ok_or_else(no_room)?;
            let got = self.space.free_run(start, wanted.min(longest)) / self.step * self.step;
            self.space.mark(start..start + got);
            allocated += got;
            push_extents(&mut tree.runs, Run { logical, physical: start, len: got.min(len - logical) });
            while let Some(level) = tree.lacking(self.block_size) {
                // The tree has no room for this extent, so it gets a new node. The goal of the node
                // is the block before the first extent.
                let before = tree.runs[0].physical.saturating_sub(1);
                let node = self.block(before)?;
                allocated += self.step;
                tree.add_node(level, node);
            }
            logical += got;
            from = start + got;
        }
        let runs = tree.runs.clone();
        Ok(FileBlocks { mapping: Mapping::Extents(tree), runs, allocated })
    }

    fn block_file(&mut self, len: u64, goal: u64) -> Result<FileBlocks> {
        let mut map =
            BlockMap { allocator: self, next: goal, words: [0; 15], indirect: Vec::new(), runs: Vec::new() };
        for logical in 0..len {
            map.add(logical)?;
        }
        let BlockMap { words, indirect, runs, .. } = map;
        let taken = len + u64_from_usize(indirect.len());
        Ok(FileBlocks { mapping: Mapping::Blocks { words, indirect }, runs, allocated: taken })
    }
}

/// Appends a run, split into extents. If it continues the last extent, that extent is first filled
/// up to the greatest length.
fn push_extents(runs: &mut Vec<Run>, mut run: Run) {
    let longest = u64::from(WRITTEN_LEN_MAX);
    if let Some(last) = runs.last_mut()
        && last.physical + last.len == run.physical
        && last.len < longest
    {
        let more = run.len.min(longest - last.len);
        last.len += more;
        run = Run { logical: run.logical + more, physical: run.physical + more, len: run.len - more };
    }
    while run.len > 0 {
        let len = run.len.min(longest);
        runs.push(Run { len, ..run });
        run = Run { logical: run.logical + len, physical: run.physical + len, len: run.len - len };
    }
}

/// A block map under construction.
struct BlockMap<'a, 'b> {
    allocator: &'a mut Allocator<'b>,
    next: u64,
    words: [u32; 15],
    indirect: Vec<(u64, Vec<u32>)>,
    runs: Vec<Run>,
}

impl BlockMap<'_, '_> {
    fn add(&mut self, logical: u64) -> Result<()> {
        let fan_out = self.allocator.block_size / 4;
        if logical < 12 {
            let block = self.take()?;
            self.words[usize_from_u64(logical)] = word(block)?;
            return self.data(logical, block);
        }
        let mut inside = logical - 12;
        let mut depth = 1;
        let mut covered = fan_out;
        while inside >= covered {
            inside -= covered;
            covered *= fan_out;
            depth += 1;
        }
        if depth > 3 {
            return Err(Error::Size(
                "the journal is too long for a block map; ask for a smaller one".to_owned(),
            ));
        }
        let root = 11 + depth;
        let mut node = match self.words[root] {
            0 => {
                let (block, node) = self.new_node()?;
                self.words[root] = word(block)?;
                node
            }
            block => self.node_at(block),
        };
        while covered > fan_out {
            covered /= fan_out;
            let slot = usize_from_u64(inside / covered);
            inside %= covered;
            node = match self.indirect[node].1[slot] {
                0 => {
                    let (block, child) = self.new_node()?;
                    self.indirect[node].1[slot] = word(block)?;
                    child
                }
                block => self.node_at(block),
            };
        }
        let block = self.take()?;
        self.indirect[node].1[usize_from_u64(inside)] = word(block)?;
        self.data(logical, block)
    }

    fn take(&mut self) -> Result<u64> {
        let block = self.allocator.block(self.next)?;
        self.next = block + 1;
        Ok(block)
    }

    fn new_node(&mut self) -> Result<(u64, usize)> {
        let block = self.take()?;
        self.indirect.push((block, vec![0; usize_from_u64(self.allocator.block_size / 4)]));
        Ok((block, self.indirect.len() - 1))
    }

    /// The index in `self.indirect` of the indirect block `block`. This block is among the last
    /// few, so the search begins at the end.
    fn node_at(&self, block: u32) -> usize {
        self.indirect
            .iter()
            .rposition(|(at, _)| *at == u64::from(block))
            .expect("every pointer was made here")
    }

    fn data(&mut self, logical: u64, block: u64) -> Result<()> {
        match self.runs.last_mut() {
            Some(last) if last.physical + last.len == block => last.len += 1,
            _ => self.runs.push(Run { logical, physical: block, len: 1 }),
        }
        Ok(())
    }
}

/// A block number as a 32-bit pointer of a block map.
fn word(block: u64) -> Result<u32> {
    u32::try_from(block).map_err(|_| {
        Error::Size(format!(
            "block {block} is beyond what a block map can name; add -O extent or ask for less"
        ))
    })
}

fn no_room() -> Error {
    Error::Size(
        "no room for the root directory, lost+found, journal and the like; ask for more blocks or fewer inodes"
            .to_owned(),
    )
}

/// Blocks of lost+found: 16 KiB, at least two and at most twelve.
pub(super) const fn lost_found_blocks(block_size: u64) -> u64 {
    match 16384 / block_size {
        0 | 1 => 2,
        blocks if blocks > 12 => 12,
        blocks => blocks,
    }
}

#[cfg(test)]
mod tests {
    use super::{Allocator, Mapping, Space};

    fn allocator(space: &mut Space, extents: bool) -> Allocator<'_> {
        Allocator { space, block_size: 1024, step: 1, extents }
    }

    #[test]
    fn indirect_blocks_precede_their_data() {
        let mut space = Space::new(100_000);
        let file = allocator(&mut space, false).file(12 + 256 + 300, 100).unwrap();
        let Mapping::Blocks { words, indirect } = &file.mapping else { panic!("a block map was asked for") };
        assert_eq!((words[0], words[11], words[12], words[13]), (100, 111, 112, 369));
        let at: Vec<u64> = indirect.iter().map(|(block, _)| *block).collect();
        assert_eq!(at, [112, 369, 370, 627]);
        assert_eq!((indirect[1].1[0], indirect[1].1[1], indirect[3].1[43]), (370, 627, 671));
        assert_eq!(file.allocated, 12 + 256 + 300 + 4);
    }

    #[test]
    fn a_fifth_extent_needs_a_block_of_its_own() {
        let mut space = Space::new(1000);
        for used in [10, 20, 30, 40, 50] {
            space.mark(used..used + 1);
        }
        let file = allocator(&mut space, true).file(40, 5).unwrap();
        let Mapping::Extents(tree) = &file.mapping else { panic!("extents were asked for") };
        let runs = &tree.runs;
        assert_eq!(runs.len(), 5);
        assert_eq!((runs[4].logical, runs[4].physical, runs[4].len), (32, 41, 8));
        assert_eq!(tree.blocks(1024, None)[0].0, 4);
    }
}
