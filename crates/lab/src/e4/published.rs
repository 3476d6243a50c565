//! Published figures, printed next to ours and marked as published.
//!
//! Published figures come from other machines. So compare ratios and the shapes of curves, never
//! absolute numbers.

/// One pass of e2fsck, or its whole run: real, user and system seconds, MB read, MB a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Published(pub(super) [f64; 5]);

impl Published {
    /// CPU seconds.
    pub(super) const fn cpu(self) -> f64 {
        self.0[1] + self.0[2]
    }

    /// Seconds of waiting. The published times are rounded, so the difference can be slightly
    /// negative. It then counts as 0.
    pub(super) const fn io(self) -> f64 {
        (self.0[0] - self.cpu()).max(0.0)
    }
}

/// e2fsck on one file system of the layout comparison (2009): a tree of 312,820 files on 32 GB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Layout {
    /// Name of the file system in the heads of the table.
    pub name: &'static str,
    /// Name of the [`super::Kind`] whose figures stand next to the published ones.
    pub kind: &'static str,
    /// Passes 1 to 5 and the whole run.
    pub passes: [Published; 6],
}

/// A layout from rows in the published form.
const fn layout(name: &'static str, kind: &'static str, rows: [[f64; 5]; 6]) -> Layout {
    let [one, two, three, four, five, total] = rows;
    let passes = [
        Published(one),
        Published(two),
        Published(three),
        Published(four),
        Published(five),
        Published(total),
    ];
    Layout { name, kind, passes }
}

/// The layout comparison.
pub(super) const LAYOUTS: [Layout; 3] = [
    layout(
        "ext3",
        "ext3",
        [
            [108.40, 13.74, 11.53, 583.0, 5.38],
            [5.91, 1.74, 2.56, 133.0, 22.51],
            [0.03, 0.01, 0.0, 1.0, 31.21],
            [0.28, 0.27, 0.0, 0.0, 0.0],
            [3.17, 0.92, 0.13, 2.0, 0.63],
            [118.15, 16.75, 14.25, 718.0, 6.08],
        ],
    ),
    layout(
        "ext4 old allocator",
        "ext4-2008",
        [
            [6.69, 4.06, 0.90, 82.0, 12.25],
            [13.34, 2.30, 3.78, 133.0, 9.97],
            [0.02, 0.01, 0.0, 1.0, 63.85],
            [0.28, 0.27, 0.0, 0.0, 0.0],
            [2.60, 2.31, 0.03, 1.0, 0.38],
            [23.06, 9.03, 4.74, 216.0, 9.37],
        ],
    ),
    layout(
        "ext4 new allocator",
        "ext4-2009",
        [
            [6.70, 3.63, 1.58, 82.0, 12.23],
            [4.24, 1.27, 2.46, 133.0, 31.36],
            [0.01, 0.01, 0.01, 1.0, 82.69],
            [0.23, 0.22, 0.0, 0.0, 0.0],
            [2.42, 2.15, 0.07, 1.0, 0.41],
            [13.78, 7.33, 4.19, 216.0, 15.68],
        ],
    ),
];
