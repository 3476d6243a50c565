//! State of the search by windows (as in ext3) for one file: its reservation window, how much of it
//! was used, and where the file's last block went.

/// Clusters of the first window.
const WINDOW_FIRST: u32 = 8;
/// Most clusters that a window grows to by doubling. Only a longer request gets a longer window.
const WINDOW_MAX: u32 = 1027;

/// A range of clusters that one file may use before others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) first: u64,
    /// The last cluster, which is part of the window.
    pub(crate) last: u64,
}

impl Window {
    /// Number of clusters.
    pub(crate) const fn len(self) -> u64 {
        self.last - self.first + 1
    }

    /// Whether a cluster lies in the window.
    pub(crate) const fn contains(self, at: u64) -> bool {
        self.first <= at && at <= self.last
    }

    /// Whether two windows share a cluster.
    pub(crate) const fn meets(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Where the last allocation for a file ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastBlock {
    pub(crate) logical: u32,
    pub(crate) cluster: u64,
}

/// What the search by windows remembers about one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) window: Option<Window>,
    /// Clusters of the next window.
    size: u32,
    /// Clusters taken from the window.
    hits: u64,
    /// The last logical block that got a cluster, and the cluster that was allocated last, for data
    /// or for the block map.
    pub(crate) last: Option<LastBlock>,
}

impl Reservation {
    /// The state of a file before its first request.
    pub(crate) const fn new() -> Self {
        Self { window: None, size: WINDOW_FIRST, hits: 0, last: None }
    }

    /// Clusters of the next window.
    pub(crate) const fn size(&self) -> u32 {
        self.size
    }

    /// Makes the next window large enough for a request of this many clusters.
    pub(crate) fn make_room_for(&mut self, clusters: u32) {
        self.size = self.size.max(clusters);
    }

    /// Counts clusters taken from the window.
    pub(crate) fn note_hits(&mut self, clusters: u32) {
        self.hits += u64::from(clusters);
    }

    /// Doubles the size, up to [`WINDOW_MAX`], if more than half of the old window was used.
    pub(crate) fn grow(&mut self) {
        if self.window.is_some_and(|window| self.hits > window.len() / 2) {
            self.size = self.size.saturating_mul(2).min(WINDOW_MAX);
        }
    }

    /// Sets the window. No cluster of it has been taken yet.
    pub(crate) fn set_window(&mut self, window: Option<Window>) {
        self.window = window;
        self.hits = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_that_is_used_is_followed_by_one_twice_as_long() {
        let mut reservation = Reservation::new();
        reservation.set_window(Some(Window { first: 10, last: 17 }));
        reservation.note_hits(4);
        reservation.grow();
        assert_eq!(reservation.size(), 8, "half of it is not more than half");
        reservation.note_hits(1);
        reservation.grow();
        assert_eq!(reservation.size(), 16);
        reservation.make_room_for(1000);
        reservation.set_window(Some(Window { first: 0, last: 99 }));
        reservation.note_hits(100);
        reservation.grow();
        assert_eq!(reservation.size(), 1027, "and no longer");
    }
}
