//! Symbolic links: short targets in the inode, longer ones in one block of metadata.

use super::operations::New;
use crate::cache::BlockKind;
use crate::inode::{Inode, InodeCore};
use crate::namespace::Namespace;
use crate::txn::Handle;
use crate::volume::NewInode;
use crate::{Error, InodeId, InodeRef, OpContext, Result};
use blockyard_disk::inode::{FileType, InodeFlags, InodeMap};
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_disk::{BlockNr, Corruption, CorruptionKind, Incompat};
use std::sync::Arc;

/// The most bytes of a target in `i_block`: its 60 bytes less one for the final NUL.
const IN_INODE_MAX: usize = 59;
/// The longest target that programs can follow: `PATH_MAX` (4096) less one for the final NUL.
const TARGET_MAX: usize = 4095;

impl Namespace {
    /// See [`crate::FileSystem::symlink`].
    pub(crate) fn symlink(
        &self,
        ctx: &OpContext,
        parent: InodeRef,
        name: &[u8],
        target: &[u8],
    ) -> Result<InodeId> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        if target.len() > TARGET_MAX || target.len() >= self.volume.block_size() {
            return Err(Error::NameTooLong);
        }
        if target.contains(&0) {
            return Err(Error::Invalid("a symbolic link's target has no NUL"));
        }
        let new = NewInode { kind: FileType::Symlink, permissions: 0o777, device: None };
        self.create_with(ctx, parent, name, New { inode: &new, target: Some(target), open: None })
    }

    /// Stores the target of a new symbolic link.
    pub(super) fn store_target(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        inode: &Arc<Inode>,
        core: &mut InodeCore,
        target: &[u8],
    ) -> Result<()> {
        debug_assert!(
            !target.is_empty() && target.len() < self.volume.block_size(),
            "{} bytes",
            target.len()
        );
        if target.len() <= IN_INODE_MAX {
            let root = core.root_mut();
            root.fill(0);
            root[..target.len()].copy_from_slice(target);
            core.set_size(u64_from_usize(target.len()));
            return Ok(());
        }
        if self.volume.sb.features().incompat.contains(Incompat::EXTENTS) {
            let flags = core.flags() | InodeFlags::EXTENTS;
            core.slot.raw_mut().set_flags(flags);
            *core.root_mut() = crate::extents::empty_root();
            core.map = InodeMap::Extents;
        } else {
            core.map = InodeMap::Indirect;
        }
        let block = self.directories.map_directory_block(ctx, handle, inode, core, 0)?;
        let buffer = handle.create(block, BlockKind::Plain);
        buffer.write(|bytes| bytes[..target.len()].copy_from_slice(target));
        core.set_size(u64_from_usize(target.len()));
        Ok(())
    }

    /// See [`crate::FileSystem::read_link`].
    pub(crate) fn read_link(&self, inode: InodeRef) -> Result<Vec<u8>> {
        let inode = self.volume.inodes.inode(inode)?;
        if inode.kind() != FileType::Symlink {
            return Err(Error::Invalid("not a symbolic link"));
        }
        let _shared = inode.read();
        let core = inode.core();
        core.check_alive(inode.number())?;
        let size = usize_from_u64(core.size);
        let damaged = || Error::from(Corruption::new(CorruptionKind::InodeSize).in_inode(inode.number()));
        match core.map {
            InodeMap::FastSymlink => core.root().get(..size).map(<[u8]>::to_vec).ok_or_else(damaged),
            InodeMap::Inline => {
                let mut target = self.files.inline_content(&inode, &core)?;
                target.resize(size, 0);
                Ok(target)
            }
            _ => {
                if size > self.volume.block_size() {
                    return Err(damaged());
                }
                let mapped = self.mapping.map_block(&inode, &core, 0, 1)?;
                let block = mapped.physical.map(BlockNr::new).ok_or_else(damaged)?;
                let buffer = self.volume.cache.read(block, BlockKind::Plain, |_| Ok(()))?;
                Ok(buffer.read(|bytes| bytes[..size].to_vec()))
            }
        }
    }
}
