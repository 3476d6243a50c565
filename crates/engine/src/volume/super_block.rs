//! The superblock while the file system is open: its changing fields, and writing it.

use crate::Result;
use crate::groups::Totals;
use crate::txn::Image;
use blockyard_device::BlockDevice;
use blockyard_disk::num::{u32_from_u64, u64_from_usize, usize_from_u64};
use blockyard_disk::superblock::{FsState, PRIMARY_OFFSET, RawSuperblock};
use blockyard_disk::{BlockCount, BlockNr, Checksums, Compat, Incompat, RoCompat, Timestamp};
use zerocopy::IntoBytes;

/// The primary superblock and the block around it.
pub(super) struct SuperBlock {
    raw: RawSuperblock,
    checksums: Checksums,
    /// The block that holds the superblock. A block of more than 1 KiB also holds the bytes before
    /// the superblock, which belong to boot loaders and must stay.
    around: Box<[u8]>,
    offset: usize,
    block: BlockNr,
    cluster_bits: u32,
}

impl SuperBlock {
    /// Takes the verified superblock `raw`, and reads the block around it.
    pub(super) fn new(
        device: &dyn BlockDevice,
        raw: RawSuperblock,
        checksums: Checksums,
        block_size: usize,
        cluster_bits: u32,
    ) -> Result<Self> {
        let size = u64_from_usize(block_size);
        let block = BlockNr::new(PRIMARY_OFFSET / size);
        let mut around = vec![0; block_size].into_boxed_slice();
        device.read_at(block.raw() * size, &mut around)?;
        let offset = usize_from_u64(PRIMARY_OFFSET % size);
        assert!(offset + RawSuperblock::SIZE <= block_size, "the superblock lies in one block");
        Ok(Self { raw, checksums, around, offset, block, cluster_bits })
    }

    /// The fields, mutable. Changes reach the disk when the superblock is written next.
    pub(super) const fn raw_mut(&mut self) -> &mut RawSuperblock {
        &mut self.raw
    }

    /// The fields.
    pub(super) const fn raw(&self) -> &RawSuperblock {
        &self.raw
    }

    /// The blocks of the file system's own metadata, which `statfs` subtracts from the total.
    pub(super) fn overhead_blocks(&self) -> u64 {
        u64::from(self.raw.s_overhead_clusters.get()) << self.cluster_bits
    }

    /// The block that holds the superblock, as a commit writes it: with the given totals and a
    /// valid checksum.
    pub(super) fn image(&mut self, totals: &Totals) -> Image {
        self.set_totals(totals);
        self.checksums.seal_superblock(&mut self.raw);
        debug_assert!(
            self.checksums.verify_superblock(&self.raw).is_ok(),
            "a superblock that would not open"
        );
        let mut bytes = self.around.clone();
        bytes[self.offset..self.offset + RawSuperblock::SIZE].copy_from_slice(self.raw.as_bytes());
        Image { block: self.block, bytes }
    }

    fn set_totals(&mut self, totals: &Totals) {
        self.raw.set_free_blocks_count(BlockCount::new(totals.free_clusters << self.cluster_bits));
        self.raw.s_free_inodes_count.set(u32_from_u64(totals.free_inodes));
    }

    /// Sets the field for the last mount point: truncated to fit, and zero-terminated.
    pub(super) fn set_last_mounted(&mut self, place: &[u8]) {
        let field = &mut self.raw.s_last_mounted;
        let len = place.len().min(field.len() - 1);
        field.fill(0);
        field[..len].copy_from_slice(&place[..len]);
    }

    /// Marks the image as in use, durably, before any transaction. If the journal is used, that
    /// mark is the RECOVER feature; otherwise the VALID state is cleared.
    pub(super) fn write_opened(
        &mut self,
        device: &dyn BlockDevice,
        now: Timestamp,
        journaled: bool,
    ) -> Result<()> {
        if journaled {
            self.raw.set_incompat(self.raw.incompat() | Incompat::RECOVER);
        } else {
            self.raw.set_state(self.raw.state() - FsState::VALID);
        }
        // An implementation that does not know the orphan file must not write to the image while
        // the orphan file may hold entries.
        self.set_orphan_present(self.raw.compat().contains(Compat::ORPHAN_FILE));
        let mounts = self.raw.s_mnt_count.get().saturating_add(1);
        self.raw.s_mnt_count.set(mounts);
        self.raw.set_mount_time(now.seconds.max(0).unsigned_abs());
        self.write(device, now)
    }

    /// Marks the image as no longer in use, durably, after everything else is written. The image is
    /// marked as clean only if it `was_valid` when it was opened.
    pub(super) fn write_closed(
        &mut self,
        device: &dyn BlockDevice,
        now: Timestamp,
        was_valid: bool,
        totals: &Totals,
    ) -> Result<()> {
        self.set_totals(totals);
        let mut state = self.raw.state();
        state.set(FsState::VALID, was_valid);
        self.raw.set_state(state);
        self.raw.set_incompat(self.raw.incompat() - Incompat::RECOVER);
        self.set_orphan_present(false);
        self.write(device, now)
    }

    fn set_orphan_present(&mut self, present: bool) {
        let mut features = self.raw.ro_compat();
        features.set(RoCompat::ORPHAN_PRESENT, present);
        self.raw.set_ro_compat(features);
    }

    fn write(&mut self, device: &dyn BlockDevice, now: Timestamp) -> Result<()> {
        self.raw.set_write_time(now.seconds.max(0).unsigned_abs());
        self.checksums.seal_superblock(&mut self.raw);
        assert!(self.checksums.verify_superblock(&self.raw).is_ok(), "a superblock that would not open");
        device.flush()?;
        Ok(device.write_durable_at(PRIMARY_OFFSET, self.raw.as_bytes())?)
    }
}
