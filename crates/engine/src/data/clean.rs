//! Clean file data in memory, by its position on the device: blocks that were read or written
//! recently.
//!
//! A reader notes which blocks it will read before it reads them from the device
//! ([`CleanBlocks::begin_read`]). A writer cancels such notes after its write. If the note of a
//! block was cancelled, the bytes that were read are not kept, since they may be older than the
//! write.

use crate::numbers::NumberHasher;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_sync::{AtomicBool, AtomicU64, CachePadded, Ordering, RwLock, rank};
use std::collections::HashMap;
use std::ops::Range;

/// log2 of the number of blocks in a stripe. In this module, a stripe is an aligned range of blocks
/// that lie in the same shard; it has nothing to do with RAID.
const STRIPE_BITS: u32 = 4;

/// Number of shards. Each has a lock of its own.
const SHARDS: usize = 16;

/// Copies of file data blocks, with the content that they have on the device.
pub(crate) struct CleanBlocks {
    block_bits: u32,
    /// The largest number of blocks that all shards together keep.
    blocks_max: usize,
    /// The number of the last note. Accessed relaxed: each number only has to be unique.
    last_note: AtomicU64,
    shards: Box<[CachePadded<RwLock<Shard>>]>,
}

/// The note of a device read in progress, for [`CleanBlocks::end_read`].
#[derive(Debug)]
pub(crate) struct ReadNote {
    number: u64,
    blocks: Range<u64>,
}

/// One shard: blocks in slots, and the hand of a clock that goes round the slots.
struct Shard {
    slot_of: HashMap<u64, usize, NumberHasher>,
    slots: Vec<Slot>,
    slots_max: usize,
    hand: usize,
    /// The notes of reads in progress, as (number of the note, stripe that is read).
    notes: Vec<(u64, u64)>,
}

struct Slot {
    block: u64,
    bytes: Box<[u8]>,
    /// Whether the block was looked up since the clock's hand last passed. Accessed relaxed: it is
    /// only a hint for eviction.
    touched: AtomicBool,
}

impl Shard {
    fn find(&self, block: u64) -> Option<&Slot> {
        let slot = &self.slots[*self.slot_of.get(&block)?];
        debug_assert_eq!(slot.block, block, "a block in the slot of another");
        Some(slot)
    }

    /// Keeps a block's bytes. If all slots are taken, replaces the first block from the clock's
    /// hand on that was not looked up since the hand last passed it.
    fn put(&mut self, block: u64, bytes: &[u8]) {
        if let Some(&slot) = self.slot_of.get(&block) {
            self.slots[slot].bytes.copy_from_slice(bytes);
            return;
        }
        if self.slots.len() < self.slots_max {
            self.slot_of.insert(block, self.slots.len());
            self.slots.push(Slot { block, bytes: bytes.into(), touched: AtomicBool::new(false) });
            return;
        }
        while self.slots[self.hand].touched.swap(false, Ordering::Relaxed) {
            self.hand = (self.hand + 1) % self.slots.len();
        }
        let slot = &mut self.slots[self.hand];
        self.slot_of.remove(&slot.block);
        self.slot_of.insert(block, self.hand);
        slot.block = block;
        slot.bytes.copy_from_slice(bytes);
        self.hand = (self.hand + 1) % self.slots.len();
    }

    fn forget(&mut self, block: u64) {
        let Some(slot) = self.slot_of.remove(&block) else { return };
        self.slots.swap_remove(slot);
        if let Some(moved) = self.slots.get(slot) {
            self.slot_of.insert(moved.block, slot);
        }
        if self.hand >= self.slots.len() {
            self.hand = 0;
        }
    }
}

impl CleanBlocks {
    /// An empty cache of at most `bytes_max` bytes in blocks of `1 << block_bits` bytes, but at
    /// least one block per shard.
    pub(crate) fn new(block_bits: u32, bytes_max: usize) -> Self {
        let slots_max = ((bytes_max >> block_bits) / SHARDS).max(1);
        let shard = || Shard {
            slot_of: HashMap::default(),
            slots: Vec::new(),
            slots_max,
            hand: 0,
            notes: Vec::new(),
        };
        Self {
            block_bits,
            blocks_max: slots_max * SHARDS,
            last_note: AtomicU64::new(0),
            shards: (0..SHARDS).map(|_| CachePadded::new(RwLock::new(rank::LEAF, shard()))).collect(),
        }
    }

    /// Number of blocks that fit.
    pub(crate) const fn blocks_max(&self) -> usize {
        self.blocks_max
    }

    fn shard(&self, stripe: u64) -> &RwLock<Shard> {
        &self.shards[usize_from_u64(stripe % u64_from_usize(SHARDS))]
    }

    fn block_size(&self) -> usize {
        1 << self.block_bits
    }

    /// Copies kept bytes into `buf`, from byte `from` of the device up to the first block that is
    /// not kept. Returns the number of bytes copied.
    pub(crate) fn copy_to(&self, from: u64, buf: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buf.len() {
            let stripe = (from + u64_from_usize(done)) >> self.block_bits >> STRIPE_BITS;
            let shard = self.shard(stripe).read();
            while done < buf.len() {
                let at = from + u64_from_usize(done);
                let block = at >> self.block_bits;
                if block >> STRIPE_BITS != stripe {
                    break;
                }
                let Some(slot) = shard.find(block) else { return done };
                slot.touched.store(true, Ordering::Relaxed);
                let bytes = &slot.bytes[usize_from_u64(at) % self.block_size()..];
                let n = bytes.len().min(buf.len() - done);
                buf[done..done + n].copy_from_slice(&bytes[..n]);
                done += n;
            }
        }
        done
    }

    /// The first block of `blocks` that is kept, or `blocks.end` if none is. The caller has found
    /// that `blocks.start` is not kept.
    pub(crate) fn missing_until(&self, blocks: Range<u64>) -> u64 {
        for (stripe, part) in stripes(blocks.start + 1..blocks.end) {
            let shard = self.shard(stripe).read();
            if let Some(kept) = part.into_iter().find(|&block| shard.find(block).is_some()) {
                return kept;
            }
        }
        blocks.end
    }

    /// Call before blocks are read from the device. Pass the note to [`Self::end_read`] afterwards.
    pub(crate) fn begin_read(&self, blocks: Range<u64>) -> ReadNote {
        let number = self.last_note.fetch_add(1, Ordering::Relaxed) + 1;
        for (stripe, _) in stripes(blocks.clone()) {
            self.shard(stripe).write().notes.push((number, stripe));
        }
        ReadNote { number, blocks }
    }

    /// Keeps the bytes that the device returned, except in stripes with blocks that were written or
    /// forgotten meanwhile. `None` says that the read failed.
    pub(crate) fn end_read(&self, note: &ReadNote, bytes: Option<&[u8]>) {
        for (stripe, blocks) in stripes(note.blocks.clone()) {
            let mut shard = self.shard(stripe).write();
            let Some(place) = shard.notes.iter().position(|&known| known == (note.number, stripe)) else {
                continue;
            };
            shard.notes.swap_remove(place);
            let Some(bytes) = bytes else { continue };
            for block in blocks {
                let at = usize_from_u64(block - note.blocks.start) << self.block_bits;
                shard.put(block, &bytes[at..at + self.block_size()]);
            }
        }
    }

    /// Call after whole blocks were written to the device, contiguous from `first` on.
    pub(crate) fn note_written(&self, first: u64, parts: &[&[u8]]) {
        let mut bytes = parts.iter().flat_map(|part| part.chunks_exact(self.block_size()));
        let len: usize = parts.iter().map(|part| part.len()).sum();
        debug_assert!(len.is_multiple_of(self.block_size()), "{len} bytes are no whole blocks");
        let end = first + u64_from_usize(len >> self.block_bits);
        self.change(first..end, |shard, block| {
            if let Some(bytes) = bytes.next() {
                shard.put(block, bytes);
            }
        });
    }

    /// Call after blocks were changed by other means, or when their content is unknown.
    pub(crate) fn forget(&self, blocks: Range<u64>) {
        self.change(blocks, Shard::forget);
    }

    /// Cancels the notes of reads in the stripes of some blocks, and calls `change` for each block.
    fn change(&self, blocks: Range<u64>, mut change: impl FnMut(&mut Shard, u64)) {
        for (stripe, blocks) in stripes(blocks) {
            let mut shard = self.shard(stripe).write();
            shard.notes.retain(|&(_, noted)| noted != stripe);
            blocks.for_each(|block| change(&mut shard, block));
        }
    }
}

/// The stripes of a range of blocks, each with its part of the range.
fn stripes(blocks: Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
    let first = blocks.start >> STRIPE_BITS;
    let end = if blocks.is_empty() { first } else { ((blocks.end - 1) >> STRIPE_BITS) + 1 };
    (first..end).map(move |stripe| {
        let start = (stripe << STRIPE_BITS).max(blocks.start);
        (stripe, start..((stripe + 1) << STRIPE_BITS).min(blocks.end))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::as_conversions)]

    use super::*;

    fn filled(blocks: Range<u64>) -> Vec<u8> {
        blocks.flat_map(|block| [block as u8; 1024]).collect()
    }

    fn read(clean: &CleanBlocks, blocks: Range<u64>) {
        let note = clean.begin_read(blocks.clone());
        clean.end_read(&note, Some(&filled(blocks)));
    }

    #[test]
    fn what_was_read_is_copied_up_to_what_is_missing() {
        let clean = CleanBlocks::new(10, 1 << 20);
        read(&clean, 14..40);
        read(&clean, 45..50);
        let mut buf = [0; 40 << 10];
        assert_eq!(clean.copy_to((14 << 10) + 100, &mut buf), (26 << 10) - 100);
        assert_eq!(buf[..(26 << 10) - 100], filled(14..40)[100..]);
        assert_eq!(clean.copy_to((14 << 10) + 100, &mut buf[..70]), 70);
        assert_eq!(clean.copy_to(40 << 10, &mut buf), 0);
        assert_eq!([clean.missing_until(40..60), clean.missing_until(50..70)], [45, 70]);
        assert_eq!(clean.missing_until(13..14), 14);
    }

    #[test]
    fn what_was_written_replaces_what_was_read() {
        let clean = CleanBlocks::new(10, 1 << 20);
        read(&clean, 0..40);
        clean.note_written(10, &[&filled(110..113), &filled(113..130)]);
        clean.forget(35..36);
        let mut buf = [0; 35 << 10];
        assert_eq!(clean.copy_to(0, &mut buf), 35 << 10);
        assert_eq!(buf[..], [filled(0..10), filled(110..130), filled(30..35)].concat());
        assert_eq!(clean.copy_to(35 << 10, &mut buf), 0);
        assert_eq!(clean.copy_to(36 << 10, &mut buf), 4 << 10);
    }

    /// A read that begins before a write and ends after it may return old bytes. If they were kept,
    /// later reads would not see the write.
    #[test]
    fn a_read_beside_a_write_is_not_kept() {
        let clean = CleanBlocks::new(10, 1 << 20);
        let note = clean.begin_read(0..40);
        clean.note_written(20, &[&filled(120..121)]);
        let other = clean.begin_read(20..21);
        clean.end_read(&note, Some(&filled(0..40)));
        let mut buf = [0; 40 << 10];
        assert_eq!(clean.copy_to(0, &mut buf), 16 << 10, "the stripe of the write is left out");
        assert_eq!(clean.copy_to(20 << 10, &mut buf[..1024]), 1024);
        assert_eq!(buf[..1024], filled(120..121));
        assert_eq!(clean.copy_to(32 << 10, &mut buf), 8 << 10);
        clean.forget(20..21);
        clean.end_read(&other, Some(&filled(20..21)));
        assert_eq!(clean.copy_to(20 << 10, &mut buf), 0);
        let failed = clean.begin_read(50..51);
        clean.end_read(&failed, None);
        assert_eq!(clean.copy_to(50 << 10, &mut buf), 0);
        assert!(clean.shards.iter().all(|shard| shard.read().notes.is_empty()), "a note is left");
    }

    #[test]
    fn memory_is_bounded_and_what_is_asked_for_stays() {
        let clean = CleanBlocks::new(10, 1 << 20);
        assert_eq!(clean.blocks_max(), 1024);
        read(&clean, 0..16);
        let mut buf = [0; 1024];
        for first in (16..16_384).step_by(16) {
            assert_eq!(clean.copy_to(3 << 10, &mut buf), 1024, "block 3 at {first}");
            read(&clean, first..first + 16);
        }
        let kept: usize = clean.shards.iter().map(|shard| shard.read().slots.len()).sum();
        assert_eq!(kept, 1024);
        assert_eq!(clean.copy_to(4 << 10, &mut buf), 0, "block 4 was not asked for");
        clean.forget(0..20_000);
        assert!(clean.shards.iter().all(|shard| shard.read().slots.is_empty()));
        read(&clean, 0..4);
        assert_eq!(clean.copy_to(0, &mut buf), 1024);
    }
}
