//! Machines for virtual time: topology and costs as data, one file for each machine, with the
//! source of each number.
//!
//! *Calibrated* numbers were chosen to reproduce a published measurement of a kernel from before
//! the 17 allocator patches of Linux 6.17. All other numbers are counted, measured elsewhere or
//! assumed; the file says which.

pub mod measure;

use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail, ensure};
use blockyard_disk::num::usize_from_u32;
use blockyard_sync::virtual_time::{Barging, Costs, Level, Section, Tick};
use serde::{Deserialize, Serialize};

/// Most CPUs in virtual time.
pub const CPUS_MAX: u32 = 1024;

/// The highest cost, in nanoseconds.
const COST_NS_MAX: u64 = 1_000_000_000;
/// The longest interval, in nanoseconds.
const INTERVAL_NS_MAX: u64 = 1_000_000_000_000;
/// The upper limit of [`Held::lines`] and of [`Machine::shared_accesses`].
const LINES_MAX: u64 = 1000;

const BUILT_IN: [&str; 2] =
    [include_str!("../machines/kunpeng-920.json"), include_str!("../machines/amd-9654-x2.json")];

/// The lock of a group.
pub(crate) const GROUP_LOCK: &str = "group lock";

/// Locks for which a machine may give the cost of holding them.
const LOCKS: [&str; 5] = [GROUP_LOCK, "md lock", "order list lock", "locality group", "hashed lock"];

/// A set of CPUs that are near each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Near {
    /// What such a set is called: cluster, CCX, socket.
    pub what: String,
    /// CPUs in a set.
    pub cpus: u32,
    /// Moving a cache line between two CPUs of a set, in nanoseconds.
    pub move_ns: u64,
}

/// Which CPUs of the machine the workers run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The first CPUs.
    #[default]
    InOrder,
    /// Each CPU as far from the earlier ones as possible: the first two on different sockets, and
    /// so on.
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
    /// Cache lines of plain data that move to the CPU after the lock's own line.
    pub lines: u64,
}

/// Costs, in nanoseconds, of waiting for locks that are not granted in turn: whoever finds such a
/// lock free takes it (see [`Barging`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LibraryLocks {
    /// One pause of a spin loop.
    pub pause_ns: u64,
    /// A yield of a CPU that nobody else wants.
    pub yield_ns: u64,
    /// From the release of a lock until the CPU that slept waiting for it runs again.
    pub wake_ns: u64,
    /// The wake-up system call, which the CPU that released the lock makes.
    pub wake_call_ns: u64,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The name in rows. A built-in machine has the same name on the command line.
    pub name: String,
    /// A description, and what was assumed.
    pub about: String,
    /// CPUs that workers may be spread over; in a built-in machine, as many as the published
    /// measurement of the machine used.
    pub cpus: u32,
    /// Where the numbers come from.
    pub sources: Vec<String>,
    /// An access to a line in the CPU's own cache, in picoseconds.
    pub hit_ps: u64,
    /// Loading a line from memory, in nanoseconds.
    pub memory_ns: u64,
    /// Levels of topology from the nearest to the widest; each size divides the next.
    pub levels: Vec<Near>,
    /// Moving a line between CPUs that share no level, in nanoseconds.
    pub across_ns: u64,
    /// Handing over a contended lock, in addition to moving its line, in nanoseconds.
    pub hand_over_ns: u64,
    /// Whether moves of lines overlap, as on CPUs that execute out of order (see
    /// [`Costs::moves_overlap`]).
    #[serde(default)]
    pub moves_overlap: bool,
    /// Costs of waiting for locks that are not granted in turn; only for runs with such locks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub library_locks: Option<LibraryLocks>,
    /// How long a CPU keeps a line that others want, in nanoseconds.
    #[serde(default)]
    pub keep_ns: u64,
    /// How often a contended line goes to the nearest of the CPUs that wait for it, in per cent of
    /// its moves; the other times it goes to any of these CPUs.
    #[serde(default)]
    pub neighbours_first_percent: u32,
    /// Interval between clock interrupts, in nanoseconds; 0 for none.
    pub tick_every_ns: u64,
    /// Time lost at each clock interrupt, in nanoseconds.
    pub tick_costs_ns: u64,
    /// Costs of holding locks.
    pub sections: Vec<Held>,
    /// Computation under a group's lock while many files grow at the same time, in nanoseconds. In
    /// append64 it replaces the `work_ns` of the group lock's section.
    #[serde(default)]
    pub append64_group_lock_ns: Option<u64>,
    /// What surrounds an allocation (system call, handle, extent tree), in nanoseconds for each
    /// operation.
    pub operation_ns: u64,
    /// How much an operation's time may deviate from `operation_ns` to either side, in per cent.
    pub operation_varies_percent: u32,
    /// How often each operation changes the one cache line that all operations of a file system
    /// share.
    pub shared_accesses: u32,
    /// Interval between commits, in nanoseconds.
    pub commit_every_ns: u64,
    /// Switching a CPU from one worker to another, in nanoseconds.
    pub switch_ns: u64,
    /// How long a worker runs before its CPU switches to another one, in nanoseconds.
    pub quantum_ns: u64,
    /// Where workers run. The machine's file does not say this: `:spread` after the name of the
    /// machine selects it for a run.
    #[serde(skip)]
    pub placement: Placement,
}

impl Machine {
    /// Names of the built-in machines.
    pub const NAMES: [&str; 2] = ["kunpeng-920", "amd-9654-x2"];

    /// Opens a built-in machine, or else a file. `:spread` after the name selects
    /// [`Placement::Spread`].
    ///
    /// # Errors
    /// When `name` is neither of these, or the file is inconsistent.
    pub fn open(name: &str) -> Result<Self> {
        if let Some(of) = name.strip_suffix(":spread") {
            let machine = Self::open(of)?;
            let name = format!("{}:spread", machine.name);
            return Ok(Self { name, placement: Placement::Spread, ..machine });
        }
        if let Some(at) = Self::NAMES.iter().position(|known| *known == name) {
            return Self::parse(BUILT_IN[at]);
        }
        let text = std::fs::read_to_string(name)
            .with_context(|| format!("{name}: neither a file nor a machine ({})", Self::NAMES.join(", ")))?;
        Self::parse(&text).with_context(|| name.to_owned())
    }

    fn parse(text: &str) -> Result<Self> {
        let machine: Self = serde_json::from_str(text)?;
        ensure!(!machine.name.is_empty() && machine.cpus > 0, "a machine needs a name and CPUs");
        let mut within = 1;
        for level in &machine.levels {
            ensure!(
                level.cpus > 0 && level.cpus.is_multiple_of(within),
                "levels: {} CPUs of a {} are not a multiple of the level before",
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
        machine.check_costs()?;
        ensure!(machine.operation_varies_percent <= 100, "operation_varies_percent: at most 100");
        ensure!(machine.neighbours_first_percent <= 100, "neighbours_first_percent: at most 100");
        Ok(machine)
    }

    /// Refuses costs that would overflow the clock, or with which a run would never end.
    fn check_costs(&self) -> Result<()> {
        let costs = [
            self.hit_ps / 1000,
            self.memory_ns,
            self.across_ns,
            self.hand_over_ns,
            self.keep_ns,
            self.switch_ns,
            self.operation_ns,
            self.tick_costs_ns,
            self.append64_group_lock_ns.unwrap_or(0),
        ];
        let of_levels = self.levels.iter().map(|level| level.move_ns);
        let of_sections = self.sections.iter().map(|section| section.work_ns);
        let of_locks = self
            .library_locks
            .iter()
            .flat_map(|locks| [locks.pause_ns, locks.yield_ns, locks.wake_ns, locks.wake_call_ns]);
        ensure!(
            costs.into_iter().chain(of_levels).chain(of_sections).chain(of_locks).all(|ns| ns <= COST_NS_MAX),
            "costs must not be above a second"
        );
        ensure!(
            [self.tick_every_ns, self.commit_every_ns, self.quantum_ns]
                .iter()
                .all(|&ns| ns <= INTERVAL_NS_MAX),
            "tick_every_ns, commit_every_ns, quantum_ns: at most 1000 seconds"
        );
        ensure!(
            self.sections.iter().all(|section| section.lines <= LINES_MAX)
                && u64::from(self.shared_accesses) <= LINES_MAX,
            "lines, shared_accesses: at most {LINES_MAX}"
        );
        // If both were 0, time would stand still on a CPU that works alone, and its quantum would
        // never end.
        ensure!(self.hit_ps > 0 || self.operation_ns > 0, "hit_ps, operation_ns: one of them above 0");
        Ok(())
    }

    /// The number of the machine's CPU that a run uses as its `cpu`-th.
    #[must_use]
    pub fn seat(&self, cpu: u32) -> u32 {
        if self.placement == Placement::InOrder || cpu >= self.cpus {
            return cpu;
        }
        // From the widest level down: deal the CPUs out to the sets of a level in turn, then do the
        // same within each set.
        let (mut index, mut first, mut width) = (cpu, 0, self.cpus);
        for level in self.levels.iter().rev() {
            let sets = width.div_ceil(level.cpus);
            first += index % sets * level.cpus;
            (index, width) = (index / sets, level.cpus.min(width));
        }
        first + index
    }

    /// The machine for workloads in which many files grow at the same time:
    /// `append64_group_lock_ns`, if given, replaces the work under the group lock.
    #[must_use]
    pub fn appending(mut self) -> Self {
        if let Some(work_ns) = self.append64_group_lock_ns {
            self.sections.iter_mut().filter(|held| held.name == GROUP_LOCK).for_each(|held| {
                held.work_ns = work_ns;
            });
        }
        self
    }

    /// The costs in the form that virtual time takes.
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
            moves_overlap: self.moves_overlap,
            barging: None,
            keep_ns: self.keep_ns,
            neighbours_first_percent: usize_from_u32(self.neighbours_first_percent),
            slack_ns: 0,
            sections: self.sections.iter().filter_map(section).collect(),
            tick: (self.tick_every_ns > 0).then_some(tick),
        }
    }

    /// The costs if whoever finds a lock free takes it; `None` if the file does not say what
    /// waiting for such a lock costs.
    #[must_use]
    pub fn costs_with_library_locks(&self) -> Option<Costs> {
        let &LibraryLocks { pause_ns, yield_ns, wake_ns, wake_call_ns } = self.library_locks.as_ref()?;
        let barging = Some(Barging { pause_ns, yield_ns, wake_ns, wake_call_ns });
        Some(Costs { barging, ..self.costs() })
    }
}

/// The machine to use if none is named.
impl Default for Machine {
    fn default() -> Self {
        Self::open(Self::NAMES[0]).expect("a test reads every machine that is built in")
    }
}

impl FromStr for Machine {
    type Err = anyhow::Error;

    /// The message of an error includes its causes, because the command line shows only the
    /// message.
    fn from_str(name: &str) -> Result<Self> {
        Self::open(name).map_err(|error| anyhow!("{error:#}"))
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

    /// Two sockets have two dies each, and each die has five clusters. Each CPU is used once, and
    /// the first four are on four dies.
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
        let wrong_share = wrong("\"hit_ps\"", "\"neighbours_first_percent\": 101, \"hit_ps\"");
        assert!(wrong_share.contains("at most 100"), "{wrong_share}");
        // With such values, times once wrapped around or the run never ended.
        assert!(wrong("\"work_ns\": 120", "\"work_ns\": 18446744073709551615").contains("above a second"));
        assert!(wrong("\"move_ns\": 45", "\"move_ns\": 18446744073709551615").contains("above a second"));
        assert!(wrong("\"lines\": 4", "\"lines\": 1001").contains("lines"));
        assert!(wrong("\"shared_accesses\": 4", "\"shared_accesses\": 4000000000").contains("at most 1000"));
        let endless = wrong("\"commit_every_ns\": 5", "\"commit_every_ns\": 1001");
        assert!(endless.contains("at most 1000 seconds"), "{endless}");
        let mut free = Machine::open("kunpeng-920").unwrap();
        (free.hit_ps, free.operation_ns) = (0, 0);
        let text = serde_json::to_string(&free).unwrap();
        assert!(format!("{:#}", Machine::parse(&text).unwrap_err()).contains("one of them above 0"));
        let text = "nowhere".parse::<Machine>().unwrap_err().to_string();
        assert!(text.starts_with("nowhere: neither a file nor a machine (kunpeng-920, "), "{text}");
        assert!(text.contains("No such file"), "{text}");
    }
}
