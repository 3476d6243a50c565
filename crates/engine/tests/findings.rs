//! Bugs found by long random runs, each reproduced in its smallest form. A test's comment says what
//! the engine once did wrong.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::inode::FileType;
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::{
    Error, Fallocate, FileSystem, NewInode, OpContext, OpenOptions, RenameMode, SetAttributes, XattrMode,
    mkfs,
};
use blockyard_inspect::path::LastLink;
use blockyard_inspect::reader::Reader;
use blockyard_testkit::{LoopMount, e2fsck_clean, mke2fs, require};
use std::sync::Arc;

const ROOT: InodeNr = InodeNr::ROOT;
const IMMUTABLE: u32 = 0x10;
const APPEND_ONLY: u32 = 0x20;
const NO_DUMP: u32 = 0x40;
const TOP_DIRECTORY: u32 = 0x2_0000;

fn context() -> OpContext {
    OpContext::root_at(Timestamp::from_seconds(1_700_000_000))
}

fn open(options: &mkfs::Options, size: u64) -> (Arc<MemoryDevice>, FileSystem) {
    let device = Arc::new(MemoryDevice::new(size));
    mkfs::format(&*device, &options.clone().identity(1, 1)).unwrap();
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    (device, FileSystem::open(shared, OpenOptions::default(), &context()).unwrap())
}

/// Closes the file system. e2fsck must find nothing.
fn judge(fs: FileSystem, device: &MemoryDevice) {
    fs.close(&context()).unwrap();
    if require(&["e2fsck"]) {
        let scratch = tempfile::tempdir().unwrap();
        let image = scratch.path().join("image");
        device.save(&image).unwrap();
        e2fsck_clean(&image);
    }
}

fn plain() -> FileSystem {
    open(&mkfs::Options::ext4().block_size(4096), 32 << 20).1
}

fn make(fs: &FileSystem, name: &str, kind: FileType) -> InodeNr {
    let new = NewInode { kind, permissions: 0o755, device: None };
    fs.create(&context(), ROOT, name.as_bytes(), &new).unwrap()
}

/// Symbolic links could be made immutable, and the kernel then refused to look them up.
#[test]
fn flags_are_for_files_and_directories() {
    let fs = plain();
    let ctx = context();
    let link = fs.symlink(&ctx, ROOT, b"link", b"target").unwrap();
    let pipe = make(&fs, "pipe", FileType::Fifo);
    let file = make(&fs, "file", FileType::Regular);
    let dir = make(&fs, "dir", FileType::Directory);
    for inode in [link, pipe] {
        assert!(matches!(fs.set_flags(&ctx, inode, IMMUTABLE), Err(Error::NotSupported(_))));
    }
    assert!(matches!(fs.set_flags(&ctx, file, TOP_DIRECTORY), Err(Error::NotSupported(_))));
    fs.set_flags(&ctx, dir, TOP_DIRECTORY).unwrap();
    fs.set_flags(&ctx, file, IMMUTABLE).unwrap();
}

/// Setting flags that nobody may set succeeded without effect. Now it is refused, except for flags
/// that the inode already has.
#[test]
fn flags_that_nobody_may_set_are_refused() {
    const PROJECTS: u32 = 0x2000_0000;
    let fs = plain();
    let ctx = context();
    let file = make(&fs, "file", FileType::Regular);
    let before = fs.attributes(file).unwrap().flags;
    for flag in
        [0x2000, 0x4000, 0x4_0000, 0x20_0000, 0x80_0000, 0x100_0000, 0x4000_0000, 0x8000_0000, PROJECTS]
    {
        let refused = fs.set_flags(&ctx, file, before | flag);
        assert!(matches!(refused, Err(Error::NotSupported(_))), "{flag:#x}: {refused:?}");
    }
    fs.set_flags(&ctx, file, before | NO_DUMP).unwrap();
    assert_eq!(fs.attributes(file).unwrap().flags, before | NO_DUMP);
    fs.set_flags(&ctx, file, 0).unwrap();
    assert_eq!(fs.attributes(file).unwrap().flags, before, "the map's flag is not the user's");
}

/// Any name that begins with `system.` could be set, and Linux did not show the attribute.
#[test]
fn names_of_attributes_are_those_that_linux_serves() {
    let fs = plain();
    let ctx = context();
    let file = make(&fs, "file", FileType::Regular);
    for name in ["system.x", "system.richacl", "system.data", "system.posix_acl", "x", "btrfs.a"] {
        let refused = fs.set_xattr(&ctx, file, name.as_bytes(), b"value", XattrMode::Set);
        assert!(matches!(refused, Err(Error::NotSupported(_))), "{name}: {refused:?}");
        assert!(matches!(fs.xattr(file, name.as_bytes()), Err(Error::NotSupported(_))), "{name}");
    }
    for name in ["user.", "trusted.", "security."] {
        let refused = fs.set_xattr(&ctx, file, name.as_bytes(), b"value", XattrMode::Set);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{name}: {refused:?}");
    }
}

/// A time beyond an inode's range was stored as the first or last possible second, but kept its
/// nanoseconds. Linux stores that second without nanoseconds.
#[test]
fn times_end_where_inodes_end() {
    let ctx = context();
    for (inode_size, last) in [(256, Timestamp::SECONDS_MAX), (128, Timestamp::SECONDS_MAX_SHORT)] {
        let (_, fs) = open(&mkfs::Options::ext4().block_size(4096).inode_size(inode_size), 32 << 20);
        let file = make(&fs, "file", FileType::Regular);
        for seconds in [last, last + 1, i64::MAX, Timestamp::SECONDS_MIN, Timestamp::SECONDS_MIN - 1] {
            let accessed = Some(Timestamp { seconds, nanoseconds: 5 });
            fs.set_attributes(&ctx, file, &SetAttributes { accessed, ..SetAttributes::default() }).unwrap();
            let stored = seconds.clamp(Timestamp::SECONDS_MIN, last);
            assert_eq!(fs.attributes(file).unwrap().accessed, Timestamp::from_seconds(stored));
        }
    }
}

/// `touch` of an append-only file was refused.
#[test]
fn append_only_files_take_the_present_as_their_times() {
    let fs = plain();
    let ctx = context();
    let file = make(&fs, "file", FileType::Regular);
    let times =
        SetAttributes { accessed: Some(ctx.now), modified: Some(ctx.now), ..SetAttributes::default() };
    let touch = SetAttributes { times_are_now: true, ..times };
    fs.set_flags(&ctx, file, APPEND_ONLY).unwrap();
    assert!(matches!(fs.set_attributes(&ctx, file, &times), Err(Error::NotPermitted)));
    fs.set_attributes(&ctx, file, &touch).unwrap();
    let more = SetAttributes { permissions: Some(0o600), ..touch };
    assert!(matches!(fs.set_attributes(&ctx, file, &more), Err(Error::NotPermitted)));
    fs.set_flags(&ctx, file, IMMUTABLE).unwrap();
    assert!(matches!(fs.set_attributes(&ctx, file, &touch), Err(Error::NotPermitted)));
}

/// If a creation was undone for lack of space, its inode got no deletion time. An inode deleted
/// early in 1970 got a deletion time that e2fsck takes for a link of the orphan list.
#[test]
fn what_is_deleted_has_a_deletion_time() {
    let (device, fs) = open(&mkfs::Options::ext4().block_size(1024).features("^has_journal"), 2 << 20);
    let early = OpContext::root_at(Timestamp::from_seconds(3));
    let dir = make(&fs, "dir", FileType::Directory);
    let file = make(&fs, "file", FileType::Regular);
    while fs.append(&early, file, &[7; 1024]).is_ok() {}
    let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
    let mut made = 0..;
    let name = |n: u32| format!("{n:0>250}").into_bytes();
    let refused = made.find(|&n| fs.create(&early, dir, &name(n), &new).is_err()).unwrap();
    assert!(matches!(fs.create(&early, dir, &name(refused), &new), Err(Error::NoSpace)));
    assert!(matches!(fs.lookup(dir, &name(refused)), Err(Error::NotFound)));
    fs.unlink(&early, dir, &name(0)).unwrap();
    judge(fs, &device);
}

/// Conditions for errors were checked in another order than in Linux, names could be removed from
/// append-only directories, and an allocation that kept the size did not change the modification
/// time.
#[test]
fn refusals_come_in_the_order_of_linux() {
    let fs = plain();
    let ctx = context();
    let dir = make(&fs, "dir", FileType::Directory);
    let deep = fs
        .create(&ctx, dir, b"deep", &NewInode { kind: FileType::Directory, permissions: 0o755, device: None })
        .unwrap();
    let file = make(&fs, "file", FileType::Regular);
    fs.link(&ctx, file, dir, b"link").unwrap();
    fs.link(&ctx, file, deep, b"link").unwrap();
    let rename = |from, to, mode| fs.rename(&ctx, from, to, mode);
    let over = rename((deep, &b"link"[..]), (ROOT, &b"dir"[..]), RenameMode::Replace);
    assert!(matches!(over, Err(Error::NotEmpty)), "a file over a directory above it");
    let over = rename((deep, &b"link"[..]), (ROOT, &b"dir"[..]), RenameMode::Exchange);
    assert!(matches!(over, Err(Error::Invalid(_))));
    assert!(matches!(fs.link(&ctx, dir, ROOT, b"file"), Err(Error::Exists)));
    fs.set_flags(&ctx, dir, APPEND_ONLY).unwrap();
    assert!(matches!(fs.unlink(&ctx, dir, b"link"), Err(Error::NotPermitted)));
    assert!(matches!(fs.unlink(&ctx, dir, b"deep"), Err(Error::NotPermitted)));
    rename((ROOT, b"file"), (dir, b"file"), RenameMode::Replace).unwrap();
    fs.set_flags(&ctx, dir, IMMUTABLE).unwrap();
    let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
    assert!(matches!(fs.create(&ctx, dir, b"link", &new), Err(Error::Exists)));
    assert!(matches!(fs.create(&ctx, dir, b"new", &new), Err(Error::NotPermitted)));
    let later = OpContext::root_at(Timestamp::from_seconds(1_800_000_000));
    fs.fallocate(&later, file, Fallocate::AllocateKeepSize, 0, 1).unwrap();
    assert_eq!(fs.attributes(file).unwrap().modified, later.now);
}

/// Indirect blocks were not reserved with the data that needed them: sync ran out of space that
/// write had promised.
#[test]
fn space_for_the_mapping_is_promised_with_the_data() {
    for features in ["^has_journal,^extents,^64bit", "^has_journal"] {
        let (device, fs) = open(&mkfs::Options::ext4().block_size(1024).features(features), 1 << 20);
        let ctx = context();
        // The directory does not give back the blocks by which it grew.
        let spare = || fs.statistics().blocks_free + fs.attributes(ROOT).unwrap().sectors / 2;
        let free = spare();
        let mut made = 0;
        'full: for number in 0.. {
            let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
            let Ok(file) = fs.create(&ctx, ROOT, format!("{number}").as_bytes(), &new) else {
                made = number;
                break;
            };
            // In a block map, each of these blocks needs an indirect block of its own.
            for block in (12..2000u64).step_by(256) {
                if fs.write(&ctx, file, block * 1024, &[1; 1024]).is_err() {
                    made = number + 1;
                    break 'full;
                }
            }
        }
        fs.sync(&ctx).unwrap();
        for number in 0..made {
            fs.unlink(&ctx, ROOT, format!("{number}").as_bytes()).unwrap();
        }
        fs.sync(&ctx).unwrap();
        assert_eq!(spare(), free, "{features}");
        judge(fs, &device);
    }
}

/// A zero range that failed for lack of space dropped the dirty blocks in the range, but never
/// released their reservations.
#[test]
fn what_a_refused_zero_range_dropped_is_given_back() {
    let (device, fs) = open(&mkfs::Options::ext4().block_size(1024).features("^has_journal"), 2 << 20);
    let ctx = context();
    let file = make(&fs, "file", FileType::Regular);
    fs.write(&ctx, file, 6 << 20, &[1; 50 << 10]).unwrap();
    assert!(matches!(fs.fallocate(&ctx, file, Fallocate::ZeroRange, 0, 8 << 20), Err(Error::NoSpace)));
    fs.sync(&ctx).unwrap();
    assert_eq!(fs.allocator().free_clusters().delayed, 0);
    judge(fs, &device);
}

/// A read behind the end of a file with inline data panicked instead of reading nothing. When space
/// was reserved for moving the data out of the inode, the data was taken for the root of an extent
/// tree.
#[test]
fn content_in_the_inode_ends_and_is_no_tree() {
    if !require(&["mke2fs", "mount", "root"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("image");
    mke2fs(&image, &["-t", "ext4", "-b", "4096", "-O", "inline_data"], "16M");
    let mount = LoopMount::new(&image, "").unwrap();
    std::fs::write(mount.path().join("small"), [0xFF; 40]).unwrap();
    drop(mount);
    let device = Arc::new(MemoryDevice::load(&image).unwrap());
    let ctx = context();
    let fs = FileSystem::open(Arc::<MemoryDevice>::clone(&device), OpenOptions::default(), &ctx).unwrap();
    let small = fs.lookup(ROOT, b"small").unwrap();
    assert_eq!(fs.read(&ctx, small, 4000, &mut [0; 8]).unwrap(), 0);
    assert!(fs.attributes(small).unwrap().flags & 0x1000_0000 != 0, "it lies in its inode");
    fs.append(&ctx, small, b"more").unwrap();
    assert_eq!(fs.allocator().free_clusters().delayed, 0, "its block has a place");
    let mut content = [0; 44];
    assert_eq!(fs.read(&ctx, small, 0, &mut content).unwrap(), 44);
    assert!(content.starts_with(&[0xFF; 40]) && content.ends_with(b"more"));
    judge(fs, &device);
}

/// Truncating a file to its present size did not change its times. On Linux 6.18 it does (observed
/// with `truncate` and `ftruncate`).
#[test]
fn truncation_to_the_same_size_is_a_change() {
    let fs = plain();
    let file = make(&fs, "file", FileType::Regular);
    fs.write(&context(), file, 0, &[1; 700]).unwrap();
    let later = Timestamp::from_seconds(1_700_000_500);
    fs.truncate(&OpContext::root_at(later), file, 700).unwrap();
    let seen = fs.attributes(file).unwrap();
    assert_eq!((seen.size, seen.modified, seen.changed), (700, later, later));
}

/// When no inode was free, the error said "no space", as if no block were free.
#[test]
fn running_out_of_inodes_is_told_apart_from_running_out_of_blocks() {
    let mut options = mkfs::Options::ext4().block_size(1024).features("^has_journal");
    options.inodes = Some(16);
    let (_, fs) = open(&options, 2 << 20);
    let ctx = OpContext::root_at(Timestamp::from_seconds(1_700_000_000));
    let new = NewInode { kind: FileType::Regular, permissions: 0o644, device: None };
    let refused =
        (0..100).find_map(|n: u32| fs.create(&ctx, ROOT, n.to_string().as_bytes(), &new).err()).unwrap();
    assert!(matches!(refused, Error::NoInodes) && refused.errno() == 28, "{refused}");
    assert!(fs.statistics().blocks_free > 1000);
    fs.close(&ctx).unwrap();
}

/// A slash behind the name of a file was ignored, and a symbolic link with a slash behind it was
/// not followed.
#[test]
fn a_slash_at_the_end_of_a_path_means_a_directory() {
    let (device, fs) = open(&mkfs::Options::ext4().block_size(4096), 32 << 20);
    make(&fs, "file", FileType::Regular);
    let dir = make(&fs, "dir", FileType::Directory);
    fs.symlink(&context(), ROOT, b"link", b"dir").unwrap();
    fs.close(&context()).unwrap();
    let reader = Reader::open(device).unwrap();
    for path in [&b"/file/"[..], b"file/.", b"/file//"] {
        assert!(matches!(
            reader.resolve(path, LastLink::Keep),
            Err(blockyard_inspect::reader::Error::NotDirectory(_))
        ));
    }
    for path in [&b"/link/"[..], b"link/.", b"dir/", b"dir"] {
        assert_eq!(reader.resolve(path, LastLink::Keep).unwrap().number(), dir);
    }
    assert_ne!(reader.resolve(b"link", LastLink::Keep).unwrap().number(), dir);
}
