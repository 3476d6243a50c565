//! Use ext4 from Rust the way [`std::fs`] is used: make an image, open it, and read and change its
//! files, without a mount and without root.
//!
//! ```
//! use blockyard::FileSystem;
//! use std::io::Write;
//!
//! # fn main() -> blockyard::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let image = folder.path().join("disk.img");
//! let fs = FileSystem::make_image(&image, 64 << 20)?;
//! fs.create_dir_all("etc/app")?;
//! let mut file = fs.create("etc/app/config")?;
//! file.write_all(b"colour = blue\n")?;
//! file.sync_all()?;
//! fs.rename("etc/app/config", "etc/app/settings")?;
//! fs.close()?;
//!
//! let fs = FileSystem::open_image(&image)?;
//! assert_eq!(fs.read_to_string("etc/app/settings")?, "colour = blue\n");
//! # fs.close()
//! # }
//! ```
//!
//! - [`FileSystem`] is an open image. [`ImageOptions`] says how to open or make one: on a path, a
//!   file, memory, or any [`BlockDevice`](device::BlockDevice).
//! - Paths are paths in the image. They start at its root, with or without a leading slash, and
//!   symbolic links never lead out of the image.
//! - [`File`] reads and writes as [`std::fs::File`] does, from many threads. [`OpenOptions`] has
//!   all options for opening a file.
//! - [`ByInode`] has operations by inode number and generation, as a mount needs.
//! - [`Context`] says for which user an operation runs, and at what time. The default is root and
//!   the system's clock.
//! - [`Error`] names the path or inode. Match on [`Error::kind`]. An [`Error`] converts to
//!   [`std::io::Error`] with its kind and errno, but without the path.
//!   In a function that returns [`Result`], `?` also accepts [`std::io::Error`], but no other
//!   error. A function that also calls [`device`] or [`check`] can return
//!   `Box<dyn std::error::Error>`.
//!
//! **Durability.** Closing or dropping an instance writes everything to the image. Before that,
//! [`File::sync_all`] makes one file durable and [`FileSystem::sync`] makes everything durable.
//! After a crash, opening an image with a journal recovers the state of the last commit.
//! Only one instance can have an image open for writing: a second one is refused, in this process
//! and in others.
//!
//! The crates that this one builds on are re-exported: [`device`], [`check`], [`recovery`],
//! [`inspect`], [`alloc`], [`engine`] with its [`mkfs`], and [`disk`].

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod acl;
mod background;
mod batch;
mod by_inode;
mod context;
mod copy;
mod error;
mod file;
mod file_system;
mod image_options;
mod instance;
mod metadata;
mod open_options;
mod paths;
mod read_dir;
mod reference;
mod shared_engine;
mod walk;

pub use acl::{Acl, AclEntry, AclKind, Subject};
pub use by_inode::{ByInode, Node};
pub use context::{Clock, Context};
pub use error::{Error, Reason, Result};
pub use file::File;
pub use file_system::FileSystem;
pub use image_options::ImageOptions;
pub use metadata::{Flags, Metadata};
pub use open_options::OpenOptions;
pub use read_dir::{DirEntry, ReadDir};
pub use walk::Walk;

#[doc(no_inline)]
pub use blockyard_disk::{FileType, InodeNr, Timestamp, device_number::DeviceNumber};
#[doc(no_inline)]
pub use blockyard_engine::{
    AccessTimes, DataMode, Fallocate, FileExtent, InodeId, NewInode, OnDamage, RenameMode, SetAttributes,
    Statistics, XattrMode, mkfs,
};

#[doc(no_inline)]
pub use blockyard_alloc as alloc;
#[doc(no_inline)]
pub use blockyard_check as check;
#[doc(no_inline)]
pub use blockyard_device as device;
#[doc(no_inline)]
pub use blockyard_disk as disk;
#[doc(no_inline)]
pub use blockyard_engine as engine;
#[doc(no_inline)]
pub use blockyard_inspect as inspect;
#[doc(no_inline)]
pub use blockyard_recovery as recovery;
