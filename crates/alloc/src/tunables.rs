//! The run-time tunables, with the names, defaults and range checks of `/sys/fs/ext4/<device>/`.

use blockyard_disk::num::u32_from_u64;
use blockyard_sync::{Atomic, Backend, Ordering};

use crate::error::{AllocError, Result};

macro_rules! tunables {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal, $default:literal;)+) => {
        /// One run-time tunable.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Tunable {
            $($(#[doc = $doc])+ #[doc = concat!(" Default: ", $default, ".")] $name,)+
        }

        impl Tunable {
            /// Every tunable.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The name in sysfs.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }

            /// What it means, from its documentation.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+)),+ }
            }

            /// The default in words, since some defaults depend on the geometry or the device.
            #[must_use]
            pub const fn default_words(self) -> &'static str {
                match self { $(Self::$name => $default),+ }
            }

            /// The tunable of this name; `None` if there is none.
            #[must_use]
            pub fn by_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|tunable| tunable.name() == name)
            }
        }
    };
}

tunables! {
    /// 1: collect the statistics of `mb_stats`.
    Stats = "mb_stats", "0";
    /// Candidates looked at before the best so far is taken.
    MaxToScan = "mb_max_to_scan", "200";
    /// After so many candidates, the best so far is taken if it is long enough.
    MinToScan = "mb_min_to_scan", "10";
    /// Smallest `log2(length) + 1` for the power-of-two criterion.
    Order2Req = "mb_order2_req", "2";
    /// Files up to this many blocks are small.
    StreamReq = "mb_stream_req", "16";
    /// Clusters of a locality group's preallocation; 0 turns locality groups off.
    GroupPrealloc = "mb_group_prealloc", "512 blocks, at least 32 clusters, in whole stripes";
    /// Groups visited one after the other before an index is used.
    MaxLinearGroups = "mb_max_linear_groups", "4 on rotating devices, otherwise 0";
    /// Orders by which the best-available criterion may shorten a request.
    BestAvailMaxTrimOrder = "mb_best_avail_max_trim_order", "3";
    /// Groups read ahead at a time.
    Prefetch = "mb_prefetch", "8 flex groups; without flex groups 32 groups; at most all groups";
    /// Groups that the cheap criteria may read ahead in one request.
    PrefetchLimit = "mb_prefetch_limit", "4 times the default of mb_prefetch, at most all groups";
}

impl Tunable {
    /// The largest value that any file system accepts. For `mb_group_prealloc` each file system
    /// also has its own limit, the clusters of a group.
    #[must_use]
    pub const fn largest(self) -> u32 {
        match self {
            Self::GroupPrealloc => 8 << 16,
            Self::BestAvailMaxTrimOrder => 64,
            _ => u32::MAX,
        }
    }
}

/// The values of those tunables that a policy sets. All other tunables have their defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChosenTunables {
    values: [Option<u32>; Tunable::ALL.len()],
}

impl ChosenTunables {
    /// All defaults.
    pub const DEFAULTS: Self = Self { values: [None; Tunable::ALL.len()] };

    /// The chosen value; `None` if the tunable has its default.
    #[must_use]
    pub fn value(&self, tunable: Tunable) -> Option<u32> {
        self.values[index(tunable)]
    }

    /// Chooses a value.
    pub fn choose(&mut self, tunable: Tunable, value: u32) {
        debug_assert!(value <= tunable.largest(), "{} = {value}", tunable.name());
        self.values[index(tunable)] = Some(value);
    }
}

/// Values of all tunables.
pub(crate) struct Tunables<B: Backend> {
    // Relaxed everywhere: nothing else is published with a tunable.
    values: [B::AtomicU32; Tunable::ALL.len()],
    clusters_per_group: u32,
}

impl<B: Backend> Tunables<B> {
    /// The defaults of a file system with groups of this many clusters, changed by the policy.
    pub(crate) fn new(
        default: impl Fn(Tunable) -> u32,
        chosen: &ChosenTunables,
        clusters_per_group: u32,
    ) -> Result<Self> {
        let values = Tunable::ALL.iter().map(|&tunable| B::AtomicU32::new(default(tunable)));
        let mut values = values;
        let tunables = Self {
            values: B::on_line("tunables", || {
                core::array::from_fn(|_| values.next().unwrap_or_else(|| B::AtomicU32::new(0)))
            }),
            clusters_per_group,
        };
        for &tunable in Tunable::ALL {
            if let Some(value) = chosen.value(tunable) {
                tunables.set(tunable, value.into())?;
            }
        }
        Ok(tunables)
    }

    #[inline]
    pub(crate) fn value(&self, tunable: Tunable) -> u32 {
        self.values[index(tunable)].load(Ordering::Relaxed)
    }

    /// Sets a tunable. As in the kernel, only two tunables have a limit below `u32::MAX`.
    pub(crate) fn set(&self, tunable: Tunable, value: u64) -> Result<()> {
        let max = match tunable {
            Tunable::GroupPrealloc => self.clusters_per_group,
            other => other.largest(),
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
