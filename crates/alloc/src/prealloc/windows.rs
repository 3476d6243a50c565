//! The reservation windows of all files (as in ext3), ordered by position on disk. They never
//! overlap, and they take no space: free clusters in a window stay free.

use std::collections::BTreeMap;

use blockyard_sync::{Backend, Mutex, rank};

use super::reservation::Window;

/// All windows, by their first clusters.
pub(crate) struct Windows<B: Backend> {
    by_first: Mutex<BTreeMap<u64, u64>, B>,
}

impl<B: Backend> Windows<B> {
    pub(crate) fn new() -> Self {
        Self { by_first: Mutex::new(rank::WINDOWS, BTreeMap::new()) }
    }

    /// Replaces `old` by a window of `place.size` clusters that begins between `place.start` and
    /// `place.end`. `next_free` returns the first free cluster at or after a given one.
    ///
    /// A candidate is a window at the start of the first gap between windows that is large enough.
    /// If the candidate contains a free cluster, it becomes the new window. Otherwise the next
    /// candidate is looked for from the next free cluster on. `old` is removed when the first
    /// candidate is found.
    ///
    /// # Errors
    /// When no candidate contains a free cluster, or there is no candidate. The error holds the
    /// window that the file still has: `old` if there was no candidate, otherwise `None`.
    pub(crate) fn replace(
        &self,
        old: Option<Window>,
        place: Place,
        mut next_free: impl FnMut(u64) -> Option<u64>,
    ) -> Result<Window, Option<Window>> {
        let mut windows = self.by_first.lock();
        let mut mine = old;
        let mut start = place.start;
        loop {
            let window = gap(&windows, start, place).ok_or(mine)?;
            if let Some(before) = mine.take() {
                let removed = windows.remove(&before.first);
                assert_eq!(
                    removed,
                    Some(before.last),
                    "a file's window {before:?} was not where it should be"
                );
            }
            let free = next_free(window.first).ok_or(None)?;
            debug_assert!(free >= window.first, "cluster {free} lies before {window:?}");
            if window.contains(free) {
                windows.insert(window.first, window.last);
                debug_assert!(are_apart(&windows, window), "{window:?} overlaps another");
                return Ok(window);
            }
            start = free;
        }
    }

    /// Extends a window by `by` clusters, or up to the next window if that is nearer.
    pub(crate) fn extend(&self, window: Window, by: u64) -> Window {
        let mut windows = self.by_first.lock();
        let next = windows.range(window.first + 1..).next().map(|(&first, _)| first);
        let last = next.map_or(window.last + by, |next| (window.last + by).min(next - 1));
        let before = windows.insert(window.first, last);
        assert_eq!(before, Some(window.last), "a file's window {window:?} was not where it should be");
        Window { last, ..window }
    }

    /// Removes a window.
    pub(crate) fn remove(&self, window: Window) {
        let removed = self.by_first.lock().remove(&window.first);
        assert_eq!(removed, Some(window.last), "a file's window {window:?} was not where it should be");
    }

    /// How many windows there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.by_first.lock().len()
    }
}

/// Where a window may go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Earliest first cluster.
    pub(crate) start: u64,
    /// Latest first cluster.
    pub(crate) end: u64,
    /// Length in clusters.
    pub(crate) size: u64,
}

/// The window of `place.size` clusters in the first gap from `start` on that is large enough;
/// `None` if it would begin after `place.end`.
fn gap(windows: &BTreeMap<u64, u64>, start: u64, place: Place) -> Option<Window> {
    let before = windows.range(..=start).next_back().map(|(_, &last)| last);
    let mut at = before.map_or(start, |last| start.max(last + 1));
    for (&first, &last) in windows.range(start + 1..) {
        if at > place.end || at + place.size <= first {
            break;
        }
        at = last + 1;
    }
    (at <= place.end).then_some(Window { first: at, last: at + place.size - 1 })
}

/// Whether a new window overlaps neither neighbour.
fn are_apart(windows: &BTreeMap<u64, u64>, window: Window) -> bool {
    let before = windows.range(..window.first).next_back().is_none_or(|(_, &last)| last < window.first);
    let after = windows.range(window.first + 1..).next().is_none_or(|(&first, _)| first > window.last);
    before && after
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockyard_sync::Native;

    fn place(start: u64, end: u64, size: u64) -> Place {
        Place { start, end, size }
    }

    fn window(first: u64, last: u64) -> Window {
        Window { first, last }
    }

    #[test]
    fn windows_are_laid_into_the_first_gap_that_holds_them() {
        let windows = Windows::<Native>::new();
        let all_free = Some;
        assert_eq!(windows.replace(None, place(10, 99, 8), all_free), Ok(window(10, 17)));
        assert_eq!(windows.replace(None, place(30, 99, 8), all_free), Ok(window(30, 37)));
        assert_eq!(windows.replace(None, place(12, 99, 8), all_free), Ok(window(18, 25)), "behind the first");
        assert_eq!(
            windows.replace(None, place(12, 99, 8), all_free),
            Ok(window(38, 45)),
            "26 to 29 are too few"
        );
        assert_eq!(
            windows.replace(None, place(0, 99, 10), all_free),
            Ok(window(0, 9)),
            "just before the first"
        );
        assert_eq!(windows.replace(None, place(12, 40, 8), all_free), Err(None), "it would begin too late");
        let old = Some(window(18, 25));
        assert_eq!(windows.replace(old, place(26, 99, 4), all_free), Ok(window(26, 29)));
        assert_eq!(windows.replace(None, place(12, 99, 8), all_free), Ok(window(18, 25)), "it was given up");
        let last = Some(window(26, 29));
        assert_eq!(windows.replace(last, place(12, 40, 8), all_free), Err(last), "it is kept");
        assert_eq!(windows.len(), 6);
    }

    #[test]
    fn a_window_holds_a_free_cluster_or_moves_on() {
        let windows = Windows::<Native>::new();
        let free_from_50 = |at: u64| Some(at.max(50));
        assert_eq!(windows.replace(None, place(10, 99, 8), free_from_50), Ok(window(50, 57)));
        assert_eq!(
            windows.replace(None, place(10, 99, 45), free_from_50),
            Ok(window(58, 102)),
            "past the other"
        );
        assert_eq!(windows.replace(None, place(110, 199, 8), |_| None), Err(None));
        assert_eq!(windows.len(), 2);
    }

    #[test]
    fn a_window_grows_up_to_the_next() {
        let windows = Windows::<Native>::new();
        let first = windows.replace(None, place(0, 99, 8), Some).unwrap();
        windows.replace(None, place(12, 99, 8), Some).unwrap();
        let first = windows.extend(first, 3);
        assert_eq!(first, window(0, 10));
        assert_eq!(windows.extend(first, 3), window(0, 11));
        windows.remove(window(0, 11));
        assert_eq!(windows.len(), 1);
    }
}
