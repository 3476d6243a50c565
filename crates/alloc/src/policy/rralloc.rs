//! # `rralloc`: round robin as we would ship it
//!
//! **Idea.** The next block of a file first; a cursor only for a file's first extent or when that
//! block is taken. From the cursor, groups are passed over for a bounded number of tries while
//! their runs are below a length floor. Directories and metadata keep the ladder and their
//! clustering. Zones stay apart: a hit through a file's cursor never moves a CPU's. Busy groups are
//! passed over, full ones are not even met.
//!
//! **When it wins.** Spreading allocation (reuse of blocks comes late) without breaking files up.
//!
//! **When it loses.** On a rotating disk, against any policy that keeps a directory's files
//! together.
//!
//! **Parameters.** `floor` 64 clusters: the shortest run accepted at first; `patience` 32 groups:
//! how many groups with shorter runs are passed over; `zones=bounded`: `min(CPUs, groups / 4)`.
//! Switches of the same search: `advance` (`on-fill`, `per-inode`, or `per-bytes` with
//! `advance_bytes`), `cursor_start` (`fixed`, `remembered` over a close by the caller, `seeded`).

use super::composition::{Cursor, Policy};
use super::linux_6_18;
use super::slots::{Accept, Exempt, Neighbour, Rotation, Search, Zones};

/// The composition.
pub(super) const POLICY: Policy = Policy {
    preset: "rralloc",
    search: Search::Cursor,
    neighbour: Neighbour::Always,
    exempt: Exempt::Metadata,
    cursor: Cursor {
        rotation: Rotation::PerCpu,
        accept: Accept::Floor,
        zones: Zones::Bounded,
        sticky_inode: true,
        neighbour_first: true,
        inode_moves_cpu: false,
        floor: 64,
        patience: 32,
        ..linux_6_18::POLICY.cursor
    },
    ..linux_6_18::POLICY
};
