//! For a random tree, the image built from a directory equals those built from archives of it, byte
//! for byte, with one, two and eight threads. An image of the smallest size has little free space,
//! e2fsck finds it clean, and Linux shows the tree. Each test tries a few trees, or many with
//! `BLOCKYARD_FULL=1`. The environment variable `SEED` sets the first tree's seed.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Cursor, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use blockyard_build::{Builder, Difference, Tree};
use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_testkit::{LoopMount, e2fsck_clean, full_matrix, require, seed};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

const MIB: u64 = 1 << 20;

/// Fills a folder: nested directories, files of all sizes, holes, links, a FIFO, a device,
/// attributes, modes, owners.
fn grow(top: &Path, random: &mut ChaCha8Rng) {
    let mut folders = vec![top.to_owned()];
    for number in 0..random.random_range(0..40) {
        let name = "d".repeat(random.random_range(1..60));
        let folder = folders[random.random_range(0..folders.len())].join(format!("{name}{number}"));
        fs::create_dir(&folder).unwrap();
        folders.push(folder);
    }
    let most = [100, 5_000, 40_000, 400_000][random.random_range(0..4)];
    let mut files = Vec::new();
    for number in 0..random.random_range(0..500) {
        let folder = &folders[random.random_range(0..folders.len())];
        let path = folder.join(format!("{}{number}", "f".repeat(random.random_range(1..150))));
        match random.random_range(0..20) {
            0 => std::os::unix::fs::symlink("t".repeat(random.random_range(1..200)), &path).unwrap(),
            1 if !files.is_empty() => {
                let existing: &std::path::PathBuf = &files[random.random_range(0..files.len())];
                fs::hard_link(existing, &path).unwrap();
            }
            2 => {
                let file = fs::File::create(&path).unwrap();
                file.set_len(random.random_range(1..40) << 16).unwrap();
                file.write_all_at(&vec![7; random.random_range(1..9000)], random.random_range(0..20) << 16)
                    .unwrap();
            }
            _ => {
                let mut content = vec![0; random.random_range(0..most)];
                random.fill(&mut content[..]);
                fs::write(&path, content).unwrap();
                files.push(path.clone());
            }
        }
        if random.random_ratio(1, 10) && path.is_file() {
            let value = vec![b'v'; random.random_range(0..300)];
            rustix::fs::setxattr(&path, "user.note", &value, rustix::fs::XattrFlags::empty()).unwrap();
        }
        if random.random_ratio(1, 10) {
            let _ =
                std::os::unix::fs::lchown(&path, Some(random.random()), Some(random.random_range(0..70_000)));
        }
    }
    let sound = Command::new("sh")
        .args(["-c", "mkfifo pipe; mknod null c 1 3; setfacl -m u:1000:r,g:7:rwx . 2>/dev/null || :; chmod 4711 f* 2>/dev/null || :"])
        .current_dir(top)
        .status()
        .unwrap();
    assert!(sound.success());
}

fn made(tree: Tree, threads: usize) -> (MemoryDevice, u64, u64) {
    let plan = Builder { threads, ..Builder::default() }.plan(tree).unwrap();
    let device = MemoryDevice::new(plan.bytes());
    let summary = plan.write(&device).unwrap();
    (device, summary.image_bytes, summary.free_bytes)
}

fn digest(tree: Tree, threads: usize) -> [u8; 32] {
    let (device, ..) = made(tree, threads);
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < device.size() {
        let part = &mut buffer[..usize::try_from((device.size() - at).min(1 << 20)).unwrap()];
        device.read_at(at, part).unwrap();
        digest.update(&*part);
        at += 1 << 20;
    }
    digest.finalize().into()
}

/// The archive that, according to the documentation, gives the same image as its directory.
fn archive(top: &Path, more: &str) -> Vec<u8> {
    let script = format!(
        "tar --sort=name --format=pax --xattrs --xattrs-include='*' --acls --numeric-owner --sparse {more} -cf - ."
    );
    let mut tar = Command::new("sh")
        .args(["-c", &script])
        .current_dir(top)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut bytes = Vec::new();
    tar.stdout.take().unwrap().read_to_end(&mut bytes).unwrap();
    assert!(tar.wait().unwrap().success());
    bytes
}

#[test]
fn one_tree_is_one_image() {
    if !require(&["root", "tar", "zstd"]) {
        return;
    }
    let first = seed(28);
    for number in first..first + if full_matrix() { 20 } else { 3 } {
        let folder = tempfile::tempdir().unwrap();
        grow(folder.path(), &mut ChaCha8Rng::seed_from_u64(number));
        let archives = [archive(folder.path(), ""), archive(folder.path(), "--zstd")];
        let expected = digest(Tree::read(folder.path(), 1).unwrap(), 1);
        for threads in [1, 2, 8] {
            assert!(
                digest(Tree::read(folder.path(), threads).unwrap(), threads) == expected,
                "SEED={number}, a directory by {threads} threads"
            );
            for archive in &archives {
                let tree = Tree::read_archive(
                    Cursor::new(archive.clone()),
                    Path::new("archive"),
                    &std::env::temp_dir(),
                )
                .unwrap();
                assert!(digest(tree, threads) == expected, "SEED={number}, an archive by {threads} threads");
            }
        }
    }
}

#[test]
fn the_smallest_image_has_little_room_and_holds_the_tree() {
    if !require(&["root", "e2fsck", "mount"]) {
        return;
    }
    let first = seed(2800);
    for number in first..first + if full_matrix() { 200 } else { 4 } {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().join("tree");
        fs::create_dir(&top).unwrap();
        grow(&top, &mut ChaCha8Rng::seed_from_u64(number));
        let (device, bytes, free) = made(Tree::read(&top, 2).unwrap(), 2);
        assert!(free <= (2 * MIB).max(bytes / 100), "SEED={number}: {free} of {bytes} bytes are free");
        let image = folder.path().join("image");
        device.save(&image).unwrap();
        e2fsck_clean(&image);
        let mount = LoopMount::new(&image, "ro").unwrap();
        let mut found: Vec<Difference> = Vec::new();
        Tree::compare(&Tree::read(&top, 2).unwrap(), &Tree::read(mount.path(), 2).unwrap(), &mut |one| {
            found.push(one);
            Ok(())
        })
        .unwrap();
        assert!(found.is_empty(), "SEED={number}: {found:?}");
    }
}
