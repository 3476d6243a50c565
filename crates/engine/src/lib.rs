//! The file system: mkfs, cache, transactions, inodes, extents, directories.

#![forbid(unsafe_code)]

pub mod mkfs;
pub mod reader;
