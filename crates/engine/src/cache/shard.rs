//! One shard of the cache: a map of buffers, and a ring of their block numbers. Buffers are evicted
//! by second chance: the hand of the clock is the front of the ring.

use super::Buffer;
use blockyard_disk::BlockNr;
use blockyard_sync::Backend;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// The most buffers that the hand examines per insertion. This bounds the time under the shard's
/// lock.
const STEPS: usize = 8;

/// The blocks of one shard.
pub(super) struct Shard<B: Backend> {
    map: HashMap<u64, Arc<Buffer<B>>, crate::numbers::NumberHasher>,
    ring: VecDeque<u64>,
    capacity: usize,
}

impl<B: Backend> Shard<B> {
    pub(super) fn new(capacity: usize) -> Self {
        assert!(capacity > 0, "a shard that holds nothing");
        Self { map: HashMap::default(), ring: VecDeque::new(), capacity }
    }

    pub(super) fn find(&self, block: BlockNr) -> Option<Arc<Buffer<B>>> {
        let buffer = self.map.get(&block.raw())?;
        debug_assert_eq!(buffer.block(), block, "a buffer under another number");
        buffer.touch();
        Some(Arc::clone(buffer))
    }

    /// The buffer of a block. If a new one is needed and the shard is full, tries to evict others.
    pub(super) fn find_or_insert(&mut self, block: BlockNr) -> Arc<Buffer<B>> {
        if let Some(buffer) = self.find(block) {
            return buffer;
        }
        if self.map.len() >= self.capacity {
            self.evict();
        }
        let buffer = Arc::new(Buffer::new(block));
        let other = self.map.insert(block.raw(), Arc::clone(&buffer));
        debug_assert!(other.is_none(), "block {block} has two buffers");
        self.ring.push_back(block.raw());
        debug_assert!(self.map.len() <= self.ring.len(), "a buffer that the hand never meets");
        buffer
    }

    pub(super) fn remove(&mut self, block: BlockNr) -> Option<Arc<Buffer<B>>> {
        // The ring keeps the block's number until the hand reaches it. `retain` bounds how many
        // numbers without a buffer the ring keeps.
        let removed = self.map.remove(&block.raw());
        if self.ring.len() > 2 * self.map.len() + STEPS {
            self.ring.retain(|number| self.map.contains_key(number));
        }
        removed
    }

    /// Moves the hand until the shard has room, by at most [`STEPS`] buffers.
    fn evict(&mut self) {
        for _ in 0..STEPS {
            let Some(number) = self.ring.pop_front() else { return };
            match self.map.get(&number) {
                None => {}
                Some(buffer) if Arc::strong_count(buffer) > 1 || !buffer.pass_hand() => {
                    self.ring.push_back(number);
                }
                Some(_) => {
                    self.map.remove(&number);
                    if self.map.len() < self.capacity {
                        return;
                    }
                }
            }
        }
    }
}
