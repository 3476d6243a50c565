//! Goals that come from the inode and its extents: pure arithmetic for callers that build requests.

use blockyard_disk::num::u64_from_u32;
use blockyard_disk::{BlockNr, Geometry, GroupNr, LogicalBlock};

/// Flex groups of at least this many groups keep their first group for directories and metadata.
const FLEX_THRESHOLD: u32 = 4;
/// Process colours.
const COLOURS: u64 = 16;

/// The goal of an inode that has no extent yet: the start of its group, or with flex groups of at least 4 the second
/// group of its flex group for regular files and the first for all others.
///
/// `colour` is given without delayed allocation: the process then starts in its sixteenth of the group. The result may
/// lie past the end of a small file system; requests treat such a goal as the first data block.
#[must_use]
pub fn inode_goal(geometry: &Geometry, inode_group: GroupNr, regular: bool, colour: Option<u32>) -> BlockNr {
    let mut group = u64_from_u32(inode_group.raw());
    let flex = geometry.flex_size();
    if flex >= FLEX_THRESHOLD {
        group = group / u64_from_u32(flex) * u64_from_u32(flex) + u64::from(regular);
    }
    let base = geometry.first_data_block().raw() + group * geometry.blocks_per_group();
    let Some(colour) = colour else { return BlockNr::new(base) };
    let last = geometry.blocks_count().raw() - 1;
    let colour = u64_from_u32(colour) % COLOURS;
    if base > last {
        // Linux's difference wraps below 0 (observed on 6.18): the sixteenths lie before the group's start.
        return BlockNr::new(base.saturating_sub(colour * (base - last).div_ceil(COLOURS)));
    }
    let room =
        if base + geometry.blocks_per_group() <= last { geometry.blocks_per_group() } else { last - base };
    BlockNr::new(base + colour * (room / COLOURS))
}

/// The goal of a block of a file with extents: where it would be if the file were laid out without gaps around the
/// nearest extent (the last that starts at or before it, else the first of the leaf). Wraps below 0, which requests
/// treat as outside the file system.
#[must_use]
pub fn neighbour_goal(
    logical: LogicalBlock,
    extent_logical: LogicalBlock,
    extent_physical: BlockNr,
) -> BlockNr {
    let distance = u64::from(logical.raw()).wrapping_sub(u64::from(extent_logical.raw()));
    BlockNr::new(extent_physical.raw().wrapping_add(distance))
}
