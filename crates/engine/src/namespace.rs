//! Names: directories and what is done by name.
//!
//! [`directory`] gives the algorithms of [`crate::directory`] their blocks; [`create`] makes inodes and [`remove`]
//! unmakes them; [`links`] counts names; the operations in [`operations`], [`rename`] and [`symlink`] lock, check and
//! compose.

mod create;
mod directory;
mod links;
mod operations;
mod remove;
mod rename;
mod symlink;
mod unnamed;

pub use create::NewInode;
pub use directory::DirEntry;
pub use rename::RenameMode;
