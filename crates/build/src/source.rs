//! Where trees come from.

mod archive;
mod container;
mod host;
mod image;
mod merge;
mod spool;
mod staging;

pub use container::{Choice, Platform};
pub use merge::Added;
