//! # `linux-6.18`: the allocator of Linux 6.17 and later
//!
//! **Idea.** A ladder of five criteria, from cheap and picky to slow and content with anything.
//! Groups are ordered by their largest free chunk or their average free run. Small files share a
//! preallocation for each CPU; each large file preallocates a window. Several remembered goals keep
//! parallel writers apart, and so does skipping busy groups.
//!
//! **When it wins.** Parallel appends to different files, and mixed sizes on a file system with
//! room.
//!
//! **When it loses.** New large files start at a remembered goal, not near their inode. The
//! criteria before the last two see almost only groups that were loaded. On nearly full file
//! systems, searches fall through to linear walks. On a device without seek times, there is no
//! linear prefix before the index by default. Then directory blocks are not packed if data is
//! written between them. On Linux, `cp -a` of 3,258 directories with 109 syncs in between leaves
//! the directory blocks in 121 runs. With a linear prefix (`--rotational on`) it leaves 15 runs. If
//! data waits for one sync at the end, it leaves 14 runs, with or without the prefix.
//!
//! **Parameters.** The tunables, as overrides: `mb_max_to_scan` (200 candidates), `mb_min_to_scan`
//! (10), `mb_order2_req` (2), `mb_stream_req` (16 blocks), `mb_group_prealloc` (512 blocks),
//! `mb_max_linear_groups` (4 groups on rotating devices, otherwise 0),
//! `mb_best_avail_max_trim_order` (3 orders), `mb_prefetch` (8 flex groups, or 32 groups without
//! flex groups), `mb_prefetch_limit` (4 times the default of `mb_prefetch`), `mb_stats` (0: off).

use super::code::Code;
use super::composition::{Cursor, Policy, Switches};
use super::slots::{
    Accept, Advance, Busy, Choose, ClosedFiles, CursorStart, DirBlocks, Era, Exempt, FirstGroups,
    FreePending, FreedMerge, FreshGroups, FullGroups, GoalBase, GoalColour, GoalGroup, GoalLogical,
    IndirectScan, Init, InodeGroup, Ladder, Lanes, LocalityTies, Locks, Longest, MergeGoal, Neighbour,
    Normalise, OrderIndex, Overflow, Room, Rotation, Scan, ScanToggle, Search, ShortRuns, ShortWindows,
    SlotLock, SlotStart, Slots, SmallFiles, SmallStart, SpaceRetries, StreamFiles, StreamGoal, StreamLearns,
    StripeRule, Sweep, TopFlag, Unloaded, Visit, When, Zones,
};
use crate::tunables::ChosenTunables;

/// The composition.
pub(super) const POLICY: Policy = Policy {
    preset: "linux-6.18",
    search: Search::Ladder,
    normalise: Normalise::Linux,
    window: 0,
    slots: Slots::Hashed,
    stream_goals: 0,
    slot_lock: SlotLock::None,
    slot_start: SlotStart::Zero,
    lanes: Lanes::None,
    overflow: Overflow::Index,
    room: Room::Any,
    small_start: SmallStart::Fit,
    goal_group: GoalGroup::Indexed,
    neighbour: Neighbour::Window,
    stream_goal: StreamGoal::GroupOnly,
    scan: Scan::Auto,
    ladder: Ladder::Linux,
    busy: Busy::Skip,
    locks: Locks::PerGroup,
    order_index: OrderIndex::ByGroup,
    visit: Visit::Scan,
    sweep: Sweep::PerRange,
    indirect_scan: IndirectScan::Optimized,
    full_groups: FullGroups::Drop,
    scan_toggle: ScanToggle::Prune,
    free_pending: FreePending::Atomic,
    freed_merge: FreedMerge::Before,
    init: Init::Config,
    choose: Choose::Linux,
    exempt: Exempt::Nothing,
    inode: InodeGroup::OrlovFlex,
    orlov: Switches {
        random_start: false,
        max_dirs_by_group: false,
        min_clusters_wrap: false,
        average_in_blocks: false,
        used_dirs_fault: false,
        debt: false,
    },
    top_flag: TopFlag::Stays,
    dir_blocks: DirBlocks::FlexFirst,
    goal_base: GoalBase::Flex,
    goal_colour: GoalColour::Undelayed,
    goal_logical: GoalLogical::Ignored,
    when: When::WriteBack,
    era: Era::Any,
    first_groups: FirstGroups::Avoid,
    fresh_groups: FreshGroups::Take,
    unloaded: Unloaded::Pass,
    stream_files: StreamFiles::Large,
    stream_learns: StreamLearns::Streams,
    small_files: SmallFiles::UpTo,
    closed_files: ClosedFiles::Exact,
    merge_goal: MergeGoal::Neighbour,
    locality_ties: LocalityTies::First,
    short_runs: ShortRuns::Pass,
    stripe_rule: StripeRule::Multiple,
    short_windows: ShortWindows::Nearest,
    space_retries: SpaceRetries::Two,
    longest: Longest::Group,
    cursor: Cursor {
        rotation: Rotation::None,
        accept: Accept::Any,
        advance: Advance::OnFill,
        zones: Zones::Cpus,
        sticky_inode: true,
        neighbour_first: true,
        inode_moves_cpu: true,
        floor: 0,
        patience: 0,
        start: CursorStart::Fixed,
        advance_bytes: 0,
        zero_is_unset: false,
    },
    tunables: ChosenTunables::DEFAULTS,
    code: Code::NONE,
};
