//! Where images hold attributes: in the inode, in a block, split between both, and large values in
//! inodes of their own. Linux reads the attributes that the tree has, and e2fsck finds no errors.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use blockyard_build::{Builder, Error, Tree};
use blockyard_device::MemoryDevice;
use blockyard_disk::inode::InodeFlags;
use blockyard_engine::mkfs::Options;
use blockyard_inspect::reader::Reader;
use blockyard_testkit::{LoopMount, e2fsck_clean, require};
use std::sync::Arc;

fn set(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
}

/// The output of getfattr for all files, sorted by path.
fn attributes_of(root: &Path) -> String {
    let told = Command::new("getfattr")
        .args(["-R", "-h", "-d", "-m", "-", "-e", "hex", "."])
        .current_dir(root)
        .output();
    let told = told.unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let mut files = BTreeMap::new();
    for part in String::from_utf8(told.stdout).unwrap().split("\n\n").filter(|part| !part.trim().is_empty()) {
        let mut lines: Vec<&str> = part.lines().collect();
        lines[1..].sort_unstable();
        files.insert(lines[0].to_owned(), lines.join("\n"));
    }
    files.into_values().collect::<Vec<_>>().join("\n")
}

struct Made {
    device: Arc<MemoryDevice>,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

fn made(source: &Path, options: Options) -> Result<Made, Error> {
    let builder = Builder { options, ..Builder::default() };
    let plan = builder.plan(Tree::read(source, 2)?)?;
    let device = MemoryDevice::new(plan.bytes());
    plan.write(&device)?;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    device.save(&path).unwrap();
    e2fsck_clean(&path);
    let report = blockyard_check::check(&device, &blockyard_check::Options::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    Ok(Made { device: Arc::new(device), path, _folder: folder })
}

fn assert_mounted(image: &Made, source: &Path) {
    let mount = LoopMount::new(&image.path, "ro").unwrap();
    fs::remove_dir(source.join("lost+found")).ok();
    assert_eq!(attributes_of(mount.path()), attributes_of(source));
}

fn options() -> Options {
    Builder::default().options
}

/// The number of attribute blocks, without the root's, and of value inodes.
fn counted(image: &Made) -> (usize, usize) {
    let reader = Reader::open(Arc::<MemoryDevice>::clone(&image.device)).unwrap();
    let last = reader.superblock().geometry().inodes_count();
    let mut blocks = std::collections::HashSet::new();
    let mut values = 0;
    for number in 11..=last {
        let Ok(inode) = reader.inode(blockyard_disk::InodeNr::new(number)) else { continue };
        if inode.flags().contains(InodeFlags::EA_INODE) {
            values += 1;
        } else if inode.slot().raw().file_acl().raw() > 0 {
            blocks.insert(inode.slot().raw().file_acl().raw());
        }
    }
    (blocks.len(), values)
}

#[test]
fn equal_lists_share_blocks() {
    if !require(&["root", "e2fsck", "mount", "getfattr"]) {
        return;
    }
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let source = folder.path();
    for number in 0..1500 {
        let path = source.join(format!("f{number}"));
        fs::write(&path, b"text").unwrap();
        set(&path, "user.same", &[7; 300]);
    }
    for number in 0..5 {
        let path = source.join(format!("own{number}"));
        fs::write(&path, b"text").unwrap();
        set(&path, "user.same", &[number; 300]);
    }
    for options in [
        options(),
        options().block_size(1024),
        options().cluster_size(65536),
        Options::ext3().block_size(1024),
    ] {
        let image = made(source, options).unwrap();
        // At most 1024 inodes share one block.
        assert_eq!(counted(&image), (2 + 5, 0));
        assert_mounted(&image, source);
    }
}

#[test]
fn lists_are_parted_between_inode_and_block() {
    if !require(&["root", "e2fsck", "mount", "getfattr"]) {
        return;
    }
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let source = folder.path().join("tree");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), b"text").unwrap();
    set(&source, "user.root", &[1; 900]);
    set(&source, "user.small", &[2; 20]);
    set(&source.join("file"), "user.a", &[1; 60]);
    set(&source.join("file"), "user.b", &[2; 900]);
    let image = made(&source, options().block_size(1024)).unwrap();
    assert_eq!(counted(&image), (1, 0));
    assert_mounted(&image, &source);
    set(&source.join("file"), "user.c", &[3; 900]);
    let error = made(&source, options().block_size(1024)).err().unwrap().to_string();
    assert!(error.contains("file: its extended attributes") && error.contains("-O ea_inode"), "{error}");
}

#[test]
fn large_values_have_inodes_of_their_own() {
    if !require(&["root", "e2fsck", "mount", "getfattr"]) {
        return;
    }
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let source = folder.path().join("tree");
    fs::create_dir(&source).unwrap();
    for (number, size) in [(0, 40_000), (1, 40_000), (2, 65_536), (3, 5000), (4, 3000)] {
        let path = source.join(format!("f{number}"));
        fs::write(&path, b"text").unwrap();
        set(&path, "user.large", &vec![u8::try_from(size % 251).unwrap(); size]);
        set(&path, "user.also", &[5; 3000]);
        set(&path, "user.small", &[6; 10]);
    }
    set(&source, "user.large", &[3; 20_000]);
    for options in [
        options(),
        options().block_size(1024),
        options().features("^metadata_csum"),
        options().cluster_size(65536),
    ] {
        let block_size = options.block_size;
        let image = made(&source, options.features("ea_inode")).unwrap();
        let (_, values) = counted(&image);
        // The two values of 40,000 bytes share one inode. f4 has two values of 3,000 bytes. A block
        // of 4 KiB holds one of them, so the other needs an inode. A block of 1 KiB holds neither.
        assert_eq!(values, if block_size == Some(1024) { 6 } else { 5 }, "{block_size:?}");
        assert_mounted(&image, &source);
    }
}

/// e2fsck would take the target of a short link for a block map if the link's `i_blocks` counted
/// the blocks of value inodes.
#[test]
fn a_short_symbolic_link_has_no_values_elsewhere() {
    if !require(&["root", "e2fsck", "mount", "getfattr", "setfattr"]) {
        return;
    }
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let source = folder.path().join("tree");
    fs::create_dir(&source).unwrap();
    let link = |name: &str, target: &str| {
        std::os::unix::fs::symlink(target, source.join(name)).unwrap();
        let value = "v".repeat(5000);
        let arguments = ["-h", "-n", "trusted.v", "-v", &value, name];
        let set = std::process::Command::new("setfattr").args(arguments).current_dir(&source).status();
        assert!(set.unwrap().success());
    };
    link("long", &"x".repeat(60));
    let image = made(&source, options().features("ea_inode")).unwrap();
    assert_mounted(&image, &source);
    link("short", &"x".repeat(59));
    for features in ["ea_inode", "ea_inode,inline_data"] {
        let error = made(&source, options().features(features)).err().unwrap().to_string();
        assert!(error.contains("short: its extended attributes"), "{error}");
        assert!(error.contains("a short symbolic link"), "{error}");
    }
}

/// The attribute of a file is read even if its path is too long for a system call.
#[test]
fn attributes_at_the_end_of_long_paths_are_read() {
    if !require(&["setfattr"]) {
        return;
    }
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let script = "n=$(printf '%0200d' 0); for i in $(seq 30); do mkdir $n; cd -P $n 2>/dev/null || cd $n; done; echo x >file; setfattr -n user.note -v deep file";
    let made = std::process::Command::new("bash").args(["-ec", script]).current_dir(folder.path()).status();
    assert!(made.unwrap().success());
    let with = Tree::read(folder.path(), 1).unwrap();
    let archive = |tree: &Tree| {
        let mut bytes = Vec::new();
        tree.write_archive(&mut bytes, Path::new("archive")).unwrap();
        bytes
    };
    let bytes = archive(&with);
    let key = b"SCHILY.xattr.user.note=deep";
    assert!(bytes.windows(key.len()).any(|part| part == key));
}

#[test]
fn an_attribute_block_brings_its_feature() {
    if !require(&["root", "e2fsck", "getfattr", "mount"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path();
    fs::write(source.join("file"), b"content").unwrap();
    let planned = |options: Options| {
        let plan = Builder { options, ..Builder::default() }.plan(Tree::read(source, 1).unwrap());
        plan.map(|plan| plan.summary().file_system.features.to_string()).map_err(|error| error.to_string())
    };
    let first_revision = || Options { revision: Some(0), ..options() };
    assert!(!planned(options().features("^ext_attr")).unwrap().contains("ext_attr"));
    planned(first_revision()).unwrap();
    set(&source.join("file"), "user.long", &[7; 1000]);
    for features in ["^ext_attr", "none"] {
        assert_mounted(&made(source, options().features(features)).unwrap(), source);
    }
    let error = planned(first_revision()).unwrap_err();
    assert!(error.contains("file: it has extended attributes"), "{error}");
    rustix::fs::removexattr(source.join("file"), "user.long").unwrap();
    fs::File::options().write(true).open(source.join("file")).unwrap().set_len(1 << 31).unwrap();
    let error = planned(first_revision()).unwrap_err();
    assert!(error.contains("file: it has 2 GiB"), "{error}");
}
