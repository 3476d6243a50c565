//! How much one request and one handle do at most.

use crate::txn::REVOKES_PER_CREDIT;

/// Most blocks of one mapping request.
pub(super) const RUN_MAX: u32 = 2048;

/// Most blocks of data that one handle logs: a small part of the smallest journal's transactions.
pub(super) const LOGGED_MAX: u32 = 32;

/// Metadata blocks that one run may change: a split of the tree on every level, bitmaps,
/// descriptors, the inode.
pub(crate) const RUN_CREDITS: usize = 24;

/// Most blocks of metadata (logged data included) that one handle frees: each takes a revoke record
/// in the log.
pub(super) const REVOKED_MAX: usize = 2048;

/// Metadata blocks that freeing one part of a range may change.
pub(crate) const FREE_CREDITS: usize = RUN_CREDITS + REVOKED_MAX / REVOKES_PER_CREDIT;
