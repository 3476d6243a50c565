//! Waiting for space that is about to become free.
//!
//! The space of a removed file becomes free only when the kernel forgets the inode. The kernel does
//! that some time after the removal was answered. So a creation, a link, a rename, a write, a copy
//! or an fallocate that finds no space shortly after a removal is tried again a few times.

use std::thread;
use std::time::{Duration, Instant};

use blockyard_sync::{Atomic, AtomicU64, Ordering};

use crate::errno::{Answer, Errno};

/// The time after a removal in which a request that finds no space is tried again.
const ON_ITS_WAY: Duration = Duration::from_secs(2);
/// Pauses between attempts, in milliseconds.
const PAUSES_MS: [u64; 5] = [1, 4, 16, 64, 250];

/// When something was last removed.
pub(crate) struct Removals {
    began: Instant,
    /// The time of the last removal: milliseconds since `began`, plus 1; 0 before the first
    /// removal. Accessed relaxed, because it is only a hint.
    last: AtomicU64,
}

impl Removals {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), last: Atomic::new(0) }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    /// Records a removal, a rename that may have replaced a file, or the close of a file without a
    /// name.
    pub(crate) fn note(&self) {
        self.last.store(self.now(), Ordering::Relaxed);
    }

    fn is_recent(&self) -> bool {
        let last = self.last.load(Ordering::Relaxed);
        last > 0 && u128::from(self.now() - last) < ON_ITS_WAY.as_millis()
    }

    /// Runs an operation that needs space. If the operation finds no space and something was
    /// removed recently, repeats it after a pause, at most once for each of [`PAUSES_MS`].
    pub(crate) fn with_space<T>(&self, mut attempt: impl FnMut() -> Answer<T>) -> Answer<T> {
        let mut done = attempt();
        for pause in PAUSES_MS {
            if !matches!(done, Err(Errno::NOSPC)) || !self.is_recent() {
                break;
            }
            thread::sleep(Duration::from_millis(pause));
            done = attempt();
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::Removals;
    use crate::errno::Errno;

    #[test]
    fn who_finds_no_space_looks_again_after_a_removal_only() {
        let removals = Removals::new();
        let mut looks = 0;
        let full = |looks: &mut u32| {
            *looks += 1;
            if *looks < 3 { Err(Errno::NOSPC) } else { Ok(()) }
        };
        assert_eq!(removals.with_space(|| full(&mut looks)), Err(Errno::NOSPC));
        assert_eq!(looks, 1, "nothing was removed");
        removals.note();
        looks = 0;
        assert_eq!(removals.with_space(|| full(&mut looks)), Ok(()));
    }
}
