//! Opening for writing: what is noted is verified, then finished; closing: references end.

use super::{Listed, OrphanNote, Orphans};
use crate::inode::Inode;
use crate::{Error, FileSystem, OpContext, Result};
use blockyard_disk::inode::{FileType, InodeMap};
use blockyard_disk::num::u64_from_usize;
use blockyard_disk::{InodeNr, bitmap};
use blockyard_sync::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

/// An inode that was found noted.
pub(crate) type FoundOrphan = Arc<Inode>;

impl FileSystem {
    /// Reads what is noted, newest of the list first, then the file's slots. Writes nothing. `kept`: whether there is
    /// a journal, so that notes are worth keeping.
    ///
    /// # Errors
    /// [`Error::Refused`] when a note names an inode that can not be an orphan, or the list has a loop; corruption.
    pub(crate) fn find_orphans(&self, kept: bool) -> Result<(Orphans, Vec<FoundOrphan>)> {
        let mut orphans = Orphans { kept, ..Orphans::none() };
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        let mut next = self.sb.raw().last_orphan().unwrap_or(InodeNr::ZERO);
        while next != InodeNr::ZERO {
            let inode = self.noted_inode(next, &mut seen)?;
            next = InodeNr::new(inode.core().slot.raw().i_dtime.get());
            found.push(inode);
        }
        // The oldest is pushed first, so that the links come out as they are on disk.
        for inode in found.iter().rev() {
            let table = self.table_of(inode.number())?;
            let entry = Listed { inode: Arc::clone(inode), table };
            let (key, _) = orphans.list.lock().push(inode.number(), entry);
            inode.core_mut().orphan = Some(OrphanNote::List(key));
        }
        if let Some(number) = self.sb.orphan_file_inode() {
            let file = self.load_orphan_file(number)?;
            for (inode, note) in file.notes() {
                let inode = self.noted_inode(inode, &mut seen)?;
                inode.core_mut().orphan = Some(note);
                found.push(inode);
            }
            orphans.file = Some(file);
        }
        Ok((orphans, found))
    }

    /// An inode that a note names, when it can be one: an ordinary inode in use, noted once.
    fn noted_inode(&self, number: InodeNr, seen: &mut BTreeSet<InodeNr>) -> Result<Arc<Inode>> {
        let damaged = |why: &str| {
            Error::Refused(format!("inode {number} is noted as an orphan, but {why}: run a check first"))
        };
        let special = number < self.sb.first_inode() || self.sb.orphan_file_inode() == Some(number);
        if special || number.raw() > self.geometry().inodes_count() {
            return Err(damaged("its number is not one of a file"));
        }
        if !seen.insert(number) {
            return Err(damaged("twice"));
        }
        let (group, index) = self.geometry().locate_inode(number);
        let mut bits = vec![0; self.block_size()];
        self.groups.copy_inode_bitmap(group, &mut bits)?;
        if !bitmap::test(&bits, index) {
            return Err(damaged("it is free"));
        }
        self.inodes.get(number, || self.load_orphan(number)).map_err(|error| match error {
            Error::StaleInode(_) => damaged("it was never used"),
            other => other,
        })
    }

    /// Finishes what was found: inodes without links are deleted, files with links cut to their size.
    pub(crate) fn finish_orphans(&self, ctx: &OpContext, found: Vec<FoundOrphan>) -> Result<()> {
        for inode in found {
            if inode.core().links() == 0 {
                self.delete_if_unused(ctx, &inode)?;
                continue;
            }
            if inode.kind() == FileType::Regular {
                self.cut_to_size(ctx, &inode)?;
            }
            let handle = self.begin(ctx, 2)?;
            let mut core = inode.core_mut();
            self.join_inode(&handle, &inode, &mut core)?;
            self.remove_orphan(&handle, &mut core);
        }
        Ok(())
    }

    /// Frees what a file has behind its size, and zeroes the rest of its last block.
    fn cut_to_size(&self, ctx: &OpContext, inode: &Arc<Inode>) -> Result<()> {
        if inode.core().map == InodeMap::Inline {
            return Ok(());
        }
        let mut data = inode.write();
        let size = inode.core().size;
        let end = size.next_multiple_of(u64_from_usize(self.block_size()));
        if size < end {
            self.zero_bytes(ctx, inode, &mut data, size..end)?;
        }
        self.truncate_locked(ctx, inode, &mut data, size)
    }

    /// Ends what operations left over. The inodes without links that somebody still holds open are deleted: the references end
    /// with the instance; so are those whose deletion an error ended. Truncations are finished.
    pub(crate) fn end_references(&self, ctx: &OpContext) -> Result<()> {
        for inode in self.inodes.all() {
            let (used, unfinished) = {
                let core = inode.core();
                let is_file = inode.number() >= self.sb.first_inode();
                (core.links() == 0 && !core.deleted && is_file, core.unfinished && core.links() > 0)
            };
            if used {
                inode.opens.store(0, Ordering::Release);
                self.delete_if_unused(ctx, &inode)?;
            }
            if unfinished {
                let mut data = inode.write();
                self.finish_truncation(ctx, &inode, &mut data)?;
            }
        }
        Ok(())
    }
}
