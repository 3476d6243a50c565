//! The read-only side: reads an image through its verified structures, and never writes it.
//!
//! [`reader`] reads. [`path`] is the one path walk, for images and for any other tree. [`scan`]
//! walks an image once for everything that is counted. [`frag`] and [`map`] make figures and
//! pictures of the counts. [`units`] and [`xml`] format figures and labels.

#![forbid(unsafe_code)]

pub mod frag;
pub mod map;
pub mod path;
pub mod reader;
pub mod scan;
pub mod units;
pub mod xml;
