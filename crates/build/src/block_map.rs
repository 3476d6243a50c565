//! The block map of a new file, for file systems without extents. It consists of the pointers in
//! the inode and of the indirect blocks, and is made as a whole.
//!
//! The number of indirect blocks follows from the file's ranges of data alone. The indirect blocks
//! are stored together before the data, in the order in which a reader of the file needs them.

use blockyard_disk::LogicalBlock;
use blockyard_disk::indirect::{DIRECT, LEVELS_MAX, path, span};
use blockyard_disk::num::{u32_from_u64, u64_from_usize, usize_from_u64};
use blockyard_engine::mkfs::Run;
use std::ops::Range;

/// Words of `i_block`.
const WORDS: usize = 15;

/// The number of indirect blocks that a file with data in these ranges needs. The ranges are in
/// logical blocks, ascending.
pub(crate) fn nodes_for(ranges: &[Range<u64>], block_bits: u32) -> usize {
    let mut nodes = 0;
    let mut first = u64_from_usize(DIRECT);
    for levels in 1..=LEVELS_MAX {
        let end = first + span(block_bits, levels);
        for level in 1..=levels {
            let below = span(block_bits, level);
            // The node after the last one counted.
            let mut next = 0;
            for range in ranges {
                let (start, stop) =
                    (range.start.clamp(first, end) - first, range.end.clamp(first, end) - first);
                if start < stop {
                    let from = (start / below).max(next);
                    next = stop.div_ceil(below);
                    nodes += usize_from_u64(next - from.min(next));
                }
            }
        }
        first = end;
    }
    nodes
}

/// A file's map.
#[derive(Debug)]
pub(crate) struct BlockMap {
    /// `i_block`.
    words: [u32; WORDS],
    /// The indirect blocks: the position and the content of each.
    nodes: Vec<(u64, Vec<u32>)>,
}

impl BlockMap {
    /// The map of these runs. The indirect blocks go to `places`.
    ///
    /// # Panics
    /// If there are fewer or more places than [`nodes_for`] says, a block has a number of 2^32 or
    /// more, or the file is longer than a block map can be.
    pub(crate) fn of(runs: &[Run], places: &[u64], block_bits: u32) -> Self {
        let mut map = Self { words: [0; WORDS], nodes: Vec::with_capacity(places.len()) };
        let mut places = places.iter();
        let pointers = usize_from_u64(span(block_bits, 1));
        for run in runs {
            let mut done = 0;
            while done < run.len {
                let logical = LogicalBlock::new(u32_from_u64(run.logical + done));
                let Some(way) = path(block_bits, logical) else { unreachable!("sizes were checked") };
                let mut node: Option<usize> = None;
                for index in std::iter::once(way.root).chain(way.indexes).take(way.levels) {
                    node = Some(map.below(node, index, pointers, &mut places));
                }
                // Map direct blocks one by one, but the blocks under one indirect block together.
                let (at, room) = match way.levels {
                    0 => (way.root, 1),
                    levels => (way.indexes[levels - 1], pointers - way.indexes[levels - 1]),
                };
                let len = (run.len - done).min(u64_from_usize(room));
                for (word, block) in map.array(node)[at..].iter_mut().zip(0..len) {
                    *word = u32_from_u64(run.physical + done + block);
                }
                done += len;
            }
        }
        assert!(places.next().is_none(), "more places than nodes");
        map
    }

    fn array(&mut self, node: Option<usize>) -> &mut [u32] {
        match node {
            Some(node) => &mut self.nodes[node].1,
            None => &mut self.words,
        }
    }

    /// The indirect block to which a pointer leads, as an index into `nodes`. The pointer is number
    /// `index` of the indirect block `node` or, for `None`, of the inode. Adds the block if the
    /// pointer is empty.
    fn below<'p>(
        &mut self,
        node: Option<usize>,
        index: usize,
        pointers: usize,
        places: &mut impl Iterator<Item = &'p u64>,
    ) -> usize {
        let known = self.array(node)[index];
        if known > 0 {
            // Search from the end: blocks of the lowest level are near it.
            let found = self.nodes.iter().rposition(|(place, _)| *place == u64::from(known));
            return found.unwrap_or_else(|| unreachable!("block {known} is in this map"));
        }
        let Some(&place) = places.next() else { unreachable!("nodes were counted") };
        self.array(node)[index] = u32_from_u64(place);
        self.nodes.push((place, vec![0; pointers]));
        self.nodes.len() - 1
    }

    /// `i_block`.
    pub(crate) const fn words(&self) -> [u32; WORDS] {
        self.words
    }

    /// The positions of the indirect blocks, with their content.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (u64, Vec<u8>)> {
        self.nodes
            .iter()
            .map(|(place, words)| (*place, words.iter().flat_map(|word| word.to_le_bytes()).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockMap, nodes_for};
    use blockyard_disk::indirect::{arrays_of, blocks_max};
    use blockyard_engine::mkfs::Run;
    use std::ops::Range;

    #[test]
    fn whole_files_need_what_the_format_says() {
        for blocks in [0, 1, 12, 13, 268, 269, 524, 525, 65_804, 65_805, 70_000, 200_000] {
            assert_eq!(
                u64::try_from(nodes_for(std::slice::from_ref(&(0..blocks)), 10)).unwrap(),
                arrays_of(10, blocks),
                "{blocks}"
            );
        }
    }

    #[test]
    fn holes_need_no_indirect_blocks() {
        let last = blocks_max(10) - 1;
        let cases: [(&[u64], usize); 6] = [
            (&[0, 11], 0),
            (&[12, 14, 267], 1),
            (&[268], 2),
            (&[268 + 255, 268 + 256], 3),
            (&[last], 3),
            (&[5, 200, 300, last], 6),
        ];
        for (blocks, nodes) in cases {
            let ranges: Vec<Range<u64>> = blocks.iter().map(|&block| block..block + 1).collect();
            assert_eq!(nodes_for(&ranges, 10), nodes, "{blocks:?}");
            let run = |&logical: &u64| Run { logical, physical: 5000 + logical % 1000, len: 1 };
            let runs: Vec<Run> = blocks.iter().map(run).collect();
            let places: Vec<u64> = (100..).take(nodes).collect();
            assert_eq!(BlockMap::of(&runs, &places, 10).blocks().count(), nodes);
        }
    }

    #[test]
    fn words_lead_to_the_data() {
        let map = BlockMap::of(&[Run { logical: 0, physical: 1000, len: 600 }], &[10, 11, 12, 13], 10);
        assert_eq!((map.words()[11], map.words()[12], map.words()[13], map.words()[14]), (1011, 10, 11, 0));
        let arrays: Vec<Vec<u32>> = map
            .blocks()
            .map(|(_, bytes)| {
                bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
            })
            .collect();
        assert_eq!((arrays[0][0], arrays[0][255]), (1012, 1267));
        assert_eq!((arrays[1][0], arrays[1][1], arrays[1][2]), (12, 13, 0));
        assert_eq!((arrays[2][0], arrays[3][75], arrays[3][76]), (1268, 1599, 0));
    }
}
