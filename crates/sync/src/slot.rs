//! CPU slots: which shard of a sharded structure a caller uses. The slot is an input, so that runs
//! can be repeated.

use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};

/// The logical CPU that a caller acts as. Callers that want to repeat a run choose it; others use
/// [`CpuSlot::of_thread`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CpuSlot(u32);

impl CpuSlot {
    /// The first slot.
    pub const ZERO: Self = Self(0);

    /// A slot by number.
    #[inline]
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number.
    #[inline]
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// The index in a structure of `shards` shards (at least 1): the number modulo `shards`.
    #[inline]
    #[must_use]
    pub fn index(self, shards: usize) -> usize {
        usize::try_from(self.0).unwrap_or(0) % shards
    }

    /// The slot of the calling operating system thread. Threads are numbered from 0 in the order in
    /// which they first call this.
    #[must_use]
    pub fn of_thread() -> Self {
        thread_local! {
            // Relaxed: only the number itself is shared.
            static SLOT: CpuSlot = CpuSlot(SLOTS_GIVEN.fetch_add(1, Ordering::Relaxed));
        }
        SLOT.with(|slot| *slot)
    }
}

/// How many slots [`CpuSlot::of_thread`] has given out.
static SLOTS_GIVEN: AtomicU32 = AtomicU32::new(0);

impl fmt::Display for CpuSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for CpuSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSlot({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::CpuSlot;

    #[test]
    fn slots_wrap_into_the_shards_there_are() {
        assert_eq!(CpuSlot::new(5).index(4), 1);
        assert_eq!(CpuSlot::new(5).index(1), 0);
    }

    #[test]
    fn a_thread_keeps_its_slot_and_shares_it_with_no_other() {
        let here = CpuSlot::of_thread();
        assert_eq!(CpuSlot::of_thread(), here);
        let there = std::thread::spawn(CpuSlot::of_thread).join().unwrap();
        assert_ne!(here, there);
    }
}
