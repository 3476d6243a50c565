//! The allocator: its parts, how it is opened, and what it reports about itself.
//!
//! There is no lock that all allocations share, unless the policy asks for one (such as the lock of
//! a global cursor). Each group and each locality group has its own lock, and most counters and
//! goals have none. [`crate::allocate`] is the path of one request through these parts.

use core::fmt;
use std::sync::Arc;

use blockyard_disk::num::usize_from_u32;
use blockyard_disk::{Geometry, GroupNr};
use blockyard_sync::{Backend, CachePadded, CpuSlot, Mutex, Native, ShardedCounter, rank};

use crate::admission::{Admission, FreeClusters, Room};
use crate::config::{AllocConfig, GroupFacts, GroupSource, InitMode};
use crate::error::{AllocError, NoSpace, Result};
use crate::events::EventSink;
use crate::frees::Frees;
use crate::goals::cursors::Cursors;
use crate::goals::stream::StreamGoals;
use crate::group::table::GroupTable;
use crate::index::Indexes;
use crate::lock_model::LockModel;
use crate::md::Md;
use crate::policy::Policy;
use crate::policy::code::{OpenCode, Volume};
use crate::policy::slots::{Init, Scan, StreamGoal, Visit};
use crate::prealloc::locality::LocalityGroup;
use crate::prealloc::windows::Windows;
use crate::request::RequestFlags;
use crate::stats::{GroupLine, LockCensus, MbStats, Stats, StructsSummary, format};
use crate::trims::Trims;
use crate::tunables::{Tunable, Tunables};

/// With `scan=auto`, a file system with fewer groups than this is opened with the linear scan.
const AUTO_SCAN_GROUPS: u32 = 16;

/// The locality group of one CPU slot, with its mutex.
pub(crate) type LocalitySlot<B> = CachePadded<Mutex<LocalityGroup<B>, B>>;

/// Block allocation of one file system. Threads share it: what they call takes `&self`.
pub struct Allocator<B: Backend = Native> {
    pub(crate) policy: Policy,
    pub(crate) table: GroupTable<B>,
    pub(crate) source: Arc<dyn GroupSource>,
    pub(crate) tunables: Tunables<B>,
    pub(crate) locality: Box<[LocalitySlot<B>]>,
    pub(crate) streams: StreamGoals<B>,
    pub(crate) cursors: Cursors<B>,
    pub(crate) windows: Windows<B>,
    /// The lock that frees and stream goals share under policies that want it.
    pub(crate) md: Arc<Md<B>>,
    pub(crate) frees: Frees<B>,
    pub(crate) admission: Admission<B>,
    pub(crate) stats: Stats<B>,
    /// Counts claims, releases, frees and trims, and groups whose preallocations were dropped for
    /// space. A search with strict checks that failed is repeated only if this count
    /// has changed.
    pub(crate) changes: ShardedCounter<B>,
    pub(crate) events: Option<Box<dyn EventSink>>,
    pub(crate) init: InitMode,
    /// Stripe in clusters, 0 for none.
    pub(crate) stripe: u32,
    pub(crate) trims: Trims<B>,
    /// Code of another crate that makes decisions (`search=code`, `choose=code`).
    pub(crate) code: OpenCode,
}

impl<B: Backend> Allocator<B> {
    /// Opens the allocator of a file system whose group descriptors say `facts`.
    ///
    /// # Errors
    /// - [`AllocError::BadConfig`] when the configuration or its policy is impossible.
    /// - [`AllocError::BadTunable`] when the policy sets a tunable out of range.
    /// - [`AllocError::Load`] when groups are loaded at open and one of them cannot be read.
    pub fn open(config: &AllocConfig, source: Arc<dyn GroupSource>, facts: &[GroupFacts]) -> Result<Self> {
        let groups = config.geometry.groups();
        if facts.len() != usize_from_u32(groups) {
            return Err(AllocError::BadConfig("one set of facts for each group is needed"));
        }
        if config.cpus == 0 {
            return Err(AllocError::BadConfig("no CPU slot"));
        }
        let policy = config.policy;
        policy.check().map_err(|_| AllocError::BadConfig("a policy that cannot work"))?;
        let orders = config.geometry.block_bits() + 2;
        let optimised = match policy.scan {
            Scan::Auto => groups >= AUTO_SCAN_GROUPS,
            Scan::Linear => false,
            Scan::Optimized => true,
        };
        let indexes = Indexes::new(&policy, orders, groups, config.cpus, optimised);
        let free = facts.iter().map(|facts| u64::from(facts.free)).sum();
        let md = Arc::new(Md::new(config.cpus));
        let locality = || {
            CachePadded::new(B::on_line("locality group", || {
                Mutex::new(rank::PREALLOC_LOCALITY, LocalityGroup::default())
            }))
        };
        let allocator = Self {
            policy,
            table: GroupTable::new(config, facts, indexes),
            source,
            tunables: Tunables::new(
                |tunable| config.default_tunable(tunable),
                &policy.tunables,
                config.geometry.clusters_per_group(),
            )?,
            locality: (0..config.cpus).map(|_| locality()).collect(),
            streams: StreamGoals::new(&policy, config.cpus, &config.geometry, facts, Arc::clone(&md)),
            cursors: Cursors::new(config),
            windows: Windows::new(),
            frees: Frees::new(&policy, groups, config.cpus, Arc::clone(&md)),
            md,
            admission: Admission::new(config, free),
            stats: Stats::new(config.cpus),
            changes: ShardedCounter::new(usize_from_u32(config.cpus)),
            events: None,
            init: match policy.init {
                Init::Config => config.init,
                Init::Lazy => InitMode::Lazy,
                Init::AtOpen => InitMode::AtOpen,
            },
            stripe: config.stripe_clusters(),
            trims: Trims::new(),
            code: policy.code.open(&Volume {
                geometry: config.geometry,
                cpus: config.cpus,
                seed: config.seed,
            }),
        };
        if allocator.init == InitMode::AtOpen {
            allocator.initialise(0, groups)?;
        }
        Ok(allocator)
    }

    /// Sends one event per decision to `sink`. Call this before threads share the allocator.
    #[must_use]
    pub fn with_events(mut self, sink: impl EventSink + 'static) -> Self {
        self.events = Some(Box::new(sink));
        self
    }

    /// Of the groups `first..first + count`, loads those that have free clusters and were never
    /// loaded, in ascending order. The kernel does this in the background after mount.
    ///
    /// # Errors
    /// [`AllocError::Load`] at the first group that cannot be read.
    pub fn initialise(&self, first: u32, count: u32) -> Result<()> {
        let end = first.saturating_add(count).min(self.table.geometry.groups());
        for nr in (first..end).map(GroupNr::new) {
            let summary = self.table.group(nr).summary();
            if summary.free > 0 && !summary.initialised() {
                self.table.load(nr, CpuSlot::ZERO, &*self.source)?;
            }
        }
        Ok(())
    }

    /// The geometry of the file system.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.table.geometry
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Notes that the bitmap of a `BLOCK_UNINIT` group was written because an inode was created in
    /// the group. (After a claim or a free of its blocks this call is not needed.) From now on,
    /// loading the group needs I/O, so the cheap criteria may pass it over until it is loaded.
    pub fn note_bitmap_written(&self, group: GroupNr) {
        self.table.group(group).clear_block_uninit();
    }

    /// Clusters free, delayed and reserved: exact if nobody is allocating or freeing.
    #[must_use]
    pub fn free_clusters(&self) -> FreeClusters {
        self.admission.figures()
    }

    /// Free clusters, and those reserved by delayed allocation, as the lagging counters show them.
    /// A writer uses them to decide whether to delay allocation or to allocate at once.
    #[must_use]
    pub fn room(&self) -> Room {
        self.admission.room()
    }

    /// Free clusters as the lagging counter shows them. The count is cheap to read, but lags by up
    /// to two batches per CPU slot.
    #[must_use]
    pub fn free_clusters_approximate(&self) -> u64 {
        self.admission.free_approximate()
    }

    /// Free clusters of one group in core (preallocated and pending ones are not free).
    #[must_use]
    pub fn group_free(&self, group: GroupNr) -> u32 {
        self.table.group(group).free()
    }

    /// Changes the file system's own reserve, in clusters.
    ///
    /// # Errors
    /// [`AllocError::BadTunable`] unless the reserve is smaller than the file system.
    pub fn set_reserved(&self, clusters: u64) -> Result<()> {
        if clusters >= self.table.geometry.clusters_count().raw() {
            return Err(AllocError::BadTunable { name: "reserved_clusters", value: clusters });
        }
        self.admission.set_reserved(clusters);
        Ok(())
    }

    /// Reserves clusters for data that is written now and allocated later.
    ///
    /// # Errors
    /// [`AllocError::NoSpace`] when the request may not have that many clusters.
    pub fn reserve_delayed(&self, clusters: u64, flags: RequestFlags, cpu: CpuSlot) -> Result<()> {
        if !self.admission.reserve(clusters, flags, cpu) {
            return Err(AllocError::NoSpace(NoSpace {
                pending_clusters: self.frees.pending_clusters(cpu),
                claimable: self.admission.has_room(1, flags),
            }));
        }
        Ok(())
    }

    /// Whether a request with these flags could claim or reserve this many clusters now.
    #[must_use]
    pub fn has_room(&self, clusters: u64, flags: RequestFlags) -> bool {
        self.admission.has_room(clusters, flags)
    }

    /// Ends a reservation, because the clusters were allocated (with `DELALLOC_RESERVED`) or are no
    /// longer needed.
    pub fn release_delayed(&self, clusters: u64, cpu: CpuSlot) {
        self.admission.take_dirty(cpu, clusters);
    }

    /// Value of a tunable.
    #[must_use]
    pub fn tunable(&self, tunable: Tunable) -> u32 {
        self.tunables.value(tunable)
    }

    /// Sets a tunable.
    ///
    /// # Errors
    /// [`AllocError::BadTunable`] when the value is larger than the tunable allows.
    pub fn set_tunable(&self, tunable: Tunable, value: u64) -> Result<()> {
        self.tunables.set(tunable, value)
    }

    /// Whether groups are picked from the indexes.
    #[must_use]
    pub fn optimize_scan(&self) -> bool {
        self.table.indexes.optimised()
    }

    /// Switches `mb_optimize_scan`. As in the kernel, the indexes are not rebuilt: the entry of a
    /// group in an index is corrected when its order there next changes.
    pub fn set_optimize_scan(&self, on: bool) {
        self.table.indexes.set_optimised(on);
    }

    /// Drops the bitmaps of all loaded groups that are neither pinned nor locked. Returns how many
    /// were dropped.
    pub fn evict_all(&self, cpu: CpuSlot) -> u32 {
        let mut evicted = 0;
        for nr in self.table.geometry.all_groups() {
            evicted += u32::from(self.table.group(nr).is_loaded() && self.table.evict(nr, cpu));
        }
        evicted
    }

    /// Sets or removes a model that says which group locks look held, for operations that overlap
    /// on one thread.
    #[doc(hidden)]
    pub fn set_lock_model(&self, model: Option<Arc<dyn LockModel>>) {
        self.table.modelled.set(model);
    }

    /// The group whose lock this group uses: itself, or the first of those that share the lock.
    #[doc(hidden)]
    #[must_use]
    pub fn lock_of(&self, group: GroupNr) -> GroupNr {
        self.table.lock_of(group)
    }

    /// Whether anybody holds the group's lock. The answer may be out of date when the call returns.
    #[doc(hidden)]
    #[must_use]
    pub fn is_group_locked(&self, group: GroupNr) -> bool {
        self.table.is_busy(group)
    }

    /// Runs `f` while the group is locked. `f` must take no lock. For models of an engine, which
    /// imitate that Linux marks a claim in the on-disk bitmap under the group's lock.
    #[doc(hidden)]
    pub fn with_group_locked(&self, group: GroupNr, cpu: CpuSlot, f: impl FnOnce()) {
        let guard = self.table.lock(group, cpu);
        f();
        drop(guard);
    }

    pub(crate) fn note_change(&self, cpu: CpuSlot) {
        self.changes.add(cpu, 1);
    }

    /// Where the cursors of a round-robin policy stand; empty without rotation. A caller can keep
    /// them when it closes the file system, and pass them to the next open in
    /// [`AllocConfig::cursors`].
    #[must_use]
    pub fn cursors(&self) -> Vec<GroupNr> {
        self.cursors.positions()
    }

    /// The counts of `mb_stats`. Except for `preallocated`, `discarded`, `lost` and
    /// `buddies_generated`, they are collected only while the tunable `mb_stats` is on.
    #[must_use]
    pub fn stats(&self) -> MbStats {
        let mut totals = self.stats.totals();
        totals.buddies_generated[0] = self.table.buddies_built();
        totals
    }

    /// The text of `mb_stats`.
    #[must_use]
    pub fn mb_stats(&self) -> String {
        let form = format::StatsForm {
            on: self.tunables.value(Tunable::Stats) != 0,
            groups: self.table.geometry.groups(),
            bad_suggestions: self.policy.visit == Visit::Choose,
            stream_goal_hits: self.policy.stream_goal == StreamGoal::GroupOnly,
        };
        format::mb_stats(&self.stats(), form)
    }

    /// One line of `mb_groups` for each group. Loads every group, as Linux does when the file is
    /// read.
    ///
    /// # Errors
    /// [`AllocError::Load`].
    pub fn groups(&self) -> Result<Vec<GroupLine>> {
        self.table.geometry.all_groups().map(|nr| self.group_line(nr)).collect()
    }

    fn group_line(&self, nr: GroupNr) -> Result<GroupLine> {
        let guard = self.table.lock_loaded(nr, CpuSlot::ZERO, &*self.source)?;
        let summary = guard.summary();
        let buddy = guard.buddy();
        Ok(GroupLine {
            group: nr.raw(),
            free: summary.free,
            fragments: summary.fragments,
            first_free: buddy.map_or(0, crate::buddy::Buddy::first_free),
            chunks: buddy.map(|buddy| buddy.counters().to_vec()).unwrap_or_default(),
            corrupt: summary.corrupt(),
        })
    }

    /// The text of `mb_groups`. Loads every group.
    ///
    /// # Errors
    /// [`AllocError::Load`].
    pub fn mb_groups(&self) -> Result<String> {
        Ok(format::mb_groups(&self.groups()?))
    }

    /// How many groups each set of the indexes holds.
    #[must_use]
    pub fn structs_summary(&self) -> StructsSummary {
        let indexes = &self.table.indexes;
        StructsSummary {
            optimize_scan: indexes.optimised(),
            max_free_order: (0..indexes.orders()).map(|order| indexes.largest.len(order)).collect(),
            avg_fragment_size: (0..indexes.orders()).map(|order| indexes.average.len(order)).collect(),
        }
    }

    /// The text of `mb_structs_summary`.
    #[must_use]
    pub fn mb_structs_summary(&self) -> String {
        format::mb_structs_summary(&self.structs_summary())
    }

    /// How many runs of free clusters the whole file system has, and how many clusters are in them.
    /// A run that continues in the next group counts once. Groups that cannot be loaded are left
    /// out.
    #[must_use]
    pub fn free_runs(&self) -> (u64, u64) {
        let (mut runs, mut clusters) = (0, 0);
        let mut touches = false;
        for nr in self.table.geometry.all_groups() {
            let guard = self.table.lock_loaded(nr, CpuSlot::ZERO, &*self.source);
            let Some(buddy) = guard.as_ref().ok().and_then(|guard| guard.buddy()) else {
                touches = false;
                continue;
            };
            runs += u64::from(buddy.fragments()) - u64::from(touches && buddy.is_free(0));
            clusters += u64::from(buddy.free());
            touches = buddy.is_free(buddy.clusters() - 1);
        }
        (runs, clusters)
    }

    /// How often locks were taken since open: the group locks, the md lock, the locks of the index
    /// lists, and the lock of a global cursor. All except the group locks are shared by the whole
    /// file system.
    #[must_use]
    pub fn lock_census(&self) -> LockCensus {
        let mut shared = vec![self.md.figures()];
        shared.extend(self.table.indexes.lock_figures());
        shared.extend(self.cursors.lock_figures());
        LockCensus { groups: self.table.lock_figures(), shared }
    }
}

impl<B: Backend> fmt::Debug for Allocator<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocator")
            .field("policy", &self.policy.to_string())
            .field("groups", &self.table.geometry.groups())
            .field("free", &self.free_clusters())
            .finish_non_exhaustive()
    }
}
