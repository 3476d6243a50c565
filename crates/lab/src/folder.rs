//! The folder of a run: the run's environment, and the files in which it keeps its results.

pub mod environment;
pub(crate) mod files;
pub(crate) mod hash;
pub mod ledger;

pub use environment::{Environment, command_line};
