//! The library from end to end: files, paths and trees behave as on the host's file system, and
//! e2fsck finds the images sound.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use blockyard::{FileSystem, FileType, Flags, ImageOptions, OpenOptions, RenameMode};
use blockyard_testkit::{e2fsck_clean, require};

#[test]
fn four_threads_write_rename_list_and_reopen() {
    if !require(&["e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let fs = FileSystem::make_image(&image, 64 << 20).unwrap();
    fs.create_dir_all("data/parts").unwrap();
    std::thread::scope(|scope| {
        for number in 0..4u8 {
            let fs = &fs;
            scope.spawn(move || {
                let mut file = fs.create(format!("data/parts/new-{number}")).unwrap();
                file.write_all(&vec![number; 1 << 20]).unwrap();
                file.sync_all().unwrap();
                fs.rename(format!("data/parts/new-{number}"), format!("data/parts/{number}")).unwrap();
            });
        }
    });
    let names: Vec<_> = fs.read_dir("data/parts").unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 4);
    fs.close().unwrap();
    e2fsck_clean(&image);
    let fs = ImageOptions::new().read_only(true).open(&image).unwrap();
    for number in 0..4u8 {
        assert_eq!(fs.read(format!("data/parts/{number}")).unwrap(), vec![number; 1 << 20]);
    }
}

/// Positions, appends, truncation and holes behave as users of the standard library expect.
#[test]
fn a_file_reads_writes_and_seeks() {
    let fs = ImageOptions::new().make_in_memory(64 << 20).unwrap();
    let mut file = OpenOptions::new().read(true).write(true).create(true).open(&fs, "file").unwrap();
    file.write_all(b"hello, world").unwrap();
    assert_eq!(file.seek(SeekFrom::Current(-5)).unwrap(), 7);
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "world");
    assert_eq!(file.seek(SeekFrom::End(-1)).unwrap(), 11);
    assert_eq!(file.seek(SeekFrom::Current(-12)).unwrap_err().raw_os_error(), Some(22));
    let mut append = OpenOptions::new().append(true).open(&fs, "file").unwrap();
    append.write_all(b"!").unwrap();
    assert_eq!(append.stream_position().unwrap(), 13);
    append.seek(SeekFrom::Start(2)).unwrap();
    assert_eq!(append.write(&[]).unwrap(), 0);
    assert_eq!(append.stream_position().unwrap(), 2, "a write of nothing moves nothing");
    assert_eq!(append.read(&mut [0]).unwrap_err().raw_os_error(), Some(9));
    let error = std::io::Error::from(append.write_direct_at(&[1; 4096], 0).unwrap_err());
    assert_eq!(error.raw_os_error(), Some(22));
    assert_eq!(fs.read("file").unwrap(), b"hello, world!");
    let clone = file.try_clone().unwrap();
    file.seek(SeekFrom::Start(2)).unwrap();
    assert_eq!((&clone).stream_position().unwrap(), 2);
    file.set_len(5).unwrap();
    assert_eq!(fs.read("file").unwrap(), b"hello");
    assert_eq!(fs.open("file").unwrap().set_len(1).unwrap_err().errno(), 22);
    file.set_len(1 << 20).unwrap();
    file.write_at(&[1; 4096], 1 << 19).unwrap();
    assert_eq!(
        (file.seek_data(4096).unwrap(), file.seek_hole(1 << 19).unwrap()),
        (Some(1 << 19), Some((1 << 19) + 4096))
    );
    file.allocate(2 << 20, 65536).unwrap();
    assert_eq!(file.seek_data((1 << 19) + 4096).unwrap(), None, "what is allocated ahead is a hole");
    file.sync_all().unwrap();
    let extents = file.extents().unwrap();
    assert!(extents.iter().any(|extent| extent.is_ahead()), "{extents:?}");
    assert_eq!(fs.open("file").unwrap().write_at(b"x", 0).unwrap_err().errno(), 9);
}

trait Ahead {
    fn is_ahead(&self) -> bool;
}

impl Ahead for blockyard::FileExtent {
    fn is_ahead(&self) -> bool {
        self.unwritten && self.offset == 2 << 20 && self.len == 65536
    }
}

/// Opening with every combination of options fails with the same kind of error as in the standard
/// library, or succeeds and leaves the same content.
#[test]
fn options_of_opening_mean_what_they_mean_in_std() {
    let fs = ImageOptions::new().make_in_memory(64 << 20).unwrap();
    let host = tempfile::tempdir().unwrap();
    for bits in 0..64u32 {
        let bit = |number: u32| bits & (1 << number) != 0;
        for exists in [false, true] {
            let path = host.path().join("file");
            let _ = std::fs::remove_file(&path);
            let _ = fs.remove_file("file");
            if exists {
                std::fs::write(&path, "text").unwrap();
                fs.write("file", "text").unwrap();
            }
            let theirs = std::fs::OpenOptions::new()
                .read(bit(0))
                .write(bit(1))
                .append(bit(2))
                .truncate(bit(3))
                .create(bit(4))
                .create_new(bit(5))
                .open(&path);
            let ours = OpenOptions::new()
                .read(bit(0))
                .write(bit(1))
                .append(bit(2))
                .truncate(bit(3))
                .create(bit(4))
                .create_new(bit(5))
                .open(&fs, "file");
            let theirs = theirs.map(drop).map_err(|error| error.kind());
            assert_eq!(ours.map(drop).map_err(|error| error.kind()), theirs, "{bits:#b} {exists}");
            assert_eq!(fs.read("file").ok(), std::fs::read(&path).ok(), "{bits:#b} {exists}");
        }
    }
}

/// Operations by path return the same errors as the standard library's calls on a kernel file
/// system.
#[test]
fn errors_of_paths_are_those_of_the_kernel() {
    let fs = ImageOptions::new().make_in_memory(64 << 20).unwrap();
    let host = tempfile::tempdir().unwrap();
    let at = |path: &str| host.path().join(path);
    for path in ["dir/full", "dir/empty"] {
        fs.create_dir_all(path).unwrap();
        std::fs::create_dir_all(at(path)).unwrap();
    }
    for path in ["file", "dir/full/x"] {
        fs.write(path, "text").unwrap();
        std::fs::write(at(path), "text").unwrap();
    }
    for (target, link) in [("file", "link"), ("nowhere", "lost"), ("loop", "loop"), ("dir", "to-dir")] {
        fs.symlink(target, link).unwrap();
        std::os::unix::fs::symlink(target, at(link)).unwrap();
    }
    let long = "x".repeat(256);
    let paths = [
        "file",
        "file/",
        "file/x",
        "dir",
        "dir/",
        "dir/full",
        "dir/empty",
        "none",
        "none/x",
        "link",
        "link/",
        "lost",
        "lost/",
        "lost/x",
        "loop",
        "loop/x",
        "to-dir/full",
        "to-dir",
        &long,
        "dir/..",
        "dir/.",
        "dir/full/..",
    ];
    type Call = (&'static str, fn(&FileSystem, &str) -> i32, fn(&std::path::Path) -> i32);
    fn ours<T>(result: blockyard::Result<T>) -> i32 {
        result.map_or_else(|error| error.errno(), |_| 0)
    }
    fn theirs<T>(result: std::io::Result<T>) -> i32 {
        result.map_or_else(|error| error.raw_os_error().unwrap_or(-1), |_| 0)
    }
    // On these paths every call undoes what it creates, so the calls do not affect each other.
    let calls: [Call; 9] = [
        ("open", |fs, path| ours(fs.open(path)), |path| theirs(std::fs::File::open(path))),
        ("metadata", |fs, path| ours(fs.metadata(path)), |path| theirs(std::fs::metadata(path))),
        (
            "symlink_metadata",
            |fs, path| ours(fs.symlink_metadata(path)),
            |path| theirs(std::fs::symlink_metadata(path)),
        ),
        ("read_link", |fs, path| ours(fs.read_link(path)), |path| theirs(std::fs::read_link(path))),
        ("read_dir", |fs, path| ours(fs.read_dir(path)), |path| theirs(std::fs::read_dir(path))),
        (
            "create_new",
            |fs, path| {
                let made = fs.create_new(path);
                if made.is_ok() {
                    fs.remove_file(path).unwrap();
                }
                ours(made)
            },
            |path| {
                let made = std::fs::File::create_new(path);
                if made.is_ok() {
                    std::fs::remove_file(path).unwrap();
                }
                theirs(made)
            },
        ),
        (
            "append",
            |fs, path| ours(OpenOptions::new().append(true).open(fs, path)),
            |path| theirs(std::fs::OpenOptions::new().append(true).open(path)),
        ),
        (
            "symlink",
            |fs, path| {
                let made = fs.symlink("target", path);
                if made.is_ok() {
                    fs.remove_file(path).unwrap();
                }
                ours(made)
            },
            |path| {
                let made = std::os::unix::fs::symlink("target", path);
                if made.is_ok() {
                    std::fs::remove_file(path).unwrap();
                }
                theirs(made)
            },
        ),
        (
            "create_dir",
            |fs, path| {
                let made = fs.create_dir(path);
                if made.is_ok() {
                    fs.remove_dir(path).unwrap();
                }
                ours(made)
            },
            |path| {
                let made = std::fs::create_dir(path);
                if made.is_ok() {
                    std::fs::remove_dir(path).unwrap();
                }
                theirs(made)
            },
        ),
    ];
    let mut differences = Vec::new();
    for (name, call, model) in calls {
        for path in paths {
            let (ours, theirs) = (call(&fs, path), model(&at(path)));
            if ours != theirs {
                differences.push(format!("{name} {path}: {ours} here, {theirs} there"));
            }
        }
    }
    assert!(differences.is_empty(), "{differences:#?}");
}

#[test]
fn links_exchange_walk_and_removal_of_trees() {
    let fs = ImageOptions::new().make_in_memory(64 << 20).unwrap();
    fs.create_dir_all("a/b/c").unwrap();
    fs.write("a/b/c/deep", "1").unwrap();
    fs.write("other", "2").unwrap();
    fs.symlink("/a/b", "a/link").unwrap();
    fs.write("a/link/c/through", "3").unwrap();
    assert_eq!(fs.read("a/b/c/through").unwrap(), b"3");
    fs.symlink("b/c/made", "a/dangling").unwrap();
    fs.write("a/dangling", "4").unwrap();
    assert_eq!(fs.read("a/b/c/made").unwrap(), b"4");
    fs.rename_with("a/b/c/deep", "other", RenameMode::Exchange).unwrap();
    assert_eq!(fs.read("other").unwrap(), b"1");
    for number in 0..2000 {
        fs.write(format!("a/b/file-{number}"), "x").unwrap();
    }
    let found: Vec<_> = fs.walk("a").unwrap().map(|entry| entry.unwrap().path().to_owned()).collect();
    assert_eq!(found.len(), 2007, "b, c, deep, through, made, link, dangling");
    let mut sorted = found.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!(sorted.len(), found.len());
    assert!(
        found.iter().position(|path| path.ends_with("a/b"))
            < found.iter().position(|path| path.ends_with("c"))
    );
    assert!(fs.remove_dir_all("a/.").is_err());
    fs.remove_dir_all("a").unwrap();
    assert!(!fs.exists("a").unwrap() && fs.exists("other").unwrap());
    assert_eq!(fs.remove_dir_all("other").unwrap_err().errno(), 20);
}

#[test]
fn trees_come_in_and_go_out_with_everything() {
    if !require(&["e2fsck", "root"]) {
        return;
    }
    let host = tempfile::tempdir().unwrap();
    let source = host.path().join("source");
    std::fs::create_dir_all(source.join("dir/below")).unwrap();
    std::fs::write(source.join("dir/file"), "content").unwrap();
    std::fs::hard_link(source.join("dir/file"), source.join("other")).unwrap();
    std::os::unix::fs::symlink("dir/file", source.join("link")).unwrap();
    let sparse = std::fs::File::create(source.join("sparse")).unwrap();
    sparse.set_len(32 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"middle", 16 << 20).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        source.join("null"),
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::RUSR,
        rustix::fs::makedev(1, 3),
    )
    .unwrap();
    std::os::unix::fs::lchown(source.join("link"), Some(7), Some(8)).unwrap();
    rustix::fs::lsetxattr(source.join("dir/file"), "trusted.note", b"mine", rustix::fs::XattrFlags::empty())
        .unwrap();
    let image = host.path().join("image");
    let fs = FileSystem::make_image(&image, 64 << 20).unwrap();
    let copied = fs.copy_in(&source, "tree").unwrap();
    assert_eq!(copied, 8);
    assert_eq!(fs.metadata("tree/dir/file").unwrap().nlink(), 2);
    assert_eq!(fs.xattr("tree/other", "trusted.note").unwrap().as_deref(), Some(&b"mine"[..]));
    assert!(fs.metadata("tree/sparse").unwrap().blocks() < 100);
    assert_eq!(fs.metadata("tree/null").unwrap().file_type(), FileType::CharDevice);
    assert_eq!(fs.symlink_metadata("tree/link").unwrap().uid(), 7);
    fs.sync().unwrap();
    let back = host.path().join("back");
    assert_eq!(fs.copy_out("tree", &back).unwrap(), copied);
    for name in ["", "dir", "dir/below", "dir/file", "other", "link", "sparse", "null"] {
        let (a, b) =
            (source.join(name).symlink_metadata().unwrap(), back.join(name).symlink_metadata().unwrap());
        let facts = |data: &std::fs::Metadata| {
            let size = if data.is_dir() { 0 } else { data.size() };
            (
                data.mode(),
                data.uid(),
                data.gid(),
                data.nlink(),
                size,
                data.mtime(),
                data.mtime_nsec(),
                data.rdev(),
            )
        };
        assert_eq!(facts(&a), facts(&b), "{name}");
        assert_eq!(a.file_type().is_char_device(), b.file_type().is_char_device());
    }
    assert_eq!(std::fs::read(back.join("sparse")).unwrap(), std::fs::read(source.join("sparse")).unwrap());
    assert!(back.join("sparse").metadata().unwrap().blocks() < 100);
    let mut value = [0; 16];
    let length = rustix::fs::lgetxattr(back.join("other"), "trusted.note", &mut value[..]).unwrap();
    assert_eq!(&value[..length], b"mine");
    fs.set_flags("tree/other", fs.flags("tree/other").unwrap() | Flags::APPEND).unwrap();
    assert_eq!(fs.write("tree/other", "x").unwrap_err().errno(), 1);
    fs.close().unwrap();
    e2fsck_clean(&image);
}

/// If the owner of a file cannot be set, the copy loses its set-id bits. With these bits, it would
/// run as the user who copied it. A directory keeps the bits. The test starts itself again without
/// the right to change owners (`CAP_CHOWN`).
#[test]
fn a_copy_that_does_not_get_its_owner_loses_its_set_id_bits() {
    const NAME: &str = "a_copy_that_does_not_get_its_owner_loses_its_set_id_bits";
    const MARK: &str = "BLOCKYARD_TEST_WITHOUT_CHOWN";
    if !require(&["root", "setpriv"]) {
        return;
    }
    if std::env::var_os(MARK).is_none() {
        let mut command = std::process::Command::new("setpriv");
        command.arg("--bounding-set=-chown").arg(std::env::current_exe().unwrap());
        let output = command.args(["--exact", NAME]).env(MARK, "1").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let fs = ImageOptions::new().make_in_memory(16 << 20).unwrap();
    fs.create_dir("tree").unwrap();
    fs.create_dir("tree/directory").unwrap();
    for name in ["tree/theirs", "tree/ours"] {
        fs.write(name, "program").unwrap();
    }
    for (name, owner) in [("tree/theirs", 7), ("tree/directory", 7), ("tree/ours", 0)] {
        fs.set_owner(name, Some(owner), Some(owner)).unwrap();
        fs.set_permissions(name, 0o6755).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy");
    fs.copy_out("tree", &copy).unwrap();
    for (name, mode) in [("theirs", 0o755), ("directory", 0o6755), ("ours", 0o6755)] {
        let found = copy.join(name).metadata().unwrap();
        assert_eq!((found.uid(), found.mode() & 0o7777), (0, mode), "{name}");
    }
}

/// utimensat takes the two largest nanosecond values that fit into an inode as commands:
/// `UTIME_NOW` (set the current time) and `UTIME_OMIT` (leave the time unchanged). A copy out of
/// the image sets 999,999,999 nanoseconds instead.
#[test]
fn too_many_nanoseconds_are_copied_as_the_most_that_there_are() {
    if !require(&["debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (image, copy) = (folder.path().join("image"), folder.path().join("copy"));
    let fs = FileSystem::make_image(&image, 64 << 20).unwrap();
    fs.write("file", "text").unwrap();
    fs.close().unwrap();
    for nanoseconds in [rustix::fs::UTIME_NOW, rustix::fs::UTIME_OMIT] {
        for request in ["mtime @1000".to_owned(), format!("mtime_extra {:#x}", nanoseconds << 2)] {
            let request = format!("sif /file {request}");
            let image = image.to_str().unwrap();
            assert!(blockyard_testkit::run("debugfs", &["-w", "-R", &request, image]).status.success());
        }
        let fs = ImageOptions::new().read_only(true).open(&image).unwrap();
        fs.copy_out("file", &copy).unwrap();
        let found = copy.metadata().unwrap();
        assert_eq!((found.mtime(), found.mtime_nsec()), (1000, 999_999_999), "{nanoseconds:#x}");
    }
}
