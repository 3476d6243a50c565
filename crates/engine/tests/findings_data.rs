//! Bugs that adversarial testing found in the content of files and of attributes, each reproduced
//! in its smallest form. A test's comment says what the engine once did wrong.

#![allow(clippy::unwrap_used)]

#[path = "support/image.rs"]
mod support;
#[path = "support/trial.rs"]
mod trial;

use blockyard_disk::num::u64_from_usize;
use blockyard_engine::instruments::Instruments;
use blockyard_engine::{DataMode, Error, Fallocate, OpenOptions, XattrMode, mkfs};
use std::sync::Arc;
use support::{ROOT, context, file};
use trial::{
    FILE, GROWTHS, comb, content, debugged, ext4, file_with_more_behind_its_end, formatted, fresh, judge,
    open_on, part,
};

/// A range that began on a block boundary and ended inside that block was not zeroed.
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

/// With the page cache imitated and blocks above 4 KiB, older dirty data was written over a direct
/// write.
#[test]
fn a_direct_write_comes_after_the_data_that_waited() {
    for bits in [12, 13, 14, 16] {
        let device = Arc::new(formatted(&ext4(1 << bits), 256 << 20));
        let options = OpenOptions { instruments: Instruments::page_cache(), ..OpenOptions::default() };
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

/// When the page cache was imitated and space was short, a partly written block of a file with a
/// block map showed old content of the device in the part that was not written.
#[test]
fn a_block_that_is_placed_at_once_is_zeroes_but_for_what_was_written() {
    let device = Arc::new(formatted(&mkfs::Options::ext3().block_size(4096), 64 << 20));
    let fs =
        open_on(&device, OpenOptions { instruments: Instruments::page_cache(), ..OpenOptions::default() });
    let [inode, old, filler] = [FILE, b"old", b"filler"].map(|name| file(&fs, ROOT, name));
    fs.truncate(&context(), inode, 1 << 20).unwrap();
    let mut at = 0;
    while fs.write(&context(), old, at, &[0xaa; 64 << 10]).is_ok() {
        at += 64 << 10;
    }
    fs.sync(&context()).unwrap();
    fs.unlink(&context(), ROOT, b"old").unwrap();
    fs.sync(&context()).unwrap();
    // Fills the space, except for a little more than 192 KiB.
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

/// Another system or a crash can leave bytes past the end of a file in its last block. They became
/// visible when the file grew.
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

/// Each freed block of journaled data takes a revoke record, and the records of a large file did
/// not fit into the log. So such a file is now freed in parts, which may end inside a cluster.
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

/// An insert range first writes the file's data back. If the insertion was then refused, a new size
/// that was only in memory was lost.
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
    // These files evict the inode of the first file from memory.
    for n in 0..2000 {
        file(&fs, ROOT, format!("{n}"));
    }
    fs.close(&context()).unwrap();
    let fs = open_on(&device, OpenOptions::default());
    assert!(content(&fs, inode) == [[8; 4000].to_vec(), vec![0; 6000]].concat());
    judge(fs, &device);
}

/// A collapse range took the credits for moving extents and those for freeing blocks in one handle,
/// which is more than the smallest transactions have. With such transactions, the blocks are now
/// freed in other handles.
#[test]
fn a_tail_is_moved_in_the_smallest_transactions() {
    let device = Arc::new(formatted(&ext4(1024), 64 << 20));
    let fs = open_on(
        &device,
        OpenOptions { instruments: Instruments::transaction_blocks(0), ..OpenOptions::default() },
    );
    for (extents, len) in [(1500, 4096), (1500, 2 << 20), (20, 4096)] {
        let (inode, model) = comb(&fs, extents, 3);
        let bytes = u64_from_usize(len);
        fs.fallocate(&context(), inode, Fallocate::CollapseRange, 2048, bytes).unwrap();
        assert!(content(&fs, inode)[2048..] == model[2048 + len..]);
        fs.unlink(&context(), ROOT, FILE).unwrap();
    }
    judge(fs, &device);
}

/// On a full image a write to a file with inline data returned "no space", and the content was
/// gone.
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
    let options = OpenOptions {
        instruments: Instruments::page_cache(),
        delayed_allocation: false,
        ..OpenOptions::default()
    };
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

/// Direct writes put extents between dirty blocks. But when the engine reserved space for tree
/// blocks, it assumed that the extents of dirty blocks would come behind all others. When the
/// remaining space was filled, data that `write` had accepted could not be written back, and was
/// lost at close.
#[test]
fn direct_writes_leave_room_for_what_waits_beside_them() {
    let (block, cluster) = (1024_u64, 16_u64 << 10);
    let (device, fs) = fresh(&ext4(1024).cluster_size(16 << 10), 32 << 20);
    let [inode, filler] = [FILE, b"filler"].map(|name| file(&fs, ROOT, name));
    let clusters = fs.statistics().blocks_free * block / cluster * 9 / 10;
    let bytes = vec![7; 1024];
    for at in (0..clusters).step_by(2) {
        fs.write(&context(), inode, at * cluster, &bytes).unwrap();
    }
    for at in (1..clusters).step_by(2) {
        for beside in [1, 4, 7] {
            fs.write_direct(&context(), inode, at * cluster + beside * block, &bytes).unwrap();
        }
    }
    let (more, mut at) = (vec![9; 16 << 10], 0);
    while let Ok(written) = fs.write_some(&context(), filler, at, &more) {
        at += u64_from_usize(written);
    }
    fs.fsync(&context(), inode).unwrap();
    fs.close(&context()).unwrap();
    let fs = open_on(&device, OpenOptions::default());
    for at in (0..clusters).step_by(2) {
        assert_eq!(part(&fs, inode, at * cluster, 1024), bytes, "cluster {at}");
    }
    judge(fs, &device);
}

/// Linux stores equal large values once, in a value inode that counts its references. If two
/// attributes of one file shared a value inode and one of them was removed, the count stayed at
/// two.
#[test]
fn a_value_that_two_attributes_share_loses_one_reference() {
    if !blockyard_testkit::require(&["e2fsck", "mke2fs", "root"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("image");
    for change in ["remove", "replace", "remove both"] {
        support::make(&["-O", "ea_inode,^has_journal", "-b", "4096", "-I", "128"], "32M", &image);
        let mount = blockyard_testkit::LoopMount::new(&image, "").unwrap();
        let path = mount.path().join("file");
        std::fs::write(&path, "x").unwrap();
        for name in ["user.a", "user.b"] {
            rustix::fs::setxattr(&path, name, &[7; 6000], rustix::fs::XattrFlags::empty()).unwrap();
        }
        drop(mount);
        let (device, fs) = support::open(&image);
        let inode = fs.lookup(ROOT, FILE).unwrap();
        match change {
            "replace" => fs.set_xattr(&context(), inode, b"user.a", b"small", XattrMode::Set).unwrap(),
            _ => fs.remove_xattr(&context(), inode, b"user.a").unwrap(),
        }
        assert_eq!(fs.xattr(inode, b"user.b").unwrap(), [7; 6000]);
        if change == "remove both" {
            fs.remove_xattr(&context(), inode, b"user.b").unwrap();
        }
        judge(fs, &device);
    }
}
