//! The read-only side: reads an image through its verified structures, and never writes it.
//!
//! [`reader`] reads an image's structures. [`path`] resolves paths, in images and in any other
//! tree. [`scan`] walks an image once and counts its free space and the extents of its files.
//! [`frag`] and [`map`] make figures and pictures of the counts. [`units`] and [`xml`] format
//! figures and labels.

#![forbid(unsafe_code)]

pub mod frag;
pub mod map;
pub mod path;
pub mod reader;
pub mod scan;
pub mod units;
pub mod xml;
