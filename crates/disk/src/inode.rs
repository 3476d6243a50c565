//! Inodes: 128 fixed bytes and, in larger inodes, extra fields and room for attributes.
//!
//! [`RawInode`] is the fixed part, [`RawInodeExtra`] the optional part after it. [`InodeSlot`]
//! views one whole slot of an inode table. The inode's `i_extra_isize` decides which extra fields
//! exist.

mod checksum;
mod raw;
mod slot;
mod verified;

pub use raw::{FileType, InodeFlags, RawInode, RawInodeExtra};
pub use slot::InodeSlot;
pub use verified::{BLOCK_FIELD_LEN, Inode, InodeMap};
