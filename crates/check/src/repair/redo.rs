//! The redo log: copies of the blocks that a repair is about to write, kept in free blocks until
//! they are written. A power cut in the middle then loses nothing, not even contents that the
//! repair swaps.
//!
//! The log is a chain of index blocks. An entry of an index block has the number of a block, the
//! place where the block's new content is kept, and the checksum of that content. The last words of
//! the superblock's reserved space give the position of the first index block in KiB. The log is
//! valid only while the superblock is, to the byte, the one that was written with it. Whoever
//! mounts, checks or tunes the file system before the repair is finished changes a time or a state
//! in the superblock, and so makes the log invalid. The superblock that marks the file system clean
//! names no log. A log that no repair would have written (with another block size, a block twice,
//! or blocks past the end of the device) is not valid either.
//!
//! Index block: magic (16 bytes), kibibyte of the next one (0 for none), crc32c of the superblock,
//! number of entries, base-2 logarithm of the block size, entries, and in the last 4 bytes the
//! crc32c of everything before them.

use std::collections::BTreeSet;
use std::ops::Range;

use blockyard_device::{BlockDevice, DeviceError, OverlayDevice};
use blockyard_disk::checksum::crc32c_raw;
use blockyard_disk::num::{
    high32, join32, low32, u32_from_usize, u64_from_usize, usize_from_u32, usize_from_u64,
};
use blockyard_disk::superblock::{FsState, PRIMARY_OFFSET, RawSuperblock};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use super::Plan;
use super::editor::{change_superblock, sound_superblock};

/// The most blocks of a log: a larger plan is written without one.
pub(super) const BLOCKS_MAX: u64 = 1 << 18;

const MAGIC: &[u8; 16] = b"blockyard redo 1";
/// Says that the words after it name a log.
const NAMED: u32 = 0x6F64_6572;
/// Words of the reserved space of the superblock: [`NAMED`], then the low and the high half of the
/// number of the kibibyte where the first index block begins.
const WORDS: Range<usize> = 91..94;
const HEAD: usize = 36;
const ENTRY: usize = 20;
const TAIL: usize = 4;

/// A block, and where its new content is kept.
#[derive(Clone, Copy, Debug)]
struct Entry {
    block: u64,
    kept: u64,
    sum: u32,
}

impl Entry {
    /// Whether both blocks lie on the device, and no entry before has one of them.
    fn is_possible(&self, blocks: u64, seen: &mut BTreeSet<u64>) -> bool {
        self.block < blocks && self.kept < blocks && seen.insert(self.block) && seen.insert(self.kept)
    }
}

/// A log that a repair left when a power cut interrupted it.
#[derive(Debug)]
pub(super) struct Redo {
    entries: Vec<Entry>,
    block_bits: u32,
}

/// Removes the name of a log from a superblock.
pub(super) fn forget(sb: &mut RawSuperblock) {
    if sb.s_reserved[WORDS.start].get() == NAMED {
        sb.s_reserved[WORDS].fill(U32::new(0));
    }
}

fn name(sb: &mut RawSuperblock, kibibyte: u64) {
    let words = [NAMED, low32(kibibyte), high32(kibibyte)];
    sb.s_reserved[WORDS].copy_from_slice(&words.map(U32::new));
}

fn named(sb: &RawSuperblock) -> Option<u64> {
    let [magic, low, high] = [0, 1, 2].map(|word| sb.s_reserved[WORDS.start + word].get());
    (magic == NAMED).then(|| join32(high, low))
}

/// Checksum of the superblock that a log depends on. It leaves out the superblock's own checksum,
/// which follows from the rest.
fn sum_of(sb: &RawSuperblock) -> u32 {
    crc32c_raw(!0, &sb.as_bytes()[..RawSuperblock::SIZE - 4])
}

impl Redo {
    /// The log on a device, if it is valid and every checksum is right.
    pub(super) fn of(device: &dyn BlockDevice) -> Option<Self> {
        let sb = sound_superblock(device).filter(|sb| !sb.state().contains(FsState::VALID))?;
        let mut next = named(&sb)?;
        let block_bits = 10u32.checked_add(sb.s_log_block_size.get()).filter(|bits| *bits <= 16)?;
        let blocks = device.size().div_ceil(1 << block_bits);
        let mut redo = Self { entries: Vec::new(), block_bits };
        while next != 0 {
            next = redo.read_index(device, next.checked_mul(1024)?, &sb)?;
            if u64_from_usize(redo.entries.len()) > BLOCKS_MAX.min(blocks) {
                return None;
            }
        }
        let mut seen = BTreeSet::new();
        let mut content = vec![0; redo.block_size()];
        for entry in &redo.entries {
            if !entry.is_possible(blocks, &mut seen) {
                return None;
            }
            device.read_at(entry.kept << redo.block_bits, &mut content).ok()?;
            if crc32c_raw(!0, &content) != entry.sum {
                return None;
            }
        }
        Some(redo)
    }

    fn block_size(&self) -> usize {
        1 << self.block_bits
    }

    /// Adds the entries of an index block; returns the kibibyte of the next index block, 0 if there
    /// is none. `None` if this is no valid index block.
    fn read_index(&mut self, device: &dyn BlockDevice, at: u64, sb: &RawSuperblock) -> Option<u64> {
        debug_assert_ne!(at, 0, "0 says that there is none");
        let mut head = [0; HEAD];
        device.read_at(at, &mut head).ok()?;
        let word = |bytes: &[u8], at: usize| U32::read_from_bytes(&bytes[at..at + 4]).map_or(0, U32::get);
        let (next, bits) = (join32(word(&head, 20), word(&head, 16)), word(&head, 32));
        let (sum, count) = (word(&head, 24), usize_from_u32(word(&head, 28)));
        if head[..16] != MAGIC[..] || bits != self.block_bits || sum != sum_of(sb) {
            return None;
        }
        let mut block = vec![0; self.block_size()];
        device.read_at(at, &mut block).ok()?;
        let (body, tail) = block.split_at(block.len() - TAIL);
        // An index block without entries is invalid: a circle of such blocks would never end.
        let fits = count > 0 && count <= (body.len() - HEAD) / ENTRY;
        if !fits || crc32c_raw(!0, body) != word(tail, 0) {
            return None;
        }
        for entry in body[HEAD..].chunks_exact(ENTRY).take(count) {
            let block = join32(word(entry, 4), word(entry, 0));
            let kept = join32(word(entry, 12), word(entry, 8));
            self.entries.push(Entry { block, kept, sum: word(entry, 16) });
        }
        Some(next)
    }

    /// Reads the log from one device and writes its blocks to another.
    pub(super) fn carry_out(&self, from: &dyn BlockDevice, to: &dyn BlockDevice) -> Result<(), DeviceError> {
        self.carry_out_but(None, from, to)
    }

    /// As [`carry_out`](Self::carry_out), from a device to the same device; durable when it
    /// returns. The block of the superblock, which names the log, is left out.
    pub(super) fn carry_out_in_place(&self, device: &dyn BlockDevice) -> Result<(), DeviceError> {
        self.carry_out_but(Some(PRIMARY_OFFSET >> self.block_bits), device, device)?;
        device.flush()
    }

    fn carry_out_but(
        &self,
        left_out: Option<u64>,
        from: &dyn BlockDevice,
        to: &dyn BlockDevice,
    ) -> Result<(), DeviceError> {
        let mut content = vec![0; self.block_size()];
        for entry in self.entries.iter().filter(|entry| Some(entry.block) != left_out) {
            from.read_at(entry.kept << self.block_bits, &mut content)?;
            let at = entry.block << self.block_bits;
            let length = u64_from_usize(content.len()).min(to.size().saturating_sub(at));
            to.write_at(at, &content[..usize_from_u64(length)])?;
        }
        Ok(())
    }
}

impl Plan<'_> {
    fn entries_per_index(&self) -> usize {
        ((1 << self.block_bits) - HEAD - TAIL) / ENTRY
    }

    /// Where a log of this many blocks and the superblock goes. Empty if there are no blocks, if
    /// there is no room, or if the log would be longer than [`BLOCKS_MAX`]. Empty also if the plan
    /// leaves errors, because then nobody knows what is free.
    pub(super) fn places(&self, blocks: usize) -> Vec<u64> {
        let wanted = if blocks == 0 { 0 } else { self.log_blocks(blocks + 1) };
        let places = self.places_up_to(wanted);
        debug_assert!(
            places.iter().all(|place| self.fresh.binary_search(place).is_err()),
            "a log over new blocks"
        );
        if places.len() < wanted { Vec::new() } else { places }
    }

    /// All places that a log may take, so that an undo file can save them. The length of the log
    /// depends on the replay of a journal before it, so this assumes the longest log. Returns fewer
    /// places if there is not enough room. Returns none if the log could be longer than
    /// [`BLOCKS_MAX`], or if the plan leaves errors.
    pub(super) fn places_of_undo(&self) -> Vec<u64> {
        self.places_up_to(
            self.log_blocks(self.dirty_blocks().map(|range| usize_from_u64(range.end - range.start)).sum()),
        )
    }

    /// Blocks of a log with this many entries, index blocks included.
    fn log_blocks(&self, entries: usize) -> usize {
        entries + entries.div_ceil(self.entries_per_index())
    }

    fn dirty_blocks(&self) -> impl Iterator<Item = Range<u64>> {
        let (bits, size) = (self.block_bits, 1 << self.block_bits);
        self.overlay
            .dirty_ranges()
            .into_iter()
            .map(move |range| range.start >> bits..range.end.div_ceil(size))
    }

    fn places_up_to(&self, wanted: usize) -> Vec<u64> {
        if !self.is_complete() || u64_from_usize(wanted) > BLOCKS_MAX {
            return Vec::new();
        }
        let dirty: BTreeSet<u64> = self.dirty_blocks().flatten().collect();
        let spare = self.spare.iter().flat_map(|run| run.clone().rev());
        spare.filter(|block| !dirty.contains(block)).take(wanted).collect()
    }

    /// Writes the log and makes the superblock name it; durable when it returns.
    pub(super) fn keep(
        &self,
        device: &dyn BlockDevice,
        blocks: &[u64],
        places: &[u64],
    ) -> Result<(), DeviceError> {
        let superblock = PRIMARY_OFFSET >> self.block_bits;
        let size = 1 << self.block_bits;
        assert_eq!(places.len(), self.log_blocks(blocks.len() + 1), "a place of each block and index");
        let indexes = places.len() - blocks.len() - 1;
        let (indexes, kept) = places.split_at(indexes);
        let mut entries = Vec::new();
        for (&block, &kept) in blocks.iter().chain([&superblock]).zip(kept) {
            let at = block << self.block_bits;
            let mut content = vec![0; size];
            let length = usize_from_u64(u64_from_usize(size).min(device.size() - at));
            self.overlay.read_at(at, &mut content[..length])?;
            device.write_at(kept << self.block_bits, &content)?;
            entries.push(Entry { block, kept, sum: crc32c_raw(!0, &content) });
        }
        let kibibytes = |block: u64| block << (self.block_bits - 10);
        let naming = self.naming(device, kibibytes(indexes[0]))?;
        for (nth, chunk) in entries.chunks(self.entries_per_index()).enumerate() {
            let next = indexes.get(nth + 1).map_or(0, |block| kibibytes(*block));
            let index = index_block(chunk, next, sum_of(&naming), self.block_bits);
            device.write_at(indexes[nth] << self.block_bits, &index)?;
        }
        device.flush()?;
        device.write_at(PRIMARY_OFFSET, naming.as_bytes())?;
        device.flush()
    }

    /// A superblock that names a log and is not marked clean. It is made from the superblock on the
    /// device. If the one on the device is unusable or has another block size, it is made from the
    /// planned superblock.
    fn naming(&self, device: &dyn BlockDevice, kibibyte: u64) -> Result<RawSuperblock, DeviceError> {
        let scratch = OverlayDevice::new(device);
        let mut bytes = [0; RawSuperblock::SIZE];
        let is_usable = |sb: RawSuperblock| sb.s_log_block_size.get() == self.block_bits - 10;
        if !sound_superblock(device).is_some_and(is_usable) {
            self.overlay.read_at(PRIMARY_OFFSET, &mut bytes)?;
            scratch.write_at(PRIMARY_OFFSET, &bytes)?;
        }
        change_superblock(&scratch, |sb| {
            name(sb, kibibyte);
            sb.set_state(sb.state().difference(FsState::VALID));
        })?;
        scratch.read_at(PRIMARY_OFFSET, &mut bytes)?;
        Ok(RawSuperblock::read_from_bytes(&bytes).expect("1024 bytes are a superblock"))
    }
}

fn index_block(entries: &[Entry], next: u64, superblock: u32, block_bits: u32) -> Vec<u8> {
    let mut block = vec![0; 1 << block_bits];
    let length = block.len();
    assert!(HEAD + entries.len() * ENTRY + TAIL <= length, "{} entries in {length} bytes", entries.len());
    block[..16].copy_from_slice(MAGIC);
    block[16..24].copy_from_slice(&next.to_le_bytes());
    block[24..28].copy_from_slice(&superblock.to_le_bytes());
    block[28..32].copy_from_slice(&u32_from_usize(entries.len()).to_le_bytes());
    block[32..36].copy_from_slice(&block_bits.to_le_bytes());
    for (entry, to) in entries.iter().zip(block[HEAD..].chunks_exact_mut(ENTRY)) {
        to[..8].copy_from_slice(&entry.block.to_le_bytes());
        to[8..16].copy_from_slice(&entry.kept.to_le_bytes());
        to[16..20].copy_from_slice(&entry.sum.to_le_bytes());
    }
    let sum = crc32c_raw(!0, &block[..length - TAIL]);
    block[length - TAIL..].copy_from_slice(&sum.to_le_bytes());
    block
}
