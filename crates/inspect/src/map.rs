//! Allocation maps: an image as squares of clusters, group by group, and the figures that such maps
//! show.
//!
//! A group is a row of [`SQUARES_PER_GROUP`] squares. In a full group of 4 KiB blocks without
//! bigalloc, a square stands for 1,024 blocks. A square counts how many of its clusters are used.
//! The figures are defined as in the published comparison of round-robin allocation:
//!
//! - A square is *used* if any of its clusters is used.
//! - A *boundary* is a change between a used and a free square, in disk order.
//! - A group is *empty* if none of its squares is used.
//! - The *overlap* of two maps is the Jaccard index of their used squares.

mod picture;
mod render;
pub mod shades;

use serde::{Deserialize, Serialize};

/// Squares in a row.
pub const SQUARES_PER_GROUP: usize = 32;

/// Used clusters of one group, square by square.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRow {
    used: [u32; SQUARES_PER_GROUP],
}

/// The map of a whole image, or of the part of it that files use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationMap {
    clusters_per_square: u32,
    clusters_per_group: u32,
    clusters_in_last_group: u32,
    rows: Vec<GroupRow>,
}

/// The figures of one map.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MapFigures {
    /// Changes between used and free squares in disk order.
    pub boundaries: u64,
    /// Groups without a used square.
    pub empty_groups: u64,
    /// Groups with a used square.
    pub touched_groups: u64,
    /// Used clusters.
    pub used_clusters: u64,
}

impl AllocationMap {
    /// A map with nothing used. A group's clusters are divided by [`SQUARES_PER_GROUP`], and
    /// the quotient, rounded up, is the size of a square. So the last square of a row may be
    /// smaller, and a row may have fewer squares.
    ///
    /// # Panics
    /// Without groups or without clusters.
    #[must_use]
    pub fn new(groups: usize, clusters_per_group: u32, clusters_in_last_group: u32) -> Self {
        assert!(groups > 0 && clusters_per_group > 0 && clusters_in_last_group > 0, "an image has clusters");
        let squares = blockyard_disk::num::u32_from_usize(SQUARES_PER_GROUP);
        Self {
            clusters_per_square: clusters_per_group.div_ceil(squares),
            clusters_per_group,
            clusters_in_last_group,
            rows: vec![GroupRow::default(); groups],
        }
    }

    /// Marks a run of clusters of one group as used; runs must not overlap.
    ///
    /// # Panics
    /// When there is no such group, or the run reaches past [`SQUARES_PER_GROUP`] squares.
    pub fn add_used(&mut self, group: usize, first: u32, clusters: u32) {
        let row = &mut self.rows[group];
        let mut at = first;
        let end = first + clusters;
        while at < end {
            let square = at / self.clusters_per_square;
            let stop = end.min((square + 1) * self.clusters_per_square);
            row.used[blockyard_disk::num::usize_from_u32(square)] += stop - at;
            at = stop;
        }
    }

    /// Number of groups, each of which is a row.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.rows.len()
    }

    /// Used clusters of one group.
    #[must_use]
    pub fn used_in(&self, group: usize) -> u64 {
        self.rows[group].used.iter().copied().map(u64::from).sum()
    }

    /// Used share (0..=1) of each square of one group. A short last group has fewer squares.
    #[must_use]
    pub fn shares(&self, group: usize) -> Vec<f64> {
        let squares = self.squares_of(group);
        let row = &self.rows[group];
        (0..squares)
            .map(|square| f64::from(row.used[square]) / f64::from(self.size_of(group, square)))
            .collect()
    }

    fn squares_of(&self, group: usize) -> usize {
        blockyard_disk::num::usize_from_u32(self.clusters_of(group).div_ceil(self.clusters_per_square))
    }

    fn clusters_of(&self, group: usize) -> u32 {
        if group + 1 == self.rows.len() { self.clusters_in_last_group } else { self.clusters_per_group }
    }

    fn size_of(&self, group: usize, square: usize) -> u32 {
        let first = blockyard_disk::num::u32_from_usize(square) * self.clusters_per_square;
        (self.clusters_of(group) - first).min(self.clusters_per_square)
    }

    /// Whether each square is used, in disk order.
    fn used_squares(&self) -> impl Iterator<Item = bool> + '_ {
        self.rows
            .iter()
            .enumerate()
            .flat_map(|(group, row)| row.used[..self.squares_of(group)].iter().map(|&used| used > 0))
    }

    /// The figures of this map.
    #[must_use]
    pub fn figures(&self) -> MapFigures {
        let mut previous = None;
        let mut boundaries = 0;
        for used in self.used_squares() {
            boundaries += u64::from(previous.is_some_and(|before| before != used));
            previous = Some(used);
        }
        let is_touched = |row: &GroupRow| row.used.iter().any(|&used| used > 0);
        let touched = self.rows.iter().filter(|row| is_touched(row)).count();
        let touched_groups = blockyard_disk::num::u64_from_usize(touched);
        MapFigures {
            boundaries,
            empty_groups: blockyard_disk::num::u64_from_usize(self.rows.len()) - touched_groups,
            touched_groups,
            used_clusters: self.rows.iter().flat_map(|row| row.used).map(u64::from).sum(),
        }
    }

    /// Jaccard index of the used squares of two maps with the same geometry: the number of squares
    /// used in both maps, divided by the number used in at least one; 1 when no square is used.
    ///
    /// # Panics
    /// When the maps have different numbers of groups.
    #[must_use]
    pub fn overlap(&self, other: &Self) -> f64 {
        assert_eq!(self.groups(), other.groups(), "maps of one image");
        let (mut both, mut either) = (0u32, 0u32);
        for (mine, theirs) in self.used_squares().zip(other.used_squares()) {
            both += u32::from(mine && theirs);
            either += u32::from(mine || theirs);
        }
        if either == 0 { 1.0 } else { f64::from(both) / f64::from(either) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> AllocationMap {
        AllocationMap::new(3, 32_768, 2048)
    }

    #[test]
    fn runs_are_split_at_squares() {
        let mut map = map();
        map.add_used(0, 1000, 100);
        let shares = map.shares(0);
        assert!((shares[0] - 24.0 / 1024.0).abs() < 1e-9);
        assert!((shares[1] - 76.0 / 1024.0).abs() < 1e-9);
        assert_eq!(map.shares(2).len(), 2, "a short last group has fewer squares");
    }

    #[test]
    fn figures_count_changes_groups_and_clusters() {
        let mut map = map();
        map.add_used(0, 0, 1024);
        map.add_used(0, 4096, 10);
        map.add_used(2, 1024, 1024);
        let figures = map.figures();
        // used, free, used, free to the first square of the last group, used: four changes.
        assert_eq!(figures.boundaries, 4);
        assert_eq!((figures.empty_groups, figures.touched_groups), (1, 2));
        assert_eq!(figures.used_clusters, 2058);
    }

    #[test]
    fn overlap_is_the_jaccard_index() {
        let (mut a, mut b) = (map(), map());
        assert!((a.overlap(&b) - 1.0).abs() < 1e-9);
        a.add_used(0, 0, 2048);
        b.add_used(0, 1024, 2048);
        assert!((a.overlap(&b) - 1.0 / 3.0).abs() < 1e-9);
    }
}
