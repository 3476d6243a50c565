//! The vital statistics of a file system: what `e2fsck -v` counts.

use std::ops::AddAssign;

use blockyard_disk::extent::MAGIC;
use blockyard_disk::inode::{FileType, InodeFlags, RawInode};
use blockyard_disk::num::u64_from_u32;

use crate::volume::Volume;

/// Words of `i_block` that name direct blocks. The indirect, the double-indirect and the
/// triple-indirect block follow.
const DIRECT: usize = 12;

/// What an image holds, counted as `e2fsck -v` counts it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vitals {
    /// Inodes in use, reserved ones included.
    pub inodes_used: u64,
    /// All inodes.
    pub inodes: u64,
    /// Files, the journal included, whose blocks are not contiguous. A file with as many blocks as
    /// a group, or more, does not count.
    pub fragmented_files: u64,
    /// Directories whose blocks are not contiguous, with the same exception.
    pub fragmented_directories: u64,
    /// How many inodes have an indirect block, how many a double-indirect one, and how many a
    /// triple-indirect one. Of the reserved inodes only the root counts.
    pub indirect: [u64; 3],
    /// Inodes by the depth of their extent tree. The depth is the index into the array.
    pub extent_depths: [u64; 6],
    /// Blocks in use.
    pub blocks_used: u64,
    /// All blocks.
    pub blocks: u64,
    /// Blocks on the list of bad blocks.
    pub bad_blocks: u64,
    /// Regular files of 2 GiB and more, the resize inode and the journal included.
    pub large_files: u64,
    /// Regular files, without those that the file system itself uses.
    pub regular_files: u64,
    /// Directories, the root and lost+found included.
    pub directories: u64,
    /// Character devices.
    pub character_devices: u64,
    /// Block devices.
    pub block_devices: u64,
    /// Named pipes.
    pub fifos: u64,
    /// Hard links: names beyond the first one of each file.
    pub links: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Symbolic links whose target is in `i_block`, without inline data.
    pub fast_symlinks: u64,
    /// Sockets.
    pub sockets: u64,
    /// Inodes that hold a value of an attribute. They count as regular files, but have no name.
    pub value_inodes: u64,
}

impl AddAssign<&Self> for Vitals {
    fn add_assign(&mut self, other: &Self) {
        let mut pairs = vec![
            (&mut self.inodes_used, other.inodes_used),
            (&mut self.inodes, other.inodes),
            (&mut self.fragmented_files, other.fragmented_files),
            (&mut self.fragmented_directories, other.fragmented_directories),
            (&mut self.blocks_used, other.blocks_used),
            (&mut self.blocks, other.blocks),
            (&mut self.bad_blocks, other.bad_blocks),
            (&mut self.large_files, other.large_files),
            (&mut self.regular_files, other.regular_files),
            (&mut self.directories, other.directories),
            (&mut self.character_devices, other.character_devices),
            (&mut self.block_devices, other.block_devices),
            (&mut self.fifos, other.fifos),
            (&mut self.links, other.links),
            (&mut self.symlinks, other.symlinks),
            (&mut self.fast_symlinks, other.fast_symlinks),
            (&mut self.sockets, other.sockets),
            (&mut self.value_inodes, other.value_inodes),
        ];
        pairs.extend(self.indirect.iter_mut().zip(other.indirect));
        pairs.extend(self.extent_depths.iter_mut().zip(other.extent_depths));
        pairs.into_iter().for_each(|(sum, more)| *sum += more);
    }
}

/// What the walk over an inode's map contributes to the vital statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Laid {
    /// Whether there was a map to walk.
    pub(crate) mapped: bool,
    /// Whether some blocks that are adjacent in the file are apart on the device.
    pub(crate) split: bool,
    /// Blocks allocated, those of the map included.
    pub(crate) blocks: u64,
}

impl Vitals {
    /// Counts an inode by its type.
    pub(crate) fn note_type(&mut self, raw: &RawInode, laid: Laid) {
        match raw.file_type() {
            Some(FileType::Regular) => {
                self.regular_files += 1;
                self.value_inodes += u64::from(raw.flags().contains(InodeFlags::EA_INODE));
            }
            Some(FileType::Directory) => self.directories += 1,
            Some(FileType::Symlink) => {
                self.symlinks += 1;
                let inline = raw.flags().contains(InodeFlags::INLINE_DATA);
                self.fast_symlinks += u64::from(!laid.mapped && !inline);
            }
            Some(FileType::CharDevice) => self.character_devices += 1,
            Some(FileType::BlockDevice) => self.block_devices += 1,
            Some(FileType::Fifo) => self.fifos += 1,
            Some(FileType::Socket) => self.sockets += 1,
            None => {}
        }
    }

    /// Counts an inode as fragmented if its blocks lie apart. Not called for the resize inode,
    /// whose blocks have fixed places.
    pub(crate) fn note_pieces(&mut self, raw: &RawInode, laid: Laid, blocks_per_group: u64) {
        debug_assert!(!laid.split || laid.mapped, "blocks that lie apart without a map");
        // A file that fills a group cannot be contiguous everywhere.
        if laid.split && laid.blocks < blocks_per_group {
            match raw.file_type() {
                Some(FileType::Directory) => self.fragmented_directories += 1,
                _ => self.fragmented_files += 1,
            }
        }
    }

    /// Counts size and map of an inode. Indirect blocks count only if the inode is `ordinary`: the
    /// root, or not reserved.
    pub(crate) fn note_map(&mut self, raw: &RawInode, laid: Laid, ordinary: bool) {
        if !laid.mapped {
            return;
        }
        let regular = raw.file_type() == Some(FileType::Regular);
        self.large_files += u64::from(regular && raw.size() >= 1 << 31);
        if raw.flags().contains(InodeFlags::EXTENTS) {
            if let [a, b, _, _, _, _, depth, 0, ..] = raw.i_block
                && u16::from_le_bytes([a, b]) == MAGIC
                && let Some(count) = self.extent_depths.get_mut(usize::from(depth))
            {
                *count += 1;
            }
        } else if ordinary {
            let words = raw.block_words();
            let roots = self.indirect.iter_mut().zip(&words[DIRECT..]);
            roots.for_each(|(count, &root)| *count += u64::from(root != 0));
        }
    }

    /// Inodes by the depth of their extent tree, up to the deepest; empty when no inode has
    /// extents.
    #[must_use]
    pub fn extent_histogram(&self) -> &[u64] {
        let deepest = self.extent_depths.iter().rposition(|&count| count > 0);
        deepest.map_or(&[], |deepest| &self.extent_depths[..=deepest])
    }

    /// All names: one for each regular file, directory, device, pipe, symbolic link and socket, and
    /// one more for each hard link. Inodes of attribute values have no names.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.regular_files
            + self.directories
            + self.character_devices
            + self.block_devices
            + self.fifos
            + self.links
            + self.symlinks
            + self.sockets
            - self.value_inodes
    }
}

/// Blocks of a full group.
pub(crate) fn blocks_per_group(volume: &Volume<'_>) -> u64 {
    let geometry = &volume.geometry;
    u64_from_u32(geometry.clusters_per_group()) << geometry.cluster_ratio_bits()
}
