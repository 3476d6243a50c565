//! One leaf in memory: its block, and what is known of it once that pays ([`LeafNames`]).
//!
//! Every change of names in place goes through here, so that block and table change together, under the block's lock. Any
//! other change of the block's bytes drops the table ([`DirectoryBlock::write_leaf`]).

use super::names::LeafNames;
use crate::extents::NodeBlock;
use blockyard_disk::dirblock::{self, DirDefect, DirLayout, Found, NewEntry, Search, Slot};
use blockyard_disk::inode::FileType;
use blockyard_sync::prefetch;

/// Entries that a search walks over before the leaf gets their places: the short walks in small directories stay walks.
const WALK_MAX: usize = 16;

/// A directory block that stays in memory while this value lives, and may keep a table of its names.
pub(crate) trait DirectoryBlock: NodeBlock {
    /// Runs `f` on the block's bytes and their table.
    fn read_leaf<R>(&self, f: impl FnOnce(&[u8], Option<&LeafNames>) -> R) -> R;

    /// Runs `f` on the block's bytes to change them, and on their table to keep it true or to drop it. The block has
    /// joined the transaction before. [`NodeBlock::write`] drops the table.
    fn write_leaf<R>(&self, f: impl FnOnce(&mut [u8], &mut Option<LeafNames>) -> R) -> R;

    /// Keeps the table that `make` gives for the block's bytes and the table that there was.
    fn keep_names(&self, make: impl FnOnce(&[u8], Option<LeafNames>) -> Option<LeafNames>);
}

/// Looks for a name and for a slot that it would fit in.
pub(super) fn search(
    block: &impl DirectoryBlock,
    layout: DirLayout,
    name: &[u8],
) -> Result<Search, DirDefect> {
    let search = block.read_leaf(|bytes, names| {
        let known = names.and_then(|names| names.search(bytes, layout, name));
        let Some(search) = known else { return dirblock::search(bytes, layout, name) };
        debug_assert!(
            is_as_walked(&search, bytes, layout, name),
            "a leaf and the table of its names disagree"
        );
        Ok(search)
    })?;
    if search.walked > WALK_MAX {
        block.keep_names(|bytes, names| gaps(bytes, layout, names)?.with_places(bytes, layout));
    }
    Ok(search)
}

/// A slot that a name would fit in, which the block does not have.
pub(super) fn room(
    block: &impl DirectoryBlock,
    layout: DirLayout,
    name: &[u8],
) -> Result<Option<Slot>, DirDefect> {
    let known = || block.read_leaf(|bytes, names| names.map(|names| names.room_for(bytes, layout, name)));
    let slot = known().or_else(|| {
        block.keep_names(|bytes, names| gaps(bytes, layout, names));
        known()
    });
    match slot {
        Some(slot) => Ok(slot),
        // A damaged block, or one that keeps no table.
        None => block.read_leaf(|bytes, _| dirblock::search(bytes, layout, name)).map(|search| search.slot),
    }
}

/// A name will be entered soon: the CPU may fetch where.
pub(super) fn expect(block: &impl DirectoryBlock, name: &[u8]) {
    block.read_leaf(|bytes, names| {
        if let Some(byte) = names.and_then(|names| bytes.get(names.place_for(name)?)) {
            prefetch(byte);
        }
    });
}

/// The table that there is, or one of the block's gaps.
fn gaps(bytes: &[u8], layout: DirLayout, names: Option<LeafNames>) -> Option<LeafNames> {
    names.or_else(|| LeafNames::gaps_of(bytes, layout))
}

/// Whether a walk finds the same.
fn is_as_walked(search: &Search, bytes: &[u8], layout: DirLayout, name: &[u8]) -> bool {
    dirblock::search(bytes, layout, name).is_ok_and(|walked| {
        let slot = if walked.found.is_some() { None } else { walked.slot };
        (search.found, search.slot) == (walked.found, slot)
    })
}

/// Writes an entry into a slot that [`search`] found, with no change in between.
pub(super) fn insert(block: &impl DirectoryBlock, layout: DirLayout, slot: Slot, entry: &NewEntry<'_>) {
    block.write_leaf(|bytes, names| {
        dirblock::insert_at(bytes, layout, slot, entry);
        names.take_if(|names| !names.inserted(bytes, layout, slot, entry.name));
    });
}

/// Removes an entry that [`search`] found, with no change in between.
pub(super) fn remove(block: &impl DirectoryBlock, layout: DirLayout, found: &Found) -> Result<(), DirDefect> {
    block.write_leaf(|bytes, names| {
        let known = |names: &mut LeafNames| {
            dirblock::entry_at(bytes, layout, found.at).is_ok_and(|entry| names.forget(&entry))
        };
        names.take_if(|names| !known(names));
        let heir = dirblock::remove_at(bytes, layout, found).inspect_err(|_| *names = None)?;
        names.take_if(|names| !names.weigh(bytes, layout, heir));
        Ok(())
    })
}

/// Makes an entry that [`search`] found name another inode. The table knows names and places only.
pub(super) fn replace(
    block: &impl DirectoryBlock,
    layout: DirLayout,
    found: &Found,
    (inode, file_type): (u32, FileType),
) -> Result<(), DirDefect> {
    block.write_leaf(|bytes, _| dirblock::set_inode(bytes, layout, found.at, inode, file_type))
}
