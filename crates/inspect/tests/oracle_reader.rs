//! The reader compared with the kernel and with ext4-view, on images that the kernel filled.

#![allow(clippy::unwrap_used, clippy::as_conversions)]

#[path = "support/view.rs"]
mod view;
#[path = "support/walk.rs"]
mod walk;

use std::path::Path;
use std::sync::Arc;

use blockyard_device::FileDevice;
use blockyard_inspect::path::LastLink;
use blockyard_inspect::reader::Reader;
use blockyard_testkit::tree::{Tree, assert_same, read_tree};
use blockyard_testkit::{LoopMount, fill, full_matrix, mke2fs, require};

fn open(image: &Path) -> Reader {
    Reader::open(Arc::new(FileDevice::open_read_only(image).unwrap())).unwrap()
}

/// Makes an image, lets `fill` fill it through a mount, and returns the tree that a read-only mount
/// shows.
fn filled(image: &Path, arguments: &[&str], size: &str, fill: impl FnOnce(&Path)) -> Tree {
    mke2fs(image, arguments, size);
    let mount = LoopMount::new(image, "").unwrap();
    fill(mount.path());
    drop(mount);
    let mount = LoopMount::new(image, "ro,noatime").unwrap();
    read_tree(mount.path())
}

/// Looks up every `step`-th path of the tree, and so uses the index of a directory if there is one.
/// The look-up of a name that does not exist, or that is too long, must fail.
fn assert_paths_resolve(reader: &Reader, tree: &Tree, step: usize) {
    for (path, node) in tree.iter().step_by(step) {
        let inode = reader.resolve(path, LastLink::Keep).unwrap();
        assert_eq!(u64::from(inode.number().raw()), node.inode);
    }
    let mut missing = b"no-such-name".to_vec();
    assert!(reader.resolve(&missing, LastLink::Keep).is_err());
    missing = vec![b'n'; 256];
    assert!(reader.resolve(&missing, LastLink::Keep).is_err());
}

fn one_of_everything(root: &Path, block_size: usize, wide_times: bool, largest_xattr: usize) {
    fill::sizes(root, block_size);
    fill::sparse(root, 9_000_000);
    fill::fragmented(root, "fragmented", block_size, 2500);
    fill::symlinks(
        root,
        (1..=130).chain((131..block_size.min(4096)).step_by(61)).chain([block_size.min(4096) - 1]),
    );
    fill::specials(root);
    fill::owners(root);
    fill::times(root, wide_times);
    fill::attributes(root, largest_xattr);
    fill::access_lists(root);
    fill::names(root);
    fill::deep(root, 40);
    fill::many_directories(root, 300);
}

#[test]
fn one_of_everything_reads_as_the_kernel_reads_it() {
    if !require(&["root", "mke2fs", "mount"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let cases: &[(&[&str], usize, bool, usize)] = &[
        (&["-t", "ext4", "-b", "4096"], 4096, true, 3000),
        (
            &["-t", "ext4", "-b", "1024", "-I", "256", "-O", "inline_data,ea_inode,large_dir"],
            1024,
            true,
            40_000,
        ),
        (
            &["-t", "ext4", "-b", "4096", "-I", "1024", "-O", "inline_data,metadata_csum_seed,^64bit"],
            4096,
            true,
            3000,
        ),
        (
            &["-t", "ext4", "-b", "2048", "-O", "^metadata_csum,uninit_bg,^flex_bg,meta_bg,^resize_inode"],
            2048,
            true,
            1500,
        ),
        (&["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "65536"], 4096, true, 3000),
        (&["-t", "ext3", "-b", "1024", "-I", "128"], 1024, false, 500),
        (
            &["-t", "ext2", "-b", "4096", "-O", "^dir_index,^filetype,^sparse_super,^resize_inode"],
            4096,
            true,
            3000,
        ),
    ];
    for (arguments, block_size, wide, largest) in cases {
        println!("mke2fs {arguments:?}");
        let theirs = filled(&image, arguments, "256M", |root| {
            one_of_everything(root, *block_size, *wide, *largest);
            if arguments.contains(&"ext3") || arguments.contains(&"ext2") {
                fill::indirect_levels(root, *block_size as u64);
            }
        });
        let reader = open(&image);
        assert_same(&walk::of_reader(&reader), &theirs);
        assert_paths_resolve(&reader, &theirs, 1);
    }
}

#[test]
fn symlinks_of_every_length_read_back() {
    if !require(&["root", "mke2fs", "mount"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let theirs = filled(&image, &["-t", "ext4", "-b", "4096"], "64M", |root| fill::symlinks(root, 1..4096));
    assert_same(&walk::of_reader(&open(&image)), &theirs);
}

#[test]
fn a_three_level_index_finds_every_name() {
    if !require(&["root", "mke2fs", "mount"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let count = if full_matrix() { 120_000 } else { 45_000 };
    let theirs = filled(&image, &["-t", "ext4", "-b", "1024", "-O", "large_dir"], "128M", |root| {
        fill::many_names(root, "names", count, 250);
    });
    let reader = open(&image);
    let indexed = reader.resolve(b"names", LastLink::Keep).unwrap();
    let mut root = vec![0; 1024];
    reader.read(&indexed, 0, &mut root).unwrap();
    assert_eq!(root[30], 2, "the index has three levels (root, node, node)");
    assert_same(&walk::of_reader(&reader), &theirs);
    assert_paths_resolve(&reader, &theirs, if full_matrix() { 1 } else { 37 });
}

#[test]
fn sixty_five_thousand_subdirectories() {
    if !require(&["root", "mke2fs", "mount"]) || !full_matrix() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let theirs = filled(&image, &["-t", "ext4", "-b", "1024", "-N", "70000"], "256M", |root| {
        fill::many_directories(root, 65_100);
    });
    let reader = open(&image);
    assert_eq!(
        reader.resolve(b"directories", LastLink::Keep).unwrap().links(),
        1,
        "the link count is given up"
    );
    assert_same(&walk::of_reader(&reader), &theirs);
    assert_paths_resolve(&reader, &theirs, 101);
}

#[test]
fn extent_trees_of_depth_three() {
    if !require(&["root", "mke2fs", "mount"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let theirs = filled(&image, &["-t", "ext4", "-b", "1024"], "128M", |root| {
        fill::fragmented(root, "fragmented", 1024, 32_000);
    });
    let reader = open(&image);
    let file = reader.resolve(b"fragmented", LastLink::Keep).unwrap();
    assert_eq!(file.block_field()[6], 3, "depth of the root");
    assert_eq!(reader.extents(&file).count(), 32_000);
    assert_same(&walk::of_reader(&reader), &theirs);
}

#[test]
fn ext4_view_reads_the_same() {
    if !require(&["root", "mke2fs", "mount"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    for arguments in [
        &["-t", "ext4", "-b", "4096"][..],
        &["-t", "ext4", "-b", "1024"],
        &["-t", "ext2", "-b", "4096", "-I", "256"],
    ] {
        println!("mke2fs {arguments:?}");
        let _ = filled(&image, arguments, "128M", |root| {
            one_of_everything(root, 1024, true, 500);
        });
        let ours = walk::of_reader(&open(&image));
        view::assert_same(&image, &ours);
    }
}
