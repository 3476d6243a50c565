//! Looks up, maps and unmaps the blocks of an inode, whatever kind of mapping it has.

use super::indirect::Run;
use super::removal::Gone;
use super::store::ExtentStore;
use crate::extents::{self, Extent, Lookup, Tree};
use crate::inode::{Inode, InodeCore};
use crate::mapping::Mapping;
use crate::txn::Handle;
use crate::{Error, OpContext, Result};
use blockyard_disk::inode::InodeMap;
use std::cell::RefCell;
use std::ops::Range;

/// What is at a logical block, and for how many blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    /// Number of blocks that this covers, at least 1.
    pub(crate) len: u32,
    /// The first physical block; `None` for a hole.
    pub(crate) physical: Option<u64>,
    /// Whether the blocks are allocated but read as zeroes.
    pub(crate) unwritten: bool,
}

impl Mapping {
    /// Looks up a logical block and its neighbouring extents.
    pub(crate) fn lookup_block(&self, inode: &Inode, core: &InodeCore, logical: u32) -> Result<Lookup> {
        match core.map {
            InodeMap::Extents => {
                let store = ExtentStore::reader(self, inode, core.seed);
                extents::lookup(core.root(), &store, logical)
            }
            InodeMap::Indirect => self.lookup_indirect(core, logical),
            InodeMap::None | InodeMap::Device(_) | InodeMap::FastSymlink | InodeMap::Inline => {
                Ok(Lookup { found: None, left: None, right: None, leaf: None, first_in_leaf: None })
            }
        }
    }

    /// What is at `logical`, for at most `most` blocks.
    pub(crate) fn map_block(
        &self,
        inode: &Inode,
        core: &InodeCore,
        logical: u32,
        most: u32,
    ) -> Result<Mapped> {
        debug_assert!(most > 0, "a lookup of no block");
        let here = self.lookup_block(inode, core, logical)?;
        Ok(match here.found {
            Some(extent) => Mapped {
                len: (extent.end() - logical).min(most),
                physical: Some(extent.physical + u64::from(logical - extent.logical)),
                unwritten: extent.unwritten,
            },
            None => Mapped {
                len: here.right.map_or(most, |right| (right.logical - logical).min(most)),
                physical: None,
                unwritten: false,
            },
        })
    }

    /// Maps an extent in a hole. The tree blocks or indirect blocks allocated for this are added to
    /// the inode's block count.
    pub(crate) fn insert_mapping(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        inode: &Inode,
        core: &mut InodeCore,
        extent: Extent,
    ) -> Result<()> {
        debug_assert!(extent.len > 0, "an extent of no blocks at {}", extent.logical);
        inode.note_remapped(handle);
        match core.map {
            // With delayed allocation Linux maps blocks as unwritten and then converts them.
            // Without delayed allocation, it maps them as written at once.
            InodeMap::Extents
                if handle.is_write_back() && self.volume.delays_allocation() && !extent.unwritten =>
            {
                self.edit_tree(ctx, handle, inode, core, |tree| tree.insert_and_convert(extent))
            }
            // This extent is converted once all extents of the write-back are mapped. Until then
            // Linux does not merge it with its neighbours.
            InodeMap::Extents if handle.is_write_back() && extent.unwritten => {
                self.edit_tree(ctx, handle, inode, core, |tree| tree.insert_separately(extent))
            }
            InodeMap::Extents => self.edit_tree(ctx, handle, inode, core, |tree| tree.insert(extent)),
            InodeMap::Indirect => {
                self.insert_indirect(ctx, handle, inode, core, Run { extent, branch: Vec::new() })
            }
            _ => Err(Error::Invalid("this inode has no blocks")),
        }
    }

    /// Unmaps a range. Records each unmapped piece in `gone`, the last one first. Blocks of an
    /// extent tree that become empty are recorded there too; indirect blocks that become empty are
    /// freed at once.
    pub(crate) fn remove_mapping(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        inode: &Inode,
        core: &mut InodeCore,
        range: Range<u32>,
        gone: &RefCell<Vec<Gone>>,
    ) -> Result<()> {
        inode.note_remapped(handle);
        let note = |piece| gone.borrow_mut().push(Gone::Piece(piece));
        match core.map {
            InodeMap::Extents => {
                let store = ExtentStore::writer(self, inode, core.seed, ctx, handle).noting(gone);
                self.edit_tree_in(core, &store, |tree| tree.remove(range, note))
            }
            InodeMap::Indirect => self.remove_indirect(handle, core, range, &mut { note }),
            _ => Ok(()),
        }
    }

    /// Runs `edit` on the inode's extent tree. Then corrects the inode's block count by the tree
    /// blocks gained and lost, even if `edit` failed.
    pub(crate) fn edit_tree<T>(
        &self,
        ctx: &OpContext,
        handle: &Handle<'_>,
        inode: &Inode,
        core: &mut InodeCore,
        edit: impl FnOnce(&mut Tree<'_, ExtentStore<'_>>) -> Result<T>,
    ) -> Result<T> {
        inode.note_remapped(handle);
        let store = ExtentStore::writer(self, inode, core.seed, ctx, handle);
        self.edit_tree_in(core, &store, edit)
    }

    fn edit_tree_in<'s, T>(
        &self,
        core: &mut InodeCore,
        store: &ExtentStore<'s>,
        edit: impl FnOnce(&mut Tree<'_, ExtentStore<'s>>) -> Result<T>,
    ) -> Result<T> {
        debug_assert!(core.map == InodeMap::Extents, "a tree in an inode that has {:?}", core.map);
        let result = edit(&mut Tree::new(core.root_mut(), store));
        debug_assert!(extents::has_sound_header(core.root()), "a root that would not be read");
        let gained = store.blocks_gained();
        core.add_blocks(gained, self.volume.geometry().block_bits());
        result
    }
}
