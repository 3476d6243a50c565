//! The goals of placement, measured on an image of a whole tree. The image has hardly more extents
//! than necessary, and each directory is in one piece. A reader that walks the tree in order never
//! reads backwards, neither among the content nor among the directories. The tree is generated,
//! unless the environment variable `TREE` names another one, such as /usr.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blockyard_build::{Builder, Tree};
use blockyard_device::FileDevice;
use blockyard_disk::num::u64_from_u32;
use blockyard_disk::{Inode, InodeNr};
use blockyard_engine::mkfs::Options;
use blockyard_inspect::reader::Reader;

/// The most blocks that one extent can have.
const EXTENT_MAX: u64 = 32_768;

/// What is counted in an image.
#[derive(Debug, Default)]
struct Counts {
    files: u64,
    extents: u64,
    /// The fewest extents that could hold the data.
    least: u64,
    /// Directories whose blocks are not consecutive.
    parted_directories: u64,
    /// Reads that begin before the end of the previous read of the same kind: of content, or of a
    /// directory.
    backwards: u64,
}

struct Walk<'a> {
    reader: &'a Reader,
    seen: HashSet<InodeNr>,
    counts: Counts,
    /// The block after the last read of content, and after the last read of a directory.
    ends: [u64; 2],
}

impl Walk<'_> {
    fn runs(&self, inode: &Inode) -> Vec<(u64, Range<u64>)> {
        let extents = self.reader.extents(inode).map(Result::unwrap);
        extents
            .map(|extent| {
                let start = extent.physical.raw();
                (u64::from(extent.logical.raw()), start..start + u64_from_u32(extent.length))
            })
            .collect()
    }

    fn read(&mut self, inode: &Inode) {
        let runs = self.runs(inode);
        let end = &mut self.ends[usize::from(inode.is_directory())];
        for (_, run) in &runs {
            self.counts.backwards += u64::from(run.start < *end);
            *end = run.end;
        }
        if inode.is_directory() {
            let parted = runs.windows(2).any(|pair| pair[0].1.end != pair[1].1.start);
            self.counts.parted_directories += u64::from(parted);
            return;
        }
        self.counts.files += 1;
        self.counts.extents += u64::try_from(runs.len()).unwrap();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (logical, run) in runs {
            let next = logical..logical + (run.end - run.start);
            match ranges.last_mut() {
                Some(last) if last.end == next.start => last.end = next.end,
                _ => ranges.push(next),
            }
        }
        self.counts.least +=
            ranges.iter().map(|range| (range.end - range.start).div_ceil(EXTENT_MAX)).sum::<u64>();
    }

    /// Beginning with the root, reads a directory, then its files by name, then each directory in
    /// it with everything below.
    fn all(&mut self) {
        let mut waiting = vec![InodeNr::ROOT];
        while let Some(number) = waiting.pop() {
            let directory = self.reader.inode(number).unwrap();
            self.read(&directory);
            let mut names: Vec<(Vec<u8>, InodeNr)> = self
                .reader
                .entries(&directory)
                .unwrap()
                .map(|entry| entry.map(|entry| (entry.name.to_vec(), entry.inode)).unwrap())
                .filter(|(name, _)| {
                    name != b"." && name != b".." && (number != InodeNr::ROOT || name != b"lost+found")
                })
                .collect();
            names.sort();
            let mut below = Vec::new();
            for (_, number) in names {
                let inode = self.reader.inode(number).unwrap();
                if inode.is_directory() {
                    below.push(number);
                } else if self.seen.insert(number) {
                    self.read(&inode);
                }
            }
            waiting.extend(below.into_iter().rev());
        }
    }
}

fn generated(folder: &Path) -> PathBuf {
    let top = folder.join("tree");
    for number in 0..3000usize {
        let place = top.join(format!("{}/{}", number / 500, number / 20));
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join(format!("file{number}")), vec![7; number * number * 31 % 60_000]).unwrap();
    }
    fs::write(top.join("large"), vec![1; 140 << 20]).unwrap();
    top
}

#[test]
fn a_whole_tree_is_read_forward() {
    let folder =
        tempfile::tempdir_in(if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" }).unwrap();
    let source = std::env::var_os("TREE").map_or_else(|| generated(folder.path()), PathBuf::from);
    let plain = Builder::default().options;
    for (name, options) in
        [("4k", plain.clone()), ("1k", plain.block_size(1024)), ("ext2", Options::ext2().block_size(4096))]
    {
        let plan = Builder { options, threads: 2, ..Builder::default() }
            .plan(Tree::read(&source, 2).unwrap())
            .unwrap();
        let path = folder.path().join("image");
        let device = FileDevice::create(&path, plan.bytes()).unwrap();
        plan.write(&device).unwrap();
        let reader = Reader::open(Arc::new(device)).unwrap();
        let mut walk =
            Walk { reader: &reader, seen: HashSet::new(), counts: Counts::default(), ends: [0; 2] };
        walk.all();
        let counts = walk.counts;
        println!("{name}: {counts:?}");
        assert!(counts.extents * 100 <= counts.least * 102, "{name}: {counts:?}");
        assert_eq!((counts.parted_directories, counts.backwards), (0, 0), "{name}: {counts:?}");
        fs::remove_file(&path).unwrap();
    }
}
