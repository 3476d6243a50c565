//! How much one request and one handle do at most.

use crate::txn::REVOKES_PER_CREDIT;

/// The most blocks that one mapping request of write-back asks for.
pub(super) const RUN_MAX: u32 = 2048;

/// The most blocks of data that one handle logs: a small part of a transaction, even in the
/// smallest journal.
pub(super) const LOGGED_MAX: u32 = 32;

/// Metadata blocks that one run may change: a split of the tree on every level, bitmaps,
/// descriptors, the inode.
pub(crate) const RUN_CREDITS: usize = 24;

/// The most blocks of logged data, a directory or a symbolic link that one handle unmaps from an
/// extent tree. Each takes a revoke record in the log. Nodes of the tree are not counted here.
pub(super) const REVOKED_MAX: usize = 2048;

/// Credits for freeing one part of a range: for the metadata blocks that may change, and for revoke
/// records.
pub(crate) const FREE_CREDITS: usize = RUN_CREDITS + REVOKED_MAX / REVOKES_PER_CREDIT;
