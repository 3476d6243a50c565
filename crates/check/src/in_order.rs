//! Parallel work that begins in order.

use core::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

/// Calls `work` for all items in parallel, and returns the results in the order of the items. The
/// threads also take the items in that order. So if the items lie in order on a disk, the threads
/// read close to each other, and the head of the disk moves mostly forwards.
pub(crate) fn map_in_order<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    // rayon would give each thread its own part of the items. Here, each free thread takes the next
    // item of the whole list. Relaxed access suffices: the counter orders no other memory access.
    let next = AtomicUsize::new(0);
    let begin = |_| {
        let at = next.fetch_add(1, Ordering::Relaxed);
        (at, work(&items[at]))
    };
    let mut done: Vec<(usize, R)> = items.par_iter().with_max_len(1).map(begin).collect();
    done.sort_unstable_by_key(|&(at, _)| at);
    debug_assert!(done.iter().enumerate().all(|(nth, done)| nth == done.0), "one result for each item");
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use blockyard_disk::num::u64_from_usize;

    use super::map_in_order;

    #[test]
    fn items_begin_and_end_in_order() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
        let items: Vec<usize> = (0..1000).collect();
        let begun = AtomicUsize::new(0);
        let done = pool.install(|| {
            map_in_order(&items, |&item| {
                let before = begun.fetch_add(1, Ordering::SeqCst);
                // At most three earlier items have not begun: one for each other thread. Any number
                // of later ones may have begun, because this thread may have been interrupted.
                assert!(before + 4 > item, "item {item} began as number {before}");
                std::thread::sleep(std::time::Duration::from_micros(u64_from_usize(item % 7 * 10)));
                item * 2
            })
        });
        assert!(done.iter().enumerate().all(|(at, &twice)| twice == at * 2));
    }
}
