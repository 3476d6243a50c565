//! Support for tests: external programs and the running kernel as oracles; images that are made,
//! filled, damaged, or left dirty by the kernel; seeds; and the table of what each test has tried.
//!
//! Where an oracle is missing, a test prints the line `SKIPPED-ORACLE: why` and returns. With
//! `BLOCKYARD_REQUIRE_ORACLE=1` (set in CI) it panics instead, so that a skip is a failure there.
//! `BLOCKYARD_FULL=1` asks for full matrices instead of samples.

#![forbid(unsafe_code)]

pub mod coverage;
pub mod crash;
pub mod fill;
pub mod images;
mod leftovers;
pub mod mutate;
pub mod oracle;
pub mod repair;
pub mod seed;
mod sparse_bytes;
pub mod tree;
mod wait;

pub use leftovers::leftovers;
pub use oracle::{
    LoopDevice, LoopMount, Verdict, e2fsck_bounded, e2fsck_bounded_with, e2fsck_clean, have_tool, is_root,
    mke2fs, require, run, stay_on_one_cpu,
};
pub use seed::{byte_range, full_matrix, seed};
pub use sparse_bytes::SparseBytes;
pub use wait::wait_until;
