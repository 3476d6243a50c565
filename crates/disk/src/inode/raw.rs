//! The inode's bytes, with accessors for numbers that are split in halves.

use zerocopy::little_endian::{U16, U32};

use crate::layout::on_disk;
use crate::num::{high16, high32, join16, join32, low16, low32};
use crate::units::BlockNr;

on_disk! {
    /// The fixed 128 bytes of an inode; nothing in it is verified.
    pub struct RawInode[128] {
        /// Type and permissions.
        0x00 i_mode: U16,
        /// Owner, low half.
        0x02 i_uid: U16,
        /// Size in bytes, low half.
        0x04 i_size_lo: U32,
        /// Access time, low 32 bits.
        0x08 i_atime: U32,
        /// Change time, low 32 bits.
        0x0C i_ctime: U32,
        /// Modification time, low 32 bits.
        0x10 i_mtime: U32,
        /// Deletion time, or next inode of the orphan list.
        0x14 i_dtime: U32,
        /// Owning group, low half.
        0x18 i_gid: U16,
        /// Link count.
        0x1A i_links_count: U16,
        /// Allocated space, low half; units: see [`RawInode::blocks_field`].
        0x1C i_blocks_lo: U32,
        /// [`InodeFlags`] bits.
        0x20 i_flags: U32,
        /// Version, low half.
        0x24 i_version: U32,
        /// Extent root, block map, inline data, symlink target or device number.
        0x28 i_block: [u8; 60],
        /// Generation: part of the checksum seed.
        0x64 i_generation: U32,
        /// Attribute block, low half.
        0x68 i_file_acl_lo: U32,
        /// Size in bytes, high half.
        0x6C i_size_high: U32,
        /// Unused (fragment address).
        0x70 i_obso_faddr: U32,
        /// Allocated space, bits 32..48.
        0x74 i_blocks_high: U16,
        /// Attribute block, bits 32..48.
        0x76 i_file_acl_high: U16,
        /// Owner, high half.
        0x78 i_uid_high: U16,
        /// Owning group, high half.
        0x7A i_gid_high: U16,
        /// Checksum, low half.
        0x7C i_checksum_lo: U16,
        /// Reserved.
        0x7E i_reserved: U16,
    }
}

on_disk! {
    /// The fields that may follow the fixed part, from byte 128 of the slot. `i_extra_isize` says
    /// how many of their bytes are valid.
    pub struct RawInodeExtra[32] {
        /// Bytes in use from byte 128 on, this field included.
        0x00 i_extra_isize: U16,
        /// Checksum, high half.
        0x02 i_checksum_hi: U16,
        /// Change time: two more bits of the seconds, and the nanoseconds.
        0x04 i_ctime_extra: U32,
        /// Modification time: two more bits of the seconds, and the nanoseconds.
        0x08 i_mtime_extra: U32,
        /// Access time: two more bits of the seconds, and the nanoseconds.
        0x0C i_atime_extra: U32,
        /// Creation time, low 32 bits.
        0x10 i_crtime: U32,
        /// Creation time: two more bits of the seconds, and the nanoseconds.
        0x14 i_crtime_extra: U32,
        /// Version, high half.
        0x18 i_version_hi: U32,
        /// Project id.
        0x1C i_projid: U32,
    }
}

bitflags::bitflags! {
    /// `i_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct InodeFlags: u32 {
        /// Secure deletion (hint, unused).
        const SECRM = 0x1;
        /// Undeletion (hint, unused).
        const UNRM = 0x2;
        /// Compress (unused).
        const COMPR = 0x4;
        /// Synchronous writes.
        const SYNC = 0x8;
        /// May not be changed.
        const IMMUTABLE = 0x10;
        /// May only be appended to.
        const APPEND = 0x20;
        /// Skipped by dump(8).
        const NODUMP = 0x40;
        /// Access time is not updated.
        const NOATIME = 0x80;
        /// Encrypted.
        const ENCRYPT = 0x800;
        /// Directory with a hash index (htree).
        const INDEX = 0x1000;
        /// AFS directory.
        const IMAGIC = 0x2000;
        /// Data is journaled.
        const JOURNAL_DATA = 0x4000;
        /// The tail may not be merged (unused).
        const NOTAIL = 0x8000;
        /// Synchronous directory changes.
        const DIRSYNC = 0x1_0000;
        /// Top of a directory hierarchy, for the inode allocator.
        const TOPDIR = 0x2_0000;
        /// `i_blocks` counts file system blocks.
        const HUGE_FILE = 0x4_0000;
        /// Mapped by extents.
        const EXTENTS = 0x8_0000;
        /// Has a Merkle tree after its end.
        const VERITY = 0x10_0000;
        /// Holds an extended attribute value.
        const EA_INODE = 0x20_0000;
        /// Has blocks beyond its end (no longer set).
        const EOFBLOCKS = 0x40_0000;
        /// A snapshot (never shipped).
        const SNAPFILE = 0x100_0000;
        /// Direct access to persistent memory.
        const DAX = 0x200_0000;
        /// A snapshot being deleted (never shipped).
        const SNAPFILE_DELETED = 0x400_0000;
        /// A snapshot that was shrunk (never shipped).
        const SNAPFILE_SHRUNK = 0x800_0000;
        /// Content is in the inode.
        const INLINE_DATA = 0x1000_0000;
        /// New entries inherit the project.
        const PROJINHERIT = 0x2000_0000;
        /// Directory ignores case.
        const CASEFOLD = 0x4000_0000;
        const _ = !0;
    }
}

/// The type of an inode, from the type bits of `i_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// Named pipe.
    Fifo,
    /// Character device.
    CharDevice,
    /// Directory.
    Directory,
    /// Block device.
    BlockDevice,
    /// Regular file.
    Regular,
    /// Symbolic link.
    Symlink,
    /// Socket.
    Socket,
}

impl FileType {
    const BY_MODE: [(u16, Self); 7] = [
        (0x1000, Self::Fifo),
        (0x2000, Self::CharDevice),
        (0x4000, Self::Directory),
        (0x6000, Self::BlockDevice),
        (0x8000, Self::Regular),
        (0xA000, Self::Symlink),
        (0xC000, Self::Socket),
    ];

    /// The bits of `i_mode` that hold the type.
    pub const MODE_MASK: u16 = 0xF000;

    /// The type in a mode; `None` when the bits name none.
    #[must_use]
    pub fn from_mode(mode: u16) -> Option<Self> {
        let bits = mode & Self::MODE_MASK;
        Self::BY_MODE.iter().find(|(value, _)| *value == bits).map(|(_, kind)| *kind)
    }

    /// The type bits of `i_mode`.
    #[must_use]
    pub const fn mode_bits(self) -> u16 {
        match self {
            Self::Fifo => 0x1000,
            Self::CharDevice => 0x2000,
            Self::Directory => 0x4000,
            Self::BlockDevice => 0x6000,
            Self::Regular => 0x8000,
            Self::Symlink => 0xA000,
            Self::Socket => 0xC000,
        }
    }

    /// The `file_type` byte of a directory entry.
    #[must_use]
    pub const fn dirent_byte(self) -> u8 {
        match self {
            Self::Regular => 1,
            Self::Directory => 2,
            Self::CharDevice => 3,
            Self::BlockDevice => 4,
            Self::Fifo => 5,
            Self::Socket => 6,
            Self::Symlink => 7,
        }
    }

    /// The type of a directory entry's `file_type` byte; `None` for 0 (unknown) and undefined
    /// values.
    #[must_use]
    pub const fn from_dirent_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Regular),
            2 => Some(Self::Directory),
            3 => Some(Self::CharDevice),
            4 => Some(Self::BlockDevice),
            5 => Some(Self::Fifo),
            6 => Some(Self::Socket),
            7 => Some(Self::Symlink),
            _ => None,
        }
    }
}

impl RawInode {
    /// The type in `i_mode`; `None` when the bits name none.
    #[must_use]
    pub fn file_type(&self) -> Option<FileType> {
        FileType::from_mode(self.i_mode.get())
    }

    /// `i_flags`.
    #[must_use]
    pub fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.i_flags.get())
    }

    /// Sets `i_flags`.
    pub fn set_flags(&mut self, flags: InodeFlags) {
        self.i_flags = U32::new(flags.bits());
    }

    /// Size in bytes, both halves.
    #[must_use]
    pub fn size(&self) -> u64 {
        join32(self.i_size_high.get(), self.i_size_lo.get())
    }

    /// Sets both halves of the size.
    pub fn set_size(&mut self, bytes: u64) {
        self.i_size_lo = U32::new(low32(bytes));
        self.i_size_high = U32::new(high32(bytes));
    }

    /// Owner, both halves.
    #[must_use]
    pub fn uid(&self) -> u32 {
        join16(self.i_uid_high.get(), self.i_uid.get())
    }

    /// Sets both halves of the owner.
    pub fn set_uid(&mut self, uid: u32) {
        self.i_uid = U16::new(low16(uid));
        self.i_uid_high = U16::new(high16(uid));
    }

    /// Owning group, both halves.
    #[must_use]
    pub fn gid(&self) -> u32 {
        join16(self.i_gid_high.get(), self.i_gid.get())
    }

    /// Sets both halves of the owning group.
    pub fn set_gid(&mut self, gid: u32) {
        self.i_gid = U16::new(low16(gid));
        self.i_gid_high = U16::new(high16(gid));
    }

    /// Attribute block, both halves; zero for none.
    #[must_use]
    pub fn file_acl(&self) -> BlockNr {
        BlockNr::new(join32(u32::from(self.i_file_acl_high.get()), self.i_file_acl_lo.get()))
    }

    /// Sets both halves (48 bits) of the attribute block.
    pub fn set_file_acl(&mut self, block: BlockNr) {
        self.i_file_acl_lo = U32::new(low32(block.raw()));
        self.i_file_acl_high = U16::new(low16(high32(block.raw())));
    }

    /// `i_blocks` as stored, both halves: units of 512 bytes, or of file system blocks if the
    /// huge_file feature and [`InodeFlags::HUGE_FILE`] are set. Without huge_file the high half is
    /// ignored.
    #[must_use]
    pub fn blocks_field(&self, huge_file: bool) -> u64 {
        let hi = if huge_file { u32::from(self.i_blocks_high.get()) } else { 0 };
        join32(hi, self.i_blocks_lo.get())
    }

    /// Sets both halves of `i_blocks` as stored (48 bits).
    pub fn set_blocks_field(&mut self, units: u64) {
        self.i_blocks_lo = U32::new(low32(units));
        self.i_blocks_high = U16::new(low16(high32(units)));
    }

    /// Allocated space in units of 512 bytes, whatever the stored unit is.
    #[must_use]
    pub fn sectors(&self, huge_file: bool, block_bits: u32) -> u64 {
        let units = self.blocks_field(huge_file);
        if huge_file && self.flags().contains(InodeFlags::HUGE_FILE) {
            units << (block_bits - 9)
        } else {
            units
        }
    }

    /// `i_block` as the 15 words of a block map.
    #[must_use]
    pub fn block_words(&self) -> [u32; 15] {
        let mut words = [0; 15];
        for (word, bytes) in words.iter_mut().zip(self.i_block.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        words
    }

    /// Sets `i_block` from the 15 words of a block map.
    pub fn set_block_words(&mut self, words: [u32; 15]) {
        for (word, bytes) in words.iter().zip(self.i_block.chunks_exact_mut(4)) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_join_and_split() {
        let mut inode = RawInode::zeroed();
        inode.set_size(0x1_2345_6789_ABCD);
        inode.set_uid(70_000);
        inode.set_gid(4_000_000_000);
        inode.set_file_acl(BlockNr::new(0xFFFF_0000_0001));
        inode.set_blocks_field(0x1234_5678_9ABC);
        assert_eq!(inode.size(), 0x1_2345_6789_ABCD);
        assert_eq!((inode.uid(), inode.gid()), (70_000, 4_000_000_000));
        assert_eq!(inode.file_acl(), BlockNr::new(0xFFFF_0000_0001));
        assert_eq!(inode.blocks_field(true), 0x1234_5678_9ABC);
        assert_eq!(inode.blocks_field(false), 0x5678_9ABC);
        inode.set_flags(InodeFlags::HUGE_FILE);
        assert_eq!(inode.sectors(true, 12), 0x1234_5678_9ABC * 8);
    }

    #[test]
    fn types_round_trip_through_mode_and_directory_byte() {
        for (mode, kind) in FileType::BY_MODE {
            assert_eq!(FileType::from_mode(mode | 0o7777), Some(kind));
            assert_eq!(kind.mode_bits(), mode);
            assert_eq!(FileType::from_dirent_byte(kind.dirent_byte()), Some(kind));
        }
        assert_eq!(FileType::from_mode(0x3000), None);
        assert_eq!(FileType::from_dirent_byte(0xDE), None);
    }
}
