//! Work spread over threads: each thread takes the next part when it has finished one.

use crate::Result;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// Calls `work` for `count` parts in at most `threads` threads (at least one), each with its own
/// state. A thread that sees that another one failed begins no further part. If several threads
/// fail, one of their errors is returned.
pub(crate) fn each<S>(
    threads: usize,
    count: usize,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let run = || {
        let mut state = state();
        loop {
            // Relaxed is enough: the counter only has to give each part to one thread.
            let part = next.fetch_add(1, Ordering::Relaxed);
            if part >= count || failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            if let Err(error) = work(&mut state, part) {
                failed.store(true, Ordering::Relaxed);
                return Err(error);
            }
        }
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(count).max(1)).map(|_| scope.spawn(run)).collect();
        let mut result = run();
        for other in others {
            let ended = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(ended);
        }
        result
    })
}
