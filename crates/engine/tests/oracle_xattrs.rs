//! Extended attributes in both directions: the kernel reads ours, we read and change the kernel's,
//! and e2fsck finds nothing.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

#[path = "support/image.rs"]
mod support;

use blockyard_disk::InodeNr;
use blockyard_engine::{Error, FileSystem, XattrMode};
use blockyard_testkit::{LoopMount, e2fsck_clean, require};
use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};
use std::path::Path;
use support::{context, file, make, open};

fn value(length: usize, salt: usize) -> Vec<u8> {
    (0..length).map(|n| ((n * 7 + salt) % 250) as u8 + 1).collect()
}

fn kernel_value(path: &Path, name: &str) -> Vec<u8> {
    let mut buffer = vec![0; 70_000];
    let length = lgetxattr(path, name, &mut buffer[..]).unwrap();
    buffer.truncate(length);
    buffer
}

#[test]
fn attributes_cross_over_both_ways() {
    if !require(&["root", "mke2fs", "e2fsck"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    for options in [&["-b", "4096"][..], &["-b", "1024"], &["-I", "128"], &["-O", "bigalloc", "-C", "16384"]]
    {
        let image = scratch.path().join("image");
        make(options, "64M", &image);
        // The kernel shares one block between files with equal attributes.
        {
            let mount = LoopMount::new(&image, "").unwrap();
            for name in ["one", "two", "three"] {
                let file = mount.path().join(name);
                std::fs::write(&file, name).unwrap();
                lsetxattr(&file, "user.shared", &value(500, 3), XattrFlags::empty()).unwrap();
                lsetxattr(&file, "user.more", &value(200, 4), XattrFlags::empty()).unwrap();
            }
        }
        let (device, fs) = open(&image);
        let ctx = context();
        let find = |name: &str| fs.lookup(InodeNr::ROOT, name.as_bytes()).unwrap();
        assert_eq!(fs.xattr(find("one"), b"user.shared").unwrap(), value(500, 3));
        // Of the three files, change one, delete one, and keep one.
        fs.set_xattr(&ctx, find("one"), b"user.shared", &value(300, 9), XattrMode::Replace).unwrap();
        fs.unlink(&ctx, InodeNr::ROOT, b"two").unwrap();
        let ours = file(&fs, InodeNr::ROOT, "ours");
        for length in [0, 1, 20, 60, 200, 400] {
            let name = format!("user.length-{length}");
            match fs.set_xattr(&ctx, ours, name.as_bytes(), &value(length, 1), XattrMode::Create) {
                Ok(()) => assert_eq!(fs.xattr(ours, name.as_bytes()).unwrap(), value(length, 1)),
                Err(Error::AttributeRoom { bytes, .. }) => {
                    assert!(length >= 400 && bytes == length, "{options:?}: {length}");
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(matches!(
            fs.set_xattr(&ctx, ours, b"user.length-1", b"x", XattrMode::Create),
            Err(Error::Exists)
        ));
        assert!(matches!(fs.remove_xattr(&ctx, ours, b"user.none"), Err(Error::NoAttribute)));
        assert!(matches!(
            fs.set_xattr(&ctx, ours, b"user.big", &value(60_000, 1), XattrMode::Set),
            Err(Error::AttributeRoom { bytes: 60_000, .. })
        ));
        fs.remove_xattr(&ctx, ours, b"user.length-20").unwrap();
        fs.set_xattr(&ctx, ours, b"security.test", b"secure", XattrMode::Set).unwrap();
        let mut names = fs.xattr_names(ours).unwrap();
        names.sort();
        fs.close(&ctx).unwrap();
        device.save(&image).unwrap();
        e2fsck_clean(&image);
        let mount = LoopMount::new(&image, "ro").unwrap();
        assert_eq!(kernel_value(&mount.path().join("one"), "user.shared"), value(300, 9), "{options:?}");
        assert_eq!(kernel_value(&mount.path().join("one"), "user.more"), value(200, 4));
        assert_eq!(kernel_value(&mount.path().join("three"), "user.shared"), value(500, 3));
        for name in &names {
            let name = std::str::from_utf8(name).unwrap();
            let expected = match name.strip_prefix("user.length-") {
                Some(length) => value(length.parse().unwrap(), 1),
                None => b"secure".to_vec(),
            };
            assert_eq!(kernel_value(&mount.path().join("ours"), name), expected, "{name}");
        }
    }
}

/// Has the kernel create four files with equal attributes. The large values are in value inodes
/// (feature `ea_inode`) that the files share.
fn have_kernel_share(image: &Path, big: &[u8], other: &[u8]) {
    let mount = LoopMount::new(image, "").unwrap();
    for name in ["one", "two", "three", "four"] {
        let file = mount.path().join(name);
        std::fs::write(&file, name).unwrap();
        for (name, value) in [("user.big", big), ("user.small", b"small"), ("user.other", other)] {
            lsetxattr(&file, name, value, XattrFlags::empty()).unwrap();
        }
    }
}

/// Drops references to value inodes that the kernel made and that files share. Then makes and
/// releases value inodes of our own. Our checker and e2fsck find the reference counts right, and
/// the kernel reads and releases the value inodes that are left.
#[test]
fn values_in_inodes_are_made_shared_and_released() {
    if !require(&["root", "mke2fs", "e2fsck"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    for options in
        [&["-b", "1024"][..], &["-b", "4096"], &["-b", "1024", "-O", "^metadata_csum,^has_journal"]]
    {
        let image = scratch.path().join("image");
        make(&[&["-O", "ea_inode"], options].concat(), "64M", &image);
        let other = value(9000, 6);
        have_kernel_share(&image, &value(40_000, 5), &other);
        let (device, fs) = open(&image);
        let ctx = context();
        let find = |name: &str| fs.lookup(InodeNr::ROOT, name.as_bytes()).unwrap();
        let judge = |fs: &FileSystem| {
            fs.sync(&ctx).unwrap();
            device.save(&image).unwrap();
            let report = blockyard_check::check(&*device, &blockyard_check::Options::default()).unwrap();
            assert!(report.is_clean(), "{options:?}: {:?}", report.findings);
        };
        // Each step drops references; a value inode is freed with its last reference.
        fs.unlink(&ctx, InodeNr::ROOT, b"one").unwrap();
        judge(&fs);
        fs.remove_xattr(&ctx, find("two"), b"user.big").unwrap();
        fs.set_xattr(&ctx, find("three"), b"user.big", b"small now", XattrMode::Replace).unwrap();
        fs.set_xattr(&ctx, find("three"), b"user.other", &value(20_000, 7), XattrMode::Set).unwrap();
        judge(&fs);
        fs.unlink(&ctx, InodeNr::ROOT, b"four").unwrap();
        judge(&fs);
        // Value inodes that we make.
        let ours = file(&fs, InodeNr::ROOT, "ours");
        for (name, length) in [("user.a", 65_536), ("user.b", 3000), ("user.c", 5000)] {
            fs.set_xattr(&ctx, ours, name.as_bytes(), &value(length, 8), XattrMode::Create).unwrap();
            assert_eq!(fs.xattr(ours, name.as_bytes()).unwrap(), value(length, 8));
        }
        // The name exists, so the call is refused, and it leaves no value inode behind.
        let refused = fs.set_xattr(&ctx, ours, b"user.a", &value(50_000, 9), XattrMode::Create);
        assert!(matches!(refused, Err(Error::Exists)));
        fs.remove_xattr(&ctx, ours, b"user.b").unwrap();
        judge(&fs);
        let gone = file(&fs, InodeNr::ROOT, "gone");
        fs.set_xattr(&ctx, gone, b"user.gone", &value(60_000, 1), XattrMode::Set).unwrap();
        fs.unlink(&ctx, InodeNr::ROOT, b"gone").unwrap();
        fs.close(&ctx).unwrap();
        device.save(&image).unwrap();
        e2fsck_clean(&image);
        {
            let mount = LoopMount::new(&image, "").unwrap();
            let at = |name: &str| mount.path().join(name);
            assert_eq!(kernel_value(&at("two"), "user.other"), other);
            assert_eq!(kernel_value(&at("three"), "user.big"), b"small now");
            assert_eq!(kernel_value(&at("three"), "user.other"), value(20_000, 7));
            assert_eq!(kernel_value(&at("ours"), "user.a"), value(65_536, 8));
            assert_eq!(kernel_value(&at("ours"), "user.c"), value(5000, 8));
            // The kernel can release the value inodes that we made.
            std::fs::remove_file(at("ours")).unwrap();
            std::fs::remove_file(at("three")).unwrap();
        }
        e2fsck_clean(&image);
    }
}
