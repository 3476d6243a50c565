//! The read-only side: an image looked at, never written, by its verified structures.
//!
//! [`reader`] reads; [`scan`] walks an image once for all that is counted; [`frag`] and [`map`] are the figures and the
//! pictures of that; [`units`] and [`xml`] are how figures and labels are printed.

#![forbid(unsafe_code)]

pub mod frag;
pub mod map;
pub mod reader;
pub mod scan;
pub mod units;
pub mod xml;
