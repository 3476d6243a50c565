//! How much one request and one handle do at most.

use crate::txn::REVOKES_PER_CREDIT;

/// The most blocks that one mapping request of write-back asks for.
pub(super) const RUN_MAX: u32 = 2048;

/// The most blocks of data that one handle logs: a small part of the smallest journal's
/// transactions.
pub(super) const LOGGED_MAX: u32 = 32;

/// Metadata blocks that one run may change: a split of the tree on every level, bitmaps,
/// descriptors, the inode.
pub(crate) const RUN_CREDITS: usize = 24;

/// The most blocks of metadata (logged data included) that one handle frees: each takes a revoke
/// record in the log.
pub(super) const REVOKED_MAX: usize = 2048;

/// Metadata blocks that freeing one part of a range may change.
pub(crate) const FREE_CREDITS: usize = RUN_CREDITS + REVOKED_MAX / REVOKES_PER_CREDIT;
