//! When the I/O of write-back has ended, as an observer of a kernel reports it.

use blockyard_disk::InodeNr;
use blockyard_sync::CpuSlot;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A run of written-back blocks whose I/O has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoEnd {
    /// The file.
    pub inode: InodeNr,
    /// The run's logical blocks.
    pub blocks: Range<u32>,
    /// The CPU slot on which the run is converted to written extents. Blocks that the conversion
    /// allocates or frees are counted in this slot's share of the lagging free-space counters.
    pub cpu: CpuSlot,
}

/// Tells when the I/O of runs of written-back blocks has ended, as an observer saw it.
pub trait IoEndSource: Send + Sync {
    /// The next run whose I/O has ended by now and that was not returned yet. Before write-back and
    /// `fallocate` choose blocks, and at some other points, the engine calls this until it returns
    /// `None`. A file's content lock may be held, so this must not call the engine.
    fn next(&self) -> Option<IoEnd>;

    /// Called when write-back has mapped a run of blocks, perhaps without calling the allocator.
    fn mapped(&self);

    /// Called when a write had to allocate a block at once, instead of leaving that to write-back.
    /// The allocation may have succeeded or failed.
    fn allocated(&self) {}

    /// Called after a request found no space and the transaction was ended for that reason, before
    /// the request is tried again. For observers that follow transactions.
    fn committed(&self) {}

    /// Called when write-back has found no space and begins its search for dirty data again. For
    /// observers that follow transactions.
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
