//! How far to read ahead of a sequential reader.

use blockyard_disk::num::u64_from_usize;
use blockyard_sync::{AtomicU32, AtomicU64, Ordering};

/// How many blocks are read ahead at the first read that begins where the previous read ended.
const FIRST: u32 = 16;

/// Where a file was read last. Accessed relaxed: it is only a hint, and concurrent readers may mix
/// it up.
#[derive(Default)]
pub(crate) struct ReadAhead {
    /// The byte after the last read.
    next: AtomicU64,
    /// Blocks to read ahead, 0 after a read out of order.
    window: AtomicU32,
}

impl ReadAhead {
    /// Notes a read of `len` bytes at `offset`. Returns how many blocks to read after them, at most
    /// `most`. The number is 0 for a read out of order. It is [`FIRST`] for the first read that
    /// begins where the previous one ended, and doubles with each further one. The very first read
    /// counts as in order if `offset` is 0.
    pub(crate) fn note_read(&self, offset: u64, len: usize, most: u32) -> u32 {
        let goes_on = self.next.swap(offset.saturating_add(u64_from_usize(len)), Ordering::Relaxed) == offset;
        let window = self.window.load(Ordering::Relaxed);
        let window = if goes_on { (window * 2).max(FIRST).min(most) } else { 0 };
        self.window.store(window, Ordering::Relaxed);
        window
    }
}

#[cfg(test)]
mod tests {
    use super::ReadAhead;

    #[test]
    fn reads_in_order_look_further_ahead_each_time() {
        let ahead = ReadAhead::default();
        let windows = [0, 1000, 2000, 3000, 9000, 10_000].map(|offset| ahead.note_read(offset, 1000, 50));
        assert_eq!(windows, [16, 32, 50, 50, 0, 16]);
        assert_eq!(ahead.note_read(11_000, 1000, 0), 0);
    }
}
