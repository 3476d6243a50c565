//! Published figures, printed next to ours and marked as published.
//!
//! They come from other machines: only ratios and shapes may be compared, never absolute numbers.

/// Figures of one published allocation map: the state after a tree was copied over its previous
/// copy for the `copy`-th time (818 groups, 32 squares a group).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CopyMap {
    /// `regular` or `rralloc`.
    pub policy: &'static str,
    /// Number of the copy, from 1.
    pub copy: u32,
    /// Changes between used and free squares.
    pub boundaries: u64,
    /// Groups without a used square.
    pub empty_groups: u64,
    /// Jaccard index with the map after the previous copy; `None` for the first.
    pub overlap_previous: Option<f64>,
}

/// The maps of the round-robin comparison.
pub(super) const COPY_MAPS: [CopyMap; 6] = [
    CopyMap { policy: "regular", copy: 1, boundaries: 126, empty_groups: 542, overlap_previous: None },
    CopyMap { policy: "regular", copy: 2, boundaries: 180, empty_groups: 509, overlap_previous: Some(0.63) },
    CopyMap { policy: "regular", copy: 3, boundaries: 320, empty_groups: 479, overlap_previous: Some(0.69) },
    CopyMap { policy: "rralloc", copy: 1, boundaries: 108, empty_groups: 543, overlap_previous: None },
    CopyMap { policy: "rralloc", copy: 2, boundaries: 1018, empty_groups: 428, overlap_previous: Some(0.31) },
    CopyMap { policy: "rralloc", copy: 3, boundaries: 884, empty_groups: 430, overlap_previous: Some(0.26) },
];
