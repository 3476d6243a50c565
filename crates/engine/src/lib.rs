//! The file system: mkfs, cache, transactions, inodes, extents, directories.
//!
//! The order in which a thread takes locks: inode content (directories and files, ascending numbers), handle, inode
//! core, group, buffer. Nobody waits for a commit inside a handle. docs/locking.md has the whole table.

#![forbid(unsafe_code)]
// Seams that the namespace and the journal will use; goes when they do.
#![allow(dead_code)]

mod cache;
mod context;
mod data;
mod directory;
mod error;
pub mod extents;
mod file;
mod fs;
mod groups;
mod indirect;
mod inline;
mod inode;
pub mod mkfs;
mod namespace;
mod numbers;
pub mod reader;
mod space;
mod txn;

pub use context::OpContext;
pub use error::{Error, Result};
pub use file::Fallocate;
pub use fs::{FileSystem, OpenOptions, Recovery, Statistics};
pub use inode::{Attributes, SetAttributes};
pub use namespace::{DirEntry, NewInode, RenameMode};
