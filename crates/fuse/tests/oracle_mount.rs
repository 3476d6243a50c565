//! What is done through a mount, as the mount shows it, as the kernel's own ext4 shows it afterwards, and as e2fsck judges it.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use blockyard_fuse::{Mount, Options, Request, Serving};
use blockyard_testkit::tree::{Tree, assert_same, read_tree};
use blockyard_testkit::{LoopMount, e2fsck_clean, fill, mke2fs, require};

/// A mounted image that is taken down when a test ends early, too.
struct Mounted {
    serving: Option<Serving>,
    handle: blockyard_fuse::Handle,
}

impl Mounted {
    fn new(image: &Path, directory: &Path, options: &str) -> Self {
        let options = Options::parse([options]).unwrap();
        let request =
            Request { image: image.to_owned(), directory: directory.to_owned(), options, record: None };
        let mount = Mount::new(&request).unwrap();
        let handle = mount.handle();
        Self { serving: Some(mount.spawn().unwrap()), handle }
    }

    fn unmount(mut self) {
        self.handle.unmount().unwrap();
        self.serving.take().unwrap().wait().unwrap();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.serving.is_some() {
            let _ = self.handle.unmount();
        }
    }
}

/// A folder with an image and a directory to mount on.
struct Place {
    _folder: tempfile::TempDir,
    image: PathBuf,
    directory: PathBuf,
}

fn place(arguments: &[&str], size: &str) -> Place {
    let folder = tempfile::tempdir().unwrap();
    let (image, directory) = (folder.path().join("image"), folder.path().join("mnt"));
    mke2fs(&image, arguments, size);
    std::fs::create_dir(&directory).unwrap();
    Place { _folder: folder, image, directory }
}

/// Without the times of creation, which FUSE as fuser carries it does not tell, and of access, which reading the tree changes.
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
        // Blocks of maps are counted once the data is written.
        assert_same(&without_sectors(live), &without_sectors(theirs.clone()));
        let mounted = Mounted::new(&place.image, &place.directory, "ro");
        assert_same(&comparable(read_tree(root)), &theirs);
        mounted.unmount();
    }
}

/// What the kernel made is shown as it shows it, by a mount that writes nothing.
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

/// Names are moved, replaced, exchanged and removed, files outlive their names, sizes change.
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
