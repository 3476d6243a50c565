//! What adversaries found in files' content, each in its smallest form, with one line of story.

#![allow(clippy::unwrap_used)]

#[path = "support/image.rs"]
mod support;

use blockyard_device::{
    BlockDevice, Effect, Fault, FaultyDevice, MemoryDevice, Operation, RecorderDevice, When,
};
use blockyard_disk::InodeNr;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_engine::{
    DataMode, Error, Fallocate, FileSystem, OpContext, OpenOptions, SetAttributes, XattrMode, mkfs,
};
use std::path::Path;
use std::sync::Arc;
use support::{ROOT, context, directory, file};

const FILE: &[u8] = b"file";

fn ext4(block_size: u32) -> mkfs::Options {
    mkfs::Options::ext4().block_size(block_size)
}

fn formatted(options: &mkfs::Options, size: u64) -> MemoryDevice {
    let device = MemoryDevice::new(size);
    mkfs::format(&device, &options.clone().identity(1, 1)).unwrap();
    device
}

fn open_on<D: BlockDevice + 'static>(device: &Arc<D>, options: OpenOptions) -> FileSystem {
    let shared: Arc<dyn BlockDevice> = Arc::<D>::clone(device);
    FileSystem::open(shared, options, &context()).unwrap()
}

fn fresh(options: &mkfs::Options, size: u64) -> (Arc<MemoryDevice>, FileSystem) {
    let device = Arc::new(formatted(options, size));
    let fs = open_on(&device, OpenOptions::default());
    (device, fs)
}

/// Every operation finds the transaction too old: each is committed by itself.
fn committing() -> OpenOptions {
    OpenOptions { commit_interval_seconds: 0, ..OpenOptions::default() }
}

fn assert_sound(device: &dyn BlockDevice) {
    let report = blockyard_check::check(device, &blockyard_check::Options::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// Closes; our check and e2fsck must find nothing.
fn judge(fs: FileSystem, device: &MemoryDevice) {
    fs.close(&context()).unwrap();
    judge_image(device);
}

fn judge_image(device: &MemoryDevice) {
    assert_sound(device);
    if blockyard_testkit::require(&["e2fsck"]) {
        let scratch = tempfile::tempdir().unwrap();
        let image = scratch.path().join("image");
        device.save(&image).unwrap();
        blockyard_testkit::e2fsck_clean(&image);
    }
}

fn content(fs: &FileSystem, inode: InodeNr) -> Vec<u8> {
    let mut bytes = vec![0xee; usize_from_u64(fs.attributes(inode).unwrap().size)];
    let read = fs.read(&context(), inode, 0, &mut bytes).unwrap();
    assert_eq!(read, bytes.len());
    bytes
}

fn part(fs: &FileSystem, inode: InodeNr, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    let read = fs.read(&context(), inode, at, &mut bytes).unwrap();
    bytes.truncate(read);
    bytes
}

/// Runs `work` on a copy of an image, then opens what each prefix of its writes leaves, after a power cut, and shows it to
/// `look`; each must be sound when it is closed.
fn after_each_write(
    base: &MemoryDevice,
    options: &OpenOptions,
    work: impl FnOnce(&FileSystem),
    look: impl Fn(&FileSystem),
) {
    let device = Arc::new(RecorderDevice::new(base.duplicate()));
    let fs = open_on(&device, options.clone());
    work(&fs);
    fs.close(&context()).unwrap();
    let log = device.take_log();
    assert!(log.events().len() > 3);
    for count in 0..=log.events().len() {
        let cut = Arc::new(base.duplicate());
        log.apply_prefix(count, &*cut).unwrap();
        let fs = open_on(&cut, OpenOptions::default());
        look(&fs);
        fs.close(&context()).unwrap();
        let report = blockyard_check::check(&*cut, &blockyard_check::Options::default()).unwrap();
        assert!(report.is_clean(), "after {count} writes: {:?}", report.findings);
    }
}

/// Fails each read of `work` in turn, once, on a cold copy of an image, until there is none left to fail; shows each outcome to
/// `look`, and the closed image must be sound.
fn with_each_read_failing(
    base: &MemoryDevice,
    options: &OpenOptions,
    work: impl Fn(&FileSystem) -> Result<(), Error>,
    look: impl Fn(&FileSystem, bool),
) {
    let mut failed = 0;
    for nth in 1.. {
        let device = Arc::new(FaultyDevice::new(base.duplicate()));
        let fs = open_on(&device, options.clone());
        let when = When::Nth(device.counts().reads + nth);
        device.add(Fault { operation: Operation::Read, when, effect: Effect::Nothing });
        let done = work(&fs);
        let struck = device.strikes() > 0;
        device.heal();
        look(&fs, done.is_ok());
        assert!(!fs.has_failed(), "read {nth}");
        fs.close(&context()).unwrap();
        let report = blockyard_check::check(device.below(), &blockyard_check::Options::default()).unwrap();
        assert!(report.is_clean(), "read {nth}: {:?}", report.findings);
        failed += u32::from(done.is_err());
        if !struck {
            break;
        }
    }
    assert!(failed > 0, "nothing failed");
}

/// A range that began on a block boundary and ended inside that block was left as it was.
#[test]
fn a_range_inside_a_block_is_zeroed_wherever_it_begins() {
    for (what, flushed) in [Fallocate::PunchHole, Fallocate::ZeroRange]
        .into_iter()
        .flat_map(|what| [(what, false), (what, true)])
    {
        let (device, fs) = fresh(&ext4(4096), 32 << 20);
        let inode = file(&fs, ROOT, FILE);
        let mut model = vec![7; 40_000];
        fs.write(&context(), inode, 0, &model).unwrap();
        for (at, len) in
            [(4096, 1000), (0, 1000), (13_000, 100), (16_284, 200), (20_480, 4095), (28_671, 4098)]
        {
            if flushed {
                fs.fsync(&context(), inode).unwrap();
            }
            fs.fallocate(&context(), inode, what, u64_from_usize(at), u64_from_usize(len)).unwrap();
            model[at..at + len].fill(0);
            assert!(content(&fs, inode) == model, "{what:?} of {len} bytes at {at}, flushed: {flushed}");
        }
        judge(fs, &device);
    }
}

/// Half of all values in inodes had a hash that was cut at 0x7fffffff: Linux and e2fsck took them for damaged.
#[test]
fn hashes_of_values_have_all_their_bits() {
    for inode_size in [128, 256] {
        let options = ext4(4096).features("ea_inode").inode_size(inode_size);
        let (device, fs) = fresh(&options, 64 << 20);
        for number in 0..16 {
            let inode = file(&fs, ROOT, format!("file{number}"));
            fs.set_xattr(&context(), inode, b"user.large", &vec![number; 9000], XattrMode::Set).unwrap();
            assert_eq!(fs.xattr(inode, b"user.large").unwrap(), vec![number; 9000]);
        }
        judge(fs, &device);
    }
}

/// A write past the end whose last step failed left dirty blocks behind the size, which write-back mapped.
#[test]
fn a_write_that_fails_leaves_nothing_behind_the_size() {
    let device = Arc::new(FaultyDevice::new(formatted(&ext4(1024).journal_mib(4), 64 << 20)));
    let fs = open_on(&device, OpenOptions::default());
    let inode = file(&fs, ROOT, FILE);
    fs.write(&context(), inode, 0, &[1; 5000]).unwrap();
    let (mut made, mut failed, mut ctx) = (0, 0, context());
    for _ in 0..60 {
        for _ in 0..200 {
            directory(&fs, ROOT, format!("{made}"));
            made += 1;
        }
        // The commit that is due reads the log for its checkpoint.
        ctx.now.seconds += 100;
        let when = When::From(device.counts().reads + 1);
        device.add(Fault { operation: Operation::Read, when, effect: Effect::Nothing });
        let size = fs.attributes(inode).unwrap().size;
        let written = fs.write(&ctx, inode, size.next_multiple_of(1024) + 4096, &[2; 20_000]);
        device.heal();
        if written.is_err() {
            failed += 1;
            assert_eq!(fs.attributes(inode).unwrap().size, size);
        }
    }
    assert!(failed > 0, "no write failed");
    fs.close(&context()).unwrap();
    judge_image(device.below());
}

/// A direct write into blocks that were allocated behind the end made them written in one transaction and raised the size in
/// the next.
#[test]
fn a_direct_write_and_its_size_are_one_transaction() {
    let (device, fs) = fresh(&ext4(4096), 64 << 20);
    let inode = file(&fs, ROOT, FILE);
    fs.write(&context(), inode, 0, &[1; 8192]).unwrap();
    fs.fallocate(&context(), inode, Fallocate::AllocateKeepSize, 0, 1 << 20).unwrap();
    fs.close(&context()).unwrap();
    let direct = |fs: &FileSystem| {
        // Behind the end, in a hole behind that, over the end, and past what was allocated.
        for (block, blocks) in [(4, 2), (6, 1), (2, 3), (255, 4), (300, 2), (298, 8)] {
            let bytes = vec![9; blocks * 4096];
            assert_eq!(fs.write_direct(&context(), inode, block * 4096, &bytes).unwrap(), bytes.len());
        }
    };
    after_each_write(&device, &committing(), direct, |fs| {
        let found = content(fs, inode);
        assert!(found[..8192] == [1; 8192] && found[8192..].iter().all(|byte| [0, 9].contains(byte)));
    });
}

/// At the end of the largest files sums went past 32 and 64 bits: a punch that reached it panicked.
#[test]
fn everything_works_at_the_end_of_the_largest_files() {
    for bits in [10, 11, 12, 16] {
        let (device, fs) = fresh(&ext4(1 << bits), 256 << 20);
        let inode = file(&fs, ROOT, FILE);
        let (block, end) = (1_u64 << bits, u64::from(u32::MAX) << bits);
        let ctx = context();
        assert!(matches!(fs.truncate(&ctx, inode, end + 1), Err(Error::FileTooLarge)));
        assert!(matches!(fs.write(&ctx, inode, end, &[1]), Err(Error::FileTooLarge)));
        fs.truncate(&ctx, inode, end).unwrap();
        fs.write(&ctx, inode, end - 10, &[5; 10]).unwrap();
        assert_eq!(part(&fs, inode, end - 10, 20), [5; 10]);
        fs.fsync(&ctx, inode).unwrap();
        for what in [Fallocate::PunchHole, Fallocate::ZeroRange, Fallocate::ZeroRangeKeepSize] {
            fs.write(&ctx, inode, end - 10, &[5; 10]).unwrap();
            fs.fallocate(&ctx, inode, what, end - block - 5, block + 5).unwrap();
            assert_eq!(part(&fs, inode, end - 10, 20), [0; 10], "{what:?}");
            fs.fsync(&ctx, inode).unwrap();
        }
        fs.fallocate(&ctx, inode, Fallocate::AllocateKeepSize, end - 3 * block, 3 * block).unwrap();
        let bytes = vec![6; usize_from_u64(block)];
        fs.write_direct(&ctx, inode, end - block, &bytes).unwrap();
        assert_eq!(part(&fs, inode, end - block, usize_from_u64(2 * block)), bytes);
        assert!(matches!(
            fs.fallocate(&ctx, inode, Fallocate::InsertRange, 0, block),
            Err(Error::FileTooLarge)
        ));
        fs.fallocate(&ctx, inode, Fallocate::CollapseRange, 0, block).unwrap();
        assert_eq!(part(&fs, inode, end - 2 * block, usize_from_u64(2 * block)), bytes);
        fs.fallocate(&ctx, inode, Fallocate::InsertRange, 0, block).unwrap();
        fs.truncate(&ctx, inode, end - 1).unwrap();
        fs.truncate(&ctx, inode, end).unwrap();
        assert_eq!(part(&fs, inode, end - 2, 2), [6, 0]);
        judge(fs, &device);
    }
}

/// With the page cache followed and blocks above 4 KiB, data that waited was written over what a direct write had written.
#[test]
fn a_direct_write_comes_after_the_data_that_waited() {
    for bits in [12, 13, 14, 16] {
        let device = Arc::new(formatted(&ext4(1 << bits), 256 << 20));
        let options = OpenOptions { follow_page_cache: true, ..OpenOptions::default() };
        let fs = open_on(&device, options);
        let inode = file(&fs, ROOT, FILE);
        let block = 1_usize << bits;
        fs.truncate(&context(), inode, u64_from_usize(5 * block)).unwrap();
        for at in [0, 1, 2, 3, 4] {
            fs.write(&context(), inode, u64_from_usize(at * block), &[1; 10]).unwrap();
        }
        for at in [1, 4, 2] {
            fs.write_direct(&context(), inode, u64_from_usize(at * block), &vec![2; block]).unwrap();
        }
        fs.fsync(&context(), inode).unwrap();
        let found: Vec<u8> = content(&fs, inode).chunks(block).map(|block| block[0]).collect();
        assert_eq!(found, [1, 2, 2, 1, 2], "blocks of {block}");
        judge(fs, &device);
    }
}

/// Where space was short and the page cache was followed, the rest of a block of a block map showed what the device held before.
#[test]
fn a_block_that_is_placed_at_once_is_zeroes_but_for_what_was_written() {
    let device = Arc::new(formatted(&mkfs::Options::ext3().block_size(4096), 64 << 20));
    let fs = open_on(&device, OpenOptions { follow_page_cache: true, ..OpenOptions::default() });
    let [inode, old, filler] = [FILE, b"old", b"filler"].map(|name| file(&fs, ROOT, name));
    fs.truncate(&context(), inode, 1 << 20).unwrap();
    let mut at = 0;
    while fs.write(&context(), old, at, &[0xaa; 64 << 10]).is_ok() {
        at += 64 << 10;
    }
    fs.sync(&context()).unwrap();
    fs.unlink(&context(), ROOT, b"old").unwrap();
    fs.sync(&context()).unwrap();
    // All but 32 blocks or so.
    for at in (0..at - (192 << 10)).step_by(64 << 10) {
        fs.write(&context(), filler, at, &[1; 64 << 10]).unwrap();
    }
    fs.sync(&context()).unwrap();
    let mut model = vec![0; 1 << 20];
    for at in (100..40_000).step_by(8192) {
        fs.write(&context(), inode, u64_from_usize(at), &[7; 10]).unwrap();
        model[at..at + 10].fill(7);
    }
    assert!(content(&fs, inode) == model);
    judge(fs, &device);
}

/// A file whose extents fill several leaves: every other block of twice as many.
fn comb(fs: &FileSystem, extents: usize, byte: u8) -> (InodeNr, Vec<u8>) {
    let block = usize_from_u64(u64::from(fs.statistics().block_size));
    let inode = file(fs, ROOT, FILE);
    let mut model = vec![0; (2 * extents - 1) * block];
    for at in (0..extents).map(|n| 2 * n * block) {
        fs.write(&context(), inode, u64_from_usize(at), &vec![byte; block]).unwrap();
        model[at..at + block].fill(byte);
    }
    fs.fsync(&context(), inode).unwrap();
    (inode, model)
}

/// A truncation that an error ended midway left blocks behind the end: growing showed them again, and e2fsck complained.
#[test]
fn a_truncation_that_fails_is_finished_before_the_file_grows_and_at_close() {
    for (features, grows) in [("^has_journal", true), ("^has_journal", false), ("has_journal", true)] {
        let (device, fs) = fresh(&ext4(1024).features(features), 32 << 20);
        let (inode, model) = comb(&fs, 400, 3);
        fs.close(&context()).unwrap();
        let cut = |fs: &FileSystem| {
            // In memory only: a truncation that fails before it begins must not drop it.
            fs.write(&context(), inode, 700 * 1024, &[4; 1024])?;
            fs.truncate(&context(), inode, 2500)
        };
        with_each_read_failing(&device, &OpenOptions::default(), cut, |fs, done| {
            let size = usize_from_u64(fs.attributes(inode).unwrap().size);
            assert!(!done || size == 2500);
            if size == 2500 && grows {
                fs.truncate(&context(), inode, 800 * 1024).unwrap();
                let found = content(fs, inode);
                assert!(found[..2500] == model[..2500] && found[2500..].iter().all(|byte| *byte == 0));
            } else if size != 2500 {
                assert_eq!(size, model.len());
                let mut found = content(fs, inode);
                let written = found[700 * 1024..701 * 1024].to_vec();
                assert!(written == [4; 1024] || written == [3; 1024]);
                found[700 * 1024..701 * 1024].fill(3);
                assert!(found == model, "nothing was cut, and the content is another");
            }
        });
    }
}

/// A truncation that failed midway left what waited behind the new end in its block, and a write behind it showed that.
#[test]
fn a_truncation_that_fails_cuts_the_block_that_waits() {
    let (device, fs) = fresh(&ext4(1024), 32 << 20);
    let (inode, _) = comb(&fs, 400, 3);
    fs.close(&context()).unwrap();
    let cut = |fs: &FileSystem| {
        fs.write(&context(), inode, 2048, &[4; 1024])?;
        fs.truncate(&context(), inode, 2500)
    };
    with_each_read_failing(&device, &OpenOptions::default(), cut, |fs, _| {
        if fs.attributes(inode).unwrap().size == 2500 {
            fs.write(&context(), inode, 2700, &[5; 10]).unwrap();
            assert_eq!(part(fs, inode, 2500, 200), [0; 200]);
        }
    });
}

/// A deletion that failed midway left an inode without links in use when there was no journal to note it in.
#[test]
fn a_deletion_that_fails_is_finished_at_close() {
    for features in ["^has_journal", "has_journal"] {
        let (device, fs) = fresh(&ext4(1024).features(features), 32 << 20);
        comb(&fs, 400, 3);
        fs.close(&context()).unwrap();
        let unlink = |fs: &FileSystem| fs.unlink(&context(), ROOT, FILE);
        with_each_read_failing(&device, &OpenOptions::default(), unlink, |_, _| {});
    }
}

/// A read that failed while the values of an inode's attributes lost their references left some of them without, but referred
/// to: nothing could be done with that inode any more, its deletion included.
#[test]
fn references_to_values_go_all_or_none() {
    type Change = fn(&FileSystem, InodeNr) -> Result<(), Error>;
    let changes: [Change; 3] = [
        |fs, _| fs.unlink(&context(), ROOT, FILE),
        |fs, inode| fs.remove_xattr(&context(), inode, b"user.3"),
        |fs, inode| fs.set_xattr(&context(), inode, b"user.3", b"short", XattrMode::Set),
    ];
    let (device, fs) = fresh(&ext4(1024).features("ea_inode").inode_size(128), 32 << 20);
    let inode = file(&fs, ROOT, FILE);
    for number in 0..10 {
        let name = format!("user.{number}");
        fs.set_xattr(&context(), inode, name.as_bytes(), &vec![number; 5000], XattrMode::Set).unwrap();
        // In a table block of its own.
        for other in 0..8 {
            file(&fs, ROOT, format!("{number}.{other}"));
        }
    }
    fs.close(&context()).unwrap();
    let small = OpenOptions { cache_bytes: 4 << 10, ..OpenOptions::default() };
    for change in changes {
        with_each_read_failing(&device, &small, |fs| change(fs, inode), |_, _| {});
    }
}

/// An inode that a name refers to and that lacks links was deleted at close when somebody had only looked at it.
#[test]
fn who_looks_at_an_inode_without_links_deletes_nothing() {
    if !blockyard_testkit::require(&["debugfs"]) {
        return;
    }
    let (device, fs) = fresh(&ext4(4096), 32 << 20);
    let inode = file(&fs, ROOT, FILE);
    fs.write(&context(), inode, 0, &[4; 9000]).unwrap();
    fs.close(&context()).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let with_links = |device: &MemoryDevice, links: u32| {
        let command = format!("set_inode_field file links_count {links}");
        Arc::new(debugged(device, scratch.path(), &[command]))
    };
    let device = with_links(&device, 0);
    let fs = open_on(&device, OpenOptions::default());
    assert!(matches!(fs.attributes(inode), Err(Error::StaleInode(_))));
    fs.close(&context()).unwrap();
    judge_image(&with_links(&device, 1));
}

/// Ways to make a file of a few bytes grow over more than its first block, by zeroes.
type Grow = fn(&FileSystem, InodeNr) -> Result<(), Error>;
const GROWTHS: [(&str, Grow); 6] = [
    ("truncate", |fs, inode| fs.truncate(&context(), inode, 9000)),
    ("write behind", |fs, inode| fs.write(&context(), inode, 8192, &[0; 808])),
    ("write in the block", |fs, inode| fs.write(&context(), inode, 3000, &[0; 6000])),
    ("allocate", |fs, inode| fs.fallocate(&context(), inode, Fallocate::Allocate, 5000, 4000)),
    ("zero", |fs, inode| fs.fallocate(&context(), inode, Fallocate::ZeroRange, 4096, 4904)),
    ("direct", |fs, inode| fs.write_direct(&context(), inode, 8192, &[0; 4096]).map(drop)),
];

/// A file of 26 bytes, behind which its block holds others.
fn file_with_more_behind_its_end() -> (Arc<MemoryDevice>, InodeNr) {
    let (device, fs) = fresh(&ext4(4096), 32 << 20);
    let inode = file(&fs, ROOT, FILE);
    fs.write(&context(), inode, 0, b"the only block of its kind").unwrap();
    fs.close(&context()).unwrap();
    let mut block = [0; 4096];
    let place = (0..32 << 20).step_by(4096).find(|&at| {
        device.read_at(at, &mut block).unwrap();
        block.starts_with(b"the only block of its kind")
    });
    device.write_at(place.unwrap() + 26, &[0xbb; 4070]).unwrap();
    (device, inode)
}

/// What another system, or a crash, had left in the last block behind the end showed when the file grew.
#[test]
fn what_lies_behind_the_end_never_shows() {
    for data in [DataMode::Ordered, DataMode::Journal] {
        for (name, grow) in GROWTHS {
            let (device, inode) = file_with_more_behind_its_end();
            let fs = open_on(&device, OpenOptions { data, ..OpenOptions::default() });
            grow(&fs, inode).unwrap();
            assert!(content(&fs, inode)[26..].iter().all(|byte| *byte == 0), "{name}, {data:?}");
            judge(fs, &device);
        }
    }
}

/// Where the last block waited to be written, only what waited was zeroed, and the larger size was committed before it.
#[test]
fn what_lies_behind_the_end_does_not_show_after_a_crash() {
    for data in [DataMode::Ordered, DataMode::Journal] {
        for (name, grow) in GROWTHS {
            let (device, inode) = file_with_more_behind_its_end();
            let fs = open_on(&device, OpenOptions { data, ..OpenOptions::default() });
            fs.write(&context(), inode, 3, b"x").unwrap();
            grow(&fs, inode).unwrap();
            fs.commit(&context()).unwrap();
            let crashed = Arc::new(device.duplicate());
            let fs = open_on(&crashed, OpenOptions::default());
            assert!(content(&fs, inode)[26..].iter().all(|byte| *byte == 0), "{name}, {data:?}");
            judge(fs, &crashed);
        }
    }
}

/// Each freed block of logged data takes a revoke record: those of a large file were more than the log holds. A part may end
/// inside of a cluster.
#[test]
fn a_large_file_of_logged_data_is_deleted_in_parts() {
    let image = ext4(1024).journal_mib(1);
    let clusters = image.clone().cluster_size(4 << 20);
    for (how, image) in
        ["unlink", "truncate", "punch"].into_iter().flat_map(|how| [(how, &image), (how, &clusters)])
    {
        let device = Arc::new(formatted(image, 512 << 20));
        let options = OpenOptions { data: DataMode::Journal, ..OpenOptions::default() };
        let fs = open_on(&device, options);
        let inode = file(&fs, ROOT, FILE);
        fs.fallocate(&context(), inode, Fallocate::Allocate, 0, 400 << 20).unwrap();
        fs.sync(&context()).unwrap();
        match how {
            "unlink" => fs.unlink(&context(), ROOT, FILE).unwrap(),
            "truncate" => fs.truncate(&context(), inode, 5).unwrap(),
            _ => fs.fallocate(&context(), inode, Fallocate::PunchHole, 0, 400 << 20).unwrap(),
        }
        fs.sync(&context()).unwrap();
        judge(fs, &device);
    }
}

/// On a full image the data that waited was written back amid a zero range, over what had been made zero already.
#[test]
fn a_zero_range_on_a_full_image_leaves_zeroes() {
    let mut zeroed = 0;
    for (spare, waiting) in (0..12).flat_map(|spare| [30, 45, 58].map(|waiting| (spare, waiting))) {
        let (device, fs) = fresh(&ext4(1024).features("^has_journal"), 4 << 20);
        let [inode, filler] = [FILE, b"filler"].map(|name| file(&fs, ROOT, name));
        // Written blocks with a hole behind each; data waits for the first of the holes.
        for block in 0..60 {
            fs.write(&context(), inode, block * 2048, &[6; 1024]).unwrap();
        }
        fs.sync(&context()).unwrap();
        while fs.append(&context(), filler, &[1; 1024]).is_ok() {}
        fs.sync(&context()).unwrap();
        let size = fs.attributes(filler).unwrap().size;
        fs.truncate(&context(), filler, size - (spare + waiting) * 1024).unwrap();
        fs.sync(&context()).unwrap();
        for block in 0..waiting {
            drop(fs.write(&context(), inode, block * 2048 + 1024, &[7; 1024]));
        }
        let done = fs.fallocate(&context(), inode, Fallocate::ZeroRange, 0, waiting * 2048);
        let len = usize_from_u64(waiting * 2048);
        match done {
            Ok(()) => assert!(content(&fs, inode)[..len].iter().all(|byte| *byte == 0), "{spare}, {waiting}"),
            Err(ref error) => assert!(matches!(error, Error::NoSpace), "{error}"),
        }
        zeroed += u32::from(done.is_ok());
        judge(fs, &device);
    }
    assert!(zeroed > 0);
}

/// An insertion that was refused after its write-back lost the size that only memory knew.
#[test]
fn a_refused_insertion_keeps_the_size() {
    let device = Arc::new(formatted(&ext4(4096), 32 << 20));
    let fs = open_on(&device, OpenOptions { inodes_max: 1, ..OpenOptions::default() });
    let inode = file(&fs, ROOT, FILE);
    let end = u64::from(u32::MAX) << 12;
    fs.fallocate(&context(), inode, Fallocate::AllocateKeepSize, end - 8192, 8192).unwrap();
    fs.write(&context(), inode, 0, &[8; 4000]).unwrap();
    fs.truncate(&context(), inode, 10_000).unwrap();
    let refused = fs.fallocate(&context(), inode, Fallocate::InsertRange, 0, 8192);
    assert!(matches!(refused, Err(Error::FileTooLarge)), "{refused:?}");
    // The file leaves memory.
    for n in 0..2000 {
        file(&fs, ROOT, format!("{n}"));
    }
    fs.close(&context()).unwrap();
    let fs = open_on(&device, OpenOptions::default());
    assert!(content(&fs, inode) == [[8; 4000].to_vec(), vec![0; 6000]].concat());
    judge(fs, &device);
}

/// A read that failed amid an insertion left the file half moved; amid a collapse it ended the instance.
#[test]
fn a_tail_that_can_not_be_read_is_not_moved() {
    let (device, fs) = fresh(&ext4(1024), 32 << 20);
    let (inode, model) = comb(&fs, 4000, 3);
    fs.close(&context()).unwrap();
    let insert = |fs: &FileSystem| fs.fallocate(&context(), inode, Fallocate::InsertRange, 10_240, 4096);
    let small = OpenOptions { cache_bytes: 4 << 10, ..OpenOptions::default() };
    with_each_read_failing(&device, &small, insert, |fs, done| {
        let found = content(fs, inode);
        if done {
            assert!(found[..10_240] == model[..10_240] && found[14_336..] == model[10_240..]);
        } else {
            assert!(found == model);
        }
    });
    let collapse = |fs: &FileSystem| fs.fallocate(&context(), inode, Fallocate::CollapseRange, 10_240, 4096);
    with_each_read_failing(&device, &small, collapse, |fs, done| {
        let found = content(fs, inode);
        if done {
            assert!(found[..10_240] == model[..10_240] && found[10_240..] == model[14_336..]);
        } else {
            assert!(found == model);
        }
    });
}

/// Transactions of the smallest size have no room for the frees of a collapse beside its move; they need none.
#[test]
fn a_tail_is_moved_in_the_smallest_transactions() {
    let device = Arc::new(formatted(&ext4(1024), 64 << 20));
    let fs = open_on(&device, OpenOptions { transaction_blocks: Some(0), ..OpenOptions::default() });
    for (extents, len) in [(1500, 4096), (1500, 2 << 20), (20, 4096)] {
        let (inode, model) = comb(&fs, extents, 3);
        let bytes = u64_from_usize(len);
        fs.fallocate(&context(), inode, Fallocate::CollapseRange, 2048, bytes).unwrap();
        assert!(content(&fs, inode)[2048..] == model[2048 + len..]);
        fs.unlink(&context(), ROOT, FILE).unwrap();
    }
    judge(fs, &device);
}

/// Runs debugfs on an image that is saved for it and loaded again.
fn debugged(device: &MemoryDevice, scratch: &Path, commands: &[String]) -> MemoryDevice {
    let image = scratch.join("image");
    device.save(&image).unwrap();
    for command in commands {
        blockyard_testkit::run("debugfs", &["-w", "-R", command, image.to_str().unwrap()]);
    }
    MemoryDevice::load(&image).unwrap()
}

/// Content that had to leave its inode was in memory only while a transaction committed that the inode had lost it.
#[test]
fn content_of_an_inode_is_not_lost_on_its_way_to_a_block() {
    if !blockyard_testkit::require(&["debugfs"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("source");
    std::fs::write(&source, [6; 60]).unwrap();
    let base = formatted(&ext4(4096).features("inline_data").inode_size(256), 64 << 20);
    let write = format!("write {} file", source.display());
    let base = debugged(&base, scratch.path(), &[write]);
    for data in [DataMode::Ordered, DataMode::Journal] {
        let options = OpenOptions { data, ..committing() };
        let grow = |fs: &FileSystem| {
            let inode = fs.lookup(ROOT, FILE).unwrap();
            fs.append(&context(), inode, &[7; 5000]).unwrap();
            for n in 0..3 {
                file(fs, ROOT, format!("{n}"));
            }
        };
        after_each_write(&base, &options, grow, |fs| {
            let found = content(fs, fs.lookup(ROOT, FILE).unwrap());
            assert!(found[..60] == [6; 60] && found[60..].iter().all(|byte| [0, 7].contains(byte)));
        });
    }
}

/// On a full image a write to a file in its inode answered "no space", and the content was gone.
#[test]
fn a_write_that_finds_no_room_leaves_the_content_of_an_inode() {
    if !blockyard_testkit::require(&["debugfs"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("source");
    std::fs::write(&source, [6; 60]).unwrap();
    let base = formatted(&ext4(4096).features("inline_data").inode_size(256), 24 << 20);
    let write = format!("write {} file", source.display());
    let device = Arc::new(debugged(&base, scratch.path(), &[write]));
    let options =
        OpenOptions { follow_page_cache: true, delayed_allocation: false, ..OpenOptions::default() };
    let fs = open_on(&device, options);
    let filler = file(&fs, ROOT, "filler");
    let (mut at, mut step) = (0, 1 << 20);
    while step >= 4096 {
        match fs.fallocate(&context(), filler, Fallocate::Allocate, at, step) {
            Ok(()) => at += step,
            Err(error) => {
                assert!(matches!(error, Error::NoSpace), "{error}");
                step /= 4;
            }
        }
    }
    let inode = fs.lookup(ROOT, FILE).unwrap();
    let refused = fs.write(&context(), inode, 60, &[7; 5000]);
    assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
    assert!(content(&fs, inode) == [6; 60]);
    judge(fs, &device);
}

/// The last cluster of the largest file ends behind the last block: a sum went past 32 bits.
#[test]
fn the_last_cluster_of_the_largest_file_is_shared() {
    let (device, fs) = fresh(&ext4(2048).features("bigalloc").cluster_size(32 << 10), 256 << 20);
    let inode = file(&fs, ROOT, FILE);
    for block in [0xffff_fffd_u64, 0xffff_fffe] {
        fs.write(&context(), inode, block << 11, &[1; 2048]).unwrap();
        fs.write_back_file(&context(), inode).unwrap();
    }
    assert_eq!(part(&fs, inode, 0xffff_fffd << 11, 4096), [1; 4096]);
    judge(fs, &device);
}

/// A crash amid the deletion of a long symbolic link on an image without extents left one that looked short: the image could not
/// be opened any more.
#[test]
fn a_crash_amid_the_deletion_of_a_long_link_leaves_an_image_that_opens() {
    let (device, fs) = fresh(&mkfs::Options::ext3().block_size(1024), 32 << 20);
    fs.symlink(&context(), ROOT, b"link", &[b'x'; 500]).unwrap();
    fs.close(&context()).unwrap();
    let unlink = |fs: &FileSystem| fs.unlink(&context(), ROOT, b"link").unwrap();
    after_each_write(&device, &committing(), unlink, |_| {});
}

/// A direct write of nothing panicked, and one to a file that may only be appended to went where it was told.
#[test]
fn direct_writes_respect_append_only_files_and_may_be_empty() {
    let (device, fs) = fresh(&ext4(4096), 32 << 20);
    let inode = file(&fs, ROOT, FILE);
    assert_eq!(fs.write_direct(&context(), inode, 4096, &[]).unwrap(), 0);
    assert_eq!(fs.attributes(inode).unwrap().size, 0);
    fs.write_direct(&context(), inode, 0, &[1; 4096]).unwrap();
    fs.set_flags(&context(), inode, 0x20).unwrap();
    assert!(matches!(fs.write_direct(&context(), inode, 0, &[2; 4096]), Err(Error::NotPermitted)));
    fs.write_direct(&context(), inode, 4096, &[2; 4096]).unwrap();
    judge(fs, &device);
}

/// Without huge_file the sectors of a file have 32 bits: sizes beyond that were taken.
#[test]
fn without_huge_file_files_end_where_their_sectors_can_be_counted() {
    for (features, least, most) in
        [("^huge_file", 2_u64 << 40, 2 << 40), ("^huge_file,^extent,^64bit", 1 << 40, 2 << 40)]
    {
        let (device, fs) = fresh(&ext4(4096).features(features), 64 << 20);
        let inode = file(&fs, ROOT, FILE);
        let fits = |size: u64| fs.truncate(&context(), inode, size).is_ok();
        let (mut low, mut high) = (0, 1 << 44);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) { low = middle } else { high = middle }
        }
        assert!(low + 4096 >= least && low < most, "{features}: {low}");
        fs.write(&context(), inode, low - 1, &[1]).unwrap();
        judge(fs, &device);
    }
}

/// The content of a file in its inode took sizes that the block map to come could not hold: its data was lost.
#[test]
fn a_file_in_its_inode_ends_where_its_block_map_will() {
    if !blockyard_testkit::require(&["debugfs"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("source");
    std::fs::write(&source, [6; 60]).unwrap();
    let base = formatted(&ext4(1024).features("inline_data,^extent,^64bit").inode_size(256), 32 << 20);
    let device = Arc::new(debugged(&base, scratch.path(), &[format!("write {} file", source.display())]));
    let fs = open_on(&device, OpenOptions::default());
    let inode = fs.lookup(ROOT, FILE).unwrap();
    assert!(matches!(fs.write(&context(), inode, 1 << 40, &[1]), Err(Error::FileTooLarge)));
    fs.write(&context(), inode, 1 << 30, &[1]).unwrap();
    judge(fs, &device);
}

/// Names beyond what the kernel's calls take were stored, where nobody could list or remove them.
#[test]
fn names_of_attributes_end_where_the_kernels_do() {
    let (device, fs) = fresh(&ext4(4096), 32 << 20);
    let inode = file(&fs, ROOT, FILE);
    let name = |len| [b"user.", &vec![b'n'; len][..]].concat();
    fs.set_xattr(&context(), inode, &name(250), b"1", XattrMode::Set).unwrap();
    for refused in [name(251), Vec::new()] {
        let set = fs.set_xattr(&context(), inode, &refused, b"1", XattrMode::Set);
        assert_eq!(set.unwrap_err().errno(), 34);
    }
    judge(fs, &device);
}

/// Nanoseconds of a second and more became other seconds.
#[test]
fn nanoseconds_of_a_second_are_refused() {
    let (_, fs) = fresh(&ext4(4096), 32 << 20);
    let inode = file(&fs, ROOT, FILE);
    let mut time = context().now;
    time.nanoseconds = 1_000_000_000;
    for (accessed, modified) in [(Some(time), None), (None, Some(time))] {
        let changes = SetAttributes { accessed, modified, ..SetAttributes::default() };
        assert!(matches!(fs.set_attributes(&context(), inode, &changes), Err(Error::Invalid(_))));
    }
}

/// A release too many made the count of references wrap: the file was never deleted.
#[test]
fn only_what_is_open_is_released() {
    let (device, fs) = fresh(&ext4(4096), 32 << 20);
    let inode = file(&fs, ROOT, FILE);
    assert!(matches!(fs.release_inode(&context(), inode, false), Err(Error::Invalid(_))));
    fs.open_inode(inode, false).unwrap();
    assert!(matches!(fs.release_inode(&context(), inode, true), Err(Error::Invalid(_))));
    fs.unlink(&context(), ROOT, FILE).unwrap();
    fs.release_inode(&context(), inode, false).unwrap();
    assert!(fs.attributes(inode).is_err());
    judge(fs, &device);
}

/// Plain names went into encrypted directories, where nobody can read them.
#[test]
fn encrypted_directories_take_no_names() {
    if !blockyard_testkit::require(&["debugfs"]) {
        return;
    }
    let (device, fs) = fresh(&ext4(4096), 32 << 20);
    let inode = file(&fs, ROOT, FILE);
    directory(&fs, ROOT, "dir");
    fs.close(&context()).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let commands = ["feature +encrypt", "set_inode_field dir flags 0x80800"].map(str::to_owned);
    let device = Arc::new(debugged(&device, scratch.path(), &commands));
    let fs = open_on(&device, OpenOptions::default());
    let dir = fs.lookup(ROOT, b"dir").unwrap();
    assert!(matches!(fs.create(&context(), dir, b"x", &support::regular()), Err(Error::NotPermitted)));
    assert!(matches!(fs.link(&context(), inode, dir, b"x"), Err(Error::NotPermitted)));
    assert!(matches!(fs.symlink(&context(), dir, b"x", b"y"), Err(Error::NotPermitted)));
}

/// On a device that refuses data, writers went on without bound: what could not be written stayed in memory.
#[test]
fn dirty_data_is_bounded_on_a_device_that_refuses_it() {
    let device = Arc::new(FaultyDevice::new(formatted(&ext4(4096), 256 << 20)));
    let options = OpenOptions { dirty_data_bytes: 1 << 20, ..OpenOptions::default() };
    let fs = open_on(&device, options);
    let files: Vec<InodeNr> = (0..64).map(|n| file(&fs, ROOT, format!("{n}"))).collect();
    fs.sync(&context()).unwrap();
    let when = When::From(device.counts().writes + 1);
    device.add(Fault { operation: Operation::Write, when, effect: Effect::Nothing });
    let refused = files.iter().position(|&inode| fs.write(&context(), inode, 0, &[1; 256 << 10]).is_err());
    assert!(refused.is_some_and(|at| at <= 8), "{refused:?}");
}

/// A journal that had given up was passed over: changes went on as if nothing was to be checked.
#[test]
fn a_journal_that_gave_up_is_told_to_the_superblock() {
    let (device, fs) = fresh(&ext4(1024).features("^metadata_csum"), 32 << 20);
    fs.close(&context()).unwrap();
    let place = blockyard_recovery::Session::open(&*device).unwrap().into_journal().unwrap();
    let errno = place.physical(0).raw() * 1024 + 0x20;
    device.write_at(errno, &(-5_i32).to_be_bytes()).unwrap();
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    let refused = FileSystem::open(shared, OpenOptions::default(), &context()).map(drop).unwrap_err();
    assert!(refused.to_string().contains("marked as having errors"), "{refused}");
    let mut left = [1; 4];
    device.read_at(errno, &mut left).unwrap();
    assert_eq!(left, [0; 4]);
    let mut state = [0; 2];
    device.read_at(1024 + 0x3A, &mut state).unwrap();
    assert_eq!(state[0] & 2, 2);
}

/// A file without a name that got one while it was deleted was both.
#[test]
fn a_name_and_a_deletion_do_not_meet() {
    let (device, fs) = fresh(&ext4(1024), 32 << 20);
    let mut named = 0;
    for number in 0..100 {
        let inode = fs.create_unnamed(&context(), ROOT, 0o600).unwrap();
        fs.fallocate(&context(), inode, Fallocate::Allocate, 0, 50 << 10).unwrap();
        let name = format!("{number}");
        let linked = std::thread::scope(|scope| {
            let link = scope.spawn(|| fs.link(&context(), inode, ROOT, name.as_bytes()).is_ok());
            fs.release_inode(&context(), inode, true).unwrap();
            link.join().unwrap()
        });
        assert_eq!(fs.lookup(ROOT, name.as_bytes()).is_ok(), linked);
        if linked {
            named += 1;
            assert_eq!(fs.attributes(inode).unwrap().size, 50 << 10);
            fs.unlink(&context(), ROOT, name.as_bytes()).unwrap();
        }
    }
    assert!(named <= 100);
    judge(fs, &device);
}

/// What a device held before mkfs is no part of the file system.
#[test]
fn garbage_under_mkfs_does_no_harm() {
    let mut state = 0x9E37_79B9_u32;
    let mut garbage = vec![0; 1 << 20];
    for byte in &mut garbage {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = state.to_le_bytes()[3];
    }
    for (options, features, bits) in [
        (mkfs::Options::ext2(), "", 10),
        (mkfs::Options::ext3(), "", 12),
        (mkfs::Options::ext4(), "", 16),
        (mkfs::Options::ext4(), "^has_journal", 10),
        (mkfs::Options::ext4(), "^metadata_csum,uninit_bg,^flex_bg", 12),
        (mkfs::Options::ext4(), "bigalloc", 12),
        (mkfs::Options::ext4(), "inline_data,ea_inode,orphan_file", 12),
        (mkfs::Options::ext4(), "^resize_inode,meta_bg", 10),
    ] {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        for at in (0..64 << 20).step_by(1 << 20) {
            device.write_at(at, &garbage).unwrap();
        }
        mkfs::format(&*device, &options.block_size(1 << bits).features(features).identity(1, 1)).unwrap();
        judge_image(&device);
        let fs = open_on(&device, OpenOptions::default());
        let inode = file(&fs, ROOT, FILE);
        fs.write(&context(), inode, 5000, &[1; 100]).unwrap();
        assert!(content(&fs, inode) == [vec![0; 5000], vec![1; 100]].concat(), "{features}");
        judge(fs, &device);
    }
}

/// The log of the file system that was there before is no part of the new one, even when both have the same identity.
#[test]
fn the_log_of_an_older_file_system_is_not_replayed() {
    let device = Arc::new(formatted(&ext4(1024), 64 << 20));
    let fill = |names: std::ops::Range<u32>| {
        let fs = open_on(&device, committing());
        for n in names {
            file(&fs, ROOT, format!("{n}"));
        }
        fs.sync(&context()).unwrap();
    };
    // Neither is closed: a power cut.
    fill(0..50);
    mkfs::format(&*device, &ext4(1024).identity(1, 1)).unwrap();
    fill(0..1);
    let fs = open_on(&device, OpenOptions::default());
    assert!(fs.lookup(ROOT, b"0").is_ok() && fs.lookup(ROOT, b"1").is_err());
    judge(fs, &device);
}

/// The earliest time there is made the timer's subtraction overflow.
#[test]
fn the_timer_takes_any_time() {
    let (_, fs) = fresh(&ext4(4096), 32 << 20);
    let mut ctx: OpContext = context();
    for seconds in [i64::MIN, i64::MAX] {
        ctx.now.seconds = seconds;
        fs.tick(&ctx).unwrap();
    }
}
