//! Workloads, policies and geometries measured.

pub mod census;
pub mod clusters;
pub mod copy;
pub mod cpus;
pub mod crash;
pub mod experiment;
pub mod journal;
pub mod ledger;
pub mod pairs;
pub mod passes;
pub mod published;
pub mod report;
pub mod row;
pub mod run;
pub mod runner;
pub mod scratch;
pub mod spread;
pub mod target;
pub mod trace;
pub mod workload;

pub use row::{Interleave, Row};
pub use spread::Spread;
