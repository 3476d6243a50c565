//! What is done when nothing is wrong: the user's wishes.

use blockyard_device::DeviceError;
use blockyard_disk::inode::{FileType, InodeFlags};
use blockyard_disk::num::u32_from_usize;
use blockyard_disk::{Incompat, InodeNr, RoCompat};

use super::connect::Connected;
use super::directory::{self, Mending};
use super::editor::Editor;
use super::log::Cost;
use super::maps;
use super::shared;
use super::wish::Wish;
use crate::Error;
use crate::code::Code;
use crate::facts::{DirBody, Facts};
use crate::finding::Site;

/// Fulfils the next wish; false when there is none.
///
/// # Errors
/// [`Error::NoRoomToUnshare`], and those of the device.
pub(crate) fn fulfil(ed: &mut Editor<'_, '_>, known: &Connected<'_>) -> Result<bool, Error> {
    let Some(wish) = ed.log.wishes.pop_first() else { return Ok(false) };
    let facts = known.facts;
    match wish {
        Wish::RebuildDirectories => {
            for fact in facts.groups.iter().flat_map(|group| &group.directories) {
                let in_blocks = matches!(fact.body, DirBody::Blocks { .. });
                // The empty blocks of lost+found are room for names when there is no space.
                let is_lost_found = known.tree.lost_found == Some(fact.inode.raw());
                if in_blocks && !fact.casefold && !is_lost_found {
                    let code = Code::DOT_SLACK;
                    directory::rebuild(ed, &Mending { facts, inode: fact.inode, code })?;
                }
            }
        }
        Wish::BlockMapsToExtents => convert_all(ed, facts)?,
        Wish::UnshareBlocks => unshare(ed, facts)?,
    }
    Ok(true)
}

/// Removes the feature, so that the next round finds the shared blocks and copies them. Copies that
/// find no room would cut sound files, so what they need is counted before.
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
    let geometry = &ed.volume().geometry;
    let decided = ed.log.actions.len();
    let first = ed.volume().first_inode();
    for (group, nr) in facts.groups.iter().zip(geometry.all_groups()) {
        for (index, _) in group.kinds.iter().enumerate().filter(|(_, kind)| kind.is_used()) {
            let inode = geometry.inode_at(nr, u32_from_usize(index));
            if inode.raw() >= first || inode == InodeNr::ROOT {
                convert(ed, inode)?;
            }
        }
    }
    if ed.log.actions.len() > decided {
        ed.change_superblock(|sb| sb.set_incompat(sb.incompat() | Incompat::EXTENTS))?;
    }
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
    slot.raw_mut().set_flags(flags | InodeFlags::EXTENTS);
    if maps::write(ed, inode, &mut slot, &map.runs)?.is_ok() {
        ed.put_slot(inode, &mut slot)?;
        ed.add(Code::EXTENTS_UNFLAGGED, Site::inode(inode), Cost::Nothing, "block map converted to extents");
    }
    Ok(())
}
