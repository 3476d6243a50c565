//! The read-only side: an image looked at, never written, by its verified structures.

#![forbid(unsafe_code)]

pub mod reader;
