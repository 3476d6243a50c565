//! The folder of a run: its environment, and the files that it keeps while it runs.

pub mod environment;
pub(crate) mod files;
pub(crate) mod hash;
pub mod ledger;

pub use environment::{Environment, command_line};
