//! Features that an image gets when the first thing is written that needs them, as in Linux
//! (observed on 6.18): e2fsck takes such a thing for damage where the superblock does not announce
//! it.
//!
//! Noted inside the handle that makes the change, or when the inode is encoded for its commit; so
//! the superblock of the same transaction, or of one before it, has the feature.

use blockyard_disk::superblock::RawSuperblock;
use blockyard_disk::{Compat, RoCompat};
use blockyard_sync::{AtomicBool, Ordering};

/// The largest file without `large_file`.
const SMALL_FILE_MAX: u64 = (1 << 31) - 1;

/// What the superblock must announce. Relaxed: the gate of the transaction comes between a note and
/// its commit.
pub(crate) struct NewFeatures {
    attributes: AtomicBool,
    large_file: AtomicBool,
}

impl NewFeatures {
    /// Nothing that the image does not have.
    pub(crate) const fn none() -> Self {
        Self { attributes: AtomicBool::new(false), large_file: AtomicBool::new(false) }
    }

    /// An inode gets an attribute.
    pub(crate) fn note_attribute(&self) {
        self.attributes.store(true, Ordering::Relaxed);
    }

    /// A regular file has a size.
    pub(crate) fn note_size(&self, size: u64) {
        if size > SMALL_FILE_MAX {
            self.large_file.store(true, Ordering::Relaxed);
        }
    }

    /// Adds what is missing; gives whether anything was.
    pub(crate) fn add_to(&self, raw: &mut RawSuperblock) -> bool {
        let (mut compat, mut ro_compat) = (raw.compat(), raw.ro_compat());
        if self.attributes.load(Ordering::Relaxed) {
            compat |= Compat::EXT_ATTR;
        }
        if self.large_file.load(Ordering::Relaxed) {
            ro_compat |= RoCompat::LARGE_FILE;
        }
        let adds = compat != raw.compat() || ro_compat != raw.ro_compat();
        raw.set_compat(compat);
        raw.set_ro_compat(ro_compat);
        adds
    }
}
