//! Where trees come from.

mod archive;
mod host;
mod staging;
