//! What the cache may hold beyond its size.
//!
//! In a directory of a million names each leaf is as likely to be needed next as any other. If not all of them are in memory and may be
//! dirty there, nearly every name that is made costs a leaf read, or a leaf written. So the blocks of the large directories that a
//! transaction changes come beyond what the cache holds otherwise, up to a multiple of that, while it runs and while the next
//! one does; those that are too many then leave when others come. Reads do not count: when transactions end must not depend on who looks.

use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_sync::{Atomic, AtomicU64, Ordering};
use std::sync::Arc;

/// Blocks beyond the cache's size. All accesses are relaxed: a bound that holds a little later.
pub(crate) struct Allowance {
    /// For the running transaction.
    running: AtomicU64,
    /// For the one before it.
    before: AtomicU64,
    most: u64,
}

impl Allowance {
    /// None yet, and never more than these blocks.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        let none = || AtomicU64::new(0);
        Arc::new(Self { running: none(), before: none(), most: u64_from_usize(most) })
    }

    /// Blocks that the cache may hold now beyond its size.
    pub(crate) fn blocks(&self) -> usize {
        let [running, before] = [&self.running, &self.before].map(|blocks| blocks.load(Ordering::Relaxed));
        usize_from_u64(running.max(before))
    }

    /// What the running transaction has of it.
    pub(crate) fn running(&self) -> u64 {
        self.running.load(Ordering::Relaxed)
    }

    /// The running transaction changes a directory of this many blocks that did not count before. Gives what the transaction had
    /// before and has now.
    pub(crate) fn grow(&self, blocks: u32) -> (u64, u64) {
        let more = |had: u64| Some((had + u64::from(blocks)).min(self.most));
        let had = Atomic::update(&self.running, Ordering::Relaxed, Ordering::Relaxed, more);
        let had = had.unwrap_or_else(|had| had);
        debug_assert!(had <= self.most, "{had} blocks of {} are allowed", self.most);
        (had, (had + u64::from(blocks)).min(self.most))
    }

    /// The next transaction runs; no handle is open.
    pub(crate) fn next(&self) {
        self.before.store(self.running.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_is_bounded_and_goes_after_two_transactions() {
        let allowance = Allowance::new(1000);
        assert_eq!(allowance.grow(600), (0, 600));
        assert_eq!(allowance.grow(300), (600, 900));
        assert_eq!(allowance.grow(300), (900, 1000));
        assert_eq!(allowance.grow(300), (1000, 1000));
        allowance.next();
        assert_eq!((allowance.running(), allowance.blocks()), (0, 1000));
        assert_eq!(allowance.grow(400), (0, 400));
        assert_eq!(allowance.blocks(), 1000);
        allowance.next();
        assert_eq!(allowance.blocks(), 400);
        allowance.next();
        assert_eq!(allowance.blocks(), 0);
    }
}
