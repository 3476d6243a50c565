//! Bugs that adversarial testing found, many of them at the limits of sizes, names and arguments.
//! Each is reproduced in its smallest form. A test's comment says what the engine once did wrong,
//! or what must not happen.

#![allow(clippy::unwrap_used)]

#[path = "support/image.rs"]
mod support;
#[path = "support/trial.rs"]
mod trial;

use blockyard_device::{BlockDevice, FaultyDevice, MemoryDevice};
use blockyard_disk::device_number::DeviceNumber;
use blockyard_disk::inode::FileType;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_disk::{Compat, RoCompat};
use blockyard_engine::{
    Error, Fallocate, NewInode, OpContext, OpenOptions, RenameMode, SetAttributes, XattrMode, mkfs,
};
use std::sync::Arc;
use support::{ROOT, context, directory, file};
use trial::{
    FILE, after_each_write, changed, content, debugged, ext4, formatted, fresh, judge, judge_image, open_on,
    part,
};

/// At the end of the largest files, sums overflowed 32 and 64 bits: a punch that reached that end
/// panicked.
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

/// An insertion that would make a file too large was refused with unchanged times. Linux changes
/// the times, unless the end of the range itself lies beyond the largest size.
#[test]
fn an_insertion_that_is_too_large_changes_the_times() {
    let (_, fs) = fresh(&ext4(1024), 64 << 20);
    let inode = file(&fs, ROOT, FILE);
    let end = u64::from(u32::MAX) << 10;
    fs.truncate(&context(), inode, end - 4096).unwrap();
    let later = OpContext::root_at(blockyard_disk::Timestamp::from_seconds(1_800_000_000));
    let insert = |at, len| fs.fallocate(&later, inode, Fallocate::InsertRange, at, len);
    let times = || {
        let seen = fs.attributes(inode).unwrap();
        [seen.modified, seen.changed].map(|time| time == later.now)
    };
    assert!(matches!(insert(1024, end), Err(Error::FileTooLarge)));
    assert_eq!(times(), [false; 2], "the range itself is too large");
    assert!(matches!(insert(1024, 8192), Err(Error::FileTooLarge)));
    assert_eq!(times(), [true; 2]);
}

/// The last cluster of the largest file ends behind the file's last possible block: a sum
/// overflowed 32 bits.
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

/// Without huge_file the sector count of a file has 32 bits, but files with more sectors were
/// accepted.
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

/// A file with inline data accepted writes at offsets that a block map cannot reach. When the file
/// got a block map, its data was lost.
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

/// Attribute names longer than the kernel's calls accept were stored, and nobody could list or
/// remove them.
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

/// A time with 1,000,000,000 nanoseconds or more was accepted, and its seconds changed.
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

/// One release too many made the count of open references wrap: the file was never deleted.
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

/// Unencrypted names could be added to encrypted directories, where nobody can read them.
#[test]
fn encrypted_directories_take_no_names() {
    if !blockyard_testkit::require(&["debugfs"]) {
        return;
    }
    let (device, fs) = fresh(&ext4(4096), 32 << 20);
    let inode = file(&fs, ROOT, FILE);
    let dir = directory(&fs, ROOT, "dir");
    file(&fs, dir, b"secret");
    fs.close(&context()).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let commands = ["feature +encrypt", "set_inode_field dir flags 0x80800"].map(str::to_owned);
    let device = Arc::new(debugged(&device, scratch.path(), &commands));
    let fs = open_on(&device, OpenOptions::default());
    let dir = fs.lookup(ROOT, b"dir").unwrap();
    assert!(matches!(fs.create(&context(), dir, b"x", &support::regular()), Err(Error::NotPermitted)));
    assert!(matches!(fs.link(&context(), inode, dir, b"x"), Err(Error::NotPermitted)));
    assert!(matches!(fs.symlink(&context(), dir, b"x", b"y"), Err(Error::NotPermitted)));
    // These renames were once allowed: onto an existing name, and in exchange with one.
    let (plain, secret) = ((ROOT, FILE), (dir, &b"secret"[..]));
    for (from, to, mode) in [
        (plain, secret, RenameMode::Replace),
        (plain, secret, RenameMode::Exchange),
        (secret, plain, RenameMode::Exchange),
    ] {
        assert!(matches!(fs.rename(&context(), from, to, mode), Err(Error::NotPermitted)), "{mode:?}");
    }
}

/// A directory that was changed on an image without `dir_index` kept its INDEX flag, although a new
/// name lay where the index had been.
#[test]
fn a_directory_that_changes_without_dir_index_has_no_index() {
    if !blockyard_testkit::require(&["debugfs"]) {
        return;
    }
    const INDEX: u32 = 0x1000;
    let names = || (0..100).map(|number| format!("a-name-that-is-long-{number}"));
    let (device, fs) = fresh(&ext4(1024).features("^metadata_csum"), 32 << 20);
    for parent in ["gains", "loses"] {
        let dir = directory(&fs, ROOT, parent);
        for name in names() {
            file(&fs, dir, name);
        }
        assert_ne!(fs.attributes(dir).unwrap().flags & INDEX, 0);
    }
    fs.close(&context()).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let device = Arc::new(debugged(&device, scratch.path(), &["feature -dir_index".to_owned()]));
    let fs = open_on(&device, OpenOptions::default());
    let [gains, loses] = [&b"gains"[..], b"loses"].map(|name| fs.lookup(ROOT, name).unwrap());
    file(&fs, gains, b"new");
    fs.unlink(&context(), loses, b"a-name-that-is-long-7").unwrap();
    assert_eq!(fs.attributes(gains).unwrap().flags & INDEX, 0);
    judge(fs, &device);
    let device = Arc::new(debugged(&device, scratch.path(), &["feature +dir_index".to_owned()]));
    let fs = open_on(&device, OpenOptions::default());
    assert!(names().all(|name| fs.lookup(gains, name.as_bytes()).is_ok()));
    assert!(fs.lookup(gains, b"new").is_ok());
    judge(fs, &device);
}

/// A device number with too many bits was accepted. When the image was opened again, the device had
/// another number.
#[test]
fn device_numbers_end_where_the_format_does() {
    let (device, fs) = fresh(&ext4(4096), 32 << 20);
    let make = |major, minor| {
        let device = Some(DeviceNumber { major, minor });
        let new = NewInode { kind: FileType::CharDevice, device, ..support::regular() };
        fs.create(&context(), ROOT, b"device", &new)
    };
    for (major, minor) in [(4096, 0), (0, 1 << 20)] {
        assert!(matches!(make(major, minor), Err(Error::Invalid(_))));
    }
    make(4095, (1 << 20) - 1).unwrap();
    judge(fs, &device);
}

/// If `..` entries formed a loop, the walk to the root that a rename makes took as many steps as
/// there are inodes: minutes on a large image.
#[test]
fn a_loop_of_directories_ends_the_walk_to_the_root_at_once() {
    const DEEP: usize = 300;
    let options = ext4(1024).features("^metadata_csum,^has_journal").inodes(64 << 10);
    let (device, fs) = fresh(&options, 64 << 20);
    let moved = directory(&fs, ROOT, "moved");
    let mut chain = vec![directory(&fs, ROOT, "d")];
    while chain.len() < DEEP {
        chain.push(directory(&fs, *chain.last().unwrap(), "d"));
    }
    fs.close(&context()).unwrap();
    let own = [&chain[0].raw().to_le_bytes()[..], &[12, 0, 1, 2, b'.']].concat();
    let mut block = [0; 1024];
    let at = (0..64 << 20).step_by(1024).find(|&at| {
        device.read_at(at, &mut block).unwrap();
        block.starts_with(&own)
    });
    device.write_at(at.unwrap() + 12, &chain[DEEP - 1].raw().to_le_bytes()).unwrap();
    // The cache is small, so the number of reads shows how far the walk goes.
    let device = Arc::new(FaultyDevice::new(device.duplicate()));
    let fs = open_on(&device, OpenOptions { cache_bytes: 16 << 10, inodes_max: 1, ..OpenOptions::default() });
    let before = device.counts().reads;
    let done = fs.rename(&context(), (ROOT, b"moved"), (chain[DEEP / 2], b"moved"), RenameMode::Replace);
    assert!(matches!(done, Err(Error::Invalid(_))));
    let reads = device.counts().reads - before;
    assert!(reads <= 4 * u64::try_from(DEEP).unwrap(), "{reads} reads for {DEEP} directories");
    assert_eq!(fs.lookup(ROOT, b"moved").unwrap(), moved);
}

/// An empty direct write panicked, and a direct write to an append-only file was allowed at any
/// offset.
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

/// A file without a name that was linked while it was being deleted ended up both named and
/// deleted.
#[test]
fn a_name_and_a_deletion_do_not_meet() {
    let (device, fs) = fresh(&ext4(1024), 32 << 20);
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
            assert_eq!(fs.attributes(inode).unwrap().size, 50 << 10);
            fs.unlink(&context(), ROOT, name.as_bytes()).unwrap();
        }
    }
    judge(fs, &device);
}

/// What a device held before mkfs must not show in the new file system.
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

/// The earliest possible time made the timer's subtraction overflow.
#[test]
fn the_timer_takes_any_time() {
    let (_, fs) = fresh(&ext4(4096), 32 << 20);
    let mut ctx: OpContext = context();
    for seconds in [i64::MIN, i64::MAX] {
        ctx.now.seconds = seconds;
        fs.tick(&ctx).unwrap();
    }
}

/// The hashes of values in value inodes were clamped to 0x7fffffff, which made half of them wrong.
/// Linux and e2fsck took these values for damaged.
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

/// The first attribute block on an image without ext_attr did not set that feature: e2fsck removed
/// the attribute.
#[test]
fn the_first_attribute_block_brings_its_feature() {
    for features in ["", "^has_journal"] {
        let options = ext4(4096).features(features).inode_size(128);
        let Some(base) = changed(&options, &["feature -ext_attr"]) else { return };
        let attribute = |fs: &blockyard_engine::FileSystem| {
            let inode = file(fs, ROOT, FILE);
            fs.set_xattr(&context(), inode, b"user.a", b"x", XattrMode::Set).unwrap();
            fs.fsync(&context(), inode).unwrap();
        };
        let device = Arc::new(base.duplicate());
        let fs = open_on(&device, OpenOptions::default());
        attribute(&fs);
        judge(fs, &device);
        let fs = open_on(&device, OpenOptions::default());
        assert!(fs.superblock().features().compat.contains(Compat::EXT_ATTR));
        if features.is_empty() {
            after_each_write(&base, &OpenOptions::default(), attribute, |_| {});
        }
    }
}

/// On an image without large_file, the first file of 2 GiB or more did not set that feature. e2fsck
/// reports this as an error.
#[test]
fn the_first_large_file_brings_its_feature() {
    type Grow = fn(&blockyard_engine::FileSystem, blockyard_disk::InodeNr);
    let ways: [Grow; 4] = [
        |fs, inode| fs.truncate(&context(), inode, 5 << 30).unwrap(),
        |fs, inode| fs.write(&context(), inode, (2 << 30) - 1, b"x").unwrap(),
        |fs, inode| fs.write_direct(&context(), inode, 2 << 30, &[1; 4096]).map(drop).unwrap(),
        |fs, inode| fs.fallocate(&context(), inode, Fallocate::Allocate, 3 << 30, 4096).unwrap(),
    ];
    let Some(base) = changed(&ext4(4096).features("^resize_inode"), &["feature -large_file"]) else { return };
    for (number, grow) in ways.into_iter().enumerate() {
        let work = |fs: &blockyard_engine::FileSystem| {
            let inode = file(fs, ROOT, FILE);
            fs.truncate(&context(), inode, (2 << 30) - 1).unwrap();
            fs.sync(&context()).unwrap();
            assert!(!fs.superblock().features().ro_compat.contains(RoCompat::LARGE_FILE));
            grow(fs, inode);
            fs.fsync(&context(), inode).unwrap();
        };
        let device = Arc::new(base.duplicate());
        let fs = open_on(&device, OpenOptions::default());
        work(&fs);
        judge(fs, &device);
        let fs = open_on(&device, OpenOptions::default());
        assert!(fs.superblock().features().ro_compat.contains(RoCompat::LARGE_FILE), "way {number}");
        after_each_write(&base, &OpenOptions::default(), work, |_| {});
    }
}

/// After dir_index was switched off, the first new name overwrote a directory's index, and the
/// directory was still marked as indexed.
#[test]
fn a_change_takes_the_mark_of_an_index_that_is_switched_off() {
    if !blockyard_testkit::require(&["debugfs"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let (device, fs) = fresh(&ext4(1024).features("^metadata_csum"), 16 << 20);
    let dir = directory(&fs, ROOT, "dir");
    let names: Vec<String> = (0..100).map(|number| format!("a-longer-name-{number}")).collect();
    for name in &names {
        file(&fs, dir, name);
    }
    fs.close(&context()).unwrap();
    for change in ["create", "unlink", "rename"] {
        let off = debugged(&device, scratch.path(), &["feature -dir_index".to_owned()]);
        let off = Arc::new(off);
        let fs = open_on(&off, OpenOptions::default());
        let mut expected: Vec<Vec<u8>> = names.iter().map(|name| name.clone().into_bytes()).collect();
        match change {
            "create" => {
                file(&fs, dir, "new");
                expected.push(b"new".to_vec());
            }
            "unlink" => fs.unlink(&context(), dir, &expected.pop().unwrap()).unwrap(),
            _ => {
                let old = expected.pop().unwrap();
                fs.rename(&context(), (dir, &old), (dir, b"new"), RenameMode::Replace).unwrap();
                expected.push(b"new".to_vec());
            }
        }
        judge(fs, &off);
        let on = Arc::new(debugged(&off, scratch.path(), &["feature +dir_index".to_owned()]));
        let fs = open_on(&on, OpenOptions::default());
        for name in &expected {
            fs.lookup(dir, name).unwrap();
        }
        judge(fs, &on);
    }
}

/// New files and directories did not inherit a project, and links and renames crossed project
/// borders.
#[test]
fn projects_are_inherited_and_keep_their_names() {
    let Some(base) = changed(
        &ext4(4096),
        &[
            "feature +project",
            "mkdir dir",
            "set_inode_field dir projid 1234",
            "set_inode_field dir flags 0x20080000",
        ],
    ) else {
        return;
    };
    let device = Arc::new(base);
    let fs = open_on(&device, OpenOptions::default());
    let dir = fs.lookup(ROOT, b"dir").unwrap();
    let plain = file(&fs, ROOT, FILE);
    let plain_dir = directory(&fs, ROOT, "plain");
    let (ours, sub) = (file(&fs, dir, "ours"), directory(&fs, dir, "sub"));
    let below = file(&fs, sub, "below");
    let link = fs.symlink(&context(), dir, b"symlink", b"target").unwrap();
    assert!(matches!(fs.link(&context(), plain, dir, b"l"), Err(Error::CrossDevice)));
    let crossing = |from, to, mode| {
        let done = fs.rename(&context(), from, to, mode);
        assert!(matches!(done, Err(Error::CrossDevice)), "{done:?}");
    };
    crossing((ROOT, FILE), (dir, b"m"), RenameMode::Replace);
    crossing((ROOT, FILE), (dir, b"ours"), RenameMode::Replace);
    crossing((ROOT, b"plain"), (dir, b"m"), RenameMode::Replace);
    crossing((ROOT, FILE), (dir, b"ours"), RenameMode::Exchange);
    crossing((dir, b"ours"), (ROOT, FILE), RenameMode::Exchange);
    fs.link(&context(), ours, sub, b"l").unwrap();
    fs.rename(&context(), (dir, b"ours"), (sub, b"m"), RenameMode::Replace).unwrap();
    // A name may leave its project for a directory that passes no project on.
    fs.rename(&context(), (sub, b"m"), (plain_dir, b"m"), RenameMode::Replace).unwrap();
    judge(fs, &device);
    let reader = blockyard_inspect::reader::Reader::open(device).unwrap();
    for (inode, project) in [(plain, 0), (ours, 1234), (sub, 1234), (below, 1234), (link, 1234)] {
        assert_eq!(reader.inode(inode).unwrap().slot().project(), project, "inode {inode}");
    }
}

/// Once a listing had found damage, every later listing searched the whole directory for it, even
/// if the device returned the right bytes again.
#[test]
fn damage_that_is_gone_is_not_looked_for_again() {
    let (base, fs) = fresh(&ext4(1024).features("^has_journal"), 16 << 20);
    let dir = directory(&fs, ROOT, "dir");
    // These names take more blocks than the smallest cache holds.
    for number in 0..1500 {
        file(&fs, dir, format!("a-name-{number}-{}", "x".repeat(200)));
    }
    fs.close(&context()).unwrap();
    let mut image = vec![0; 16 << 20];
    base.read_at(0, &mut image).unwrap();
    let name = b"a-name-77-x";
    let at = image.windows(name.len()).position(|bytes| bytes == name).unwrap() / 1024 * 1024;
    let place = u64_from_usize(at);
    base.write_at(place, &[0; 1024]).unwrap();
    let device = Arc::new(FaultyDevice::new(base.duplicate()));
    let fs = open_on(&device, OpenOptions { cache_bytes: 1, ..OpenOptions::default() });
    let dir = fs.lookup(ROOT, b"dir").unwrap();
    let mut positions = Vec::new();
    let listed = fs.read_dir(dir, 0, |entry| {
        positions.push(entry.next);
        true
    });
    assert!(matches!(listed, Err(Error::Corrupt(_))), "{listed:?}");
    assert!(positions.len() > 1400 && positions.len() < 1502, "{} names", positions.len());
    device.write_at(place, &image[at..at + 1024]).unwrap();
    let last = positions[positions.len() - 1];
    let reads_at_the_end = || {
        let before = device.counts().reads;
        fs.read_dir(dir, last, |_| true).unwrap();
        device.counts().reads - before
    };
    let (once, again) = (reads_at_the_end(), reads_at_the_end());
    assert!(once > 200 && again < once / 4, "{once} reads, then {again}");
}

/// Setting the flag for direct access (`chattr +x`) succeeded without effect. Linux stores it, lets
/// new files and directories inherit it, and refuses it for inline data and journaled data.
#[test]
fn direct_access_is_kept_passed_on_and_refused_as_by_linux() {
    const DAX: u32 = 0x200_0000;
    const JOURNALED: u32 = 0x8_4000;
    if !blockyard_testkit::require(&["debugfs"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let (small, large) = (scratch.path().join("small"), scratch.path().join("large"));
    std::fs::write(&small, [6; 60]).unwrap();
    std::fs::write(&large, [6; 5000]).unwrap();
    let base = formatted(&ext4(4096).features("inline_data").inode_size(256), 32 << 20);
    let commands = [
        "mkdir dir".to_owned(),
        format!("write {} inline", small.display()),
        format!("write {} journaled", large.display()),
        format!("set_inode_field journaled flags {JOURNALED:#x}"),
    ];
    let device = Arc::new(debugged(&base, scratch.path(), &commands));
    let fs = open_on(&device, OpenOptions::default());
    let flags = |inode| fs.attributes(inode).unwrap().flags;
    for name in ["inline", "journaled"] {
        let inode = fs.lookup(ROOT, name.as_bytes()).unwrap();
        let before = flags(inode);
        let refused = fs.set_flags(&context(), inode, before | DAX);
        assert!(matches!(refused, Err(Error::NotSupported(_))), "{name}: {refused:?}");
        assert_eq!(flags(inode), before, "{name}");
    }
    let dir = fs.lookup(ROOT, b"dir").unwrap();
    fs.set_flags(&context(), dir, flags(dir) | DAX).unwrap();
    let link = fs.symlink(&context(), dir, b"link", &[b'x'; 100]).unwrap();
    let below = [dir, file(&fs, dir, "file"), directory(&fs, dir, "sub"), link];
    assert_eq!(below.map(|inode| flags(inode) & DAX != 0), [true, true, true, false]);
    let sub = below[2];
    fs.set_flags(&context(), sub, flags(sub) & !DAX).unwrap();
    assert_eq!(flags(sub) & DAX, 0);
    judge(fs, &device);
}

/// A mode and the access control list disagreed: a change of one did not change the other.
#[test]
fn a_mode_and_its_access_control_list_agree() {
    const NAME: &[u8] = b"system.posix_acl_access";
    let list = |owner: u16, mask: u16, others: u16| {
        let none = u32::MAX;
        let entries = [(1, owner, none), (2, 6, 1234), (4, 4, none), (16, mask, none), (32, others, none)];
        let mut value = 2_u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            value.extend(u16::to_le_bytes(tag));
            value.extend(u16::to_le_bytes(permissions));
            value.extend(u32::to_le_bytes(id));
        }
        value
    };
    for inode_size in [128, 256] {
        let (device, fs) = fresh(&ext4(4096).inode_size(inode_size), 32 << 20);
        let inode = file(&fs, ROOT, FILE);
        let mode = || fs.attributes(inode).unwrap().permissions;
        fs.set_xattr(&context(), inode, NAME, &list(6, 6, 0), XattrMode::Set).unwrap();
        assert_eq!(mode(), 0o660);
        // What chmod makes of that list on Linux 6.18.
        for (permissions, changed) in [(0o640, list(6, 4, 0)), (0o4777, list(7, 7, 7))] {
            let changes = SetAttributes { permissions: Some(permissions), ..SetAttributes::default() };
            fs.set_attributes(&context(), inode, &changes).unwrap();
            assert_eq!(fs.xattr(inode, NAME).unwrap(), changed);
            assert_eq!(mode(), permissions);
        }
        fs.set_xattr(&context(), inode, NAME, &list(6, 6, 0), XattrMode::Replace).unwrap();
        assert_eq!(mode(), 0o4660);
        judge(fs, &device);
    }
}

/// A write that may be short was refused if it crossed the largest size. Linux writes what fits.
#[test]
fn a_write_that_crosses_the_largest_size_is_short() {
    for bits in [10, 12] {
        let (device, fs) = fresh(&ext4(1 << bits), 64 << 20);
        let inode = file(&fs, ROOT, FILE);
        let (block, end) = (1_u64 << bits, u64::from(u32::MAX) << bits);
        assert_eq!(fs.write_some(&context(), inode, end - 10, &[5; 30]).unwrap(), 10);
        assert_eq!(fs.attributes(inode).unwrap().size, end);
        assert!(matches!(fs.write_some(&context(), inode, end, &[5; 30]), Err(Error::FileTooLarge)));
        assert!(matches!(fs.write(&context(), inode, end - 10, &[6; 30]), Err(Error::FileTooLarge)));
        assert_eq!(part(&fs, inode, end - 10, 20), [5; 10]);
        let two = vec![6; usize_from_u64(2 * block)];
        assert_eq!(fs.write_direct(&context(), inode, end - block, &two).unwrap(), usize_from_u64(block));
        assert!(matches!(fs.write_direct(&context(), inode, end, &two), Err(Error::FileTooLarge)));
        assert_eq!(part(&fs, inode, end - 10, 20), [6; 10]);
        judge(fs, &device);
    }
}

/// On an instance opened read-only, fsync failed because the instance may not write. On Linux,
/// fsync has nothing to do there and succeeds.
#[test]
fn an_instance_that_is_only_read_is_always_durable() {
    let (device, fs) = fresh(&ext4(1024), 32 << 20);
    let inode = file(&fs, ROOT, FILE);
    fs.close(&context()).unwrap();
    let fs = open_on(&device, OpenOptions { read_only: true, ..OpenOptions::default() });
    fs.fsync(&context(), inode).unwrap();
    fs.fdatasync(&context(), inode).unwrap();
    fs.write_back_file(&context(), inode).unwrap();
    fs.write_back_all(&context()).unwrap();
    fs.sync(&context()).unwrap();
    fs.tick(&context()).unwrap();
    assert!(matches!(fs.write(&context(), inode, 0, b"x"), Err(Error::ReadOnly)));
}
