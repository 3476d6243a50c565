//! A cache of a fixed number of metadata blocks, direct-mapped by block number: its memory is
//! bounded, and there is nothing to tune.

use std::cell::RefCell;
use std::sync::Arc;

use blockyard_disk::BlockNr;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};

const SLOTS: usize = 256;

type Slot = Option<(BlockNr, Arc<[u8]>)>;

/// Recently read blocks. A block stays until another block with the same slot replaces it.
pub(super) struct BlockCache {
    slots: RefCell<Box<[Slot]>>,
}

impl BlockCache {
    pub(super) fn new() -> Self {
        Self { slots: RefCell::new(vec![None; SLOTS].into_boxed_slice()) }
    }

    pub(super) fn find(&self, number: BlockNr) -> Option<Arc<[u8]>> {
        let slots = self.slots.borrow();
        slots[slot_of(number)]
            .as_ref()
            .filter(|(held, _)| *held == number)
            .map(|(_, block)| Arc::clone(block))
    }

    pub(super) fn keep(&self, number: BlockNr, block: Arc<[u8]>) {
        self.slots.borrow_mut()[slot_of(number)] = Some((number, block));
    }
}

fn slot_of(number: BlockNr) -> usize {
    usize_from_u64(number.raw() % u64_from_usize(SLOTS))
}
