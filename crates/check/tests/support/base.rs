//! A valid image in memory: its files, and which bytes each depends on.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::num::{u64_from_u32, u64_from_usize};
use blockyard_disk::{Inode, InodeNr};
use blockyard_inspect::reader::Reader;
use blockyard_testkit::images::{Profile, make_filled};
use blockyard_testkit::mutate::Inventory;

use super::draw::Drawn;
use super::kept::{Files, files_on};

/// Ranges of bytes that something depends on, in no order.
type Ranges = Vec<Range<u64>>;

/// An image before it is damaged.
pub(crate) struct Base {
    pub(crate) profile: &'static Profile,
    pub(crate) device: MemoryDevice,
    pub(crate) inventory: Inventory,
    pub(crate) files: Files,
    /// By inode: its own bytes, its map and its blocks.
    bytes_of: BTreeMap<u32, Ranges>,
}

impl Base {
    /// Makes the image in a folder, and reads it.
    pub(crate) fn make(profile: &'static Profile, folder: &Path) -> Self {
        let image = make_filled(profile, folder);
        let device = MemoryDevice::load(&image).expect("the image was just made");
        let base = Self::of(profile, device, &image);
        std::fs::remove_file(image).expect("the image was just made");
        base
    }

    /// A base whose device is given apart from a valid image. The image says which files the device
    /// should hold.
    pub(crate) fn of(profile: &'static Profile, device: MemoryDevice, image: &Path) -> Self {
        let inventory = Inventory::read(image);
        let whole = MemoryDevice::load(image).expect("the image was just made");
        let shared: Arc<dyn BlockDevice> = Arc::new(whole);
        let files = files_on(Arc::clone(&shared));
        let reader = Reader::open(shared).expect("the image is sound");
        let mut bytes_of = BTreeMap::new();
        let numbers = files.values().map(|file| file.inode).chain([InodeNr::ROOT.raw()]);
        for number in numbers {
            bytes_of.entry(number).or_insert_with(|| bytes_of_inode(&reader, &inventory, number));
        }
        Self { profile, device, inventory, files, bytes_of }
    }

    /// Makes every file depend on these bytes.
    pub(crate) fn need_everywhere(&mut self, bytes: &[Range<u64>]) {
        self.bytes_of.values_mut().for_each(|ranges| ranges.extend_from_slice(bytes));
    }

    /// The files that a damage does not touch: neither their inodes, maps and blocks, nor those of
    /// the directories above.
    pub(crate) fn untouched(&self, damage: &Drawn) -> Files {
        let edits: Ranges =
            damage.edits.iter().map(|(at, bytes)| *at..at + u64_from_usize(bytes.len())).collect();
        let is_hit = |number: u32| {
            let ranges = self.bytes_of.get(&number);
            ranges.is_none_or(|ranges| {
                ranges
                    .iter()
                    .any(|range| edits.iter().any(|edit| edit.start < range.end && range.start < edit.end))
            })
        };
        let hit: BTreeMap<u32, bool> =
            self.bytes_of.keys().map(|number| (*number, is_hit(*number))).collect();
        let is_whole = |path: &[u8], inode: u32| {
            let above = path.iter().enumerate().filter(|(at, byte)| **byte == b'/' && *at > 0);
            let above = above.filter_map(|(at, _)| self.files.get(&path[..at])).map(|file| file.inode);
            above.chain([InodeNr::ROOT.raw(), inode]).all(|number| !hit[&number])
        };
        let whole = self.files.iter().filter(|(path, file)| is_whole(path, file.inode));
        whole.map(|(path, file)| (path.clone(), file.clone())).collect()
    }
}

fn bytes_of_inode(reader: &Reader, inventory: &Inventory, number: u32) -> Ranges {
    let own = inventory.structures.iter().filter(|one| one.owner.inode == Some(number));
    let mut ranges: Ranges =
        own.map(|one| u64_from_usize(one.at)..u64_from_usize(one.at + one.length)).collect();
    let inode: Inode = reader.inode(InodeNr::new(number)).expect("the image is sound");
    let bits = reader.superblock().geometry().block_bits();
    for extent in reader.extents(&inode) {
        let extent = extent.expect("the image is sound");
        let first = extent.physical.raw();
        ranges.push(first << bits..(first + u64_from_u32(extent.length)) << bits);
    }
    ranges
}
