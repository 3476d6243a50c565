//! Builds a whole directory: all its blocks at once, from the list of its names.
//!
//! If the names need more than one block and an index is wanted, the names are sorted by hash, and
//! each leaf is filled before the next begins. Block 0 is then the root. The leaves follow, and
//! after the leaves the index nodes, the lowest level first.

use crate::checksum::{seal_dir_leaf, seal_htree};
use crate::dirblock::{DirLayout, ENTRY_LEN_MIN, Packer};
use crate::dirhash::DirHasher;
use crate::htree::{self, CONTINUES, IndexEntry, IndexKind, RootInfo};
use crate::inode::FileType;
use crate::num::{low16, low32, u32_from_usize, u64_from_usize, usize_from_u32};
use core::ops::Range;

/// A name to be entered.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    /// 1 to 255 bytes, not `.` or `..`.
    pub bytes: &'a [u8],
    /// Its inode number.
    pub inode: u32,
    /// The inode's type.
    pub file_type: FileType,
}

/// How a directory is indexed.
#[derive(Clone, Copy, Debug)]
pub struct Indexing {
    /// The hash of names.
    pub hasher: DirHasher,
    /// Whether the index may have three levels (`large_dir`).
    pub largedir: bool,
}

/// The planned position of each name.
#[derive(Debug)]
pub struct WholeDirectory {
    layout: DirLayout,
    /// The names, in the order in which they are stored.
    order: Vec<u32>,
    /// For each block of names, the part of `order` that it holds.
    parts: Vec<Range<usize>>,
    /// The index, if there is one.
    index: Option<Index>,
}

#[derive(Debug)]
struct Index {
    stored_version: u8,
    /// The key of each leaf.
    keys: Vec<u32>,
    /// The number of index nodes in each level, from the level above the leaves up, without the
    /// root.
    levels: Vec<usize>,
}

impl WholeDirectory {
    /// Plans the blocks; `None` if the directory needs more index levels than allowed. Names are
    /// stored in the given order, or in hash order if there is an index.
    #[must_use]
    pub fn plan(names: &[Name<'_>], layout: DirLayout, indexing: Option<Indexing>) -> Option<Self> {
        let order: Vec<u32> = (0..u32_from_usize(names.len())).collect();
        let fits_one =
            ENTRY_LEN_MIN * 2 + names.iter().map(|name| name_len(name)).sum::<usize>() <= layout.usable();
        let Some(indexing) = indexing.filter(|_| !fits_one) else {
            let parts = cut(names, &order, &layout, ENTRY_LEN_MIN * 2);
            return Some(Self { layout, order, parts, index: None });
        };
        let mut hashed: Vec<(u32, u32, u32)> = order
            .iter()
            .map(|&place| {
                let hash = indexing.hasher.hash(names[usize_from_u32(place)].bytes);
                (hash.major & !CONTINUES, hash.minor, place)
            })
            .collect();
        hashed.sort_unstable();
        let order: Vec<u32> = hashed.iter().map(|&(_, _, place)| place).collect();
        let parts = cut(names, &order, &layout, 0);
        let key = |part: &Range<usize>| {
            let hash = hashed[part.start].0;
            let goes_on = part.start > 0 && hashed[part.start - 1].0 == hash;
            if part.start == 0 { 0 } else { hash | if goes_on { CONTINUES } else { 0 } }
        };
        let keys: Vec<u32> = parts.iter().map(key).collect();
        let mut levels = Vec::new();
        let mut entries = keys.len();
        while entries > IndexKind::Root.limit(&layout) {
            entries = entries.div_ceil(IndexKind::Node.limit(&layout));
            levels.push(entries);
        }
        if levels.len() > usize::from(RootInfo::levels_max(indexing.largedir)) {
            return None;
        }
        let stored_version = indexing.hasher.version().stored();
        Some(Self { layout, order, parts, index: Some(Index { stored_version, keys, levels }) })
    }

    /// Number of blocks of the directory.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        let index = self.index.as_ref().map_or(0, |index| 1 + index.levels.iter().sum::<usize>());
        u64_from_usize(self.parts.len() + index)
    }

    /// Whether the directory has an index.
    #[must_use]
    pub const fn is_indexed(&self) -> bool {
        self.index.is_some()
    }

    /// All blocks in order, with their checksums. `own` is the inode of the directory, `parent`
    /// that of `..`. `names` must be the names that were planned. `seed` is the seed of the
    /// directory's checksums; `None` without metadata_csum.
    ///
    /// # Panics
    /// When there are fewer names than planned, or they do not fit the planned blocks.
    #[must_use]
    pub fn write(&self, (own, parent): (u32, u32), names: &[Name<'_>], seed: Option<u32>) -> Vec<u8> {
        let size = self.layout.block_size;
        let mut bytes = Vec::with_capacity(size * self.order.len().div_ceil(64));
        if let Some(index) = &self.index {
            bytes.resize(size, 0);
            self.write_root(index, (own, parent), seed, &mut bytes);
        }
        for (nth, part) in self.parts.iter().enumerate() {
            let mut block = vec![0; size];
            let mut packer = Packer::new(&mut block, self.layout);
            if nth == 0 && self.index.is_none() {
                let kind = FileType::Directory.dirent_byte();
                let fits = packer.push(own, kind, b".") && packer.push(parent, kind, b"..");
                assert!(fits, "a block holds two short names");
            }
            for &place in &self.order[part.clone()] {
                let name = &names[usize_from_u32(place)];
                let fits = packer.push(name.inode, name.file_type.dirent_byte(), name.bytes);
                assert!(fits, "the plan chose names that fit");
            }
            seal_dir_leaf(seed, &mut block);
            bytes.extend_from_slice(&block);
        }
        if let Some(index) = &self.index {
            self.write_nodes(index, seed, &mut bytes);
        }
        bytes
    }

    /// The index entries that point to the blocks of a level; level 0 is that of the leaves.
    fn entries(&self, index: &Index, level: usize) -> Vec<IndexEntry> {
        let per_node = IndexKind::Node.limit(&self.layout);
        let before = 1 + index.levels.iter().take(level.saturating_sub(1)).sum::<usize>();
        let first = if level == 0 { 1 } else { before + self.parts.len() };
        let span = per_node.pow(u32_from_usize(level));
        let keys = index.keys.iter().step_by(span);
        keys.zip(first..).map(|(&key, block)| IndexEntry { key, block: u32_from_usize(block) }).collect()
    }

    fn write_root(&self, index: &Index, (own, parent): (u32, u32), seed: Option<u32>, root: &mut [u8]) {
        let entries = self.entries(index, index.levels.len());
        htree::init_root(root, &self.layout, own, parent, index.stored_version, entries[0].block);
        root[30] = crate::num::low8(u32_from_usize(index.levels.len()));
        fill(root, IndexKind::Root, &self.layout, &entries);
        seal_htree(seed, root, IndexKind::Root.entries_at());
    }

    fn write_nodes(&self, index: &Index, seed: Option<u32>, bytes: &mut Vec<u8>) {
        for level in 0..index.levels.len() {
            for entries in self.entries(index, level).chunks(IndexKind::Node.limit(&self.layout)) {
                let mut node = vec![0; self.layout.block_size];
                let rec_len = u16::try_from(self.layout.block_size).unwrap_or(u16::MAX);
                node[4..6].copy_from_slice(&rec_len.to_le_bytes());
                fill(&mut node, IndexKind::Node, &self.layout, entries);
                seal_htree(seed, &mut node, IndexKind::Node.entries_at());
                bytes.extend_from_slice(&node);
            }
        }
    }
}

fn name_len(name: &Name<'_>) -> usize {
    DirLayout::entry_len(name.bytes.len())
}

/// Divides names into blocks. `used` bytes of the first block are already in use. Without names,
/// the result is one empty block.
fn cut(names: &[Name<'_>], order: &[u32], layout: &DirLayout, mut used: usize) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let mut start = 0;
    for (at, &place) in order.iter().enumerate() {
        let len = name_len(&names[usize_from_u32(place)]);
        if used + len > layout.usable() {
            parts.push(start..at);
            (start, used) = (at, 0);
        }
        used += len;
    }
    parts.push(start..order.len());
    parts
}

/// Writes the entries of an index block. Limit and count take the place of the first entry's key.
fn fill(block: &mut [u8], kind: IndexKind, layout: &DirLayout, entries: &[IndexEntry]) {
    let (start, limit) = (kind.entries_at(), kind.limit(layout));
    assert!(!entries.is_empty() && entries.len() <= limit, "{} entries of {limit}", entries.len());
    for (entry, place) in entries.iter().zip(block[start..].chunks_exact_mut(8)) {
        place[..4].copy_from_slice(&entry.key.to_le_bytes());
        place[4..].copy_from_slice(&entry.block.to_le_bytes());
    }
    let counted = |count: usize| low16(low32(u64_from_usize(count))).to_le_bytes();
    block[start..start + 2].copy_from_slice(&counted(limit));
    block[start + 2..start + 4].copy_from_slice(&counted(entries.len()));
}

#[cfg(test)]
#[allow(clippy::as_conversions)]
mod tests {
    use super::*;
    use crate::dirblock;
    use crate::dirhash::{HashSeed, HashVersion};
    use crate::htree::Index as IndexBlock;

    fn hasher(version: HashVersion) -> DirHasher {
        DirHasher::new(version, HashSeed::new([1, 2, 3, 4]))
    }

    /// Finds a name as readers do: from the root down, and on into the next leaf if the hash
    /// continues there.
    fn find(bytes: &[u8], layout: DirLayout, hasher: &DirHasher, name: &[u8]) -> Option<u32> {
        let blocks: Vec<&[u8]> = bytes.chunks_exact(layout.block_size).collect();
        let count = blocks.len() as u32;
        let info = RootInfo::verify(blocks[0], &layout, true).unwrap();
        let major = hasher.hash(name).major;
        let mut index = IndexBlock::parse(blocks[0], IndexKind::Root, &layout, count).unwrap();
        let mut path = Vec::new();
        for _ in 0..info.indirect_levels {
            let at = index.find(major);
            path.push((index, at));
            let node = blocks[index.entry(at).block as usize];
            index = IndexBlock::parse(node, IndexKind::Node, &layout, count).unwrap();
        }
        let mut at = index.find(major);
        loop {
            let leaf = blocks[index.entry(at).block as usize];
            dirblock::verify(leaf, layout).unwrap();
            if let Some(found) = dirblock::find(leaf, layout, name).unwrap() {
                return Some(found.inode);
            }
            // In this test, leaves that share a hash belong to the same index node.
            at += 1;
            if at >= index.count() || index.entry(at).key != major | CONTINUES {
                return None;
            }
        }
    }

    #[test]
    fn every_name_is_found_whatever_the_number_of_levels() {
        for (block_size, count, width, levels) in [
            (1024, 20, 0, 0),
            (1024, 1500, 0, 0),
            (1024, 40_000, 0, 1),
            (1024, 90_000, 200, 2),
            (4096, 40_000, 0, 0),
            (65536, 40_000, 0, 0),
        ] {
            let layout = DirLayout { block_size, tail: true, file_types: true, inodes_count: u32::MAX };
            let texts: Vec<String> =
                (0..count).map(|n| format!("name {n} {}", "x".repeat(width + n % 9))).collect();
            let name = |(n, text): (usize, &String)| (n as u32 + 12, text.clone().into_bytes());
            let owned: Vec<(u32, Vec<u8>)> = texts.iter().enumerate().map(name).collect();
            let names: Vec<Name<'_>> = owned
                .iter()
                .map(|(inode, bytes)| Name { bytes, inode: *inode, file_type: FileType::Regular })
                .collect();
            let hasher = hasher(HashVersion::HalfMd4);
            let plan =
                WholeDirectory::plan(&names, layout, Some(Indexing { hasher, largedir: true })).unwrap();
            assert_eq!(plan.is_indexed(), count > 20);
            let bytes = plan.write((11, 2), &names, Some(7));
            assert_eq!(bytes.len() as u64, plan.blocks() * block_size as u64);
            if !plan.is_indexed() {
                let dots = dirblock::dots(&bytes, layout).unwrap();
                assert_eq!((dots.own, dots.parent), (11, 2));
                assert_eq!(dirblock::find(&bytes, layout, b"name 7 xxxxxxx").unwrap().unwrap().inode, 19);
                continue;
            }
            assert_eq!(
                RootInfo::verify(&bytes[..block_size], &layout, true).unwrap().indirect_levels,
                levels
            );
            for (inode, bytes_of) in &owned {
                assert_eq!(find(&bytes, layout, &hasher, bytes_of), Some(*inode), "{count} names, {inode}");
            }
            assert_eq!(find(&bytes, layout, &hasher, b"absent"), None);
            // There are only a few more leaves than the names need.
            let needed: usize = names.iter().map(name_len).sum();
            let room = needed.div_ceil(layout.usable() - 32 - width) + names.len() / 80 + 6;
            assert!(plan.parts.len() <= room, "{} leaves for {needed} bytes", plan.parts.len());
        }
    }

    #[test]
    fn without_an_index_names_keep_their_order_and_too_many_are_refused() {
        let layout = DirLayout { block_size: 1024, tail: false, file_types: false, inodes_count: u32::MAX };
        let texts: Vec<Vec<u8>> = (0..60_000).map(|n| format!("{n:0200}").into_bytes()).collect();
        let names: Vec<Name<'_>> =
            texts.iter().map(|bytes| Name { bytes, inode: 5, file_type: FileType::Fifo }).collect();
        let linear = WholeDirectory::plan(&names[..9], layout, None).unwrap();
        assert_eq!((linear.blocks(), linear.is_indexed()), (3, false));
        let bytes = linear.write((12, 2), &names[..9], None);
        let held: Vec<usize> =
            bytes.chunks(1024).map(|block| dirblock::Entries::new(block, layout).unwrap().count()).collect();
        assert_eq!(held, [6, 4, 1], "with the dots");
        assert_eq!(WholeDirectory::plan(&[], layout, None).unwrap().blocks(), 1);
        let indexing = |largedir| Some(Indexing { hasher: hasher(HashVersion::Tea), largedir });
        assert!(WholeDirectory::plan(&names, layout, indexing(false)).is_some());
        let twice: Vec<Name<'_>> = names.iter().chain(&names).copied().collect();
        assert!(WholeDirectory::plan(&twice, layout, indexing(false)).is_none());
        assert_eq!(
            WholeDirectory::plan(&twice, layout, indexing(true)).unwrap().index.unwrap().levels.len(),
            2
        );
    }
}
