//! Agreement with the kernel's allocator, level 1: the same requests, decision by decision.
//!
//! [`record`](record::record) runs a load on a loop image under the running kernel's ext4. It
//! writes down every input of the kernel's block allocator and what the kernel decided.
//! [`replay`](replay::replay) feeds these inputs to `blockyard_alloc` and compares the placement of
//! each request. For a request that the kernel searched for, `replay` also compares goal,
//! criterion, candidates, groups scanned and flags. At the end `replay` compares `mb_groups`,
//! `mb_structs_summary` and `mb_stats`.
//!
//! Images can be aged before they are mounted, so that loads begin with fragmented free space.
//!
//! [`operations`] is level 2: whole operations.
//!
//! The kernel is observed through its tracepoints, `/proc` and `/sys`. docs/behaviour says what the
//! observations showed.

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
mod lived;
mod mke2fs;
mod trace_text;
mod work;
