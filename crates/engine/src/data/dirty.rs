//! The dirty blocks of a file, in pieces of neighbouring blocks.
//!
//! Each piece has one [buffer](super::DataBuffer). Blocks that become dirty go into the buffer of
//! the piece just before them while it has room, then into new pieces. If a new piece directly
//! follows a row of full buffers, its buffer is at least as large as those buffers together, up to
//! the largest buffer size. So a file written in small steps has few pieces, and appending takes at
//! most about twice as much memory as there is dirty data. If dropping blocks leaves a buffer at
//! least half empty, a smaller one replaces it.

use super::{BufferPool, DataBuffer};
use blockyard_disk::num::{u32_from_usize, usize_from_u32};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Dirty blocks by their number in the file.
#[derive(Default)]
pub(crate) struct DirtyBlocks {
    /// The pieces by their first block. No two overlap, none is empty.
    pieces: BTreeMap<u32, Piece>,
    /// Number of dirty blocks in all pieces.
    len: usize,
}

/// Neighbouring dirty blocks.
struct Piece {
    buffer: DataBuffer,
    /// Blocks at the start of the buffer that are no longer dirty.
    skipped: u32,
    /// Number of dirty blocks, which follow the skipped ones.
    len: u32,
    /// Capacity, in blocks, of the contiguous row of buffers that ended with this one when this one
    /// was taken. Later changes of the row do not lower the number.
    in_row: u32,
}

impl Piece {
    fn bits(&self) -> u32 {
        self.buffer.pool().block_bits()
    }

    /// Where the bytes of some dirty blocks lie in the buffer. The first dirty block is number 0.
    fn span(&self, blocks: Range<u32>) -> Range<usize> {
        let bits = self.bits();
        let at = |block: u32| usize_from_u32(self.skipped + block) << bits;
        at(blocks.start)..at(blocks.end)
    }

    /// Blocks that fit into the buffer.
    fn capacity(&self) -> u32 {
        u32_from_usize(self.buffer.len() >> self.bits())
    }

    /// Moves the piece into a smaller buffer if at least half of the present one is unused.
    fn fitted(self) -> Self {
        if self.len.next_power_of_two() * 2 > self.capacity() {
            return self;
        }
        let mut buffer = self.buffer.pool().take(self.len);
        let bytes = &self.buffer[self.span(0..self.len)];
        buffer[..bytes.len()].copy_from_slice(bytes);
        let in_row = u32_from_usize(buffer.len() >> self.bits());
        Self { buffer, skipped: 0, len: self.len, in_row }
    }
}

impl DirtyBlocks {
    /// No blocks.
    pub(crate) const fn new() -> Self {
        Self { pieces: BTreeMap::new(), len: 0 }
    }

    /// Whether no block is dirty.
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Number of dirty blocks.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The piece that contains a block, with the piece's first block.
    fn piece_of(&self, logical: u32) -> Option<(u32, &Piece)> {
        let (&first, piece) = self.pieces.range(..=logical).next_back()?;
        (logical - first < piece.len).then_some((first, piece))
    }

    /// The content of a dirty block and of the blocks after it in the same piece.
    pub(crate) fn bytes_from(&self, logical: u32) -> Option<&[u8]> {
        let (first, piece) = self.piece_of(logical)?;
        Some(&piece.buffer[piece.span(logical - first..piece.len)])
    }

    /// The content of a dirty block.
    pub(crate) fn block(&self, logical: u32) -> Option<&[u8]> {
        let (first, piece) = self.piece_of(logical)?;
        let inside = logical - first;
        Some(&piece.buffer[piece.span(inside..inside + 1)])
    }

    /// The content of a dirty block, mutable.
    pub(crate) fn block_mut(&mut self, logical: u32) -> Option<&mut [u8]> {
        let (&first, piece) = self.pieces.range_mut(..=logical).next_back()?;
        let inside = logical - first;
        let span = (inside < piece.len).then(|| piece.span(inside..inside + 1))?;
        Some(&mut piece.buffer[span])
    }

    /// Makes all blocks of a range dirty. Returns how many of them were not dirty before. The
    /// content of these blocks is unspecified until the caller [fills](Self::fill) them.
    pub(crate) fn add(&mut self, blocks: Range<u32>, pool: &Arc<BufferPool>) -> usize {
        let before = self.len;
        let mut at = blocks.start;
        while at < blocks.end {
            if let Some((first, piece)) = self.piece_of(at) {
                at = first + piece.len;
                continue;
            }
            let next = self.pieces.range(at..).next().map_or(blocks.end, |(&first, _)| first);
            at += self.extend(at..next.min(blocks.end), pool);
        }
        debug_assert!(self.first_gap(&blocks).is_none(), "a block of {blocks:?} is not dirty");
        self.len - before
    }

    /// Makes the first blocks of `gap` dirty, as many as fit into one buffer. No block of `gap` was
    /// dirty before. Returns how many blocks became dirty.
    fn extend(&mut self, gap: Range<u32>, pool: &Arc<BufferPool>) -> u32 {
        debug_assert!(!gap.is_empty(), "nothing is missing at block {}", gap.start);
        let wanted = gap.end - gap.start;
        let before = self.pieces.range_mut(..gap.start).next_back();
        let before = before.filter(|(first, piece)| **first + piece.len == gap.start);
        let mut in_row = 0;
        if let Some((_, piece)) = before {
            let added = wanted.min(piece.capacity() - piece.skipped - piece.len);
            if added > 0 {
                piece.len += added;
                self.len += usize_from_u32(added);
                return added;
            }
            in_row = piece.in_row;
        }
        let buffer = pool.take(wanted.max(in_row));
        let capacity = u32_from_usize(buffer.len() >> pool.block_bits());
        let len = wanted.min(capacity);
        let piece = Piece { buffer, skipped: 0, len, in_row: in_row.saturating_add(capacity) };
        self.pieces.insert(gap.start, piece);
        self.len += usize_from_u32(len);
        len
    }

    /// Writes `bytes` from byte `inside` of a block on, if one piece holds all blocks that they
    /// touch. Otherwise returns false and changes nothing.
    pub(crate) fn overwrite(&mut self, logical: u32, inside: usize, bytes: &[u8]) -> bool {
        let piece = self.pieces.range_mut(..=logical).next_back();
        let Some((&first, piece)) = piece.filter(|(first, piece)| logical - **first < piece.len) else {
            return false;
        };
        let span = piece.span(logical - first..piece.len);
        let into = piece.buffer[span].get_mut(inside..inside + bytes.len());
        into.is_some_and(|into| {
            into.copy_from_slice(bytes);
            true
        })
    }

    /// Whether one piece holds all blocks of a range.
    pub(crate) fn has_in_one_piece(&self, blocks: &Range<u32>) -> bool {
        self.piece_of(blocks.start).is_some_and(|(first, piece)| blocks.end - first <= piece.len)
    }

    /// Writes `bytes` from byte `inside` of a block on. All blocks that they touch must be dirty.
    pub(crate) fn fill(&mut self, logical: u32, inside: usize, bytes: &[u8]) {
        let (mut at, mut inside, mut left) = (logical, inside, bytes);
        while !left.is_empty() {
            let piece = self.pieces.range_mut(..=at).next_back();
            let piece = piece.filter(|(first, piece)| at - **first < piece.len);
            let (&first, piece) = piece.expect("the caller has made all blocks dirty");
            let span = piece.span(at - first..piece.len);
            let into = &mut piece.buffer[span][inside..];
            let n = into.len().min(left.len());
            into[..n].copy_from_slice(&left[..n]);
            (at, inside, left) = (first + piece.len, 0, &left[n..]);
        }
    }

    /// The bytes of a run of dirty blocks, piece by piece.
    pub(crate) fn slices(&self, blocks: Range<u32>) -> Vec<&[u8]> {
        let mut slices = Vec::new();
        let mut at = blocks.start;
        while at < blocks.end {
            let Some((first, piece)) = self.piece_of(at) else { break };
            let end = (first + piece.len).min(blocks.end);
            slices.push(&piece.buffer[piece.span(at - first..end - first)]);
            at = end;
        }
        assert_eq!(at, blocks.end, "block {at} of {blocks:?} is to be written and holds nothing");
        slices
    }

    /// The dirty blocks from a block on, as one range per piece. Adjacent pieces are not joined.
    fn parts_from(&self, from: u32) -> impl Iterator<Item = Range<u32>> {
        let inside = self.piece_of(from).map(|(first, piece)| from..first + piece.len);
        let start = inside.as_ref().map_or(from, |part| part.end);
        inside.into_iter().chain(self.pieces.range(start..).map(|(&first, piece)| first..first + piece.len))
    }

    /// The first run of consecutive dirty blocks at or after `from`, at most `most` long.
    pub(crate) fn first_run(&self, from: u32, most: u32) -> Option<Range<u32>> {
        debug_assert!(most > 0, "a run of no blocks");
        let mut parts = self.parts_from(from);
        let mut run = parts.next()?;
        let longest = run.start.saturating_add(most);
        while run.end < longest {
            match parts.next() {
                Some(part) if part.start == run.end => run.end = part.end,
                _ => break,
            }
        }
        Some(run.start..run.end.min(longest))
    }

    /// The runs of dirty blocks of a range, in ascending order.
    pub(crate) fn runs_in(&self, range: Range<u32>) -> Vec<Range<u32>> {
        let mut runs: Vec<Range<u32>> = Vec::new();
        for part in self.parts_from(range.start).take_while(|part| part.start < range.end) {
            let end = part.end.min(range.end);
            match runs.last_mut() {
                Some(run) if run.end == part.start => run.end = end,
                _ => runs.push(part.start..end),
            }
        }
        runs
    }

    /// Whether blocks outside a range are dirty.
    pub(crate) fn has_more_than(&self, range: &Range<u32>) -> bool {
        self.first_in(0..range.start).is_some() || self.first_in(range.end..u32::MAX).is_some()
    }

    /// The first dirty block of a range.
    pub(crate) fn first_in(&self, range: Range<u32>) -> Option<u32> {
        self.parts_from(range.start).next().map(|part| part.start).filter(|&block| block < range.end)
    }

    /// The first block of a range that is not dirty.
    fn first_gap(&self, range: &Range<u32>) -> Option<u32> {
        let end = self.first_run(range.start, u32::MAX).filter(|run| run.start == range.start);
        let end = end.map_or(range.start, |run| run.end);
        (end < range.end).then_some(end)
    }

    /// Drops the dirty blocks of a range. Returns their number.
    pub(crate) fn drop_range(&mut self, range: Range<u32>) -> usize {
        let before = self.len;
        while let Some(first) = self.first_in(range.clone()) {
            let Some((start, _)) = self.piece_of(first) else { break };
            let Some(piece) = self.pieces.remove(&start) else { break };
            self.len -= usize_from_u32(piece.len);
            self.put_rest(start, piece, &range);
        }
        before - self.len
    }

    /// Puts back the parts of a piece that lie outside a range.
    fn put_rest(&mut self, start: u32, mut piece: Piece, range: &Range<u32>) {
        let end = start + piece.len;
        if end > range.end {
            let behind = range.end - start..piece.len;
            let len = behind.end - behind.start;
            if start < range.start {
                let bytes = &piece.buffer[piece.span(behind)];
                let mut buffer = piece.buffer.pool().take(len);
                buffer[..bytes.len()].copy_from_slice(bytes);
                let in_row = u32_from_usize(buffer.len() >> piece.bits());
                self.put(range.end, Piece { buffer, skipped: 0, len, in_row });
            } else {
                piece.skipped += behind.start;
                piece.len = len;
                return self.put(range.end, piece.fitted());
            }
        }
        if start < range.start {
            piece.len = range.start - start;
            self.put(start, piece.fitted());
        }
    }

    fn put(&mut self, start: u32, piece: Piece) {
        debug_assert!(piece.len > 0 && piece.skipped + piece.len <= piece.capacity());
        self.len += usize_from_u32(piece.len);
        let other = self.pieces.insert(start, piece);
        debug_assert!(other.is_none(), "two pieces begin at block {start}");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::as_conversions)]

    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Op {
        Write { at: u64, len: u64 },
        Drop(Range<u32>),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            4 => (0..60_000u64, 1..9000u64).prop_map(|(at, len)| Op::Write { at, len }),
            2 => (0..60u64, 1..1500u64).prop_map(|(step, len)| Op::Write { at: step * 700, len }),
            3 => (0..70u32, 0..30u32).prop_map(|(at, len)| Op::Drop(at..at + len)),
            1 => Just(Op::Drop(0..u32::MAX)),
        ];
        proptest::collection::vec(op, 1..60)
    }

    /// The blocks of a range of bytes.
    fn blocks(at: u64, len: u64) -> Range<u32> {
        (at >> 10) as u32..((at + len - 1) >> 10) as u32 + 1
    }

    fn assert_same(dirty: &DirtyBlocks, model: &BTreeMap<u32, Vec<u8>>) {
        assert_eq!((dirty.len(), dirty.is_empty()), (model.len(), model.is_empty()));
        let mut runs: Vec<Range<u32>> = Vec::new();
        for (&block, bytes) in model {
            assert_eq!(dirty.block(block).unwrap(), &bytes[..], "block {block}");
            assert!(dirty.bytes_from(block).unwrap().starts_with(bytes));
            match runs.last_mut() {
                Some(run) if run.end == block => run.end += 1,
                _ => runs.push(block..block + 1),
            }
        }
        assert_eq!(dirty.runs_in(0..u32::MAX), runs);
        for run in runs {
            let bytes: Vec<u8> = model.range(run.clone()).flat_map(|(_, bytes)| bytes.clone()).collect();
            assert_eq!(dirty.slices(run).concat(), bytes);
        }
        for from in 0..70 {
            assert_eq!(dirty.block(from).is_some(), model.contains_key(&from));
            let first = model.range(from..).next().map(|(&block, _)| block);
            assert_eq!(dirty.first_in(from..u32::MAX), first);
            assert_eq!(dirty.first_in(from..from + 3), first.filter(|&block| block < from + 3));
            let run = first.map(|first| {
                let len = (0..5).take_while(|n| model.contains_key(&(first + n))).count() as u32;
                first..first + len
            });
            assert_eq!(dirty.first_run(from, 5), run);
            let outside = model.keys().any(|block| !(from..from + 9).contains(block));
            assert_eq!(dirty.has_more_than(&(from..from + 9)), outside);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn behaves_like_a_map_of_blocks(ops in ops()) {
            let pool = BufferPool::new(10, 64 << 10);
            let mut dirty = DirtyBlocks::new();
            let mut model: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
            for (number, op) in ops.into_iter().enumerate() {
                match op {
                    Op::Write { at, len } => {
                        let all = blocks(at, len);
                        let bytes: Vec<u8> = (0..len).map(|n| (n * 7 + number as u64) as u8).collect();
                        let in_one_piece = dirty.has_in_one_piece(&all);
                        prop_assert_eq!(dirty.overwrite(all.start, at as usize % 1024, &bytes), in_one_piece);
                        prop_assert!(!in_one_piece || all.clone().all(|block| model.contains_key(&block)));
                        let new: Vec<u32> = blocks(at, len).filter(|block| !model.contains_key(block)).collect();
                        prop_assert_eq!(dirty.add(blocks(at, len), &pool), new.len());
                        for block in new {
                            dirty.fill(block, 0, &[0; 1024]);
                            model.insert(block, vec![0; 1024]);
                        }
                        if !in_one_piece {
                            dirty.fill(all.start, at as usize % 1024, &bytes);
                        }
                        for (byte, at) in bytes.iter().zip(at..) {
                            model.get_mut(&((at >> 10) as u32)).unwrap()[at as usize % 1024] = *byte;
                        }
                    }
                    Op::Drop(range) => {
                        let gone = model.range(range.clone()).count();
                        prop_assert_eq!(dirty.drop_range(range.clone()), gone);
                        model.retain(|block, _| !range.contains(block));
                    }
                }
                assert_same(&dirty, &model);
            }
            drop(dirty);
            prop_assert!(pool.bytes() <= 64 << 10, "{} bytes are kept", pool.bytes());
        }
    }

    /// Appends blocks one by one, then drops them from the front on. They form few pieces. While
    /// the dirty data grows, the buffers take at most twice the data's size. While it shrinks, they
    /// take at most about four times the data's size.
    #[test]
    fn appending_takes_few_pieces_and_at_most_twice_the_memory() {
        let pool = BufferPool::new(12, 0);
        let mut dirty = DirtyBlocks::new();
        for block in 0..2000u32 {
            dirty.add(block..block + 1, &pool);
            assert!(pool.bytes() <= u64::from(block + 1) << 13, "{} bytes of {block}", pool.bytes());
        }
        assert!(dirty.pieces.len() < 16, "{} pieces", dirty.pieces.len());
        for block in 0..1999 {
            assert_eq!(dirty.drop_range(block..block + 1), 1);
            assert!(pool.bytes() <= u64::from(2000 - block) << 14);
        }
        assert_eq!(pool.bytes(), 4096);
    }
}
