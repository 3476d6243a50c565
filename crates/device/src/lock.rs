//! The locks of this crate, in one place.

pub(crate) use parking_lot::{Mutex, RwLock};
