//! The caller's decisions about a replay.

/// What to do with a damaged log: for example, one with a wrong checksum that no crash explains, or
/// one in which a logged block has an impossible target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDamage {
    /// Write nothing and return [`Error::Damaged`](crate::Error::Damaged). A log that shares blocks
    /// with bitmaps or inode tables is refused, too, with [`Error::Disk`](crate::Error::Disk).
    #[default]
    Refuse,
    /// Replay what is good, empty the log, and mark the file system as having errors. This is done
    /// even if the log shares blocks with bitmaps or inode tables. A checker needs this choice.
    ReplayGood,
}

/// What to do with a log that is not empty although the superblock does not ask for recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unflagged {
    /// Write nothing and return [`Error::Unflagged`](crate::Error::Unflagged).
    #[default]
    Refuse,
    /// Replay it as `e2fsck -y` does.
    Replay,
    /// Empty it without reading it, as a Linux mount does.
    Discard,
}

/// Decisions about a replay; the default refuses whatever is doubtful.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// What to do with a damaged log.
    pub on_damage: OnDamage,
    /// What to do with a log that is not empty although RECOVER is clear.
    pub unflagged: Unflagged,
}
