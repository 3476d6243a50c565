//! Published figures, for print beside ours and marked as such.
//!
//! They come from other machines: what may be compared is ratios and shapes, never absolute numbers.

/// e2fsck on one file system of the layout comparison (2009): a tree of 312,820 files on 32 GB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Layout {
    /// Which file system.
    pub name: &'static str,
    /// Passes 1 to 5 and their sum: seconds real, user and system, MB read, MB a second.
    pub passes: [[f64; 5]; 6],
}

/// The layout comparison.
pub(super) const LAYOUTS: [Layout; 3] = [
    Layout {
        name: "ext3",
        passes: [
            [108.40, 13.74, 11.53, 583.0, 5.38],
            [5.91, 1.74, 2.56, 133.0, 22.51],
            [0.03, 0.01, 0.0, 1.0, 31.21],
            [0.28, 0.27, 0.0, 0.0, 0.0],
            [3.17, 0.92, 0.13, 2.0, 0.63],
            [118.15, 16.75, 14.25, 718.0, 6.08],
        ],
    },
    Layout {
        name: "ext4 old allocator",
        passes: [
            [6.69, 4.06, 0.90, 82.0, 12.25],
            [13.34, 2.30, 3.78, 133.0, 9.97],
            [0.02, 0.01, 0.0, 1.0, 63.85],
            [0.28, 0.27, 0.0, 0.0, 0.0],
            [2.60, 2.31, 0.03, 1.0, 0.38],
            [23.06, 9.03, 4.74, 216.0, 9.37],
        ],
    },
    Layout {
        name: "ext4 new allocator",
        passes: [
            [6.70, 3.63, 1.58, 82.0, 12.23],
            [4.24, 1.27, 2.46, 133.0, 31.36],
            [0.01, 0.01, 0.01, 1.0, 82.69],
            [0.23, 0.22, 0.0, 0.0, 0.0],
            [2.42, 2.15, 0.07, 1.0, 0.41],
            [13.78, 7.33, 4.19, 216.0, 15.68],
        ],
    },
];
