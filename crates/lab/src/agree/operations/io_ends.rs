//! When the kernel's I/O ended, told to the engine.
//!
//! Linux maps what it writes back as unwritten and converts it in a thread of its own once the device has it, while others
//! go on mapping. How far behind follows from the block layer (its throttling of write-back, the 64 requests that it
//! collects) and the scheduler, so it is an input like the time, not a decision: each conversion is noted with its place
//! among the kernel's decisions and given to the engine at the same place among its own.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use blockyard_disk::InodeNr;
use blockyard_engine::IoEndSource;

use super::decisions::Collector;

/// A piece of a file that the kernel converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// Line of the trace, from 0.
    pub line: u32,
    /// Decisions of that line that came before.
    pub decisions: usize,
    /// Inode.
    pub inode: u32,
    /// Logical blocks.
    pub blocks: Range<u32>,
}

/// Gives the kernel's conversions in their order, each when its place has come.
pub struct Schedule {
    left: Mutex<VecDeque<Conversion>>,
    /// Knows the line and its decisions so far.
    ours: Arc<Collector>,
}

impl Schedule {
    /// Of a kernel's conversions, in order.
    #[must_use]
    pub fn new(conversions: Vec<Conversion>, ours: Arc<Collector>) -> Self {
        Self { left: Mutex::new(conversions.into()), ours }
    }
}

impl IoEndSource for Schedule {
    fn next(&self) -> Option<(InodeNr, Range<u32>)> {
        let now = self.ours.place();
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.front().filter(|next| (next.line, next.decisions) <= now)?;
        left.pop_front().map(|next| (InodeNr::new(next.inode), next.blocks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockyard_alloc::{AllocEvent, EventSink};
    use blockyard_sync::CpuSlot;

    #[test]
    fn a_conversion_is_given_once_after_as_many_decisions_as_the_kernel_had_made() {
        let ours = Arc::new(Collector::default());
        let conversion =
            |line, decisions, first| Conversion { line, decisions, inode: 12, blocks: first..first + 2 };
        let conversions = vec![conversion(3, 1, 0), conversion(3, 2, 2), conversion(4, 0, 4)];
        let schedule = Schedule::new(conversions, Arc::clone(&ours));
        let next = || schedule.next().map(|(inode, blocks)| (inode.raw(), blocks.start));
        ours.begin_line(3);
        assert_eq!(next(), None);
        ours.emit(CpuSlot::new(0), &AllocEvent::default());
        assert_eq!((next(), next()), (Some((12, 0)), None));
        // What another line did is behind, however many decisions it made here.
        ours.begin_line(4);
        assert_eq!((next(), next(), next()), (Some((12, 2)), Some((12, 4)), None));
    }
}
