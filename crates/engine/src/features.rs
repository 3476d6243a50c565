//! Feature flags that are set when an image first needs them, as in Linux (observed on 6.18). If
//! the superblock does not announce a feature that is in use, e2fsck reports damage.
//!
//! A need is noted inside the handle that makes the change, or when the inode is encoded for its
//! commit. So the flag reaches the superblock in the same transaction, unless an earlier one set
//! it.

use blockyard_disk::superblock::RawSuperblock;
use blockyard_disk::{Compat, RoCompat};
use blockyard_sync::{AtomicBool, Ordering};

/// Size in bytes of the largest file that is allowed without `large_file`.
const SMALL_FILE_MAX: u64 = (1 << 31) - 1;

/// The features that the superblock must announce. Accessed relaxed: the transaction's gate orders
/// a note before the commit that reads it.
pub(crate) struct NewFeatures {
    attributes: AtomicBool,
    large_file: AtomicBool,
}

impl NewFeatures {
    /// No new features.
    pub(crate) const fn none() -> Self {
        Self { attributes: AtomicBool::new(false), large_file: AtomicBool::new(false) }
    }

    /// Notes that an inode gets an attribute.
    pub(crate) fn note_attribute(&self) {
        self.attributes.store(true, Ordering::Relaxed);
    }

    /// Notes the size of a regular file in bytes.
    pub(crate) fn note_size(&self, size: u64) {
        if size > SMALL_FILE_MAX {
            self.large_file.store(true, Ordering::Relaxed);
        }
    }

    /// Adds the flags that a superblock lacks. Returns whether it lacked any.
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
