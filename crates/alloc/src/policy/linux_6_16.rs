//! # `linux-6.16`: the allocator of Linux 6.5 to 6.16
//!
//! **Idea.** The same ladder of criteria as `linux-6.18`, before it was made to scale. Groups are
//! kept in lists, by the order of their largest free chunk or their average free run. A search
//! picks one suitable group at a time. A busy group is waited for. One goal serves all large files.
//!
//! **When it wins.** Against no later allocator. It is the base that the scalability series is
//! measured from. With a single writer it is about as fast as `linux-6.18`.
//!
//! **When it loses.** Parallel writers chase the same group. They queue on its lock, and on the
//! lock around the goal, which freeing takes as well. Their files interleave block by block.
//! Placement depends on history, since a group goes to the tail of a list whenever its order
//! changes.
//!
//! **Parameters.** As `linux-6.18`. Each patch of the series that changes behaviour is one slot:
//! `busy=skip` (patch 1), `stream_goal=group-only` (2), `slot_lock=none` (4), `slots=hashed` (5),
//! `free_pending=atomic` (8), `freed_merge=before` (9), `full_groups=drop` (10),
//! `scan_toggle=prune` (11), `order_index=by-group` (15), `visit=scan` (16, needs 15),
//! `sweep=per-range` (17, needs 16). Patches 3, 6, 7 and 12 to 14 change no behaviour.
//! `indirect_scan=optimized` is a later change outside the series.

use super::composition::Policy;
use super::linux_6_18;
use super::slots::{
    Busy, FreePending, FreedMerge, FullGroups, IndirectScan, OrderIndex, ScanToggle, SlotLock, Slots,
    StreamGoal, Sweep, Visit,
};

/// The composition.
pub(super) const POLICY: Policy = Policy {
    preset: "linux-6.16",
    slots: Slots::One,
    slot_lock: SlotLock::Md,
    stream_goal: StreamGoal::Offset,
    busy: Busy::Wait,
    order_index: OrderIndex::Fifo,
    visit: Visit::Choose,
    sweep: Sweep::PerSet,
    indirect_scan: IndirectScan::Linear,
    full_groups: FullGroups::Keep,
    scan_toggle: ScanToggle::Freeze,
    free_pending: FreePending::Md,
    freed_merge: FreedMerge::After,
    ..linux_6_18::POLICY
};
