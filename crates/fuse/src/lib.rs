//! The mount: an image as a file system of the machine it is on, through FUSE.
//!
//! | part | what it is |
//! |---|---|
//! | [`Server`] | what a kernel asks, in types of our own, over [`blockyard::ByInode`]; can be asked without a kernel |
//! | `adapter` | FUSE, as the crate fuser carries it: the only file that knows it |
//! | [`Mount`] | opening, mounting, serving, and taking down in order |
//! | [`Options`] | what `-o` takes |
//! | [`Figures`] | counts and latencies of requests |
//!
//! The kernel is told to believe names and attributes for ever, because nobody else writes to an
//! image that is open, and keeps what programs write until it hands it over in large pieces
//! (write-back cache). What it was told of is held by inode number and generation until it forgets
//! it.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod adapter;
mod crew;
mod errno;
mod figures;
mod handles;
mod mount;
mod nodes;
mod options;
mod record;
mod removals;
pub mod server;

pub use blockyard::AccessTimes;
pub use figures::{Figures, Kind, Row};
pub use mount::{Handle, Mount, MountError, Request, Serving, Unmounted};
pub use options::{OptionError, Options};
pub use server::Server;
