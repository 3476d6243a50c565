//! Published figures, printed next to ours and marked as published.
//!
//! Published figures come from other machines. So compare ratios and the shapes of curves, never
//! absolute numbers.

/// One row of the round-robin comparison (February 2026).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RoundRobin {
    /// The workload.
    pub workload: &'static str,
    /// `regular` or `rralloc`.
    pub policy: &'static str,
    /// MiB a second.
    pub bandwidth_mib_s: f64,
    /// I/O operations a second.
    pub iops: f64,
    /// Mean latency in microseconds.
    pub latency_us: f64,
}

/// The round-robin comparison: one run for each cell.
pub(super) const ROUND_ROBIN: [RoundRobin; 6] = [
    RoundRobin {
        workload: "seqwrite",
        policy: "regular",
        bandwidth_mib_s: 497.0,
        iops: 496.0,
        latency_us: 9190.0,
    },
    RoundRobin {
        workload: "seqwrite",
        policy: "rralloc",
        bandwidth_mib_s: 538.0,
        iops: 537.0,
        latency_us: 9370.0,
    },
    RoundRobin {
        workload: "smallfiles",
        policy: "regular",
        bandwidth_mib_s: 707.0,
        iops: 181e3,
        latency_us: 2.03,
    },
    RoundRobin {
        workload: "smallfiles",
        policy: "rralloc",
        bandwidth_mib_s: 586.0,
        iops: 150e3,
        latency_us: 2.18,
    },
    RoundRobin {
        workload: "allocstress",
        policy: "regular",
        bandwidth_mib_s: 166.0,
        iops: 42.4e3,
        latency_us: 1130.0,
    },
    RoundRobin {
        workload: "allocstress",
        policy: "rralloc",
        bandwidth_mib_s: 283.0,
        iops: 72.5e3,
        latency_us: 660.0,
    },
];
