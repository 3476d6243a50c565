//! The tree to copy: either a synthetic one with the files and bytes of the published experiment
//! (see `copy.rs`), times a scale, or one with the directories and file sizes of a real tree.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use blockyard_disk::num::{count_as_f64, usize_from_u64};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::workload::GIB;
use crate::workload::scale::{normal, scaled, whole};

/// Files of the published tree.
const FILES: u64 = 182_515;
/// Bytes of the published tree.
const BYTES: u64 = 27 * GIB;
/// Files in each directory.
const FILES_PER_DIRECTORY: u64 = 16;
/// Spread of the sizes: the standard deviation of their logarithm. The median is about a thirteenth
/// of the mean, as in home directories and source trees.
const SPREAD: f64 = 2.26;

/// Directories and files by number. A parent comes before its children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The parent of each directory; `None` is the root of the image.
    pub directories: Vec<Option<usize>>,
    /// Files in the order of the tree. The manner of copying may choose another order.
    pub files: Vec<TreeFile>,
}

/// One file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeFile {
    /// Its directory; `None` is the root of the image.
    pub directory: Option<usize>,
    /// Its size.
    pub bytes: u64,
}

impl Tree {
    /// A tree of the published shape with `scale` times the files (at least one); sizes are
    /// log-normal and have the published mean.
    #[must_use]
    pub fn synthetic(scale: f64, seed: u64) -> Self {
        let files = scaled(FILES, scale).max(1);
        Self::made_up(files, scaled(BYTES, scale), files.div_ceil(FILES_PER_DIRECTORY), seed)
    }

    /// A tree of `files` files with `bytes` bytes in all, spread over `directories` directories (at
    /// least one). Sizes are log-normal. Files of one directory are adjacent.
    #[must_use]
    fn made_up(files: u64, bytes: u64, directories: u64, seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let weights: Vec<f64> = (0..files).map(|_| (SPREAD * normal(&mut random)).exp()).collect();
        let factor = count_as_f64(bytes) / weights.iter().sum::<f64>();
        let count = usize_from_u64(directories.max(1));
        let directories: Vec<Option<usize>> = (0..count)
            .map(|index| (index > 0 && random.random_bool(0.8)).then(|| random.random_range(0..index)))
            .collect();
        let per_directory = weights.len().div_ceil(count).max(1);
        let files = weights.iter().enumerate().map(|(index, weight)| TreeFile {
            directory: Some(index / per_directory),
            bytes: whole(weight * factor),
        });
        Self { files: files.collect(), directories }
    }

    /// The shape of a directory on this machine: its directories and the sizes of its regular
    /// files, sorted by name. Contents are not read.
    ///
    /// # Errors
    /// When it cannot be read, or holds no regular file.
    pub fn of_directory(root: &Path) -> Result<Self> {
        let mut tree = Self { directories: Vec::new(), files: Vec::new() };
        let mut numbers: BTreeMap<PathBuf, usize> = BTreeMap::new();
        for entry in walkdir::WalkDir::new(root).min_depth(1).sort_by_file_name() {
            // walkdir's message already contains its source, so the source is dropped.
            let entry = entry.map_err(|error| anyhow!("--tree {}: {error}", root.display()))?;
            let parent = entry.path().parent().and_then(|parent| numbers.get(parent)).copied();
            if entry.file_type().is_dir() {
                numbers.insert(entry.path().to_owned(), tree.directories.len());
                tree.directories.push(parent);
            } else if entry.file_type().is_file() {
                let bytes = entry.metadata().with_context(|| format!("--tree {}", root.display()))?.len();
                tree.files.push(TreeFile { directory: parent, bytes });
            }
        }
        ensure!(!tree.files.is_empty(), "--tree {}: no regular file in it", root.display());
        Ok(tree)
    }

    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_made_up_tree_has_the_published_size() {
        let tree = Tree::synthetic(0.1, 1);
        assert_eq!(tree.files.len(), 18_251);
        let share = count_as_f64(tree.bytes()) / count_as_f64(BYTES);
        assert!((share - 0.1).abs() < 0.001, "{share}");
        let mut sizes: Vec<u64> = tree.files.iter().map(|file| file.bytes).collect();
        sizes.sort_unstable();
        assert!((4 << 10..32 << 10).contains(&sizes[sizes.len() / 2]), "{}", sizes[sizes.len() / 2]);
        assert!(tree.directories.iter().enumerate().all(|(index, parent)| parent.is_none_or(|p| p < index)));
        assert_ne!(tree, Tree::synthetic(0.1, 2));
    }

    #[test]
    fn a_directory_gives_its_shape() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("b/c")).unwrap();
        std::fs::write(root.path().join("a"), [0; 10]).unwrap();
        std::fs::write(root.path().join("b/c/d"), [0; 5]).unwrap();
        let tree = Tree::of_directory(root.path()).unwrap();
        assert_eq!(tree.directories, [None, Some(0)]);
        let files: Vec<_> = tree.files.iter().map(|file| (file.directory, file.bytes)).collect();
        assert_eq!(files, [(None, 10), (Some(1), 5)]);
        let empty = tempfile::tempdir().unwrap();
        assert!(Tree::of_directory(empty.path()).unwrap_err().to_string().contains("no regular file"));
        let missing = format!("{:#}", Tree::of_directory(Path::new("/nonexistent")).unwrap_err());
        assert_eq!(missing.matches("No such file").count(), 1, "{missing}");
    }
}
