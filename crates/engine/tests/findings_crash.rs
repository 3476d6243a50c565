//! Bugs that adversarial testing found, most of them after failed device calls and power cuts. Each
//! is reproduced in its smallest form. A test's comment says what the engine once did wrong, or
//! which rule it must keep.

#![allow(clippy::unwrap_used)]

#[path = "support/image.rs"]
mod support;
#[path = "support/trial.rs"]
mod trial;

use blockyard_device::{BlockDevice, Effect, Fault, FaultyDevice, MemoryDevice, Operation, When};
use blockyard_disk::InodeNr;
use blockyard_disk::num::usize_from_u64;
use blockyard_engine::{DataMode, Error, Fallocate, FileSystem, OpenOptions, XattrMode, mkfs};
use std::sync::Arc;
use support::{ROOT, context, directory, file};
use trial::{
    FILE, GROWTHS, after_each_write, comb, committing, content, debugged, ext4,
    file_with_more_behind_its_end, formatted, fresh, judge, judge_image, open_on, part,
    with_each_read_failing,
};

/// If the last step of a write past the end of the file failed, dirty blocks stayed behind the end,
/// and write-back mapped them.
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
        // A commit is due now. If it needs a checkpoint, the checkpoint reads the log, and that
        // read fails.
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

/// A direct write into blocks allocated behind the end converted them in one transaction and raised
/// the size in the next.
#[test]
fn a_direct_write_and_its_size_are_one_transaction() {
    let (device, fs) = fresh(&ext4(4096), 64 << 20);
    let inode = file(&fs, ROOT, FILE);
    fs.write(&context(), inode, 0, &[1; 8192]).unwrap();
    fs.fallocate(&context(), inode, Fallocate::AllocateKeepSize, 0, 1 << 20).unwrap();
    fs.close(&context()).unwrap();
    let direct = |fs: &FileSystem| {
        // The file ends at block 2. The writes lie, in this order: behind the end, at the new end,
        // over the gap in blocks 2 and 3, across the end of the allocated blocks, behind a hole,
        // and across the end of the file.
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

/// A truncation that failed midway left blocks behind the end. When the file grew, their content
/// showed again, and e2fsck complained.
#[test]
fn a_truncation_that_fails_is_finished_before_the_file_grows_and_at_close() {
    for (features, grows) in [("^has_journal", true), ("^has_journal", false), ("has_journal", true)] {
        let (device, fs) = fresh(&ext4(1024).features(features), 32 << 20);
        let (inode, model) = comb(&fs, 400, 3);
        fs.close(&context()).unwrap();
        let cut = |fs: &FileSystem| {
            // Makes a block dirty. A truncation that fails before it has cut anything must not drop
            // this data.
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
                assert!(found == model, "nothing was cut, but the content differs");
            }
        });
    }
}

/// A truncation that failed midway left dirty bytes behind the new end in the last block. When a
/// later write made the file longer, these bytes could be read.
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

/// Without a journal, a deletion that failed midway left an inode that was in use but had no links.
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

/// A read failed while the values of an inode's attributes lost their references. Some values then
/// had a reference count of 0 but were still referred to. No operation on that inode worked any
/// more, not even deleting it.
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
        // These files fill inodes, so that the next value inode is in another inode table block.
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

/// When a file with a dirty last block grew, the block was zeroed behind the old end only in
/// memory, and the larger size was committed before the block was written.
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

/// A read error during an insert range left only a part of the file moved. During a collapse range
/// it made the instance read-only.
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

/// When inline data was moved out of its inode into a block, a transaction removed the data from
/// the inode and committed while the block was only in memory.
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

/// A crash during the deletion of a long symbolic link on an image without extents left a link that
/// looked like a fast symbolic link, whose target lies in the inode. The image could not be opened
/// any more.
#[test]
fn a_crash_amid_the_deletion_of_a_long_link_leaves_an_image_that_opens() {
    let (device, fs) = fresh(&mkfs::Options::ext3().block_size(1024), 32 << 20);
    fs.symlink(&context(), ROOT, b"link", &[b'x'; 500]).unwrap();
    fs.close(&context()).unwrap();
    let unlink = |fs: &FileSystem| fs.unlink(&context(), ROOT, b"link").unwrap();
    after_each_write(&device, &committing(), unlink, |_| {});
}

/// On a device that refuses writes, the amount of dirty data grew without bound: writers continued,
/// and data that could not be written stayed in memory.
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

/// The error code of an aborted journal was ignored, and the image was opened for writing without a
/// check.
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

/// The log of an earlier file system on the device must not be replayed into the new one, even if
/// both have the same UUID.
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
    // Each call of `fill` ends by dropping its instance, which closes it.
    fill(0..50);
    mkfs::format(&*device, &ext4(1024).identity(1, 1)).unwrap();
    fill(0..1);
    let fs = open_on(&device, OpenOptions::default());
    assert!(fs.lookup(ROOT, b"0").is_ok() && fs.lookup(ROOT, b"1").is_err());
    judge(fs, &device);
}

/// On a damaged image, an inode with a name but with a link count of 0 was deleted at close after a
/// mere lookup of its attributes.
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

/// After a read error late in a write-back, the file's new size was forgotten when the inode left
/// memory. The next fsync succeeded with the old size on disk.
#[test]
fn the_end_of_a_file_whose_write_back_failed_is_not_forgotten() {
    let device = Arc::new(FaultyDevice::new(formatted(&ext4(1024), 64 << 20)));
    let options = OpenOptions { inodes_max: 1, cache_bytes: 64 << 10, ..OpenOptions::default() };
    let fs = open_on(&device, options);
    let others: Vec<InodeNr> = (0..4000).map(|number| file(&fs, ROOT, format!("{number}"))).collect();
    let inode = file(&fs, ROOT, FILE);
    fs.write(&context(), inode, 0, &[3; 500]).unwrap();
    fs.sync(&context()).unwrap();
    let look_at_others = || others.iter().rev().for_each(|&other| assert!(fs.attributes(other).is_ok()));
    // The file grows inside its block, so write-back has only the data and the new size to write.
    // Looking at the other inodes evicts the file's inode table block from memory.
    fs.write(&context(), inode, 500, &[3; 500]).unwrap();
    fs.commit(&context()).unwrap();
    look_at_others();
    let when = When::From(device.counts().reads + 1);
    device.add(Fault { operation: Operation::Read, when, effect: Effect::Nothing });
    let written = fs.fsync(&context(), inode);
    assert!(matches!(written, Err(Error::Device(_))), "{written:?}, {:?}", device.counts());
    device.heal();
    look_at_others();
    assert_eq!(content(&fs, inode), [3; 1000]);
    fs.fsync(&context(), inode).unwrap();
    // A power cut: only what the device holds remains.
    let after = open_on(&Arc::new(device.below().duplicate()), OpenOptions::default());
    assert_eq!(content(&after, inode), [3; 1000]);
    fs.close(&context()).unwrap();
    judge_image(device.below());
}

/// A writer that had to make room under the limit of dirty data got the write error of another
/// file's data.
#[test]
fn a_writer_under_the_limit_is_not_told_of_others() {
    let device = Arc::new(FaultyDevice::new(formatted(&ext4(4096), 256 << 20)));
    let options = OpenOptions { dirty_data_bytes: 1 << 20, ..OpenOptions::default() };
    let fs = open_on(&device, options);
    let [refused, writer] = [b"refused".as_slice(), b"writer"].map(|name| file(&fs, ROOT, name));
    fs.fallocate(&context(), refused, Fallocate::Allocate, 0, 900 << 10).unwrap();
    // Finds the first block of `refused` on the device by its content.
    fs.write(&context(), refused, 0, &[0xA7; 4096]).unwrap();
    fs.sync(&context()).unwrap();
    let mut block = vec![0; 4096];
    let place = (0..256 << 20).step_by(4096).find(|&at| {
        device.read_at(at, &mut block).unwrap();
        block == [0xA7; 4096]
    });
    let when = When::Touching(place.unwrap());
    device.add(Fault { operation: Operation::Write, when, effect: Effect::Nothing });
    fs.write(&context(), refused, 0, &vec![1; 800 << 10]).unwrap();
    // `writer` may use the rest of the limit. Each time the limit is reached, its own data is
    // written back to make room.
    for number in 0..100 {
        fs.write(&context(), writer, number * (100 << 10), &vec![2; 100 << 10]).unwrap();
    }
    fs.fsync(&context(), writer).unwrap();
    assert!(fs.fsync(&context(), refused).is_err());
}

/// If one of the superblock's two sectors has a wrong bit, as after a torn write, the engine and
/// the kernel refuse the image. Our checker uses a backup superblock.
#[test]
fn a_torn_superblock_is_refused_by_name() {
    let (base, fs) = fresh(&ext4(1024), 32 << 20);
    file(&fs, ROOT, FILE);
    fs.close(&context()).unwrap();
    for sector in [0, 1] {
        let device = Arc::new(base.duplicate());
        let mut bytes = [0; 512];
        device.read_at(1024 + sector * 512, &mut bytes).unwrap();
        // Flips a bit of the time of the last write, or of a field in the second sector.
        let field = if sector == 0 { 0x30 } else { 0x60 };
        bytes[field] ^= 1;
        device.write_at(1024 + sector * 512, &bytes).unwrap();
        let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
        let refused = FileSystem::open(shared, OpenOptions::default(), &context()).map(drop).unwrap_err();
        let Error::Corrupt(found) = refused else { panic!("{refused}") };
        assert_eq!(found.kind, blockyard_disk::CorruptionKind::SuperblockChecksum);
        let report = blockyard_check::check(&*device, &blockyard_check::Options::default()).unwrap();
        assert!(!report.findings.is_empty(), "a backup was taken");
        if blockyard_testkit::require(&["root"]) {
            let scratch = tempfile::tempdir().unwrap();
            let image = scratch.path().join("image");
            device.save(&image).unwrap();
            assert!(blockyard_testkit::LoopMount::new(&image, "ro").is_err());
        }
    }
}
