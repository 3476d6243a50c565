//! When the I/O of write-back ended, as somebody who watched a kernel tells.

use blockyard_disk::InodeNr;
use blockyard_sync::CpuSlot;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A piece of a write-back whose I/O has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoEnd {
    /// Its file.
    pub inode: InodeNr,
    /// Its logical blocks.
    pub blocks: Range<u32>,
    /// Where it is converted: what that takes and frees shows in how far this slot's counters lag
    /// behind.
    pub cpu: CpuSlot,
}

/// When the I/O of pieces of a write-back ended, as somebody saw it.
pub trait IoEndSource: Send + Sync {
    /// The next piece whose I/O has ended by now and that was not given yet. Asked until there is
    /// none before each place is chosen; called with the locks of a file's content held, so it must
    /// not call the engine.
    fn next(&self) -> Option<IoEnd>;

    /// Write-back has mapped a piece, which may have taken no decision.
    fn mapped(&self);

    /// A write that cannot delay a block has placed it, or failed to.
    fn placed(&self) {}

    /// What found no space has ended the transaction, to try again. Nothing to do for who does not
    /// know of transactions.
    fn committed(&self) {}

    /// A write-back that found no space looks again for what it is to write, as
    /// [`Self::committed`].
    fn walks_again(&self) {}
}

/// Tells when the I/O of write-back has ended.
#[derive(Clone)]
pub struct IoEnds(pub Arc<dyn IoEndSource>);

impl fmt::Debug for IoEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IoEnds")
    }
}
