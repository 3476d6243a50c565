//! Small content in inodes (`-O inline_data`). Linux reads what the tree has, and e2fsck and our
//! checker find no errors. Files and links without attributes are inline exactly if mke2fs stores
//! them inline, too.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use blockyard_build::{Builder, Room, Size, Tree};
use blockyard_device::{BlockDevice, FileDevice, MemoryDevice};
use blockyard_disk::inode::{FileType, InodeFlags};
use blockyard_engine::mkfs::Options;
use blockyard_inspect::reader::Reader;
use blockyard_testkit::{LoopMount, e2fsck_clean, full_matrix, mke2fs, require, run, seed};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Makes files and link targets with lengths around the limits of an inode, directories with few
/// and many names, and attributes that leave room for inline data or none.
fn grow(top: &Path, random: &mut ChaCha8Rng) {
    let mut content = [0; 1200];
    random.fill(&mut content[..]);
    for (name, lengths) in [("near", 0..135), ("wide", 350..460), ("far", 1100..1200)] {
        fs::create_dir(top.join(name)).unwrap();
        for length in lengths {
            fs::write(top.join(name).join(format!("file{length}")), &content[..length]).unwrap();
            let link = top.join(name).join(format!("link{length}"));
            std::os::unix::fs::symlink("t".repeat(length.clamp(1, 900)), link).unwrap();
        }
    }
    for number in 0..60 {
        let folder = top.join("tree").join(format!("of{number}"));
        fs::create_dir_all(&folder).unwrap();
        for name in 0..number % 20 {
            let path = folder.join(format!("{name}{}", "n".repeat(random.random_range(0..30))));
            match random.random_range(0..4) {
                0 => fs::create_dir(&path).unwrap(),
                1 => fs::write(&path, vec![b'x'; random.random_range(0..6000)]).unwrap(),
                _ => fs::write(&path, &content[..random.random_range(0..130)]).unwrap(),
            }
            if random.random_ratio(1, 3) {
                let value = vec![b'v'; random.random_range(0..90)];
                rustix::fs::setxattr(&path, "user.note", &value, rustix::fs::XattrFlags::empty()).unwrap();
            }
        }
    }
    fs::hard_link(top.join("near/file50"), top.join("tree/again")).unwrap();
    File::create(top.join("hole")).unwrap().set_len(100).unwrap();
}

/// A builder that leaves free space for what Linux will write.
fn builder(options: &Options, threads: usize) -> Builder {
    let size = Size::Auto(Room::Bytes(4 << 20));
    Builder { options: options.clone(), threads, size, inodes: Some(3000), ..Builder::default() }
}

fn made(tree: Tree, options: &Options, threads: usize) -> Arc<MemoryDevice> {
    let plan = builder(options, threads).plan(tree).unwrap();
    let device = MemoryDevice::new(plan.bytes());
    let summary = plan.write(&device).unwrap();
    let of_blocks = summary.overhead.slack + summary.overhead.directories + summary.overhead.maps;
    assert!(of_blocks <= summary.content_bytes, "{summary:?}");
    Arc::new(device)
}

/// Paths of everything of the given types that is stored inline.
fn inline(device: Arc<dyn BlockDevice>, kinds: &[FileType]) -> BTreeSet<Vec<u8>> {
    let reader = Reader::open(device).unwrap();
    let (mut found, mut waiting) = (BTreeSet::new(), vec![Vec::new()]);
    while let Some(path) = waiting.pop() {
        let inode = reader.resolve(&[b"/", &path[..]].concat(), blockyard_inspect::path::LastLink::Keep);
        let inode = inode.unwrap();
        let kind = inode.file_type();
        if kind == FileType::Directory {
            for entry in reader.listed(&inode).unwrap() {
                if entry.name != b"." && entry.name != b".." {
                    waiting.push([&path[..], b"/", &entry.name].concat());
                }
            }
        }
        if kinds.contains(&kind) && inode.flags().contains(InodeFlags::INLINE_DATA) {
            found.insert(path);
        }
    }
    found
}

fn check(source: &Path, inode_size: u32, options: &Options, with_mke2fs: &[&str]) {
    let device = made(Tree::read(source, 1).unwrap(), options, 1);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    device.save(&path).unwrap();
    let what = format!("inodes of {inode_size} bytes, {with_mke2fs:?}");
    e2fsck_clean(&path);
    let report = blockyard_check::check(&*device, &blockyard_check::Options::default()).unwrap();
    assert!(report.is_clean(), "{what}: {:?}", report.findings);
    {
        let mounted = LoopMount::new(&path, "ro").unwrap();
        let (left, right) = (source.to_str().unwrap(), mounted.path().to_str().unwrap());
        let told = run("diff", &["-r", "--no-dereference", "-x", "lost+found", left, right]);
        assert!(told.status.success(), "{what}: {}", String::from_utf8_lossy(&told.stdout));
    }
    let tree = Tree::read(source, 1).unwrap();
    let image = Tree::read_image(device.clone(), &path, b"/").unwrap();
    let mut differences = Vec::new();
    let mut tell = |difference| {
        differences.push(difference);
        Ok(())
    };
    Tree::compare(&tree, &image, &mut tell).unwrap();
    assert!(differences.is_empty(), "{what}: {differences:?}");

    // Linux writes to the image, which moves content out of inodes.
    {
        let mounted = LoopMount::new(&path, "").unwrap();
        let script = "cd \"$0\" && for f in near/file* far/file*; do echo more >>$f; done && \
                      for d in tree/of*; do mkdir $d/new $d/another; done && rm -r wide";
        let told = run("sh", &["-c", script, mounted.path().to_str().unwrap()]);
        assert!(told.status.success(), "{what}: {}", String::from_utf8_lossy(&told.stderr));
    }
    e2fsck_clean(&path);

    let theirs = folder.path().join("theirs");
    mke2fs(&theirs, &[with_mke2fs, &["-d", source.to_str().unwrap()]].concat(), "64M");
    let theirs: Arc<dyn BlockDevice> = Arc::new(FileDevice::open_read_only(&theirs).unwrap());
    let kinds = [FileType::Regular, FileType::Symlink];
    let (ours, theirs) = (inline(device.clone(), &kinds), inline(theirs, &kinds));
    // mke2fs may or may not store a file with attributes inline. The builder stores it inline only
    // if content and attributes both fit. So the folder with such files is not compared.
    let plain = |path: &Vec<u8>| !path.starts_with(b"/tree");
    let of =
        |set: &BTreeSet<Vec<u8>>| set.iter().filter(|path| plain(path)).cloned().collect::<BTreeSet<_>>();
    assert_eq!(of(&ours), of(&theirs), "{what}");
    assert!(inline(device, &[FileType::Directory]).len() > 5, "{what}");
}

#[test]
fn small_content_lies_in_inodes() {
    if !require(&["root", "e2fsck", "mke2fs", "mount", "diff"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    grow(folder.path(), &mut ChaCha8Rng::seed_from_u64(seed(2828)));
    let all = [(4096, 256), (1024, 1024), (4096, 512), (4096, 2048)];
    for (block, inode_size) in all.into_iter().take(if full_matrix() { 4 } else { 2 }) {
        let options = Options::ext4().block_size(block).inode_size(inode_size).features("inline_data");
        let (block, inode) = (block.to_string(), inode_size.to_string());
        let all = ["-t", "ext4", "-b", &block, "-I", &inode, "-O", "inline_data"];
        check(folder.path(), inode_size, &options, &all);
    }
    let options = Options::ext4().block_size(1024).inode_size(256).features("inline_data,^extents,^64bit");
    check(folder.path(), 256, &options, &["-t", "ext4", "-b", "1024", "-O", "inline_data,^extents,^64bit"]);
}

#[test]
fn what_lies_in_inodes_decides_the_image() {
    if !require(&["root", "tar"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    grow(folder.path(), &mut ChaCha8Rng::seed_from_u64(seed(2829)));
    let options = Options::ext4().block_size(4096).features("inline_data");
    let digest = |tree: Tree, threads: usize| {
        let device = made(tree, &options, threads);
        let mut bytes = vec![0; usize::try_from(device.size()).unwrap()];
        device.read_at(0, &mut bytes).unwrap();
        bytes
    };
    let read = |threads| Tree::read(folder.path(), threads).unwrap();
    let expected = digest(read(1), 1);
    assert!(digest(read(2), 8) == expected, "by eight threads");
    let top = folder.path().to_str().unwrap();
    let archive = run(
        "tar",
        &[
            "--sort=name",
            "--format=pax",
            "--xattrs",
            "--xattrs-include=*",
            "--acls",
            "--numeric-owner",
            "--sparse",
            "-cC",
            top,
            ".",
        ],
    );
    let tree =
        Tree::read_archive(std::io::Cursor::new(archive.stdout), Path::new("archive"), &std::env::temp_dir())
            .unwrap();
    assert!(digest(tree, 2) == expected, "from an archive");
    // Changing one inline byte changes the UUID.
    let path = folder.path().join("near/file50");
    let mut bytes = fs::read(&path).unwrap();
    let before = fs::metadata(&path).unwrap().modified().unwrap();
    bytes[49] ^= 1;
    fs::write(&path, bytes).unwrap();
    File::options().write(true).open(&path).unwrap().set_modified(before).unwrap();
    let other = digest(read(1), 1);
    assert!(other[1024 + 104..1024 + 120] != expected[1024 + 104..1024 + 120], "the UUID is the same");
}
