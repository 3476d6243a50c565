//! Which of the free extents seen is taken.
//!
//! An extent of exactly the wanted length is taken at once. Otherwise the best so far is kept: the
//! longest while all are too short, then the shortest that is long enough; ties keep the earlier.
//!
//! Two limits on the number of candidates end the search: `min_to_scan` if the best is long enough,
//! and `max_to_scan` in any case. They are checked after each candidate that is offered (but not
//! after the first), and at the end of a group.

use crate::extent::Extent;

/// Where a search stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Undecided.
    Continue,
    /// `best` must be taken. It lies in the group being scanned.
    Found,
    /// Too many candidates: `best` must be taken, whatever its group.
    Break,
}

/// The candidates of one request: the best so far, and how many were seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selection {
    /// The best so far; length 0 when there is none.
    pub(crate) best: Extent,
    /// Candidates counted; never reset within a request.
    pub(crate) found: u32,
    pub(crate) status: Status,
    /// Whether the first candidate is taken, whatever its length.
    pub(crate) first: bool,
    max_to_scan: u32,
    min_to_scan: u32,
}

impl Selection {
    pub(crate) fn new(max_to_scan: u32, min_to_scan: u32, first: bool) -> Self {
        Self { best: Extent::default(), found: 0, status: Status::Continue, first, max_to_scan, min_to_scan }
    }

    /// Whether more than `max_to_scan` candidates were counted.
    pub(crate) fn exceeded(&self) -> bool {
        self.found > self.max_to_scan
    }

    /// Counts a candidate and takes it.
    #[inline]
    pub(crate) fn take(&mut self, candidate: Extent) {
        debug_assert!(candidate.len > 0, "a candidate of nothing");
        self.found += 1;
        self.best = candidate;
        self.status = Status::Found;
    }

    /// Offers a candidate for a request of `want` clusters.
    #[inline]
    pub(crate) fn offer(&mut self, candidate: Extent, want: u32) {
        if self.first || candidate.len == want {
            self.take(candidate);
            return;
        }
        self.found += 1;
        if self.best.len == 0 {
            self.best = candidate;
            return;
        }
        let better = if self.best.len < want {
            candidate.len > self.best.len
        } else {
            candidate.len > want && candidate.len < self.best.len
        };
        if better {
            self.best = candidate;
        }
        self.check_limits(want, false);
    }

    /// Ends the search if a limit is exceeded. At the end of a group, also ends it if the best
    /// candidate is long enough.
    #[inline]
    pub(crate) fn check_limits(&mut self, want: u32, end_of_group: bool) {
        if self.status == Status::Found {
            return;
        }
        if self.found > self.max_to_scan && !self.first {
            self.status = Status::Break;
        } else if self.best.len >= want
            && self.best.len > 0
            && (end_of_group || self.found > self.min_to_scan)
        {
            self.status = Status::Found;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(want: u32, lengths: &[u32]) -> Selection {
        let mut selection = Selection::new(200, 10, false);
        for (start, &len) in (0..).zip(lengths) {
            selection.offer(Extent { start, len, ..Extent::default() }, want);
            if selection.status != Status::Continue {
                break;
            }
        }
        selection
    }

    #[test]
    fn the_exact_length_wins_at_once() {
        let selection = offered(17, &[3, 40, 17, 20]);
        assert_eq!((selection.best.start, selection.status), (2, Status::Found));
    }

    #[test]
    fn the_longest_of_the_short_then_the_shortest_of_the_long() {
        assert_eq!(offered(17, &[3, 9, 5]).best.start, 1);
        assert_eq!(offered(17, &[3, 40, 25, 30]).best.start, 2);
        assert_eq!(offered(17, &[40, 40]).best.start, 0, "ties keep the earlier");
    }

    #[test]
    fn enough_candidates_end_the_search() {
        let selection = offered(17, &[20; 30]);
        assert_eq!((selection.found, selection.status), (11, Status::Found));
        let selection = offered(17, &[3; 300]);
        assert_eq!((selection.found, selection.status), (201, Status::Break));
    }
}
