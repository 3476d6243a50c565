//! The read-only side: an image looked at, never written, by its verified structures.
//!
//! [`reader`] reads; [`path`] is the one walk of paths, here and over any other tree; [`scan`]
//! walks an image once for all that is counted; [`frag`] and [`map`] are the figures and the
//! pictures of that; [`units`] and [`xml`] are how figures and labels are printed.

#![forbid(unsafe_code)]

pub mod frag;
pub mod map;
pub mod path;
pub mod reader;
pub mod scan;
pub mod units;
pub mod xml;
