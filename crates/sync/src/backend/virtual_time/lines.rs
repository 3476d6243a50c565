//! Which CPU's cache has which line, and what moving it costs.

use std::collections::HashMap;

use super::place::{ByNumber, LineId};
use super::{Costs, CpuFigures, LineFigures};

/// The most CPUs in a line's record.
pub(super) const CPUS_MAX: usize = 1088;
const WORDS: usize = CPUS_MAX / 64;

/// How a line is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    /// Also for an access that reads and writes at once.
    Write,
}

/// Where a line is.
#[derive(Clone, Debug)]
enum Holders {
    /// In no cache yet.
    Nobody,
    /// In one cache.
    One(usize),
    /// In several, one bit per CPU.
    Many(Box<[u64; WORDS]>),
}

/// One line.
#[derive(Debug)]
struct Line {
    holders: Holders,
    /// When the last move that writes it ends.
    busy_until: u64,
    /// Its name's index in the figures.
    name: usize,
}

impl Line {
    fn is_in(&self, cpu: usize) -> bool {
        match &self.holders {
            Holders::Nobody => false,
            Holders::One(holder) => *holder == cpu,
            Holders::Many(bits) => bits[cpu / 64] & 1 << (cpu % 64) != 0,
        }
    }

    fn add(&mut self, cpu: usize) {
        match &mut self.holders {
            Holders::Nobody => self.holders = Holders::One(cpu),
            Holders::One(holder) if *holder == cpu => {}
            Holders::One(holder) => {
                let mut bits = Box::new([0; WORDS]);
                bits[*holder / 64] |= 1 << (*holder % 64);
                bits[cpu / 64] |= 1 << (cpu % 64);
                self.holders = Holders::Many(bits);
            }
            Holders::Many(bits) => bits[cpu / 64] |= 1 << (cpu % 64),
        }
    }

    /// The time to move the line: the nearest cache serves a reader; a writer waits for the
    /// farthest.
    fn move_ns(&self, costs: &Costs, access: Access, cpu: usize) -> u64 {
        match &self.holders {
            Holders::Nobody => costs.miss_ns,
            Holders::One(holder) => costs.distance(*holder, cpu),
            Holders::Many(bits) => {
                let distances = members(bits).filter(|&holder| holder != cpu);
                let distances = distances.map(|holder| costs.distance(holder, cpu));
                let ns = if access == Access::Read { distances.min() } else { distances.max() };
                ns.unwrap_or(costs.hit_ps / 1000)
            }
        }
    }
}

fn members(bits: &[u64; WORDS]) -> impl Iterator<Item = usize> {
    bits.iter().enumerate().flat_map(|(word, &bits)| {
        (0..64).skip(zeros(bits)).filter(move |bit| bits & 1 << bit != 0).map(move |bit| word * 64 + bit)
    })
}

fn zeros(bits: u64) -> usize {
    usize::try_from(bits.trailing_zeros()).unwrap_or(64)
}

/// All lines in use.
#[derive(Debug, Default)]
pub(super) struct Lines {
    lines: HashMap<u64, Line, ByNumber>,
    /// One entry for each name.
    figures: Vec<LineFigures>,
}

impl Lines {
    fn line(&mut self, id: LineId) -> &mut Line {
        let figures = &mut self.figures;
        self.lines.entry(id.number).or_insert_with(|| Line {
            holders: Holders::Nobody,
            busy_until: 0,
            name: place_of(figures, id.name),
        })
    }

    /// One access at `now`. Returns the time after it, or `None` for a line that is in the cache.
    pub(super) fn access(
        &mut self,
        costs: &Costs,
        id: LineId,
        access: Access,
        (cpu, now): (usize, u64),
        figures: &mut CpuFigures,
    ) -> Option<u64> {
        let line = self.line(id);
        let hit = match access {
            Access::Read => line.is_in(cpu),
            Access::Write => matches!(line.holders, Holders::One(holder) if holder == cpu),
        };
        if hit {
            return None;
        }
        let end = now.max(line.busy_until) + line.move_ns(costs, access, cpu);
        let moved = !matches!(line.holders, Holders::Nobody);
        match access {
            Access::Read => line.add(cpu),
            Access::Write => {
                line.holders = Holders::One(cpu);
                line.busy_until = end;
            }
        }
        if moved {
            figures.lines_moved += 1;
            figures.lines_moved_ns += end - now;
            let name = line.name;
            self.figures[name].moved += 1;
            self.figures[name].moved_ns += end - now;
        }
        Some(end)
    }

    /// Moves a lock's line to its next holder, as part of the hand-over.
    pub(super) fn hand_over(&mut self, id: LineId, cpu: usize) {
        self.line(id).holders = Holders::One(cpu);
    }

    /// The figures of the line with a name.
    pub(super) fn figures_of(&mut self, name: &'static str) -> &mut LineFigures {
        let place = place_of(&mut self.figures, name);
        &mut self.figures[place]
    }

    /// All figures, by name.
    pub(super) fn all_figures(&self) -> Vec<LineFigures> {
        let mut all = self.figures.clone();
        all.sort_by_key(|figures| figures.name);
        all
    }
}

fn place_of(figures: &mut Vec<LineFigures>, name: &'static str) -> usize {
    if let Some(place) = figures.iter().position(|known| known.name == name) {
        return place;
    }
    figures.push(LineFigures { name, ..LineFigures::default() });
    figures.len() - 1
}
