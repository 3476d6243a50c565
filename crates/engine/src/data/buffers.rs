//! Memory for dirty file data: reusable buffers from one block to 2 MiB.
//!
//! Fresh memory costs a page fault per 4 KiB, as much as copying the data. So freed buffers stay
//! here until all buffers together, in use or not, exceed the pool's limit.

use blockyard_disk::num::{u64_from_usize, usize_from_u32};
use blockyard_sync::{AtomicU64, CachePadded, Mutex, Ordering, rank};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The largest buffer, unless one block is larger.
const BUFFER_MAX: usize = 2 << 20;

/// Free buffers of one size.
type Class = CachePadded<Mutex<Vec<Box<[u8]>>>>;

/// The buffers of one instance, by size.
pub(crate) struct BufferPool {
    block_bits: u32,
    /// Bytes that all buffers may take before some are returned to the system.
    bytes_max: u64,
    /// Bytes of all buffers, in use or not. Accessed relaxed: it is only compared with `bytes_max`.
    bytes: AtomicU64,
    /// Free buffers of one block, of two, of four, and so on.
    classes: Box<[Class]>,
}

/// A buffer that goes back to its pool when it is dropped. Its content is unspecified until the
/// taker writes it.
pub(crate) struct DataBuffer {
    bytes: Box<[u8]>,
    pool: Arc<BufferPool>,
}

impl BufferPool {
    /// An empty pool for blocks of `1 << block_bits` bytes. It keeps a freed buffer only if all
    /// buffers together have at most about `bytes_max` bytes.
    pub(crate) fn new(block_bits: u32, bytes_max: usize) -> Arc<Self> {
        let classes = (0..).take_while(|class| 1 << (block_bits + class) <= BUFFER_MAX.max(1 << block_bits));
        let classes = classes.map(|_| CachePadded::new(Mutex::new(rank::LEAF, Vec::new()))).collect();
        Arc::new(Self { block_bits, bytes_max: u64_from_usize(bytes_max), bytes: AtomicU64::new(0), classes })
    }

    /// log2 of the block size.
    pub(crate) const fn block_bits(&self) -> u32 {
        self.block_bits
    }

    /// Blocks of the largest buffer.
    pub(crate) fn blocks_max(&self) -> u32 {
        1 << self.classes.len().saturating_sub(1)
    }

    /// A buffer of at least `blocks` blocks, or of the largest size if that is less.
    pub(crate) fn take(self: &Arc<Self>, blocks: u32) -> DataBuffer {
        debug_assert!(blocks > 0, "a buffer of nothing");
        let class = usize_from_u32(blocks.min(self.blocks_max()).next_power_of_two().trailing_zeros());
        let kept = self.classes[class].lock().pop();
        let bytes = kept.unwrap_or_else(|| {
            let size = 1 << (usize_from_u32(self.block_bits) + class);
            self.make_room(size);
            self.bytes.fetch_add(size, Ordering::Relaxed);
            vec![0; 1 << (usize_from_u32(self.block_bits) + class)].into_boxed_slice()
        });
        DataBuffer { bytes, pool: Arc::clone(self) }
    }

    /// Frees unused buffers, the largest first, until `more` bytes fit or none is left.
    fn make_room(&self, more: u64) {
        for class in self.classes.iter().rev() {
            while self.bytes.load(Ordering::Relaxed) + more > self.bytes_max {
                let Some(free) = class.lock().pop() else { break };
                self.bytes.fetch_sub(u64_from_usize(free.len()), Ordering::Relaxed);
            }
        }
    }

    fn put_back(&self, bytes: Box<[u8]>) {
        let size = u64_from_usize(bytes.len());
        let class = usize_from_u32(bytes.len().trailing_zeros().saturating_sub(self.block_bits));
        debug_assert!(
            bytes.len().is_power_of_two() && class < self.classes.len(),
            "{size} bytes are not of this pool"
        );
        if self.bytes.load(Ordering::Relaxed) > self.bytes_max {
            self.bytes.fetch_sub(size, Ordering::Relaxed);
            return;
        }
        self.classes[class].lock().push(bytes);
    }

    /// Bytes of all buffers, in use or not.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl DataBuffer {
    /// The pool it came from.
    pub(crate) const fn pool(&self) -> &Arc<BufferPool> {
        &self.pool
    }
}

impl Deref for DataBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for DataBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for DataBuffer {
    fn drop(&mut self) {
        self.pool.put_back(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::BufferPool;

    #[test]
    fn buffers_are_used_again_and_the_pool_is_bounded() {
        let pool = BufferPool::new(12, 100 << 10);
        let first = pool.take(3);
        assert_eq!((first.len(), pool.bytes()), (16 << 10, 16 << 10));
        drop(first);
        assert_eq!((pool.take(4).len(), pool.bytes()), (16 << 10, 16 << 10));
        let many: Vec<_> = (0..30).map(|_| pool.take(1)).collect();
        assert_eq!(pool.bytes(), 120 << 10, "what is free makes room, what is in use is not bounded");
        drop(many);
        assert_eq!(pool.bytes(), 100 << 10);
        assert_eq!(pool.take(16).len(), 64 << 10);
        assert_eq!(pool.bytes(), 100 << 10, "small ones make room for a large one");
        assert_eq!(pool.take(100_000).len(), 2 << 20);
        assert_eq!(pool.bytes(), 0, "a buffer beyond the limit is not kept");
        assert_eq!(BufferPool::new(16, 0).blocks_max(), 32);
        assert_eq!(BufferPool::new(10, 0).blocks_max(), 2048);
    }
}
