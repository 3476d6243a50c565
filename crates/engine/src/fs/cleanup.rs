//! Finishes deletions and truncations. When an image is opened for writing, the inodes that its
//! orphan records name are deleted or truncated. When the image is closed, the same is done to
//! inodes that open references or errors have held up.

use super::FileSystem;
use crate::inode::Inode;
use crate::mapping::Mapping;
use crate::orphans::{OrphanFile, Orphans};
use crate::volume::Volume;
use crate::{Error, OpContext, OrphanDefect, Result};
use blockyard_disk::inode::{FileType, InodeMap};
use blockyard_disk::num::u64_from_usize;
use blockyard_disk::{BlockNr, InodeNr, bitmap};
use std::collections::BTreeSet;
use std::sync::Arc;

/// An inode found in an orphan record.
pub(super) type FoundOrphan = Arc<Inode>;

/// Reads the orphan records: those of the orphan list, newest first, then those in the orphan file.
/// Writes nothing.
///
/// # Errors
/// [`Error::Orphan`] when a record names an inode that cannot be an orphan, or the list has a loop;
/// [`Error::Corrupt`], [`Error::Device`].
pub(super) fn find_orphans(volume: &Volume, mapping: &Mapping) -> Result<(Orphans, Vec<FoundOrphan>)> {
    let mut search = Search { volume, seen: BTreeSet::new() };
    let mut found = Vec::new();
    let mut next = volume.sb.raw().last_orphan().unwrap_or(InodeNr::ZERO);
    while next != InodeNr::ZERO {
        let inode = search.noted_inode(next)?;
        next = InodeNr::new(inode.core().slot.raw().i_dtime.get());
        found.push(inode);
    }
    // Without a journal, no orphan records are kept.
    let mut orphans = Orphans::new(volume.journal.is_durable());
    // The oldest is pushed first, so that the list has the same order as on disk.
    for inode in found.iter().rev() {
        orphans.note_listed(inode, volume.inodes.table_of(inode.number())?);
    }
    if let Some(number) = volume.sb.orphan_file_inode() {
        let inode = volume.inodes.inode(number)?;
        let file = OrphanFile::load(&inode, &volume.cache, |core, logical| {
            let mapped = mapping.map_block(&inode, core, logical, 1)?;
            Ok(mapped.physical.filter(|_| !mapped.unwritten).map(BlockNr::new))
        })?;
        for (inode, note) in file.notes() {
            let inode = search.noted_inode(inode)?;
            inode.core_mut().orphan = Some(note);
            found.push(inode);
        }
        orphans.keep_file(file);
    }
    Ok((orphans, found))
}

/// A search for the inodes that orphan records name.
struct Search<'a> {
    volume: &'a Volume,
    seen: BTreeSet<InodeNr>,
}

impl Search<'_> {
    /// An inode that a record names, if it can be an orphan: an ordinary inode in use, named once.
    fn noted_inode(&mut self, number: InodeNr) -> Result<Arc<Inode>> {
        let damaged = |why| Error::Orphan { inode: number, why };
        let special =
            number < self.volume.sb.first_inode() || self.volume.sb.orphan_file_inode() == Some(number);
        if special || number.raw() > self.volume.geometry().inodes_count() {
            return Err(damaged(OrphanDefect::Number));
        }
        if !self.seen.insert(number) {
            return Err(damaged(OrphanDefect::Twice));
        }
        let (group, index) = self.volume.geometry().locate_inode(number);
        let mut bits = vec![0; self.volume.block_size()];
        self.volume.groups.copy_inode_bitmap(group, &mut bits)?;
        if !bitmap::test(&bits, index) {
            return Err(damaged(OrphanDefect::Free));
        }
        self.volume.inodes.table.get(number, || self.volume.inodes.load_orphan(number)).map_err(|error| {
            match error {
                Error::StaleInode(_) => damaged(OrphanDefect::NeverUsed),
                other => other,
            }
        })
    }
}

impl FileSystem {
    /// Finishes the orphans that were found: deletes inodes without links, and cuts files with
    /// links to their size.
    pub(super) fn finish_orphans(&self, ctx: &OpContext, found: Vec<FoundOrphan>) -> Result<()> {
        for inode in found {
            if inode.core().links() == 0 {
                self.xattrs.delete_if_unused(ctx, &inode)?;
                continue;
            }
            if inode.kind() == FileType::Regular {
                self.cut_to_size(ctx, &inode)?;
            }
            let handle = self.volume.begin(ctx, 2)?;
            let mut core = inode.core_mut();
            self.volume.inodes.join_inode(&handle, &inode, &mut core)?;
            self.volume.orphans.remove_orphan(&handle, &mut core);
        }
        Ok(())
    }

    /// Frees a file's blocks behind its end, and zeroes the rest of its last block.
    fn cut_to_size(&self, ctx: &OpContext, inode: &Arc<Inode>) -> Result<()> {
        if inode.core().map == InodeMap::Inline {
            return Ok(());
        }
        let mut data = inode.write();
        let size = inode.core().size;
        let end = size.next_multiple_of(u64_from_usize(self.volume.block_size()));
        if size < end {
            self.files.locked(ctx, inode, &mut data).zero_bytes(size..end)?;
        }
        self.files.locked(ctx, inode, &mut data).truncate_locked(size)
    }

    /// Deletes inodes without links that are still open (the references end with the instance), and
    /// inodes whose deletion failed midway. Finishes truncations that failed midway.
    pub(super) fn end_references(&self, ctx: &OpContext) -> Result<()> {
        for inode in self.volume.inodes.table.all() {
            let (used, unfinished) = {
                let core = inode.core();
                let is_file = inode.number() >= self.volume.sb.first_inode();
                (core.links() == 0 && !core.deleted && is_file, core.unfinished && core.links() > 0)
            };
            if used {
                inode.opens.end_all();
                self.xattrs.delete_if_unused(ctx, &inode)?;
            }
            if unfinished {
                let mut data = inode.write();
                self.files.locked(ctx, &inode, &mut data).finish_truncation()?;
            }
        }
        Ok(())
    }
}
