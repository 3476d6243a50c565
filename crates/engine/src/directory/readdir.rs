//! Reading a directory in a stable order.
//!
//! A cookie names the position behind an entry. Reading continues there whatever was created or
//! removed in between, and every name that stayed is returned exactly once. Directories that have,
//! or may get, an index are read in hash order, so no name is missed if the directory gets an index
//! meanwhile. Names that agree in both hash words share a position and are always returned
//! together. Other directories are read block by block, and each block from its start.
//!
//! A damaged block hides only its own names: those of the other blocks are returned, together with
//! the error. Reading ends early only after more than [`DAMAGED_MAX`] damaged blocks in a row, or
//! at an error other than damage.

use super::damage::{Leaf, Leaves};
use super::{DAMAGED_MAX, Directory, DirectoryStore, Role};
use crate::extents::NodeBlock;
use crate::{Error, Result};
use blockyard_disk::InodeNr;
use blockyard_disk::dirblock::{self, DirLayout, Entries};
use blockyard_disk::dirhash::{DirHasher, NameHash};
use blockyard_disk::htree::CONTINUES;
use blockyard_disk::inode::FileType;
use blockyard_disk::num::{high32, u64_from_usize};
use std::ops::RangeBounds;
use std::sync::Arc;

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
    /// Where to continue after this entry.
    pub(crate) cookie: u64,
}

/// Entries that were read together.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) entries: Vec<DirectoryEntry>,
    /// The first error. The entries include the names before the place of the error, and those
    /// behind it unless reading could not go on.
    pub(crate) error: Option<Error>,
    /// Damaged blocks that were passed over since the last block whose names could be read.
    damaged: usize,
}

impl Batch {
    /// Returns what was read. If the read met damage, passes over it: notes the error in the batch
    /// and returns `None`.
    ///
    /// # Errors
    /// The error of the read, if it is not damage, or if [`DAMAGED_MAX`] damaged blocks in a row
    /// were passed over already.
    fn pass_over<T>(&mut self, read: Result<T>) -> Result<Option<T>> {
        match read {
            Err(error @ Error::Corrupt(_)) if self.damaged < DAMAGED_MAX => {
                self.damaged += 1;
                self.error.get_or_insert(error);
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    /// The names of a block that was read; none if it is damaged and passed over.
    ///
    /// # Errors
    /// As [`Self::pass_over`].
    fn names_of(&mut self, read: Result<Vec<DirectoryEntry>>) -> Result<Vec<DirectoryEntry>> {
        let names = self.pass_over(read)?;
        if names.is_some() {
            self.damaged = 0;
        }
        Ok(names.unwrap_or_default())
    }
}

impl<S: DirectoryStore> Directory<'_, S> {
    /// The entries from `cookie` on, `.` and `..` included: at least `at_least` of them unless the
    /// directory ends first or cannot be read further. If there are no entries at all, it has ended
    /// or cannot be read further.
    pub(crate) fn read(&self, cookie: u64, at_least: usize) -> Batch {
        let mut batch = Batch::default();
        if let Err(error) = self.read_into(&mut batch, cookie, at_least) {
            batch.error.get_or_insert(error);
        }
        if batch.error.is_some() {
            self.store.damage().note();
        }
        batch
    }

    fn read_into(&self, batch: &mut Batch, cookie: u64, at_least: usize) -> Result<()> {
        if cookie < FIRST_PLACE {
            self.read_dots(cookie, batch)?;
        }
        let from = cookie.saturating_sub(FIRST_PLACE);
        if batch.entries.len() >= at_least {
            return Ok(());
        }
        if self.indexed {
            self.read_tree(from, at_least, batch)
        } else if self.rules.may_index && self.store.blocks() == 1 {
            let mut found = self.hashed_names(0, &self.rules.default_hasher(), from..)?;
            give(&mut found, at_least, &mut batch.entries);
            Ok(())
        } else {
            self.read_linear(from, at_least, batch)
        }
    }

    /// Reads `.` and `..`. If the first block, which holds `..`, is damaged, only `.` is returned.
    fn read_dots(&self, cookie: u64, batch: &mut Batch) -> Result<()> {
        let parent = batch.pass_over(self.parent())?;
        let dots = [(&b"."[..], Some(self.store.inode()), 1), (&b".."[..], parent, 2)];
        let file_type = self.rules.layout.file_types.then_some(FileType::Directory);
        for (name, inode, behind) in dots {
            if let Some(inode) = inode.filter(|_| behind > cookie) {
                batch.entries.push(DirectoryEntry { inode, file_type, name: name.to_vec(), cookie: behind });
            }
        }
        Ok(())
    }

    /// Reads the leaves in index order. If a hash continues in further leaves, the names of all
    /// these leaves are sorted together.
    fn read_tree(&self, from: u64, at_least: usize, batch: &mut Batch) -> Result<()> {
        let first = major_of_place(from);
        let given = batch.entries.len();
        let path = self.path(|_| first);
        let Some(mut path) = batch.pass_over(path)? else {
            return self.read_without_index(from, at_least, &self.likely_hasher(), batch);
        };
        loop {
            let hasher = path.hasher;
            let mut found = Vec::new();
            let next = loop {
                match batch.names_of(self.hashed_names(path.leaf, &hasher, from..)) {
                    Ok(names) => found.extend(names),
                    Err(error) => break Err(error),
                }
                match batch.pass_over(self.advance(&mut path)) {
                    // The index no longer leads to the leaves below or behind its damaged block.
                    Ok(None) => {
                        batch.entries.truncate(given);
                        return self.read_without_index(from, at_least, &hasher, batch);
                    }
                    Ok(Some(Some(key))) if key & CONTINUES != 0 => {}
                    Ok(Some(next)) => break Ok(next),
                    Err(error) => break Err(error),
                }
            };
            // Even if reading cannot go on, the names found so far are returned.
            give(&mut found, at_least, &mut batch.entries);
            if next?.is_none() || batch.entries.len() >= at_least {
                return Ok(());
            }
        }
    }

    /// Reads the names of all leaves in hash order, without the index, which is damaged.
    fn read_without_index(
        &self,
        from: u64,
        at_least: usize,
        hasher: &DirHasher,
        batch: &mut Batch,
    ) -> Result<()> {
        let kept = self.store.damage().leaves().filter(|kept| kept.are_of(self.store.blocks(), hasher));
        let (leaves, searched) = match kept {
            Some(leaves) => (leaves, Ok(())),
            None => self.search_leaves(hasher),
        };
        let mut groups = leaves.groups_from(from).peekable();
        let mut start = from;
        while let Some(group) = groups.next() {
            // Only names with positions in `start..end` are returned. Names before `from` were
            // listed earlier. Other names outside the range were added after the search. After the
            // cookie of such a name, reading would continue behind `end` and miss names of the next
            // group, or continue before `start` and repeat names of the group before.
            let end = groups.peek().map_or(u64::MAX, |next| next[0].first);
            let mut found = Vec::new();
            let group_read = group.iter().try_for_each(|leaf| {
                found.extend(batch.names_of(self.hashed_names(leaf.logical, hasher, start..end))?);
                Ok::<_, Error>(())
            });
            start = end;
            // Even if reading cannot go on, the names found so far are returned.
            give(&mut found, at_least, &mut batch.entries);
            group_read?;
            if batch.entries.len() >= at_least {
                break;
            }
        }
        searched
    }

    /// Searches the whole directory for leaves, and keeps them for the next batches. If the search
    /// cannot go on, returns the leaves that it has found, and the error.
    fn search_leaves(&self, hasher: &DirHasher) -> (Arc<Leaves>, Result<()>) {
        let blocks = self.store.blocks();
        // The result is kept for other batches, so the damage that this batch has met must not
        // shorten the search.
        let (mut search, mut found) = (Batch::default(), Vec::new());
        let searched = (1..blocks).try_for_each(|logical| {
            // Blocks of the index are passed over like damaged leaves.
            let names = search.names_of(self.hashed_names(logical, hasher, ..))?;
            let places = || names.iter().map(|entry| entry.cookie - FIRST_PLACE - 1);
            if let (Some(first), Some(last)) = (places().min(), places().max()) {
                found.push(Leaf { logical, first, last });
            }
            Ok::<_, Error>(())
        });
        let leaves = Arc::new(Leaves::new(found, blocks, *hasher));
        // After too much damage, another search would find no more. After an error of the device
        // it might.
        if matches!(searched, Ok(()) | Err(Error::Corrupt(_))) {
            self.store.damage().keep_leaves(&leaves);
        }
        (leaves, searched)
    }

    /// The names of one leaf whose positions are among `places`, with their positions.
    fn hashed_names(
        &self,
        logical: u32,
        hasher: &DirHasher,
        places: impl RangeBounds<u64>,
    ) -> Result<Vec<DirectoryEntry>> {
        self.names(logical, |_, name| {
            let place = place_of_hash(hasher.hash(name));
            places.contains(&place).then_some(place)
        })
    }

    fn read_linear(&self, from: u64, at_least: usize, batch: &mut Batch) -> Result<()> {
        let block_size = u64_from_usize(self.rules.layout.block_size);
        for logical in 0..self.store.blocks() {
            let start = u64::from(logical) * block_size;
            if start + block_size <= from {
                continue;
            }
            let place = |at| start + u64_from_usize(at);
            let names = self.names(logical, |at, _| (place(at) >= from).then_some(place(at)));
            let mut found = batch.names_of(names)?;
            give(&mut found, at_least, &mut batch.entries);
            if batch.entries.len() >= at_least {
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
                // A caller may join the name to a path, so the name must be valid.
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

/// Moves entries to `out` in order of position until there are enough. Entries with the same
/// position stay together.
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
