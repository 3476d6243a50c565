//! The file system: mkfs, cache, transactions, inodes, extents, directories.
//!
//! ```
//! use blockyard_device::MemoryDevice;
//! use blockyard_disk::{InodeNr, Timestamp, inode::FileType};
//! use blockyard_engine::{Fallocate, FileSystem, NewInode, OpContext, OpenOptions, mkfs};
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Arc::new(MemoryDevice::new(64 << 20));
//! mkfs::format(&*device, &mkfs::Options::ext4().block_size(4096))?;
//!
//! let ctx = OpContext::root_at(Timestamp::from_seconds(1_700_000_000));
//! let fs = FileSystem::open(device, OpenOptions::default(), &ctx)?;
//! let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
//! let file = fs.create(&ctx, InodeNr::ROOT, b"hello", &new)?;
//! fs.write(&ctx, file, 0, b"hello, world")?;
//! fs.fallocate(&ctx, file, Fallocate::AllocateKeepSize, 0, 1 << 20)?;
//! let mut text = [0; 12];
//! fs.read(&ctx, file, 0, &mut text)?;
//! assert_eq!(&text, b"hello, world");
//! fs.close(&ctx)?;
//! # Ok(())
//! # }
//! ```
//!
//! A thread takes locks in this order: inode content (a directory before the inodes in it,
//! otherwise in ascending order of inode number), handle, inode core, group, buffer. No thread
//! waits for a commit while it holds a handle. docs/locking.md has the whole order.

#![forbid(unsafe_code)]

mod cache;
mod context;
mod data;
mod directories;
mod directory;
mod epoch;
mod error;
pub mod extents;
mod features;
mod file;
mod fs;
mod groups;
mod inode;
mod inode_id;
#[doc(hidden)]
pub mod instruments;
mod journal;
mod mapping;
pub mod mkfs;
mod namespace;
mod numbers;
mod options;
mod orphans;
mod pool;
mod range_set;
mod refusal;
mod requests;
mod space;
mod system_zones;
mod txn;
mod volume;
mod watched;
mod xattr;

pub use context::OpContext;
pub use directories::DirEntry;
pub use error::{Error, OrphanDefect, Result};
pub use file::Fallocate;
pub use file::{FileExtent, Seek};
#[doc(hidden)]
pub use fs::Instrumented;
pub use fs::{AccessTimes, Attributes, FileSystem, SetAttributes, Statistics};
pub use inode_id::{Found, InodeId, InodeRef};
pub use namespace::RenameMode;
pub use options::{DataMode, DataNotice, Events, JournalUse, OnDamage, OpenOptions, Recovery};
pub use refusal::Refusal;
pub use volume::NewInode;
#[doc(hidden)]
pub use watched::Watched;
pub use xattr::XattrMode;
