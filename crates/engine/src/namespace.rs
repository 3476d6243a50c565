//! Names: directories and what is done by name.
//!
//! What stands here is the first, thin namespace: linear directories, create, mkdir, unlink, rmdir, lookup, readdir.
//! Seams for what follows: [`directory`] finds, enters and removes names in one directory; [`create`] makes inodes and
//! [`remove`] unmakes them; the operations in this file only lock, check and compose.

mod create;
mod directory;
mod operations;
mod remove;

pub use create::NewInode;
pub use directory::DirEntry;
