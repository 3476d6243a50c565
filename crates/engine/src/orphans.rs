//! Orphans: inodes whose removal or truncation must survive a crash.
//!
//! Two kinds of inodes are recorded on disk: inodes without a name, until they are deleted or get a
//! name, and files whose truncation needs more than one handle or fails midway. The record is added
//! in the transaction that makes the inode an orphan, and removed in the transaction that ends this
//! state. Records go into the orphan file if the image has one with a free slot. Otherwise they go
//! on the list that starts in the superblock and is linked through `i_dtime`. When an image is
//! opened for writing, the recorded deletions and truncations are finished; a read-only open leaves
//! them.
//!
//! As in Linux, no records are kept without a journal, because after a crash they could be wrong.
//!
//! A record always names an inode in use: it is added after the inode is marked as used, and the
//! handle that frees the inode first removes the record. Adding and removing need no reading and no
//! space, so they cannot fail.

mod file;
mod list;

use crate::cache::Buffer;
use crate::inode::{Inode, InodeCore, Inodes, OrphanNote};
use crate::txn::Handle;
use blockyard_disk::InodeNr;
use blockyard_sync::{Mutex, rank};
pub(crate) use file::OrphanFile;
use list::List;
use std::sync::Arc;

/// The orphan records of an open file system.
pub(crate) struct Orphans {
    /// Whether records are kept; false without a journal and on read-only instances.
    kept: bool,
    list: Mutex<List<Listed>>,
    file: Option<OrphanFile>,
}

/// An inode of the list. The inode and its table block stay in memory while the inode is on the
/// list: if the next older inode leaves the list, this inode's `i_dtime` must change.
#[derive(Clone)]
struct Listed {
    inode: Arc<Inode>,
    table: (Arc<Buffer>, usize),
}

impl Orphans {
    /// Keeps no records.
    pub(crate) fn none() -> Self {
        Self::new(false)
    }

    /// No records yet; `kept` says whether records are kept.
    pub(crate) fn new(kept: bool) -> Self {
        Self { kept, list: Mutex::new(rank::ORPHANS, List::default()), file: None }
    }

    /// Takes over a record from the list on disk. The caller begins with the oldest one. `table` is
    /// the inode's table block and the byte offset in it.
    pub(crate) fn note_listed(&self, inode: &Arc<Inode>, table: (Arc<Buffer>, usize)) {
        let entry = Listed { inode: Arc::clone(inode), table };
        let (key, _) = self.list.lock().push(inode.number(), entry);
        let before = inode.core_mut().orphan.replace(OrphanNote::List(key));
        debug_assert!(before.is_none(), "inode {} is noted twice", inode.number());
    }

    /// Uses this file for records from now on.
    pub(crate) fn keep_file(&mut self, file: OrphanFile) {
        self.file = Some(file);
    }

    /// Records that the inode must be deleted or truncated after a crash. Does nothing if it is
    /// recorded already. The inode must have joined the handle.
    pub(crate) fn add_orphan(&self, handle: &Handle<'_>, inode: &Arc<Inode>, core: &mut InodeCore) {
        debug_assert!(!core.deleted, "inode {} is deleted", inode.number());
        if !self.kept || core.orphan.is_some() {
            return;
        }
        let noted = self.file.as_ref().and_then(|file| file.add(handle, inode.number()));
        if noted.is_some() {
            core.orphan = noted;
            return;
        }
        let table = core.table().expect("the inode has joined the handle");
        let entry = Listed { inode: Arc::clone(inode), table };
        let (key, older) = self.list.lock().push(inode.number(), entry);
        core.orphan = Some(OrphanNote::List(key));
        core.set_orphan_link(older);
    }

    /// Removes an inode's record. Does nothing if there is none. The inode must have joined the
    /// handle.
    pub(crate) fn remove_orphan(&self, handle: &Handle<'_>, core: &mut InodeCore) {
        match core.orphan.take() {
            None => {}
            Some(OrphanNote::File { block, slot }) => {
                debug_assert!(self.file.is_some(), "a note in a file that is not there");
                if let Some(file) = &self.file {
                    file.remove(handle, block, slot);
                }
            }
            Some(OrphanNote::List(key)) => {
                if let Some(newer) = self.list.lock().remove(key) {
                    handle.join(&newer.table.0);
                }
                core.set_orphan_link(InodeNr::ZERO);
            }
        }
    }

    /// Stores the list's changed links in the inodes, and returns the head of the list. The gate
    /// must be closed.
    pub(crate) fn freeze_orphans(&self, inodes: &Inodes) -> Option<InodeNr> {
        let (head, relinked) = {
            let mut list = self.list.lock();
            (list.head(), list.take_relinked())
        };
        for (entry, older) in relinked {
            let mut core = entry.inode.core_mut_child();
            core.relink_orphan(older, entry.table);
            inodes.note_relinked(&entry.inode);
        }
        head
    }
}
