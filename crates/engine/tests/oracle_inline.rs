//! New files and directories on images with inline data. The engine keeps content inline where the
//! kernel does, and the kernel reads what the engine wrote.

#![allow(clippy::unwrap_used)]

#[path = "support/image.rs"]
mod support;
#[path = "support/trial.rs"]
mod trial;

use blockyard_disk::inode::InodeFlags;
use blockyard_disk::num::usize_from_u64;
use blockyard_engine::{Fallocate, FileSystem, OpenOptions, XattrMode, mkfs};
use blockyard_testkit::{LoopMount, e2fsck_clean, require};
use rustix::fs::{FallocateFlags, XattrFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use support::{ROOT, context, directory, file, make, open};
use trial::{FILE, after_each_write, committing, content, ext4, formatted, fresh, judge, open_on};

/// A change of a file. Two numbers are an offset and a length, in bytes.
#[derive(Clone, Copy, Debug)]
enum Change {
    Write(u64, usize),
    /// Sets the size to so many bytes.
    Truncate(u64),
    Allocate(u64, u64),
    Punch(u64, u64),
    /// Sets the attribute `user.a` to a value of so many bytes.
    Attribute(usize),
}

use Change::{Allocate, Attribute, Punch, Truncate, Write};

/// For each file, the changes made to it. An inode has room for `room` bytes of inline data.
fn files(room: usize) -> Vec<Vec<Change>> {
    let end = u64::try_from(room).unwrap();
    vec![
        vec![],
        vec![Write(0, 1)],
        vec![Write(0, 60)],
        vec![Write(0, 61)],
        vec![Write(0, room)],
        vec![Write(0, room + 1)],
        vec![Write(end - 3, 3)],
        vec![Write(5000, 3)],
        vec![Write(0, 30), Write(30, room - 30)],
        vec![Write(0, 30), Write(30, room - 29)],
        vec![Write(0, room), Write(end, 1)],
        vec![Write(0, room), Write(9000, 10)],
        vec![Truncate(50), Write(0, 3)],
        vec![Truncate(5000), Write(0, 3)],
        vec![Truncate(5000), Write(0, 3), Write(end, 3)],
        vec![Truncate(5000), Write(0, 3), Truncate(6000)],
        vec![Truncate(5000), Write(0, 3), Truncate(4000)],
        vec![Truncate(5000), Write(0, 3), Truncate(30)],
        vec![Write(0, 100), Truncate(30), Write(90, 10)],
        vec![Write(0, 100), Truncate(110)],
        vec![Write(0, 30), Truncate(40)],
        vec![Write(0, 30), Truncate(30)],
        vec![Write(0, 100), Truncate(0)],
        vec![Write(0, 100), Truncate(0), Write(0, 10)],
        vec![Write(0, 5000), Truncate(0), Write(0, 3)],
        vec![Write(0, 100), Truncate(70)],
        vec![Write(0, 100), Truncate(70), Truncate(71)],
        vec![Allocate(0, 100), Write(0, 3)],
        vec![Punch(0, 100), Write(0, 3)],
        vec![Write(0, 50), Allocate(0, 20)],
        vec![Write(0, 50), Punch(10, 10)],
        // An attribute with a value of one byte takes 24 bytes, one with a value of 20 bytes takes
        // 40.
        vec![Attribute(1), Write(0, room - 24)],
        vec![Attribute(1), Write(0, room - 23)],
        vec![Write(0, 60), Attribute(20), Write(60, room - 100)],
        vec![Write(0, 60), Attribute(20), Write(60, room - 99)],
        vec![Write(0, room), Attribute(20)],
        vec![Attribute(room - 60), Write(0, 1)],
    ]
}

fn bytes(number: usize, len: usize) -> Vec<u8> {
    vec![u8::try_from(number + 1).unwrap(); len]
}

/// The content of a file after all changes.
fn content_of(changes: &[Change]) -> Vec<u8> {
    let mut content = Vec::new();
    for (number, &change) in changes.iter().enumerate() {
        let place = |at: u64, len: usize| usize_from_u64(at)..usize_from_u64(at) + len;
        match change {
            Write(at, len) => {
                let place = place(at, len);
                content.resize(content.len().max(place.end), 0);
                content[place].copy_from_slice(&bytes(number, len));
            }
            Truncate(size) => content.resize(usize_from_u64(size), 0),
            Allocate(at, len) => {
                let end = usize_from_u64(at + len);
                content.resize(content.len().max(end), 0);
            }
            Punch(at, len) => {
                let end = content.len();
                content[usize_from_u64(at).min(end)..usize_from_u64(at + len).min(end)].fill(0);
            }
            Attribute(_) => {}
        }
    }
    content
}

fn change_by_kernel(path: &Path, changes: &[Change]) {
    let file = File::create(path).unwrap();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for (number, &change) in changes.iter().enumerate() {
        match change {
            Write(at, len) => file.write_all_at(&bytes(number, len), at).unwrap(),
            Truncate(size) => file.set_len(size).unwrap(),
            Allocate(at, len) => rustix::fs::fallocate(&file, FallocateFlags::empty(), at, len).unwrap(),
            Punch(at, len) => rustix::fs::fallocate(&file, hole, at, len).unwrap(),
            Attribute(len) => {
                rustix::fs::fsetxattr(&file, "user.a", &bytes(number, len), XattrFlags::empty()).unwrap();
            }
        }
    }
}

fn change_by_us(fs: &FileSystem, name: &str, changes: &[Change]) {
    let (ctx, inode) = (context(), file(fs, ROOT, name));
    for (number, &change) in changes.iter().enumerate() {
        match change {
            Write(at, len) => fs.write(&ctx, inode, at, &bytes(number, len)).unwrap(),
            Truncate(size) => fs.truncate(&ctx, inode, size).unwrap(),
            Allocate(at, len) => fs.fallocate(&ctx, inode, Fallocate::Allocate, at, len).unwrap(),
            Punch(at, len) => fs.fallocate(&ctx, inode, Fallocate::PunchHole, at, len).unwrap(),
            Attribute(len) => {
                fs.set_xattr(&ctx, inode, b"user.a", &bytes(number, len), XattrMode::Set).unwrap();
            }
        }
    }
}

/// Whether an inode's content is inline or mapped by extents, its size in bytes, and its sectors.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    inline: bool,
    extents: bool,
    size: u64,
    sectors: u64,
}

fn seen(fs: &FileSystem, name: &str) -> Seen {
    let found = fs.attributes(fs.lookup(ROOT, name.as_bytes()).unwrap()).unwrap();
    let has = |flag: InodeFlags| found.flags & flag.bits() != 0;
    Seen {
        inline: has(InodeFlags::INLINE_DATA),
        extents: has(InodeFlags::EXTENTS),
        size: found.size,
        sectors: found.sectors,
    }
}

#[test]
fn content_goes_into_new_inodes_and_stays_there_as_with_the_kernel() {
    if !require(&["mke2fs", "e2fsck", "root"]) {
        return;
    }
    for (inode_size, room) in [("256", 128), ("512", 384), ("1024", 896)] {
        let scratch = tempfile::tempdir().unwrap();
        let [theirs, ours] = ["theirs", "ours"].map(|name| scratch.path().join(name));
        let options = ["-b", "4096", "-I", inode_size, "-O", "inline_data"];
        for image in [&theirs, &ours] {
            make(&options, "32M", image);
        }
        let scripts = files(room);
        let named = || scripts.iter().enumerate().map(|(number, script)| (format!("f{number}"), script));
        {
            let mount = LoopMount::new(&theirs, "").unwrap();
            named().for_each(|(name, script)| change_by_kernel(&mount.path().join(name), script));
        }
        let (device, fs) = open(&ours);
        named().for_each(|(name, script)| change_by_us(&fs, &name, script));
        fs.close(&context()).unwrap();
        device.save(&ours).unwrap();
        e2fsck_clean(&ours);
        let ((_, theirs), (_, again)) = (open(&theirs), open(&ours));
        let mount = LoopMount::new(&ours, "ro").unwrap();
        let mut inline = 0;
        for (name, script) in named() {
            let what = format!("inodes of {inode_size} bytes, {name}: {script:?}");
            let expected = seen(&theirs, &name);
            assert_eq!(seen(&again, &name), expected, "{what}");
            inline += usize::from(expected.inline);
            let bytes = content_of(script);
            let read = |fs: &FileSystem| content(fs, fs.lookup(ROOT, name.as_bytes()).unwrap());
            assert_eq!(read(&again), bytes, "{what}");
            assert_eq!(std::fs::read(mount.path().join(&name)).unwrap(), bytes, "{what}: read by the kernel");
            // If a hole is punched into an inline file, Linux 6.18 moves the data into a block but
            // does not zero the hole.
            if !matches!(script[..], [Write(..), Punch(..)]) {
                assert_eq!(read(&theirs), bytes, "{what}: written by the kernel");
            }
        }
        assert!(inline > 10 && inline < scripts.len() - 10, "{inline} of {} are inline", scripts.len());
    }
}

/// The lengths of the names in each directory, in the order in which they are made.
fn directories() -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = (0..80).step_by(3).map(|count| vec![4; count]).collect();
    all.extend((0..14).map(|count| vec![2; count]));
    all.extend([48, 49, 60, 61, 100].map(|len| vec![len]));
    all.push(vec![49, 3]);
    all
}

#[test]
fn directories_lie_in_their_inodes_as_with_the_kernel() {
    if !require(&["mke2fs", "e2fsck", "root"]) {
        return;
    }
    for inode_size in ["256", "1024"] {
        let scratch = tempfile::tempdir().unwrap();
        let [theirs, ours] = ["theirs", "ours"].map(|name| scratch.path().join(name));
        let options = ["-b", "4096", "-I", inode_size, "-O", "inline_data"];
        for image in [&theirs, &ours] {
            make(&options, "64M", image);
        }
        let lists = directories();
        let named = || lists.iter().enumerate().map(|(number, lengths)| (format!("d{number}"), lengths));
        let name = |number: usize, len: usize| format!("{number:0>len$}");
        {
            let mount = LoopMount::new(&theirs, "").unwrap();
            for (directory, lengths) in named() {
                let directory = mount.path().join(directory);
                std::fs::create_dir(&directory).unwrap();
                for (number, &len) in lengths.iter().enumerate() {
                    File::create(directory.join(name(number, len))).unwrap();
                }
            }
        }
        let (device, fs) = open(&ours);
        for (path, lengths) in named() {
            let inode = directory(&fs, ROOT, path);
            for (number, &len) in lengths.iter().enumerate() {
                file(&fs, inode, name(number, len));
            }
        }
        fs.close(&context()).unwrap();
        device.save(&ours).unwrap();
        e2fsck_clean(&ours);
        let ((_, theirs), (_, again)) = (open(&theirs), open(&ours));
        let mount = LoopMount::new(&ours, "ro").unwrap();
        for (path, lengths) in named() {
            let what = format!("inodes of {inode_size} bytes, {path}: {lengths:?}");
            assert_eq!(seen(&again, &path), seen(&theirs, &path), "{what}");
            let entries = std::fs::read_dir(mount.path().join(&path)).unwrap();
            let mut found: Vec<String> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            let mut entered: Vec<String> =
                lengths.iter().enumerate().map(|(number, &len)| name(number, len)).collect();
            found.sort_unstable();
            entered.sort_unstable();
            assert_eq!(found, entered, "{what}");
        }
    }
}

/// Options of an image with inline data.
fn inline() -> mkfs::Options {
    ext4(4096).features("inline_data").inode_size(256)
}

#[test]
fn fdatasync_makes_content_in_an_inode_durable() {
    let (device, fs) = fresh(&inline(), 64 << 20);
    let inode = file(&fs, ROOT, FILE);
    for byte in 1..4 {
        fs.write(&context(), inode, 10, &[byte; 50]).unwrap();
        fs.fdatasync(&context(), inode).unwrap();
        assert_eq!(seen(&fs, "file"), Seen { inline: true, extents: false, size: 60, sectors: 1 });
        let cut = open_on(&Arc::new(device.duplicate()), OpenOptions::default());
        let found = content(&cut, cut.lookup(ROOT, FILE).unwrap());
        assert_eq!(found, [&[0; 10][..], &[byte; 50]].concat());
    }
    judge(fs, &device);
}

#[test]
fn a_power_cut_leaves_content_in_the_inode_or_in_a_block() {
    let base = formatted(&inline(), 64 << 20);
    let work = |fs: &FileSystem| {
        let inode = file(fs, ROOT, FILE);
        fs.write(&context(), inode, 0, &[6; 50]).unwrap();
        fs.append(&context(), inode, &[6; 60]).unwrap();
        fs.truncate(&context(), inode, 40).unwrap();
        fs.append(&context(), inode, &[7; 5000]).unwrap();
        fs.fsync(&context(), inode).unwrap();
        assert_eq!(content(fs, inode), [&[6; 40][..], &[7; 5000]].concat());
    };
    for options in [committing(), OpenOptions::default()] {
        after_each_write(&base, &options, work, |fs| {
            let Ok(inode) = fs.lookup(ROOT, FILE) else { return };
            let found = content(fs, inode);
            assert!(found.len() <= 5040, "{} bytes", found.len());
            let (first, rest) = found.split_at(found.len().min(40));
            assert!(first.iter().all(|&byte| byte == 6) && rest.iter().all(|byte| [6, 7].contains(byte)));
        });
    }
}

/// Inline data that leaves its inode before a commit becomes dirty data, like the data appended to
/// it, so the file gets one extent. Inline data that was committed is written to a block at once,
/// because a crash must not lose it.
#[test]
fn a_file_that_outgrows_its_inode_is_placed_as_a_whole() {
    let (device, fs) = fresh(&inline(), 64 << 20);
    let inode = file(&fs, ROOT, FILE);
    fs.write(&context(), inode, 0, &[6; 50]).unwrap();
    fs.append(&context(), inode, &[7; 100_000]).unwrap();
    assert!(fs.extents(inode, 0, 10).unwrap().iter().all(|extent| extent.physical.is_none()));
    fs.fsync(&context(), inode).unwrap();
    assert_eq!(fs.extents(inode, 0, 10).unwrap().len(), 1);
    let other = file(&fs, ROOT, b"other");
    fs.write(&context(), other, 0, &[6; 50]).unwrap();
    fs.fsync(&context(), other).unwrap();
    fs.append(&context(), other, &[7; 100_000]).unwrap();
    assert!(fs.extents(other, 0, 1).unwrap()[0].physical.is_some());
    for inode in [inode, other] {
        assert!(content(&fs, inode) == [&[6; 50][..], &[7; 100_000]].concat());
    }
    judge(fs, &device);
}
