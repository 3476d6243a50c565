//! Mounts an image as a file system of the machine, through FUSE.
//!
//! | part | what it is |
//! |---|---|
//! | [`Server`] | answers requests through [`blockyard::ByInode`]; works without FUSE |
//! | `adapter` | FUSE through the crate fuser; the only module that knows fuser |
//! | [`Mount`] | opening, mounting, serving, and an orderly unmount |
//! | [`Options`] | the mount options of `-o` |
//! | [`Figures`] | counts and latencies of requests |
//!
//! The kernel may cache names and attributes for ever, because an open image has no other writer.
//! It also caches what programs write, and sends it in large pieces (write-back cache). Each inode
//! that the kernel knows is held by number and generation until the kernel forgets it.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod adapter;
mod crew;
mod errno;
mod figures;
mod handles;
mod in_force;
mod mount;
mod nodes;
mod options;
mod record;
mod removals;
pub mod server;

pub use blockyard::AccessTimes;
pub use figures::{Figures, Kind, Row};
pub use in_force::options_in_force;
pub use mount::{Handle, Mount, MountError, Request, Serving, Unmounted};
pub use options::{OptionError, Options};
pub use server::Server;
