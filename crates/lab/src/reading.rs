//! How long one reader takes to read the files of an image from modelled disks, if nothing is
//! cached at first: a measure of how files are laid out.
//!
//! The requests to the disk are computed from the layout. For each file or directory, the reader
//! reads the block of its inode, then its content in order. Before the blocks that a leaf of the
//! extent tree maps, it reads the leaf. Inner nodes and indirect blocks are left out. A request is
//! at most as long as the host's read-ahead, and the reader waits for it before it sends the next.
//! Metadata that was read stays in memory. Unwritten extents are read like written ones, so that
//! files that were only preallocated can be compared, too.

use std::collections::HashSet;
use std::sync::Arc;

use anyhow::Result;
use blockyard_device::BlockDevice;
use blockyard_device::modelled::{ModelParameters, Request, replay};
use blockyard_disk::inode::InodeMap;
use blockyard_disk::num::{count_as_f64, u64_from_u32, u64_from_usize};
use blockyard_disk::{BlockNr, Inode, InodeNr};
use blockyard_inspect::reader::Reader;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// The models: a hard disk and an SSD.
const HDD: &str = "desktop-7200-2009";
const SSD: &str = "sata-ssd-2018";
/// Most bytes that the host reads at once: its read-ahead.
const READ_AHEAD: u64 = 128 << 10;
/// Most files that are read alone.
const FILES_MAX: usize = 64;

/// How long it takes to read an image. All fields are `None` for a row without an image. If no file
/// of the image has content, all times are `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Mean milliseconds to read one file alone on the hard disk, over at most 64 files that the
    /// seed draws.
    pub read_file_hdd_ms: Option<f64>,
    /// Milliseconds to read one directory and all files in it, in the order of names, on the hard
    /// disk. It is the directory whose files have the most content.
    pub read_directory_hdd_ms: Option<f64>,
    /// Milliseconds to read the whole tree, directory by directory, on the hard disk.
    pub read_tree_hdd_ms: Option<f64>,
    /// As `read_file_hdd_ms`, on the SSD.
    pub read_file_ssd_ms: Option<f64>,
    /// As `read_directory_hdd_ms`, on the SSD.
    pub read_directory_ssd_ms: Option<f64>,
    /// As `read_tree_hdd_ms`, on the SSD.
    pub read_tree_ssd_ms: Option<f64>,
    /// In how many runs the blocks of all directories, and the leaves of their extent trees, lie on
    /// the disk.
    pub directory_runs: Option<u64>,
}

/// A run of bytes, and whether it is metadata.
#[derive(Clone, Copy)]
struct Place {
    offset: u64,
    length: u64,
    metadata: bool,
}

/// A directory: what is read to list it, and what is read for each of its files.
struct Directory {
    own: Vec<Place>,
    files: Vec<Vec<Place>>,
}

impl Directory {
    fn content(&self) -> u64 {
        let places = self.files.iter().flatten().filter(|place| !place.metadata);
        places.map(|place| place.length).sum()
    }
}

impl Reading {
    /// Computes the times for an image that was closed cleanly.
    ///
    /// # Errors
    /// Those of the device, and structures that fail a check.
    pub fn of(device: Arc<dyn BlockDevice>, seed: u64) -> Result<Self> {
        let bytes = device.size();
        let reader = Reader::open(device)?;
        let tree = directories(&reader)?;
        let mut files: Vec<&Vec<Place>> = tree.iter().flat_map(|directory| &directory.files).collect();
        let mut reading = Self { directory_runs: Some(runs_of_directories(&tree)), ..Self::default() };
        if files.is_empty() {
            return Ok(reading);
        }
        files.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        files.truncate(FILES_MAX);
        let count = count_as_f64(u64_from_usize(files.len()));
        // Each file is read alone, so blocks that were read for another file are not cached.
        let alone: Vec<Request> = files.iter().flat_map(|file| asked(file.iter())).collect();
        let fullest = tree.iter().rev().max_by_key(|directory| directory.content()).into_iter();
        let directory = asked(fullest.flat_map(|it| it.own.iter().chain(it.files.iter().flatten())));
        let whole = asked(tree.iter().flat_map(|it| it.own.iter().chain(it.files.iter().flatten())));
        let (hdd, ssd) = (disk(HDD, bytes)?, ModelParameters::named(SSD)?);
        let time = |model: &ModelParameters, requests: &[Request]| -> Result<f64> {
            Ok(replay(model.model(bytes)?, requests, 1).elapsed.as_secs_f64() * 1e3)
        };
        reading.read_file_hdd_ms = Some(time(&hdd, &alone)? / count);
        reading.read_directory_hdd_ms = Some(time(&hdd, &directory)?);
        reading.read_tree_hdd_ms = Some(time(&hdd, &whole)?);
        reading.read_file_ssd_ms = Some(time(&ssd, &alone)? / count);
        reading.read_directory_ssd_ms = Some(time(&ssd, &directory)?);
        reading.read_tree_ssd_ms = Some(time(&ssd, &whole)?);
        Ok(reading)
    }
}

/// The disk, enlarged to the size of the image if the image is larger.
fn disk(name: &str, bytes: u64) -> Result<ModelParameters> {
    let usual = ModelParameters::named(name)?;
    if usual.model(bytes).is_ok() {
        return Ok(usual);
    }
    Ok(ModelParameters::named_with(name, &[("bytes", bytes.to_string())])?)
}

/// Every directory, depth first from the root, with names in order. A file with several names is
/// read under the first.
fn directories(reader: &Reader) -> Result<Vec<Directory>> {
    let mut seen: HashSet<InodeNr> = HashSet::from([InodeNr::ROOT]);
    let mut found = Vec::new();
    let mut open = vec![reader.root()?];
    while let Some(directory) = open.pop() {
        let mut entries = reader.listed(&directory)?;
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        let mut listed = Directory { own: places(reader, &directory, Kind::Directory)?, files: Vec::new() };
        let mut below = Vec::new();
        for entry in entries {
            if entry.name == b"." || entry.name == b".." || !seen.insert(entry.inode) {
                continue;
            }
            let inode = reader.inode(entry.inode)?;
            if inode.is_directory() {
                below.push(inode);
            } else if blockyard_inspect::scan::has_content(&inode) {
                listed.files.push(places(reader, &inode, Kind::File)?);
            }
        }
        found.push(listed);
        open.extend(below.into_iter().rev());
    }
    Ok(found)
}

/// The kind of an inode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
}

/// What is read of an inode: its block, then its content. Each leaf of the extent tree comes before
/// the blocks that the leaf maps.
fn places(reader: &Reader, inode: &Inode, kind: Kind) -> Result<Vec<Place>> {
    let geometry = reader.superblock().geometry();
    let block = u64_from_usize(geometry.block_size());
    let (group, index) = geometry.locate_inode(inode.number());
    let table = reader.group(group)?.inode_table().raw() * block;
    let at = table + u64_from_u32(index) * u64::from(geometry.inode_size());
    let mut places = vec![Place { offset: at / block * block, length: block, metadata: true }];
    if inode.map() == InodeMap::Inline {
        return Ok(places);
    }
    let mut walk = reader.extents(inode);
    let mut node: Option<BlockNr> = None;
    while let Some(extent) = walk.next() {
        let extent = extent?;
        if walk.node() != node {
            node = walk.node();
            let map = node.map(|node| Place { offset: node.raw() * block, length: block, metadata: true });
            places.extend(map);
        }
        places.push(Place {
            offset: extent.physical.raw() * block,
            length: u64_from_u32(extent.length) * block,
            metadata: kind == Kind::Directory,
        });
    }
    Ok(places)
}

/// The requests to the disk for places in order. Metadata is read only once.
fn asked<'p>(places: impl Iterator<Item = &'p Place>) -> Vec<Request> {
    let mut in_memory = HashSet::new();
    let mut asked: Vec<Request> = Vec::new();
    for place in places {
        if place.metadata && !in_memory.insert(place.offset) {
            continue;
        }
        let (mut at, end) = (place.offset, place.offset + place.length);
        if let Some(last) = asked.last_mut().filter(|last| last.end() == at && last.length < READ_AHEAD) {
            let more = (READ_AHEAD - last.length).min(end - at);
            last.length += more;
            at += more;
        }
        while at < end {
            let length = READ_AHEAD.min(end - at);
            asked.push(Request::read(at, length));
            at += length;
        }
    }
    asked
}

/// In how many runs the blocks of directories, and the leaves of their extent trees, lie on the
/// disk. Blocks of the inode table do not count.
fn runs_of_directories(tree: &[Directory]) -> u64 {
    let blocks = tree.iter().flat_map(|directory| directory.own.iter().skip(1));
    let mut blocks: Vec<(u64, u64)> =
        blocks.map(|place| (place.offset, place.offset + place.length)).collect();
    blocks.sort_unstable();
    let first = u64::from(!blocks.is_empty());
    first + u64_from_usize(blocks.windows(2).filter(|pair| pair[0].1 < pair[1].0).count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::ImageSource;
    use crate::target::engine::context;
    use blockyard_disk::inode::FileType;
    use blockyard_engine::{FileSystem, NewInode, OpenOptions};

    const BLOCK: u64 = 4096;

    fn place(block: u64, blocks: u64, metadata: bool) -> Place {
        Place { offset: block * BLOCK, length: blocks * BLOCK, metadata }
    }

    #[test]
    fn the_host_reads_ahead_and_keeps_metadata() {
        let places = [
            place(1, 1, true),
            place(2, 40, false),
            place(1, 1, true),
            place(42, 2, false),
            place(90, 1, false),
        ];
        let requests: Vec<_> =
            asked(places.iter()).iter().map(|it| (it.offset / BLOCK, it.length / BLOCK)).collect();
        assert_eq!(requests, [(1, 32), (33, 11), (90, 1)]);
    }

    #[test]
    fn runs_are_counted_over_all_directories() {
        let own = |blocks: &[u64]| {
            let own = std::iter::once(place(0, 1, true)).chain(blocks.iter().map(|&at| place(at, 1, true)));
            Directory { own: own.collect(), files: Vec::new() }
        };
        assert_eq!(runs_of_directories(&[own(&[10, 12]), own(&[11, 30]), own(&[31])]), 2);
        assert_eq!(runs_of_directories(&[own(&[])]), 0);
    }

    /// The reading of an image with two files of 8 MiB, written in turns of `step` bytes. If `step`
    /// is the size of a file, each file is one run. If it is less, pieces of the two files
    /// alternate on the disk.
    fn image(step: u64) -> Reading {
        let device = ImageSource::memory(1 << 30, 1).device().unwrap();
        let policy = blockyard_alloc::Policy::parse("linux-6.18:normalise=exact").unwrap();
        let options = OpenOptions { policy, ..OpenOptions::default() };
        let fs = FileSystem::open(device.shared(), options, &context(0)).unwrap();
        let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
        let files =
            [&b"one"[..], b"two"].map(|name| fs.create(&context(0), InodeNr::ROOT, name, &new).unwrap());
        let size = 8 << 20;
        for at in (0..size).step_by(usize::try_from(step).unwrap()) {
            for file in files {
                let bytes = vec![1; usize::try_from(step).unwrap()];
                fs.write(&context(0), file, at, &bytes).unwrap();
                fs.fsync(&context(0), file).unwrap();
            }
        }
        fs.close(&context(0)).unwrap();
        Reading::of(device.shared(), 1).unwrap()
    }

    #[test]
    fn files_in_pieces_take_longer_where_the_arm_moves() {
        let (whole, pieces) = (image(8 << 20), image(64 << 10));
        let more = |of: fn(&Reading) -> Option<f64>| of(&pieces).unwrap() / of(&whole).unwrap();
        assert!(more(|it| it.read_file_hdd_ms) > 1.5, "{whole:?} {pieces:?}");
        assert!(more(|it| it.read_directory_hdd_ms) > 1.5, "{whole:?} {pieces:?}");
        assert!(more(|it| it.read_tree_hdd_ms) >= 1.5, "{whole:?} {pieces:?}");
        assert!(more(|it| it.read_tree_ssd_ms) < 1.5, "no arm: {whole:?} {pieces:?}");
        // 16 MiB at about 136 MB/s (the rate of the outer zone), and a few seeks.
        let ms = whole.read_tree_hdd_ms.unwrap();
        assert!((100.0..300.0).contains(&ms), "{ms}");
        assert_eq!(whole.directory_runs, Some(1), "the root and lost+found");
    }
}
