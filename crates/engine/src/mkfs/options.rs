//! What to make: the supported parameters of mke2fs. Unset ones follow from the profile and the
//! size.
//!
//! Key decision: the fields are public, and the common ones also have builder methods. Nothing is
//! checked here; [`super::params`] checks all options and their combinations in one place. Options
//! hold all inputs: with the same options on a device of the same size, the same bytes are written.

use blockyard_disk::superblock::ErrorPolicy;

use super::profile::{Profile, Usage};

/// A size or a position on the device: in bytes, or in blocks of a size chosen later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Bytes.
    Bytes(u64),
    /// Blocks of the file system to be made.
    Blocks(u64),
}

impl Amount {
    /// This amount in blocks of `block_size` bytes, rounded down.
    #[must_use]
    pub const fn in_blocks(self, block_size: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes / block_size,
            Self::Blocks(blocks) => blocks,
        }
    }
}

/// Where the UUID comes from (`-U`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UuidChoice {
    /// A version 4 UUID drawn from [`Options::seed`].
    #[default]
    Random,
    /// All zero.
    Clear,
    /// A version 1 UUID of [`Options::time`], its clock sequence and node drawn from the seed.
    Time,
    /// The given UUID.
    Given([u8; 16]),
}

/// All parameters of one file system to be made. An unset one takes mke2fs's default for the
/// profile and the size.
///
/// The default is ext4 with seed 0 and time 0; the size decides the usage type.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `-t`: whose defaults to start from.
    pub profile: Profile,
    /// `-T`: usage types; later ones win. If empty, the size decides.
    pub usage: Vec<Usage>,
    /// Size of the file system; `None`: the whole device.
    pub size: Option<Amount>,
    /// `-b`: block size in bytes, a power of two from 1024 to 65536.
    pub block_size: Option<u32>,
    /// `-C`: cluster size in bytes; needs bigalloc.
    pub cluster_size: Option<u32>,
    /// `-O`: edit lists, applied in order.
    pub features: Vec<String>,
    /// `-G`: groups per flex group, a power of two.
    pub flex_groups: Option<u32>,
    /// `-g`: blocks (with bigalloc: clusters) per group, a multiple of 8.
    pub blocks_per_group: Option<u32>,
    /// `-N`: the least number of inodes wanted.
    pub inodes: Option<u32>,
    /// `-i`: bytes per inode.
    pub bytes_per_inode: Option<u32>,
    /// `-I`: bytes of one inode, a power of two from 128 to the block size, at most 32768.
    pub inode_size: Option<u32>,
    /// `-m`: blocks kept for privileged users, in percent, 0 to 50; default 5.
    pub reserved_percent: Option<f64>,
    /// `-r`: revision, 0 or 1; default 1.
    pub revision: Option<u32>,
    /// `-e`: what a mount does on errors; default continue.
    pub errors: Option<ErrorPolicy>,
    /// `-U`: where the UUID comes from.
    pub uuid: UuidChoice,
    /// `-E hash_seed=`: seed of the directory hashes; `None`: drawn from [`Options::seed`].
    pub hash_seed: Option<[u8; 16]>,
    /// `-L`: label, at most 16 bytes.
    pub label: String,
    /// `-M`: directory of the last mount, at most 64 bytes.
    pub last_mounted: String,
    /// `-J size=`: journal size in MiB.
    pub journal_mib: Option<u32>,
    /// `-J location=`: position of the journal.
    pub journal_location: Option<Amount>,
    /// `-J fast_commit_size=`: fast-commit area in KiB.
    pub fast_commit_kib: Option<u32>,
    /// `-E resize=`: the size up to which online growth must be possible.
    pub resize: Option<Amount>,
    /// `-E stride=`: RAID stride in blocks.
    pub stride: Option<u32>,
    /// `-E stripe_width=`: RAID stripe width in blocks.
    pub stripe_width: Option<u32>,
    /// `-E lazy_itable_init=`: leave inode tables to be zeroed by the kernel; default yes. Matters
    /// only with `no_discard`: otherwise the whole device is zeroed.
    pub lazy_itable_init: Option<bool>,
    /// `-E lazy_journal_init=`: do not zero the journal; default yes. This, too, matters only with
    /// `no_discard`.
    pub lazy_journal_init: Option<bool>,
    /// `-E packed_meta_blocks=`: bitmaps, tables and journal at the start of the device.
    pub packed_meta_blocks: bool,
    /// `-E root_owner=`: owner and group of the root directory.
    pub root_owner: Option<(u32, u32)>,
    /// `-E num_backup_sb=`: backups with sparse_super2, 0 to 2; default 2.
    pub backup_superblocks: Option<u32>,
    /// `-E nodiscard`: do not clear the whole device first. The device then keeps its old content,
    /// except where metadata is written, in the first 4 KiB, in the last 64 KiB of the file system,
    /// and in inode tables and journal if they are not initialised lazily.
    pub no_discard: bool,
    /// `-E mmp_update_interval=`: seconds between MMP writes, at most 300; default 5, also for 0.
    pub mmp_update_interval: Option<u32>,
    /// `-E orphan_file_size=`: size of the orphan file.
    pub orphan_file_size: Option<Amount>,
    /// `-E test_fs`: mark the file system as one for development code.
    pub test_fs: bool,
    /// Source of all randomness: UUID and hash seed if not given.
    pub seed: u64,
    /// Time of creation, Unix seconds.
    pub time: u64,
}

impl Options {
    /// The defaults of a profile.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        Self { profile, ..Self::default() }
    }

    /// ext4's defaults.
    #[must_use]
    pub fn ext4() -> Self {
        Self::new(Profile::Ext4)
    }

    /// ext3's defaults.
    #[must_use]
    pub fn ext3() -> Self {
        Self::new(Profile::Ext3)
    }

    /// ext2's defaults.
    #[must_use]
    pub fn ext2() -> Self {
        Self::new(Profile::Ext2)
    }

    /// Sets the block size in bytes.
    #[must_use]
    pub const fn block_size(mut self, bytes: u32) -> Self {
        self.block_size = Some(bytes);
        self
    }

    /// Sets the size of the file system in bytes.
    #[must_use]
    pub const fn size(mut self, bytes: u64) -> Self {
        self.size = Some(Amount::Bytes(bytes));
        self
    }

    /// Edits the features, as `-O` does: `"bigalloc,^has_journal"`.
    #[must_use]
    pub fn features(mut self, edits: &str) -> Self {
        self.features.push(edits.to_owned());
        self
    }

    /// Sets the cluster size in bytes and turns bigalloc on.
    #[must_use]
    pub fn cluster_size(mut self, bytes: u32) -> Self {
        self.cluster_size = Some(bytes);
        self.features("bigalloc")
    }

    /// Sets the inode size in bytes.
    #[must_use]
    pub const fn inode_size(mut self, bytes: u32) -> Self {
        self.inode_size = Some(bytes);
        self
    }

    /// Sets the number of inodes wanted.
    #[must_use]
    pub const fn inodes(mut self, count: u32) -> Self {
        self.inodes = Some(count);
        self
    }

    /// Sets the size of the journal in MiB.
    #[must_use]
    pub const fn journal_mib(mut self, mib: u32) -> Self {
        self.journal_mib = Some(mib);
        self
    }

    /// Sets the UUID.
    #[must_use]
    pub const fn uuid(mut self, uuid: [u8; 16]) -> Self {
        self.uuid = UuidChoice::Given(uuid);
        self
    }

    /// Sets the label.
    #[must_use]
    pub fn label(mut self, label: &str) -> Self {
        label.clone_into(&mut self.label);
        self
    }

    /// Sets the time of creation (Unix seconds), and the seed of what is drawn: UUID and hash seed,
    /// if they are not given.
    #[must_use]
    pub const fn identity(mut self, seed: u64, time: u64) -> Self {
        self.seed = seed;
        self.time = time;
        self
    }
}
