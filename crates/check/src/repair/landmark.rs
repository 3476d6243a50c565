//! Directories by which a guess about the layout is confirmed: the root and lost+found.

use blockyard_device::BlockDevice;
use blockyard_disk::inode::{FileType, InodeFlags, InodeSlot};
use blockyard_disk::{BlockNr, InodeNr};

use crate::descriptors;
use crate::finding::Sink;
use crate::superblock::{self, Opened};
use crate::volume::Volume;

/// Whether the superblock and the descriptors of a device lead to a root that is sound.
pub(super) fn leads_to_root(device: &dyn BlockDevice) -> bool {
    let mut sink = Sink::default();
    let Ok(Opened::Volume(mut volume)) = superblock::open(device, &mut sink) else { return false };
    has_root(&mut volume)
}

/// As [`leads_to_root`], for a file system whose descriptors have not been read.
pub(super) fn has_root(volume: &mut Volume<'_>) -> bool {
    descriptors::load(volume, &mut Sink::default());
    if volume.groups.is_empty() {
        return false;
    }
    volume.inode(InodeNr::ROOT).is_ok_and(|bytes| {
        let slot = InodeSlot::new(&bytes[..]);
        // Without checksums, every inline directory whose parent is the root looks like the root.
        let is_proved =
            volume.checksums.fs_seed().is_some() || !slot.raw().flags().contains(InodeFlags::INLINE_DATA);
        is_proved && is_sound_directory(volume, InodeNr::ROOT, &slot)
    })
}

/// Whether an inode is a directory with a checksum that matches. Its first block must begin with
/// its own `.`. An inline directory has no `.`: without checksums, its parent must be the root.
pub(super) fn is_sound_directory(volume: &Volume<'_>, inode: InodeNr, slot: &InodeSlot<&[u8]>) -> bool {
    let raw = slot.raw();
    if raw.file_type() != Some(FileType::Directory) || volume.checksums.verify_inode(inode, slot).is_err() {
        return false;
    }
    if raw.flags().contains(InodeFlags::INLINE_DATA) {
        return volume.checksums.fs_seed().is_some() || raw.i_block[..4] == InodeNr::ROOT.raw().to_le_bytes();
    }
    let runs = crate::orphans::file_runs(volume, inode, slot);
    let first = runs.first().filter(|run| run.logical == 0);
    let block = first.and_then(|run| volume.block(BlockNr::new(run.physical)).ok());
    block.is_some_and(|block| block[..4] == inode.raw().to_le_bytes() && block[8] == b'.')
}
