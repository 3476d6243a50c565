//! The slots of a policy and what may fill them.
//!
//! Every filling is a value of a small enum; the mechanism matches on it where it decides. Names
//! and values are those of overrides on the command line (`slots=one`), so they are part of the
//! interface.

/// Defines a slot: an enum whose values have names.
macro_rules! slot {
    ($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $value_doc:literal])+ $value:ident = $text:literal,)+ }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[doc = $value_doc])+ $value,)+
        }

        impl $name {
            /// Every filling, in the order of its definition.
            pub const ALL: &[Self] = &[$(Self::$value),+];

            /// The name in overrides.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$value => $text),+ }
            }

            /// What the slot decides, as its documentation says.
            pub const ABOUT: &str = concat!($($doc),+);

            /// What the filling means, as its documentation says.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self { $(Self::$value => concat!($($value_doc),+)),+ }
            }

            /// The filling of this name.
            #[must_use]
            pub fn by_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.name() == name)
            }
        }
    };
}

slot! {
    /// `search`: which engine looks for blocks.
    Search {
        /// The ladder of criteria over groups. The slots below apply, except those of the cursor
        /// search.
        Ladder = "ladder",
        /// Round robin by group from a cursor on (rralloc); `accept` says which run is taken.
        Cursor = "cursor",
        /// Inside a window that the file has for itself, the next free block from the goal on
        /// (ext3). The slots of the ladder, of stream goals and of cursors do not apply.
        Windows = "windows",
        /// As code of another crate says: an engine, or the ladder with groups that the code
        /// chooses.
        Code = "code",
    }
}
slot! {
    /// `normalise`: how a request grows into a preallocation.
    Normalise {
        /// Linux's table of windows by predicted file size.
        Linux = "linux",
        /// Aligned windows of `window` clusters, whatever the size of the file; small files as
        /// under linux.
        Window = "window",
        /// As linux for streams; requests of small files do not grow.
        Streams = "streams",
        /// Not at all.
        Exact = "exact",
    }
}
slot! {
    /// `slots`: how many stream goals there are.
    Slots {
        /// One for the file system.
        One = "one",
        /// `min(CPUs, ceil(groups / 4))`, or as many as `stream_goals` says, chosen by inode
        /// number.
        Hashed = "hashed",
        /// One for each CPU, chosen by inode number, however few groups there are.
        Cpus = "cpus",
        /// None: a stream starts at the group where its inode last found space, group 0 at first
        /// (rralloc V3's regular policy).
        Inode = "inode",
        /// None: a stream starts at the goal of its request, as other files do.
        None = "none",
    }
}
slot! {
    /// `slot_lock`: what guards the stream goals.
    SlotLock {
        /// The file-system-wide lock that freeing also takes.
        Md = "md",
        /// Nothing: loads with acquire order, stores with release order (the earlier form of the
        /// patch).
        AcquireRelease = "acquire-release",
        /// Nothing: plain loads and stores.
        None = "none",
    }
}
slot! {
    /// `stream_goal`: what a stream goal carries.
    StreamGoal {
        /// Group and offset. If a search that tried an exact goal is repeated, the repetition tries
        /// the stream goal as its exact goal.
        Offset = "offset",
        /// The group only.
        GroupOnly = "group-only",
    }
}
slot! {
    /// `slot_start`: where the stream goals stand at open.
    SlotStart {
        /// All at group 0.
        Zero = "zero",
        /// Spread evenly over the file system.
        Zones = "zones",
    }
}
slot! {
    /// `lanes`: where a file's first data starts inside the flex group of its goal.
    Lanes {
        /// At the goal.
        None = "none",
        /// In the group of the writer's CPU slot. Slots share a group only if there are too few
        /// groups.
        Cpu = "cpu",
    }
}
slot! {
    /// `overflow`: where data goes when the group of its goal has no room or is busy.
    Overflow {
        /// Where the index finds room, among the groups that were ever loaded.
        Index = "index",
        /// To the groups of the same lane in other flex groups first (needs goal_group=first or
        /// all). Data that continues a file starts in the group of the block before it.
        Lane = "lane",
    }
}
slot! {
    /// `room`: the free run, near the goal, in which data of unknown final size begins (fallocate).
    Room {
        /// Any that holds the request.
        Any = "any",
        /// The first of at least 512 clusters, while there is one (needs goal_group=first or all).
        Run = "run",
    }
}
slot! {
    /// `small_start`: where a small file begins near the goal.
    SmallStart {
        /// Where the search for any other request of its length would put it.
        Fit = "fit",
        /// In the first run of at least 2048 clusters, while a group near the goal has an aligned
        /// chunk of that length (needs goal_group=first or all, and at least 16 groups).
        Run = "run",
    }
}
slot! {
    /// `goal_group`: how an index walk treats the group of its goal.
    GoalGroup {
        /// Like any other: visited at its position in the index, if it was ever loaded.
        Indexed = "indexed",
        /// Visited first for data, and loaded for that.
        First = "first",
        /// As first, and also for directories and metadata, so that their single blocks lie
        /// together and not in the most fragmented groups.
        All = "all",
    }
}
slot! {
    /// `neighbour`: when the block right after the file's preceding block is tried first.
    Neighbour {
        /// When normalisation made a window that touches the file's blocks.
        Window = "window",
        /// For every data request that continues an extent.
        Always = "always",
    }
}
slot! {
    /// `scan`: whether the group indexes are used.
    Scan {
        /// When the file system has at least 16 groups, as Linux decides at mount.
        Auto = "auto",
        /// Never: groups are visited one after the other.
        Linear = "linear",
        /// Always.
        Optimized = "optimized",
    }
}
slot! {
    /// `ladder`: which criteria are tried, in what order.
    Ladder {
        /// Power of two, goal length fast, best available, goal length slow, any.
        Linux = "linux",
        /// Any free extent, group after group.
        AnyOnly = "any-only",
        /// Groups with enough free clusters for the whole length, then any.
        Slow = "slow",
        /// As linux, without best available (before Linux 6.5).
        FourSteps = "four",
    }
}
slot! {
    /// `busy`: what happens at a group whose lock is held.
    Busy {
        /// Wait for it.
        Wait = "wait",
        /// Pass it over until the last criterion.
        Skip = "skip",
    }
}
slot! {
    /// `locks`: how many group locks there are.
    Locks {
        /// One for each group.
        PerGroup = "group",
        /// 128, shared by groups with equal numbers modulo 128.
        Hashed = "hashed",
    }
}
slot! {
    /// `order_index`: the structure of the group indexes.
    OrderIndex {
        /// Lists in order of insertion, each under a reader-writer lock.
        Fifo = "fifo",
        /// Sets ordered by group number, read without a lock.
        ByGroup = "by-group",
    }
}
slot! {
    /// `visit`: how the index walk reaches a group.
    Visit {
        /// Pick one group and visit it; each pick goes through the index anew.
        Choose = "choose",
        /// Visit each group of the index while walking over it.
        Scan = "scan",
    }
}
slot! {
    /// `sweep`: in which order a walk over an index goes through sets and ranges of groups.
    Sweep {
        /// Each set from the goal on, with wrap-around, before the set of the next order.
        PerSet = "per-set",
        /// All orders for the groups from the goal to the end, then all orders for those before it.
        PerRange = "per-range",
    }
}
slot! {
    /// `indirect_scan`: how inodes with indirect maps search.
    IndirectScan {
        /// Always linearly.
        Linear = "linear",
        /// Like all other inodes.
        Optimized = "optimized",
    }
}
slot! {
    /// `full_groups`: whether a full group stays in the average-fragment index.
    FullGroups {
        /// It stays where it was.
        Keep = "keep",
        /// It leaves the index.
        Drop = "drop",
    }
}
slot! {
    /// `scan_toggle`: upkeep of the largest-order index while optimised scanning is switched off.
    ScanToggle {
        /// None: the index is not updated.
        Freeze = "freeze",
        /// A group leaves the index when its order changes.
        Prune = "prune",
    }
}
slot! {
    /// `free_pending`: how freed clusters that wait for a commit are counted.
    FreePending {
        /// Under the file-system-wide lock.
        Md = "md",
        /// By an atomic counter.
        Atomic = "atomic",
    }
}
slot! {
    /// `freed_merge`: when a freed extent is merged with its neighbours.
    FreedMerge {
        /// The extent is inserted first, then merged with both sides; each step under the
        /// file-system-wide lock.
        After = "after",
        /// If the extent touches the neighbour that was inserted later, it is merged with that one.
        /// Otherwise it is inserted as it is.
        Before = "before",
        /// As before, but the extent is kept in its group. A commit finds it through a set of
        /// groups, without a file-system-wide lock.
        ByGroup = "by-group",
    }
}
slot! {
    /// `init`: when groups are loaded.
    Init {
        /// As the configuration says.
        Config = "config",
        /// On demand, with prefetch.
        Lazy = "lazy",
        /// All at open.
        AtOpen = "open",
    }
}
slot! {
    /// `choose`: which free extent of a group is taken.
    Choose {
        /// Linux: buddy chunks for powers of two, else the best of the candidates offered.
        Linux = "linux",
        /// The first run that is long enough (for criterion any: the first run).
        First = "first",
        /// The group's shortest run that is long enough. If no run is long enough: under criterion
        /// any the longest run, otherwise none.
        Best = "best",
        /// The one that code of another crate chooses.
        Code = "code",
    }
}
slot! {
    /// `rotation`: how the cursor search starts new files.
    Rotation {
        /// No rotation: only the inode's own cursor.
        None = "none",
        /// One cursor for the file system, under a lock.
        Global = "global",
        /// One cursor for each CPU, each starting in its zone.
        PerCpu = "per-cpu",
    }
}
slot! {
    /// `accept`: which extents the cursor search takes.
    Accept {
        /// The first free run of any length.
        Any = "any",
        /// A run of at least `floor` clusters, or as long as the request if that is shorter. After
        /// `patience` groups without such a run, any run.
        Floor = "floor",
        /// What the ladder finds from the cursor's group.
        Ladder = "ladder",
    }
}
slot! {
    /// `advance`: when a cursor moves on.
    Advance {
        /// It moves to the group where space was found. So it stays until that group has no more
        /// room.
        OnFill = "on-fill",
        /// It moves to the group after the one where space was found, unless the search began at an
        /// inode's own cursor. So it mostly moves once for each new inode.
        PerInode = "per-inode",
        /// As on-fill, but after every `advance_bytes` bytes found through it, it moves one group
        /// further.
        PerBytes = "per-bytes",
    }
}
slot! {
    /// `cursor_start`: where the cursors stand when a file system is opened.
    CursorStart {
        /// At the start of their zones.
        Fixed = "fixed",
        /// Where they stood at the last close, if the caller kept that; else at the start of their
        /// zones.
        Remembered = "remembered",
        /// At places drawn from the seed.
        Seeded = "seeded",
    }
}
slot! {
    /// `zones`: how many zones the per-CPU cursors start in.
    Zones {
        /// One for each CPU slot.
        Cpus = "cpus",
        /// `min(CPUs, groups / 4)`.
        Bounded = "bounded",
    }
}
slot! {
    /// `exempt`: what is searched for by the ladder, not from a cursor.
    Exempt {
        /// Nothing.
        Nothing = "nothing",
        /// Directory blocks.
        Directories = "directories",
        /// Directory and metadata blocks.
        Metadata = "metadata",
    }
}
slot! {
    /// `inode`: which group a new inode goes to.
    InodeGroup {
        /// Orlov's spreading over flex groups (today's ext4).
        OrlovFlex = "orlov-flex",
        /// As orlov-flex with what differed in 2009: random_start, max_dirs_by_group,
        /// min_clusters_wrap, average_in_blocks.
        Orlov2009 = "orlov-2009",
        /// Orlov's spreading over block groups (ext3): directories of the root in random groups
        /// among those with the fewest directories, files with their directory.
        OrlovExt3 = "orlov-ext3",
        /// Among the groups with at least average free inodes, a directory goes to the one with the
        /// most free blocks; files go with their directory (ext3 with oldalloc).
        OldAlloc = "oldalloc",
        /// Everything in the parent's flex group while that has room, then in the one before it, or
        /// else in the lowest that has room (ext4 of 2.6.27 and 2.6.28). May report that no inode
        /// is free although some are.
        Flex2008 = "flex-2008",
        /// As flex-2008. If that finds no group, as ext3 places files (2.6.29).
        Flex2008Fallback = "flex-2008-fallback",
        /// In the parent's group, or else in the next group that has a free inode.
        Parent = "parent",
    }
}
slot! {
    /// `top_flag`: what happens to the flag of a top directory (chattr +T) in directories created
    /// below it.
    TopFlag {
        /// Only the directory itself has it.
        Stays = "stays",
        /// The new directories inherit it, so their own subdirectories are spread too (until
        /// 2.6.28).
        Inherited = "inherited",
    }
}
slot! {
    /// `dir_blocks`: where directory blocks go.
    DirBlocks {
        /// In the first group of the flex group.
        FlexFirst = "flex-first",
        /// With the data.
        WithData = "with-data",
    }
}
slot! {
    /// `goal_base`: where the first block of an inode is searched for.
    GoalBase {
        /// In its flex group: the first group for directories (see dir_blocks), the second for
        /// data. With flex groups of fewer than 4 groups, in the inode's own group.
        Flex = "flex",
        /// In the inode's own group.
        OwnGroup = "own-group",
    }
}
slot! {
    /// `goal_colour`: when the goal moves to one of the group's sixteenths, chosen by the number of
    /// the writing process.
    GoalColour {
        /// When blocks are chosen at the write.
        Undelayed = "undelayed",
        /// Always. With delayed allocation, that process is the write-back thread (until 2.6.29).
        Always = "always",
    }
}
slot! {
    /// `goal_logical`: whether a block's number in its file moves the goal of an inode without
    /// blocks nearby.
    GoalLogical {
        /// It does not.
        Ignored = "ignored",
        /// It is added (until 2.6.38).
        Added = "added",
    }
}
slot! {
    /// `when`: when blocks are chosen.
    When {
        /// At write-back (delayed allocation).
        WriteBack = "write-back",
        /// At the write.
        Write = "write",
    }
}
slot! {
    /// `era`: which images are served, by their features.
    Era {
        /// Images of any time.
        Any = "any",
        /// Those that ext3 could have: block maps, no flex groups.
        Ext3 = "ext3",
        /// Those that ext4 could have in 2008 and 2009: no clusters, no checksums of metadata,
        /// nothing later.
        Ext4Of2008 = "ext4-2008",
    }
}
slot! {
    /// `first_groups`: whether data requests for a power of two may use the first group of a flex
    /// group.
    FirstGroups {
        /// Only under later criteria: the group is left to directories and metadata.
        Avoid = "avoid",
        /// Like any other group (before 2.6.30).
        Use = "use",
    }
}
slot! {
    /// `fresh_groups`: whether powers of two are served from groups whose bitmap was never written.
    FreshGroups {
        /// Like any other group.
        Take = "take",
        /// Only under later criteria, so groups in use fill up first (2008).
        Pass = "pass",
    }
}
slot! {
    /// `unloaded`: what the cheap criteria do with a group whose bitmap would have to be read.
    Unloaded {
        /// Pass it over, unless it is the first of a flex group.
        Pass = "pass",
        /// Read it; nothing is read ahead (2008).
        Load = "load",
    }
}
slot! {
    /// `stream_files`: whose searches begin at the stream goal.
    StreamFiles {
        /// Those of large files.
        Large = "large",
        /// Those of small files, by a fault of 2.6.28 to 2.6.31. Large files begin at their inode.
        Small = "small",
    }
}
slot! {
    /// `stream_learns`: which requests move the stream goal to where they found space.
    StreamLearns {
        /// Those of streams.
        Streams = "streams",
        /// Those of all data (2008).
        AllData = "all-data",
    }
}
slot! {
    /// `small_files`: which files are small.
    SmallFiles {
        /// Up to mb_stream_req blocks; a partial block counts.
        UpTo = "up-to",
        /// Below mb_stream_req blocks; a partial block of the file does not count (2008).
        Below = "below",
    }
}
slot! {
    /// `closed_files`: how the last blocks of a file without open writers are requested.
    ClosedFiles {
        /// With exactly their length, unless the contention counter is above 2.
        Exact = "exact",
        /// With a window, like any other blocks (2008).
        Window = "window",
    }
}
slot! {
    /// `merge_goal`: where a request is tried if its window touches the file's blocks.
    MergeGoal {
        /// Right beside those blocks.
        Neighbour = "neighbour",
        /// At the goal of the request, with the length of the window (2008).
        Request = "request",
    }
}
slot! {
    /// `locality_ties`: which of two preallocations of small files that are equally near is taken.
    LocalityTies {
        /// The one found first.
        First = "first",
        /// The one found last (2008).
        Last = "last",
    }
}
slot! {
    /// `short_runs`: what the cheap criteria do with runs of a group that are too short.
    ShortRuns {
        /// Pass them over.
        Pass = "pass",
        /// Count them as candidates, so that a search ends earlier (2008).
        Offer = "offer",
    }
}
slot! {
    /// `stripe_rule`: which requests are aligned to the stripe of the device.
    StripeRule {
        /// Those of whole stripes.
        Multiple = "multiple",
        /// Those of exactly one stripe. A preallocation for small files is one stripe long (2008).
        Exact = "exact",
    }
}
slot! {
    /// `short_windows`: where a preallocation begins if it is shorter than its window.
    ShortWindows {
        /// Such that it ends where its window ends, if it then covers the request. Otherwise at the
        /// window's start, if it then covers the request. Otherwise at the request.
        Nearest = "nearest",
        /// Some blocks before the request, as many as the least of three numbers: the request's
        /// distance from the window's start, the blocks found beyond the request's length, and the
        /// request's block number modulo the length found (2008).
        Least = "least",
    }
}
slot! {
    /// `space_retries`: how often a search is repeated after preallocations were dropped.
    SpaceRetries {
        /// At most twice.
        Two = "two",
        /// As long as dropping them gives back clusters (2008).
        Unlimited = "unlimited",
    }
}
slot! {
    /// `longest`: the most clusters that one request may ask for.
    Longest {
        /// As many as a group has.
        Group = "group",
        /// Ten fewer than a group has (2008).
        GroupLess10 = "group-less-10",
    }
}
