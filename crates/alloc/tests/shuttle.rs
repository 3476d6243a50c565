//! The allocator's protocols, run under many schedules by shuttle: every lock and every atomic
//! access is a point where another thread may run. The number of schedules is bounded: half of them
//! are random, half follow priorities that change a few times.

#![allow(clippy::unwrap_used, clippy::as_conversions, reason = "a test binary")]

#[path = "shuttle/blocks.rs"]
mod blocks;
#[path = "shuttle/explore.rs"]
mod explore;
#[path = "shuttle/inodes.rs"]
mod inodes;
