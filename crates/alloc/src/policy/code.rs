//! Decisions written by another crate: a search engine, a choice of groups, or a choice of the
//! extent in a group.
//!
//! An author implements one of three traits and adds a constructor to a policy
//! ([`with_search`](super::Policy::with_search), [`with_groups`](super::Policy::with_groups),
//! [`with_extents`](super::Policy::with_extents)). All other slots stay as they were in that
//! policy.
//!
//! The code sees figures of every group ([`GroupView`]), and the free runs of a group while the
//! group is locked. It answers with a group or a run. The mechanism locks the group, checks the
//! answer and claims, so no code can hand out what is not free. If the code finds nothing, the
//! mechanism searches all groups itself, unless the request takes only its goal. So no code can
//! cause a false "no space".
//!
//! The constructor is called once for each file system that is opened. All threads share the object
//! that it makes. Decisions are repeatable if they follow from the arguments, the object's state
//! and the seed alone.

use core::fmt;

use blockyard_disk::num::usize_from_u32;
use blockyard_disk::{ClusterOffset, Geometry, GroupNr};

use crate::buddy::Buddy;
use crate::criterion::Criterion;
use crate::request::BlockRequest;

/// The file system for which the code decides.
#[derive(Clone, Copy, Debug)]
pub struct Volume {
    /// Its geometry: groups, blocks and clusters.
    pub geometry: Geometry,
    /// CPU slots.
    pub cpus: u32,
    /// Seed of every random choice.
    pub seed: u64,
}

/// What is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// What the caller asked for.
    pub request: &'a BlockRequest,
    /// The group to begin with.
    pub goal: GroupNr,
    /// Where to begin in that group; `None` if anywhere.
    pub offset: Option<ClusterOffset>,
    /// Clusters to look for, at least 1: what was asked for, the window that the request grew into,
    /// or a preallocation for small files. Under best-available the number may be lower.
    pub clusters: u32,
    /// The criterion that the search uses now. The first ones are picky; the last takes any run.
    pub criterion: Criterion,
    /// Only groups with lower numbers than this may be used.
    pub groups: u32,
}

/// A group seen without its lock, so the figures may be slightly out of date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// Free clusters; 0 if the group is corrupt.
    pub free: u32,
    /// Free runs; 0 while the group was never loaded.
    pub fragments: u32,
    /// Order of the largest aligned free chunk; `None` if there is none, or the group was never
    /// loaded.
    pub largest_order: Option<u32>,
    /// Whether its bitmap was loaded since open.
    pub known: bool,
    /// Whether somebody holds its lock.
    pub busy: bool,
}

/// A run of clusters in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its first cluster.
    pub start: ClusterOffset,
    /// Its length.
    pub clusters: u32,
}

/// The free runs of a group that is locked.
pub struct FreeRuns<'a> {
    /// The group.
    pub group: GroupNr,
    buddy: &'a Buddy,
}

impl<'a> FreeRuns<'a> {
    pub(crate) fn new(group: GroupNr, buddy: &'a Buddy) -> Self {
        Self { group, buddy }
    }

    /// All runs, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = Run> {
        let mut at = 0;
        core::iter::from_fn(move || {
            let run = self.from(ClusterOffset::new(at))?;
            at = run.start.raw() + run.clusters;
            Some(run)
        })
    }

    /// The first free cluster at or after `at`, and all free clusters that follow it without a gap.
    /// `None` if nothing is free from `at` on.
    #[must_use]
    pub fn from(&self, at: ClusterOffset) -> Option<Run> {
        let start = self.buddy.next_free(at.raw())?;
        Some(Run { start: ClusterOffset::new(start), clusters: self.buddy.next_used(start) - start })
    }

    /// Free clusters of the group.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.buddy.free()
    }
}

/// Groups during the walk of a [`GroupChoice`].
pub trait Groups {
    /// How a group looks. A group that does not exist, or that the request may not use, looks full.
    fn look(&self, group: GroupNr) -> GroupView;

    /// Searches a group if it suits the criterion. Returns whether the search is over. These groups
    /// are passed over:
    ///
    /// - groups that do not exist, are full or do not suit;
    /// - with `busy=skip`, busy groups, except under the last criterion;
    /// - with `unloaded=pass`, groups whose bitmap would have to be read for the first time, under
    ///   the cheap criteria (power of two, goal-fast). The first group of a flex group is read.
    fn visit(&mut self, group: GroupNr) -> bool;
}

/// Chooses which groups are searched, in what order.
pub trait GroupChoice: Send + Sync {
    /// Visits groups, best first, until a visit says that the search is over, or until no other
    /// group is worth a visit under this criterion. Called for each criterion that the search
    /// reaches, except best-available.
    fn walk(&self, wish: &Wish<'_>, groups: &mut dyn Groups);

    /// Called with the group where space was found, so that a choice can remember it.
    fn found(&self, _wish: &Wish<'_>, _group: GroupNr) {}
}

/// Chooses which free run of a group is taken.
pub trait ExtentChoice: Send + Sync {
    /// Returns a free run or a part of one, or `None` if no run is good enough under this
    /// criterion. Called with the group locked.
    ///
    /// A run that is longer than the wish is cut. A run that is not free counts as `None`. After
    /// `None` under the last criterion, the first free run of the group is taken.
    fn choose(&self, wish: &Wish<'_>, runs: &FreeRuns<'_>) -> Option<Run>;
}

/// Chooses a run for a [`SearchEngine`].
pub type Pick<'a> = &'a mut dyn FnMut(&FreeRuns<'_>) -> Option<Run>;

/// The groups as a [`SearchEngine`] sees them.
pub trait Finder {
    /// How a group looks. A group that does not exist, or that the request may not use, looks full.
    fn look(&self, group: GroupNr) -> GroupView;

    /// Locks a group, shows its free runs to `pick` and takes the run that `pick` returns, cut to
    /// the length of the wish. Takes nothing if that run is not free. Returns whether the search is
    /// over.
    ///
    /// `pick` is not called once the search is over, nor for a group that does not exist, is full,
    /// is corrupt or cannot be read.
    fn take(&mut self, group: GroupNr, pick: Pick<'_>) -> bool;
}

/// Makes the whole search for blocks.
pub trait SearchEngine: Send + Sync {
    /// Takes one run. If it takes none, the mechanism goes through the groups from the wish's goal
    /// on, and takes the first free run of the first group that has one.
    fn search(&self, wish: &Wish<'_>, finder: &mut dyn Finder);
}

/// A constructor of code for a file system.
pub type Made<T> = fn(&Volume) -> Box<T>;

/// The code of a policy; empty in the policies of this crate.
#[derive(Clone, Copy)]
pub struct Code {
    pub(super) search: Option<Made<dyn SearchEngine>>,
    pub(super) groups: Option<Made<dyn GroupChoice>>,
    pub(super) extents: Option<Made<dyn ExtentChoice>>,
}

impl Code {
    /// No code.
    pub const NONE: Self = Self { search: None, groups: None, extents: None };

    /// Whether there is code for `search=code`.
    pub(super) fn searches(&self) -> bool {
        self.search.is_some() || self.groups.is_some()
    }

    /// Whether there is code for `choose=code`.
    pub(super) fn chooses(&self) -> bool {
        self.extents.is_some()
    }

    /// Makes the code for a file system that is being opened.
    pub(crate) fn open(&self, volume: &Volume) -> OpenCode {
        OpenCode {
            search: self.search.map(|make| make(volume)),
            groups: self.groups.map(|make| make(volume)),
            extents: self.extents.map(|make| make(volume)),
        }
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No addresses: they change from run to run, and saved measurements are found by this text.
        f.debug_struct("Code")
            .field("search", &self.search.is_some())
            .field("groups", &self.groups.is_some())
            .field("extents", &self.extents.is_some())
            .finish()
    }
}

impl PartialEq for Code {
    fn eq(&self, other: &Self) -> bool {
        let same_search = match (self.search, other.search) {
            (Some(one), Some(other)) => core::ptr::fn_addr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        let same_groups = match (self.groups, other.groups) {
            (Some(one), Some(other)) => core::ptr::fn_addr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        let same_extents = match (self.extents, other.extents) {
            (Some(one), Some(other)) => core::ptr::fn_addr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        same_search && same_groups && same_extents
    }
}

impl Eq for Code {}

/// The code of one file system.
pub(crate) struct OpenCode {
    pub(crate) search: Option<Box<dyn SearchEngine>>,
    pub(crate) groups: Option<Box<dyn GroupChoice>>,
    pub(crate) extents: Option<Box<dyn ExtentChoice>>,
}

/// Whether a run lies in the group, is not empty, and has only free clusters.
pub(crate) fn is_free(buddy: &Buddy, run: Run) -> bool {
    let (start, clusters) = (run.start.raw(), run.clusters);
    let end = usize_from_u32(start).saturating_add(usize_from_u32(clusters));
    let is_inside = clusters > 0 && end <= usize_from_u32(buddy.clusters());
    is_inside && buddy.is_free(start) && buddy.is_run(start, clusters)
}
