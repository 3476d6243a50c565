//! Inodes by number and generation: a deleted inode is stale, and is never mistaken for a later
//! inode with the same number.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use blockyard::device::{BlockDevice, MemoryDevice};
use blockyard::{
    DeviceNumber, FileType, ImageOptions, InodeId, RenameMode, SetAttributes, XattrMode, engine::NewInode,
};

/// If an inode number is reused after the image was closed and reopened, the new inode has another
/// generation.
#[test]
fn a_number_that_is_given_again_has_another_generation() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(64 << 20));
    drop(ImageOptions::new().make_on(Arc::clone(&device)).unwrap());
    let made = || {
        let fs = ImageOptions::new().open_device(Arc::clone(&device)).unwrap();
        let root = fs.by_inode().root().unwrap();
        let id = fs.by_inode().create(root, b"a", 0o600).unwrap().0;
        fs.by_inode().unlink(root, b"a").unwrap();
        fs.close().unwrap();
        id
    };
    let (one, other) = (made(), made());
    assert_eq!(one.number, other.number, "the test needs two inodes with the same number");
    assert_ne!(one.generation, other.generation);
}

/// A device number that is passed for a regular file is ignored. If it were stored, it would
/// overwrite the root of the file's mapping.
#[test]
fn a_file_has_no_device_number() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(64 << 20));
    let fs = ImageOptions::new().make_on(Arc::clone(&device)).unwrap();
    fs.make_node("file", FileType::Regular, 0o600, Some(DeviceNumber { major: 1, minor: 3 })).unwrap();
    fs.write("file", "text").unwrap();
    fs.close().unwrap();
    let report = blockyard::check::check(&*device, &blockyard::check::Options::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// A deleted file's number goes to the next file. Operations through the old identity must not
/// reach the new file.
#[test]
fn a_number_that_was_given_anew_is_stale() {
    let fs = ImageOptions::new().make_in_memory(64 << 20).unwrap();
    let inodes = fs.by_inode();
    let root = inodes.root().unwrap();
    let make = |name: &[u8]| {
        let (id, file) = inodes.create(root, name, 0o600).unwrap();
        file.write_at(name, 0).unwrap();
        id
    };
    let old = make(b"a");
    inodes.unlink(root, b"a").unwrap();
    assert!(inodes.metadata(old).unwrap_err().is_stale());
    let new = make(b"b");
    assert_eq!(old.number, new.number, "the test needs two inodes with the same number");
    let new_node = NewInode { kind: FileType::Fifo, permissions: 0o600, device: None };
    let stale = [
        inodes.metadata(old).map(drop),
        inodes.open(old, true, true).map(drop),
        inodes.hold(old).map(drop),
        inodes.truncate(old, 0),
        inodes.set_attributes(old, &SetAttributes { permissions: Some(0), ..SetAttributes::default() }),
        inodes.set_xattr(old, b"user.x", b"1", XattrMode::Set),
        inodes.xattr(old, b"user.x").map(drop),
        inodes.xattr_names(old).map(drop),
        inodes.link(old, root, b"c"),
        inodes.lookup(old, b"x").map(drop),
        inodes.read_dir(old, 0, 10).map(drop),
        inodes.read_link(old).map(drop),
        inodes.create(old, b"x", 0o600).map(drop),
        inodes.make_node(old, b"x", &new_node).map(drop),
        inodes.unlink(old, b"x"),
        inodes.rmdir(old, b"x"),
        inodes.rename((old, b"x"), (root, b"y"), RenameMode::Replace),
        inodes.rename((root, b"b"), (old, b"y"), RenameMode::Replace),
    ];
    for (number, result) in stale.into_iter().enumerate() {
        let error = result.unwrap_err();
        assert!(error.is_stale() && error.errno() == 116, "{number}: {error}");
    }
    assert_eq!(fs.read("b").unwrap(), b"b");
    assert_eq!(fs.metadata("b").unwrap().mode(), 0o600);
}

/// A held inode can be used after its last name was removed. It is freed when its last hold and its
/// last open file are dropped.
#[test]
fn a_hold_keeps_an_inode_without_names() {
    let fs = ImageOptions::new().make_in_memory(64 << 20).unwrap();
    let inodes = fs.by_inode();
    let root = inodes.root().unwrap();
    let free = fs.statfs().unwrap().inodes_free;
    fs.create_dir("dir").unwrap();
    fs.write("file", "text").unwrap();
    let ids: Vec<InodeId> =
        [&b"dir"[..], b"file"].iter().map(|name| inodes.lookup(root, name).unwrap().id()).collect();
    let holds: Vec<_> = ids.iter().map(|id| inodes.hold(*id).unwrap()).collect();
    let twice = inodes.hold(ids[1]).unwrap();
    inodes.rmdir(root, b"dir").unwrap();
    inodes.unlink(root, b"file").unwrap();
    assert_eq!(inodes.metadata(ids[0]).unwrap().nlink(), 0);
    assert_eq!(inodes.lookup(ids[0], b"x").unwrap_err().errno(), 2);
    let file = inodes.open(ids[1], true, true).unwrap();
    file.write_at(b"more", 4).unwrap();
    drop(holds);
    drop(twice);
    assert!(inodes.metadata(ids[0]).unwrap_err().is_stale());
    let mut buf = [0; 8];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 8);
    assert_eq!(&buf, b"textmore");
    drop(file);
    assert!(inodes.metadata(ids[1]).unwrap_err().is_stale());
    assert_eq!(fs.statfs().unwrap().inodes_free, free);
}

/// Directory positions stay valid. Between batches, entries are created and removed. Each entry
/// that stays is listed exactly once.
#[test]
fn positions_in_a_directory_stay_valid() {
    let fs = ImageOptions::new().make_in_memory(64 << 20).unwrap();
    let inodes = fs.by_inode();
    fs.create_dir("dir").unwrap();
    for number in 0..500 {
        fs.write(format!("dir/stays-{number}"), "").unwrap();
        fs.write(format!("dir/goes-{number}"), "").unwrap();
    }
    let dir = fs.metadata("dir").unwrap().id();
    let (mut from, mut seen, mut rounds) = (Some(0), Vec::new(), 0);
    while let Some(at) = from {
        let (batch, next) = inodes.read_dir(dir, at, 7).unwrap();
        seen.extend(batch.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()));
        let _ = fs.remove_file(format!("dir/goes-{rounds}"));
        // Create fewer entries than a batch lists, so that the listing reaches its end.
        for number in 0..3 {
            fs.write(format!("dir/comes-{rounds}-{number}"), "").unwrap();
        }
        (from, rounds) = (next, rounds + 1);
    }
    let mut stayed: Vec<_> = seen.iter().filter(|name| name.starts_with("stays")).collect();
    stayed.sort();
    assert_eq!(stayed.len(), 500);
    stayed.dedup();
    assert_eq!(stayed.len(), 500);
}
