//! The superblock: 1024 bytes at byte 1024 of the device, with backups at the start of some groups.

pub mod bounds;
mod checksum;
mod raw;
mod verified;

pub use raw::{ErrorPolicy, FsFlags, FsState, RawSuperblock};
pub use verified::{INCOMPAT_READABLE, RO_COMPAT_KNOWN, Superblock};

/// Byte offset of the primary superblock on the device, for every block size.
pub const PRIMARY_OFFSET: u64 = 1024;

/// `s_magic` of ext2, ext3 and ext4.
pub const MAGIC: u16 = 0xEF53;
