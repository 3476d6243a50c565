//! The run-time tunables, with the names, defaults and range checks of `/sys/fs/ext4/<device>/`.

use blockyard_disk::num::{u32_from_u64, usize_from_u32};
use blockyard_sync::{Atomic, Backend, Ordering};

use crate::config::AllocConfig;
use crate::error::{AllocError, Result};

macro_rules! tunables {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)+) => {
        /// One run-time tunable.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Tunable {
            $($(#[$doc])* $name,)+
        }

        impl Tunable {
            /// Every tunable.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The name in sysfs.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }

            /// The tunable of this name.
            #[must_use]
            pub fn by_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|tunable| tunable.name() == name)
            }
        }
    };
}

tunables! {
    /// 1: collect the statistics of `mb_stats`. Default 0.
    Stats = "mb_stats",
    /// Candidates looked at before the best so far is taken. Default 200.
    MaxToScan = "mb_max_to_scan",
    /// Candidates after which a sufficient one is taken. Default 10.
    MinToScan = "mb_min_to_scan",
    /// Smallest `log2(length) + 1` for the power-of-two criterion. Default 2.
    Order2Req = "mb_order2_req",
    /// Files up to this many blocks are small. Default 16.
    StreamReq = "mb_stream_req",
    /// Clusters of a locality group's preallocation; 0 turns them off. Default 512 blocks, at least 32 clusters.
    GroupPrealloc = "mb_group_prealloc",
    /// Groups visited one after the other before an index is used. Default 4 on rotating devices, otherwise 0.
    MaxLinearGroups = "mb_max_linear_groups",
    /// Orders by which the best-available criterion may shorten a request. Default 3.
    BestAvailMaxTrimOrder = "mb_best_avail_max_trim_order",
    /// Groups read ahead at a time.
    Prefetch = "mb_prefetch",
    /// Groups read ahead in one request of a cheap criterion.
    PrefetchLimit = "mb_prefetch_limit",
}

/// Values of all tunables.
pub(crate) struct Tunables<B: Backend> {
    // Relaxed everywhere: nothing else is published with a tunable.
    values: [B::AtomicU32; Tunable::ALL.len()],
    clusters_per_group: u32,
}

impl<B: Backend> Tunables<B> {
    pub(crate) fn new(config: &AllocConfig) -> Self {
        let values = Tunable::ALL.iter().map(|&tunable| B::AtomicU32::new(default(tunable, config)));
        let mut values = values;
        Self {
            values: core::array::from_fn(|_| values.next().unwrap_or_else(|| B::AtomicU32::new(0))),
            clusters_per_group: config.geometry.clusters_per_group(),
        }
    }

    #[inline]
    pub(crate) fn value(&self, tunable: Tunable) -> u32 {
        self.values[index(tunable)].load(Ordering::Relaxed)
    }

    /// As the kernel: only two values are range-checked.
    pub(crate) fn set(&self, tunable: Tunable, value: u64) -> Result<()> {
        let max = match tunable {
            Tunable::GroupPrealloc => self.clusters_per_group,
            Tunable::BestAvailMaxTrimOrder => 64,
            _ => u32::MAX,
        };
        if value > u64::from(max) {
            return Err(AllocError::BadTunable { name: tunable.name(), value });
        }
        self.values[index(tunable)].store(u32_from_u64(value), Ordering::Relaxed);
        Ok(())
    }
}

fn index(tunable: Tunable) -> usize {
    Tunable::ALL.iter().position(|&other| other == tunable).unwrap_or_default()
}

fn default(tunable: Tunable, config: &AllocConfig) -> u32 {
    match tunable {
        Tunable::Stats => 0,
        Tunable::MaxToScan => 200,
        Tunable::MinToScan => 10,
        Tunable::Order2Req => 2,
        Tunable::StreamReq => 16,
        Tunable::GroupPrealloc => default_group_prealloc(config),
        Tunable::MaxLinearGroups => {
            if config.rotational {
                4
            } else {
                0
            }
        }
        Tunable::BestAvailMaxTrimOrder => 3,
        Tunable::Prefetch => default_prefetch(config),
        Tunable::PrefetchLimit => (4 * default_prefetch(config)).min(config.geometry.groups()),
    }
}

fn default_group_prealloc(config: &AllocConfig) -> u32 {
    let clusters = (512u32 >> config.geometry.cluster_ratio_bits()).max(32);
    let stripe = config.stripe_clusters();
    if stripe > 1 { clusters.next_multiple_of(stripe) } else { clusters }
}

/// With flex groups eight of them at a time, otherwise 32 groups; never more than there are.
fn default_prefetch(config: &AllocConfig) -> u32 {
    let geometry = &config.geometry;
    let batch = if geometry.flex_size() > 1 {
        let sectors = usize_from_u32(u32_from_u64(
            65536 / (blockyard_disk::num::u64_from_usize(geometry.block_size()) / 512),
        ));
        8 * geometry.flex_size().min(blockyard_disk::num::u32_from_usize(sectors))
    } else {
        32
    };
    batch.min(geometry.groups())
}
