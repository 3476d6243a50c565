//! When the I/O of write-back ended, as an observer of a kernel reports it.

use blockyard_disk::InodeNr;
use blockyard_sync::CpuSlot;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A run of written-back blocks whose I/O has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoEnd {
    /// Its file.
    pub inode: InodeNr,
    /// Its logical blocks.
    pub blocks: Range<u32>,
    /// The CPU slot that converts it. What the conversion takes and frees affects how far this
    /// slot's counters lag.
    pub cpu: CpuSlot,
}

/// Tells when the I/O of runs of written-back blocks ended, as an observer saw it.
pub trait IoEndSource: Send + Sync {
    /// The next run whose I/O has ended by now and that was not returned yet. Called repeatedly,
    /// until it returns `None`, at least before write-back and `fallocate` choose blocks. A file's
    /// content lock may be held, so this must not call the engine.
    fn next(&self) -> Option<IoEnd>;

    /// Write-back has mapped a run of blocks, perhaps without any decision of the allocator.
    fn mapped(&self);

    /// A write that cannot delay a block has allocated it, or failed to.
    fn allocated(&self) {}

    /// A request that found no space has ended the transaction, to try again. For observers that
    /// follow transactions.
    fn committed(&self) {}

    /// A write-back that found no space looks again for what to write. For observers that follow
    /// transactions.
    fn walks_again(&self) {}
}

/// Reports when the I/O of write-back has ended.
#[derive(Clone)]
pub struct IoEnds(pub Arc<dyn IoEndSource>);

impl fmt::Debug for IoEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IoEnds")
    }
}
