//! The on-disk state of block groups, as transactions change it: descriptors and bitmaps.
//!
//! The current content of a descriptor is the 64 raw bytes in its [`GroupState`], under the group's
//! own lock. A commit encodes descriptor blocks from these bytes. Bitmaps are blocks of the
//! metadata cache, pinned in the group's state while they have changes that no commit has copied.
//! The allocator has its own bitmaps, in which preallocations and pending frees count as used. This
//! module holds the bitmaps as they will be on disk.

mod blocks;
mod freeze;
mod inodes;
mod synthesize;

use crate::Result;
use crate::cache::{BlockKind, Buffer, MetaCache};
use crate::epoch::Epoch;
use crate::system_zones::SystemZones;
use crate::txn::Handle;
use blockyard_device::BlockDevice;
use blockyard_disk::group_desc::{GroupDescriptor, GroupFlags, RawGroupDesc};
use blockyard_disk::num::{u64_from_usize, usize_from_u32};
use blockyard_disk::superblock::Superblock;
use blockyard_disk::{BlockNr, Geometry, GroupNr};
use blockyard_sync::{Mutex, MutexGuard, rank};
use std::ops::Range;
use std::sync::Arc;

/// All block groups of an open file system.
pub(crate) struct Groups {
    sb: Superblock,
    cache: Arc<MetaCache>,
    /// Positions of bitmaps and tables, which never change.
    places: Box<[Places]>,
    zones: SystemZones,
    states: Box<[Mutex<GroupState>]>,
    /// Groups whose descriptor changed since a commit last took this list; each once.
    dirty: Mutex<Vec<GroupNr>>,
}

/// The metadata blocks of a group.
#[derive(Clone, Copy, Debug)]
struct Places {
    block_bitmap: BlockNr,
    inode_bitmap: BlockNr,
    inode_table: BlockNr,
}

/// The state of one group, which the group's lock guards.
pub(crate) struct GroupState {
    raw: RawGroupDesc,
    /// The descriptor's flags; none if descriptors have no checksum, because the flags then have no
    /// meaning.
    flags: GroupFlags,
    /// The epoch in which `raw` last changed; [`Epoch::NONE`] if `raw` was encoded since.
    epoch: Epoch,
    /// `raw` as it was before `epoch`.
    before: RawGroupDesc,
    block_bitmap: Option<Arc<Buffer>>,
    inode_bitmap: Option<Arc<Buffer>>,
}

/// Totals over all groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Free clusters.
    pub(crate) free_clusters: u64,
    /// Free inodes.
    pub(crate) free_inodes: u64,
    /// Directories.
    pub(crate) directories: u64,
}

impl Groups {
    /// Reads and verifies every descriptor. `journal` holds the blocks of an internal journal.
    pub(crate) fn open(
        device: &dyn BlockDevice,
        sb: &Superblock,
        cache: Arc<MetaCache>,
        journal: Vec<Range<BlockNr>>,
    ) -> Result<Self> {
        let per_block = sb.geometry().block_size() / sb.desc_size();
        let mut states = Vec::with_capacity(usize_from_u32(sb.geometry().groups()));
        let mut places = Vec::with_capacity(states.capacity());
        let mut own = journal;
        let table_blocks = sb.geometry().inode_table_blocks();
        let mut block = vec![0; sb.geometry().block_size()];
        for group in sb.geometry().all_groups() {
            let (number, offset) = sb.descriptor_place(group);
            if usize_from_u32(group.raw()).is_multiple_of(per_block) {
                device.read_at(number.raw() * u64_from_usize(block.len()), &mut block)?;
            }
            let descriptor = GroupDescriptor::parse(sb, group, &block[offset..])?;
            descriptor.verify_counts(sb)?;
            places.push(Places {
                block_bitmap: descriptor.block_bitmap(),
                inode_bitmap: descriptor.inode_bitmap(),
                inode_table: descriptor.inode_table(),
            });
            let head = sb.head(group).blocks();
            own.push(head);
            for (place, len) in [
                (descriptor.block_bitmap(), 1),
                (descriptor.inode_bitmap(), 1),
                (descriptor.inode_table(), table_blocks),
            ] {
                own.push(place..BlockNr::new(place.raw() + len));
            }
            states.push(Mutex::new(
                rank::GROUP_DESC,
                GroupState {
                    raw: *descriptor.raw(),
                    flags: descriptor.flags(),
                    epoch: Epoch::NONE,
                    before: *descriptor.raw(),
                    block_bitmap: None,
                    inode_bitmap: None,
                },
            ));
        }
        let dirty = Mutex::new(rank::JOURNAL_STATE, Vec::new());
        assert_eq!(places.len(), states.len(), "a state for each group");
        Ok(Self {
            sb: sb.clone(),
            cache,
            places: places.into_boxed_slice(),
            zones: SystemZones::new(sb.geometry(), own),
            states: states.into_boxed_slice(),
            dirty,
        })
    }

    /// The geometry.
    pub(crate) const fn geometry(&self) -> &Geometry {
        self.sb.geometry()
    }

    fn lock(&self, group: GroupNr) -> MutexGuard<'_, GroupState> {
        self.states[usize_from_u32(group.raw())].lock_ordered(u64::from(group.raw()))
    }

    /// Notes that the descriptor is about to change.
    fn touch(&self, handle: &Handle<'_>, group: GroupNr, state: &mut GroupState) {
        if state.epoch != handle.epoch() {
            state.epoch = handle.epoch();
            state.before = state.raw;
            self.dirty.lock().push(group);
        }
    }

    /// Sums over all groups. They are exact if nobody changes a group meanwhile.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for group in self.geometry().all_groups() {
            let state = self.lock(group);
            totals.free_clusters += u64::from(state.raw.free_clusters());
            totals.free_inodes += u64::from(state.raw.free_inodes());
            totals.directories += u64::from(state.raw.used_dirs());
        }
        totals
    }

    /// The blocks that no inode may map.
    pub(crate) const fn system_zones(&self) -> &SystemZones {
        &self.zones
    }

    /// First block of the group's inode table.
    pub(crate) fn inode_table(&self, group: GroupNr) -> BlockNr {
        self.places(group).inode_table
    }

    fn places(&self, group: GroupNr) -> &Places {
        &self.places[usize_from_u32(group.raw())]
    }

    /// Reads a bitmap block, from the disk or the cache.
    fn read_bitmap(&self, group: GroupNr, raw: &RawGroupDesc, kind: BlockKind) -> Result<Arc<Buffer>> {
        debug_assert!(kind.is_bitmap(), "{kind:?} is no bitmap");
        let (sums, size) = (self.sb.checksums(), self.sb.desc_size());
        if let BlockKind::BlockBitmap(_) = kind {
            self.cache.read(self.places(group).block_bitmap, kind, |bytes| {
                let bits = self.geometry().clusters_per_group();
                sums.verify_block_bitmap(raw, size, bytes, bits).map_err(|found| found.in_group(group))?;
                Ok(())
            })
        } else {
            self.cache.read(self.places(group).inode_bitmap, kind, |bytes| {
                let bits = self.geometry().inodes_per_group();
                sums.verify_inode_bitmap(raw, size, bytes, bits).map_err(|found| found.in_group(group))?;
                Ok(())
            })
        }
    }
}
