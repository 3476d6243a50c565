//! Machines for virtual time: topology and costs as data, one file each, with where each number
//! comes from.
//!
//! What a number is: *calibrated* ones were chosen so that a published cell of the state before the
//! series comes out; everything else is counted, measured elsewhere or assumed, and the file says
//! which.

pub mod measure;

use anyhow::{Context, Result, bail, ensure};
use blockyard_disk::num::usize_from_u32;
use blockyard_sync::virtual_time::{Costs, Level, Section, Tick};
use serde::{Deserialize, Serialize};

/// CPUs that virtual time has room for.
pub const CPUS_MAX: u32 = 1024;

const BUILT_IN: [&str; 2] =
    [include_str!("../machines/kunpeng-920.json"), include_str!("../machines/amd-9654-x2.json")];

/// Locks that a machine may give the cost of a section.
const LOCKS: [&str; 5] = ["group lock", "md lock", "order list lock", "locality group", "hashed lock"];

/// CPUs that are near each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Near {
    /// The field's word for it: cluster, CCX, socket.
    pub what: String,
    /// CPUs in one.
    pub cpus: u32,
    /// Moving a line between two of them, in nanoseconds.
    pub move_ns: u64,
}

/// On which CPUs of the machine workers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// On the first ones.
    #[default]
    InOrder,
    /// Each as far from those before it as can be: the first two on different sockets, and so on.
    Spread,
}

/// What holding a lock costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// The lock.
    pub name: String,
    /// Computation, in nanoseconds.
    pub work_ns: u64,
    /// Lines of plain data that follow the lock.
    pub lines: u64,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Its name on the command line and in rows.
    pub name: String,
    /// What it is, and what was assumed.
    pub about: String,
    /// CPUs that the published table used.
    pub cpus: u32,
    /// Where the numbers come from.
    pub sources: Vec<String>,
    /// An access to a line in the CPU's own cache, in picoseconds.
    pub hit_ps: u64,
    /// Bringing a line from memory.
    pub memory_ns: u64,
    /// From the nearest to the widest; each size divides the next.
    pub levels: Vec<Near>,
    /// Moving a line between CPUs that share none of these.
    pub across_ns: u64,
    /// Handing a contended lock over, beside the move of its line.
    pub hand_over_ns: u64,
    /// From one interrupt of the clock to the next; 0 for none.
    pub tick_every_ns: u64,
    /// What is lost at each.
    pub tick_costs_ns: u64,
    /// What holding locks costs.
    pub sections: Vec<Held>,
    /// What surrounds an allocation (system call, handle, extent tree), an operation.
    pub operation_ns: u64,
    /// How far an operation's time may be from that, to either side, in per cent.
    pub operation_varies_percent: u32,
    /// Changes of the one line that all operations of a file system share, an operation.
    pub shared_accesses: u32,
    /// From one commit to the next.
    pub commit_every_ns: u64,
    /// Switching a CPU from one worker to another.
    pub switch_ns: u64,
    /// How long a worker runs before another of its CPU does.
    pub quantum_ns: u64,
    /// Where workers are; not of the machine, but of what runs on it: `:spread` behind the name.
    #[serde(skip)]
    pub placement: Placement,
}

impl Machine {
    /// Names of the machines that are built in.
    pub const NAMES: [&str; 2] = ["kunpeng-920", "amd-9654-x2"];

    /// One that is built in, else a file.
    ///
    /// # Errors
    /// When it is neither, or does not hold together.
    pub fn open(name: &str) -> Result<Self> {
        if let Some(of) = name.strip_suffix(":spread") {
            let machine = Self::open(of)?;
            let name = format!("{}:spread", machine.name);
            return Ok(Self { name, placement: Placement::Spread, ..machine });
        }
        if let Some(at) = Self::NAMES.iter().position(|known| *known == name) {
            return Self::parse(BUILT_IN[at]);
        }
        let text = std::fs::read_to_string(name).with_context(|| {
            format!("--machine {name}: neither a file nor one of {}", Self::NAMES.join(", "))
        })?;
        Self::parse(&text).with_context(|| format!("--machine {name}"))
    }

    fn parse(text: &str) -> Result<Self> {
        let machine: Self = serde_json::from_str(text)?;
        ensure!(!machine.name.is_empty() && machine.cpus > 0, "a machine has a name and CPUs");
        let mut within = 1;
        for level in &machine.levels {
            ensure!(
                level.cpus > 0 && level.cpus.is_multiple_of(within),
                "levels: {} CPUs of a {} are no multiple of the level before",
                level.cpus,
                level.what
            );
            within = level.cpus;
        }
        for section in &machine.sections {
            if !LOCKS.contains(&section.name.as_str()) {
                bail!("sections: no lock {:?}; known: {}", section.name, LOCKS.join(", "));
            }
        }
        ensure!(
            machine.commit_every_ns > 0 && machine.quantum_ns > 0,
            "commit_every_ns, quantum_ns: above 0"
        );
        let most = 1_000_000_000;
        let small = [
            machine.hit_ps / 1000,
            machine.memory_ns,
            machine.across_ns,
            machine.hand_over_ns,
            machine.switch_ns,
        ];
        ensure!(
            small.iter().chain([&machine.operation_ns, &machine.tick_costs_ns]).all(|&ns| ns <= most),
            "no cost is above a second"
        );
        ensure!(machine.operation_varies_percent <= 100, "operation_varies_percent: at most 100");
        Ok(machine)
    }

    /// The CPU of the machine that is a run's `cpu`-th.
    #[must_use]
    pub fn seat(&self, cpu: u32) -> u32 {
        if self.placement == Placement::InOrder || cpu >= self.cpus {
            return cpu;
        }
        // From the widest sets down: round the sets of a level, then the same within the set.
        let (mut index, mut first, mut width) = (cpu, 0, self.cpus);
        for level in self.levels.iter().rev() {
            let sets = width.div_ceil(level.cpus);
            first += index % sets * level.cpus;
            (index, width) = (index / sets, level.cpus.min(width));
        }
        first + index
    }

    /// The costs as virtual time takes them.
    #[must_use]
    pub fn costs(&self) -> Costs {
        let level = |near: &Near| Level { cpus: usize_from_u32(near.cpus), move_ns: near.move_ns };
        let section = |held: &Held| {
            let name = LOCKS.into_iter().find(|name| *name == held.name)?;
            Some(Section { name, work_ns: held.work_ns, lines: held.lines })
        };
        let tick = Tick { every_ns: self.tick_every_ns, costs_ns: self.tick_costs_ns };
        Costs {
            hit_ps: self.hit_ps,
            miss_ns: self.memory_ns,
            levels: self.levels.iter().map(level).collect(),
            move_ns: self.across_ns,
            hand_over_ns: self.hand_over_ns,
            slack_ns: 0,
            sections: self.sections.iter().filter_map(section).collect(),
            tick: (self.tick_every_ns > 0).then_some(tick),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_in_can_be_read() {
        for name in Machine::NAMES {
            let machine = Machine::open(name).unwrap();
            assert_eq!(machine.name, name);
            assert_eq!(machine.costs().sections.len(), machine.sections.len());
            assert!(machine.sources.len() > 3);
        }
    }

    /// Two sockets of two dies of five clusters: each CPU once, the first four on four dies.
    #[test]
    fn spread_workers_are_far_from_each_other() {
        let machine = Machine::open("kunpeng-920:spread").unwrap();
        let seats: Vec<u32> = (0..80).map(|cpu| machine.seat(cpu)).collect();
        assert_eq!(seats[..6], [0, 40, 20, 60, 4, 44]);
        let mut sorted = seats;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..80).collect::<Vec<_>>());
        assert_eq!(Machine::open("kunpeng-920").unwrap().seat(5), 5);
    }

    #[test]
    fn what_does_not_hold_together_is_refused() {
        let wrong = |from: &str, to: &str| {
            let text = BUILT_IN[0].replace(from, to);
            assert_ne!(text, BUILT_IN[0], "{from}");
            format!("{:#}", Machine::parse(&text).unwrap_err())
        };
        assert!(wrong("\"cpus\": 20", "\"cpus\": 21").contains("levels"));
        assert!(wrong("md lock", "mb lock").contains("known"));
        assert!(wrong("\"hit_ps\"", "\"hit\"").contains("unknown field"));
        assert!(Machine::open("nowhere").unwrap_err().to_string().contains("kunpeng-920"));
    }
}
