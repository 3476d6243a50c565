//! A run's folder: what it is of, and what it keeps while it runs.

pub mod environment;
pub(crate) mod files;
pub mod ledger;

pub use environment::{Environment, command_line};
