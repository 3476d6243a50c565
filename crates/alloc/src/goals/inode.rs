//! Goals that follow from the inode and its extents: pure arithmetic for callers that build
//! requests.

use blockyard_disk::num::u64_from_u32;
use blockyard_disk::{BlockNr, Geometry, GroupNr, LogicalBlock};

use crate::policy::Policy;
use crate::policy::slots::{DirBlocks, GoalBase, GoalColour, GoalLogical};

/// Flex groups of at least this many groups keep their first group for directories and metadata.
const FLEX_THRESHOLD: u32 = 4;
/// Number of colours: each stands for a sixteenth of a group.
const COLOURS: u64 = 16;

/// A block wanted for an inode that has no block nearby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstBlock {
    /// Group of the inode.
    pub group: GroupNr,
    /// Whether the inode is a regular file.
    pub regular: bool,
    /// Id of the thread that requests the block; only its value modulo 16 matters.
    pub colour: u32,
    /// Whether blocks are chosen at write-back.
    pub delayed: bool,
    /// The block in the file.
    pub logical: LogicalBlock,
}

/// The policy's goal for an inode without blocks nearby. With delayed allocation, no colour moves
/// the goal of a regular file. (Under `goal_colour=always`, its colour is then 0, that of the
/// write-back thread.)
#[must_use]
pub fn first_goal(policy: &Policy, geometry: &Geometry, block: &FirstBlock) -> BlockNr {
    let regular = block.regular || policy.dir_blocks == DirBlocks::WithData;
    let colour = match policy.goal_colour {
        GoalColour::Undelayed => (!block.delayed).then_some(block.colour),
        GoalColour::Always if block.delayed && block.regular => Some(0),
        GoalColour::Always => Some(block.colour),
    };
    let goal = match policy.goal_base {
        GoalBase::Flex => inode_goal(geometry, block.group, regular, colour),
        GoalBase::OwnGroup => own_group_goal(geometry, block.group, colour),
    };
    match policy.goal_logical {
        GoalLogical::Ignored => goal,
        GoalLogical::Added => BlockNr::new(goal.raw() + u64_from_u32(block.logical.raw())),
    }
}

/// The goal of an inode without extents: the start of its group. With flex groups of at least 4
/// groups: the start of the flex group's second group for regular files, and of its first group for
/// all others.
///
/// With a `colour`, the goal is the start of the colour's sixteenth of the group. (Linux gives a
/// colour only without delayed allocation.)
///
/// If the last flex group has only one group, its second group does not exist, and the goal of a
/// regular file may lie past the end of the file system. A request with such a goal starts at the
/// first data block.
#[must_use]
pub fn inode_goal(geometry: &Geometry, inode_group: GroupNr, regular: bool, colour: Option<u32>) -> BlockNr {
    let mut group = u64_from_u32(inode_group.raw());
    let flex = geometry.flex_size();
    if flex >= FLEX_THRESHOLD {
        group = group / u64_from_u32(flex) * u64_from_u32(flex) + u64::from(regular);
    }
    coloured(geometry, group, colour)
}

/// The start of the inode's group, or a colour's sixteenth in it, even where a short last group has
/// no such sixteenth.
fn own_group_goal(geometry: &Geometry, group: GroupNr, colour: Option<u32>) -> BlockNr {
    let sixteenth = geometry.blocks_per_group() / COLOURS;
    let colour = u64_from_u32(colour.unwrap_or(0)) % COLOURS;
    BlockNr::new(geometry.group_first_block(group).raw() + colour * sixteenth)
}

/// The start of a group, or a colour's sixteenth in it.
fn coloured(geometry: &Geometry, group: u64, colour: Option<u32>) -> BlockNr {
    let base = geometry.first_data_block().raw() + group * geometry.blocks_per_group();
    let Some(colour) = colour else { return BlockNr::new(base) };
    let last = geometry.blocks_count().raw() - 1;
    let colour = u64_from_u32(colour) % COLOURS;
    if base > last {
        // In Linux the room left in the group, `last - base`, becomes negative here (observed on
        // 6.18). So the sixteenths lie before the group's start.
        return BlockNr::new(base.saturating_sub(colour * (base - last).div_ceil(COLOURS)));
    }
    let room =
        if base + geometry.blocks_per_group() <= last { geometry.blocks_per_group() } else { last - base };
    BlockNr::new(base + colour * (room / COLOURS))
}

/// The goal of a block in a file with extents: where the block would be if the file were laid out
/// without gaps around the nearest extent. The nearest extent is the last one that starts at or
/// before the block, or if there is none, the first one of the leaf. A result below 0 wraps, and
/// requests treat it as outside the file system.
#[must_use]
pub fn neighbour_goal(
    logical: LogicalBlock,
    extent_logical: LogicalBlock,
    extent_physical: BlockNr,
) -> BlockNr {
    let distance = u64::from(logical.raw()).wrapping_sub(u64::from(extent_logical.raw()));
    BlockNr::new(extent_physical.raw().wrapping_add(distance))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryBitmaps;

    #[test]
    fn each_time_had_its_goal() {
        let geometry = MemoryBitmaps::plain_geometry(64, 4);
        let goal = |policy: &str, regular, delayed| {
            let block = FirstBlock {
                group: GroupNr::new(37),
                regular,
                colour: 16 + 3,
                delayed,
                logical: LogicalBlock::new(7),
            };
            first_goal(&Policy::parse(policy).unwrap(), &geometry, &block).raw()
        };
        let group = |group: u64| group * 32_768;
        assert_eq!(goal("ext3", true, false), group(37) + 3 * 2048);
        assert_eq!(goal("ext3", false, false), group(37) + 3 * 2048, "directories lie with data");
        assert_eq!(goal("ext4-2008", true, true), group(37) + 7, "write-back has colour 0");
        assert_eq!(goal("ext4-2008", false, true), group(37) + 3 * 2048 + 7);
        assert_eq!(goal("ext4-2009", true, true), group(33) + 7);
        assert_eq!(goal("ext4-2009", false, true), group(32) + 7);
        assert_eq!(goal("ext4-2009", false, false), group(32) + 3 * 2048 + 7);
        assert_eq!(goal("linux-6.18", true, true), group(33));
        assert_eq!(goal("linux-6.18", true, false), group(33) + 3 * 2048);
        assert_eq!(goal("linux-6.18:dir_blocks=with-data", false, true), group(33));
    }
}
