//! When the kernel's I/O ended, told to the engine.
//!
//! Linux maps what it writes back as unwritten and converts it in a thread of its own once the device has it, while others
//! go on mapping. How far behind follows from the block layer (its throttling of write-back, the 64 requests that it
//! collects) and the scheduler, so it is an input like the time, not a decision: each conversion is noted with its place
//! among the kernel's decisions and pieces, and given to the engine at the same place among its own.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    /// Pieces that write-back had mapped in that line; one may need no decision.
    pub pieces: usize,
    /// Inode.
    pub inode: u32,
    /// Logical blocks.
    pub blocks: Range<u32>,
}

#[derive(Default)]
struct Inside {
    left: VecDeque<Conversion>,
    /// A line, and the pieces that the engine has mapped in it.
    mapped: (u32, usize),
}

impl Inside {
    fn pieces_of(&self, line: u32) -> usize {
        if self.mapped.0 == line { self.mapped.1 } else { 0 }
    }
}

/// Gives the kernel's conversions in their order, each when its place has come.
pub struct Schedule {
    inside: Mutex<Inside>,
    /// Knows the line and its decisions so far.
    ours: Arc<Collector>,
}

impl Schedule {
    /// Of a kernel's conversions, in order.
    #[must_use]
    pub fn new(conversions: Vec<Conversion>, ours: Arc<Collector>) -> Self {
        let inside = Inside { left: conversions.into(), mapped: (0, 0) };
        Self { inside: Mutex::new(inside), ours }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IoEndSource for Schedule {
    fn next(&self) -> Option<(InodeNr, Range<u32>)> {
        let (line, decisions) = self.ours.place();
        let mut inside = self.inside();
        let pieces = inside.pieces_of(line);
        let has_come = |next: &&Conversion| {
            next.line < line || next.line == line && next.decisions <= decisions && next.pieces <= pieces
        };
        inside.left.front().filter(has_come)?;
        inside.left.pop_front().map(|next| (InodeNr::new(next.inode), next.blocks))
    }

    fn mapped(&self) {
        let (line, _) = self.ours.place();
        let mut inside = self.inside();
        inside.mapped = (line, inside.pieces_of(line) + 1);
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
        let conversion = |line, decisions, pieces, first| Conversion {
            line,
            decisions,
            pieces,
            inode: 12,
            blocks: first..first + 2,
        };
        let conversions = vec![
            conversion(3, 1, 0, 0),
            conversion(3, 1, 1, 2),
            conversion(3, 2, 1, 4),
            conversion(4, 0, 0, 6),
        ];
        let schedule = Schedule::new(conversions, Arc::clone(&ours));
        let next = || schedule.next().map(|(inode, blocks)| (inode.raw(), blocks.start));
        ours.begin_line(3);
        assert_eq!(next(), None);
        ours.emit(CpuSlot::new(0), &AllocEvent::default());
        assert_eq!((next(), next()), (Some((12, 0)), None));
        schedule.mapped();
        assert_eq!((next(), next()), (Some((12, 2)), None));
        // What another line did is behind, however many decisions it made here.
        ours.begin_line(4);
        assert_eq!((next(), next(), next()), (Some((12, 4)), Some((12, 6)), None));
    }
}
