//! One request for blocks: every input of the decision that is not allocator state.
//!
//! Lengths are in clusters, logical addresses in blocks. The caller has already done what needs the
//! file's mapping:
//!
//! - it has mapped the blocks whose cluster the file already owns (bigalloc);
//! - it has found the neighbours, and computed the goal with `goals`;
//! - it has cut the length so that the request ends before the file's next allocated cluster.

use blockyard_disk::{BlockNr, GroupNr, InodeNr, LogicalBlock};
use blockyard_sync::CpuSlot;

bitflags::bitflags! {
    /// What kind of request this is. The low 16 bits are the kernel's, as its trace points print
    /// them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct RequestFlags: u32 {
        /// Take the first extent found.
        const FIRST = 0x8;
        /// File data of a regular file: may be normalised and preallocated.
        const DATA = 0x20;
        /// Look for exactly this length and make no preallocation (small fallocate). The policy may
        /// also set it for the last blocks of a closed file.
        const NO_NORMALIZE = 0x40;
        /// Set by the policy: a small file, served from a locality group.
        const GROUP_ALLOC = 0x80;
        /// Allocate at the goal or not at all.
        const GOAL_ONLY = 0x100;
        /// Try the exact goal block first.
        const TRY_GOAL = 0x200;
        /// The clusters were reserved when the data was written.
        const DELALLOC_RESERVED = 0x400;
        /// Set by the policy: a large file, searched from its stream goal.
        const STREAM = 0x800;
        /// May use the blocks reserved for root.
        const USE_ROOT = 0x1000;
        /// May use the file system's own reserve.
        const USE_RESERVED = 0x2000;
        /// Set on a retry if dropping preallocations gave nothing back. Then the cheap tests of a
        /// group read its summary under its lock.
        const STRICT_CHECK = 0x4000;
        /// The block belongs to a directory.
        const DIRECTORY = 0x1_0000;
        /// The block is an extent tree block, indirect block or extended attribute block.
        const METADATA = 0x2_0000;
    }
}

/// How the inode maps its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mapping {
    /// Extent tree: any block of the file system.
    #[default]
    Extents,
    /// Indirect blocks: only blocks below 2^32.
    Indirect,
}

/// The nearest mapped block on one side of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// On the left, the last logical block of the nearest extent; on the right, the first one.
    pub logical: LogicalBlock,
    /// The physical block that it is mapped to.
    pub physical: BlockNr,
}

/// A request for blocks of one inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRequest {
    /// The inode, for stream goals, statistics and events.
    pub inode: InodeNr,
    /// The group the inode lives in.
    pub inode_group: GroupNr,
    /// How the inode maps its blocks.
    pub mapping: Mapping,
    /// First logical block wanted.
    pub logical: LogicalBlock,
    /// Clusters wanted, at least 1.
    pub clusters: u32,
    /// Where to look first; a block outside the file system means the first data block.
    ///
    /// The policy may replace the goal: under most presets, the search for the blocks of a large
    /// file ([`RequestFlags::STREAM`]) begins where an earlier such search ended. With
    /// [`RequestFlags::TRY_GOAL`], the goal itself is tried before that. The search may pass over
    /// the goal's group if it was never loaded
    /// ([`Allocator::initialise`](crate::Allocator::initialise)).
    pub goal: BlockNr,
    /// Nearest mapped block to the left.
    pub left: Option<Neighbour>,
    /// Nearest mapped block to the right.
    pub right: Option<Neighbour>,
    /// File size in bytes, as it is in memory now.
    pub file_size: u64,
    /// Whether somebody has the file open for writing.
    pub writer_open: bool,
    /// The CPU slot of the caller.
    pub cpu: CpuSlot,
    /// Number of the process that asks; 0 when unknown. Only policies by code read it, because
    /// `goal` already includes the colour.
    pub colour: u32,
    /// Kind of the request.
    pub flags: RequestFlags,
}

impl BlockRequest {
    /// A request for file data with no neighbours, goal 0, an open writer, file size 0, and CPU
    /// slot 0. Meant as the base of struct update syntax.
    #[must_use]
    pub fn data(inode: InodeNr, inode_group: GroupNr, logical: LogicalBlock, clusters: u32) -> Self {
        Self {
            inode,
            inode_group,
            mapping: Mapping::Extents,
            logical,
            clusters,
            goal: BlockNr::ZERO,
            left: None,
            right: None,
            file_size: 0,
            writer_open: true,
            cpu: CpuSlot::ZERO,
            colour: 0,
            flags: RequestFlags::DATA,
        }
    }

    /// A request for one metadata cluster near `goal`.
    #[must_use]
    pub fn metadata(inode: InodeNr, inode_group: GroupNr, goal: BlockNr) -> Self {
        Self { goal, flags: RequestFlags::METADATA, ..Self::data(inode, inode_group, LogicalBlock::ZERO, 1) }
    }
}
