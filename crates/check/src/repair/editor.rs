//! Reads and writes of one round. Writes go to an overlay, so that the image is only read.
//!
//! Space is free if the walk over all inodes did not claim it, whatever the bitmaps say. Until that
//! walk has ended, the bitmaps must call the space free, too. A cluster that the editor allocates
//! is claimed at once, and its blocks are remembered as fresh: they are written before anything
//! that refers to them.

use std::collections::BTreeMap;

use blockyard_device::{BlockDevice, DeviceError};
use blockyard_disk::group_desc::GroupFlags;
use blockyard_disk::inode::InodeSlot;
use blockyard_disk::num::{u64_from_u32, usize_from_u32};
use blockyard_disk::superblock::{MAGIC, PRIMARY_OFFSET, RawSuperblock};
use blockyard_disk::{BlockNr, Checksums, GroupNr, InodeNr};
use zerocopy::{FromBytes, IntoBytes};

use super::log::{Cost, Log};
use crate::code::Code;
use crate::finding::Site;
use crate::inode::Scan;
use crate::volume::Volume;

/// The slot of an inode in a buffer of its own.
pub(crate) type Slot = InodeSlot<Vec<u8>>;

/// One round of repair.
pub(crate) struct Editor<'a, 'v> {
    pub(crate) scan: &'a Scan<'a, 'v>,
    pub(crate) log: &'a mut Log,
    /// Seconds since 1970, for deletion times and the superblock.
    pub(crate) now: u64,
    /// The external journal.
    pub(crate) journal: Option<&'a dyn BlockDevice>,
    /// Whether the walk over all inodes has claimed everything that is in use.
    pub(crate) walked: Walked,
    /// Nodes of maps that only their own inode claims. A new map may take their places.
    pub(super) own_nodes: BTreeMap<InodeNr, Vec<BlockNr>>,
    next_free: u64,
    marked: Marked,
}

/// Whether the walk over all inodes has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walked {
    NotYet,
    Yes,
}

/// The block bitmap that was read last.
#[derive(Default)]
struct Marked {
    group: Option<GroupNr>,
    bitmap: Vec<u8>,
}

impl Marked {
    /// Whether the bitmap on the device calls a cluster used. Returns false if the group has no
    /// valid bitmap, or if the bitmap cannot be read.
    fn is_marked(&mut self, volume: &Volume<'_>, cluster: u64) -> bool {
        let geometry = &volume.geometry;
        let first = geometry.first_data_block().raw();
        let block = BlockNr::new(first + cluster * u64_from_u32(geometry.cluster_ratio()));
        let (group, offset) = geometry.locate(block);
        if self.group != Some(group) {
            let known = volume.group_of(group);
            let uninit = known.flags.contains(GroupFlags::BLOCK_UNINIT) || !known.block_bitmap_ok;
            self.bitmap =
                if uninit { Vec::new() } else { volume.block(known.desc.block_bitmap()).unwrap_or_default() };
            self.group = Some(group);
        }
        let byte = self.bitmap.get(usize_from_u32(offset.raw() / 8));
        byte.is_some_and(|byte| byte >> (offset.raw() % 8) & 1 == 1)
    }
}

impl<'a, 'v> Editor<'a, 'v> {
    pub(crate) fn new(scan: &'a Scan<'a, 'v>, log: &'a mut Log, now: u64) -> Self {
        Self {
            scan,
            log,
            now,
            journal: None,
            walked: Walked::NotYet,
            own_nodes: BTreeMap::new(),
            next_free: 0,
            marked: Marked::default(),
        }
    }

    pub(crate) fn volume(&self) -> &'a Volume<'v> {
        self.scan.volume
    }

    pub(crate) fn add(&mut self, code: Code, site: Site, cost: Cost, what: impl Into<String>) {
        self.log.add(code, site, cost, what);
    }

    pub(crate) fn slot(&self, inode: InodeNr) -> Result<Slot, DeviceError> {
        Ok(InodeSlot::new(self.volume().inode(inode)?))
    }

    /// Writes an inode with its checksum.
    pub(crate) fn put_slot(&self, inode: InodeNr, slot: &mut Slot) -> Result<(), DeviceError> {
        let volume = self.volume();
        volume.checksums.seal_inode(inode, slot);
        // If the group's inode table has no valid place, the write is dropped: the next round finds
        // the fault again.
        volume.inode_offset(inode).map_or(Ok(()), |at| volume.device.write_at(at, slot.bytes()))
    }

    /// Changes the superblock and seals it. The change takes effect in the next round.
    pub(crate) fn change_superblock(
        &self,
        change: impl FnOnce(&mut RawSuperblock),
    ) -> Result<(), DeviceError> {
        change_superblock(self.volume().device, change)
    }

    pub(crate) fn put_block(&self, block: BlockNr, bytes: &[u8]) -> Result<(), DeviceError> {
        let volume = self.volume();
        assert_eq!(bytes.len(), volume.block_size(), "block {block} is written whole");
        assert!(volume.contains(block), "block {block} lies outside the file system");
        volume.device.write_at(block.raw() << volume.geometry.block_bits(), bytes)
    }

    /// Whether the bitmap on the device calls a cluster used although nothing claims the cluster.
    pub(crate) fn is_leaked(&mut self, cluster: u64) -> bool {
        debug_assert_eq!(self.walked, Walked::Yes, "not everything is claimed yet");
        !self.scan.map.is_claimed(cluster) && self.marked.is_marked(self.scan.volume, cluster)
    }

    /// Allocates a cluster; returns its first block, or `None` when none is free.
    ///
    /// Blocks that a damaged inode maps are perhaps unclaimed. So clusters that the bitmaps also
    /// call free come first. Until the walk over the inodes has ended, only these may be taken.
    pub(crate) fn allocate(&mut self) -> Option<BlockNr> {
        let geometry = &self.volume().geometry;
        let mut at = self.next_free;
        let free_twice = std::iter::from_fn(|| {
            let cluster = self.scan.map.free_from(at)?;
            at = cluster + 1;
            Some(cluster)
        })
        .find(|&cluster| !self.marked.is_marked(self.scan.volume, cluster));
        let cluster = match free_twice {
            Some(cluster) => {
                self.next_free = cluster + 1;
                cluster
            }
            None if self.walked == Walked::NotYet => return None,
            None => {
                self.next_free = u64::MAX;
                self.scan.map.free_from(0)?
            }
        };
        let met = self.scan.map.claim(cluster, 1);
        assert!(!met, "cluster {cluster} was free");
        let ratio = u64_from_u32(geometry.cluster_ratio());
        let first = geometry.first_data_block().raw() + cluster * ratio;
        self.log.fresh.extend(first..first + ratio);
        Some(BlockNr::new(first))
    }
}

/// The primary superblock, when its magic and checksum are right.
pub(super) fn sound_superblock(device: &dyn BlockDevice) -> Option<RawSuperblock> {
    let mut bytes = [0; RawSuperblock::SIZE];
    device.read_at(PRIMARY_OFFSET, &mut bytes).ok()?;
    let sb = RawSuperblock::read_from_bytes(&bytes).ok()?;
    let sound = sb.s_magic.get() == MAGIC && Checksums::of(&sb).verify_superblock(&sb).is_ok();
    sound.then_some(sb)
}

/// Changes the superblock of a device and seals it.
pub(crate) fn change_superblock(
    device: &dyn BlockDevice,
    change: impl FnOnce(&mut RawSuperblock),
) -> Result<(), DeviceError> {
    let mut bytes = [0; RawSuperblock::SIZE];
    device.read_at(PRIMARY_OFFSET, &mut bytes)?;
    let mut sb = RawSuperblock::read_from_bytes(&bytes).expect("1024 bytes are a superblock");
    change(&mut sb);
    Checksums::of(&sb).seal_superblock(&mut sb);
    device.write_at(PRIMARY_OFFSET, sb.as_bytes())
}
