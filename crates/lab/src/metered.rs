//! Counts the metadata that an operation reads when memory is short: a device that models a small
//! page cache and records the reads that miss it.
//!
//! A page is 4 KiB, or a block if that is larger. The most recently used pages count as cached, up
//! to a given number. A read of a page that is not cached is recorded with the kind of the page.
//! Writes of more than a page are taken for content and are not cached.
//!
//! The kind of a page follows from its position, if it holds descriptors, bitmaps or inode tables.
//! An extent block is recognised by its first bytes, and an indirect block because it holds nothing
//! but block numbers. Everything else counts as a directory, even file content. So a caller that
//! knows where the content of files is must leave out the reads there.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use blockyard_device::{BlockDevice, DeviceId};
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_inspect::reader::Reader;
use serde::{Deserialize, Serialize};

/// The smallest page, in bytes.
const PAGE: u64 = 4096;
/// The first bytes of an extent block.
const EXTENT_MAGIC: [u8; 2] = [0x0A, 0xF3];

/// The kind of a metadata block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    /// Block bitmaps and inode bitmaps.
    Bitmap,
    /// The superblock and group descriptors.
    Descriptor,
    /// Inode tables.
    InodeTable,
    /// Extent blocks and indirect blocks.
    Map,
    /// Everything else, mostly directories.
    Directory,
}

/// Metadata reads by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetadataReads {
    /// Block bitmaps and inode bitmaps.
    pub bitmap: u64,
    /// The superblock and group descriptors.
    pub descriptor: u64,
    /// Inode tables.
    pub inode_table: u64,
    /// Extent blocks and indirect blocks.
    pub map: u64,
    /// Everything else, mostly directories.
    pub directory: u64,
}

impl MetadataReads {
    /// Reads of all kinds.
    pub(crate) fn all(&self) -> u64 {
        self.bitmap + self.descriptor + self.inode_table + self.map + self.directory
    }

    pub(crate) fn add(&mut self, class: Class) {
        *match class {
            Class::Bitmap => &mut self.bitmap,
            Class::Descriptor => &mut self.descriptor,
            Class::InodeTable => &mut self.inode_table,
            Class::Map => &mut self.map,
            Class::Directory => &mut self.directory,
        } += 1;
    }
}

/// A page that had to be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fetch {
    pub(crate) class: Class,
    /// The position on the device of the first byte that the caller read from the page.
    pub(crate) offset: u64,
}

/// A device that models a cache of a bounded number of pages.
pub(crate) struct Metered<D> {
    below: D,
    state: Mutex<State>,
}

struct State {
    /// Bytes of a page.
    page: u64,
    places: Places,
    memory: Memory,
    fetched: Vec<Fetch>,
}

impl Default for State {
    fn default() -> Self {
        let (places, memory) = (Places::default(), Memory::default());
        Self { page: PAGE, places, memory, fetched: Vec::new() }
    }
}

/// Positions of metadata with a fixed place, in pages.
#[derive(Default)]
struct Places {
    bitmaps: HashSet<u64>,
    descriptors: Range<u64>,
    /// Ends of inode tables by their starts.
    tables: BTreeMap<u64, u64>,
    /// Bytes of a block, and number of blocks.
    block: usize,
    blocks: u64,
}

/// An LRU cache of page numbers: `used` maps a page to the time of its last use, `order` maps
/// times back to pages.
#[derive(Default)]
struct Memory {
    most: usize,
    clock: u64,
    used: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
}

impl<D: BlockDevice> Metered<D> {
    /// A device over `below`. It caches nothing until [`Self::remember`] sets a number of pages.
    pub(crate) fn new(below: D) -> Self {
        Self { below, state: Mutex::default() }
    }

    /// The device below.
    pub(crate) fn below(&self) -> &D {
        &self.below
    }

    /// Empties the cache, and from now on caches this many pages, but at least one.
    pub(crate) fn remember(&self, pages: usize) {
        let mut state = self.state();
        state.memory = Memory { most: pages.max(1), ..Memory::default() };
    }

    /// Drops every cached page, as when the memory is needed for something else.
    pub(crate) fn forget(&self) {
        let mut state = self.state();
        state.memory = Memory { most: state.memory.most, ..Memory::default() };
    }

    /// Bytes of a page.
    pub(crate) fn page(&self) -> u64 {
        self.state().page
    }

    /// The pages fetched since the last call.
    pub(crate) fn take(&self) -> Vec<Fetch> {
        std::mem::take(&mut self.state().fetched)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: BlockDevice + 'static> Metered<D> {
    /// Learns from the image where its metadata is and how large its blocks are. Empties the cache
    /// and the list of fetched pages.
    ///
    /// # Errors
    /// Those of reading the image.
    pub(crate) fn learn(self: &Arc<Self>) -> Result<()> {
        let shared: Arc<dyn BlockDevice> = Arc::<Self>::clone(self);
        let reader = Reader::open(shared)?;
        let superblock = reader.superblock();
        let geometry = superblock.geometry();
        let block = u64_from_usize(geometry.block_size());
        let page_bytes = block.max(PAGE);
        let page = |number: u64| number * block / page_bytes;
        let blocks = geometry.blocks_count().raw();
        let mut places = Places { block: geometry.block_size(), blocks, ..Places::default() };
        let table_pages = (geometry.inode_table_blocks() * block).div_ceil(page_bytes);
        let mut last = 0;
        for group in geometry.all_groups() {
            let found = reader.group(group)?;
            places.bitmaps.extend([page(found.block_bitmap().raw()), page(found.inode_bitmap().raw())]);
            let table = page(found.inode_table().raw());
            places.tables.insert(table, table + table_pages);
            last = last.max(superblock.descriptor_place(group).0.raw());
        }
        places.descriptors = 0..page(last) + 1;
        let mut state = self.state();
        let memory = Memory { most: state.memory.most, ..Memory::default() };
        *state = State { page: page_bytes, places, memory, fetched: Vec::new() };
        Ok(())
    }
}

impl State {
    /// Caches what was written, unless it is content.
    fn note_written(&mut self, offset: u64, data: &[u8]) {
        if u64_from_usize(data.len()) <= self.page {
            self.memory.uses(offset / self.page);
        }
    }
}

impl Places {
    fn class(&self, page: u64, content: &[u8]) -> Class {
        if self.bitmaps.contains(&page) {
            return Class::Bitmap;
        }
        if self.tables.range(..=page).next_back().is_some_and(|(_, end)| page < *end) {
            return Class::InodeTable;
        }
        if self.descriptors.contains(&page) {
            return Class::Descriptor;
        }
        let content = &content[..self.block.min(content.len())];
        if content.starts_with(&EXTENT_MAGIC) || self.is_block_map(content) {
            return Class::Map;
        }
        Class::Directory
    }

    /// Whether a block holds nothing but block numbers, and not only zeroes. Directory entries
    /// without file types can look like block numbers. So a block that directory entries fill
    /// exactly is not taken for an indirect block.
    fn is_block_map(&self, content: &[u8]) -> bool {
        let mut numbers = content.chunks_exact(4).map(|bytes| read_u32(bytes, 0));
        let is_whole = self.block > 0 && content.len() == self.block;
        is_whole
            && content.iter().any(|byte| *byte != 0)
            && numbers.all(|number| u64::from(number) < self.blocks)
            && !are_entries(content)
    }
}

/// Whether a block is a chain of directory entries: the length of each entry leads to the next, and
/// the last one ends with the block.
fn are_entries(content: &[u8]) -> bool {
    let mut at = 0;
    while at + 8 <= content.len() {
        let length = usize_from_u64(u64::from(read_u32(content, at + 4) & 0xFFFF));
        // Both values stand for one entry that fills a block of 64 KiB.
        let length = if matches!(length, 0 | 0xFFFF) { 1 << 16 } else { length };
        if length < 8 || length % 4 != 0 {
            return false;
        }
        at += length;
    }
    at == content.len()
}

/// The number at `at`; 0 beyond the end.
fn read_u32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |four| u32::from_le_bytes(*four))
}

impl Memory {
    /// Uses a page; returns whether it was cached.
    fn uses(&mut self, page: u64) -> bool {
        self.clock += 1;
        let before = self.used.insert(page, self.clock);
        if let Some(before) = before {
            self.order.remove(&before);
        }
        self.order.insert(self.clock, page);
        while self.order.len() > self.most {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            self.used.remove(&oldest);
        }
        before.is_some()
    }
}

impl<D: BlockDevice> BlockDevice for Metered<D> {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> blockyard_device::Result<()> {
        self.below.read_at(offset, buf)?;
        let mut state = self.state();
        let State { page: bytes, places, memory, fetched } = &mut *state;
        let end = offset + u64_from_usize(buf.len());
        for page in offset / *bytes..end.div_ceil(*bytes) {
            if !memory.uses(page) {
                let first = (page * *bytes).max(offset);
                let class = places.class(page, &buf[usize_from_u64(first - offset)..]);
                fetched.push(Fetch { class, offset: first });
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> blockyard_device::Result<()> {
        self.below.write_at(offset, data)?;
        self.state().note_written(offset, data);
        Ok(())
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]]) -> blockyard_device::Result<()> {
        self.below.write_vectored_at(offset, parts)?;
        let mut state = self.state();
        let mut at = offset;
        for part in parts {
            state.note_written(at, part);
            at += u64_from_usize(part.len());
        }
        Ok(())
    }

    fn write_durable_at(&self, offset: u64, data: &[u8]) -> blockyard_device::Result<()> {
        self.below.write_durable_at(offset, data)?;
        self.state().note_written(offset, data);
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> blockyard_device::Result<()> {
        self.below.write_zeroes(offset, length)
    }

    fn discard(&self, offset: u64, length: u64) -> blockyard_device::Result<()> {
        self.below.discard(offset, length)
    }

    fn flush(&self) -> blockyard_device::Result<()> {
        self.below.flush()
    }

    fn identity(&self) -> DeviceId {
        self.below.identity()
    }
}

#[cfg(test)]
mod tests {
    use blockyard_device::MemoryDevice;
    use blockyard_engine::mkfs;

    use super::*;
    use crate::run::default_mkfs;
    use crate::workload::MIB;

    /// Two of three pages are cached: the least recently used one is fetched again.
    #[test]
    fn the_page_that_was_used_longest_ago_goes() {
        let device = Metered::new(MemoryDevice::new(MIB));
        device.remember(2);
        let mut page = [0; 4096];
        for number in [0, 1, 0, 2, 0, 1] {
            device.read_at(number * PAGE, &mut page).unwrap();
        }
        let fetched: Vec<u64> = device.take().iter().map(|fetch| fetch.offset / PAGE).collect();
        assert_eq!(fetched, [0, 1, 2, 1]);
        // A written page is cached; a longer write is content and is not.
        device.write_at(3 * PAGE, &page).unwrap();
        device.write_at(4 * PAGE, &[0; 8192]).unwrap();
        for number in [3, 4] {
            device.read_at(number * PAGE, &mut page).unwrap();
        }
        assert_eq!(device.take().len(), 1);
        device.forget();
        device.read_at(3 * PAGE, &mut page).unwrap();
        assert_eq!(device.take().len(), 1);
    }

    #[test]
    fn reads_are_told_by_what_lies_there() {
        let device = Arc::new(Metered::new(MemoryDevice::new(256 * MIB)));
        mkfs::format(&*device, &default_mkfs(1)).unwrap();
        device.learn().unwrap();
        device.remember(1);
        let shared: Arc<dyn BlockDevice> = Arc::<Metered<MemoryDevice>>::clone(&device);
        let reader = Reader::open(shared).unwrap();
        let group = reader.group(blockyard_disk::GroupNr::ZERO).unwrap();
        device.take();
        let mut page = [0; 4096];
        let mut classes = Vec::new();
        for block in [0, group.block_bitmap().raw(), group.inode_bitmap().raw(), group.inode_table().raw()] {
            device.read_at(block * 4096, &mut page).unwrap();
            classes.extend(device.take().iter().map(|fetch| fetch.class));
        }
        assert_eq!(classes, [Class::Descriptor, Class::Bitmap, Class::Bitmap, Class::InodeTable]);
        device.write_at(200 * MIB, &EXTENT_MAGIC).unwrap();
        device.forget();
        device.read_at(200 * MIB, &mut page).unwrap();
        device.read_at(210 * MIB, &mut page).unwrap();
        let classes: Vec<Class> = device.take().iter().map(|fetch| fetch.class).collect();
        assert_eq!(classes, [Class::Map, Class::Directory]);
    }

    /// A regression: indirect blocks were counted as directories.
    #[test]
    fn blocks_of_a_block_map_are_told_from_names() {
        let device = Arc::new(Metered::new(MemoryDevice::new(256 * MIB)));
        mkfs::format(&*device, &mkfs::Options::ext3().block_size(4096).identity(1, 0)).unwrap();
        device.learn().unwrap();
        device.remember(1);
        let mut map = [0; 4096];
        for (at, number) in (40_000_u32..40_300).enumerate() {
            map[at * 4..at * 4 + 4].copy_from_slice(&number.to_le_bytes());
        }
        // Two directory entries without file types: one of 12 bytes, and one to the end of the
        // block.
        let mut names = [0; 4096];
        names[..13].copy_from_slice(&[11, 0, 0, 0, 12, 0, 1, 0, b'.', 0, 0, 0, 2]);
        names[16..20].copy_from_slice(&[0xF4, 0x0F, 2, 0]);
        let beyond = [0xFF; 4096];
        let class = |content: &[u8; 4096]| {
            device.write_at(200 * MIB, content).unwrap();
            device.forget();
            device.take();
            device.read_at(200 * MIB, &mut [0; 4096]).unwrap();
            device.take()[0].class
        };
        assert_eq!(
            [map, names, beyond, [0; 4096]].map(|content| class(&content)),
            [Class::Map, Class::Directory, Class::Directory, Class::Directory]
        );
    }
}
