//! Which CPU's cache has which line, and what it costs to move a line.

use std::collections::HashMap;

use super::draws::Draws;
use super::place::{ByNumber, LineId};
use super::{Costs, LineFigures};

/// The most CPUs that a line's record can hold.
pub(super) const CPUS_MAX: usize = 1088;
const WORDS: usize = CPUS_MAX / 64;

/// How a line is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    /// A write or a read-modify-write.
    Write,
}

/// Where a line is.
#[derive(Clone, Debug)]
enum Holders {
    /// In no cache yet.
    Nobody,
    /// In one cache.
    One(usize),
    /// In several caches: one bit per CPU.
    Many(Box<[u64; WORDS]>),
}

/// One line.
#[derive(Debug)]
struct Line {
    holders: Holders,
    /// The CPU to which the line was brought last, and when it arrives there.
    came_to: Option<(usize, u64)>,
    /// Until when the CPU that last wrote to the line keeps it.
    free_at: u64,
    /// The CPUs that wait for the line.
    requests: Vec<Request>,
    /// The index of the line's name in the figures.
    name: usize,
}

/// A CPU that wants a line.
#[derive(Clone, Copy, Debug)]
struct Request {
    cpu: usize,
    access: Access,
    /// When the CPU asked for the line.
    since: u64,
}

/// What an access leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The line is in the CPU's cache.
    Hit,
    /// The line is brought to the CPU's cache.
    Brought(Served),
    /// The CPU waits for the line. `wakes_at` is set if no other CPU waits yet: then this CPU wakes
    /// at that time and calls [`Lines::grant`].
    Waits { wakes_at: Option<u64> },
}

/// A CPU to which a line is brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Served {
    pub(super) cpu: usize,
    /// When the CPU asked for the line.
    pub(super) since: u64,
    /// When the line is in the CPU's cache.
    pub(super) end: u64,
    /// Whether a cache had the line; otherwise it comes from memory.
    pub(super) is_moved: bool,
}

/// The CPUs that got a line.
#[derive(Debug, Default)]
pub(super) struct Granted {
    pub(super) served: Vec<Served>,
    /// A CPU that still waits, and when it wakes to call [`Lines::grant`].
    pub(super) next: Option<(usize, u64)>,
}

impl Line {
    /// Whether a CPU can access the line without a move.
    fn serves(&self, cpu: usize, access: Access) -> bool {
        match access {
            Access::Read => self.is_in(cpu),
            Access::Write => matches!(self.holders, Holders::One(holder) if holder == cpu),
        }
    }

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

    /// The time to move the line. A reader gets it from the nearest cache; a writer waits for the
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
    draws: Draws,
}

impl Lines {
    fn line(&mut self, id: LineId) -> &mut Line {
        let figures = &mut self.figures;
        self.lines.entry(id.number).or_insert_with(|| Line {
            holders: Holders::Nobody,
            came_to: None,
            free_at: 0,
            requests: Vec::new(),
            name: place_of(figures, id.name),
        })
    }

    /// Begins an access of a CPU at `now`.
    pub(super) fn access(
        &mut self,
        costs: &Costs,
        id: LineId,
        access: Access,
        (cpu, now): (usize, u64),
    ) -> Outcome {
        let line = self.line(id);
        if line.serves(cpu, access) {
            return Outcome::Hit;
        }
        if costs.moves_overlap
            && let Some((_, there)) = line.came_to.filter(|(holder, _)| *holder == cpu)
            && line.requests.is_empty()
        {
            // The line came to this CPU last, and no CPU has asked for it since. Then removing it
            // from other caches costs nothing.
            line.holders = Holders::One(cpu);
            line.free_at = line.free_at.max(there.max(now) + costs.keep_ns);
            return Outcome::Hit;
        }
        let request = Request { cpu, access, since: now };
        if line.requests.is_empty() && line.free_at <= now {
            return Outcome::Brought(self.serve(costs, id, request, now));
        }
        line.requests.push(request);
        // The first CPU that waits wakes when the line comes free, and grants the line.
        Outcome::Waits { wakes_at: (line.requests.len() == 1).then_some(line.free_at) }
    }

    /// Grants a line that comes free at `now`. Draws one waiting CPU after the other, until one
    /// that writes is drawn or none is left; all that are drawn get the line.
    pub(super) fn grant(&mut self, costs: &Costs, id: LineId, now: u64) -> Granted {
        let mut granted = Granted::default();
        while let Some(place) = self.draw(costs, id) {
            let request = self.line(id).requests.swap_remove(place);
            granted.served.push(self.serve(costs, id, request, now));
            if request.access == Access::Write {
                let line = self.line(id);
                granted.next = line.requests.first().map(|next| (next.cpu, line.free_at));
                break;
            }
        }
        granted
    }

    /// Draws one of the requests for a line; `None` without any.
    fn draw(&mut self, costs: &Costs, id: LineId) -> Option<usize> {
        let count = self.line(id).requests.len();
        if count == 0 {
            return None;
        }
        let nearest_only = self.draws.below(100) < costs.neighbours_first_percent;
        let from = self.draws.below(count);
        let line = self.line(id);
        match line.holders {
            Holders::One(holder) if nearest_only => {
                let distance = |place: &usize| costs.distance(holder, line.requests[*place].cpu);
                (from..count).chain(0..from).min_by_key(distance)
            }
            _ => Some(from),
        }
    }

    /// Brings a line to a CPU, from `now` on.
    fn serve(&mut self, costs: &Costs, id: LineId, request: Request, now: u64) -> Served {
        let Request { cpu, access, since } = request;
        let line = self.line(id);
        let end = now.max(since) + line.move_ns(costs, access, cpu);
        let is_moved = !matches!(line.holders, Holders::Nobody);
        line.came_to = Some((cpu, end));
        match access {
            Access::Read => line.add(cpu),
            Access::Write => {
                line.holders = Holders::One(cpu);
                line.free_at = end + costs.keep_ns;
            }
        }
        if is_moved {
            let name = line.name;
            self.figures[name].moved += 1;
            self.figures[name].moved_ns += end - since;
        }
        Served { cpu, since, end, is_moved }
    }

    /// Moves a lock's line to its next holder, as part of the hand-over.
    pub(super) fn hand_over(&mut self, id: LineId, cpu: usize) {
        let line = self.line(id);
        line.holders = Holders::One(cpu);
        line.came_to = Some((cpu, 0));
    }

    /// The figures of all lines with this name.
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
