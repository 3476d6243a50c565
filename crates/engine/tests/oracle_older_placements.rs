//! Images on which blocks and inodes are placed as by ext3 and the first ext4: e2fsck finds
//! nothing, and the kernel reads what was written and writes more. Other tests look at the layout
//! of files under `ext3`, at an inherited flag, and at images that are refused.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

#[path = "support/image.rs"]
mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use blockyard_alloc::Policy;
use blockyard_device::MemoryDevice;
use blockyard_disk::InodeNr;
use blockyard_engine::{Error, FileSystem, OpContext, OpenOptions, Refusal};
use blockyard_testkit::{LoopMount, e2fsck_clean, require, run, seed};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use support::{ROOT, context, directory, file, make, open_with};

/// For each kind of image of an era: the options of mke2fs, and the policies that serve it.
const TIMES: &[(&[&str], &[&str])] = &[
    (&["-t", "ext3"], &["ext3", "ext3:inode=oldalloc", "ext3:when=write-back:debt=on"]),
    (&["-t", "ext3", "-b", "1024", "-g", "2048", "-O", "^dir_index"], &["ext3", "ext4-2008"]),
    (
        &["-O", "^metadata_csum,^64bit,uninit_bg,^orphan_file", "-b", "1024", "-G", "4"],
        &[
            "ext4-2008",
            "ext4-2008:inode=flex-2008-fallback:when=write",
            "ext4-2009",
            "ext4-2009:used_dirs_fault=on",
        ],
    ),
    (
        &["-O", "^metadata_csum,^64bit,^uninit_bg,^orphan_file", "-E", "stripe_width=16"],
        &["ext4-2008", "ext4-2009"],
    ),
];

fn options(policy: &str) -> OpenOptions {
    OpenOptions { policy: Policy::parse(policy).unwrap(), ..OpenOptions::default() }
}

/// Inode and content of each file, by path.
type Files = BTreeMap<String, (InodeNr, Vec<u8>)>;

/// Creates directories and files, and appends to, truncates and removes files, in random order.
/// Returns the files that are left.
fn churn(fs: &FileSystem, run: &str, random: &mut ChaCha8Rng) -> Files {
    let mut folders = vec![(String::new(), ROOT)];
    let mut files = Files::new();
    for step in 0..900 {
        let ctx = OpContext { colour: random.random_range(0..20), ..context() };
        let (path, parent) = folders[random.random_range(0..folders.len())].clone();
        match random.random_range(0..10) {
            0 => {
                let name = format!("{run}folder{step}");
                let made = directory(fs, parent, &name);
                folders.push((format!("{path}{name}/"), made));
            }
            1..4 => {
                let name = format!("{run}file{step}");
                files.insert(format!("{path}{name}"), (file(fs, parent, &name), Vec::new()));
            }
            4..8 => {
                let Some(path) = any(&files, random) else { continue };
                let (inode, content) = files.get_mut(&path).unwrap();
                let length = if random.random_bool(0.1) { 300_000 } else { random.random_range(1..20_000) };
                let at = content.len() + if random.random_bool(0.1) { 60_000 } else { 0 };
                let part: Vec<u8> = (0..length).map(|n| ((n * 31 + step) % 251) as u8).collect();
                fs.write(&ctx, *inode, at as u64, &part).unwrap();
                content.resize(at, 0);
                content.extend(part);
            }
            8 => {
                let Some(path) = any(&files, random) else { continue };
                let (inode, content) = files.get_mut(&path).unwrap();
                let size = random.random_range(0..=content.len());
                fs.truncate(&ctx, *inode, size as u64).unwrap();
                content.truncate(size);
            }
            _ => {
                let Some(path) = any(&files, random) else { continue };
                files.remove(&path);
                let (parent, name) = path.rsplit_once('/').unwrap_or(("", &path));
                let (_, parent) =
                    folders.iter().find(|(path, _)| path.trim_end_matches('/') == parent).unwrap();
                fs.unlink(&ctx, *parent, name.as_bytes()).unwrap();
            }
        }
    }
    files
}

fn any(files: &Files, random: &mut ChaCha8Rng) -> Option<String> {
    let at = random.random_range(0..files.len().max(1));
    files.keys().nth(at).cloned()
}

fn saved(device: &MemoryDevice, fs: FileSystem, image: &Path) {
    fs.close(&context()).unwrap();
    device.save(image).unwrap();
}

#[test]
fn e2fsck_and_the_kernel_accept_what_was_placed_as_of_old() {
    if !require(&["mke2fs", "e2fsck", "root"]) {
        return;
    }
    let seed = seed(0x0e74_2009);
    for (time, policies) in TIMES {
        for policy in *policies {
            println!("mke2fs {time:?}, {policy}, SEED={seed}");
            let random = &mut ChaCha8Rng::seed_from_u64(seed);
            let scratch = tempfile::tempdir().unwrap();
            let image = scratch.path().join("image");
            make(time, "48M", &image);
            let device = Arc::new(MemoryDevice::load(&image).unwrap());
            let fs = open_with(&device, options(policy));
            let files = churn(&fs, "a", random);
            saved(&device, fs, &image);
            e2fsck_clean(&image);
            {
                let mount = LoopMount::new(&image, "rw").unwrap();
                for (path, (_, content)) in &files {
                    let read = std::fs::read(mount.path().join(path)).unwrap();
                    assert!(read == *content, "{path}: the kernel reads something else");
                }
                let (first, _) = files.first_key_value().unwrap();
                std::fs::remove_file(mount.path().join(first)).unwrap();
                std::fs::write(mount.path().join("after"), vec![7; 200_000]).unwrap();
            }
            e2fsck_clean(&image);
            let device = Arc::new(MemoryDevice::load(&image).unwrap());
            let fs = open_with(&device, options(policy));
            churn(&fs, "b", &mut ChaCha8Rng::seed_from_u64(seed + 1));
            saved(&device, fs, &image);
            e2fsck_clean(&image);
        }
    }
}

/// The blocks of a file, from debugfs, which prints `(0-11):1545-1556, (IND):1557, ...`. Returns
/// for each item the text in parentheses and the first block.
fn blocks(image: &Path, path: &str) -> Vec<(String, u64)> {
    let output = run("debugfs", &["-R", &format!("stat {path}"), image.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.split("BLOCKS:").nth(1).unwrap().split("TOTAL").next().unwrap().replace('\n', "");
    let pair = |part: &str| {
        let (what, place) = part.trim().split_once(':').unwrap();
        let first = place.split('-').next().unwrap().parse().unwrap();
        (what.trim_matches(['(', ')']).to_owned(), first)
    };
    line.split(", ").map(pair).collect()
}

/// A file written from start to end is one run of blocks on the device: 12 data blocks, an indirect
/// block, the data blocks that it maps, and so on. Two files that grow alternately have at most two
/// runs each.
#[test]
fn under_ext3_indirect_blocks_lie_where_the_file_goes_on() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("image");
    make(&["-t", "ext3", "-b", "4096", "-O", "^has_journal,^resize_inode"], "128M", &image);
    let device = Arc::new(MemoryDevice::load(&image).unwrap());
    let fs = open_with(&device, options("ext3"));
    let ctx = OpContext { colour: 3, ..context() };
    let folder = directory(&fs, ROOT, "folder");
    let long = file(&fs, folder, "long");
    fs.write(&ctx, long, 0, &vec![1; 2100 << 12]).unwrap();
    // Two files that grow alternately.
    let pair = ["one", "two"].map(|name| file(&fs, folder, name));
    for inode in pair {
        fs.open_inode(inode, true).unwrap();
    }
    for block in 0..12 {
        for inode in pair {
            fs.write(&ctx, inode, block << 12, &vec![2; 1 << 12]).unwrap();
        }
    }
    for inode in pair {
        fs.release_inode(&ctx, inode, true).unwrap();
    }
    saved(&device, fs, &image);
    let found = blocks(&image, "folder/long");
    let start = found[0].1;
    // Each colour moves the goal by a sixteenth of the group: 2048 blocks.
    assert_eq!(start, 3 * 2048, "the inode is in group 0");
    let expected = [
        ("0-11", 0),
        ("IND", 12),
        ("12-1035", 13),
        ("DIND", 1037),
        ("IND", 1038),
        ("1036-2059", 1039),
        ("IND", 2063),
        ("2060-2099", 2064),
    ];
    let expected: Vec<(String, u64)> = expected.map(|(what, at)| (what.to_owned(), start + at)).to_vec();
    assert_eq!(found, expected);
    for name in ["one", "two"] {
        let runs = blocks(&image, &format!("folder/{name}"));
        assert!(runs.len() <= 2, "windows of 8 and 16 blocks keep them apart: {name} {runs:?}");
    }
}

#[test]
fn images_of_a_later_time_are_refused_by_name() {
    let device = Arc::new(MemoryDevice::new(32 << 20));
    blockyard_engine::mkfs::format(&*device, &blockyard_engine::mkfs::Options::ext4().identity(1, 1))
        .unwrap();
    for policy in ["ext3", "ext4-2008", "ext4-2009"] {
        let opened = FileSystem::open(Arc::<MemoryDevice>::clone(&device), options(policy), &context());
        let Err(Error::Refused(Refusal::Policy(why))) = opened else {
            panic!("{policy} serves today's ext4")
        };
        let text = why.to_string();
        assert!(text.contains(policy) && text.contains("metadata_csum"), "{text}");
    }
}

/// Up to Linux 2.6.28, new subdirectories inherited the flag of a top directory (TOPDIR). The
/// policy `ext3` imitates this, unless `top_flag=stays` overrides it.
#[test]
fn the_flag_of_a_top_is_inherited_where_it_was() {
    use blockyard_disk::inode::InodeFlags;
    let inherits = |policy: &str| {
        let device = Arc::new(MemoryDevice::new(32 << 20));
        blockyard_engine::mkfs::format(&*device, &blockyard_engine::mkfs::Options::ext3().identity(1, 1))
            .unwrap();
        let fs = open_with(&device, options(policy));
        let top = directory(&fs, ROOT, "top");
        let flags = fs.attributes(top).unwrap().flags | InodeFlags::TOPDIR.bits();
        fs.set_flags(&context(), top, flags).unwrap();
        let made = [directory(&fs, top, "directory"), file(&fs, top, "file")];
        made.map(|inode| fs.attributes(inode).unwrap().flags & InodeFlags::TOPDIR.bits() != 0)
    };
    assert_eq!(inherits("ext3"), [true, false]);
    assert_eq!(inherits("ext3:top_flag=stays"), [false, false]);
}
