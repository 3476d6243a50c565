//! Lanes: each CPU slot starts new files in a group of its own inside the flex group of their inode
//! (`lanes=cpu`).
//!
//! Without lanes all new files of a directory start in the same group, the goal group of their
//! inodes. Writers on different CPUs then wait for that group's lock until their files are long
//! enough to be streams. A lane is in the inode's flex group, so the file stays near its inode and
//! near the other files of its directory. If there are more slots than a flex group has lanes, the
//! remaining slots use the flex groups after it. Lanes leave the first group of a flex group to
//! directories and metadata, as the inode's own goal does. Slot 0 starts where the inode's own goal
//! is.

use blockyard_disk::num::{u32_from_u64, u64_from_u32};
use blockyard_disk::{Geometry, GroupNr};
use blockyard_sync::CpuSlot;

/// Flex groups of fewer groups than this have no lanes and keep no group for metadata.
const FLEX_MIN: u32 = 4;

/// The group where a file near `goal` starts when it is written on `cpu`. This is `goal` itself if
/// flex groups are too small for lanes, or if `goal` lies in a short last flex group, which has no
/// lanes.
pub(crate) fn lane(geometry: &Geometry, goal: GroupNr, cpu: CpuSlot) -> GroupNr {
    let flex = geometry.flex_size();
    let whole_flex_groups = geometry.groups() / flex;
    let home = goal.raw() / flex;
    if flex < FLEX_MIN || home >= whole_flex_groups {
        return goal;
    }
    debug_assert!(goal.raw() < geometry.groups(), "goal group {goal} of {}", geometry.groups());
    let lanes = flex - 1;
    let flex_group = (u64_from_u32(home) + u64_from_u32(cpu.raw() / lanes)) % u64_from_u32(whole_flex_groups);
    GroupNr::new(u32_from_u64(flex_group) * flex + 1 + cpu.raw() % lanes)
}

/// The next group of the lane that `group` belongs to: the same position in a flex group further
/// on.
///
/// Near one goal, the lanes of all `cpus` slots begin in one flex group, or in several consecutive
/// ones if there are many slots. A lane advances by that number of flex groups, to stay clear of
/// the lanes of the other slots. After the last whole flex group it wraps. Repeated calls visit
/// every group of the lane once before they return to the first.
///
/// Returns `group` itself if flex groups have no lanes, if `group` lies in a short last flex group,
/// or if the lane has no other group. For the first group of a flex group, which is in no lane,
/// returns the first group of a flex group further on.
pub(crate) fn next_of_lane(geometry: &Geometry, group: GroupNr, cpus: u32) -> GroupNr {
    let flex = geometry.flex_size();
    let whole_flex_groups = geometry.groups() / flex;
    let home = group.raw() / flex;
    if flex < FLEX_MIN || home >= whole_flex_groups {
        return group;
    }
    // Slots that have no lane in the first flex group begin in the flex groups after it. In all,
    // slots begin in `stride` flex groups.
    let stride = cpus.div_ceil(flex - 1).clamp(1, whole_flex_groups);
    let next = home + stride;
    let next = if next < whole_flex_groups { next } else { home % stride };
    GroupNr::new(next * flex + group.raw() % flex)
}

/// The first group from `group` on that is not kept for metadata; `group` itself if there is none.
pub(crate) fn past_metadata(group: u32, flex: u32, groups: u32) -> u32 {
    debug_assert!(group < groups, "group {group} of {groups}");
    let left_alone = flex >= FLEX_MIN && group.is_multiple_of(flex) && group + 1 < groups;
    if left_alone { group + 1 } else { group }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryBitmaps;

    #[test]
    fn slots_part_inside_the_flex_group_and_leave_first_groups_alone() {
        let geometry = MemoryBitmaps::plain_geometry(40, 4);
        let lanes = |goal: u32, cpus: core::ops::Range<u32>| -> Vec<u32> {
            cpus.map(|cpu| lane(&geometry, GroupNr::new(goal), CpuSlot::new(cpu)).raw()).collect()
        };
        assert_eq!(lanes(1, 0..15), (1..16).collect::<Vec<_>>());
        assert_eq!(lanes(1, 15..18), [17, 18, 19], "the next flex group");
        assert_eq!(lanes(20, 0..3), [17, 18, 19]);
        assert_eq!(lanes(20, 15..17), [1, 2], "past the end it wraps around");
        assert_eq!(lanes(33, 0..3), [33; 3], "no lanes in a short last flex group");
        let plain = MemoryBitmaps::plain_geometry(40, 0);
        assert_eq!(lane(&plain, GroupNr::new(7), CpuSlot::new(3)).raw(), 7, "no flex groups");
    }

    #[test]
    fn lanes_go_on_in_flex_groups_of_their_own() {
        let geometry = MemoryBitmaps::plain_geometry(100, 4);
        let walk = |group: u32, cpus: u32| -> Vec<u32> {
            let next = |group: &GroupNr| Some(next_of_lane(&geometry, *group, cpus));
            core::iter::successors(Some(GroupNr::new(group)), next).take(7).map(GroupNr::raw).collect()
        };
        assert_eq!(walk(2, 15), [2, 18, 34, 50, 66, 82, 2]);
        assert_eq!(walk(2, 16), [2, 34, 66, 2, 34, 66, 2], "slot 15 has the flex groups between");
        assert_eq!(walk(17, 16), [17, 49, 81, 17, 49, 81, 17]);
        assert_eq!(walk(2, 1000)[..2], [2, 2], "more slots than flex groups have lanes for");
        assert_eq!(walk(98, 2)[..2], [98, 98], "a short last flex group has none");
    }

    #[test]
    fn zones_do_not_begin_in_groups_left_to_metadata() {
        assert_eq!([0, 8, 16, 39].map(|group| past_metadata(group, 16, 40)), [1, 8, 17, 39]);
        assert_eq!(past_metadata(16, 1, 40), 16);
        assert_eq!(past_metadata(32, 16, 33), 32, "there is none after it");
    }
}
