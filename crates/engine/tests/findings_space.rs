//! Bugs that adversarial testing found on full images, in inline directories (which lie in their
//! inodes), and in a long block map. Each is reproduced in its smallest form. A test's comment says
//! what the engine once did wrong, or which rule it must keep.

#![allow(clippy::unwrap_used)]

#[path = "support/image.rs"]
mod support;
#[path = "support/trial.rs"]
mod trial;

use blockyard_alloc::Policy;
use blockyard_device::MemoryDevice;
use blockyard_engine::{Error, Fallocate, OpenOptions, RenameMode, mkfs};
use std::sync::Arc;
use support::{ROOT, context, directory, file};
use trial::{FILE, changed, content, ext4, fill, formatted, fresh, full, judge, open_on, part};

/// On a full image, writes into blocks that fallocate had allocated found no space. Such a write
/// reserves space for tree blocks, and the engine took that space from the ordinary pool, not from
/// the file system's own reserve.
#[test]
fn space_allocated_ahead_takes_writes_on_a_full_image() {
    let (device, fs) = fresh(&full(), 8 << 20);
    let inode = file(&fs, ROOT, FILE);
    fs.fallocate(&context(), inode, Fallocate::Allocate, 0, 1 << 20).unwrap();
    fs.sync(&context()).unwrap();
    fill(&fs);
    for number in 0..500 {
        fs.write(&context(), inode, number * 2048, &[5; 1024]).unwrap();
    }
    fs.fsync(&context(), inode).unwrap();
    for number in 0..500 {
        assert_eq!(part(&fs, inode, number * 2048, 1025)[..], [[5; 1024].as_slice(), &[0]].concat());
    }
    judge(fs, &device);
}

/// On a full image, insert range and zero range found no block for the tree node that a split
/// extent needed, although the file system's own reserve is for that.
#[test]
fn ranges_of_a_full_image_find_a_node() {
    for what in [Fallocate::InsertRange, Fallocate::ZeroRange, Fallocate::CollapseRange, Fallocate::PunchHole]
    {
        for skew in [0, 100] {
            if skew > 0 && what != Fallocate::ZeroRange {
                continue;
            }
            let (device, fs) = fresh(&full(), 8 << 20);
            let [inode, other] = [FILE, b"other"].map(|name| file(&fs, ROOT, name));
            for number in 0..4 {
                fs.write(&context(), inode, number << 20, &[7; 20 << 10]).unwrap();
                fs.fsync(&context(), inode).unwrap();
                fs.write(&context(), other, number << 20, &[8; 20 << 10]).unwrap();
                fs.fsync(&context(), other).unwrap();
            }
            fill(&fs);
            fs.fallocate(&context(), inode, what, (1 << 20) + 4096 + skew, 4096).unwrap();
            judge(fs, &device);
        }
    }
}

/// A large write is done in pieces. When a piece found no space, the pieces before it stayed in the
/// file.
#[test]
fn a_write_that_does_not_fit_leaves_the_file_as_it_was() {
    let device = Arc::new(formatted(&ext4(1024), 16 << 20));
    let fs = open_on(&device, OpenOptions { dirty_data_bytes: 1 << 20, ..OpenOptions::default() });
    let inode = file(&fs, ROOT, FILE);
    fs.write(&context(), inode, 0, b"as it was").unwrap();
    let free = fs.statistics().blocks_free;
    assert!(matches!(fs.append(&context(), inode, &vec![7; 20 << 20]), Err(Error::NoSpace)));
    assert!(matches!(fs.write(&context(), inode, 0, &vec![7; 20 << 20]), Err(Error::NoSpace)));
    assert_eq!(content(&fs, inode), b"as it was");
    assert_eq!(fs.statistics().blocks_free, free);
    judge(fs, &device);
}

/// Every change moved an inline directory into a block first. On a full image, no name could be
/// removed from such a directory, and a rename that found no block made the instance read-only.
#[test]
fn directories_in_inodes_change_without_a_block() {
    for features in ["inline_data", "inline_data,^has_journal"] {
        let options = full().inode_size(256).features(features);
        let Some(base) = changed(&options, &["mkdir d", "mkdir d/sub", "mkdir other", "mkdir other/sub"])
        else {
            return;
        };
        let device = Arc::new(base);
        let fs = open_on(&device, OpenOptions::default());
        let [dir, other] = [b"d".as_slice(), b"other"].map(|name| fs.lookup(ROOT, name).unwrap());
        let sub = fs.lookup(dir, b"sub").unwrap();
        let big = directory(&fs, ROOT, "big");
        for number in 0..20 {
            file(&fs, big, format!("a-name-that-is-longer-{number}"));
        }
        let inode = file(&fs, dir, "f");
        file(&fs, other, "g");
        fill(&fs);
        let replace = RenameMode::Replace;
        fs.rename(&context(), (dir, b"f"), (big, b"f"), replace).unwrap();
        fs.rename(&context(), (dir, b"sub"), (big, b"sub"), replace).unwrap();
        assert_eq!(fs.lookup(sub, b"..").unwrap(), big);
        fs.rename(&context(), (big, b"f"), (other, b"g"), RenameMode::Exchange).unwrap();
        fs.rename(&context(), (big, b"sub"), (other, b"sub"), RenameMode::Exchange).unwrap();
        assert_eq!((fs.lookup(other, b"g").unwrap(), fs.lookup(sub, b"..").unwrap()), (inode, other));
        fs.unlink(&context(), other, b"g").unwrap();
        fs.rmdir(&context(), other, b"sub").unwrap();
        fs.rmdir(&context(), ROOT, b"other").unwrap();
        fs.rmdir(&context(), ROOT, b"d").unwrap();
        assert!(!fs.has_failed());
        judge(fs, &device);
    }
}

/// The first three names in an inline directory take no block, and twelve names take one.
/// All names remain.
#[test]
fn a_directory_leaves_its_inode_when_it_is_full() {
    let Some(base) = changed(&ext4(1024).inode_size(256).features("inline_data"), &["mkdir d"]) else {
        return;
    };
    let device = Arc::new(base);
    let fs = open_on(&device, OpenOptions::default());
    let dir = fs.lookup(ROOT, b"d").unwrap();
    let blocks = |fs: &blockyard_engine::FileSystem| fs.attributes(dir).unwrap().sectors;
    let mut sectors = vec![];
    for number in 0..12 {
        file(&fs, dir, format!("n{number}"));
        sectors.push(blocks(&fs));
        fs.commit(&context()).unwrap();
    }
    assert_eq!(sectors[..3], [0, 0, 0]);
    assert!(
        sectors.is_sorted() && sectors[3..].iter().all(|sectors| [0, 2].contains(sectors)),
        "{sectors:?}"
    );
    assert_eq!(sectors[11], 2, "one block");
    for number in 0..12 {
        fs.lookup(dir, format!("n{number}").as_bytes()).unwrap();
    }
    judge(fs, &device);
}

/// With large blocks, one indirect block maps a run of more blocks than one handle frees. Punching
/// a hole far before the end of such a run never ended.
#[test]
fn a_hole_in_a_long_run_of_a_block_map_is_punched() {
    let block = 32_768;
    let device = Arc::new(formatted(&mkfs::Options::ext3().block_size(block), 1 << 30));
    let policy = Policy::parse("ext3").unwrap();
    let fs = open_on(&device, OpenOptions { policy, ..OpenOptions::default() });
    let inode = file(&fs, ROOT, FILE);
    let zeroes = vec![0; 100 * 32_768];
    for part in 0..80 {
        fs.write(&context(), inode, part * 100 * u64::from(block), &zeroes).unwrap();
    }
    fs.sync(&context()).unwrap();
    let before = fs.attributes(inode).unwrap().sectors;
    let hole = 2200 * u64::from(block);
    fs.fallocate(&context(), inode, Fallocate::PunchHole, hole, 3 * u64::from(block)).unwrap();
    assert_eq!(before - fs.attributes(inode).unwrap().sectors, 3 * u64::from(block) / 512);
    judge(fs, &device);
}

/// On a full image a punched block could not be written again. The engine took the block for a tree
/// node from the ordinary pool, not from the file system's own reserve.
#[test]
fn a_punched_block_of_a_full_image_is_written_again() {
    let (base, fs) = fresh(&full(), 8 << 20);
    let inode = file(&fs, ROOT, FILE);
    fs.write(&context(), inode, 0, &vec![7; 1 << 20]).unwrap();
    fs.sync(&context()).unwrap();
    fill(&fs);
    fs.close(&context()).unwrap();
    let free =
        open_on(&base, OpenOptions { read_only: true, ..OpenOptions::default() }).statistics().blocks_free;
    // First, each of 300 blocks is punched and written again before the next is punched. Then all
    // 300 are punched before the first is written again.
    let device = Arc::new(base.duplicate());
    let fs = open_on(&device, OpenOptions::default());
    for number in 0..300 {
        fs.fallocate(&context(), inode, Fallocate::PunchHole, number * 2048, 1024).unwrap();
        fs.fsync(&context(), inode).unwrap();
        fs.write(&context(), inode, number * 2048, &[5; 1024]).unwrap();
    }
    fs.fsync(&context(), inode).unwrap();
    let whole: Vec<u8> = (0..1024).flat_map(|n| [if n < 600 && n % 2 == 0 { 5 } else { 7 }; 1024]).collect();
    assert!(content(&fs, inode) == whole);
    for number in 0..300 {
        fs.fallocate(&context(), inode, Fallocate::PunchHole, number * 2048, 1024).unwrap();
    }
    fs.fsync(&context(), inode).unwrap();
    let written = (0..300)
        .take_while(|number| match fs.write(&context(), inode, number * 2048, &[6; 1024]) {
            Ok(()) => true,
            Err(Error::NoSpace) => false,
            Err(error) => panic!("{error}"),
        })
        .count();
    // Everything except the file system's own reserve is used again.
    assert_eq!(fs.statistics().blocks_free, free);
    judge(fs, &device);
    if !blockyard_testkit::require(&["root"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("image");
    base.save(&image).unwrap();
    let mount = blockyard_testkit::LoopMount::new(&image, "").unwrap();
    let kernels = punch_and_write(&mount.path().join("file"));
    // The space of the blocks that could not be written again went to tree nodes. The engine's tree
    // may have a few more nodes than Linux's.
    assert!(written + 8 >= kernels, "{written} of 300, by Linux {kernels}");
}

/// Does the same on a mounted image: punches and rewrites 300 blocks one by one, then punches all
/// of them. Returns how many of them Linux can then write again.
fn punch_and_write(path: &std::path::Path) -> usize {
    use rustix::fs::{FallocateFlags, fallocate, fsync};
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    let punch = |number: u64| {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, flags, number * 2048, 1024).unwrap();
    };
    let write = |number: u64| std::os::unix::fs::FileExt::write_at(&file, &[5; 1024], number * 2048);
    for number in 0..300 {
        punch(number);
        fsync(&file).unwrap();
        write(number).unwrap();
    }
    fsync(&file).unwrap();
    (0..300).for_each(punch);
    fsync(&file).unwrap();
    (0..300).take_while(|&number| write(number).is_ok()).count()
}

/// An inline directory about as large as a block left its inode on any change. Linux keeps it
/// there.
#[test]
fn a_directory_in_a_large_inode_changes_there() {
    if !blockyard_testkit::require(&["root", "mke2fs", "e2fsck"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("image");
    let name = |number: u32| format!("name{number:04}");
    for size in ["1024", "2048"] {
        support::make(&["-b", size, "-I", size, "-O", "inline_data"], "8M", &image);
        let blocks_of = |path: &std::path::Path| rustix::fs::stat(path).unwrap().st_blocks;
        {
            let mount = blockyard_testkit::LoopMount::new(&image, "").unwrap();
            let dir = mount.path().join("d");
            std::fs::create_dir(&dir).unwrap();
            (0..40).for_each(|number| drop(std::fs::File::create(dir.join(name(number))).unwrap()));
            assert_eq!(blocks_of(&dir), 0);
        }
        let device = Arc::new(MemoryDevice::load(&image).unwrap());
        // How many more names fit before the directory leaves its inode under Linux.
        let kernels = {
            let mount = blockyard_testkit::LoopMount::new(&image, "").unwrap();
            let dir = mount.path().join("d");
            (40..400)
                .take_while(|&number| {
                    std::fs::File::create(dir.join(name(number))).unwrap();
                    blocks_of(&dir) == 0
                })
                .count()
        };
        let fs = open_on(&device, OpenOptions::default());
        let dir = fs.lookup(ROOT, b"d").unwrap();
        let ours = (40..400)
            .take_while(|&number| {
                file(&fs, dir, name(number));
                fs.attributes(dir).unwrap().sectors == 0
            })
            .count();
        assert!(ours >= kernels && ours < 360, "{ours} names, by Linux {kernels}");
        for number in 0..40 {
            fs.lookup(dir, name(number).as_bytes()).unwrap();
        }
        judge(fs, &device);
    }
}
