//! Tells the engine when the kernel's I/O ended.
//!
//! When Linux writes data back, it first maps the blocks as unwritten extents. A separate thread
//! converts the extents once the device has the data, while other threads go on mapping. How far
//! behind this thread is depends on the block layer (it throttles write-back and submits requests
//! in batches) and on the scheduler. So the moment of a conversion is an input like the time, not a
//! decision.
//!
//! Each conversion is recorded with its CPU, with the line of the trace (the operation) during
//! which it came, and with how many decisions, mapped ranges, allocated blocks and retries of the
//! kernel came before it in that line. The engine gets the conversion when the engine's counts for
//! that line have reached these numbers. The counts of the engine may never match. Then the engine
//! gets the conversion once it has made more decisions in that line than the kernel had, or when it
//! is in a later line.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blockyard_disk::InodeNr;
use blockyard_engine::instruments::{IoEnd, IoEndSource};
use blockyard_sync::CpuSlot;

use super::conversions::{Again, Conversion};
use super::decisions::Collector;

#[derive(Default)]
struct Inside {
    left: VecDeque<Conversion>,
    /// A line of the trace, and what the engine has done in it so far.
    done: (u32, Done),
}

#[derive(Clone, Copy, Default)]
struct Done {
    /// Ranges mapped.
    pieces: usize,
    /// Blocks that a write allocated immediately, or failed to allocate.
    allocated: usize,
    /// Retries.
    again: Again,
}

impl Inside {
    fn done_in(&mut self, line: u32) -> &mut Done {
        if self.done.0 != line {
            self.done = (line, Done::default());
        }
        &mut self.done.1
    }
}

/// Hands out the kernel's conversions in order, each as soon as it is due.
pub struct Schedule {
    inside: Mutex<Inside>,
    /// Our events: the current line and its decisions so far.
    ours: Arc<Collector>,
}

impl Schedule {
    /// A schedule of the kernel's conversions, in order.
    #[must_use]
    pub fn new(conversions: Vec<Conversion>, ours: Arc<Collector>) -> Self {
        let inside = Inside { left: conversions.into(), done: (0, Done::default()) };
        Self { inside: Mutex::new(inside), ours }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IoEndSource for Schedule {
    fn next(&self) -> Option<IoEnd> {
        let (line, decisions) = self.ours.place();
        let mut inside = self.inside();
        let Done { pieces, allocated, again } = *inside.done_in(line);
        // If the engine does the same work in different steps than the kernel, the counts may never
        // match. Then the conversion is due after the engine's next decision or in its next line.
        let has_come = |next: &&Conversion| {
            let is_told = next.pieces <= pieces && next.allocated <= allocated;
            let is_tried = next.again.commits <= again.commits && next.again.walks <= again.walks;
            let is_here = next.decisions == decisions && is_told && is_tried;
            next.line < line || next.line == line && (next.decisions < decisions || is_here)
        };
        inside.left.front().filter(has_come)?;
        let next = inside.left.pop_front()?;
        Some(IoEnd { inode: InodeNr::new(next.inode), blocks: next.blocks, cpu: CpuSlot::new(next.cpu) })
    }

    fn mapped(&self) {
        let (line, _) = self.ours.place();
        self.inside().done_in(line).pieces += 1;
    }

    fn allocated(&self) {
        let (line, _) = self.ours.place();
        self.inside().done_in(line).allocated += 1;
    }

    fn committed(&self) {
        let (line, _) = self.ours.place();
        self.inside().done_in(line).again.commits += 1;
    }

    fn walks_again(&self) {
        let (line, _) = self.ours.place();
        self.inside().done_in(line).again.walks += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockyard_alloc::{AllocEvent, EventSink};

    #[test]
    fn a_conversion_is_given_once_after_as_many_decisions_as_the_kernel_had_made() {
        let ours = Arc::new(Collector::default());
        let conversion = |line, decisions, pieces, first| Conversion {
            line,
            decisions,
            pieces,
            allocated: 0,
            again: Again::default(),
            inode: 12,
            blocks: first..first + 2,
            cpu: 1,
        };
        let conversions = vec![
            conversion(3, 1, 0, 0),
            conversion(3, 1, 1, 2),
            conversion(3, 2, 1, 4),
            conversion(4, 0, 0, 6),
        ];
        let schedule = Schedule::new(conversions, Arc::clone(&ours));
        let next = || schedule.next().map(|next| (next.inode.raw(), next.blocks.start));
        ours.begin_line(3);
        assert_eq!(next(), None);
        ours.emit(CpuSlot::new(0), &AllocEvent::default());
        assert_eq!((next(), next()), (Some((12, 0)), None));
        schedule.mapped();
        assert_eq!((next(), next()), (Some((12, 2)), None));
        // A conversion of an earlier line is due, however many decisions the engine made in that
        // line.
        ours.begin_line(4);
        assert_eq!((next(), next(), next()), (Some((12, 4)), Some((12, 6)), None));
    }

    /// Blocks that a write allocates at once are counted, too. A conversion is due when the
    /// engine's count of them has reached the kernel's, or after the engine's next decision. With
    /// bigalloc, most of these blocks lie in a cluster that the file already has and need no
    /// decision.
    #[test]
    fn what_ended_between_blocks_placed_at_once_is_given_between_them() {
        let ours = Arc::new(Collector::default());
        let conversion = |allocated| Conversion {
            line: 3,
            decisions: 1,
            pieces: 0,
            allocated,
            again: Again::default(),
            inode: 12,
            blocks: 0..2,
            cpu: 1,
        };
        let schedule = Schedule::new([2, 9].map(conversion).to_vec(), Arc::clone(&ours));
        let is_given = || schedule.next().is_some();
        ours.begin_line(3);
        schedule.allocated();
        ours.emit(CpuSlot::new(0), &AllocEvent::default());
        assert!(!is_given());
        schedule.allocated();
        assert_eq!((is_given(), is_given()), (true, false));
        // The kernel had allocated 9 blocks, the engine only 2. So the conversion is due after the
        // engine's next decision.
        ours.emit(CpuSlot::new(0), &AllocEvent::default());
        assert!(is_given());
    }

    #[test]
    fn what_ended_between_two_tries_is_given_between_them() {
        let ours = Arc::new(Collector::default());
        let conversion = |commits, walks, first| Conversion {
            line: 3,
            decisions: 1,
            pieces: 0,
            allocated: 0,
            again: Again { commits, walks },
            inode: 12,
            blocks: first..first + 2,
            cpu: 1,
        };
        let conversions = [(0, 0, 0), (1, 0, 2), (1, 1, 4), (2, 1, 6)];
        let conversions = conversions.map(|(commits, walks, first)| conversion(commits, walks, first));
        let schedule = Schedule::new(conversions.to_vec(), Arc::clone(&ours));
        let next = || schedule.next().map(|next| next.blocks.start);
        ours.begin_line(3);
        ours.emit(CpuSlot::new(0), &AllocEvent::default());
        assert_eq!((next(), next()), (Some(0), None));
        schedule.committed();
        assert_eq!((next(), next()), (Some(2), None));
        schedule.walks_again();
        assert_eq!((next(), next()), (Some(4), None));
        // The kernel had committed once more than the engine. So the conversion is due after the
        // engine's next decision.
        ours.emit(CpuSlot::new(0), &AllocEvent::default());
        assert_eq!((next(), next()), (Some(6), None));
    }
}
