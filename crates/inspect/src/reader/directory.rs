//! Directories: walking all entries, and finding one by name.
//!
//! A walk visits the mapped blocks in logical order, index blocks included. An index block parses
//! as a directory block without names, except that the root holds `.` and `..`. It has another kind
//! of checksum than a leaf, and no leaf tail.
//!
//! A lookup of `.` or `..` walks. Any other lookup uses the index if there is a usable one, and
//! walks otherwise. Without metadata_csum, a lookup in a damaged index falls back to the walk, as
//! other implementations do.

use std::collections::VecDeque;
use std::sync::Arc;

use blockyard_disk::checksum::{verify_dir_leaf, verify_htree};
use blockyard_disk::dirblock::{self, DirLayout, Entries, Entry};
use blockyard_disk::dirhash::{DirHasher, HashSeed, HashVersion};
use blockyard_disk::features::{Compat, Incompat};
use blockyard_disk::htree::{IndexKind, RootInfo};
use blockyard_disk::inode::InodeFlags;
use blockyard_disk::num::u64_from_usize;
use blockyard_disk::{
    BlockNr, Corruption, CorruptionKind, Extent, FileType, Inode, InodeMap, InodeNr, LogicalBlock,
};

use super::index::Descent;
use super::map::MapWalk;
use super::{Error, Reader, Result};

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The number of the inode that the entry names. The inode is not verified.
    pub inode: InodeNr,
    /// The recorded type; `None` when it is not recorded or unknown.
    pub file_type: Option<FileType>,
    /// The name. It holds neither NUL nor `/`: a stored name with one of these is an error.
    pub name: Vec<u8>,
}

impl Reader {
    /// All entries of a directory, block by block in logical order, `.` and `..` included.
    ///
    /// # Errors
    /// [`Error::NotDirectory`], and [`Error::Disk`] for damaged inline data. The walk itself yields
    /// the errors of its blocks and ends after the first.
    pub fn entries(&self, directory: &Inode) -> Result<DirEntries<'_>> {
        if !directory.is_directory() {
            return Err(Error::NotDirectory(format!("inode {}", directory.number())));
        }
        let mut ready = VecDeque::new();
        if directory.map() == InodeMap::Inline {
            self.inline_entries(directory, &mut ready)?;
        }
        Ok(DirEntries {
            budget: self.superblock().geometry().blocks_count().raw(),
            walk: self.extents(directory),
            current: None,
            reader: self,
            directory: directory.clone(),
            ready,
            failed: false,
        })
    }

    /// All entries of a directory in the order in which Linux lists them. This is `.`, `..`, and
    /// then the other names by hash, if all of this holds:
    /// - The feature dir_index is on.
    /// - The directory has an index, or is inline or one block long.
    /// - Its names can be hashed here.
    ///
    /// Otherwise it is the order of [`Self::entries`].
    ///
    /// # Errors
    /// As [`Self::entries`] and its walk, and [`Error::Disk`] for a damaged index root.
    pub fn listed(&self, directory: &Inode) -> Result<Vec<DirEntry>> {
        let mut entries = self.entries(directory)?.collect::<Result<Vec<_>>>()?;
        let sb = self.superblock();
        let may_index = sb.features().compat.contains(Compat::DIR_INDEX);
        let is_small = directory.map() == InodeMap::Inline
            || directory.size() == u64_from_usize(sb.geometry().block_size());
        if may_index && self.can_hash(directory) && (is_indexed(directory) || is_small) {
            let version = match is_indexed(directory) {
                true => self.dir_hash_version(directory)?,
                false => HashVersion::from_raw(sb.raw().s_def_hash_version),
            };
            if let Some(version) = version {
                let version = version.with_unsigned_chars(sb.has_unsigned_hash());
                let hasher = DirHasher::new(version, HashSeed::new(sb.raw().hash_seed()));
                let is_ordinary = |entry: &DirEntry| entry.name != b"." && entry.name != b"..";
                entries.sort_by_cached_key(|entry| {
                    let hash = hasher.hash(&entry.name);
                    (
                        is_ordinary(entry),
                        entry.name.len() * usize::from(!is_ordinary(entry)),
                        (hash.major, hash.minor),
                    )
                });
            }
        }
        Ok(entries)
    }

    /// The hash version that the root of the index states; `None` when it is unknown.
    fn dir_hash_version(&self, directory: &Inode) -> Result<Option<HashVersion>> {
        let root = self.dir_block(directory, 0)?;
        let large_dir = self.superblock().features().incompat.contains(Incompat::LARGE_DIR);
        let info = RootInfo::verify(&root, &self.dir_layout(), large_dir)
            .map_err(|defect| Corruption::new(defect.into()).in_inode(directory.number()))?;
        Ok(HashVersion::from_raw(info.hash_version))
    }

    /// The inode that a name in a directory stands for; `None` if there is no such name.
    ///
    /// # Errors
    /// [`Error::NotDirectory`], [`Error::Device`], [`Error::Disk`].
    pub fn lookup(&self, directory: &Inode, name: &[u8]) -> Result<Option<InodeNr>> {
        if is_indexed(directory) && self.can_hash(directory) && name != b"." && name != b".." {
            match Descent::start(self, directory, name).and_then(|descent| descent.find(name)) {
                Err(Error::Disk(_)) if directory.checksum_seed().is_none() => {}
                answer => return answer,
            }
        }
        for entry in self.entries(directory)? {
            let entry = entry?;
            if entry.name == name {
                return Ok(Some(entry.inode));
            }
        }
        Ok(None)
    }

    pub(super) fn dir_layout(&self) -> DirLayout {
        let sb = self.superblock();
        DirLayout {
            block_size: sb.geometry().block_size(),
            tail: sb.features().has_metadata_csum(),
            file_types: sb.features().incompat.contains(Incompat::FILETYPE),
            inodes_count: sb.geometry().inodes_count(),
        }
    }

    fn inline_entries(&self, directory: &Inode, out: &mut VecDeque<DirEntry>) -> Result<()> {
        let data = self.inline_data(directory)?;
        let parent = InodeNr::new(data.parent());
        for (inode, name) in [(directory.number(), "."), (parent, "..")] {
            out.push_back(DirEntry { inode, file_type: Some(FileType::Directory), name: name.into() });
        }
        for entry in data.dir_entries(self.dir_layout()) {
            let bad =
                |defect: dirblock::DirDefect| Corruption::new(defect.into()).in_inode(directory.number());
            let entry = entry.map_err(bad)?;
            entry.check_name().map_err(bad)?;
            out.extend(used(&entry));
        }
        Ok(())
    }

    /// Whether names of this directory can be hashed here. Returns false for case-insensitive
    /// directories, which hash folded names, and for encrypted ones, which may hash with a key.
    fn can_hash(&self, directory: &Inode) -> bool {
        !directory.flags().intersects(InodeFlags::CASEFOLD | InodeFlags::ENCRYPT)
    }

    /// One logical block of an indexed directory, with its checksum verified.
    pub(super) fn dir_block(&self, directory: &Inode, logical: u32) -> Result<Arc<[u8]>> {
        let at = LogicalBlock::new(logical);
        let extent = self.extents_from(directory, at).next().transpose()?;
        let extent = extent.filter(|extent| extent.logical <= at && !extent.unwritten);
        let hole = || Corruption::new(CorruptionKind::DirHole).in_inode(directory.number()).in_logical(at);
        let number = extent.ok_or_else(hole)?.physical_at(at);
        self.checked_dir_block(directory, at, number)
    }

    fn checked_dir_block(
        &self,
        directory: &Inode,
        logical: LogicalBlock,
        number: BlockNr,
    ) -> Result<Arc<[u8]>> {
        let block = self.block(number)?;
        let seed = directory.checksum_seed();
        let verified = match index_kind(directory, logical, &block) {
            Some(kind) => verify_htree(seed, &block, kind.entries_at()),
            None => verify_dir_leaf(seed, &block),
        };
        verified.map_err(|found| found.in_inode(directory.number()).in_logical(logical).in_block(number))?;
        Ok(block)
    }
}

fn is_indexed(directory: &Inode) -> bool {
    directory.flags().contains(InodeFlags::INDEX) && directory.map() != InodeMap::Inline
}

/// The kind of an index block; `None` for a leaf, and for any block of a directory without an
/// index. An index node begins with one unused entry that spans the whole block. A leaf with a
/// checksum tail cannot look like that.
fn index_kind(directory: &Inode, logical: LogicalBlock, block: &[u8]) -> Option<IndexKind> {
    if !is_indexed(directory) {
        return None;
    }
    if logical == LogicalBlock::ZERO {
        return Some(IndexKind::Root);
    }
    let rec_len = dirblock::decode_rec_len(u16::from_le_bytes([block[4], block[5]]), block.len());
    (block[..4] == [0; 4] && rec_len == block.len()).then_some(IndexKind::Node)
}

/// An entry that names something; `None` for an unused one.
fn used(entry: &Entry<'_>) -> Option<DirEntry> {
    (entry.inode != 0).then(|| DirEntry {
        inode: InodeNr::new(entry.inode),
        file_type: FileType::from_dirent_byte(entry.file_type),
        name: entry.name.to_vec(),
    })
}

/// Iterator over the entries of a directory. Ends after the first error.
#[derive(Debug)]
pub struct DirEntries<'r> {
    reader: &'r Reader,
    directory: Inode,
    walk: MapWalk<'r>,
    /// The extent being walked and the next logical block in it.
    current: Option<(Extent, u32)>,
    ready: VecDeque<DirEntry>,
    /// Blocks that may still be visited: a directory cannot have more blocks than the file
    /// system.
    budget: u64,
    failed: bool,
}

impl DirEntries<'_> {
    /// The next written block below the directory's size; `None` at the end.
    fn next_block(&mut self) -> Result<Option<(LogicalBlock, BlockNr)>> {
        loop {
            match self.current {
                Some((extent, at)) if at < extent.end() => {
                    self.current = Some((extent, at + 1));
                    let logical = LogicalBlock::new(at);
                    let bits = self.reader.superblock().geometry().block_bits();
                    if u64::from(at) << bits >= self.directory.size() {
                        return Ok(None);
                    }
                    return Ok(Some((logical, extent.physical_at(logical))));
                }
                _ => match self.walk.next().transpose()? {
                    Some(extent) if extent.unwritten => {}
                    Some(extent) => self.current = Some((extent, extent.logical.raw())),
                    None => return Ok(None),
                },
            }
        }
    }

    /// Reads blocks until one has entries; false at the end.
    fn fill(&mut self) -> Result<bool> {
        while self.ready.is_empty() {
            let Some((logical, number)) = self.next_block()? else { return Ok(false) };
            let place = |found: Corruption| {
                found.in_inode(self.directory.number()).in_logical(logical).in_block(number)
            };
            let spent = || place(Corruption::new(CorruptionKind::DirBlocks));
            self.budget = self.budget.checked_sub(1).ok_or_else(spent)?;
            let block = self.reader.checked_dir_block(&self.directory, logical, number)?;
            let layout = self.reader.dir_layout();
            // An index block has no leaf tail: its entries run to the end of the block.
            let layout = match index_kind(&self.directory, logical, &block) {
                Some(_) => DirLayout { tail: false, ..layout },
                None => layout,
            };
            let bad = |defect: dirblock::DirDefect| place(Corruption::new(defect.into()));
            for entry in Entries::new(&block, layout).map_err(bad)? {
                let entry = entry.map_err(bad)?;
                entry.check_name().map_err(bad)?;
                self.ready.extend(used(&entry));
            }
        }
        Ok(true)
    }
}

impl Iterator for DirEntries<'_> {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        match self.fill() {
            Ok(_) => self.ready.pop_front().map(Ok),
            Err(error) => {
                self.failed = true;
                Some(Err(error))
            }
        }
    }
}

/// Whether a name is neither empty nor too long for an entry of a directory.
pub(super) fn is_possible_name(name: &[u8]) -> bool {
    !name.is_empty() && u64_from_usize(name.len()) <= u64_from_usize(dirblock::NAME_LEN_MAX)
}
