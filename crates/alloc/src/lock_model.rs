//! Group locks that look held although nobody holds them: for models in which operations overlap on
//! one thread.
//!
//! In such a model (the lab has one) the operations of a round count as concurrent. A group in
//! which one operation allocated looks locked to the round's other operations. A caller that passes
//! over busy groups goes elsewhere. A caller that waits for a lock gets it at once, because no
//! thread holds it. Without a model, a check costs one relaxed load.

use core::fmt;
use std::sync::Arc;

use blockyard_disk::GroupNr;
use blockyard_sync::{AtomicBool, Mutex, Ordering, rank};

/// Says which group locks look held. It may be called from several threads at once. An
/// implementation must not call the allocator.
pub trait LockModel: Send + Sync {
    /// Whether the lock of this group looks held. Where groups share a lock, `lock` is the group
    /// that stands for all of them ([`Allocator::lock_of`](crate::Allocator::lock_of)).
    fn is_held(&self, lock: GroupNr) -> bool;
}

/// The model, if any. Its flag and its lock are native under every backend, because the model is no
/// part of the allocator whose locks it describes.
pub(crate) struct ModelledLocks {
    /// Relaxed is enough: the flag is set before the operations of the model begin.
    is_set: AtomicBool,
    model: Mutex<Option<Arc<dyn LockModel>>>,
}

impl ModelledLocks {
    pub(crate) fn none() -> Self {
        Self { is_set: AtomicBool::new(false), model: Mutex::new(rank::LEAF, None) }
    }

    pub(crate) fn set(&self, model: Option<Arc<dyn LockModel>>) {
        let is_set = model.is_some();
        *self.model.lock() = model;
        self.is_set.store(is_set, Ordering::Relaxed);
    }

    /// Whether a model says that a lock is held.
    #[inline]
    pub(crate) fn is_held(&self, lock: GroupNr) -> bool {
        self.is_set.load(Ordering::Relaxed) && self.model_says(lock)
    }

    #[cold]
    fn model_says(&self, lock: GroupNr) -> bool {
        self.model.lock().as_ref().is_some_and(|model| model.is_held(lock))
    }
}

impl fmt::Debug for ModelledLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ModelledLocks").field(&self.is_set.load(Ordering::Relaxed)).finish()
    }
}
