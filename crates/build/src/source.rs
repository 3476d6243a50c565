//! Where trees come from.

mod archive;
mod container;
mod content;
mod host;
mod merge;
mod spool;
mod staging;

pub use container::{Choice, Platform};
