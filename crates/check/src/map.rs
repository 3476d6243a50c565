//! The map of an inode: extent trees and indirect blocks, walked without recursion.
//!
//! A walk reports faults to the sink, claims clusters through [`Claims`], and sums up what the
//! rules about size and `i_blocks` need. It is bounded: it descends at most five levels of an
//! extent tree, it enters no block of a map twice (except for the resize inode), and a [`Budget`]
//! limits the map blocks that are read for all inodes of one group.

mod extents;
mod indirect;

pub(crate) use extents::{LOGICAL_END, salvage_extents, walk_extents};
pub(crate) use indirect::walk_indirect;

use std::collections::HashSet;

use blockyard_disk::num::u64_from_u32;
use blockyard_disk::{BlockNr, InodeNr};

use crate::ahead::Ahead;
use crate::code::Code;
use crate::descriptors::{SystemRange, touches};
use crate::finding::{Sink, Site};
use crate::volume::Volume;

/// A run of mapped blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) logical: u64,
    pub(crate) physical: u64,
    pub(crate) length: u64,
    pub(crate) unwritten: bool,
}

/// Receives the claims of clusters. The first walk over the inodes enters them into the map of used
/// clusters, the second walk into the search for the owners of shared clusters.
pub(crate) trait Claims {
    /// Claims `count` clusters from `cluster` on.
    fn claim(&mut self, cluster: u64, count: u64);
}

/// Ignores all claims.
pub(crate) struct NoClaims;

impl Claims for NoClaims {
    fn claim(&mut self, _: u64, _: u64) {}
}

/// How many map blocks may still be read for the inodes of a group.
#[derive(Debug)]
pub(crate) struct Budget(u64);

impl Budget {
    /// As many map blocks as the file system has blocks: no sound group needs more.
    pub(crate) fn of(volume: &Volume<'_>) -> Self {
        Self(volume.geometry.blocks_count().raw())
    }

    fn spend(&mut self) -> bool {
        let left = self.0 > 0;
        self.0 = self.0.saturating_sub(1);
        left
    }
}

/// What a walk of a map needs, and what it sums up.
pub(crate) struct Walk<'a, 'v> {
    pub(crate) volume: &'a Volume<'v>,
    pub(crate) system: &'a [SystemRange],
    pub(crate) inode: InodeNr,
    pub(crate) seed: Option<u32>,
    pub(crate) sink: &'a mut Sink,
    pub(crate) claims: &'a mut dyn Claims,
    pub(crate) budget: &'a mut Budget,
    /// Whether this is the resize inode. It maps reserved descriptor blocks on purpose: these are
    /// neither claimed nor a fault, and `check_resize_inode` checks where they are. Only its
    /// double-indirect block is claimed.
    pub(crate) owns_metadata: bool,
    /// Whether mapped blocks that lie in static metadata are left unclaimed. Set for the bad-blocks
    /// inode, which may list blocks of metadata.
    pub(crate) skips_metadata: bool,
    /// Whether the walk collects [`Walk::runs`].
    pub(crate) keep_runs: bool,
    pub(crate) runs: Vec<Run>,
    /// Blocks allocated for data and map, counted in whole clusters.
    pub(crate) blocks: u64,
    /// One more than the last mapped logical block.
    pub(crate) end: u64,
    /// One more than the last mapped logical block that is written.
    pub(crate) end_written: u64,
    /// Whether the map is too damaged for its sums to mean anything.
    pub(crate) damaged: bool,
    /// Whether the blocks are not contiguous on the device, taken in the file's order. Indirect
    /// blocks count, each before the blocks that it maps; nodes of an extent tree do not.
    pub(crate) split: bool,
    /// The last block so far, in the order of [`Walk::split`].
    last_block: Option<u64>,
    visited: HashSet<u64>,
    ahead: Ahead,
    /// Logical and physical cluster that the last data run ended in.
    last_cluster: Option<(u64, u64)>,
}

impl<'a, 'v> Walk<'a, 'v> {
    pub(crate) fn new(
        volume: &'a Volume<'v>,
        system: &'a [SystemRange],
        inode: InodeNr,
        seed: Option<u32>,
        sink: &'a mut Sink,
        claims: &'a mut dyn Claims,
        budget: &'a mut Budget,
    ) -> Self {
        Self {
            volume,
            system,
            inode,
            seed,
            sink,
            claims,
            budget,
            owns_metadata: false,
            skips_metadata: false,
            keep_runs: false,
            runs: Vec::new(),
            blocks: 0,
            end: 0,
            end_written: 0,
            damaged: false,
            split: false,
            last_block: None,
            visited: HashSet::new(),
            ahead: Ahead::default(),
            last_cluster: None,
        }
    }

    /// The blocks of the map that were entered.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = BlockNr> + use<'_> {
        self.visited.iter().copied().map(BlockNr::new)
    }

    fn site(&self) -> Site {
        Site::inode(self.inode)
    }

    /// Records the next blocks in the file's order, and whether there is a gap before them on the
    /// device.
    fn follow(&mut self, first: u64, count: u64) {
        debug_assert!(count > 0, "no block at {first}");
        self.split |= self.last_block.is_some_and(|last| last + 1 != first);
        self.last_block = Some(first + count - 1);
    }

    fn fault(&mut self, code: Code, site: Site, detail: impl Into<String>) {
        self.damaged = true;
        self.sink.add(code, site, detail);
    }

    /// Enters a block of the map: claims and reads it. `None` if the block was entered before, if
    /// the budget is spent, or if the block cannot be read.
    ///
    /// The walk is about to enter the next `more` blocks of the device, too.
    fn enter(&mut self, block: BlockNr, more: u64) -> Option<Vec<u8>> {
        assert!(self.volume.contains(block), "map block {block} is outside the file system");
        let site = self.site().at_block(block);
        // For the resize inode, a block that occurs twice is no fault of this walk, because
        // `check_resize_inode` checks the map.
        if !self.visited.insert(block.raw()) && !self.owns_metadata {
            self.fault(Code::MAP_LOOP, site, "");
            return None;
        }
        if !self.budget.spend() {
            self.fault(Code::BUDGET, site, "");
            return None;
        }
        let metadata = touches(self.system, block, 1);
        if metadata && !self.owns_metadata {
            self.fault(Code::MAP_IN_METADATA, site, "");
        }
        self.blocks += u64_from_u32(self.volume.geometry.cluster_ratio());
        // Of the resize inode, only the block that is entered first is claimed: the double-indirect
        // block.
        if !self.owns_metadata || (self.visited.len() == 1 && !metadata) {
            let cluster = self.volume.geometry.cluster_of(block).raw();
            self.claims.claim(cluster, 1);
        }
        match self.ahead.block(self.volume, block, more) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                self.fault(Code::MAP_READ, site, error.to_string());
                None
            }
        }
    }

    /// Claims the block of a translator. On a file system of GNU Hurd, an inode may name such a
    /// block, which is not part of its content.
    pub(crate) fn translator(&mut self, block: BlockNr) {
        if self.volume.contains(block) {
            if !self.owns_metadata || !touches(self.system, block, 1) {
                self.claims.claim(self.volume.geometry.cluster_of(block).raw(), 1);
            }
        } else {
            let site = self.site().at_block(block);
            self.fault(Code::ILLEGAL_BLOCK, site, "translator");
        }
    }

    /// Claims a run of data blocks and adds it to the sums. All its blocks must be inside the file
    /// system.
    fn data(&mut self, run: Run) {
        assert!(run.length > 0 && run.logical >= self.end, "{run:?} after logical block {}", self.end);
        debug_assert!(
            self.volume.contains_range(BlockNr::new(run.physical), run.length),
            "{run:?} leaves the file system"
        );
        if self.skips_metadata && run.length > 1 {
            // The run is taken block by block, so that only its blocks in metadata stay unclaimed.
            let block = |at| Run { logical: run.logical + at, physical: run.physical + at, length: 1, ..run };
            return (0..run.length).for_each(|at| self.data(block(at)));
        }
        self.follow(run.physical, run.length);
        self.end = self.end.max(run.logical + run.length);
        if !run.unwritten {
            self.end_written = self.end_written.max(run.logical + run.length);
        }
        if !self.skips_metadata || !touches(self.system, BlockNr::new(run.physical), run.length) {
            self.claim_data(&run);
        }
        if self.keep_runs {
            self.runs.push(run);
        }
    }

    fn claim_data(&mut self, run: &Run) {
        let geometry = &self.volume.geometry;
        let bits = geometry.cluster_ratio_bits();
        let ratio = u64_from_u32(geometry.cluster_ratio());
        let first_data = geometry.first_data_block().raw();
        let offset = run.physical - first_data;
        if self.owns_metadata {
            self.blocks += run.length * ratio;
            return;
        }
        let (mut first, last) = (offset >> bits, (offset + run.length - 1) >> bits);
        let (logical_first, logical_last) = (run.logical >> bits, (run.logical + run.length - 1) >> bits);
        if bits > 0 {
            let misaligned = offset % ratio != run.logical % ratio;
            let split = self
                .last_cluster
                .is_some_and(|(logical, physical)| logical == logical_first && physical != first);
            if misaligned || split {
                let site = self.site().at_logical(run.logical).at_block(BlockNr::new(run.physical));
                self.sink.add(Code::CLUSTER_MISALIGNED, site, "");
            }
            if self.last_cluster == Some((logical_first, first)) {
                first += 1;
            }
        }
        self.last_cluster = Some((logical_last, last));
        if first <= last {
            self.blocks += (last - first + 1) << bits;
            self.claims.claim(first, last - first + 1);
        }
    }
}
