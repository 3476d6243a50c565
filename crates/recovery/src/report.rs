//! What recovery found and did.

use std::fmt;

use blockyard_disk::{BlockNr, CorruptionKind, TxnId};

/// The state of a journal, by the superblock's RECOVER flag and by whether the log is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalState {
    /// The file system has no journal.
    None,
    /// RECOVER is clear and the log is empty.
    Clean,
    /// RECOVER is set and the log is empty, as after a crash right after a checkpoint. There is
    /// nothing to replay; recovery clears the flag.
    FlagOnly,
    /// RECOVER is set and the log is not empty: committed transactions may have to be replayed.
    NeedsReplay,
    /// The log is not empty although RECOVER is clear.
    Unflagged,
}

impl JournalState {
    /// Name in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Clean => "clean",
            Self::FlagOnly => "flag-only",
            Self::NeedsReplay => "needs-replay",
            Self::Unflagged => "unflagged",
        }
    }
}

/// How the journal was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalSource {
    /// By its inode.
    Inode,
    /// By the copy of its inode's map in the superblock. The inode is unusable, or its map contains
    /// blocks of bitmaps or inode tables and the copy does not.
    SuperblockBackup,
    /// On the external device that was given.
    External,
}

impl JournalSource {
    /// Name in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inode => "inode",
            Self::SuperblockBackup => "superblock-backup",
            Self::External => "external",
        }
    }
}

/// What is known of a journal before a replay. Without a journal the numbers are 0, and `features`
/// is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalStatus {
    /// Whether a replay is needed.
    pub state: JournalState,
    /// How the journal was found; `None` without a journal.
    pub source: Option<JournalSource>,
    /// Names of the journal's features, as dumpe2fs prints them.
    pub features: String,
    /// The journal's length in blocks.
    pub blocks: u32,
    /// Transaction expected at the start of the log.
    pub sequence: TxnId,
    /// Log block at which the oldest transaction starts; `None` when the log is empty.
    pub start: Option<u32>,
    /// The error code in the journal superblock (`s_errno`); 0 for none.
    pub errno: u32,
}

/// One thing wrong with a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Which check failed.
    pub kind: CorruptionKind,
    /// The transaction in which the damage is.
    pub tid: TxnId,
    /// The log block that failed the check.
    pub log_block: u32,
    /// If the log block is a copy of a block: the number of that block.
    pub target: Option<BlockNr>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "transaction {}, log block {}", self.tid, self.log_block)?;
        if let Some(target) = self.target {
            write!(f, ", for block {target}")?;
        }
        write!(f, ": {}", self.kind)
    }
}

/// What a replay found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The journal before the replay.
    pub before: JournalStatus,
    /// Committed transactions found.
    pub transactions: u64,
    /// Logged blocks in the committed transactions.
    pub logged: u64,
    /// Revoked blocks that the committed transactions list.
    pub revokes: u64,
    /// Logged blocks that a revoke kept from being replayed.
    pub revoked: u64,
    /// Blocks written home: the last good copy of each.
    pub written: u64,
    /// The first transaction that was not replayed; `None` when the log was not read.
    pub end: Option<TxnId>,
    /// What was wrong with the log; at most [`Report::DAMAGE_MAX`] findings are kept.
    pub damage: Vec<Damage>,
}

impl Report {
    /// The most findings that are kept.
    pub const DAMAGE_MAX: usize = 1000;

    pub(crate) fn new(before: JournalStatus) -> Self {
        Self {
            before,
            transactions: 0,
            logged: 0,
            revokes: 0,
            revoked: 0,
            written: 0,
            end: None,
            damage: Vec::new(),
        }
    }
}

/// Adds a finding unless the list is full.
pub(crate) fn note(list: &mut Vec<Damage>, damage: Damage) {
    if list.len() < Report::DAMAGE_MAX {
        list.push(damage);
    }
}
