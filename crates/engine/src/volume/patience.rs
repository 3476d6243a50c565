//! Waiting for space: for clusters that a commit makes usable, or that other threads or files hold
//! for a moment.

use super::Volume;
use crate::space::privileges;
use crate::{Error, OpContext, Result};
use blockyard_sync::{Backend, Native};
use std::time::Duration;

/// The most retries that [`Volume::retry_after_commit`] allows one request.
const RETRIES_MAX: u32 = 3;
/// Between the first `HASTE` attempts, a thread that has nothing to commit only yields the CPU.
/// Before each further attempt it sleeps for [`PAUSE`].
const HASTE: u32 = 100;
const PAUSE: Duration = Duration::from_millis(1);

impl Volume {
    /// Returns `Ok` if a request that failed with [`Error::NoSpace`] is worth another try. Call
    /// this outside a handle. If freed clusters become usable only by a commit, this commits. By
    /// Linux's rules ([`Rules`](crate::requests::Rules)) a retry is also allowed without a commit,
    /// as long as a cluster could be claimed. `tries` counts the calls for one request: at most
    /// three succeed.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if another try cannot help, or after three calls; and the errors of the
    /// commit.
    pub(crate) fn retry_after_commit(&self, ctx: &OpContext, tries: &mut u32) -> Result<()> {
        if *tries >= RETRIES_MAX {
            return Err(Error::NoSpace);
        }
        *tries += 1;
        debug_assert!(*tries <= RETRIES_MAX, "{tries} commits for one request");
        if self.space.allocator().pending_clusters() > 0 {
            return self.commit_to_retry(ctx);
        }
        let may_fit = self.rules.retries_with_room && self.space.allocator().has_room(1, privileges(ctx));
        if may_fit { Ok(()) } else { Err(Error::NoSpace) }
    }

    /// Repeats `step` while it finds no space, as long as clusters are free, and at most
    /// `rules.patience` times. Usually `step` is a part of write-back. Then its space is reserved,
    /// but for the moment the clusters may be preallocated for another file, held by a claim that
    /// will be released, or freed in the running transaction. Call this outside a handle.
    ///
    /// # Errors
    /// Those of `step` and of commits. If the step's space was reserved, [`Error::NoSpace`] means
    /// that more was reserved than is available. In a sound image that is a bug. In a damaged
    /// image it is possible, because free clusters may lie in groups whose bitmaps cannot be used.
    pub(crate) fn patiently<T>(&self, ctx: &OpContext, mut step: impl FnMut() -> Result<T>) -> Result<T> {
        let mut tries = 0;
        loop {
            match step() {
                Err(Error::NoSpace)
                    if tries < self.rules.patience && self.space.allocator().free_clusters().free > 0 => {}
                other => return other,
            }
            tries += 1;
            if self.space.allocator().pending_clusters() > 0 {
                self.commit_to_retry(ctx)?;
            } else if tries < HASTE {
                Native::yield_now();
            } else {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn commit_to_retry(&self, ctx: &OpContext) -> Result<()> {
        self.commit_point(ctx)?;
        if let Some(ends) = &self.rules.io_ends {
            ends.0.committed();
        }
        Ok(())
    }
}
