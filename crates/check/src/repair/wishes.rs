//! Fulfils the user's wishes, once nothing is wrong any more.

use blockyard_device::DeviceError;
use blockyard_disk::inode::{FileType, InodeFlags};
use blockyard_disk::{Incompat, InodeNr, RoCompat};

use super::connect::Connected;
use super::directory;
use super::editor::Editor;
use super::examined::examined;
use super::log::Cost;
use super::maps;
use super::shared;
use super::wish::Wish;
use crate::Error;
use crate::code::Code;
use crate::facts::{DirBody, Facts};
use crate::finding::Site;
use crate::inode::has_extent_blocks;
use crate::map::NoClaims;

/// Fulfils the next wish. Returns false if there is none.
///
/// # Errors
/// [`Error::NoRoomToUnshare`], and those of the device.
pub(crate) fn fulfil(ed: &mut Editor<'_, '_>, known: &Connected<'_>) -> Result<bool, Error> {
    let Some(wish) = ed.log.wishes.pop_first() else { return Ok(false) };
    let facts = known.facts;
    match wish {
        Wish::RebuildDirectories if !ed.log.accepts(Code::DIRECTORY_LOOSE) => {}
        Wish::BlockMapsToExtents if !ed.log.accepts(Code::MAP_OLD) => {}
        Wish::RebuildDirectories => {
            for fact in facts.groups.iter().flat_map(|group| &group.directories) {
                let in_blocks = matches!(fact.body, DirBody::Blocks { .. });
                // The empty blocks of lost+found are room for names when there is no space.
                let is_lost_found = known.tree.lost_found == Some(fact.inode.raw());
                if in_blocks && !fact.casefold && !is_lost_found {
                    directory::rebuild(ed, &known.mending(fact.inode, Code::DIRECTORY_LOOSE))?;
                }
            }
        }
        Wish::BlockMapsToExtents => convert_all(ed, facts)?,
        Wish::UnshareBlocks => unshare(ed, facts)?,
        Wish::PackExtentTrees if !ed.log.accepts(Code::EXTENT_TREE_LOOSE) => {}
        Wish::PackExtentTrees => {
            for inode in facts.files(ed.volume()) {
                pack_tree(ed, inode)?;
            }
        }
    }
    Ok(true)
}

/// Removes the feature `shared_blocks`, so that the next round finds the shared blocks and copies
/// them. Without room for a copy, a sound file would lose content. So the room that copies need is
/// counted first.
fn unshare(ed: &mut Editor<'_, '_>, facts: &Facts) -> Result<(), Error> {
    let is_declined = !ed.log.accepts(Code::SHARED_BLOCKS);
    if is_declined || !ed.volume().ro_compat.contains(RoCompat::SHARED_BLOCKS) {
        return Ok(());
    }
    let wanted = shared::clusters_of_copies(ed, facts)?;
    let free = shared::free_clusters(ed);
    if wanted > free {
        return Err(Error::NoRoomToUnshare { wanted, free });
    }
    ed.change_superblock(|sb| sb.set_ro_compat(sb.ro_compat().difference(RoCompat::SHARED_BLOCKS)))?;
    ed.add(Code::SHARED_BLOCKS, Site::NOWHERE, Cost::Nothing, "feature shared_blocks removed");
    Ok(())
}

fn convert_all(ed: &mut Editor<'_, '_>, facts: &Facts) -> Result<(), DeviceError> {
    let decided = ed.log.actions.len();
    for inode in facts.files(ed.volume()) {
        convert(ed, inode)?;
    }
    if ed.log.actions.len() > decided {
        ed.change_superblock(|sb| sb.set_incompat(sb.incompat() | Incompat::EXTENTS))?;
    }
    Ok(())
}

/// Writes the extent tree of an inode anew if it needs fewer blocks than it has.
fn pack_tree(ed: &mut Editor<'_, '_>, inode: InodeNr) -> Result<(), DeviceError> {
    let mut slot = ed.slot(inode)?;
    if !has_extent_blocks(slot.raw()) {
        return Ok(());
    }
    let (found, _) = examined(ed, inode, &slot, &mut NoClaims);
    let map = maps::read(ed, inode, slot.raw());
    let is_loose = found.into_findings().iter().any(|finding| finding.code == Code::EXTENT_TREE_LOOSE);
    if !is_loose || map.damaged || maps::write(ed, inode, &mut slot, &map.runs)?.is_err() {
        return Ok(());
    }
    let (_, expected) = examined(ed, inode, &slot, &mut NoClaims);
    if let Some(units) = expected.units {
        slot.raw_mut().set_blocks_field(units);
    }
    ed.put_slot(inode, &mut slot)?;
    ed.add(Code::EXTENT_TREE_LOOSE, Site::inode(inode), Cost::Nothing, "extent tree packed");
    Ok(())
}

fn convert(ed: &mut Editor<'_, '_>, inode: InodeNr) -> Result<(), DeviceError> {
    let mut slot = ed.slot(inode)?;
    let flags = slot.raw().flags();
    let mapped = match slot.raw().file_type() {
        Some(FileType::Regular | FileType::Directory) => true,
        Some(FileType::Symlink) => slot.raw().size() >= 60,
        _ => false,
    };
    if !mapped || flags.intersects(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA) {
        return Ok(());
    }
    let map = maps::read(ed, inode, slot.raw());
    if map.runs.last().is_some_and(|run| run.logical + run.length > u64::from(u32::MAX)) {
        // Extents cannot name the last blocks of this inode.
        return Ok(());
    }
    slot.raw_mut().set_flags(flags | InodeFlags::EXTENTS);
    if maps::write(ed, inode, &mut slot, &map.runs)?.is_ok() {
        ed.put_slot(inode, &mut slot)?;
        ed.add(Code::MAP_OLD, Site::inode(inode), Cost::Nothing, "block map converted to extents");
    }
    Ok(())
}
