//! The orphan file: slots for inode numbers in the blocks of a hidden file, so that many CPUs can
//! record orphans at once.
//!
//! The blocks of this file stay in memory while the file system is open for writing, because
//! recording an orphan must not fail.

use crate::Result;
use crate::cache::{BlockKind, Buffer, MetaCache};
use crate::inode::{Inode, InodeCore, OrphanNote};
use crate::txn::Handle;
use blockyard_disk::checksum::verify_orphan_block;
use blockyard_disk::num::{u32_from_u64, u64_from_usize};
use blockyard_disk::orphan_file::{OrphanBlock, slots_per_block};
use blockyard_disk::{BlockNr, Corruption, CorruptionKind, InodeNr};
use blockyard_sync::{Mutex, rank};
use std::sync::Arc;

/// The most blocks of an orphan file that Linux accepts.
const BLOCKS_MAX: u64 = 512;

/// The blocks of the orphan file.
pub(crate) struct OrphanFile {
    blocks: Box<[Mutex<Slots>]>,
}

/// One block and how many of its slots are free.
struct Slots {
    buffer: Arc<Buffer>,
    free: usize,
}

impl OrphanFile {
    /// Records an inode in a free slot. Looks in the block of the handle's CPU slot first, then in
    /// the blocks after it. `None` if all blocks are full.
    pub(super) fn add(&self, handle: &Handle<'_>, inode: InodeNr) -> Option<OrphanNote> {
        debug_assert!(inode != InodeNr::ZERO, "inode 0 marks an empty slot");
        let first = handle.slot().index(self.blocks.len());
        (0..self.blocks.len()).find_map(|step| {
            let block = (first + step) % self.blocks.len();
            let mut slots = self.blocks[block].lock();
            if slots.free == 0 {
                return None;
            }
            handle.join(&slots.buffer);
            let slot = slots.buffer.write(|bytes| {
                let count = slots_per_block(bytes.len());
                let (words, _) = bytes[..4 * count].as_chunks_mut::<4>();
                let slot = words.iter().position(|word| *word == [0; 4])?;
                words[slot] = inode.raw().to_le_bytes();
                Some(slot)
            })?;
            slots.free -= 1;
            Some(OrphanNote::File { block, slot })
        })
    }

    /// Frees a slot.
    pub(super) fn remove(&self, handle: &Handle<'_>, block: usize, slot: usize) {
        let mut slots = self.blocks[block].lock();
        handle.join(&slots.buffer);
        slots.buffer.write(|bytes| {
            let word = &mut bytes[4 * slot..4 * slot + 4];
            debug_assert!(*word != [0; 4], "slot {slot} of block {block} is struck off twice");
            word.fill(0);
        });
        slots.free += 1;
    }

    /// Reads and verifies every block of the orphan file. `place` returns the physical block of a
    /// logical block, `None` for a hole.
    pub(crate) fn load(
        inode: &Inode,
        cache: &MetaCache,
        place: impl Fn(&InodeCore, u32) -> Result<Option<BlockNr>>,
    ) -> Result<Self> {
        let damaged = || Corruption::new(CorruptionKind::OrphanBlockMagic).in_inode(inode.number());
        let core = inode.core();
        let count = core.size / u64_from_usize(cache.block_size());
        if count == 0 || count > BLOCKS_MAX {
            return Err(damaged().into());
        }
        let kind = BlockKind::OrphanFile(core.seed);
        let mut blocks = Vec::new();
        for logical in 0..u32_from_u64(count) {
            let block = place(&core, logical)?.ok_or_else(damaged)?;
            let buffer = cache.read(block, kind, |bytes| {
                OrphanBlock::parse(bytes).map_err(|found| found.in_block(block))?;
                Ok(verify_orphan_block(core.seed, block, bytes)?)
            })?;
            let used = buffer.read(|bytes| OrphanBlock::parse(bytes).map(|block| block.inodes().count()))?;
            let free = slots_per_block(cache.block_size()) - used;
            blocks.push(Mutex::new(rank::ORPHANS, Slots { buffer, free }));
        }
        debug_assert!(u64_from_usize(blocks.len()) == count);
        Ok(Self { blocks: blocks.into_boxed_slice() })
    }

    /// The recorded inodes, each with its slot.
    pub(crate) fn notes(&self) -> Vec<(InodeNr, OrphanNote)> {
        let mut notes = Vec::new();
        for (block, slots) in self.blocks.iter().enumerate() {
            slots.lock().buffer.read(|bytes| {
                let (words, _) = bytes[..4 * slots_per_block(bytes.len())].as_chunks::<4>();
                for (slot, word) in words.iter().enumerate().filter(|(_, word)| **word != [0; 4]) {
                    let inode = InodeNr::new(u32::from_le_bytes(*word));
                    notes.push((inode, OrphanNote::File { block, slot }));
                }
            });
        }
        notes
    }
}
