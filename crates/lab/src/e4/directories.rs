//! The positions of directory blocks: how many runs they form, and whether the runs are in the
//! first groups of flex groups.

use std::sync::Arc;

use anyhow::Result;
use blockyard_device::BlockDevice;
use blockyard_disk::BlockNr;
use blockyard_disk::num::u64_from_u32;
use blockyard_inspect::reader::Reader;
use blockyard_inspect::scan::records;
use serde::{Deserialize, Serialize};

use super::PassRow;
use crate::figures::Table;

/// Blocks of all directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryBlocks {
    /// Number of blocks.
    pub blocks: u64,
    /// Runs that they form, across all directories.
    pub runs: u64,
    /// Runs that are not entirely in the first group of a flex group.
    pub runs_elsewhere: u64,
}

impl DirectoryBlocks {
    /// Counts the directory blocks of an image.
    ///
    /// # Errors
    /// Those of the image.
    pub(super) fn of(device: Arc<dyn BlockDevice>) -> Result<Self> {
        let reader = Reader::open(device)?;
        let geometry = *reader.superblock().geometry();
        let mut pieces: Vec<(u64, u64)> = Vec::new();
        let mut open = vec![reader.root()?];
        while let Some(directory) = open.pop() {
            let placed = records(&reader, &directory)?;
            pieces.extend(placed.iter().filter(|at| at.length > 0).map(|at| (at.physical, at.length)));
            for entry in reader.listed(&directory)? {
                if entry.name == b"." || entry.name == b".." {
                    continue;
                }
                let inode = reader.inode(entry.inode)?;
                if inode.is_directory() {
                    open.push(inode);
                }
            }
        }
        let runs = joined(pieces);
        let flex = u64::from(geometry.flex_size()).max(1);
        let group = |block: u64| u64_from_u32(geometry.group_of(BlockNr::new(block)).raw());
        let is_first = |&&(first, count): &&(u64, u64)| {
            let groups = group(first)..=group(first + count - 1);
            groups.start() == groups.end() && groups.start().is_multiple_of(flex)
        };
        let first = runs.iter().filter(is_first).count();
        let counted = blockyard_disk::num::u64_from_usize;
        Ok(Self {
            blocks: runs.iter().map(|(_, count)| count).sum(),
            runs: counted(runs.len()),
            runs_elsewhere: counted(runs.len() - first),
        })
    }
}

/// Pieces in disk order, with adjacent ones joined.
fn joined(mut pieces: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    pieces.sort_unstable();
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (first, count) in pieces {
        match runs.last_mut() {
            Some((start, length)) if *start + *length == first => *length += count,
            _ => runs.push((first, count)),
        }
    }
    runs
}

/// The counts of every file system; `None` if no row has any.
#[must_use]
pub fn table(rows: &[PassRow]) -> Option<Table> {
    let first = rows.first()?;
    if rows.iter().all(|row| row.directories == DirectoryBlocks::default()) {
        return None;
    }
    let heads = [
        "file system",
        "policy",
        "blocks of directories",
        "runs",
        "runs outside first groups of flex groups",
    ];
    let title = format!("E4, where directories lie; at scale {}", first.scale);
    let mut table = Table::new(title, heads).with_keys(2);
    for row in rows {
        let DirectoryBlocks { blocks, runs, runs_elsewhere } = row.directories;
        let counts = [blocks, runs, runs_elsewhere].map(|count| count.to_string());
        table.push([row.kind.clone(), row.policy.clone()].into_iter().chain(counts));
    }
    table.note("Directory blocks that follow each other on the disk are one run, whichever directories they belong to. ext3 has no flex groups: every group is a first one.");
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::ImageSource;
    use crate::target::engine::{context, unjournaled};
    use blockyard_disk::InodeNr;
    use blockyard_disk::inode::FileType;
    use blockyard_engine::{FileSystem, NewInode};

    #[test]
    fn pieces_that_touch_are_one_run() {
        assert_eq!(joined(vec![(7, 2), (1, 3), (9, 1), (4, 1)]), [(1, 4), (7, 3)]);
    }

    /// The root, lost+found and three more directories: each has one block, but lost+found has
    /// four.
    #[test]
    fn blocks_of_directories_are_counted() {
        let device = ImageSource::memory(1 << 30, 1).device().unwrap().shared();
        let policy = blockyard_alloc::Policy::default();
        let fs = FileSystem::open(Arc::clone(&device), unjournaled(policy, 1), &context(0)).unwrap();
        let new = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
        let made = fs.create(&context(0), InodeNr::ROOT, b"a", &new).unwrap();
        fs.create(&context(0), made, b"b", &new).unwrap();
        fs.create(&context(0), made, b"c", &new).unwrap();
        fs.close(&context(0)).unwrap();
        let found = DirectoryBlocks::of(device).unwrap();
        assert_eq!(found.blocks, 1 + 4 + 3);
        assert!(found.runs >= 2 && found.runs <= 5 && found.runs_elsewhere < found.runs, "{found:?}");
    }
}
