//! Directories: names to inode numbers, in linear blocks or under a hash index.
//!
//! A directory is edited in its on-disk form. Its blocks come from the metadata cache behind
//! [`DirectoryStore`]. The caller holds the directory's content lock: exclusively to change names,
//! shared to look them up.
//!
//! A directory outside its inode starts as one linear block. When this block is full and the file
//! system has `dir_index`, the block becomes an index root, and names move to leaves chosen by
//! their hash ([`tree`]). Without `dir_index`, or with several linear blocks already, the directory
//! grows by linear blocks ([`linear`]). Blocks are never freed while the directory lives. Names of
//! a directory of more than one block are cached with their inode numbers ([`dentries`]), so most
//! lookups need none of its blocks. If a listing finds damage, the directory remembers that
//! ([`damage`]).
//!
//! Failure discipline: blocks that change are read, and new blocks are appended, before the first
//! change of a name. Several blocks are appended together or not at all. So running out of space
//! leaves the directory as it was.

mod damage;
mod dentries;
mod linear;
mod readdir;
mod tree;

#[cfg(test)]
mod model;

pub(crate) use damage::ListingDamage;
pub(crate) use dentries::{Dentries, Dentry, DentryCache, Names};
pub(crate) use readdir::DirectoryEntry;

use crate::extents::NodeBlock;
use crate::{Error, Result};
use blockyard_disk::dirblock::{self, DirLayout, Found, NewEntry};
use blockyard_disk::dirhash::{DirHasher, HashSeed, HashVersion};
use blockyard_disk::htree::{IndexKind, RootInfo};
use blockyard_disk::inode::FileType;
use blockyard_disk::{Corruption, CorruptionKind, InodeNr, LogicalBlock};

/// How many damaged blocks in a row a search or a listing passes over before it gives up. There
/// must be a limit: a damaged `i_size` may give a directory billions of holes.
const DAMAGED_MAX: usize = 1024;

/// The role of a directory block. It decides how the block is read and where its checksum lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A block with names: a leaf of the index, or any block of a directory without index.
    Leaf,
    /// A block of the hash index.
    Index(IndexKind),
}

/// Source of the blocks of one directory.
pub(crate) trait DirectoryStore {
    /// One directory block that stays in memory while this value lives.
    type Block: NodeBlock;

    /// The directory, for error messages.
    fn inode(&self) -> InodeNr;

    /// Length of the directory in blocks; at least 1.
    fn blocks(&self) -> u32;

    /// Reads a logical block. A block that comes from the device is verified for its role: the
    /// checksum, and in an index block the entries.
    fn load(&self, logical: u32, role: Role) -> Result<Self::Block>;

    /// Joins a block to the transaction. Must be called before the block is changed.
    fn prepare(&self, block: &Self::Block) -> Result<()>;

    /// Appends `count` zeroed blocks in the transaction, all or none. Returns them with their
    /// logical numbers; [`Self::blocks`] counts them from then on.
    fn append(&self, count: usize) -> Result<Vec<(u32, Self::Block)>>;

    /// Sets the role that a block has from now on.
    fn set_role(&self, block: &Self::Block, role: Role);

    /// The dentry cache of this directory; `None` if it has none.
    fn names(&self) -> Option<Names<'_>>;

    /// What is remembered of damage that listings of this directory found.
    fn damage(&self) -> &ListingDamage;
}

/// What all directories of one file system share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectoryRules {
    /// The layout of linear blocks.
    pub(crate) layout: DirLayout,
    /// Seed of the hash functions.
    pub(crate) hash_seed: HashSeed,
    /// Hash function of new indexes, signedness included.
    pub(crate) hash_version: HashVersion,
    /// Whether names are hashed as unsigned characters.
    pub(crate) unsigned_hash: bool,
    /// Whether a full directory of one block gets an index (`dir_index`).
    pub(crate) may_index: bool,
    /// Whether three index levels are allowed (`large_dir`).
    pub(crate) large: bool,
}

impl DirectoryRules {
    /// The hash function of directories that have no index (yet).
    fn default_hasher(&self) -> DirHasher {
        DirHasher::new(self.hash_version, self.hash_seed)
    }

    /// The hash function that a root names; `None` if it is not implemented.
    fn hasher_of(&self, root: &RootInfo) -> Option<DirHasher> {
        let version = HashVersion::from_raw(root.hash_version)?;
        Some(DirHasher::new(version.with_unsigned_chars(self.unsigned_hash), self.hash_seed))
    }
}

/// An entry found by a lookup, with its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The inode it names.
    pub(crate) inode: InodeNr,
    /// Its recorded type; `None` when the file system records none.
    pub(crate) file_type: Option<FileType>,
    logical: u32,
    found: Found,
}

/// One directory, open for a lookup or a change.
pub(crate) struct Directory<'a, S: DirectoryStore> {
    store: &'a S,
    rules: &'a DirectoryRules,
    indexed: bool,
}

impl<'a, S: DirectoryStore> Directory<'a, S> {
    /// Opens a directory; `indexed` says whether its block 0 is used as an index root.
    pub(crate) const fn new(store: &'a S, rules: &'a DirectoryRules, indexed: bool) -> Self {
        Self { store, rules, indexed }
    }

    /// Whether the directory has an index. An insert may have added one; the caller then sets the
    /// inode's flag.
    pub(crate) const fn is_indexed(&self) -> bool {
        self.indexed
    }

    /// The inode of a name other than `.` and `..`, from the blocks. A name that is found is
    /// cached if possible.
    pub(crate) fn find(&self, name: &[u8]) -> Result<Option<InodeNr>> {
        let Some(entry) = self.lookup(name)? else { return Ok(None) };
        if let Some(names) = self.kept_names() {
            names.found(name, entry.inode);
        }
        Ok(Some(entry.inode))
    }

    /// Finds the entry of a name other than `.` and `..` in the blocks.
    pub(crate) fn lookup(&self, name: &[u8]) -> Result<Option<Entry>> {
        debug_assert!(name != b"." && name != b"..", "the dots are no names");
        if self.indexed { self.lookup_in_tree(name) } else { self.lookup_linear(name) }
    }

    /// Adds a name. The caller has checked that the directory does not have it.
    ///
    /// # Errors
    /// [`Error::NoSpace`] when there is no space or the index is full; [`Error::NotSupported`] for
    /// a hash that is not implemented. After these two, the names are unchanged. After
    /// [`Error::Corrupt`] and other errors of the store, the change may have been made in part.
    pub(crate) fn insert(&mut self, name: &[u8], inode: InodeNr, file_type: FileType) -> Result<()> {
        debug_assert!(name != b"." && name != b"..", "the dots are no names");
        debug_assert!(!self.lookup(name).is_ok_and(|entry| entry.is_some()), "a name is entered twice");
        let entry = NewEntry { inode: inode.raw(), file_type, name };
        let inserted = if self.indexed { self.insert_in_tree(&entry) } else { self.insert_linear(&entry) };
        self.note_change(inserted, |names| names.entered(name, inode))
    }

    /// Removes a name other than `.` and `..`.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Corrupt`]; [`Error::NotSupported`] for a hash that is not
    /// implemented; errors of the store. The directory is unchanged then.
    pub(crate) fn remove(&self, name: &[u8]) -> Result<()> {
        debug_assert!(name != b"." && name != b"..", "the dots are no names");
        let entry = self.lookup(name)?.ok_or(Error::NotFound)?;
        let block = self.store.load(entry.logical, Role::Leaf)?;
        self.store.prepare(&block)?;
        let removed = block
            .write(|bytes| dirblock::remove_at(bytes, self.rules.layout, &entry.found))
            .map_err(|defect| self.damaged(entry.logical, defect));
        self.note_change(removed, |names| names.removed(name))
    }

    /// Makes a name other than `.` and `..` stand for another inode. False if there is no such
    /// name.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; [`Error::NotSupported`] for a hash that is not implemented; errors of
    /// the store. The directory is unchanged then.
    pub(crate) fn replace(&self, name: &[u8], inode: InodeNr, file_type: FileType) -> Result<bool> {
        debug_assert!(name != b"." && name != b"..", "the dots are no names");
        let Some(entry) = self.lookup(name)? else { return Ok(false) };
        let block = self.store.load(entry.logical, Role::Leaf)?;
        self.store.prepare(&block)?;
        let at = entry.found.at;
        let replaced = block
            .write(|bytes| dirblock::set_inode(bytes, self.rules.layout, at, inode.raw(), file_type))
            .map_err(|defect| self.damaged(entry.logical, defect));
        self.note_change(replaced, |names| names.entered(name, inode))?;
        Ok(true)
    }

    /// The cached names. A directory of one block has none: searching the block is as fast.
    fn kept_names(&self) -> Option<Names<'_>> {
        self.store.names().filter(|_| self.indexed || self.store.blocks() > 1)
    }

    /// Updates the cached names after a change of the blocks. If the change failed, and not for
    /// lack of space, it may have been made in part, so all cached names are forgotten.
    fn note_change(&self, changed: Result<()>, note: impl FnOnce(Names<'_>)) -> Result<()> {
        match (&changed, self.kept_names()) {
            (_, None) | (Err(Error::NoSpace), _) => {}
            (Ok(()), Some(names)) => note(names),
            (Err(_), Some(names)) => names.forget(),
        }
        changed
    }

    /// The parent that `..` names.
    pub(crate) fn parent(&self) -> Result<InodeNr> {
        let block = self.load_first()?;
        let dots = block
            .read(|bytes| dirblock::dots(bytes, self.first_layout()))
            .map_err(|defect| self.damaged(0, defect))?;
        Ok(InodeNr::new(dots.parent))
    }

    /// Makes `..` point to another parent.
    pub(crate) fn set_parent(&self, parent: InodeNr) -> Result<()> {
        let block = self.load_first()?;
        let layout = self.first_layout();
        let dots =
            block.read(|bytes| dirblock::dots(bytes, layout)).map_err(|defect| self.damaged(0, defect))?;
        self.store.prepare(&block)?;
        block
            .write(|bytes| {
                dirblock::set_inode(bytes, layout, dots.dotdot_at, parent.raw(), FileType::Directory)
            })
            .map_err(|defect| self.damaged(0, defect))
    }

    /// Whether the directory holds nothing but `.` and `..`.
    pub(crate) fn is_empty(&self) -> Result<bool> {
        let empty = |logical: u32| {
            let block = self.store.load(logical, Role::Leaf)?;
            block
                .read(|bytes| dirblock::is_empty(bytes, self.rules.layout))
                .map_err(|defect| self.damaged(logical, defect))
        };
        if !self.indexed {
            for logical in 0..self.store.blocks() {
                if !empty(logical)? {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        let mut path = self.path(|_| 0)?;
        loop {
            if !empty(path.leaf)? {
                return Ok(false);
            }
            if self.advance(&mut path)?.is_none() {
                return Ok(true);
            }
        }
    }

    /// Block 0, whatever its role.
    fn load_first(&self) -> Result<S::Block> {
        self.store.load(0, if self.indexed { Role::Index(IndexKind::Root) } else { Role::Leaf })
    }

    /// The layout of block 0. In an index root, the entry `..` reaches to the end of the block.
    fn first_layout(&self) -> DirLayout {
        DirLayout { tail: self.rules.layout.tail && !self.indexed, ..self.rules.layout }
    }

    fn entry_at(&self, logical: u32, found: Found) -> Entry {
        let file_type =
            if self.rules.layout.file_types { FileType::from_dirent_byte(found.file_type) } else { None };
        Entry { inode: InodeNr::new(found.inode), file_type, logical, found }
    }

    /// The error for a block that breaks a rule of the format.
    fn damaged(&self, logical: u32, defect: impl Into<CorruptionKind>) -> Error {
        let found = Corruption::new(defect.into()).in_inode(self.store.inode());
        found.in_logical(LogicalBlock::new(logical)).into()
    }
}
