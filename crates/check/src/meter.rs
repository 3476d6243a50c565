//! What a check costs: reads and time, pass by pass.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use blockyard_device::{BlockDevice, DeviceId, Result};
use blockyard_disk::num::u64_from_usize;

use crate::Watch;

/// What one pass or a whole check cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassCost {
    /// The pass: 1 to 5 as in e2fsck, or 0 for what comes before them: superblock, descriptors and
    /// journal.
    pub pass: u8,
    /// Number of reads of the image, and of its external journal.
    pub reads: u64,
    /// Bytes that these reads asked for.
    pub bytes: u64,
    /// Reads that do not begin where the previous read (of any thread) ended.
    pub seeks: u64,
    /// Wall-clock time.
    pub real: Duration,
    /// User time of all threads, in steps of 10 ms; zero if the system does not report it.
    pub user: Duration,
    /// System time of all threads, in the same way.
    pub system: Duration,
    /// Resident memory of the process at the end of the pass, in bytes; zero if the system does not
    /// report it.
    pub memory: u64,
}

impl PassCost {
    /// The sum of some passes, as pass 0. The memory is the largest value of any of them.
    #[must_use]
    pub fn total(passes: &[Self]) -> Self {
        passes.iter().fold(Self::default(), |sum, one| Self {
            pass: 0,
            reads: sum.reads + one.reads,
            bytes: sum.bytes + one.bytes,
            seeks: sum.seeks + one.seeks,
            real: sum.real + one.real,
            user: sum.user + one.user,
            system: sum.system + one.system,
            memory: sum.memory.max(one.memory),
        })
    }

    /// What was spent between two [`Reading`]s.
    fn between(pass: u8, before: &Reading, after: &Reading) -> Self {
        debug_assert!(before.reads <= after.reads && before.bytes <= after.bytes, "counters only grow");
        Self {
            pass,
            reads: after.reads - before.reads,
            bytes: after.bytes - before.bytes,
            seeks: after.seeks - before.seeks,
            real: after.at - before.at,
            user: after.user.saturating_sub(before.user),
            system: after.system.saturating_sub(before.system),
            memory: after.memory,
        }
    }
}

/// The counters of a [`Meter`] at one moment.
struct Reading {
    at: Instant,
    reads: u64,
    bytes: u64,
    seeks: u64,
    user: Duration,
    system: Duration,
    memory: u64,
}

/// Counts the reads of a check. All atomic operations are relaxed: the counters order no other
/// memory access.
#[derive(Default)]
pub(crate) struct Meter {
    reads: AtomicU64,
    bytes: AtomicU64,
    seeks: AtomicU64,
    /// Where the last read ended.
    end: AtomicU64,
}

impl Meter {
    fn note_read(&self, offset: u64, length: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(length, Ordering::Relaxed);
        let last = self.end.swap(offset + length, Ordering::Relaxed);
        self.seeks.fetch_add(u64::from(last != offset), Ordering::Relaxed);
    }

    fn reading(&self) -> Reading {
        let (user, system) = cpu_times(&std::fs::read_to_string("/proc/self/stat").unwrap_or_default());
        Reading {
            at: Instant::now(),
            reads: self.reads.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            seeks: self.seeks.load(Ordering::Relaxed),
            user,
            system,
            memory: resident(&std::fs::read_to_string("/proc/self/status").unwrap_or_default()),
        }
    }
}

/// The resident memory in bytes, from the text of `/proc/self/status`.
fn resident(text: &str) -> u64 {
    let kib = text.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

/// User and system time of this process from the text of `/proc/self/stat`, which counts in
/// hundredths of a second.
fn cpu_times(text: &str) -> (Duration, Duration) {
    // Fields 14 and 15. Field 2, the name, may hold blanks and parentheses, so the fields are
    // counted from its last parenthesis.
    let (_, fields) = text.rsplit_once(") ").unwrap_or_default();
    let mut times = fields.split(' ').skip(11).map(|ticks| ticks.parse().unwrap_or(0));
    let mut next = || Duration::from_millis(times.next().unwrap_or(0u64) * 10);
    (next(), next())
}

/// The passes of a check, one after the other.
pub(crate) struct Passes<'a> {
    meter: &'a Meter,
    begun: Reading,
    /// Costs of the passes that ended.
    pub(crate) costs: Vec<PassCost>,
}

impl<'a> Passes<'a> {
    pub(crate) fn begin(meter: &'a Meter) -> Self {
        Self { meter, begun: meter.reading(), costs: Vec::new() }
    }

    /// Ends a pass, and begins the next.
    pub(crate) fn end(&mut self, pass: u8) {
        let now = self.meter.reading();
        self.costs.push(PassCost::between(pass, &self.begun, &now));
        self.begun = now;
    }
}

/// A device whose reads are counted.
pub(crate) struct Metered<'a> {
    pub(crate) below: &'a dyn BlockDevice,
    pub(crate) meter: &'a Meter,
    pub(crate) watch: &'a Watch,
}

impl BlockDevice for Metered<'_> {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let length = u64_from_usize(buf.len());
        self.meter.note_read(offset, length);
        self.watch.note_read(length);
        self.below.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.below.write_at(offset, data)
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
        self.below.write_zeroes(offset, length)
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.below.discard(offset, length)
    }

    fn flush(&self) -> Result<()> {
        self.below.flush()
    }

    fn identity(&self) -> DeviceId {
        self.below.identity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_bytes_and_seeks_are_counted() {
        let meter = Meter::default();
        let mut passes = Passes::begin(&meter);
        for (offset, length) in [(0, 10), (10, 5), (20, 5), (20, 5)] {
            meter.note_read(offset, length);
        }
        passes.end(1);
        meter.note_read(25, 1);
        passes.end(2);
        let counts: Vec<_> =
            passes.costs.iter().map(|cost| (cost.pass, cost.reads, cost.bytes, cost.seeks)).collect();
        assert_eq!(counts, [(1, 4, 25, 2), (2, 1, 1, 0)]);
        let total = PassCost::total(&passes.costs);
        assert_eq!((total.pass, total.reads, total.bytes, total.seeks), (0, 5, 26, 2));
        assert_eq!(total.real, passes.costs[0].real + passes.costs[1].real);
    }

    #[test]
    fn times_are_fields_14_and_15_behind_the_name() {
        let text = "1 (a ) b) S 1 1 1 0 -1 4194560 1 0 0 0 250 40 0 0 20";
        assert_eq!(cpu_times(text), (Duration::from_millis(2500), Duration::from_millis(400)));
        assert_eq!(cpu_times(""), (Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn the_status_tells_resident_memory() {
        assert_eq!(resident("VmHWM:\t    9000 kB\nVmRSS:\t    8704 kB\nRssAnon:\t 1 kB\n"), 8704 << 10);
        assert_eq!(resident("State:\tR (running)\n"), 0);
    }
}
