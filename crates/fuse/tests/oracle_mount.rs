//! Changes made through a mount, compared with what the kernel's ext4 shows afterwards and judged
//! by e2fsck.

#![allow(clippy::unwrap_used, clippy::panic)]

mod mounted;

use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;

use blockyard_testkit::tree::{Tree, assert_same, read_tree};
use blockyard_testkit::{LoopMount, e2fsck_clean, fill, require};
use mounted::{Mounted, place};
use rustix::mount::MountFlags;

/// Removes creation times, which fuser does not transmit, and access times, which reading the tree
/// changes.
fn comparable(mut tree: Tree) -> Tree {
    for node in tree.values_mut() {
        node.created = None;
        node.accessed = (0, 0);
    }
    tree
}

fn without_sectors(mut tree: Tree) -> Tree {
    tree.values_mut().for_each(|node| node.sectors = 0);
    tree
}

fn can_mount() -> bool {
    require(&["root", "mke2fs", "e2fsck", "mount"])
}

#[test]
fn one_of_everything_is_as_the_kernel_sees_it() {
    if !can_mount() {
        return;
    }
    for (block_size, features) in [("4096", "inline_data"), ("1024", "^metadata_csum")] {
        let place = place(&["-t", "ext4", "-b", block_size, "-O", features, "-I", "256"], "192M");
        let mounted = Mounted::new(&place.image, &place.directory, "");
        let root = &*place.directory;
        fill::sizes(root, block_size.parse().unwrap());
        fill::sparse(root, 3_000_000);
        fill::symlinks(root, [1, 59, 60, 61, 500]);
        fill::specials(root);
        fill::owners(root);
        fill::times(root, true);
        fill::attributes(root, 500);
        fill::access_lists(root);
        fill::names(root);
        fill::many_names(root, "many", 3000, 20);
        fill::deep(root, 40);
        let live = comparable(read_tree(root));
        mounted.unmount();
        e2fsck_clean(&place.image);
        let theirs = comparable(read_tree(LoopMount::new(&place.image, "ro").unwrap().path()));
        // The blocks that hold a file's mapping are counted only after the file was written back.
        assert_same(&without_sectors(live), &without_sectors(theirs.clone()));
        let mounted = Mounted::new(&place.image, &place.directory, "ro");
        assert_same(&comparable(read_tree(root)), &theirs);
        mounted.unmount();
    }
}

/// A tree that the kernel made looks in our read-only mount as it does in the kernel's.
#[test]
fn what_the_kernel_made_is_shown_as_the_kernel_shows_it() {
    if !can_mount() {
        return;
    }
    let place = place(&["-t", "ext4", "-b", "4096"], "192M");
    {
        let mount = LoopMount::new(&place.image, "").unwrap();
        fill::sizes(mount.path(), 4096);
        fill::sparse(mount.path(), 3_000_000);
        fill::specials(mount.path());
        fill::times(mount.path(), true);
        fill::attributes(mount.path(), 900);
        fill::many_names(mount.path(), "many", 3000, 20);
    }
    let theirs = comparable(read_tree(LoopMount::new(&place.image, "ro").unwrap().path()));
    let before = std::fs::read(&place.image).unwrap();
    let mounted = Mounted::new(&place.image, &place.directory, "ro");
    assert_same(&comparable(read_tree(&place.directory)), &theirs);
    let refused = std::fs::write(place.directory.join("new"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(30));
    mounted.unmount();
    assert!(std::fs::read(&place.image).unwrap() == before, "a read-only mount wrote");
}

/// Names are replaced, linked and removed. An open file can be written and read after its last name
/// was removed.
#[test]
fn names_come_and_go_and_open_files_outlive_them() {
    if !can_mount() {
        return;
    }
    let place = place(&["-t", "ext4"], "64M");
    let mounted = Mounted::new(&place.image, &place.directory, "");
    let at = |name: &str| place.directory.join(name);
    std::fs::write(at("a"), "first").unwrap();
    std::fs::write(at("b"), "second").unwrap();
    std::fs::create_dir_all(at("d/e")).unwrap();
    let inode = std::fs::metadata(at("a")).unwrap().ino();
    std::fs::rename(at("a"), at("b")).unwrap();
    assert_eq!(std::fs::read(at("b")).unwrap(), b"first");
    assert_eq!(std::fs::metadata(at("b")).unwrap().ino(), inode);
    std::fs::hard_link(at("b"), at("d/link")).unwrap();
    assert_eq!(std::fs::metadata(at("d/link")).unwrap().nlink(), 2);
    symlink("d/link", at("s")).unwrap();
    assert_eq!(std::fs::read(at("s")).unwrap(), b"first");
    assert_eq!(std::fs::remove_dir(at("d")).unwrap_err().raw_os_error(), Some(39));
    let file = std::fs::OpenOptions::new().read(true).write(true).open(at("b")).unwrap();
    std::fs::remove_file(at("b")).unwrap();
    std::fs::remove_file(at("d/link")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all_at(b"still here", 0).unwrap();
    let mut text = [0; 10];
    file.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"still here");
    drop(file);
    std::fs::set_permissions(at("d"), PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::remove_dir(at("d/e")).unwrap();
    std::fs::remove_dir(at("d")).unwrap();
    assert_eq!(std::fs::read_dir(&place.directory).unwrap().count(), 2, "lost+found and a link");
    mounted.unmount();
    e2fsck_clean(&place.image);
}

/// Data that a program had written before the file became immutable is kept, as on the kernel's
/// ext4, and later opens for writing are refused. Later writes through an open descriptor are not
/// tried: they succeed, unlike on Linux (docs/mount.md).
#[test]
fn bytes_written_before_a_file_became_immutable_are_kept() {
    if !can_mount() {
        return;
    }
    let place = place(&["-t", "ext4"], "64M");
    let mounted = Mounted::new(&place.image, &place.directory, "");
    let path = place.directory.join("file");
    let file = std::fs::File::create(&path).unwrap();
    file.write_all_at(b"written before", 0).unwrap();
    rustix::fs::ioctl_setflags(&file, rustix::fs::IFlags::IMMUTABLE).unwrap();
    file.sync_all().unwrap();
    rustix::fs::syncfs(&file).unwrap();
    let refused = std::fs::OpenOptions::new().write(true).open(&path).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(1));
    drop(file);
    mounted.unmount();
    let mounted = Mounted::new(&place.image, &place.directory, "");
    assert_eq!(std::fs::read(&path).unwrap(), b"written before");
    let file = std::fs::File::open(&path).unwrap();
    rustix::fs::ioctl_setflags(&file, rustix::fs::IFlags::empty()).unwrap();
    drop(file);
    mounted.unmount();
    e2fsck_clean(&place.image);
}

/// Many threads call fsync together. The commits are fewer than a quarter of the calls.
#[test]
fn threads_that_fsync_together_share_commits() {
    const THREADS: usize = 64;
    const ROUNDS: u64 = 4;
    if !can_mount() {
        return;
    }
    let place = place(&["-t", "ext4"], "128M");
    let mounted = Mounted::new(&place.image, &place.directory, "");
    let commits = || {
        let fs = mounted.handle.server().file_system();
        fs.with_engine(|engine, _| Ok(engine.commits())).unwrap()
    };
    let files: Vec<_> = (0..THREADS)
        .map(|thread| std::fs::File::create(place.directory.join(format!("f{thread}"))).unwrap())
        .collect();
    let before = commits();
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    file.write_all_at(&[7; 4096], round * 4096).unwrap();
                    file.sync_all().unwrap();
                }
            });
        }
    });
    let taken = commits() - before;
    let asked = u64::try_from(THREADS).unwrap() * ROUNDS;
    assert!(taken * 4 < asked, "{taken} commits for {asked} fsyncs");
    drop(files);
    mounted.unmount();
    e2fsck_clean(&place.image);
}

/// Our mount and the kernel's take turns. Each finds the files that all earlier mounts made, and
/// the superblock counts every mount.
#[test]
fn the_kernel_and_we_mount_in_turns() {
    if !can_mount() {
        return;
    }
    let place = place(&["-t", "ext4"], "64M");
    let turns = if blockyard_testkit::full_matrix() { 100 } else { 6 };
    for turn in 0..turns {
        let change = |root: &Path| {
            for earlier in 0..turn {
                let found = std::fs::read(root.join(format!("d{earlier}/file"))).unwrap();
                assert_eq!(found, fill::pattern(earlier, 20_000), "turn {turn}");
            }
            let folder = root.join(format!("d{turn}"));
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("file"), fill::pattern(turn, 20_000)).unwrap();
            std::fs::write(root.join("same"), fill::pattern(turn, 100_000)).unwrap();
        };
        if turn % 2 == 0 {
            let mounted = Mounted::new(&place.image, &place.directory, "");
            change(&place.directory);
            mounted.unmount();
        } else {
            change(LoopMount::new(&place.image, "").unwrap().path());
        }
    }
    e2fsck_clean(&place.image);
    let header = blockyard_testkit::run("dumpe2fs", &["-h", place.image.to_str().unwrap()]);
    let header = String::from_utf8_lossy(&header.stdout).into_owned();
    let line = header.lines().find(|line| line.starts_with("Mount count:")).unwrap();
    assert!(line.ends_with(&format!(" {turns}")), "{line}");
}

/// A program that finds no space gets an error, at the latest from fsync. After the file was
/// removed, its space can be used again.
#[test]
fn a_full_image_says_so_and_goes_on() {
    if !can_mount() {
        return;
    }
    let place = place(&["-t", "ext4"], "16M");
    let mounted = Mounted::new(&place.image, &place.directory, "");
    let fill_it = || -> std::io::Result<()> {
        let file = std::fs::File::create(place.directory.join("large"))?;
        for piece in 0..40 {
            file.write_all_at(&[1; 1 << 20], piece << 20)?;
        }
        file.sync_all()
    };
    assert_eq!(fill_it().unwrap_err().raw_os_error(), Some(28));
    std::fs::remove_file(place.directory.join("large")).unwrap();
    let file = std::fs::File::create(place.directory.join("small")).unwrap();
    file.write_all_at(&[2; 1 << 20], 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    mounted.unmount();
    e2fsck_clean(&place.image);
}

/// A program that only writes, and never syncs, gets an error. In an earlier version, `dd` went on
/// for ever.
#[test]
fn a_write_to_a_full_image_fails_before_long() {
    if !can_mount() {
        return;
    }
    let place = place(&["-t", "ext4"], "16M");
    let mounted = Mounted::new(&place.image, &place.directory, "");
    let mut file = std::fs::File::create(place.directory.join("large")).unwrap();
    let piece = vec![1; 1 << 20];
    let failed = (0..20_000).find_map(|_| std::io::Write::write_all(&mut file, &piece).err());
    assert_eq!(failed.expect("20 GB found room in 16 MB").raw_os_error(), Some(28));
    assert!(place.directory.join("large").metadata().is_ok(), "who only looks gets no error");
    drop(file);
    std::fs::remove_file(place.directory.join("large")).unwrap();
    std::fs::write(place.directory.join("small"), [2; 100_000]).unwrap();
    mounted.unmount();
    e2fsck_clean(&place.image);
}

/// Space runs out during direct writes. The program must get ENOSPC. If the server answered with a
/// short count, the kernel would turn it into EIO.
#[test]
fn a_direct_write_to_a_full_image_finds_no_space() {
    if !can_mount() {
        return;
    }
    let place = place(&["-t", "ext4", "-b", "4096"], "24M");
    let mounted = Mounted::new(&place.image, &place.directory, "");
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed());
    let file = options.open(place.directory.join("large")).unwrap();
    // Direct writes need an aligned buffer.
    let bytes = vec![7; (1 << 20) + 4096];
    let start = bytes.as_ptr().align_offset(4096);
    let piece = &bytes[start..start + (1 << 20)];
    let failed = (0..24).find_map(|number| file.write_all_at(piece, number << 20).err());
    assert_eq!(failed.expect("24 MB found room").raw_os_error(), Some(28));
    drop(file);
    mounted.unmount();
    e2fsck_clean(&place.image);
}

/// When the mount finds damage, it becomes read-only or stays writable, as the superblock says. The
/// option `errors=` overrides the superblock.
#[test]
fn damage_is_met_as_asked() {
    if !can_mount() || !require(&["debugfs", "dumpe2fs"]) {
        return;
    }
    for (of_image, option, turns_read_only) in
        [("continue", "", false), ("remount-ro", "", true), ("continue", "errors=remount-ro", true)]
    {
        let place = place(&["-t", "ext4", "-e", of_image], "32M");
        let mounted = Mounted::new(&place.image, &place.directory, "");
        std::fs::write(place.directory.join("file"), [1; 10_000]).unwrap();
        mounted.unmount();
        let image = place.image.to_str().unwrap();
        let done = blockyard_testkit::run("debugfs", &["-w", "-R", "sif /file block[0] 0", image]);
        assert!(done.status.success());
        let mounted = Mounted::new(&place.image, &place.directory, option);
        let failed = std::fs::read(place.directory.join("file")).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(117), "{option}: {failed}");
        let written = std::fs::write(place.directory.join("other"), "x");
        assert_eq!(written.is_err(), turns_read_only, "{of_image} {option}: {written:?}");
        assert_eq!(mounted.handle.has_failed(), turns_read_only);
        if turns_read_only {
            rustix::mount::mount_remount(&place.directory, MountFlags::NOSUID, c"").unwrap();
            mounted.handle.show_read_only().unwrap();
            let shown = blockyard_fuse::options_in_force(mounted.handle.directory()).unwrap();
            assert!(shown.starts_with("ro,nosuid,"), "{shown}");
        }
        let handle = mounted.handle.clone();
        handle.unmount().unwrap();
        let mut mounted = mounted;
        // A failed file system cannot be closed clean, so `wait` returns an error.
        assert_eq!(mounted.serving.take().unwrap().wait().is_err(), turns_read_only);
        let header = blockyard_testkit::run("dumpe2fs", &["-h", image]);
        let header = String::from_utf8_lossy(&header.stdout).into_owned();
        let state = header.lines().find(|line| line.starts_with("Filesystem state:")).unwrap();
        assert!(state.ends_with("with errors"), "{of_image} {option}: {state}");
    }
}

/// A name whose inode is not in use is damage. The other names of the directory are listed, and
/// their files can be read.
#[test]
fn a_damaged_inode_hides_no_other_name() {
    if !can_mount() || !require(&["debugfs"]) {
        return;
    }
    let place = place(&["-t", "ext4"], "32M");
    let mounted = Mounted::new(&place.image, &place.directory, "");
    for name in ["before", "cleared", "kept"] {
        std::fs::write(place.directory.join(name), name).unwrap();
    }
    mounted.unmount();
    let image = place.image.to_str().unwrap();
    assert!(blockyard_testkit::run("debugfs", &["-w", "-R", "clri /cleared", image]).status.success());
    let mounted = Mounted::new(&place.image, &place.directory, "errors=continue");
    let listed = std::fs::read_dir(&place.directory).unwrap().map(|entry| entry.unwrap().file_name());
    let listed: Vec<_> = listed.collect();
    for name in ["before", "cleared", "kept"] {
        assert!(listed.iter().any(|one| one == name), "{name}: {listed:?}");
    }
    for name in ["before", "kept"] {
        assert_eq!(std::fs::read(place.directory.join(name)).unwrap(), name.as_bytes());
    }
    let failed = std::fs::read(place.directory.join("cleared")).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(117), "{failed}");
    drop(mounted);
}

/// The name of a damaged inode is listed too, and `ls -l`, `cp -a` and `tar` fail. In an earlier
/// version, these programs left the name out and returned exit status 0. A listing makes the kernel
/// forget the number of the damaged inode. Files that are made between listings can be read all
/// the same.
#[test]
fn a_damaged_inode_hides_not_even_its_own_name() {
    if !can_mount() || !require(&["debugfs"]) {
        return;
    }
    let place = place(&["-t", "ext4"], "32M");
    let mounted = Mounted::new(&place.image, &place.directory, "");
    let folder = place.directory.join("d");
    std::fs::create_dir(&folder).unwrap();
    for number in 0..10 {
        std::fs::write(folder.join(format!("f{number}")), "text").unwrap();
    }
    mounted.unmount();
    let image = place.image.to_str().unwrap();
    assert!(blockyard_testkit::run("debugfs", &["-w", "-R", "clri /d/f5", image]).status.success());
    let mounted = Mounted::new(&place.image, &place.directory, "errors=continue");
    for _ in 0..3 {
        let listed = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap());
        let states: Vec<_> = listed.map(|entry| (entry.file_name(), entry.metadata().is_ok())).collect();
        assert_eq!(states.len(), 10, "{states:?}");
        let is_told = |(name, is_sound): &(std::ffi::OsString, bool)| *is_sound == (*name != "f5");
        assert!(states.iter().all(is_told), "{states:?}");
    }
    for (program, arguments) in [("ls", "-l"), ("cp", "-a"), ("tar", "-cf")] {
        let mut command = std::process::Command::new(program);
        command.arg(arguments);
        match program {
            "ls" => command.arg(&folder),
            "cp" => command.arg(&folder).arg(place.image.with_extension("copy")),
            _ => command.arg(place.image.with_extension("tar")).arg(&folder),
        };
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stdout));
    }
    for number in 0..20 {
        let file = folder.join(format!("new{number}"));
        std::fs::write(&file, "new").unwrap();
        std::fs::read_dir(&folder).unwrap().for_each(|entry| assert!(entry.is_ok()));
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
    }
    drop(mounted);
}

/// A listing shows the names in the intact blocks of a directory, and returns one error for the
/// damaged block. In an earlier version, the damaged block hid all names.
#[test]
fn a_damaged_block_of_a_directory_hides_only_its_own_names() {
    if !can_mount() || !require(&["debugfs"]) {
        return;
    }
    for features in ["dir_index", "^dir_index"] {
        let place = place(&["-t", "ext4", "-b", "1024", "-O", features], "32M");
        let mounted = Mounted::new(&place.image, &place.directory, "");
        let folder = place.directory.join("d");
        std::fs::create_dir(&folder).unwrap();
        for number in 0..1000 {
            std::fs::write(folder.join(format!("a-name-that-is-longer-{number}")), "").unwrap();
        }
        mounted.unmount();
        damage_block(&place.image, "/d", 5);
        let mounted = Mounted::new(&place.image, &place.directory, "errors=continue");
        for _ in 0..2 {
            let (mut names, mut errors) = (0, Vec::new());
            for entry in std::fs::read_dir(&folder).unwrap() {
                match entry {
                    Ok(entry) => {
                        names += 1;
                        assert!(entry.metadata().is_ok(), "{features}: {:?}", entry.file_name());
                    }
                    Err(error) => errors.push(error.raw_os_error()),
                }
            }
            assert!((900..1000).contains(&names), "{features}: {names} names");
            assert_eq!(errors, [Some(117)], "{features}");
        }
        let listed = std::process::Command::new("ls").arg(&folder).output().unwrap();
        assert!(!listed.status.success());
        drop(mounted);
    }
}

/// Makes a block of a directory unreadable: the length of its first entry becomes impossible.
fn damage_block(image: &Path, directory: &str, logical: u64) {
    let request = format!("bmap {directory} {logical}");
    let output = blockyard_testkit::run("debugfs", &["-R", &request, image.to_str().unwrap()]);
    let block: u64 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(image).unwrap();
    file.write_all_at(&[3, 0], block * 1024 + 4).unwrap();
}
