//! # `rralloc`: round robin as we would ship it
//!
//! **Idea.** A request that continues an extent is first tried right behind that extent. A cursor
//! is used only if the request continues no extent, or does not fit there. From the cursor on,
//! groups whose runs are shorter than a floor are skipped, up to a limited number of groups. The
//! ladder still places the blocks of directories and metadata, so cursors do not scatter them. A
//! file remembers the group where it last found space, and its next search starts there. That
//! search does not move the CPU's cursor, so files do not drag CPUs out of their zones. Busy groups
//! are skipped, and the group index leaves out full ones.
//!
//! **When it wins.** Allocation spreads over the device, so freed blocks rest before they are used
//! again. The length floor limits how much files are broken up for that.
//!
//! **When it loses.** On a rotating disk, against any policy that keeps a directory's files
//! together.
//!
//! **Parameters.** `floor` (64 clusters, or the length of the request if that is shorter) is the
//! shortest run accepted at first. `patience` (32 groups) is how many groups with shorter runs are
//! skipped. `zones=bounded` makes `min(CPUs, groups / 4)` zones. Other slots of this search are
//! `advance` (`on-fill`, `per-inode`, or `per-bytes` with `advance_bytes`) and `cursor_start`
//! (`fixed`, `seeded`, or `remembered`, with cursors that the caller kept since the last close).

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
