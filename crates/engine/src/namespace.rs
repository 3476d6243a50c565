//! Operations on names.
//!
//! [`rules`] checks names, and [`links`] counts them. The operations in [`operations`], [`links`],
//! [`rename`], [`symlink`] and [`unnamed`] take the locks, check the rules, and combine the parts
//! of the engine.

mod links;
mod operations;
mod rename;
mod rules;
mod symlink;
mod unnamed;

pub use rename::RenameMode;

use crate::directories::Directories;
use crate::file::Files;
use crate::mapping::Mapping;
use crate::volume::Volume;
use crate::xattr::Xattrs;
use blockyard_sync::{Mutex, rank};
use std::sync::Arc;

/// The operations on the names of a file system, and the parts of the engine that they need.
pub(crate) struct Namespace {
    volume: Arc<Volume>,
    mapping: Arc<Mapping>,
    files: Arc<Files>,
    directories: Directories,
    xattrs: Arc<Xattrs>,
    /// Held by renames between two directories. So no directory gets another parent while such a
    /// rename walks from a directory to the root.
    renames: Mutex<()>,
}

impl Namespace {
    /// The operations on the names of a volume.
    pub(crate) fn new(
        volume: &Arc<Volume>,
        mapping: &Arc<Mapping>,
        files: &Arc<Files>,
        directories: Directories,
        xattrs: &Arc<Xattrs>,
    ) -> Self {
        Self {
            volume: Arc::clone(volume),
            mapping: Arc::clone(mapping),
            files: Arc::clone(files),
            directories,
            xattrs: Arc::clone(xattrs),
            renames: Mutex::new(rank::RENAME, ()),
        }
    }
}
