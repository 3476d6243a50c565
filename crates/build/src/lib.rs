//! Makes ext4 images from trees of files.
//!
//! The tree is read first (names, attributes, sizes). Then the whole image is laid out. Last, it is
//! written.
//!
//! By default the file system is hardly larger than the tree needs, and its directories lie
//! together. Each file is in one piece unless fixed metadata is in the way. The inodes are in the
//! order of the tree. The bytes depend only on the tree and the options, not on the machine, the
//! number of threads, or the order in which the host lists directories.
//!
//! ```no_run
//! use blockyard_build::{Builder, Tree};
//! use blockyard_device::FileDevice;
//! use std::path::Path;
//!
//! # fn main() -> Result<(), blockyard_build::Error> {
//! let tree = Tree::read(Path::new("rootfs"), 2)?;
//! let plan = Builder::default().plan(tree)?;
//! let device = FileDevice::create(Path::new("rootfs.img"), plan.bytes())?;
//! let summary = plan.write(&device)?;
//! println!("{} files, {} bytes", summary.files, summary.image_bytes);
//! # Ok(())
//! # }
//! ```

mod acl;
mod attributes;
mod block_map;
mod content;
mod diff;
mod error;
mod export;
mod fflags;
mod image;
mod inline;
mod inode;
mod layout;
mod left_out;
mod mapping;
mod numbering;
mod parallel;
mod placement;
mod plan;
mod rules;
mod shape;
mod source;
mod stream;
mod times;
mod tree;

pub use diff::{Difference, Differences, What};
pub use error::{Error, Result};
pub use export::{ContainerOptions, Exported};
pub use left_out::LeftOut;
pub use placement::Placement;
pub use plan::{Builder, Overhead, Plan, Room, Size, Summary, Took};
pub use rules::{Glob, OwnerMap, Rules};
pub use source::{Added, Choice, Platform};
pub use stream::{Compression, Encoder};
pub use times::MovedTimes;
pub use tree::Tree;
