//! How a request for file data grows into an aligned window, so that the rest of the window becomes
//! a preallocation.
//!
//! Pure arithmetic in blocks and bytes; only the lengths that come in and go out are in clusters.
//! The length of the window is fixed by the policy, or follows from the predicted size of the file
//! (the larger of its size and the end of the request). The window is cut on both sides where
//! blocks are mapped or preallocated already. If the window touches a mapped neighbour in the file,
//! the result also names the block where it must start to adjoin that neighbour on the device.

use blockyard_disk::num::{u32_from_u64, u64_from_u32, u64_from_usize};
use blockyard_disk::{BlockNr, Geometry};

use crate::prealloc::inode::OwnBorders;
use crate::request::BlockRequest;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The most logical blocks that a file can have.
const LOGICAL_MAX: u64 = (1 << 32) - 1;

/// A normalised request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// First logical block.
    pub(crate) logical: u32,
    /// Clusters.
    pub(crate) len: u32,
    /// Where the window must start on the device to adjoin a neighbour that it touches in the file.
    /// If there is such a block, the search begins with an exact goal: this block, or the request's
    /// own goal under `merge_goal=request`.
    pub(crate) goal: Option<BlockNr>,
}

/// The window for `len` clusters at block `logical`. `fixed` is the window's length in clusters
/// before it is cut; if it is `None`, this length follows from the size of the file.
pub(crate) fn window(
    geometry: &Geometry,
    request: &BlockRequest,
    (logical, len): (u32, u32),
    own: OwnBorders,
    fixed: Option<u32>,
) -> Window {
    let block = u64_from_usize(geometry.block_size());
    let at = u64_from_u32(logical);
    let asked = u64_from_u32(len) << geometry.cluster_ratio_bits();
    let size = ((at + asked) * block).max(request.file_size);
    let (mut start, mut blocks) = match fixed {
        Some(clusters) => {
            let window = u64_from_u32(clusters.max(1)) << geometry.cluster_ratio_bits();
            (at / window * window, window)
        }
        None => by_size(size, at * block, asked * block, block),
    };
    start = start.max(at - at % geometry.blocks_per_group());
    blocks = blocks.min(LOGICAL_MAX.saturating_sub(start));
    if let Some(left) = request.left {
        let after = u64_from_u32(left.logical.raw()) + 1;
        if start < after {
            blocks = (start + blocks).saturating_sub(after);
            start = after;
        }
    }
    if let Some(right) = request.right {
        let right = u64_from_u32(right.logical.raw());
        if start + blocks > right {
            blocks = right.saturating_sub(start);
        }
    }
    blocks = blocks.min(geometry.blocks_per_group());
    let mut end = start + blocks;
    if let Some(left) = own.left_end {
        start = start.max(left);
    }
    if let Some(right) = own.right_start {
        end = end.min(right);
    }
    if start > at || end <= at {
        // The neighbours contradict the request (corrupt mapping): use the request as it is.
        (start, end) = (at, at + asked);
    }
    debug_assert!(start <= at && at < end, "[{start}, {end}) does not hold block {at}");
    blocks = end - start;
    debug_assert!(blocks <= geometry.blocks_per_group().max(asked), "a window of {blocks} blocks");
    Window {
        logical: u32_from_u64(start),
        len: u32_from_u64(blocks.div_ceil(u64_from_u32(geometry.cluster_ratio()))).max(1),
        goal: contiguous_goal(geometry, request, start, blocks),
    }
}

/// Start and length of the window in blocks, by the predicted size of the file. All inputs are in
/// bytes.
fn by_size(size: u64, at: u64, asked: u64, block: u64) -> (u64, u64) {
    let aligned = |window: u64| (at / window * window / block, window / block);
    if size <= MIB {
        (0, size.next_power_of_two().max(16 * KIB).div_ceil(block))
    } else if size <= 4 * MIB || block <= KIB {
        aligned(2 * MIB)
    } else if size <= 8 * MIB || block <= 2 * KIB {
        aligned(4 * MIB)
    } else if asked <= 8 * MIB || block <= 4 * KIB {
        aligned(8 * MIB)
    } else {
        (at / block, asked / block)
    }
}

/// Where the window must start on the device to adjoin a neighbour that it touches in the file; the
/// left neighbour is tried first. `None` if it touches neither, or if that start would lie outside
/// the file system.
fn contiguous_goal(geometry: &Geometry, request: &BlockRequest, start: u64, blocks: u64) -> Option<BlockNr> {
    let after_left = request.left.and_then(|left| {
        let next = left.physical.raw() + 1;
        let touches = u64_from_u32(left.logical.raw()) + 1 == start;
        (touches && next < geometry.blocks_count().raw()).then(|| BlockNr::new(next))
    });
    let before_right = || {
        let right = request.right?;
        let first = right.physical.raw().checked_sub(blocks)?;
        let touches = u64_from_u32(right.logical.raw()) == start + blocks;
        (touches && first >= geometry.first_data_block().raw()).then(|| BlockNr::new(first))
    };
    after_left.or_else(before_right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Neighbour;
    use blockyard_disk::geometry::GeometryFields;
    use blockyard_disk::{BlockCount, GroupNr, InodeNr, LogicalBlock};

    fn geometry(block_bits: u32, ratio_bits: u32, clusters: u32) -> Geometry {
        Geometry::new(GeometryFields {
            block_bits,
            cluster_ratio_bits: ratio_bits,
            blocks_count: BlockCount::new(8 << (20 - ratio_bits)),
            first_data_block: BlockNr::new(u64::from(block_bits == 10)),
            clusters_per_group: clusters,
            inodes_per_group: 1024,
            inode_size: 256,
            flex_bits: 4,
        })
        .unwrap()
    }

    fn grown(
        g: &Geometry,
        logical: u32,
        len: u32,
        size: u64,
        left: Option<u32>,
        right: Option<u32>,
    ) -> Window {
        let neighbour = |logical: u32| Neighbour {
            logical: LogicalBlock::new(logical),
            physical: BlockNr::new(100_000 + u64::from(logical)),
        };
        let request = BlockRequest {
            file_size: size,
            left: left.map(neighbour),
            right: right.map(neighbour),
            ..BlockRequest::data(InodeNr::new(12), GroupNr::ZERO, LogicalBlock::new(logical), len)
        };
        window(g, &request, (logical, len), OwnBorders::default(), None)
    }

    /// Windows seen on Linux 6.18: length, first logical block, and whether an exact goal is tried.
    #[test]
    fn windows_are_those_of_the_kernel() {
        let g = geometry(12, 0, 32768);
        let seen = |logical, len, blocks: u64, left| {
            let w = grown(&g, logical, len, blocks * 4096, left, None);
            (w.len, w.logical, w.goal.is_some())
        };
        assert_eq!(seen(0, 17, 17, None), (32, 0, false));
        assert_eq!(seen(0, 25, 25, None), (32, 0, false));
        assert_eq!(seen(0, 50, 50, None), (64, 0, false));
        assert_eq!(seen(0, 256, 256, None), (256, 0, false));
        assert_eq!(seen(0, 257, 257, None), (512, 0, false));
        assert_eq!(seen(0, 750, 750, None), (512, 0, false));
        assert_eq!(seen(512, 238, 750, Some(511)), (512, 512, true));
        assert_eq!(seen(0, 1250, 1250, None), (1024, 0, false));
        assert_eq!(seen(1024, 226, 1250, Some(1023)), (1024, 1024, true));
        assert_eq!(seen(0, 2048, 2048, None), (1024, 0, false));
        assert_eq!(seen(0, 2048, 2250, None), (2048, 0, false));
        assert_eq!(seen(2048, 202, 2250, Some(2047)), (2048, 2048, true));
        assert_eq!(seen(4, 16, 20, Some(3)), (28, 4, true));
        assert_eq!(seen(16, 1, 16, Some(15)), (16, 16, true));
        assert_eq!(seen(300, 100, 400, None), (512, 0, false));
        assert_eq!(seen(396, 4, 485, Some(395)), (116, 396, true));
    }

    #[test]
    fn a_right_neighbour_and_an_own_preallocation_cut_the_window() {
        let g = geometry(12, 0, 32768);
        let right = Neighbour { logical: LogicalBlock::new(300), physical: BlockNr::new(5000) };
        let request = BlockRequest {
            file_size: 400 * 4096,
            right: Some(right),
            ..BlockRequest::data(InodeNr::new(12), GroupNr::ZERO, LogicalBlock::new(50), 50)
        };
        let own = OwnBorders { left_end: None, right_start: Some(256) };
        let w = window(&g, &request, (50, 50), own, None);
        assert_eq!(w, Window { logical: 0, len: 256, goal: None }, "the window no longer touches 300");
        let own = OwnBorders::default();
        let w = window(&g, &request, (50, 50), own, None);
        assert_eq!(w, Window { logical: 0, len: 300, goal: Some(BlockNr::new(4700)) });
    }

    #[test]
    fn a_fixed_window_does_not_look_at_the_size() {
        let seen = |g: &Geometry, logical, left: Option<u32>| {
            let left = left.map(|at| Neighbour {
                logical: LogicalBlock::new(at),
                physical: BlockNr::new(100_000 + u64::from(at)),
            });
            let request = BlockRequest {
                left,
                ..BlockRequest::data(InodeNr::new(12), GroupNr::ZERO, LogicalBlock::new(logical), 4)
            };
            let w = window(g, &request, (logical, 4), OwnBorders::default(), Some(64));
            (w.len, w.logical, w.goal.is_some())
        };
        let g = geometry(12, 0, 32768);
        assert_eq!(seen(&g, 0, None), (64, 0, false));
        assert_eq!(seen(&g, 200, None), (64, 192, false));
        assert_eq!(seen(&g, 200, Some(199)), (56, 200, true));
        assert_eq!(seen(&geometry(12, 4, 32768), 1500, None), (64, 1024, false), "in clusters of 16 blocks");
    }

    #[test]
    fn small_blocks_tiny_groups_and_clusters() {
        let g = geometry(10, 0, 8192);
        let w = grown(&g, 0, 1500, 1500 * 1024, None, None);
        assert_eq!((w.len, w.logical), (2048, 0));
        let w = grown(&g, 2048, 2048, 9000 * 1024, Some(2047), None);
        assert_eq!((w.len, w.logical), (2048, 2048));
        let g = geometry(12, 0, 512);
        let w = grown(&g, 512, 512, 1250 * 4096, Some(511), None);
        assert_eq!((w.len, w.logical), (512, 512));
        let g = geometry(12, 4, 32768);
        let w = grown(&g, 0, 2, 68 * 1024, None, None);
        assert_eq!((w.len, w.logical), (2, 0));
        let w = grown(&g, 16, 1, 17 * 4096, Some(4), None);
        assert_eq!((w.len, w.logical, w.goal.is_some()), (2, 5, true));
    }
}
