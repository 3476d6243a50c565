//! The superblock's bytes: all 1024 of them, with accessors for numbers that are split in halves.

use zerocopy::little_endian::{U16, U32, U64};

use crate::features::{Compat, Incompat, RoCompat};
use crate::layout::on_disk;
use crate::num::{high32, join32, low8, low32};
use crate::units::{BlockCount, InodeNr};

on_disk! {
    /// One copy of the superblock as stored; nothing in it is verified.
    pub struct RawSuperblock[1024] {
        /// Inodes in the file system.
        0x000 s_inodes_count: U32,
        /// Blocks in the file system, low half.
        0x004 s_blocks_count_lo: U32,
        /// Blocks kept for privileged users, low half.
        0x008 s_r_blocks_count_lo: U32,
        /// Free blocks (not clusters), low half.
        0x00C s_free_blocks_count_lo: U32,
        /// Free inodes.
        0x010 s_free_inodes_count: U32,
        /// First block of group 0: 0, or 1 with 1 KiB blocks and one block per cluster.
        0x014 s_first_data_block: U32,
        /// Block size is `1024 << s_log_block_size`.
        0x018 s_log_block_size: U32,
        /// Cluster size is `1024 << s_log_cluster_size`.
        0x01C s_log_cluster_size: U32,
        /// Blocks per group.
        0x020 s_blocks_per_group: U32,
        /// Clusters per group: bits in use in one block bitmap.
        0x024 s_clusters_per_group: U32,
        /// Inodes per group.
        0x028 s_inodes_per_group: U32,
        /// Last mount time, Unix seconds.
        0x02C s_mtime: U32,
        /// Last write time, Unix seconds.
        0x030 s_wtime: U32,
        /// Mounts since the last check.
        0x034 s_mnt_count: U16,
        /// Mounts after which a check is due; 0 or 0xFFFF for never.
        0x036 s_max_mnt_count: U16,
        /// 0xEF53.
        0x038 s_magic: U16,
        /// [`FsState`] bits.
        0x03A s_state: U16,
        /// [`ErrorPolicy`].
        0x03C s_errors: U16,
        /// Minor revision, 0.
        0x03E s_minor_rev_level: U16,
        /// Last check, Unix seconds.
        0x040 s_lastcheck: U32,
        /// Seconds between checks; 0 for none.
        0x044 s_checkinterval: U32,
        /// 0 Linux, 1 Hurd, 2 Masix, 3 FreeBSD, 4 Lites.
        0x048 s_creator_os: U32,
        /// 0 original format, 1 dynamic inode sizes and features.
        0x04C s_rev_level: U32,
        /// User who may use the reserved blocks.
        0x050 s_def_resuid: U16,
        /// Group that may use the reserved blocks.
        0x052 s_def_resgid: U16,
        /// First inode that is not reserved.
        0x054 s_first_ino: U32,
        /// Bytes of one inode.
        0x058 s_inode_size: U16,
        /// Group that holds this copy.
        0x05A s_block_group_nr: U16,
        /// [`Compat`] bits.
        0x05C s_feature_compat: U32,
        /// [`Incompat`] bits.
        0x060 s_feature_incompat: U32,
        /// [`RoCompat`] bits.
        0x064 s_feature_ro_compat: U32,
        /// UUID of the file system.
        0x068 s_uuid: [u8; 16],
        /// Label, padded with NUL.
        0x078 s_volume_name: [u8; 16],
        /// Directory of the last mount, padded with NUL.
        0x088 s_last_mounted: [u8; 64],
        /// Unused (compression).
        0x0C8 s_algorithm_usage_bitmap: U32,
        /// Unused (blocks to preallocate for files).
        0x0CC s_prealloc_blocks: u8,
        /// Unused (blocks to preallocate for directories).
        0x0CD s_prealloc_dir_blocks: u8,
        /// Blocks reserved after each descriptor table for its growth.
        0x0CE s_reserved_gdt_blocks: U16,
        /// UUID of an external journal.
        0x0D0 s_journal_uuid: [u8; 16],
        /// Inode of the internal journal.
        0x0E0 s_journal_inum: U32,
        /// Device number of an external journal.
        0x0E4 s_journal_dev: U32,
        /// Head of the list of orphans.
        0x0E8 s_last_orphan: U32,
        /// Seed of the directory hashes.
        0x0EC s_hash_seed: [U32; 4],
        /// Directory hash of new indexes: 0 legacy, 1 half MD4, 2 TEA.
        0x0FC s_def_hash_version: u8,
        /// 1 when `s_jnl_blocks` holds a copy of parts of the journal inode.
        0x0FD s_jnl_backup_type: u8,
        /// Bytes of one group descriptor with the 64bit feature.
        0x0FE s_desc_size: U16,
        /// Default mount options.
        0x100 s_default_mount_opts: U32,
        /// First meta group that holds its own descriptor block.
        0x104 s_first_meta_bg: U32,
        /// Creation time, Unix seconds.
        0x108 s_mkfs_time: U32,
        /// Copy of 17 words of the journal inode: `i_block`, size high, size low.
        0x10C s_jnl_blocks: [U32; 17],
        /// Blocks in the file system, high half.
        0x150 s_blocks_count_hi: U32,
        /// Reserved blocks, high half.
        0x154 s_r_blocks_count_hi: U32,
        /// Free blocks, high half.
        0x158 s_free_blocks_count_hi: U32,
        /// Bytes of extra fields that every inode has at least.
        0x15C s_min_extra_isize: U16,
        /// Bytes of extra fields that new inodes get.
        0x15E s_want_extra_isize: U16,
        /// [`FsFlags`] bits.
        0x160 s_flags: U32,
        /// RAID stride in blocks.
        0x164 s_raid_stride: U16,
        /// Seconds between MMP writes.
        0x166 s_mmp_update_interval: U16,
        /// Block of the MMP structure.
        0x168 s_mmp_block: U64,
        /// RAID stripe in blocks.
        0x170 s_raid_stripe_width: U32,
        /// log2 of groups per flex group.
        0x174 s_log_groups_per_flex: u8,
        /// 1 for crc32c.
        0x175 s_checksum_type: u8,
        /// Version of the encryption feature.
        0x176 s_encryption_level: u8,
        /// Padding.
        0x177 s_reserved_pad: u8,
        /// KiB ever written.
        0x178 s_kbytes_written: U64,
        /// Unused (snapshots).
        0x180 s_snapshot_inum: U32,
        /// Unused (snapshots).
        0x184 s_snapshot_id: U32,
        /// Unused (snapshots).
        0x188 s_snapshot_r_blocks_count: U64,
        /// Unused (snapshots).
        0x190 s_snapshot_list: U32,
        /// Errors recorded since the last check.
        0x194 s_error_count: U32,
        /// First error: Unix seconds.
        0x198 s_first_error_time: U32,
        /// First error: inode.
        0x19C s_first_error_ino: U32,
        /// First error: block.
        0x1A0 s_first_error_block: U64,
        /// First error: function name.
        0x1A8 s_first_error_func: [u8; 32],
        /// First error: line.
        0x1C8 s_first_error_line: U32,
        /// Last error: Unix seconds.
        0x1CC s_last_error_time: U32,
        /// Last error: inode.
        0x1D0 s_last_error_ino: U32,
        /// Last error: line.
        0x1D4 s_last_error_line: U32,
        /// Last error: block.
        0x1D8 s_last_error_block: U64,
        /// Last error: function name.
        0x1E0 s_last_error_func: [u8; 32],
        /// Mount options as text, padded with NUL.
        0x200 s_mount_opts: [u8; 64],
        /// Inode of the user quota file.
        0x240 s_usr_quota_inum: U32,
        /// Inode of the group quota file.
        0x244 s_grp_quota_inum: U32,
        /// Clusters of static metadata.
        0x248 s_overhead_clusters: U32,
        /// The groups with backups under sparse_super2; 0 for none.
        0x24C s_backup_bgs: [U32; 2],
        /// Encryption algorithms in use.
        0x254 s_encrypt_algos: [u8; 4],
        /// Salt of the encryption passwords.
        0x258 s_encrypt_pw_salt: [u8; 16],
        /// Inode of lost+found.
        0x268 s_lpf_ino: U32,
        /// Inode of the project quota file.
        0x26C s_prj_quota_inum: U32,
        /// Checksum seed with metadata_csum_seed.
        0x270 s_checksum_seed: U32,
        /// Bits 32..40 of `s_wtime`.
        0x274 s_wtime_hi: u8,
        /// Bits 32..40 of `s_mtime`.
        0x275 s_mtime_hi: u8,
        /// Bits 32..40 of `s_mkfs_time`.
        0x276 s_mkfs_time_hi: u8,
        /// Bits 32..40 of `s_lastcheck`.
        0x277 s_lastcheck_hi: u8,
        /// Bits 32..40 of `s_first_error_time`.
        0x278 s_first_error_time_hi: u8,
        /// Bits 32..40 of `s_last_error_time`.
        0x279 s_last_error_time_hi: u8,
        /// First error: code.
        0x27A s_first_error_errcode: u8,
        /// Last error: code.
        0x27B s_last_error_errcode: u8,
        /// File name encoding with casefold.
        0x27C s_encoding: U16,
        /// Flags of the encoding.
        0x27E s_encoding_flags: U16,
        /// Inode of the orphan file.
        0x280 s_orphan_file_inum: U32,
        /// Reserved.
        0x284 s_reserved: [U32; 94],
        /// crc32c of the bytes before it.
        0x3FC s_checksum: U32,
    }
}

bitflags::bitflags! {
    /// `s_state`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FsState: u16 {
        /// Cleanly unmounted.
        const VALID = 1;
        /// Errors were found.
        const ERROR = 2;
        /// Orphans are being recovered.
        const ORPHAN = 4;
        /// A fast commit is being replayed.
        const FC_REPLAY = 0x20;
        const _ = !0;
    }

    /// `s_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FsFlags: u32 {
        /// Directory hashes take name bytes as signed.
        const SIGNED_HASH = 1;
        /// Directory hashes take name bytes as unsigned.
        const UNSIGNED_HASH = 2;
        /// For testing development code.
        const TEST_FILESYS = 4;
        const _ = !0;
    }
}

/// `s_errors`: what a mount does when it finds an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorPolicy {
    /// Continue.
    Continue,
    /// Become read-only.
    RemountReadOnly,
    /// Halt the machine.
    Panic,
}

impl ErrorPolicy {
    /// The policy of a raw `s_errors`; `None` if it is none of the three.
    #[must_use]
    pub const fn from_raw(raw: u16) -> Option<Self> {
        match raw {
            1 => Some(Self::Continue),
            2 => Some(Self::RemountReadOnly),
            3 => Some(Self::Panic),
            _ => None,
        }
    }

    /// The value of `s_errors`.
    #[must_use]
    pub const fn raw(self) -> u16 {
        match self {
            Self::Continue => 1,
            Self::RemountReadOnly => 2,
            Self::Panic => 3,
        }
    }
}

/// A getter and setter for a time of 40 bits: a 32-bit word and a high byte.
macro_rules! time40 {
    ($(#[$doc:meta])* $get:ident, $set:ident, $lo:ident, $hi:ident) => {
        $(#[$doc])*
        #[must_use]
        pub fn $get(&self) -> u64 {
            join32(u32::from(self.$hi), self.$lo.get())
        }

        /// Sets both parts of the time, and drops bits above 39.
        pub fn $set(&mut self, seconds: u64) {
            self.$lo = U32::new(low32(seconds));
            self.$hi = low8(high32(seconds));
        }
    };
}

impl RawSuperblock {
    /// `s_blocks_count`; the high half is used only with the 64bit feature.
    #[must_use]
    pub fn blocks_count(&self) -> BlockCount {
        self.joined(self.s_blocks_count_hi, self.s_blocks_count_lo)
    }

    /// Sets both halves of `s_blocks_count`.
    pub fn set_blocks_count(&mut self, blocks: BlockCount) {
        self.s_blocks_count_lo = U32::new(low32(blocks.raw()));
        self.s_blocks_count_hi = U32::new(high32(blocks.raw()));
    }

    /// `s_r_blocks_count`; the high half is used only with the 64bit feature.
    #[must_use]
    pub fn reserved_blocks_count(&self) -> BlockCount {
        self.joined(self.s_r_blocks_count_hi, self.s_r_blocks_count_lo)
    }

    /// Sets both halves of `s_r_blocks_count`.
    pub fn set_reserved_blocks_count(&mut self, blocks: BlockCount) {
        self.s_r_blocks_count_lo = U32::new(low32(blocks.raw()));
        self.s_r_blocks_count_hi = U32::new(high32(blocks.raw()));
    }

    /// `s_free_blocks_count`; the high half is used only with the 64bit feature.
    #[must_use]
    pub fn free_blocks_count(&self) -> BlockCount {
        self.joined(self.s_free_blocks_count_hi, self.s_free_blocks_count_lo)
    }

    /// Sets both halves of `s_free_blocks_count`.
    pub fn set_free_blocks_count(&mut self, blocks: BlockCount) {
        self.s_free_blocks_count_lo = U32::new(low32(blocks.raw()));
        self.s_free_blocks_count_hi = U32::new(high32(blocks.raw()));
    }

    fn joined(&self, hi: U32, lo: U32) -> BlockCount {
        let hi = if self.incompat().contains(Incompat::BIT64) { hi.get() } else { 0 };
        BlockCount::new(join32(hi, lo.get()))
    }

    /// `s_feature_compat`.
    #[must_use]
    pub fn compat(&self) -> Compat {
        Compat::from_bits_retain(self.s_feature_compat.get())
    }

    /// Sets `s_feature_compat`.
    pub fn set_compat(&mut self, features: Compat) {
        self.s_feature_compat = U32::new(features.bits());
    }

    /// `s_feature_incompat`.
    #[must_use]
    pub fn incompat(&self) -> Incompat {
        Incompat::from_bits_retain(self.s_feature_incompat.get())
    }

    /// Sets `s_feature_incompat`.
    pub fn set_incompat(&mut self, features: Incompat) {
        self.s_feature_incompat = U32::new(features.bits());
    }

    /// `s_feature_ro_compat`.
    #[must_use]
    pub fn ro_compat(&self) -> RoCompat {
        RoCompat::from_bits_retain(self.s_feature_ro_compat.get())
    }

    /// Sets `s_feature_ro_compat`.
    pub fn set_ro_compat(&mut self, features: RoCompat) {
        self.s_feature_ro_compat = U32::new(features.bits());
    }

    /// `s_state`.
    #[must_use]
    pub fn state(&self) -> FsState {
        FsState::from_bits_retain(self.s_state.get())
    }

    /// Sets `s_state`.
    pub fn set_state(&mut self, state: FsState) {
        self.s_state = U16::new(state.bits());
    }

    /// `s_flags`.
    #[must_use]
    pub fn flags(&self) -> FsFlags {
        FsFlags::from_bits_retain(self.s_flags.get())
    }

    /// Sets `s_flags`.
    pub fn set_flags(&mut self, flags: FsFlags) {
        self.s_flags = U32::new(flags.bits());
    }

    /// `s_hash_seed` as four words.
    #[must_use]
    pub fn hash_seed(&self) -> [u32; 4] {
        self.s_hash_seed.map(U32::get)
    }

    /// Sets `s_hash_seed` from four words.
    pub fn set_hash_seed(&mut self, seed: [u32; 4]) {
        self.s_hash_seed = seed.map(U32::new);
    }

    /// `s_last_orphan`; `None` if the list is empty.
    #[must_use]
    pub fn last_orphan(&self) -> Option<InodeNr> {
        Some(InodeNr::new(self.s_last_orphan.get())).filter(|inode| *inode != InodeNr::ZERO)
    }

    /// Sets `s_last_orphan`.
    pub fn set_last_orphan(&mut self, inode: Option<InodeNr>) {
        self.s_last_orphan = U32::new(inode.map_or(0, InodeNr::raw));
    }

    time40! {
        /// Last mount, Unix seconds.
        mount_time, set_mount_time, s_mtime, s_mtime_hi
    }
    time40! {
        /// Last write, Unix seconds.
        write_time, set_write_time, s_wtime, s_wtime_hi
    }
    time40! {
        /// Creation, Unix seconds.
        mkfs_time, set_mkfs_time, s_mkfs_time, s_mkfs_time_hi
    }
    time40! {
        /// Last check, Unix seconds.
        check_time, set_check_time, s_lastcheck, s_lastcheck_hi
    }
    time40! {
        /// First recorded error, Unix seconds; 0 for none.
        first_error_time, set_first_error_time, s_first_error_time, s_first_error_time_hi
    }
    time40! {
        /// Last recorded error, Unix seconds; 0 for none.
        last_error_time, set_last_error_time, s_last_error_time, s_last_error_time_hi
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_ignore_the_high_half_without_64bit() {
        let mut sb = RawSuperblock::zeroed();
        sb.set_blocks_count(BlockCount::new(0x5_0000_0007));
        assert_eq!(sb.blocks_count(), BlockCount::new(7));
        sb.set_incompat(Incompat::BIT64);
        assert_eq!(sb.blocks_count(), BlockCount::new(0x5_0000_0007));
    }

    #[test]
    fn times_hold_forty_bits() {
        let mut sb = RawSuperblock::zeroed();
        sb.set_write_time(0xAB_1234_5678);
        assert_eq!((sb.s_wtime.get(), sb.s_wtime_hi), (0x1234_5678, 0xAB));
        assert_eq!(sb.write_time(), 0xAB_1234_5678);
    }
}
