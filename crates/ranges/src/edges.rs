//! Where the edges of a file are: the offsets at which blocks, clusters, pages, folios or groups
//! begin, at which a map changes its form, and at which numbers of 32 bits overflow.

/// Bytes of a page, and of the largest folio, in Linux's page cache on most machines.
const PAGE: u64 = 4096;
const FOLIO: u64 = 2 << 20;

/// Blocks of the longest written extent. The longest unwritten extent has one block less.
const EXTENT_MAX: u64 = 32_768;

/// Number of extents that fit into an inode.
const EXTENTS_IN_INODE: u64 = 4;

/// Most logical blocks of a file.
const BLOCKS_MAX: u64 = 0xffff_ffff;

/// Number of blocks that an inode points to without an indirect block.
const DIRECT: u64 = 12;

/// Bytes of inline content that fit into `i_block`, in place of the map.
const INLINE_IN_MAP: u64 = 60;
/// Bytes of an inode that the extended attribute for inline content cannot use: the fields,
/// `i_block`, and the attribute's headers. The attribute holds what does not fit into `i_block`.
const INLINE_OVERHEAD: u64 = 128 + 32 + 4 + 16 + 4;

/// The edges of a file: multiples of steps, and single points. All numbers are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edges {
    block: u64,
    cluster: u64,
    /// Every multiple of a step is an edge. The block comes first.
    steps: Vec<u64>,
    /// Single edges: where the map changes its form, and where numbers of 32 bits overflow.
    points: Vec<u64>,
    largest: u64,
    reach: u64,
}

impl Edges {
    /// The edges of a file that is mapped by extents, with blocks of `block` bytes.
    #[must_use]
    pub fn extents(block: u64) -> Self {
        let lengths = [EXTENT_MAX - 1, EXTENT_MAX, 2 * EXTENT_MAX, EXTENTS_IN_INODE * EXTENT_MAX];
        Self::mapped(block, &lengths, BLOCKS_MAX)
    }

    /// The edges of a file that is mapped by indirect blocks, with blocks of `block` bytes.
    #[must_use]
    pub fn indirect(block: u64) -> Self {
        let pointers = block / 4;
        let mut tiers = vec![1, DIRECT];
        for depth in 1..=3 {
            tiers.push(tiers[tiers.len() - 1] + pointers.pow(depth));
        }
        let blocks = tiers[tiers.len() - 1].min(BLOCKS_MAX);
        Self::mapped(block, &tiers, blocks)
    }

    fn mapped(block: u64, edges: &[u64], blocks: u64) -> Self {
        assert!(block > 0, "a block has bytes");
        let largest = blocks * block;
        // Bytes of a group. As in mke2fs, a group has as many blocks as a bitmap block has bits,
        // but at most 65,528, so that 16 bits of a descriptor can count them.
        let group = (8 * block).min(65_528) * block;
        let steps = vec![block, PAGE, FOLIO, group];
        let mut points: Vec<u64> = edges.iter().map(|&at| at.min(blocks) * block).collect();
        // Where 32-bit counts of bytes (signed and unsigned), sectors, or pages overflow.
        points.extend([1 << 31, 1 << 32, 1 << 41, 1 << 44]);
        points.retain(|&at| at <= largest);
        Self { block, cluster: block, steps, points, largest, reach: largest }
    }

    /// Adds the edges of clusters of `cluster` bytes.
    #[must_use]
    pub fn clusters(mut self, cluster: u64) -> Self {
        assert!(cluster.is_multiple_of(self.block), "a cluster is whole blocks");
        self.cluster = cluster;
        if cluster > self.block {
            self.steps.insert(1, cluster);
        }
        self
    }

    /// Adds the edges of inline content in inodes of `inode` bytes.
    #[must_use]
    pub fn inline_data(mut self, inode: u64) -> Self {
        let more = inode.saturating_sub(INLINE_OVERHEAD);
        self.points.extend([INLINE_IN_MAP, INLINE_IN_MAP + more]);
        self
    }

    /// Sets the reach of draws: `bytes`, or the size of the largest file if that is smaller.
    #[must_use]
    pub fn up_to(mut self, bytes: u64) -> Self {
        self.reach = bytes.min(self.largest);
        self.points.retain(|&at| at <= bytes);
        self
    }

    /// Bytes of a block.
    #[must_use]
    pub const fn block(&self) -> u64 {
        self.block
    }

    /// Bytes of a cluster; without clusters, those of a block.
    #[must_use]
    pub const fn cluster(&self) -> u64 {
        self.cluster
    }

    /// Size in bytes of the largest file that the map allows.
    #[must_use]
    pub const fn largest(&self) -> u64 {
        self.largest
    }

    /// The reach of draws, in bytes: a drawn offset is at most one byte beyond it.
    #[must_use]
    pub const fn reach(&self) -> u64 {
        self.reach
    }

    pub(crate) fn steps(&self) -> &[u64] {
        &self.steps
    }

    pub(crate) fn points(&self) -> &[u64] {
        &self.points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_files_are_those_of_ext4() {
        let sizes =
            [1u64 << 10, 2 << 10, 4 << 10, 16 << 10, 64 << 10].map(|block| Edges::extents(block).largest());
        assert_eq!(sizes[0], (4 << 40) - 1024);
        assert_eq!(sizes[2], (16 << 40) - 4096);
        assert_eq!(sizes[4], (256 << 40) - 65_536);
        // 12 + 256 + 256^2 + 256^3 blocks of 1 KiB. With large blocks, block numbers run out first.
        assert_eq!(Edges::indirect(1024).largest(), (12 + 256 + (1 << 16) + (1 << 24)) << 10);
        assert_eq!(Edges::indirect(4096).largest(), (12 + 1024 + (1 << 20) + (1 << 30)) << 12);
        assert_eq!(Edges::indirect(65_536).largest(), (256 << 40) - 65_536);
    }

    #[test]
    fn a_map_of_indirect_blocks_has_an_edge_at_each_tier() {
        let edges = Edges::indirect(1024);
        for blocks in [12, 12 + 256, 12 + 256 + (1 << 16)] {
            assert!(edges.points().contains(&(blocks << 10)), "{blocks}");
        }
        assert_eq!(edges.up_to(1 << 20).points(), [1 << 10, 12 << 10, 268 << 10]);
    }
}
