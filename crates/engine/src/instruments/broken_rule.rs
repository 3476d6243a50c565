//! Rules of durability that tests can break, to show that the crash tests would notice.

/// A way in which an instance breaks a rule of durability. Only for tests of the crash tests: with
/// any of these, data can be lost or the file system damaged if the power fails at the wrong
/// moment.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenRule {
    /// The commit record is written without first flushing the blocks that it covers.
    NoPreflush,
    /// The tail of the log moves before the blocks that a checkpoint wrote home are flushed.
    TailBeforeFlush,
    /// Freed metadata blocks are not revoked.
    RevokeOmitted,
    /// A block's revoke is not cancelled when the block becomes metadata again.
    RevokeNotCancelled,
    /// Freed clusters are handed out again before the transaction that freed them has committed.
    EarlyRelease,
    /// A deleted inode leaves the orphan list before its blocks are freed.
    EarlyOrphanRemoval,
    /// The tags in descriptor blocks carry wrong checksums.
    BadTagChecksum,
    /// The size on disk rises before the data is written.
    SizeBeforeData,
}

impl BrokenRule {
    /// Every rule that can be broken.
    pub const ALL: [Self; 8] = [
        Self::NoPreflush,
        Self::TailBeforeFlush,
        Self::RevokeOmitted,
        Self::RevokeNotCancelled,
        Self::EarlyRelease,
        Self::EarlyOrphanRemoval,
        Self::BadTagChecksum,
        Self::SizeBeforeData,
    ];
}
