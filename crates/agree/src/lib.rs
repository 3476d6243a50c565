//! Agreement with the kernel's allocator, level 1: the same requests, decision by decision.
//!
//! [`record`](record::record) runs a load on a loop image under the running kernel's ext4 and
//! writes down every input of its block allocator with what it decided; the replay feeds these
//! inputs to `blockyard_alloc` and compares placement, criterion, candidates and groups scanned,
//! and at the end the counters of every group and of the indexes.
//!
//! Level 2, whole operations, is [`operations`].
//!
//! The tracepoints are the kernel's public interface; docs/behaviour has what was found by them.

#![forbid(unsafe_code)]

pub mod images;
pub mod kernel;
pub mod loads;
pub mod matrix;
pub mod operations;
pub mod record;
pub mod recording;
pub mod replay;

mod command;
mod drain;
mod driver;
mod trace_text;
mod work;
