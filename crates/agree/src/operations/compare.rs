//! Compares two layouts: which shares of them are equal.
//!
//! A file that was on the image before the trace and is unchanged on both sides is left out: it
//! would only raise the shares. The bitmaps of all groups count.

use std::collections::BTreeSet;

use serde::Serialize;

use super::layout::{FileLayout, Layout, Piece};

/// A count of equal things among all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    /// Number that is equal on both sides.
    pub equal: u64,
    /// Number on the side that has more.
    pub of: u64,
}

impl Share {
    fn new(equal: usize, one: usize, other: usize) -> Self {
        let [equal, of] = [equal, one.max(other)].map(blockyard_disk::num::u64_from_usize);
        Self { equal, of }
    }

    /// Adds the numbers of another share.
    pub fn add(&mut self, other: Self) {
        self.equal += other.equal;
        self.of += other.of;
    }

    /// In per cent; 100 when there was nothing to compare.
    #[must_use]
    #[allow(clippy::cast_precision_loss, clippy::as_conversions, reason = "a percentage for people")]
    pub fn percent(self) -> f64 {
        if self.of == 0 { 100.0 } else { self.equal as f64 * 100.0 / self.of as f64 }
    }

    /// In per cent with three decimals, rounded down, so 100 means that all are equal. `-` when
    /// there was nothing to compare.
    #[must_use]
    pub fn text(self) -> String {
        let Some(thousandths) = (self.equal * 100_000).checked_div(self.of) else { return "-".to_owned() };
        format!("{}.{:03}", thousandths / 1000, thousandths % 1000)
    }
}

/// How far two images agree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Shares {
    /// Inode numbers, by path.
    pub inodes: Share,
    /// Extents of files and directories. Equal means the same logical and physical position, length
    /// and state.
    pub extents: Share,
    /// Bytes in these extents.
    pub bytes: Share,
    /// Those of `extents` that belong to directories.
    pub directory_extents: Share,
    /// Blocks of extent trees, indirect blocks, attribute blocks.
    pub tree_blocks: Share,
    /// Groups whose block bitmaps are equal.
    pub block_bitmaps: Share,
    /// Groups whose inode bitmaps are equal.
    pub inode_bitmaps: Share,
}

/// A file that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its path.
    pub path: String,
    /// What is different, in words.
    pub what: String,
}

/// Compares two images that started as `start`. Also returns the files that differ, sorted by inode
/// number in `theirs`; files that are missing there come first.
#[must_use]
pub fn compare(start: &Layout, theirs: &Layout, ours: &Layout) -> (Shares, Vec<Difference>) {
    let mut shares = Shares::default();
    let mut differences = Vec::new();
    let paths: BTreeSet<&String> = theirs.files.keys().chain(ours.files.keys()).collect();
    for path in paths {
        let (a, b) = (theirs.files.get(path), ours.files.get(path));
        if a == b && a == start.files.get(path) {
            continue;
        }
        let (a, b) = (a.cloned().unwrap_or_default(), b.cloned().unwrap_or_default());
        add_file(&mut shares, theirs.block_size, &a, &b);
        if a != b {
            differences.push((a.inode, Difference { path: path.clone(), what: describe(&a, &b) }));
        }
    }
    for (a, b) in theirs.groups.iter().zip(&ours.groups) {
        shares.block_bitmaps.add(Share::new(usize::from(a.blocks == b.blocks), 1, 1));
        shares.inode_bitmaps.add(Share::new(usize::from(a.inodes == b.inodes), 1, 1));
    }
    differences.sort_by_key(|(inode, _)| *inode);
    (shares, differences.into_iter().map(|(_, difference)| difference).collect())
}

fn add_file(shares: &mut Shares, block_size: u64, a: &FileLayout, b: &FileLayout) {
    shares.inodes.add(Share::new(usize::from(a.inode == b.inode), 1, 1));
    let (in_a, in_b): (BTreeSet<Piece>, BTreeSet<Piece>) =
        (a.extents.iter().copied().collect(), b.extents.iter().copied().collect());
    let common: BTreeSet<Piece> = in_a.intersection(&in_b).copied().collect();
    let extents = Share::new(common.len(), in_a.len(), in_b.len());
    shares.extents.add(extents);
    if a.is_directory || b.is_directory {
        shares.directory_extents.add(extents);
    }
    let bytes = |pieces: &BTreeSet<Piece>| {
        pieces.iter().map(|piece| u64::from(piece.length)).sum::<u64>() * block_size
    };
    shares.bytes.add(Share { equal: bytes(&common), of: bytes(&in_a).max(bytes(&in_b)) });
    let blocks =
        |file: &FileLayout| -> BTreeSet<u64> { file.tree.iter().copied().chain(file.attributes).collect() };
    let (in_a, in_b) = (blocks(a), blocks(b));
    shares.tree_blocks.add(Share::new(in_a.intersection(&in_b).count(), in_a.len(), in_b.len()));
}

/// Describes the first difference: the kernel's side, then ours.
fn describe(a: &FileLayout, b: &FileLayout) -> String {
    if a.inode != b.inode {
        return format!("inode {} / {}", a.inode, b.inode);
    }
    if a.extents != b.extents {
        let at = a.extents.iter().zip(&b.extents).take_while(|(a, b)| a == b).count();
        let show = |pieces: &[Piece]| {
            pieces.get(at).map_or("nothing".to_owned(), |piece| {
                let state = if piece.unwritten { " unwritten" } else { "" };
                format!("{}+{} at {}{state}", piece.logical, piece.length, piece.physical)
            })
        };
        return format!(
            "inode {}, extent {at} of {}/{}: {} / {}",
            a.inode,
            a.extents.len(),
            b.extents.len(),
            show(&a.extents),
            show(&b.extents)
        );
    }
    if a.tree != b.tree {
        return format!("inode {}, tree blocks {:?} / {:?}", a.inode, a.tree, b.tree);
    }
    format!("inode {}, attribute block {:?} / {:?}", a.inode, a.attributes, b.attributes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use super::super::layout::GroupLayout;

    type Pieces<'a> = &'a [(u32, u64, u32)];

    fn layout(files: &[(&str, u32, Pieces<'_>)], bits: u8) -> Layout {
        let piece = |&(logical, physical, length): &(u32, u64, u32)| Piece {
            logical,
            physical,
            length,
            unwritten: false,
        };
        let file = |&(path, inode, extents): &(&str, u32, Pieces<'_>)| {
            let extents = extents.iter().map(piece).collect();
            (path.to_owned(), FileLayout { inode, extents, ..FileLayout::default() })
        };
        let group = GroupLayout { blocks: Arc::from([bits]), inodes: Arc::from([0]) };
        Layout { block_size: 4096, files: files.iter().map(file).collect(), groups: vec![group] }
    }

    #[test]
    fn shares_count_what_is_equal_and_leave_out_what_did_not_change() {
        let old = ("/old", 11, &[(0, 90, 1)][..]);
        let start = layout(&[old], 0);
        let theirs = layout(&[old, ("/a", 12, &[(0, 100, 8), (8, 200, 2)]), ("/b", 13, &[(0, 300, 1)])], 1);
        let ours = layout(&[old, ("/a", 12, &[(0, 100, 8), (8, 201, 2)]), ("/b", 14, &[(0, 300, 1)])], 3);
        let (shares, differences) = compare(&start, &theirs, &ours);
        assert_eq!(shares.inodes, Share { equal: 1, of: 2 });
        assert_eq!(shares.extents, Share { equal: 2, of: 3 });
        assert_eq!(shares.bytes, Share { equal: 9 * 4096, of: 11 * 4096 });
        assert_eq!(shares.block_bitmaps, Share { equal: 0, of: 1 });
        assert_eq!(shares.inode_bitmaps, Share { equal: 1, of: 1 });
        let found: Vec<&str> = differences.iter().map(|difference| difference.what.as_str()).collect();
        assert_eq!(found, ["inode 12, extent 1 of 2/2: 8+2 at 200 / 8+2 at 201", "inode 13 / 14"]);
    }

    #[test]
    fn a_missing_file_costs_all_its_extents() {
        let theirs = layout(&[("/a", 12, &[(0, 100, 8), (8, 200, 2)])], 0);
        let (shares, _) = compare(&layout(&[], 0), &theirs, &layout(&[], 0));
        assert_eq!((shares.extents, shares.inodes), (Share { equal: 0, of: 2 }, Share { equal: 0, of: 1 }));
    }

    #[test]
    fn one_in_a_million_is_not_all() {
        let nearly = Share { equal: 999_999, of: 1_000_000 };
        assert_eq!((nearly.text(), Share::default().text()), ("99.999".to_owned(), "-".to_owned()));
    }

    #[test]
    fn shares_are_per_cent_cut_to_three_digits() {
        for (equal, of, text) in [(1, 3, "33.333"), (2, 3, "66.666"), (5, 5, "100.000"), (0, 7, "0.000")] {
            assert_eq!(Share { equal, of }.text(), text);
        }
        assert_eq!((Share { equal: 1, of: 4 }.percent(), Share::default().percent()), (25.0, 100.0));
    }

    /// The directory's extent, one of the file's tree blocks, and the inode bitmap differ. The
    /// attribute block counts as a tree block, too.
    #[test]
    fn directories_trees_and_bitmaps_are_counted_apart() {
        let piece = |physical| Piece { logical: 0, physical, length: 2, unwritten: false };
        let file = |is_directory, extents, tree: &[u64], attributes| FileLayout {
            inode: 12,
            is_directory,
            extents,
            tree: tree.to_vec(),
            attributes,
        };
        let of = |directory, file, inodes| Layout {
            block_size: 1024,
            files: [("/d".to_owned(), directory), ("/f".to_owned(), file)].into(),
            groups: vec![GroupLayout { blocks: Arc::from([7]), inodes: Arc::from([inodes]) }],
        };
        let theirs =
            of(file(true, vec![piece(10)], &[], None), file(false, vec![piece(20)], &[70, 71], Some(80)), 1);
        let ours =
            of(file(true, vec![piece(11)], &[], None), file(false, vec![piece(20)], &[70, 72], Some(80)), 3);
        let (shares, _) = compare(&Layout::default(), &theirs, &ours);
        let share = |equal, of| Share { equal, of };
        let expected = Shares {
            inodes: share(2, 2),
            extents: share(1, 2),
            bytes: share(2048, 4096),
            directory_extents: share(0, 1),
            tree_blocks: share(2, 3),
            block_bitmaps: share(1, 1),
            inode_bitmaps: share(0, 1),
        };
        assert_eq!(shares, expected);
    }
}
