//! Counts and latencies of requests, by kind.

use std::fmt::Write;
use std::time::{Duration, Instant};

use blockyard::disk::num::{count_as_f64, u64_from_usize, usize_from_u32};
use blockyard_sync::{Atomic, AtomicU64, CachePadded, CpuSlot, Ordering};

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A name was looked up.
    Lookup,
    /// The kernel forgot an inode.
    Forget,
    /// Attributes were requested.
    Attributes,
    /// Attributes were changed.
    SetAttributes,
    /// The target of a symbolic link was read.
    ReadLink,
    /// A file, device, pipe or socket was made without opening it.
    Make,
    /// A directory was made.
    MakeDirectory,
    /// A name was removed.
    Unlink,
    /// A directory was removed.
    RemoveDirectory,
    /// A symbolic link was made.
    Symlink,
    /// A rename.
    Rename,
    /// A hard link was made.
    Link,
    /// A file was opened.
    Open,
    /// A file was made and opened.
    Create,
    /// Content was read.
    Read,
    /// Content was written.
    Write,
    /// A file was closed.
    Release,
    /// A file or directory was made durable.
    Fsync,
    /// A directory was listed.
    List,
    /// Free space was requested.
    Statfs,
    /// Extended attributes were read.
    Xattr,
    /// Extended attributes were changed.
    SetXattr,
    /// Allocation was changed.
    Fallocate,
    /// A seek to data or to a hole.
    Seek,
    /// A range was copied.
    Copy,
    /// An ioctl.
    Control,
}

impl Kind {
    /// The names of the kinds in the order of [`Kind::index`], mostly names of system calls.
    const NAMES: [&'static str; 26] = [
        "lookup",
        "forget",
        "getattr",
        "setattr",
        "readlink",
        "mknod",
        "mkdir",
        "unlink",
        "rmdir",
        "symlink",
        "rename",
        "link",
        "open",
        "create",
        "read",
        "write",
        "release",
        "fsync",
        "readdir",
        "statfs",
        "getxattr",
        "setxattr",
        "fallocate",
        "lseek",
        "copy",
        "ioctl",
    ];

    const fn index(self) -> usize {
        match self {
            Self::Lookup => 0,
            Self::Forget => 1,
            Self::Attributes => 2,
            Self::SetAttributes => 3,
            Self::ReadLink => 4,
            Self::Make => 5,
            Self::MakeDirectory => 6,
            Self::Unlink => 7,
            Self::RemoveDirectory => 8,
            Self::Symlink => 9,
            Self::Rename => 10,
            Self::Link => 11,
            Self::Open => 12,
            Self::Create => 13,
            Self::Read => 14,
            Self::Write => 15,
            Self::Release => 16,
            Self::Fsync => 17,
            Self::List => 18,
            Self::Statfs => 19,
            Self::Xattr => 20,
            Self::SetXattr => 21,
            Self::Fallocate => 22,
            Self::Seek => 23,
            Self::Copy => 24,
            Self::Control => 25,
        }
    }
}

/// Number of latency buckets. Bucket 0 counts latencies of 0 ns, bucket `n` those from 2^(n-1) up
/// to, but not including, 2^n ns. The last one also counts all longer ones.
const BUCKETS: usize = 40;
/// Number of sets of counters. A thread counts in the set of its CPU slot.
const SHARDS: usize = 8;

/// The counters of one kind of request in one set. Accessed relaxed, because they are only
/// reported.
#[derive(Debug)]
struct Counters {
    count: AtomicU64,
    nanoseconds: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Counters {
    fn new() -> Self {
        let zero = || Atomic::new(0);
        Self { count: zero(), nanoseconds: zero(), buckets: std::array::from_fn(|_| zero()) }
    }
}

/// Counts and latencies of requests since the mount.
pub struct Figures {
    began: Instant,
    shards: Box<[CachePadded<Vec<Counters>>]>,
}

/// Figures of one kind of request.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Name of the kind, mostly that of its system call.
    pub name: &'static str,
    /// Number of requests.
    pub count: u64,
    /// Mean latency.
    pub mean: Duration,
    /// Upper bound of the median latency, as a power of two.
    pub median: Duration,
    /// As `median`, for the 99th percentile.
    pub percentile_99: Duration,
}

impl Default for Figures {
    fn default() -> Self {
        let set = |_| CachePadded::new(Kind::NAMES.iter().map(|_| Counters::new()).collect());
        Self { began: Instant::now(), shards: (0..SHARDS).map(set).collect() }
    }
}

impl Figures {
    /// Counts a request and its latency.
    pub fn note(&self, kind: Kind, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = usize_from_u32(64 - nanoseconds.leading_zeros()).min(BUCKETS - 1);
        let counters = &self.shards[CpuSlot::of_thread().index(SHARDS)][kind.index()];
        counters.count.fetch_add(1, Ordering::Relaxed);
        counters.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        counters.buckets[bucket].fetch_add(1, Ordering::Relaxed);
    }

    /// The figures of the kinds that occurred.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        (0..Kind::NAMES.len()).filter_map(|kind| self.row(kind)).collect()
    }

    fn row(&self, kind: usize) -> Option<Row> {
        let (mut count, mut nanoseconds, mut buckets) = (0, 0_u64, [0_u64; BUCKETS]);
        for set in &self.shards {
            let counters = &set[kind];
            count += counters.count.load(Ordering::Relaxed);
            nanoseconds = nanoseconds.saturating_add(counters.nanoseconds.load(Ordering::Relaxed));
            for (sum, bucket) in buckets.iter_mut().zip(&counters.buckets) {
                *sum += bucket.load(Ordering::Relaxed);
            }
        }
        (count > 0).then(|| Row {
            name: Kind::NAMES[kind],
            count,
            mean: Duration::from_nanos(nanoseconds / count),
            median: quantile(&buckets, 50),
            percentile_99: quantile(&buckets, 99),
        })
    }

    /// A table for people to read.
    #[must_use]
    pub fn table(&self) -> String {
        let seconds = self.began.elapsed().as_secs_f64().max(1e-9);
        let mut text = format!(
            "{:<10} {:>12} {:>10} {:>10} {:>10} {:>10}\n",
            "request", "count", "per s", "mean us", "half us", "99 % us"
        );
        for row in self.rows() {
            let micros = |time: Duration| time.as_secs_f64() * 1e6;
            let rate = count_as_f64(row.count) / seconds;
            let (mean, median, high) = (micros(row.mean), micros(row.median), micros(row.percentile_99));
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{:<10} {:>12} {rate:>10.1} {mean:>10.1} {median:>10.1} {high:>10.1}",
                row.name, row.count
            );
        }
        text
    }
}

/// The smallest power of two, in nanoseconds, below which at least `percent` % of the latencies
/// lie. Latencies beyond the last bucket's bound count as below it.
fn quantile(buckets: &[u64], percent: u64) -> Duration {
    let total: u64 = buckets.iter().sum();
    let wanted = (total * percent).div_ceil(100).max(1);
    let mut seen = 0;
    for (power, count) in buckets.iter().enumerate() {
        seen += count;
        if seen >= wanted {
            return Duration::from_nanos(1 << u64_from_usize(power).min(62));
        }
    }
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::{Figures, Kind};
    use std::time::Duration;

    #[test]
    fn what_came_is_counted_by_kind() {
        let figures = Figures::default();
        for micros in 1..=100 {
            figures.note(Kind::Read, Duration::from_micros(micros));
        }
        figures.note(Kind::Control, Duration::from_secs(10_000));
        let rows = figures.rows();
        assert_eq!(
            rows.iter().map(|row| (row.name, row.count)).collect::<Vec<_>>(),
            [("read", 100), ("ioctl", 1)]
        );
        assert_eq!(rows[0].mean, Duration::from_nanos(50_500));
        assert_eq!(rows[0].median, Duration::from_nanos(65_536), "the power of two above 50 us");
        assert!(figures.table().contains("read"));
    }
}
