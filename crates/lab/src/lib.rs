//! Measures workloads, policies and geometries.
//!
//! [`run`] measures one workload under several policies. [`experiment`], [`copy`], [`e3`] and
//! [`e4`] repeat published experiments. [`age`] makes aged images, [`crash`] cuts the power, and
//! [`trace`] makes and plays traces of operations. [`figures`] and [`report`] present the results.

pub mod age;
pub mod aged_image;
mod aligned;
pub mod census;
pub mod copy;
pub mod cpus;
pub mod crash;
pub mod device_model;
mod e1;
mod e2;
pub mod e3;
pub mod e4;
pub mod experiment;
pub mod figures;
pub mod folder;
mod held_locks;
mod host;
pub mod journal;
pub mod machine;
mod metered;
pub mod new_file;
pub mod overlap;
pub mod pairs;
pub mod reading;
mod recorded_reads;
pub mod report;
pub mod run;
pub mod runner;
pub mod scratch;
pub mod target;
pub mod trace;
pub mod workload;
mod yard;

pub use figures::row::{Interleave, Row};
pub use figures::spread::Spread;
