//! Names on images that mke2fs made: large directories, links, renames. After each scenario e2fsck
//! finds nothing, and the kernel lists what the engine lists.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

#[path = "support/image.rs"]
mod support;

use blockyard_device::MemoryDevice;
use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;
use blockyard_engine::{Error, FileSystem, RenameMode};
use blockyard_testkit::{LoopMount, e2fsck_clean, require, seed};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use support::{ROOT, context, directory, file, make, new, open};

fn names(fs: &FileSystem, dir: InodeNr) -> BTreeMap<Vec<u8>, InodeNr> {
    let mut names = BTreeMap::new();
    fs.read_dir(dir, 0, |entry| {
        assert!(names.insert(entry.name, entry.inode).is_none(), "a name twice");
        true
    })
    .unwrap();
    names
}

/// The properties of an inode that are compared with the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    inode: u32,
    links: u64,
    kind: char,
    target: Option<Vec<u8>>,
}

fn walk_ours(fs: &FileSystem) -> BTreeMap<Vec<u8>, Seen> {
    let mut all = BTreeMap::new();
    let mut stack = vec![(Vec::new(), ROOT)];
    while let Some((path, dir)) = stack.pop() {
        for (name, inode) in names(fs, dir) {
            if name == b"." || name == b".." {
                continue;
            }
            let path = [&path[..], b"/", &name].concat();
            let attributes = fs.attributes(inode).unwrap();
            let (kind, target) = match attributes.kind {
                FileType::Directory => {
                    stack.push((path.clone(), inode));
                    ('d', None)
                }
                FileType::Symlink => ('l', Some(fs.read_link(inode).unwrap())),
                FileType::Regular => ('f', None),
                _ => ('s', None),
            };
            all.insert(path, Seen { inode: inode.raw(), links: u64::from(attributes.links), kind, target });
        }
    }
    all
}

fn walk_kernel(root: &Path) -> BTreeMap<Vec<u8>, Seen> {
    let mut all = BTreeMap::new();
    let mut stack = vec![root.to_path_buf()];
    while let Some(dir) = stack.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            let (kind, target) = if metadata.is_dir() {
                stack.push(path.clone());
                ('d', None)
            } else if metadata.is_symlink() {
                ('l', Some(std::fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec()))
            } else if metadata.is_file() {
                ('f', None)
            } else {
                ('s', None)
            };
            let below = path.as_os_str().as_bytes()[root.as_os_str().len()..].to_vec();
            let inode = u32::try_from(metadata.ino()).unwrap();
            all.insert(below, Seen { inode, links: metadata.nlink(), kind, target });
        }
    }
    all
}

/// Closes the image. e2fsck must find nothing, and the kernel must list what we list.
fn judge(device: &MemoryDevice, fs: FileSystem, image: &Path, what: &str) {
    let ours = walk_ours(&fs);
    fs.close(&context()).unwrap();
    device.save(image).unwrap();
    e2fsck_clean(image);
    let mount = LoopMount::new(image, "ro").unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(walk_kernel(mount.path()), ours, "{what}");
}

const MATRIX: &[&[&str]] = &[
    &[],
    &["-b", "1024"],
    &["-O", "^dir_index"],
    &["-O", "^metadata_csum", "-b", "1024"],
    &["-t", "ext3"],
    &["-t", "ext2"],
    &["-O", "bigalloc", "-C", "16384"],
    &["-O", "inline_data"],
    &["-I", "128"],
    &["-O", "large_dir", "-b", "1024"],
];

#[test]
fn directories_grow_an_index_and_shrink_again() {
    if !require(&["root", "mke2fs", "e2fsck"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    for options in MATRIX {
        let image = scratch.path().join("image");
        make(options, "64M", &image);
        let (device, fs) = open(&image);
        let dir = directory(&fs, ROOT, b"many");
        let count = if options.contains(&"^dir_index") { 300 } else { 2500 };
        let name = |number: usize| format!("name-{number:0>width$}", width = 5 + number % 60).into_bytes();
        for number in 0..count {
            let kind = if number % 7 == 0 { FileType::Directory } else { FileType::Fifo };
            fs.create(&context(), dir, &name(number), &new(kind)).unwrap();
        }
        assert!(matches!(fs.create(&context(), dir, &name(17), &new(FileType::Regular)), Err(Error::Exists)));
        for number in (0..count).step_by(3) {
            let remove = if number % 7 == 0 { FileSystem::rmdir } else { FileSystem::unlink };
            remove(&fs, &context(), dir, &name(number)).unwrap();
            assert!(matches!(fs.lookup(dir, &name(number)), Err(Error::NotFound)));
        }
        for number in (0..count).step_by(9) {
            file(&fs, dir, name(number));
        }
        assert!(matches!(fs.rmdir(&context(), ROOT, b"many"), Err(Error::NotEmpty)));
        assert_eq!(fs.lookup(dir, b"..").unwrap(), ROOT);
        judge(&device, fs, &image, &format!("{options:?}"));
    }
}

#[test]
fn links_and_symbolic_links() {
    if !require(&["root", "mke2fs", "e2fsck"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    for options in [&[][..], &["-b", "1024"], &["-t", "ext3"], &["-O", "bigalloc", "-C", "65536"]] {
        let image = scratch.path().join("image");
        make(options, "64M", &image);
        let (device, fs) = open(&image);
        let ctx = context();
        let dir = directory(&fs, ROOT, b"dir");
        let target = file(&fs, dir, b"target");
        for number in 0..50 {
            fs.link(&ctx, target, ROOT, format!("link-{number}").as_bytes()).unwrap();
        }
        assert!(matches!(fs.link(&ctx, dir, ROOT, b"no"), Err(Error::NotPermitted)));
        assert!(matches!(fs.link(&ctx, target, ROOT, b"link-3"), Err(Error::Exists)));
        for number in 0..25 {
            fs.unlink(&ctx, ROOT, format!("link-{number}").as_bytes()).unwrap();
        }
        assert_eq!(fs.attributes(target).unwrap().links, 26);
        let longest = (fs.geometry().block_size() - 1).min(4095);
        for length in [1, 2, 58, 59, 60, 61, 100, 1000.min(longest), longest] {
            let text = vec![b'a' + (length % 26) as u8; length];
            let link = fs.symlink(&ctx, dir, format!("symlink-{length}").as_bytes(), &text).unwrap();
            assert_eq!(fs.read_link(link).unwrap(), text);
        }
        assert!(matches!(fs.symlink(&ctx, dir, b"x", &vec![b'a'; 5000]), Err(Error::NameTooLong)));
        assert!(matches!(fs.symlink(&ctx, dir, b"x", b""), Err(Error::NotFound)));
        fs.unlink(&ctx, dir, b"symlink-100").unwrap();
        judge(&device, fs, &image, &format!("{options:?}"));
    }
}

#[test]
fn rename_in_every_case() {
    if !require(&["root", "mke2fs", "e2fsck"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("image");
    make(&[], "32M", &image);
    let (device, fs) = open(&image);
    let ctx = context();
    let rename = |from: (InodeNr, &[u8]), to: (InodeNr, &[u8]), mode| fs.rename(&ctx, from, to, mode);
    let (a, b) = (directory(&fs, ROOT, b"a"), directory(&fs, ROOT, b"b"));
    let one = file(&fs, a, b"one");
    rename((a, b"one"), (a, b"uno"), RenameMode::Replace).unwrap();
    assert!(matches!(fs.lookup(a, b"one"), Err(Error::NotFound)));
    rename((a, b"uno"), (b, b"eins"), RenameMode::NoReplace).unwrap();
    assert_eq!(fs.lookup(b, b"eins").unwrap(), one);

    let two = file(&fs, b, b"two");
    assert!(matches!(rename((b, b"two"), (b, b"eins"), RenameMode::NoReplace), Err(Error::Exists)));
    rename((b, b"two"), (b, b"eins"), RenameMode::Replace).unwrap();
    assert_eq!(fs.lookup(b, b"eins").unwrap(), two);
    assert!(matches!(fs.attributes(one), Err(Error::StaleInode(_))), "the replaced file is gone");

    // Renaming one name of an inode over another name of it changes nothing.
    fs.link(&ctx, two, a, b"same").unwrap();
    rename((a, b"same"), (b, b"eins"), RenameMode::Replace).unwrap();
    assert_eq!(fs.lookup(a, b"same").unwrap(), two);

    // A directory moves into another parent and over an empty directory, but not into itself or
    // over a directory that is not empty.
    let sub = directory(&fs, a, b"sub");
    let deep = directory(&fs, sub, b"deep");
    rename((a, b"sub"), (b, b"sub"), RenameMode::Replace).unwrap();
    assert_eq!(fs.lookup(sub, b"..").unwrap(), b);
    assert_eq!((fs.attributes(a).unwrap().links, fs.attributes(b).unwrap().links), (2, 3));
    assert!(matches!(rename((ROOT, b"b"), (deep, b"b"), RenameMode::Replace), Err(Error::Invalid(_))));
    assert!(matches!(rename((ROOT, b"a"), (b, b"sub"), RenameMode::Replace), Err(Error::NotEmpty)));
    directory(&fs, a, b"empty");
    rename((b, b"sub"), (a, b"empty"), RenameMode::Replace).unwrap();
    assert_eq!(fs.lookup(sub, b"..").unwrap(), a);
    assert!(matches!(rename((a, b"empty"), (a, b"same"), RenameMode::Replace), Err(Error::NotDirectory)));
    assert!(matches!(rename((a, b"same"), (a, b"empty"), RenameMode::Replace), Err(Error::IsDirectory)));
    assert!(matches!(rename((sub, b"deep"), (ROOT, b"a"), RenameMode::Replace), Err(Error::NotEmpty)));

    // Exchange a file and a directory across parents.
    rename((a, b"empty"), (b, b"eins"), RenameMode::Exchange).unwrap();
    assert_eq!((fs.lookup(b, b"eins").unwrap(), fs.lookup(a, b"empty").unwrap()), (sub, two));
    assert_eq!(fs.lookup(sub, b"..").unwrap(), b);
    assert!(matches!(rename((a, b"empty"), (b, b"nothing"), RenameMode::Exchange), Err(Error::NotFound)));
    judge(&device, fs, &image, "rename");
}

/// Random operations on names, on eight threads in parallel. Each thread has a directory of its
/// own, and all share another.
#[test]
fn random_runs_from_eight_threads() {
    if !require(&["root", "mke2fs", "e2fsck"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let seed = seed(11);
    let steps = if blockyard_testkit::full_matrix() { 2500 } else { 300 };
    let sets = if blockyard_testkit::full_matrix() { MATRIX } else { &MATRIX[..4] };
    for (set, options) in sets.iter().enumerate() {
        let image = scratch.path().join("image");
        make(options, "128M", &image);
        let (device, fs) = open(&image);
        let shared = directory(&fs, ROOT, b"shared");
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let fs = &fs;
                scope.spawn(move || {
                    let own = directory(fs, ROOT, format!("own-{thread}").as_bytes());
                    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ (thread << 8) ^ (set as u64) << 16);
                    for _ in 0..steps {
                        random_step(fs, &mut rng, &[own, shared]);
                    }
                });
            }
        });
        judge(&device, fs, &image, &format!("{options:?} seed {seed}"));
    }
}

fn random_step(fs: &FileSystem, rng: &mut ChaCha8Rng, dirs: &[InodeNr]) {
    let ctx = context();
    let mut place = || {
        let number = rng.random_range(0..120);
        (dirs[rng.random_range(0..dirs.len())], format!("entry-{number:0>width$}", width = 1 + number % 90))
    };
    let ((dir, name), (other_dir, other_name)) = (place(), place());
    let (name, other_name) = (name.as_bytes(), other_name.as_bytes());
    let result = match rng.random_range(0..12) {
        0..4 => fs.create(&ctx, dir, name, &new(FileType::Regular)).map(drop),
        4 => fs.create(&ctx, dir, name, &new(FileType::Directory)).map(drop),
        5 => fs.symlink(&ctx, dir, name, &vec![b't'; rng.random_range(1..200)]).map(drop),
        6 => fs.lookup(dir, name).and_then(|inode| fs.link(&ctx, inode, other_dir, other_name)),
        7 => fs.unlink(&ctx, dir, name),
        8 => fs.rmdir(&ctx, dir, name),
        9 => fs.rename(&ctx, (dir, name), (other_dir, other_name), RenameMode::Exchange),
        10 => fs.lookup(dir, name).and_then(|inode| fs.write(&ctx, inode, 0, b"content")),
        _ => fs.rename(&ctx, (dir, name), (other_dir, other_name), RenameMode::Replace),
    };
    match result {
        Ok(()) => {}
        Err(
            Error::NotFound
            | Error::Exists
            | Error::IsDirectory
            | Error::NotDirectory
            | Error::NotEmpty
            | Error::NotPermitted
            | Error::Invalid(_)
            | Error::StaleInode(_),
        ) => {}
        Err(error) => panic!("{error}"),
    }
}
