//! Reading a directory in a stable order.
//!
//! A cookie names the position behind an entry. Reading continues there whatever was created or
//! removed in between, and every name that stayed is returned exactly once. Directories that have,
//! or may get, an index are read in hash order, so nothing is lost if the directory grows an index
//! meanwhile. Other directories are read in byte order. Names that agree in both hash words share a
//! position and are always returned together.

use super::{Directory, DirectoryStore, Role};
use crate::Result;
use crate::extents::NodeBlock;
use blockyard_disk::InodeNr;
use blockyard_disk::dirblock::{self, DirLayout, Entries};
use blockyard_disk::dirhash::{DirHasher, NameHash};
use blockyard_disk::htree::CONTINUES;
use blockyard_disk::inode::FileType;
use blockyard_disk::num::{high32, u64_from_usize};
/// Cookies 1 and 2 stand behind `.` and `..`. The cookie behind another entry, whose position is
/// `p`, is `p + FIRST_PLACE + 1`.
const FIRST_PLACE: u64 = 2;

/// One name of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DirectoryEntry {
    /// The inode it names.
    pub(crate) inode: InodeNr,
    /// Its recorded type; `None` when the file system records none.
    pub(crate) file_type: Option<FileType>,
    /// The name.
    pub(crate) name: Vec<u8>,
    /// Where to continue behind this entry.
    pub(crate) cookie: u64,
}

impl<S: DirectoryStore> Directory<'_, S> {
    /// The entries from `cookie` on, `.` and `..` included: at least `at_least` of them unless the
    /// directory ends first.
    pub(crate) fn read(&self, cookie: u64, at_least: usize) -> Result<Vec<DirectoryEntry>> {
        let mut out = Vec::new();
        if cookie < FIRST_PLACE {
            self.read_dots(cookie, &mut out)?;
        }
        let from = cookie.saturating_sub(FIRST_PLACE);
        if out.len() < at_least {
            if self.indexed {
                self.read_tree(from, at_least, &mut out)?;
            } else if self.rules.may_index && self.store.blocks() == 1 {
                let hasher = self.rules.default_hasher();
                let mut found = self.hashed_names(0, &hasher, from)?;
                give(&mut found, at_least, &mut out);
            } else {
                self.read_linear(from, at_least, &mut out)?;
            }
        }
        Ok(out)
    }

    fn read_dots(&self, cookie: u64, out: &mut Vec<DirectoryEntry>) -> Result<()> {
        let dots = [(b".".to_vec(), self.store.inode(), 1), (b"..".to_vec(), self.parent()?, 2)];
        let file_type = self.rules.layout.file_types.then_some(FileType::Directory);
        out.extend(
            dots.into_iter()
                .filter(|(_, _, behind)| *behind > cookie)
                .map(|(name, inode, cookie)| DirectoryEntry { inode, file_type, name, cookie }),
        );
        Ok(())
    }

    /// Reads the leaves in index order. The names of leaves that continue one hash are sorted
    /// together.
    fn read_tree(&self, from: u64, at_least: usize, out: &mut Vec<DirectoryEntry>) -> Result<()> {
        let first = major_of_place(from);
        let mut path = self.path(|_| first)?;
        loop {
            let hasher = path.hasher;
            let mut found = self.hashed_names(path.leaf, &hasher, from)?;
            let mut next = self.advance(&mut path)?;
            while next.is_some_and(|key| key & CONTINUES != 0) {
                found.extend(self.hashed_names(path.leaf, &hasher, from)?);
                next = self.advance(&mut path)?;
            }
            give(&mut found, at_least, out);
            if out.len() >= at_least || next.is_none() {
                return Ok(());
            }
        }
    }

    /// The names of one leaf at or behind a position, with their positions.
    fn hashed_names(&self, logical: u32, hasher: &DirHasher, from: u64) -> Result<Vec<DirectoryEntry>> {
        self.names(logical, |_, name| {
            let place = place_of_hash(hasher.hash(name));
            (place >= from).then_some(place)
        })
    }

    fn read_linear(&self, from: u64, at_least: usize, out: &mut Vec<DirectoryEntry>) -> Result<()> {
        let block_size = u64_from_usize(self.rules.layout.block_size);
        for logical in 0..self.store.blocks() {
            let start = u64::from(logical) * block_size;
            if start + block_size <= from {
                continue;
            }
            let place = |at| start + u64_from_usize(at);
            let mut found = self.names(logical, |at, _| (place(at) >= from).then_some(place(at)))?;
            give(&mut found, at_least, out);
            if out.len() >= at_least {
                break;
            }
        }
        Ok(())
    }

    /// The names of one block, except `.` and `..`, for which `place` returns a position.
    fn names(
        &self,
        logical: u32,
        place: impl Fn(usize, &[u8]) -> Option<u64>,
    ) -> Result<Vec<DirectoryEntry>> {
        let layout: DirLayout = self.rules.layout;
        let block = self.store.load(logical, Role::Leaf)?;
        let names = block.read(|bytes| {
            let mut names = Vec::new();
            for entry in Entries::new(bytes, layout)? {
                let entry = entry?;
                // A caller may join the name to a path.
                entry.check_name()?;
                if entry.inode == 0 || entry.name == b"." || entry.name == b".." {
                    continue;
                }
                if let Some(place) = place(entry.at, entry.name) {
                    let file_type =
                        if layout.file_types { FileType::from_dirent_byte(entry.file_type) } else { None };
                    let cookie = place + FIRST_PLACE + 1;
                    let (inode, name) = (InodeNr::new(entry.inode), entry.name.to_vec());
                    names.push(DirectoryEntry { inode, file_type, name, cookie });
                }
            }
            Ok::<_, dirblock::DirDefect>(names)
        });
        names.map_err(|defect| self.damaged(logical, defect))
    }
}

/// Moves entries to `out` in order of position until there are enough. Those of one position stay
/// together.
fn give(found: &mut Vec<DirectoryEntry>, at_least: usize, out: &mut Vec<DirectoryEntry>) {
    found.sort_by(|a, b| (a.cookie, &a.name).cmp(&(b.cookie, &b.name)));
    for entry in found.drain(..) {
        let shares_place = out.last().is_some_and(|last| last.cookie == entry.cookie);
        if out.len() >= at_least && !shares_place {
            break;
        }
        out.push(entry);
    }
}

/// Both hash words as one number, the position of a name. The low bit of the major word is not part
/// of the hash.
fn place_of_hash(hash: NameHash) -> u64 {
    (u64::from(hash.major >> 1) << 32) | u64::from(hash.minor)
}

/// The smallest major word of names at or behind a position.
fn major_of_place(place: u64) -> u32 {
    high32(place).saturating_mul(2)
}
