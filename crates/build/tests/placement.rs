//! Where content goes: files in the order of the tree, or in the requested order. Reading an image
//! in order only moves forward.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use blockyard_build::{Added, Builder, Placement, Tree};
use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_engine::mkfs::Options;
use blockyard_inspect::path::LastLink;
use blockyard_inspect::reader::Reader;
use blockyard_testkit::{e2fsck_clean, require};

fn made(tree: Tree, ahead: &[&str]) -> (Reader, Vec<Vec<u8>>) {
    made_by(tree, ahead, Placement::default())
}

fn made_by(tree: Tree, ahead: &[&str], placement: Placement) -> (Reader, Vec<Vec<u8>>) {
    let ahead = ahead.iter().map(|path| path.as_bytes().to_vec()).collect();
    let plan = Builder { ahead, threads: 2, placement, ..Builder::default() }.plan(tree).unwrap();
    let missing = plan.missing().to_vec();
    let device = MemoryDevice::new(plan.bytes());
    plan.write(&device).unwrap();
    (Reader::open(Arc::new(device)).unwrap(), missing)
}

/// The blocks of files, in the order of the paths.
fn blocks(reader: &Reader, paths: &[&str]) -> Vec<u64> {
    let of = |path: &&str| -> Vec<u64> {
        let inode = reader.resolve(path.as_bytes(), LastLink::Keep).unwrap();
        let extents = reader.extents(&inode).map(Result::unwrap);
        extents
            .flat_map(|extent| extent.physical.raw()..extent.physical.raw() + u64::from(extent.length))
            .collect()
    };
    paths.iter().flat_map(of).collect()
}

fn is_forward(blocks: &[u64]) -> bool {
    blocks.windows(2).all(|pair| pair[0] < pair[1])
}

fn tree(folder: &Path) -> Vec<String> {
    let mut paths = Vec::new();
    for directory in ["", "a", "b", "b/c"] {
        fs::create_dir_all(folder.join(directory)).unwrap();
    }
    for number in 0..60 {
        let path = format!("{}file{number:02}", ["", "a/", "b/", "b/c/"][number % 4]);
        fs::write(folder.join(&path), vec![b'x'; number * number * 31]).unwrap();
        paths.push(path);
    }
    paths
}

#[test]
fn what_is_listed_comes_first_and_the_rest_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let paths = tree(folder.path());
    let read = || Tree::read(folder.path(), 1).unwrap();
    let plain = blocks(&made(read(), &[]).0, &["a", "b", "b/c"]);
    assert!(plain.windows(2).all(|pair| pair[1] == pair[0] + 1), "directories together: {plain:?}");
    let ahead = ["b/c/file59", "nowhere", "/a/file05", "b/c/file59", "a"];
    let (reader, missing) = made(read(), &ahead);
    assert_eq!(missing, [b"nowhere".to_vec()]);
    let mut of_a: Vec<&str> =
        paths.iter().map(String::as_str).filter(|path| path.starts_with("a/")).collect();
    of_a.sort_unstable();
    let listed: Vec<&str> = ["b/c/file59", "a/file05"]
        .into_iter()
        .chain(of_a.into_iter().filter(|path| *path != "a/file05"))
        .collect();
    let listed_blocks = blocks(&reader, &listed);
    assert!(is_forward(&listed_blocks), "{listed_blocks:?}");
    let others: Vec<&str> = paths.iter().map(String::as_str).filter(|path| !listed.contains(path)).collect();
    let behind = blocks(&reader, &others).into_iter().min().unwrap();
    assert!(listed_blocks.last().unwrap() < &behind);
    for path in &paths {
        let inode = reader.resolve(path.as_bytes(), LastLink::Keep).unwrap();
        let mut content = vec![0; usize::try_from(inode.size()).unwrap()];
        reader.read(&inode, 0, &mut content).unwrap();
        assert!(content.iter().all(|&byte| byte == b'x'), "{path}");
    }
}

/// Whether a file needs an extent node can depend on where its data begins. Without a node, a
/// group's metadata splits the data, so the inode cannot hold all extents. With a node before it,
/// the data begins later and is not split, so no node is needed. The layout then keeps the node and
/// cuts an extent in two. The image is clean, and the content is right.
#[test]
fn files_that_need_a_node_only_where_it_does_not_lie_are_laid_out() {
    if !require(&["e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (top, image) = (folder.path().join("tree"), folder.path().join("image"));
    fs::create_dir(&top).unwrap();
    let file = fs::File::create(top.join("b")).unwrap();
    for part in 0..4 {
        file.write_all_at(&[part + 1; 24 << 10], u64::from(part) << 20).unwrap();
    }
    let mut cut = 0;
    for pad in 100..360 {
        fs::write(top.join("a"), vec![b'x'; pad << 10]).unwrap();
        let plain = Builder::default();
        let options = Options {
            blocks_per_group: Some(256),
            ..plain.options.clone().block_size(1024).features("^has_journal,^flex_bg")
        };
        let plan = Builder { options, ..plain }.plan(Tree::read(&top, 1).unwrap()).unwrap();
        let device = Arc::new(MemoryDevice::new(plan.bytes()));
        plan.write(&*device).unwrap();
        let reader = Reader::open(Arc::<MemoryDevice>::clone(&device)).unwrap();
        let inode = reader.resolve(b"b", LastLink::Keep).unwrap();
        let extents: Vec<_> = reader.extents(&inode).map(Result::unwrap).collect();
        let is_cut = extents.windows(2).any(|pair| {
            let len = pair[0].length;
            pair[0].logical.raw() + len == pair[1].logical.raw()
                && pair[0].physical.raw() + u64::from(len) == pair[1].physical.raw()
        });
        if is_cut {
            cut += 1;
            let mut bytes = vec![0; usize::try_from(device.size()).unwrap()];
            device.read_at(0, &mut bytes).unwrap();
            fs::write(&image, bytes).unwrap();
            e2fsck_clean(&image);
        }
        for part in 0..4u8 {
            let mut content = vec![0; 24 << 10];
            reader.read(&inode, u64::from(part) << 20, &mut content).unwrap();
            assert!(content.iter().all(|&byte| byte == part + 1), "pad {pad} part {part}");
        }
    }
    assert!(cut > 0, "no size of the file `a` led to a cut extent");
}

#[test]
fn content_lies_in_the_order_that_is_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let paths = tree(folder.path());
    let mut sorted: Vec<&str> = paths.iter().map(String::as_str).collect();
    // In the order in which inodes are numbered: the names in a directory, then the names in its
    // subdirectories.
    sorted.sort_by_key(|path| (path.rsplit_once('/').map_or("", |(place, _)| place), *path));
    let size = |path: &str| fs::metadata(folder.path().join(path)).unwrap().len();
    let (small, large): (Vec<&str>, Vec<&str>) = sorted.iter().partition(|path| size(path) <= 64 << 10);
    let mut beside = Vec::new();
    for directory in ["", "a", "b", "b/c"] {
        beside.push(if directory.is_empty() { "/" } else { directory });
        let is_in = |path: &&&str| path.rsplit_once('/').map_or("", |(place, _)| place) == directory;
        beside.extend(sorted.iter().filter(is_in).filter(|path| **path != "b/c/file59"));
    }
    assert!(!small.is_empty() && !large.is_empty());
    for (placement, ahead, expected) in [
        ("directories-first", &[][..], [&["/", "a", "b", "b/c"][..], &sorted].concat()),
        ("small-first", &[], [&["/", "a", "b", "b/c"][..], &small, &large].concat()),
        ("with-directories", &["b/c/file59"], [&["b/c/file59"][..], &beside].concat()),
    ] {
        let read = Tree::read(folder.path(), 1).unwrap();
        let (reader, _) = made_by(read, ahead, placement.parse().unwrap());
        let blocks = blocks(&reader, &expected);
        assert!(is_forward(&blocks), "{placement}: {blocks:?}");
        for path in &paths {
            let inode = reader.resolve(path.as_bytes(), LastLink::Keep).unwrap();
            let mut content = vec![0; usize::try_from(inode.size()).unwrap()];
            reader.read(&inode, 0, &mut content).unwrap();
            assert!(content.iter().all(|&byte| byte == b'x'), "{path}");
        }
    }
    assert!("elsewhere".parse::<Placement>().is_err());
}

#[test]
fn what_is_added_lies_over_the_sources() {
    if !require(&["e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [top, other] = ["top", "other"].map(|name| folder.path().join(name));
    tree(&top);
    fs::create_dir_all(other.join("in")).unwrap();
    fs::write(other.join("in/file"), "new").unwrap();
    fs::write(other.join("hostname"), "mine").unwrap();
    let added = |tree: Tree, at: &str| Added { tree, at: at.as_bytes().to_vec() };
    let tree = Tree::merge_at(vec![
        added(Tree::read(&top, 1).unwrap(), ""),
        added(Tree::read_file(&other.join("hostname")).unwrap(), "a/file01"),
        added(Tree::read(&other, 1).unwrap(), "srv/new"),
    ])
    .unwrap();
    let (reader, _) = made(tree, &[]);
    let content = |path: &str| {
        let inode = reader.resolve(path.as_bytes(), LastLink::Keep).unwrap();
        let mut content = vec![0; usize::try_from(inode.size()).unwrap()];
        reader.read(&inode, 0, &mut content).unwrap();
        content
    };
    assert_eq!(content("a/file01"), b"mine");
    assert_eq!(content("srv/new/in/file"), b"new");
    assert_eq!(content("srv/new/hostname"), b"mine");
    assert_eq!(content("a/file05").len(), 5 * 5 * 31);
    let path = folder.path().join("image");
    let mut bytes = vec![0; usize::try_from(reader.device().size()).unwrap()];
    reader.device().read_at(0, &mut bytes).unwrap();
    fs::write(&path, bytes).unwrap();
    e2fsck_clean(&path);
    for wrong in ["../x", "a/file00/x", &"x".repeat(256)] {
        let parts = vec![
            added(Tree::read(&top, 1).unwrap(), ""),
            added(Tree::read_file(&other.join("hostname")).unwrap(), "a/file00"),
            added(Tree::read_file(&other.join("hostname")).unwrap(), wrong),
        ];
        assert!(Tree::merge_at(parts).is_err(), "{wrong}");
    }
}
