//! Orphans made by the kernel, by debugfs and by us: whoever finishes them, the same space is free
//! afterwards, and e2fsck finds nothing.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

#[path = "support/image.rs"]
mod support;

use blockyard_device::{BlockDevice, Effect, Fault, FaultyDevice, MemoryDevice, Operation, When};
use blockyard_disk::RoCompat;
use blockyard_disk::superblock::{PRIMARY_OFFSET, Superblock};
use blockyard_engine::{Error, FileSystem, OpenOptions, OrphanDefect};
use blockyard_testkit::{LoopMount, e2fsck_clean, full_matrix, require, run};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::{ROOT, context, directory, file, make, open, open_device};

/// Images with an orphan list, with an orphan file, with block maps, with clusters, and without a
/// journal.
const PROFILES: &[&[&str]] = &[
    &[],
    &["-O", "orphan_file", "-b", "1024"],
    &["-t", "ext3", "-b", "1024"],
    &["-O", "bigalloc,orphan_file", "-C", "16384"],
    &["-O", "^has_journal"],
];

fn text(program: &str, arguments: &[&str]) -> String {
    String::from_utf8_lossy(&run(program, arguments).stdout).into_owned()
}

/// Free blocks and inodes of every group, and the totals, as dumpe2fs prints them.
fn free_space(image: &Path) -> Vec<String> {
    text("dumpe2fs", &[image.to_str().unwrap()])
        .lines()
        .map(str::trim)
        .filter(|line| line.to_lowercase().contains("free"))
        // Leaves out the number of never-used inodes, which only some implementations raise again.
        .map(|line| line.split(" directories,").next().unwrap_or(line).to_owned())
        .collect()
}

fn superblock(device: &MemoryDevice) -> Superblock {
    let mut bytes = [0; 1024];
    device.read_at(PRIMARY_OFFSET, &mut bytes).unwrap();
    Superblock::parse(&bytes).unwrap()
}

fn copy(from: &Path, name: &str) -> PathBuf {
    let to = from.with_file_name(name);
    std::fs::copy(from, &to).unwrap();
    to
}

/// An image copied while the kernel has it mounted, with unlinked files and a removed directory
/// still open. The first file is empty, and the others are sparse. Each file has an extended
/// attribute.
fn kernel_orphans(options: &[&str], directory: &Path) -> PathBuf {
    let live = directory.join("live");
    make(options, "64M", &live);
    let mount = LoopMount::new(&live, "").unwrap();
    let mut held = Vec::new();
    for n in 0..6u64 {
        let path = mount.path().join(format!("file-{n}"));
        let file = std::fs::File::create(&path).unwrap();
        for piece in 0..40 * n {
            file.write_all_at(&[n as u8; 3000], piece * 20_000).unwrap();
        }
        let name = std::ffi::CString::new("user.large").unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&path, name.as_c_str(), &[7; 400], flags).unwrap();
        file.sync_all().unwrap();
        held.push(file);
        if n != 3 {
            std::fs::remove_file(&path).unwrap();
        }
    }
    let removed = mount.path().join("directory");
    std::fs::create_dir(&removed).unwrap();
    held.push(std::fs::File::open(&removed).unwrap());
    std::fs::remove_dir(&removed).unwrap();
    let root = std::fs::File::open(mount.path()).unwrap();
    rustix::fs::syncfs(&root).unwrap();
    copy(&live, "orphans")
}

/// Asserts that two lists are equal. Shows only the differences.
fn assert_equal(ours: &[String], theirs: &[String]) {
    let differences: Vec<_> = ours.iter().zip(theirs).filter(|(ours, theirs)| ours != theirs).collect();
    assert!(differences.is_empty() && ours.len() == theirs.len(), "ours, theirs: {differences:#?}");
}

/// Has the kernel mount and unmount a copy of the image. Returns the free space after that.
fn finished_by_kernel(image: &Path) -> Vec<String> {
    let path = copy(image, "kernel");
    drop(LoopMount::new(&path, "").unwrap());
    e2fsck_clean(&path);
    free_space(&path)
}

/// Opens and closes the image with our engine, and asserts that no orphan is left. Returns the free
/// space after that.
fn finished_by_us(image: &Path) -> Vec<String> {
    let path = image.with_file_name("ours");
    let (device, fs) = open(image);
    fs.close(&context()).unwrap();
    let after = superblock(&device);
    assert_eq!(after.raw().last_orphan(), None);
    assert!(!after.features().ro_compat.contains(RoCompat::ORPHAN_PRESENT));
    device.save(&path).unwrap();
    e2fsck_clean(&path);
    free_space(&path)
}

#[test]
fn orphans_of_the_kernel_are_finished_as_it_does() {
    if !require(&["mke2fs", "e2fsck", "dumpe2fs", "root"]) {
        return;
    }
    for options in PROFILES.iter().filter(|options| !options.contains(&"^has_journal")) {
        println!("mke2fs {options:?}");
        let scratch = tempfile::tempdir().unwrap();
        let image = kernel_orphans(options, scratch.path());
        // Opening read-only writes nothing, so the orphans stay.
        let device = Arc::new(MemoryDevice::load(&image).unwrap());
        let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
        let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
        FileSystem::open(shared, read_only, &context()).unwrap().close(&context()).unwrap();
        let untouched = image.with_file_name("untouched");
        device.save(&untouched).unwrap();
        assert!(std::fs::read(&untouched).unwrap() == std::fs::read(&image).unwrap());
        assert_equal(&finished_by_us(&image), &finished_by_kernel(&image));
    }
}

#[test]
fn a_list_made_by_hand_is_finished_as_the_kernel_and_e2fsck_do() {
    if !require(&["mke2fs", "e2fsck", "debugfs", "dumpe2fs", "root"]) {
        return;
    }
    for options in [&[][..], &["-t", "ext3", "-b", "1024"], &["-O", "^has_journal"]] {
        println!("mke2fs {options:?}");
        let scratch = tempfile::tempdir().unwrap();
        let image = scratch.path().join("image");
        make(options, "32M", &image);
        let (device, fs) = open(&image);
        // Below, debugfs makes orphans of these files. Finishing the orphans deletes the first file
        // and truncates the other two. The new size of the last file ends inside a block.
        let numbers: Vec<u32> = (0..3)
            .map(|n| {
                let inode = file(&fs, ROOT, format!("file-{n}"));
                for piece in 0..30 {
                    fs.write(&context(), inode, piece * 30_000, &[0x55; 9000]).unwrap();
                }
                inode.raw()
            })
            .collect();
        fs.close(&context()).unwrap();
        device.save(&image).unwrap();
        let [gone, short, odd] = numbers[..] else { unreachable!() };
        let script = format!(
            "unlink file-0\nset_inode_field <{gone}> links_count 0\nset_inode_field <{gone}> dtime {short}\n\
             set_inode_field <{short}> dtime {odd}\nset_inode_field <{short}> size 409600\n\
             set_inode_field <{odd}> size 301000\nset_super_value last_orphan {gone}\n"
        );
        let commands = scratch.path().join("commands");
        std::fs::write(&commands, script).unwrap();
        let arguments = ["-w", "-f", commands.to_str().unwrap(), image.to_str().unwrap()];
        assert!(run("debugfs", &arguments).status.success());
        let by_e2fsck = copy(&image, "e2fsck");
        assert!(matches!(run("e2fsck", &["-fy", by_e2fsck.to_str().unwrap()]).status.code(), Some(0 | 1)));
        let ours = finished_by_us(&image);
        assert_equal(&ours, &free_space(&by_e2fsck));
        assert_equal(&ours, &finished_by_kernel(&image));
        let (device, fs) = open(&image);
        let odd = fs.lookup(ROOT, b"file-2").unwrap();
        fs.truncate(&context(), odd, 310_000).unwrap();
        let mut tail = vec![1; 9000];
        assert_eq!(fs.read(&context(), odd, 301_000, &mut tail).unwrap(), 9000);
        assert!(tail.iter().all(|byte| *byte == 0), "what was cut off shows again");
        drop((device, fs));
    }
}

#[test]
fn a_damaged_list_is_refused_before_anything_is_written() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    for (field, why) in
        [("5000", OrphanDefect::Free), ("7", OrphanDefect::Number), ("99999999", OrphanDefect::Number)]
    {
        let image = scratch.path().join("image");
        make(&[], "32M", &image);
        let request = format!("set_super_value last_orphan {field}");
        assert!(run("debugfs", &["-w", "-R", &request, image.to_str().unwrap()]).status.success());
        let device = Arc::new(MemoryDevice::load(&image).unwrap());
        let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
        match FileSystem::open(shared, OpenOptions::default(), &context()) {
            Err(Error::Orphan { why: found, .. }) => assert_eq!(found, why),
            other => panic!("{field}: {:?}", other.err()),
        }
        let after = scratch.path().join("after");
        device.save(&after).unwrap();
        assert!(std::fs::read(&after).unwrap() == std::fs::read(&image).unwrap());
    }
}

/// Asserts that after a crash the same space is free, whether e2fsck, the kernel or we finish the
/// orphans.
fn assert_finished_alike(image: &Path) {
    let ours = finished_by_us(image);
    assert_equal(&ours, &finished_by_kernel(image));
    let by_e2fsck = copy(image, "e2fsck");
    let mended = run("e2fsck", &["-fp", by_e2fsck.to_str().unwrap()]);
    assert!(matches!(mended.status.code(), Some(0 | 1)));
    assert!(String::from_utf8_lossy(&mended.stdout).contains("orphaned inode"));
    e2fsck_clean(&by_e2fsck);
    assert_equal(&ours, &free_space(&by_e2fsck));
}

#[test]
fn an_unlinked_open_file_stays_readable_and_is_noted() {
    if !require(&["mke2fs", "e2fsck", "dumpe2fs", "root"]) {
        return;
    }
    for options in PROFILES {
        println!("mke2fs {options:?}");
        let scratch = tempfile::tempdir().unwrap();
        let image = scratch.path().join("image");
        make(options, "64M", &image);
        let (device, fs) = open(&image);
        let _kept = file(&fs, ROOT, "kept");
        fs.sync(&context()).unwrap();
        let before = fs.statistics();
        let mut held: Vec<_> = (0..5)
            .map(|n| {
                let inode = file(&fs, ROOT, format!("file-{n}"));
                for piece in 0..100 {
                    fs.write(&context(), inode, piece * 20_000, &[n; 3000]).unwrap();
                }
                fs.open_inode(inode, false).unwrap();
                fs.unlink(&context(), ROOT, format!("file-{n}").as_bytes()).unwrap();
                inode
            })
            .collect();
        let unnamed = fs.create_unnamed(&context(), ROOT, 0o600).unwrap();
        fs.write(&context(), unnamed, 0, b"without a name").unwrap();
        let named = fs.create_unnamed(&context(), ROOT, 0o600).unwrap();
        fs.write(&context(), named, 0, b"with a name").unwrap();
        fs.link(&context(), named, ROOT, b"named-late").unwrap();
        fs.release_inode(&context(), named, true).unwrap();
        let empty = directory(&fs, ROOT, "empty");
        fs.open_inode(empty, false).unwrap();
        fs.rmdir(&context(), ROOT, b"empty").unwrap();
        // Releasing this file removes an orphan from the middle of the list.
        fs.release_inode(&context(), held.remove(2), false).unwrap();
        fs.sync(&context()).unwrap();

        let cut_off = scratch.path().join("cut-off");
        device.save(&cut_off).unwrap();
        if fs.superblock().journal_inode().is_some() {
            assert_finished_alike(&cut_off);
        }

        for inode in &held {
            let mut read = [0xEE; 3000];
            assert_eq!(fs.read(&context(), *inode, 40_000, &mut read).unwrap(), 3000);
            assert!(read.iter().all(|byte| *byte == read[0] && *byte < 5));
        }
        fs.release_inode(&context(), held.remove(0), false).unwrap();
        fs.release_inode(&context(), unnamed, true).unwrap();
        assert!(matches!(fs.attributes(unnamed), Err(Error::StaleInode(_))));
        // The others are still open when the file system is closed.
        fs.close(&context()).unwrap();
        assert_eq!(superblock(&device).raw().last_orphan(), None);
        device.save(&image).unwrap();
        e2fsck_clean(&image);
        let fs = open_device(&device);
        fs.unlink(&context(), ROOT, b"named-late").unwrap();
        fs.sync(&context()).unwrap();
        assert_eq!(fs.statistics().blocks_free, before.blocks_free);
        assert_eq!(fs.statistics().inodes_free, before.inodes_free);
    }
}

/// A truncation that stops midway at an unreadable block may leave an orphan record. The same space
/// is free afterwards whether we or e2fsck finish the truncation.
#[test]
fn a_truncation_that_stops_half_way_is_noted() {
    if !require(&["mke2fs", "e2fsck", "dumpe2fs"]) {
        return;
    }
    for options in [&["-b", "1024"][..], &["-b", "1024", "-O", "orphan_file"], &["-t", "ext3", "-b", "1024"]]
    {
        println!("mke2fs {options:?}");
        let scratch = tempfile::tempdir().unwrap();
        let image = scratch.path().join("image");
        make(options, "24M", &image);
        let (device, fs) = open(&image);
        let inode = file(&fs, ROOT, "file");
        for piece in 0..3000 {
            fs.write(&context(), inode, piece * 5000, &[1; 2000]).unwrap();
        }
        fs.close(&context()).unwrap();
        let mut noted = 0;
        for nth in (3..70).step_by(if full_matrix() { 1 } else { 11 }) {
            let faulty = Arc::new(FaultyDevice::new(device.duplicate()));
            let shared: Arc<dyn BlockDevice> = Arc::<FaultyDevice<MemoryDevice>>::clone(&faulty);
            let fs = FileSystem::open(shared, OpenOptions::default(), &context()).unwrap();
            let when = When::Nth(faulty.counts().reads + nth);
            faulty.add(Fault { operation: Operation::Read, when, effect: Effect::Nothing });
            if fs.truncate(&context(), inode, 777).is_ok() {
                continue;
            }
            assert!(!fs.has_failed());
            fs.sync(&context()).unwrap();
            faulty.below().save(&image).unwrap();
            let ours = finished_by_us(&image);
            let mended = run("e2fsck", &["-fp", image.to_str().unwrap()]);
            assert!(matches!(mended.status.code(), Some(0 | 1)));
            noted += u32::from(String::from_utf8_lossy(&mended.stdout).contains("orphaned inode"));
            e2fsck_clean(&image);
            assert_equal(&ours, &free_space(&image));
        }
        // A block map of this size is truncated in one handle.
        assert!(
            noted > 0 || options.contains(&"ext3"),
            "only {noted} truncations stopped after their first handle"
        );
    }
}
