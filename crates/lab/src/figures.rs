//! Measurements and their presentation: rows, medians over repetitions, tables and charts.

pub mod free_runs;
pub mod modelled;
pub mod plot;
pub mod row;
pub mod spread;
pub mod states;
pub mod summary;
pub mod table;
pub mod waits;

pub use table::{Table, figure};
