//! Inode allocation against inode numbers of a kernel, and against models.

#![allow(clippy::unwrap_used, clippy::as_conversions, reason = "a test binary")]

#[path = "inode/model.rs"]
mod model;
#[path = "inode/older.rs"]
mod older;
#[path = "inode/replica.rs"]
mod replica;
#[path = "inode/switches.rs"]
mod switches;
#[path = "inode/vectors.rs"]
mod vectors;
