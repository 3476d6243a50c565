//! mkfs on devices that record its calls or fail them: a refusal leaves the device untouched, no
//! block is written twice, the superblock is written last, and after a failed write the device
//! holds no file system.

#![allow(clippy::unwrap_used, clippy::as_conversions)]

use std::sync::Mutex;

use blockyard_device::{
    BlockDevice, DeviceError, Effect, Fault, FaultyDevice, MemoryDevice, Operation, When,
};
use blockyard_disk::superblock::RawSuperblock;
use blockyard_engine::mkfs::{self, Amount, Error, Options, UuidChoice};

/// A device that keeps no content, only a record of its writes and flushes.
struct Witness {
    size: u64,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    writes: Vec<(u64, u64)>,
    flushes: Vec<usize>,
}

impl Witness {
    fn new(size: u64) -> Self {
        Self { size, log: Mutex::new(Log::default()) }
    }
}

impl BlockDevice for Witness {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        panic!("mkfs reads {} bytes at {offset}: it has no need to", buf.len());
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        assert!(offset + data.len() as u64 <= self.size);
        self.log.lock().unwrap().writes.push((offset, data.len() as u64));
        Ok(())
    }

    fn write_zeroes(&self, _offset: u64, _length: u64) -> Result<(), DeviceError> {
        assert!(self.log.lock().unwrap().writes.is_empty(), "the device is cleared before it is written");
        Ok(())
    }

    fn discard(&self, _offset: u64, _length: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let mut log = self.log.lock().unwrap();
        let writes = log.writes.len();
        log.flushes.push(writes);
        Ok(())
    }
}

/// Asserts that the superblock is written last, that all other writes ascend and do not overlap,
/// and that one flush follows. Returns the number of bytes written.
fn assert_written_once(device: &Witness) -> u64 {
    let log = device.log.lock().unwrap();
    let (superblock, pieces) = log.writes.split_last().unwrap();
    assert_eq!(*superblock, (1024, 1024));
    for pair in pieces.windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?} overlap or go back");
    }
    assert!(pieces.iter().all(|(at, _)| *at >= 2048), "the superblock's place is written once");
    assert_eq!(log.flushes, [log.writes.len()], "one flush, at the end");
    log.writes.iter().map(|(_, len)| len).sum()
}

#[test]
fn sixteen_tib_are_made_with_few_writes() {
    let device = Witness::new(16 << 40);
    let summary = mkfs::format(&device, &Options::ext4()).unwrap();
    assert_eq!((summary.blocks, summary.groups, summary.inodes), (1 << 32, 131_072, 1 << 28));
    let written = assert_written_once(&device);
    assert!(written < 260 << 20, "{written} bytes; the copies of the descriptors alone are 25 times 8 MiB");
}

#[test]
fn every_block_is_written_once() {
    let many = "orphan_file,inline_data";
    for (size, options) in [
        (8 << 20, Options::ext4()),
        (300 << 20, Options::ext4().features(many)),
        (300 << 20, Options::ext3().block_size(1024)),
        (5 << 30, Options::ext4().cluster_size(65536)),
        (5 << 30, Options::ext2().features("meta_bg,^resize_inode")),
        (2 << 30, Options { packed_meta_blocks: true, ..Options::ext4() }),
    ] {
        let device = Witness::new(size);
        mkfs::format(&device, &options).unwrap();
        assert_written_once(&device);
    }
}

fn superblock(device: &dyn BlockDevice) -> RawSuperblock {
    let mut bytes = [0; 1024];
    device.read_at(1024, &mut bytes).unwrap();
    zerocopy::FromBytes::read_from_bytes(&bytes[..]).unwrap()
}

#[test]
fn a_device_that_fails_holds_no_file_system() {
    let options = Options::ext4();
    let counts = {
        let device = FaultyDevice::new(MemoryDevice::new(64 << 20));
        mkfs::format(&device, &options).unwrap();
        device.counts()
    };
    assert!(counts.writes > 5, "{counts:?}");
    for nth in 1..=counts.writes {
        let device = FaultyDevice::new(MemoryDevice::new(64 << 20));
        // An older file system on the device must not survive either.
        mkfs::format(device.below(), &Options::ext2()).unwrap();
        device.add(Fault { operation: Operation::Write, when: When::Nth(nth), effect: Effect::Short(512) });
        let error = mkfs::format(&device, &options).unwrap_err();
        assert!(matches!(error, Error::Device(_)), "{error}");
        let sb = superblock(device.below());
        let whole =
            sb.s_magic.get() == 0xEF53 && blockyard_disk::Checksums::of(&sb).verify_superblock(&sb).is_ok();
        assert!(!whole, "write {nth} failed and left a file system");
    }
}

/// Asserts that these options are refused with this message and leave a device untouched.
fn assert_refused(size: u64, options: &Options, message: &str) {
    let device = MemoryDevice::new(size);
    let pattern = [0xA5; 4096];
    device.write_at(0, &pattern).unwrap();
    let error = mkfs::format(&device, options).unwrap_err();
    assert_eq!(error.to_string(), message);
    assert!(!message.contains('\n'), "one line");
    let mut now = [0; 4096];
    device.read_at(0, &mut now).unwrap();
    assert!(now == pattern && device.resident_bytes() <= 64 << 10, "something was written: {message}");
}

#[test]
fn refused_features_are_named() {
    let cases = [
        (
            "quota",
            "quota files are not maintained; make the image without it and enable it with tune2fs -O quota",
        ),
        ("project", "project quotas are not maintained; enable it afterwards with tune2fs -O project"),
        (
            "casefold",
            "case-insensitive names are not supported; enable it afterwards with tune2fs -O casefold",
        ),
        ("encrypt", "encrypted directories are not supported; enable it afterwards with tune2fs -O encrypt"),
        ("verity", "verity files are not supported; enable it afterwards with tune2fs -O verity"),
        ("journal_dev", "external journals are not supported; use an internal one (has_journal)"),
    ];
    for (name, reason) in cases {
        assert_refused(64 << 20, &Options::ext4().features(name), &format!("-O {name}: {reason}"));
    }
}

#[test]
fn impossible_combinations_are_refused() {
    let ext4 = Options::ext4;
    for (edits, message) in [
        ("meta_bg", "-O meta_bg and resize_inode exclude each other; add ^resize_inode"),
        ("^sparse_super", "-O resize_inode needs sparse_super; add sparse_super or ^resize_inode"),
        ("^extent", "-O 64bit needs extent; add extent or ^64bit"),
        ("^64bit,^extent,bigalloc", "-O bigalloc needs extent; add extent"),
        ("^metadata_csum,metadata_csum_seed", "-O metadata_csum_seed needs metadata_csum; add metadata_csum"),
        ("^has_journal,orphan_file", "-O orphan_file needs a journal; add has_journal"),
    ] {
        assert_refused(64 << 20, &ext4().features(edits), message);
    }
    assert_refused(
        64 << 20,
        &ext4().features("inline_data").inode_size(128),
        "-O inline_data needs inodes above 128 bytes; give -I 256 or more",
    );
    let no_flex = || ext4().features("^flex_bg");
    let message = "-G needs the feature flex_bg; add -O flex_bg";
    assert_refused(64 << 20, &Options { flex_groups: Some(8), ..no_flex() }, message);
    let message = "-E packed_meta_blocks=1 needs the feature flex_bg; add -O flex_bg";
    assert_refused(64 << 20, &Options { packed_meta_blocks: true, ..no_flex() }, message);
    let message = "-C needs the feature bigalloc; add -O bigalloc";
    assert_refused(64 << 20, &Options { cluster_size: Some(65536), ..ext4() }, message);
    let message = "-E mmp_update_interval= needs the feature mmp; add -O mmp";
    assert_refused(64 << 20, &Options { mmp_update_interval: Some(5), ..ext4() }, message);
    let message = "-J fast_commit_size= needs the feature fast_commit; add -O fast_commit";
    assert_refused(64 << 20, &Options { fast_commit_kib: Some(64), ..ext4() }, message);
    let message = "-r 0 has no features; leave -O out";
    assert_refused(64 << 20, &Options { revision: Some(0), ..ext4().features("extent") }, message);
}

#[test]
fn values_out_of_range_are_refused() {
    let ext4 = Options::ext4;
    let cases: Vec<(Options, &str)> = vec![
        (ext4().block_size(3000), "-b 3000: the block size must be a power of two from 1024 to 65536"),
        (
            ext4().cluster_size(1024),
            "-C 1024: the cluster size must be a power of two from 2048 to 256 MiB and at least the block size",
        ),
        (
            ext4().inode_size(2048),
            "-I 2048: with blocks of 1024 bytes, the inode size must be a power of two from 128 to 1024",
        ),
        (
            ext4().block_size(65_536).inode_size(65_536),
            "-I 65536: with blocks of 65536 bytes, the inode size must be a power of two from 128 to 32768",
        ),
        (
            Options { blocks_per_group: Some(260), ..ext4() },
            "-g 260: blocks per group must be a multiple of 8 from 256 to 8192",
        ),
        (
            Options { bytes_per_inode: Some(1000), ..ext4() },
            "-i 1000: bytes per inode must be between 1024 and 67108864",
        ),
        (
            Options { reserved_percent: Some(51.0), ..ext4() },
            "-m 51: reserved percent must be between 0 and 50",
        ),
        (Options { flex_groups: Some(3), ..ext4() }, "-G 3: groups per flex group must be a power of two"),
        (Options { revision: Some(2), ..ext4() }, "-r: the revision must be 0 or 1"),
        (ext4().label("seventeen letters"), "-L seventeen letters: a label has at most 16 bytes"),
        (
            ext4().journal_mib(60),
            "-J size=: 61440 blocks are more than half of the file system's 64245 free ones; give fewer MiB",
        ),
        (
            Options { journal_mib: Some(3), ..ext4().block_size(4096) },
            "-J size=: 768 blocks are fewer than the 1024 that a journal needs; give more MiB",
        ),
        (
            Options { journal_location: Some(Amount::Bytes(64 << 20)), ..ext4() },
            "-J location=: block 65536 is beyond the file system's 65536; give a lower one",
        ),
        (
            Options { resize: Some(Amount::Blocks(100)), ..ext4() },
            "-E resize=: 100 blocks are not more than the file system's 65536; ask for more",
        ),
        (
            Options { orphan_file_size: Some(Amount::Blocks(513)), ..ext4().features("orphan_file") },
            "-E orphan_file_size=: 513 blocks; between 1 and 512 are possible",
        ),
        (Options { stride: Some(65536), ..ext4() }, "-E stride=: the stride must be below 65536 blocks"),
        (
            Options { mmp_update_interval: Some(301), ..ext4().features("mmp") },
            "-E mmp_update_interval=: the interval must be at most 300 seconds",
        ),
        (
            Options { backup_superblocks: Some(3), ..ext4() },
            "-E num_backup_sb=: 0, 1 or 2 backups are possible",
        ),
        (
            ext4().inodes(1_000_000),
            "1000000 inodes of 256 bytes do not fit a file system of 65536 blocks; raise -i or lower -N",
        ),
    ];
    for (options, message) in cases {
        assert_refused(64 << 20, &options, message);
    }
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    assert_refused(
        64 << 20,
        &Options::ext4().size(65 << 20),
        "the file system needs 68157440 bytes and the device has 67108864; ask for less or enlarge it",
    );
    let ext2 = Options::ext2().size(16 << 40);
    let error = mkfs::plan(0, &ext2).unwrap_err();
    assert_eq!(
        error.to_string(),
        "4294967296 blocks of 4096 bytes need 64-bit block numbers; add -O 64bit or a larger -b"
    );
    let error = mkfs::plan(0, &Options::ext4()).unwrap_err();
    assert_eq!(error.to_string(), "0 blocks are too few for a file system; ask for more");
    for kib in 0..300 {
        // A size that is too small is an error, never a panic. With an accepted size, the file
        // system has at least 11 inodes, and no more blocks than the device.
        let device = MemoryDevice::new(kib << 10);
        if let Ok(summary) = mkfs::format(&device, &Options::ext4()) {
            assert!(summary.inodes >= 11 && summary.blocks <= kib, "{kib} KiB: {summary:?}");
        }
    }
}

#[test]
fn identity_comes_from_the_inputs() {
    let make = |options: &Options| {
        let device = MemoryDevice::new(16 << 20);
        mkfs::format(&device, options).unwrap();
        superblock(&device)
    };
    let sb = make(&Options { uuid: UuidChoice::Clear, ..Options::ext4() }.identity(3, 1_700_000_000));
    assert_eq!((sb.s_uuid, sb.mkfs_time()), ([0; 16], 1_700_000_000));
    let other = make(&Options::ext4().identity(4, 1_700_000_000));
    assert_ne!(other.hash_seed(), sb.hash_seed());
    let given = make(&Options { hash_seed: Some([9; 16]), ..Options::ext4() }.uuid([7; 16]));
    assert_eq!((given.s_uuid, given.hash_seed()), ([7; 16], [0x0909_0909; 4]));
}
