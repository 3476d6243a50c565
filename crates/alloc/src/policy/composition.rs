//! A policy as data: what fills each slot.

use super::code::{Code, ExtentChoice, GroupChoice, Made, SearchEngine};
use super::slots::{
    Accept, Advance, Busy, Choose, ClosedFiles, CursorStart, DirBlocks, Era, Exempt, FirstGroups,
    FreePending, FreedMerge, FreshGroups, FullGroups, GoalBase, GoalColour, GoalGroup, GoalLogical,
    IndirectScan, Init, InodeGroup, Ladder, Lanes, LocalityTies, Locks, Longest, MergeGoal, Neighbour,
    Normalise, OrderIndex, Overflow, Room, Rotation, Scan, ScanToggle, Search, ShortRuns, ShortWindows,
    SlotLock, SlotStart, Slots, SmallFiles, SmallStart, SpaceRetries, StreamFiles, StreamGoal, StreamLearns,
    StripeRule, Sweep, TopFlag, Unloaded, Visit, When, Zones,
};
use crate::tunables::ChosenTunables;

/// A composition of decisions. Make one with [`Policy::parse`] or by changing a preset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Name of the preset it started from.
    pub preset: &'static str,
    /// Which engine looks for blocks.
    pub search: Search,
    /// How requests grow.
    pub normalise: Normalise,
    /// Clusters of a window under [`Normalise::Window`].
    pub window: u32,
    /// How many stream goals there are.
    pub slots: Slots,
    /// How many stream goals [`Slots::Hashed`] has; 0: as many as Linux has.
    pub stream_goals: u32,
    /// What guards the stream goals.
    pub slot_lock: SlotLock,
    /// Where the stream goals stand at open.
    pub slot_start: SlotStart,
    /// Where new files start inside their flex group.
    pub lanes: Lanes,
    /// Where data goes when the group of its goal is full or busy.
    pub overflow: Overflow,
    /// The free run in which data of unknown final size begins.
    pub room: Room,
    /// Where a small file begins.
    pub small_start: SmallStart,
    /// Whether the goal's group is visited before the index is walked.
    pub goal_group: GoalGroup,
    /// When the block right after the file's preceding block is tried first.
    pub neighbour: Neighbour,
    /// Whether a stream goal is only a group, or also an offset in it.
    pub stream_goal: StreamGoal,
    /// Whether the indexes are used.
    pub scan: Scan,
    /// Which criteria are tried, in what order.
    pub ladder: Ladder,
    /// What happens at a busy group.
    pub busy: Busy,
    /// How many group locks there are.
    pub locks: Locks,
    /// Structure of the indexes.
    pub order_index: OrderIndex,
    /// How the index walk reaches groups.
    pub visit: Visit,
    /// In which order a walk over an index goes through sets and ranges of groups.
    pub sweep: Sweep,
    /// How indirect-mapped inodes search.
    pub indirect_scan: IndirectScan,
    /// Whether full groups stay in the average-fragment index.
    pub full_groups: FullGroups,
    /// Upkeep of the largest-order index while optimised scanning is off.
    pub scan_toggle: ScanToggle,
    /// How pending frees are counted.
    pub free_pending: FreePending,
    /// How pending frees are kept.
    pub freed_merge: FreedMerge,
    /// When groups are loaded.
    pub init: Init,
    /// Which free extent of a group is taken.
    pub choose: Choose,
    /// What the cursor search leaves to the ladder.
    pub exempt: Exempt,
    /// Which group a new inode goes to.
    pub inode: InodeGroup,
    /// Which older rules of Orlov's spreading are on.
    pub orlov: Switches,
    /// Whether new directories inherit a top directory's flag.
    pub top_flag: TopFlag,
    /// Where directory blocks go.
    pub dir_blocks: DirBlocks,
    /// Where the first block of an inode is searched for.
    pub goal_base: GoalBase,
    /// When the writer's process decides in which sixteenth of a group its search begins.
    pub goal_colour: GoalColour,
    /// Whether the logical block number moves a goal.
    pub goal_logical: GoalLogical,
    /// When blocks are chosen.
    pub when: When,
    /// Which images are served.
    pub era: Era,
    /// Whether the power-of-two criterion lets data use the first groups of flex groups.
    pub first_groups: FirstGroups,
    /// Whether the power-of-two criterion uses groups whose bitmap was never written.
    pub fresh_groups: FreshGroups,
    /// What the cheap criteria do with groups that were not read yet.
    pub unloaded: Unloaded,
    /// Which files' searches begin at the stream goal.
    pub stream_files: StreamFiles,
    /// What moves the stream goal.
    pub stream_learns: StreamLearns,
    /// Which files are small.
    pub small_files: SmallFiles,
    /// How the last blocks of a closed file are requested.
    pub closed_files: ClosedFiles,
    /// Where a request is tried first if its window touches the file's blocks.
    pub merge_goal: MergeGoal,
    /// Which of two equally near preallocations wins.
    pub locality_ties: LocalityTies,
    /// What the cheap criteria do with runs that are too short.
    pub short_runs: ShortRuns,
    /// Which requests are aligned to the stripe.
    pub stripe_rule: StripeRule,
    /// Where a preallocation begins if it is shorter than its window.
    pub short_windows: ShortWindows,
    /// How often a search is repeated after preallocations were dropped.
    pub space_retries: SpaceRetries,
    /// The most clusters of a request.
    pub longest: Longest,
    /// The decisions of the cursor search; without effect unless `search` selects it.
    pub cursor: Cursor,
    /// Tunables whose initial value is not the default.
    pub tunables: ChosenTunables,
    /// Decisions of another crate, for `search=code` and `choose=code`.
    pub code: Code,
}

impl Policy {
    /// The same decisions under another name, for comparisons in the lab.
    #[must_use]
    pub const fn named(self, name: &'static str) -> Self {
        Self { preset: name, ..self }
    }

    /// The policy with a search engine that `make` makes (`search=code`).
    #[must_use]
    pub const fn with_search(mut self, make: Made<dyn SearchEngine>) -> Self {
        self.search = Search::Code;
        self.code.search = Some(make);
        self
    }

    /// The policy with the ladder, and a choice of groups that `make` makes (`search=code`).
    #[must_use]
    pub const fn with_groups(mut self, make: Made<dyn GroupChoice>) -> Self {
        self.search = Search::Code;
        self.code.groups = Some(make);
        self
    }

    /// The policy with a choice of extents that `make` makes (`choose=code`).
    #[must_use]
    pub const fn with_extents(mut self, make: Made<dyn ExtentChoice>) -> Self {
        self.choose = Choose::Code;
        self.code.extents = Some(make);
        self
    }
}

/// Older rules of Orlov's spreading, one flag for each. With all flags off, the spreading is that
/// of Linux 6.18.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// For a directory under a top directory, the search starts at a random flex group, not at the
    /// one that follows from the hash of the directory's name (2.6.30).
    pub random_start: bool,
    /// The bound on directories of a flex group uses a sixteenth of the inodes of one *group*, not
    /// of the flex group (before v6.1).
    pub max_dirs_by_group: bool,
    /// A negative lower bound of free clusters is compared as unsigned, so that every flex group
    /// fails it (before v6.12).
    pub min_clusters_wrap: bool,
    /// The average of free clusters is computed in blocks (before v5.14). This matters only with
    /// bigalloc.
    pub average_in_blocks: bool,
    /// Creating or deleting a directory changes the count of free inodes of its flex group, where
    /// it should change the count of directories (before 2.6.32).
    pub used_dirs_fault: bool,
    /// Groups that got many directories and few files lately are passed over (ext2; only where
    /// directories are placed as by `orlov-ext3`).
    pub debt: bool,
}

impl Switches {
    /// What `inode=orlov-2009` switches on.
    pub const OF_2009: Self = Self {
        random_start: true,
        max_dirs_by_group: true,
        min_clusters_wrap: true,
        average_in_blocks: true,
        used_dirs_fault: false,
        debt: false,
    };

    /// The switches that are on in `self`, in `other`, or in both.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self {
            random_start: self.random_start || other.random_start,
            max_dirs_by_group: self.max_dirs_by_group || other.max_dirs_by_group,
            min_clusters_wrap: self.min_clusters_wrap || other.min_clusters_wrap,
            average_in_blocks: self.average_in_blocks || other.average_in_blocks,
            used_dirs_fault: self.used_dirs_fault || other.used_dirs_fault,
            debt: self.debt || other.debt,
        }
    }
}

/// Decisions of the cursor search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// How new files are spread.
    pub rotation: Rotation,
    /// Which extents are taken.
    pub accept: Accept,
    /// When a cursor moves.
    pub advance: Advance,
    /// Number of zones.
    pub zones: Zones,
    /// Whether an inode remembers its group.
    pub sticky_inode: bool,
    /// Whether an exact goal is tried in its own group before a cursor is used. Otherwise the
    /// cursor's group replaces the goal's group, and the exact goal is tried there at the goal's
    /// offset, as in the published versions of rralloc.
    pub neighbour_first: bool,
    /// Whether a search that began at an inode's cursor and found space moves the CPU's cursor too.
    pub inode_moves_cpu: bool,
    /// Under [`Accept::Floor`], the shortest run that is accepted at first, in clusters.
    pub floor: u32,
    /// How many groups without a run of the floor's length are passed over before any length is
    /// accepted.
    pub patience: u32,
    /// Where cursors stand at open.
    pub start: CursorStart,
    /// Bytes after which a cursor moves on, for [`Advance::PerBytes`].
    pub advance_bytes: u32,
    /// Whether an inode's cursor at group 0 counts as none, as in the published versions.
    pub zero_is_unset: bool,
}
