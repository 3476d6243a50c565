//! Which CPU's cache has which line, by address.

use std::collections::HashMap;

use super::{Costs, CpuFigures};

/// log2 of the bytes of a cache line.
const LINE_BITS: u32 = 6;
/// CPUs a line's record has room for.
pub(super) const CPUS_MAX: usize = 256;

/// How a line is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    /// Also reading and writing at once.
    Write,
}

/// One line.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    /// The caches that have it, one bit a CPU.
    present: [u64; CPUS_MAX / 64],
    /// When the last move that writes it ends.
    busy_until: u64,
}

impl Line {
    fn is_only_in(&self, cpu: usize) -> bool {
        let mut only = [0; CPUS_MAX / 64];
        only[cpu / 64] = 1 << (cpu % 64);
        self.present == only
    }

    fn is_in(&self, cpu: usize) -> bool {
        self.present[cpu / 64] & 1 << (cpu % 64) != 0
    }

    fn add(&mut self, cpu: usize) {
        self.present[cpu / 64] |= 1 << (cpu % 64);
    }

    fn take(&mut self, cpu: usize) {
        self.present = [0; CPUS_MAX / 64];
        self.add(cpu);
    }
}

/// All lines that were used.
#[derive(Debug, Default)]
pub(super) struct Lines {
    lines: HashMap<usize, Line>,
}

impl Lines {
    /// One access at `now`; gives the time after it.
    pub(super) fn access(
        &mut self,
        costs: &Costs,
        address: usize,
        access: Access,
        cpu: usize,
        now: u64,
        figures: &mut CpuFigures,
    ) -> u64 {
        let line = self.lines.entry(address >> LINE_BITS).or_default();
        let nowhere = line.present == [0; CPUS_MAX / 64];
        let hit = match access {
            Access::Read => line.is_in(cpu),
            Access::Write => line.is_only_in(cpu),
        };
        if hit {
            return now + costs.hit_ns;
        }
        let start = now.max(line.busy_until);
        let end = start + if nowhere { costs.miss_ns } else { costs.move_ns };
        if !nowhere {
            figures.lines_moved += 1;
            figures.lines_moved_ns += end - now;
        }
        match access {
            Access::Read => line.add(cpu),
            Access::Write => {
                line.take(cpu);
                line.busy_until = end;
            }
        }
        end
    }

    /// A lock's line goes to its next holder with the hand-over.
    pub(super) fn hand_over(&mut self, address: usize, cpu: usize) {
        self.lines.entry(address >> LINE_BITS).or_default().take(cpu);
    }
}
