//! A policy as data: what fills each slot.

use super::slots::{
    Accept, Advance, Busy, Choose, CursorStart, DirBlocks, Exempt, FreePending, FreedMerge, FullGroups,
    GoalGroup, IndirectScan, Init, InodeGroup, Ladder, Lanes, Locks, Neighbour, Normalise, OrderIndex,
    Rotation, Scan, ScanToggle, Search, SlotLock, SlotStart, Slots, StreamGoal, Sweep, Visit, When, Zones,
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
    /// How many stream goals.
    pub slots: Slots,
    /// What guards them.
    pub slot_lock: SlotLock,
    /// Where they stand at open.
    pub slot_start: SlotStart,
    /// Where new files start inside their flex group.
    pub lanes: Lanes,
    /// Whether the goal's group is visited before the index is walked.
    pub goal_group: GoalGroup,
    /// When a file's next block is tried first.
    pub neighbour: Neighbour,
    /// What they carry.
    pub stream_goal: StreamGoal,
    /// Whether the indexes are used.
    pub scan: Scan,
    /// Which criteria.
    pub ladder: Ladder,
    /// What happens at a busy group.
    pub busy: Busy,
    /// How many group locks.
    pub locks: Locks,
    /// Structure of the indexes.
    pub order_index: OrderIndex,
    /// How the index walk reaches groups.
    pub visit: Visit,
    /// Order of sets and ranges.
    pub sweep: Sweep,
    /// How indirect-mapped inodes search.
    pub indirect_scan: IndirectScan,
    /// Full groups in the average index.
    pub full_groups: FullGroups,
    /// Index upkeep while optimised scanning is off.
    pub scan_toggle: ScanToggle,
    /// How pending frees are counted.
    pub free_pending: FreePending,
    /// How pending frees are kept.
    pub freed_merge: FreedMerge,
    /// When groups are loaded.
    pub init: Init,
    /// Which extent of a group.
    pub choose: Choose,
    /// What the cursor search leaves to the ladder.
    pub exempt: Exempt,
    /// Where inodes go.
    pub inode: InodeGroup,
    /// Where directory blocks go.
    pub dir_blocks: DirBlocks,
    /// When blocks are chosen.
    pub when: When,
    /// The cursor search, where `search` asks for it.
    pub cursor: Cursor,
    /// Run-time tunables that begin with another value than their default.
    pub tunables: ChosenTunables,
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
    /// Whether the true neighbour (group and offset) is tried before any cursor; otherwise the goal's group is
    /// replaced by the cursor's and its offset kept, as published.
    pub neighbour_first: bool,
    /// Whether a hit through an inode's cursor moves the CPU's cursor.
    pub inode_moves_cpu: bool,
    /// Length floor in clusters for [`Accept::Floor`].
    pub floor: u32,
    /// Groups that are passed over for being below the floor before any length is accepted.
    pub patience: u32,
    /// Where cursors stand at open.
    pub start: CursorStart,
    /// Bytes after which a cursor moves on, for [`Advance::PerBytes`].
    pub advance_bytes: u32,
    /// Whether an inode's cursor at group 0 counts as none, as published.
    pub zero_is_unset: bool,
}
