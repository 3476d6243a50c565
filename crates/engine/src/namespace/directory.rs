//! One directory: blocks of entries, searched one by one. An indexed directory is changed as a linear one after its
//! index was given up, which the format allows.

use crate::cache::{BlockKind, Buffer};
use crate::extents::Extent;
use crate::file::How;
use crate::inode::{Inode, InodeCore};
use crate::txn::Handle;
use crate::{Error, FileSystem, OpContext, Result};
use blockyard_disk::checksum::verify_dir_leaf;
use blockyard_disk::dirblock::{self, DirDefect, DirLayout, Entries, Found, NewEntry};
use blockyard_disk::inode::{FileType, InodeFlags};
use blockyard_disk::num::{u32_from_u64, u64_from_usize};
use blockyard_disk::{BlockNr, Corruption, CorruptionKind, Incompat, InodeNr};
use std::sync::Arc;

/// An entry as `readdir` gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The inode.
    pub inode: InodeNr,
    /// The type that the entry records; `None` where directories keep none.
    pub kind: Option<FileType>,
    /// The name's bytes.
    pub name: Vec<u8>,
    /// Where to go on after this entry.
    pub next: u64,
}

impl FileSystem {
    /// How directory blocks look on this file system.
    pub(crate) fn dir_layout(&self) -> DirLayout {
        DirLayout {
            block_size: self.block_size(),
            tail: self.sb.features().has_metadata_csum(),
            file_types: self.sb.features().incompat.contains(Incompat::FILETYPE),
            inodes_count: self.geometry().inodes_count(),
        }
    }

    /// Blocks of a directory.
    pub(crate) fn dir_blocks(&self, core: &InodeCore) -> u32 {
        u32_from_u64(core.size >> self.geometry().block_bits())
    }

    /// One block of a directory, verified as a leaf.
    pub(crate) fn dir_block(&self, inode: &Inode, core: &InodeCore, logical: u32) -> Result<Arc<Buffer>> {
        let mapped = self.map_block(inode, core, logical, 1)?;
        let place = mapped.physical.filter(|_| !mapped.unwritten).map(BlockNr::new);
        let Some(block) = place else {
            return Err(dir_corrupt(inode, CorruptionKind::DirHole));
        };
        let layout = self.dir_layout();
        let indexed = core.flags().contains(InodeFlags::INDEX);
        self.cache.read(block, BlockKind::DirectoryLeaf(core.seed), |bytes| {
            dirblock::verify(bytes, layout).map_err(|defect| defect_of(inode, defect))?;
            if !indexed {
                verify_dir_leaf(core.seed, bytes)
                    .map_err(|found| found.in_inode(inode.number()).in_block(block))?;
            }
            Ok(())
        })
    }

    /// The entry of a name and the block that holds it.
    pub(crate) fn find_entry(
        &self,
        inode: &Inode,
        core: &InodeCore,
        name: &[u8],
    ) -> Result<Option<(Arc<Buffer>, Found)>> {
        let layout = self.dir_layout();
        for logical in 0..self.dir_blocks(core) {
            let buffer = self.dir_block(inode, core, logical)?;
            let found = buffer.read(|bytes| dirblock::find(bytes, layout, name));
            if let Some(found) = found.map_err(|defect| defect_of(inode, defect))? {
                return Ok(Some((buffer, found)));
            }
        }
        Ok(None)
    }

    /// Enters a name that is not there yet; the directory grows by a block when none has room.
    pub(crate) fn enter_name(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        inode: &Arc<Inode>,
        core: &mut InodeCore,
        entry: &NewEntry<'_>,
    ) -> Result<()> {
        let layout = self.dir_layout();
        for logical in 0..self.dir_blocks(core) {
            let buffer = self.dir_block(inode, core, logical)?;
            handle.join(&buffer);
            let entered = buffer.write(|bytes| dirblock::insert(bytes, layout, entry));
            if entered.map_err(|defect| defect_of(inode, defect))? {
                return Ok(());
            }
        }
        let buffer = self.grow_directory(ctx, handle, inode, core)?;
        let entered = buffer.write(|bytes| dirblock::insert(bytes, layout, entry));
        entered.map_err(|defect| defect_of(inode, defect))?;
        Ok(())
    }

    /// Adds an empty leaf at the end of a directory.
    pub(crate) fn grow_directory(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        inode: &Arc<Inode>,
        core: &mut InodeCore,
    ) -> Result<Arc<Buffer>> {
        let logical = self.dir_blocks(core);
        let block = self.map_directory_block(ctx, handle, inode, core, logical)?;
        let buffer = handle.create(block, BlockKind::DirectoryLeaf(core.seed));
        buffer.write(|bytes| dirblock::init_empty(bytes, self.dir_layout()));
        let size = u64::from(logical + 1) * u64_from_usize(self.block_size());
        core.set_size(size);
        Ok(buffer)
    }

    /// Allocates and maps one block of a directory.
    pub(crate) fn map_directory_block(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        inode: &Arc<Inode>,
        core: &mut InodeCore,
        logical: u32,
    ) -> Result<BlockNr> {
        let here = self.lookup_block(inode, core, logical)?;
        let how = How { unwritten: false, reserved: false, exact: true };
        let plan = self.plan_blocks(ctx, inode, core, &here, (logical, 1), how)?;
        let Extent { physical, .. } = plan.extent;
        self.apply_plan(ctx, handle, inode, core, plan)?;
        Ok(BlockNr::new(physical))
    }

    /// Whether a directory holds nothing but `.` and `..`.
    pub(crate) fn is_empty_directory(&self, inode: &Inode, core: &InodeCore) -> Result<bool> {
        let layout = self.dir_layout();
        for logical in 0..self.dir_blocks(core) {
            let buffer = self.dir_block(inode, core, logical)?;
            let empty = buffer.read(|bytes| dirblock::is_empty(bytes, layout));
            if !empty.map_err(|defect| defect_of(inode, defect))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Gives up a directory's index: its root and nodes become empty leaves as far as entries go. Called before the
    /// first linear change.
    pub(crate) fn give_up_index(
        &self,
        handle: &Handle<'_>,
        inode: &Arc<Inode>,
        core: &mut InodeCore,
    ) -> Result<()> {
        if !core.flags().contains(InodeFlags::INDEX) {
            return Ok(());
        }
        Err(Error::NotSupported("changing an indexed directory")).inspect_err(|_| {
            let _ = (handle, inode);
        })
    }

    /// Calls `visit` with the entries from a position on until it gives false. Positions are stable while entries
    /// come and go elsewhere: byte offsets.
    pub(crate) fn each_entry(
        &self,
        inode: &Inode,
        core: &InodeCore,
        from: u64,
        visit: &mut dyn FnMut(DirEntry) -> bool,
    ) -> Result<()> {
        let layout = self.dir_layout();
        let bits = self.geometry().block_bits();
        let first = u32_from_u64((from >> bits).min(u64::from(u32::MAX)));
        for logical in first..self.dir_blocks(core) {
            let buffer = self.dir_block(inode, core, logical)?;
            let base = u64::from(logical) << bits;
            let entries = buffer.read(|bytes| collect(bytes, layout, base, from));
            for entry in entries.map_err(|defect| defect_of(inode, defect))? {
                if !visit(entry) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

fn collect(
    bytes: &[u8],
    layout: DirLayout,
    base: u64,
    from: u64,
) -> std::result::Result<Vec<DirEntry>, DirDefect> {
    let mut entries = Vec::new();
    for entry in Entries::new(bytes, layout)? {
        let entry = entry?;
        let at = base + u64_from_usize(entry.at);
        if entry.inode != 0 && at >= from {
            entries.push(DirEntry {
                inode: InodeNr::new(entry.inode),
                kind: if layout.file_types { FileType::from_dirent_byte(entry.file_type) } else { None },
                name: entry.name.to_vec(),
                next: base + u64_from_usize(entry.at + entry.rec_len),
            });
        }
    }
    Ok(entries)
}

/// A corruption of a directory.
pub(crate) fn dir_corrupt(inode: &Inode, kind: CorruptionKind) -> Error {
    Corruption::new(kind).in_inode(inode.number()).into()
}

/// A defect of a directory block as the engine's error.
pub(crate) fn defect_of(inode: &Inode, defect: DirDefect) -> Error {
    Error::Directory { inode: inode.number(), defect }
}
