//! Listing directories.

use std::cell::Cell;

use blockyard::engine::DirEntry;
use blockyard::{FileType, InodeId, Metadata};

use super::{NodeNr, Server};
use crate::errno::Answer;

/// The number of entries that are read from the directory at once.
const BATCH: usize = 128;
/// The least room in bytes that the kernel offers for an answer.
const ROOM_MIN: usize = 4096;
/// Bytes of an entry besides its name: the protocol's header, without and with attributes.
const HEADER_PLAIN: usize = 24;
const HEADER_WITH_ATTRIBUTES: usize = 152;

/// One entry of a directory.
#[derive(Clone, Debug)]
pub struct Listed<'a> {
    /// The inode number.
    pub inode: u64,
    /// The position after this entry.
    pub next: u64,
    /// The type.
    pub kind: FileType,
    /// The name.
    pub name: &'a [u8],
    /// Attributes, if they were requested and can be read. `None` for `.` and `..`. An answer with
    /// attributes makes the kernel remember the inode.
    pub attributes: Option<Metadata>,
    /// Whether attributes were requested but the inode cannot be read. Then the answer must make
    /// the kernel forget the number at once. A program that needs the inode gets the error from a
    /// look-up.
    pub is_unreadable: bool,
}

impl Server {
    /// Passes the entries of a directory, including `.` and `..`, to `add`, from position `from` (0
    /// at first) on. Stops
    /// - when `add` returns true, because there was no room for that entry;
    /// - before entries that share one position, if there might not be room for all of them;
    /// - at an error. If `add` has taken an entry by then, this call succeeds, and a later call
    ///   from that position returns the error.
    ///
    /// # Errors
    /// `ENOTDIR`; a device error; `EUCLEAN` for damage. In these cases `add` has taken no entry.
    pub fn list(&self, node: NodeNr, from: u64, add: impl FnMut(&Listed<'_>) -> bool) -> Answer<()> {
        self.list_entries(node, from, HEADER_PLAIN, add)
    }

    /// As [`Server::list`], with the attributes of each entry.
    ///
    /// # Errors
    /// As [`Server::list`].
    pub fn list_with_attributes(
        &self,
        node: NodeNr,
        from: u64,
        add: impl FnMut(&Listed<'_>) -> bool,
    ) -> Answer<()> {
        self.list_entries(node, from, HEADER_WITH_ATTRIBUTES, add)
    }

    fn list_entries(
        &self,
        node: NodeNr,
        from: u64,
        header: usize,
        mut add: impl FnMut(&Listed<'_>) -> bool,
    ) -> Answer<()> {
        let id = self.id(node)?;
        let (mut at, mut used) = (from, 0);
        let has_told = Cell::new(false);
        let mut add = |listed: &Listed<'_>| {
            let is_full = add(listed);
            has_told.set(has_told.get() || !is_full);
            is_full
        };
        loop {
            let (batch, next) = match self.inodes().read_dir_with_dots(id, at, BATCH) {
                Err(_) if has_told.get() => return Ok(()),
                read => read?,
            };
            for together in batch.chunk_by(|one, other| one.next == other.next) {
                let bytes: usize = together.iter().map(|entry| entry_bytes(header, entry)).sum();
                // Names with the same hash share one position. They must go into one answer: the
                // next answer begins after this position, and would leave out the rest of them.
                if together.len() > 1 && used > 0 && used + bytes > ROOM_MIN {
                    return Ok(());
                }
                used += bytes;
                for entry in together {
                    if !self.list_entry(id, entry, header == HEADER_WITH_ATTRIBUTES, &mut add) {
                        return Ok(());
                    }
                }
            }
            match next {
                Some(next) => at = next,
                None => break,
            }
        }
        self.note_access(id);
        Ok(())
    }

    /// Passes one entry to `add`. Returns false if `add` had no room for the entry.
    fn list_entry(
        &self,
        directory: InodeId,
        entry: &DirEntry,
        with_attributes: bool,
        add: &mut impl FnMut(&Listed<'_>) -> bool,
    ) -> bool {
        let with_attributes = with_attributes && !matches!(&*entry.name, b"." | b"..");
        // A name is listed even if its inode cannot be read.
        let found = match (with_attributes, entry.kind) {
            (true, _) => match self.remembered_entry(directory, &entry.name) {
                // The name was removed meanwhile.
                Ok(None) => return true,
                found => found.ok().flatten(),
            },
            (false, Some(_)) => None,
            (false, None) => self.inodes().lookup(directory, &entry.name).ok(),
        };
        let kind = found.map(|found| found.file_type()).or(entry.kind).unwrap_or(FileType::Directory);
        let listed = Listed {
            inode: u64::from(entry.inode.raw()),
            next: entry.next,
            kind,
            name: &entry.name,
            attributes: found.filter(|_| with_attributes),
            is_unreadable: with_attributes && found.is_none(),
        };
        if listed.is_unreadable {
            self.nodes.note_unreadable(NodeNr(listed.inode));
        }
        if !add(&listed) {
            return true;
        }
        // There was no room, so the kernel was not told of this inode after all.
        if let Some(found) = listed.attributes {
            self.nodes.forget(NodeNr::of(found.ino()), 1);
        } else if listed.is_unreadable {
            self.nodes.forget(NodeNr(listed.inode), 1);
        }
        false
    }

    /// Looks up a name and remembers its inode; `None` if the name was removed meanwhile.
    fn remembered_entry(&self, directory: InodeId, name: &[u8]) -> Answer<Option<Metadata>> {
        const GONE: i32 = 2;
        let found = match self.inodes().lookup(directory, name) {
            Err(error) if error.errno() == GONE => return Ok(None),
            found => found?,
        };
        self.nodes.remember(self.inodes(), found.id())?;
        Ok(Some(found))
    }
}

fn entry_bytes(header: usize, entry: &DirEntry) -> usize {
    (header + entry.name.len()).next_multiple_of(8)
}
