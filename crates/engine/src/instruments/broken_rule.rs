//! Rules of durability that tests can break, to show that they would notice.

/// A rule of durability that an instance does not keep. Only for tests of crash tests: each of
/// these loses or mixes data if the power fails at the wrong moment.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenRule {
    /// The commit record is written without first flushing what it covers.
    NoPreflush,
    /// The tail of the log moves before the blocks that left the log are flushed at home.
    TailBeforeFlush,
    /// Freed metadata blocks are not revoked.
    RevokeOmitted,
    /// A revoke stays in force when its block is metadata again.
    RevokeNotCancelled,
    /// Freed clusters are handed out again before the transaction that freed them has committed.
    EarlyRelease,
    /// A deleted inode leaves the orphan list before its blocks are freed.
    EarlyOrphanRemoval,
    /// Tags carry wrong checksums.
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
