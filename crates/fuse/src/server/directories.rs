//! Listing directories.

use blockyard::engine::DirEntry;
use blockyard::{FileType, InodeId, Metadata};

use super::{NodeNr, Server};
use crate::errno::{Answer, Errno};

/// Entries that are read at a time.
const BATCH: usize = 128;
/// Bytes of an answer that the kernel has room for at least.
const ROOM_MIN: usize = 4096;
/// Bytes of an entry beside its name: the protocol's header, and with it the attributes.
const HEADER_PLAIN: usize = 24;
const HEADER_WITH_ATTRIBUTES: usize = 152;

/// One entry of a directory.
#[derive(Clone, Debug)]
pub struct Listed<'a> {
    /// The number of the inode.
    pub inode: u64,
    /// Where to go on behind it.
    pub next: u64,
    /// The type.
    pub kind: FileType,
    /// The name.
    pub name: &'a [u8],
    /// Attributes, where they were asked for; the kernel remembers the inode then, but for `.` and
    /// `..`.
    pub attributes: Option<Metadata>,
}

impl Server {
    /// Gives the entries of a directory from a position on (0 at first), with `.` and `..`, to
    /// `add` until that answers that there is no room for one more.
    ///
    /// # Errors
    /// `ENOTDIR`; of the device.
    pub fn list(&self, node: NodeNr, from: u64, add: impl FnMut(&Listed<'_>) -> bool) -> Answer<()> {
        self.list_entries(node, from, HEADER_PLAIN, add)
    }

    /// As [`Server::list`], with the attributes of what the names stand for.
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
        loop {
            let (batch, next) = self.inodes().read_dir_with_dots(id, at, BATCH)?;
            for together in batch.chunk_by(|one, other| one.next == other.next) {
                let bytes: usize = together.iter().map(|entry| entry_bytes(header, entry)).sum();
                // Names of one hash have one position: they are told in one answer, or those behind
                // the cut are never told.
                if together.len() > 1 && used > 0 && used + bytes > ROOM_MIN {
                    return Ok(());
                }
                used += bytes;
                for entry in together {
                    if !self.list_entry(id, entry, header == HEADER_WITH_ATTRIBUTES, &mut add)? {
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

    /// Tells one entry; gives whether there is room for more.
    fn list_entry(
        &self,
        directory: InodeId,
        entry: &DirEntry,
        with_attributes: bool,
        add: &mut impl FnMut(&Listed<'_>) -> bool,
    ) -> Answer<bool> {
        let is_dot = matches!(&*entry.name, b"." | b"..");
        let found = match (with_attributes && !is_dot, entry.kind) {
            (true, _) => match self.remembered_entry(directory, &entry.name) {
                Err(Errno::STALE) | Ok(None) => return Ok(true),
                found => found?,
            },
            (false, Some(_)) => None,
            (false, None) => match self.inodes().lookup(directory, &entry.name) {
                Ok(found) => Some(found),
                Err(_) => return Ok(true),
            },
        };
        let kind = found.map(|found| found.file_type()).or(entry.kind).unwrap_or(FileType::Directory);
        let listed = Listed {
            inode: u64::from(entry.inode.raw()),
            next: entry.next,
            kind,
            name: &entry.name,
            attributes: found.filter(|_| with_attributes && !is_dot),
        };
        if !add(&listed) {
            return Ok(true);
        }
        if let Some(found) = listed.attributes {
            // The kernel was not told of it after all.
            self.nodes.forget(NodeNr::of(found.ino()), 1);
        }
        Ok(false)
    }

    /// What a name stands for, remembered; nothing when it was removed meanwhile.
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
