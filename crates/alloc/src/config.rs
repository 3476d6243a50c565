//! What an allocator is opened with: geometry, policy, kind of device, and the source of group
//! bitmaps.

use blockyard_disk::num::{u32_from_u64, u64_from_usize};
use blockyard_disk::{Geometry, GroupNr};

use crate::error::SourceError;
use crate::policy::Policy;
use crate::tunables::Tunable;

/// What the descriptor of a group says at open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupFacts {
    /// Free clusters: the descriptor's count, or for a group flagged `BLOCK_UNINIT` its clusters
    /// minus its own metadata.
    pub free: u32,
    /// Whether the bitmap was never written, so that it is synthesised without I/O.
    pub block_uninit: bool,
}

/// Provides the on-disk block bitmap of a group (1 = used). Any thread may call it. The caller
/// holds no group's lock, but it may hold the lock of a locality group or the trimming lock.
pub trait GroupSource: Send + Sync {
    /// Fills `bitmap` (one block, zeroed) with the bitmap of `group`. For a `BLOCK_UNINIT` group,
    /// this is a synthesised bitmap. The bitmap must show the claims that were committed, and the
    /// frees that had no transaction or whose transaction has committed.
    ///
    /// # Errors
    /// When the device fails, or a checksum is wrong.
    fn load(&self, group: GroupNr, bitmap: &mut [u8]) -> Result<(), SourceError>;

    /// Says that `count` groups from `first` on will probably be loaded soon. An implementation may
    /// start to read them; the default does nothing.
    fn prefetch(&self, _first: GroupNr, _count: u32) {}
}

/// When groups are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum InitMode {
    /// On demand, with the search's prefetch rules. The indexes are empty right after open.
    #[default]
    Lazy,
    /// Before `open` returns: all groups with free clusters, in ascending order.
    AtOpen,
}

/// What an [`Allocator`](crate::Allocator) is opened with.
#[derive(Clone, Debug)]
pub struct AllocConfig {
    /// The file system.
    pub geometry: Geometry,
    /// The policy.
    pub policy: Policy,
    /// Number of CPU slots (the kernel's possible CPUs), at least 1. How many locality groups,
    /// stream goals, zones and shards of counters there are depends on this number.
    pub cpus: u32,
    /// Whether the device has seek times. If so, the default linear prefix is 4 groups, otherwise
    /// 0.
    pub rotational: bool,
    /// Stripe in blocks. There is none if this is 0 or 1, larger than a group, or not a multiple of
    /// the cluster ratio.
    pub stripe: u32,
    /// Clusters reserved for root.
    pub root_reserved: u64,
    /// Clusters that the file system reserves for itself. `None`: 2 percent of all clusters, at
    /// most 4096, and none for file systems without extents.
    pub reserved: Option<u64>,
    /// Whether the file system has extents; the default reserve depends on it.
    pub extents: bool,
    /// When groups are loaded, unless the policy's `init` slot decides it.
    pub init: InitMode,
    /// Most bytes of loaded groups to keep; at least two groups are kept. Pinned groups, such as
    /// those with claims or pending frees, stay loaded beyond this limit.
    pub memory_max: u64,
    /// Seed of every random choice.
    pub seed: u64,
    /// Where the cursors stood when the file system was closed
    /// ([`Allocator::cursors`](crate::Allocator::cursors)), for `cursor_start=remembered`; empty
    /// for none.
    pub cursors: Vec<GroupNr>,
}

impl AllocConfig {
    /// The defaults of a mount: the policy `linux-6.18`, 4 CPU slots, no stripe, lazy loading, 32
    /// MiB of loaded groups.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            policy: Policy::default(),
            cpus: 4,
            rotational: false,
            stripe: 0,
            root_reserved: 0,
            reserved: None,
            extents: true,
            init: InitMode::Lazy,
            memory_max: 32 << 20,
            seed: 0,
            cursors: Vec::new(),
        }
    }

    /// The stripe in clusters, 0 when there is none.
    pub(crate) fn stripe_clusters(&self) -> u32 {
        let ratio = self.geometry.cluster_ratio();
        let fits = u64::from(self.stripe) <= self.geometry.blocks_per_group();
        if self.stripe > 1 && fits && self.stripe.is_multiple_of(ratio) { self.stripe / ratio } else { 0 }
    }

    /// The default of a tunable.
    pub(crate) fn default_tunable(&self, tunable: Tunable) -> u32 {
        match tunable {
            Tunable::Stats => 0,
            Tunable::MaxToScan => 200,
            Tunable::MinToScan => 10,
            Tunable::Order2Req => 2,
            Tunable::StreamReq => 16,
            Tunable::GroupPrealloc => self.default_group_prealloc(),
            Tunable::MaxLinearGroups => 4 * u32::from(self.rotational),
            Tunable::BestAvailMaxTrimOrder => 3,
            Tunable::Prefetch => self.default_prefetch(),
            Tunable::PrefetchLimit => (4 * self.default_prefetch()).min(self.geometry.groups()),
        }
    }

    fn default_group_prealloc(&self) -> u32 {
        let clusters = (512u32 >> self.geometry.cluster_ratio_bits()).max(32);
        let stripe = self.stripe_clusters();
        if stripe > 1 { clusters.next_multiple_of(stripe) } else { clusters }
    }

    /// How many groups are prefetched at a time: as many as eight flex groups have, or 32 without
    /// flex groups, but never more than the file system has. A flex group counts for at most as
    /// many groups as have 32 MiB of bitmaps.
    fn default_prefetch(&self) -> u32 {
        let geometry = &self.geometry;
        let batch = if geometry.flex_size() > 1 {
            let sectors = u32_from_u64(65536 / (u64_from_usize(geometry.block_size()) / 512));
            8 * geometry.flex_size().min(sectors)
        } else {
            32
        };
        batch.min(geometry.groups())
    }

    /// The default of `reserved_clusters`.
    pub(crate) fn default_reserved(&self) -> u64 {
        if self.extents { (self.geometry.clusters_count().raw() / 50).min(4096) } else { 0 }
    }
}
