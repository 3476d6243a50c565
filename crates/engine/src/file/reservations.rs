//! Space reserved for delayed data: the clusters that the data will get, and the blocks that its
//! mapping may need.
//!
//! Running out of space is reported when data is written, never when it is written back. So, for
//! each file:
//! * one cluster is reserved for each logical cluster that has dirty blocks but no mapped block
//!   (docs/behaviour/bigalloc.md);
//! * further clusters are reserved for tree or indirect blocks: as many as the mapping can need at
//!   most for the entries that write-back adds ([`blocks_for_entries`], [`blocks_for_arrays`]).
//!
//! Write-back uses the reservations up. Anything else that changes the mapping while data is dirty
//! (fallocate, holes, insertions) first reserves what the data may need in addition because of the
//! change. If there is no room, the data is written back at once, and nothing stays reserved.
//!
//! [`crate::requests::Rules`] say how much is reserved. The above is the engine's own way; Linux's
//! way reserves less.

use super::limits::{LOGGED_MAX, RUN_MAX};
use super::part::Part;
use crate::data::FileData;
use crate::extents::blocks_for_entries;
use crate::file::Files;
use crate::file::LockedFile;
use crate::inode::{Inode, InodeCore};
use crate::mapping::indirect::blocks_for_arrays;
use crate::pool::Pool;
use crate::requests::Reserves;
use crate::{Error, OpContext, Result};
use blockyard_disk::inode::InodeMap;
use blockyard_disk::num::{u64_from_usize, usize_from_u32, usize_from_u64};
use std::ops::Range;

/// What blocks that become dirty may need at write-back.
#[derive(Debug, Default)]
struct Wants {
    /// Logical clusters that need a cluster, ascending.
    clusters: Vec<Range<u32>>,
    /// Entries that the mapping may gain between existing entries, and entries that it may gain in
    /// addition to one for each wanted cluster.
    inserts: usize,
    /// The number of blocks that the write covers, including blocks that are dirty already.
    blocks: usize,
}

impl Wants {
    /// How many clusters are wanted.
    fn clusters(&self) -> u64 {
        self.clusters.iter().map(|clusters| u64_from_usize(clusters.len())).sum()
    }
}

/// Where each reservation comes from.
#[derive(Clone, Copy)]
struct Pools {
    /// For the data's clusters.
    data: Pool,
    /// For the blocks of the mapping.
    mapping: Pool,
}

impl LockedFile<'_> {
    /// Reserves space for blocks that are about to become dirty: for all of them or for none.
    ///
    /// If there is no room, writes back this file, then other files, and tries once more. Written
    /// data takes only the space that it really needs, which may be less than was reserved. At the
    /// second try, clusters for the mapping may come from the file system's own reserve, as tree
    /// nodes do in Linux. If the rules are those of Linux, there is no second try.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; errors of reading the mapping, and of this file's write-back.
    pub(crate) fn reserve(&mut self, blocks: &Range<u32>) -> Result<()> {
        debug_assert!(!blocks.is_empty(), "a reservation for no block");
        if self.files.volume.rules.reserves == Reserves::DataAndMapping
            && self.inode.waiting().dirty.has_in_one_piece(blocks)
        {
            // Everything was reserved when the blocks became dirty.
            return Ok(());
        }
        match self.reserve_at_once(blocks) {
            Err(Error::NoSpace) if self.files.volume.rules.reserves == Reserves::DataAndMapping => {}
            other => return other,
        }
        if self.files.volume.space.delayed_clusters() > 0 {
            self.write_back()?;
            // Other files report their own errors at their next sync.
            drop(self.files.write_back_others(self.ctx, || false));
        }
        let core = self.inode.core();
        let wants = self.files.wants(self.inode, &core, self.data, blocks)?;
        self.note_reservation(&core, &wants, Pools { data: Pool::Ordinary, mapping: Pool::Reserve })
    }

    /// Whether there is room for all data of a long write, before the caller makes the write in
    /// pieces. Blocks for the mapping are not counted. If there is no room at first, writes back
    /// this file and others that nobody uses now, and looks again.
    ///
    /// # Errors
    /// Errors of reading the mapping, and of this file's write-back.
    pub(super) fn has_room_for(&mut self, all: Part<'_>) -> Result<bool> {
        let blocks = all.blocks(self.files.volume.geometry().block_bits());
        if self.data_fits(&blocks)? {
            return Ok(true);
        }
        self.write_back()?;
        // Other files report their own errors at their next sync.
        drop(self.files.write_back_others(self.ctx, || false));
        self.data_fits(&blocks)
    }

    /// Whether the blocks of a range to be written fit, not counting their mapping.
    ///
    /// # Errors
    /// Errors of reading the mapping.
    pub(super) fn data_fits(&self, blocks: &Range<u32>) -> Result<bool> {
        let clusters = self.files.wants(self.inode, &self.inode.core(), self.data, blocks)?.clusters();
        match self.files.volume.space.reserve(self.ctx, clusters, Pool::Ordinary) {
            Ok(()) => self.files.volume.space.unreserve(self.ctx, clusters),
            Err(Error::NoSpace) => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    fn reserve_at_once(&mut self, blocks: &Range<u32>) -> Result<()> {
        let core = self.inode.core();
        let wants = self.files.wants(self.inode, &core, self.data, blocks)?;
        match self.files.volume.rules.reserves {
            Reserves::DataAndMapping => {
                // Blocks that fallocate has allocated need tree nodes only. The nodes may come from
                // the file system's own reserve: otherwise these blocks could not be written on a
                // full file system.
                let pool = if wants.clusters.is_empty() { Pool::Reserve } else { Pool::Ordinary };
                self.note_reservation(&core, &wants, Pools { data: pool, mapping: pool })
            }
            Reserves::Data => {
                self.files.reserve_one_by_one(self.ctx, self.data, &wants)?;
                self.inode.note_delayed(self.data);
                Ok(())
            }
            Reserves::Nothing => Ok(()),
        }
    }

    fn note_reservation(&mut self, core: &InodeCore, wants: &Wants, pools: Pools) -> Result<()> {
        let mapping = self.files.missing_for_mapping(self.inode, core, self.data, wants);
        let data = wants.clusters();
        let space = &self.files.volume.space;
        if pools.data == pools.mapping {
            space.reserve(self.ctx, data + mapping, pools.data)?;
        } else {
            // The data comes first: if it is refused, nothing must have been taken for the mapping.
            space.reserve(self.ctx, data, pools.data)?;
            let reserved = space.reserve(self.ctx, mapping, pools.mapping);
            reserved.inspect_err(|_| space.unreserve(self.ctx, data))?;
        }
        wants.clusters.iter().for_each(|clusters| self.data.note_reserved(clusters.clone()));
        self.data.note_reserved_for_mapping(mapping, wants.inserts);
        self.inode.note_delayed(self.data);
        Ok(())
    }

    /// Call before a change of the mapping, other than write-back, that adds `entries` entries.
    /// Reserves what the dirty data may need in addition because of the change. If that fails,
    /// writes the data back.
    ///
    /// # Errors
    /// Errors of write-back.
    pub(super) fn reserve_for_change(&mut self, entries: usize) -> Result<()> {
        let has_room = {
            let core = self.inode.core();
            self.reserve_entries(&core, entries)
        };
        if has_room { Ok(()) } else { self.write_back() }
    }

    /// The part of [`Self::reserve_for_change`] that works with a core lock held. Returns false if
    /// the caller must write the data back.
    pub(super) fn reserve_entries(&mut self, core: &InodeCore, entries: usize) -> bool {
        if self.inode.waiting().dirty.is_empty()
            || self.files.volume.rules.reserves != Reserves::DataAndMapping
        {
            return true;
        }
        self.data.note_amid();
        let wants = Wants { inserts: entries, ..Wants::default() };
        self.note_reservation(core, &wants, Pools { data: Pool::Reserve, mapping: Pool::Reserve }).is_ok()
    }

    /// Call before a range is removed. A cluster at one end of the range may also hold dirty blocks
    /// outside the range. While the cluster is mapped, nothing is reserved for these blocks, but
    /// the removal may unmap the cluster. So this reserves a cluster for these blocks, or writes
    /// the data back if there is no room.
    ///
    /// # Errors
    /// Errors of write-back.
    pub(super) fn reserve_at_borders(&mut self, range: &Range<u32>) -> Result<()> {
        let bits = self.files.volume.geometry().cluster_ratio_bits();
        if bits == 0 || self.inode.waiting().dirty.is_empty() || range.is_empty() {
            return Ok(());
        }
        for cluster in [range.start >> bits, (range.end - 1) >> bits] {
            let blocks = blocks_of(cluster, bits);
            let before = blocks.start..range.start.max(blocks.start);
            let behind = range.end.min(blocks.end)..blocks.end;
            let left_over = {
                let dirty = &self.inode.waiting().dirty;
                dirty.first_in(before).or(dirty.first_in(behind)).is_some()
            };
            if !left_over || self.data.is_reserved(cluster) {
                continue;
            }
            if self.files.volume.space.reserve(self.ctx, 1, Pool::Reserve).is_err() {
                return self.write_back();
            }
            self.data.note_reserved(cluster..cluster + 1);
            self.inode.note_delayed(self.data);
        }
        Ok(())
    }

    /// Call after dirty blocks of a range were dropped, or after a write to the range failed. Ends
    /// the reservations of the range's clusters that have no dirty blocks. If the first or the last
    /// cluster of the range has mapped blocks, its reservation ends, too.
    pub(crate) fn settle_reservations(&mut self, range: &Range<u32>) {
        debug_assert!(range.end > 0, "a range without borders");
        let bits = self.files.volume.geometry().cluster_ratio_bits();
        let clusters = range.start >> bits..((range.end - 1) >> bits) + 1;
        let mut ended = 0;
        for cluster in self.data.reserved_in(clusters.clone()).into_iter().flatten() {
            let is_border = bits > 0 && (cluster == clusters.start || cluster + 1 == clusters.end);
            // If the mapping cannot be read, the reservation stays until the data is written or
            // dropped.
            let is_mapped = || {
                self.files.mapping.cluster_is_mapped(self.inode, &self.inode.core(), cluster).unwrap_or(false)
            };
            let needed = self.inode.waiting().dirty.first_in(blocks_of(cluster, bits)).is_some()
                && !(is_border && is_mapped());
            if !needed {
                ended += u64::from(self.data.take_reservations(cluster..cluster + 1));
            }
        }
        self.inode.note_delayed(self.data);
        self.files.volume.space.unreserve(self.ctx, ended);
        self.settle_mapping_reservation();
    }

    /// If no data is dirty, gives back what is reserved for the mapping.
    pub(crate) fn settle_mapping_reservation(&mut self) {
        if self.inode.waiting().dirty.is_empty() {
            let clusters = self.data.take_mapping_reservation();
            self.files.volume.space.unreserve(self.ctx, clusters);
        }
    }
}

impl Files {
    /// Reserves the wanted clusters one by one, all or none. Reserves nothing for the mapping: its
    /// blocks come from the file system's own reserve.
    fn reserve_one_by_one(&self, ctx: &OpContext, data: &mut FileData, wants: &Wants) -> Result<()> {
        let clusters = || wants.clusters.iter().cloned().flatten();
        for (done, cluster) in clusters().enumerate() {
            if let Err(error) = self.volume.space.reserve(ctx, 1, Pool::Ordinary) {
                let made: u32 =
                    clusters().take(done).map(|made| data.take_reservations(made..made + 1)).sum();
                self.volume.space.unreserve(ctx, u64::from(made));
                return Err(error);
            }
            data.note_reserved(cluster..cluster + 1);
        }
        Ok(())
    }

    /// What these blocks may need at write-back, beyond the reservations that `data` has already.
    fn wants(&self, inode: &Inode, core: &InodeCore, data: &FileData, blocks: &Range<u32>) -> Result<Wants> {
        let mut wants = Wants { blocks: usize_from_u32(blocks.end - blocks.start), ..Wants::default() };
        let mut logical = blocks.start;
        while logical < blocks.end {
            let here = self.mapping.lookup_block(inode, core, logical)?;
            if let Some(extent) = here.found {
                // If the middle of an unwritten extent is written, remainders stay on both sides.
                wants.inserts +=
                    if extent.unwritten && inode.waiting().dirty.block(logical).is_none() { 2 } else { 0 };
                logical = extent.end().min(blocks.end);
                continue;
            }
            let hole =
                here.left.map_or(0, |left| left.end())..here.right.map_or(u32::MAX, |right| right.logical);
            let part = logical..hole.end.min(blocks.end);
            logical = part.end;
            self.add_hole(inode, core, data, (hole, part), &mut wants)?;
        }
        Ok(wants)
    }

    /// Adds to `wants` what the blocks `part` of `hole` need.
    fn add_hole(
        &self,
        inode: &Inode,
        core: &InodeCore,
        data: &FileData,
        (hole, part): (Range<u32>, Range<u32>),
        wants: &mut Wants,
    ) -> Result<()> {
        let bits = self.volume.geometry().cluster_ratio_bits();
        let amid = hole.end < u32::MAX;
        if bits == 0 {
            let new = data.not_reserved_in(part);
            wants.inserts += if amid { new.iter().map(ExactSizeIterator::len).sum() } else { 0 };
            wants.clusters.extend(new);
            return Ok(());
        }
        for cluster in part.start >> bits..((part.end - 1) >> bits) + 1 {
            let blocks = blocks_of(cluster, bits);
            let owned = self.mapping.cluster_is_mapped(inode, core, cluster)?;
            if !owned && !data.is_reserved(cluster) {
                wants.clusters.push(cluster..cluster + 1);
                wants.inserts += usize::from(amid);
            } else {
                // Each run of dirty blocks in the cluster is one more entry, unless the run
                // continues a run that was counted.
                let touched = part.start.max(blocks.start)..part.end.min(blocks.end);
                let from = touched.start.saturating_sub(1).max(hole.start).max(blocks.start);
                wants.inserts += usize::from(inode.waiting().dirty.first_in(from..touched.end).is_none());
            }
        }
        Ok(())
    }

    /// How many clusters must still be reserved for the mapping.
    fn missing_for_mapping(&self, inode: &Inode, core: &InodeCore, data: &FileData, wants: &Wants) -> u64 {
        match core.map {
            InodeMap::Extents => {}
            InodeMap::Indirect => {
                return blocks_for_arrays(self.volume.geometry().block_bits(), data, &wants.clusters);
            }
            // Inline content that leaves the inode begins with an empty map, which has room.
            _ => return 0,
        }
        let mut appended = data.reserved_len() + usize_from_u64(wants.clusters());
        let mut inserts = data.inserts() + wants.inserts;
        if data.is_amid() {
            inserts += std::mem::take(&mut appended);
        }
        if inserts > 0 || self.volume.geometry().cluster_ratio() > 1 {
            // A long run is mapped in pieces. Where two pieces meet inside a cluster or an
            // unwritten extent, one more entry may be needed.
            inserts += (inode.waiting().dirty.len() + wants.blocks) / self.piece_max(inode, core);
        }
        blocks_for_entries(core.root(), self.volume.block_size(), appended, inserts)
            .saturating_sub(data.reserved_for_mapping())
    }

    /// The most blocks of a run that are mapped as one piece.
    fn piece_max(&self, inode: &Inode, core: &InodeCore) -> usize {
        usize_from_u32(if self.mapping.logs_data(inode, core) { LOGGED_MAX } else { RUN_MAX })
    }

    /// Ends the reservations of clusters whose blocks were just mapped.
    pub(crate) fn end_reservations(
        &self,
        ctx: &OpContext,
        inode: &Inode,
        data: &mut FileData,
        blocks: &Range<u32>,
    ) {
        debug_assert!(!blocks.is_empty(), "no block was mapped");
        let bits = self.volume.geometry().cluster_ratio_bits();
        let clusters = blocks.start >> bits..((blocks.end - 1) >> bits) + 1;
        let ended = data.take_reservations(clusters);
        inode.note_delayed(data);
        self.volume.space.unreserve(ctx, u64::from(ended));
    }
}

/// The logical blocks of a cluster.
fn blocks_of(cluster: u32, bits: u32) -> Range<u32> {
    let first = cluster << bits;
    first..first.saturating_add(1 << bits)
}
