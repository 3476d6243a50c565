//! Rules found by comparing verdicts with `e2fsck -fn` 1.47. Each test is a table of changes, most
//! of them made by debugfs. Both verdicts on each change are equal.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use blockyard_check::{Options, check};
use blockyard_device::FileDevice;
use blockyard_testkit::{LoopMount, full_matrix, mke2fs, require, run, seed};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn is_clean(image: &Path) -> bool {
    let device = FileDevice::open_read_only(image).unwrap();
    check(&device, &Options { threads: Some(1), ..Options::default() }).unwrap().is_clean()
}

/// An image in a folder of its own, changed by debugfs.
struct Image {
    folder: tempfile::TempDir,
    path: PathBuf,
}

impl Image {
    /// `None` where a program is missing.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        require(&["mke2fs", "e2fsck", "debugfs"]).then_some(Self { folder, path })
    }

    /// Makes the image anew.
    fn make(&self, options: &str, size: &str) {
        mke2fs(&self.path, &options.split(' ').collect::<Vec<_>>(), size);
    }

    fn debugfs(&self, request: &str) -> String {
        debugfs(&self.path, request)
    }

    /// The request that makes a small file.
    fn write(&self, name: &str) -> String {
        let content = self.folder.path().join("content");
        std::fs::write(&content, b"content").unwrap();
        format!("write {} {name}", content.display())
    }

    /// Makes one change to a copy of the image and compares the verdicts. Returns whether the copy
    /// is clean.
    fn judge(&self, request: &str) -> bool {
        self.judge_all(&[request])
    }

    /// As [`Self::judge`], for several changes.
    fn judge_all(&self, requests: &[&str]) -> bool {
        let copy = self.path.with_extension("copy");
        std::fs::copy(&self.path, &copy).unwrap();
        for request in requests {
            debugfs(&copy, request);
        }
        let theirs = run("e2fsck", &["-fn", copy.to_str().unwrap()]);
        let is_theirs_clean = theirs.status.code() == Some(0);
        assert_eq!(
            is_clean(&copy),
            is_theirs_clean,
            "{requests:?}: e2fsck says\n{}",
            String::from_utf8_lossy(&theirs.stdout)
        );
        is_theirs_clean
    }
}

fn debugfs(image: &Path, request: &str) -> String {
    let output = run("debugfs", &["-w", "-R", request, image.to_str().unwrap()]);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A written block that begins right at the end of the file is tolerated if the extents are in the
/// inode, and only then.
#[test]
fn sizes_before_the_last_extent() {
    let Some(image) = Image::new().filter(|_| require(&["root", "mount"])) else { return };
    image.make("-t ext4 -b 1024", "64M");
    let mounted = LoopMount::new(&image.path, "").unwrap();
    let files = [("inode", 3u64), ("block", 10), ("blocks", 700)];
    for (name, extents) in files {
        let file = std::fs::File::create(mounted.path().join(name)).unwrap();
        (0..extents).for_each(|n| file.write_all_at(&[1; 1024], n * 2048).unwrap());
    }
    drop(mounted);
    for (name, extents) in files {
        let size = (extents - 1) * 2048 + 1024;
        for cut in [0, 1, 1023, 1024, 1025, 2048, 4096] {
            let clean = image.judge(&format!("set_inode_field /{name} size {}", size - cut));
            let tolerated = if name == "inode" { 1024 } else { 1023 };
            assert_eq!(clean, cut <= tolerated, "{name} cut by {cut}");
        }
    }
}

/// Reserved inodes other than the root may have a deletion time.
#[test]
fn deletion_times_of_reserved_inodes() {
    let Some(image) = Image::new() else { return };
    for options in ["-t ext4", "-t ext3 -b 1024"] {
        image.make(options, "64M");
        for inode in 1..=11 {
            let clean = image.judge(&format!("set_inode_field <{inode}> dtime 0x65fb1ad8"));
            assert_eq!(clean, ![2, 11].contains(&inode), "{options}: inode {inode}");
        }
    }
}

/// The blocks that the resize inode maps are in use because the superblock reserves them, not
/// because the inode maps them.
#[test]
fn descriptor_blocks_that_are_no_longer_reserved() {
    let Some(image) = Image::new() else { return };
    for options in ["-t ext4", "-t ext4 -b 1024 -O orphan_file", "-t ext3 -b 2048"] {
        for size in ["8M", "64M"] {
            image.make(options, size);
            // debugfs refuses a number above 65535, so the image is unchanged.
            assert!(image.judge("set_super_value reserved_gdt_blocks 99999"), "{options}: unchanged");
            assert!(!image.judge("set_super_value reserved_gdt_blocks 0"), "{options}");
        }
    }
}

/// Images that differ in their reserved inodes: one with journal, resize inode and orphan file; one
/// with clusters; one with small inodes; and one with neither journal nor resize inode.
const RESERVED: [&str; 4] = [
    "-t ext4 -b 1024 -O orphan_file",
    "-t ext4 -b 4096 -O bigalloc -C 16384",
    "-t ext2 -b 1024 -I 128",
    "-t ext4 -b 1024 -O ^resize_inode,^has_journal,inline_data",
];
/// Inode fields by their debugfs names, with values to set.
const FIELDS: [(&str, &[&str]); 22] = [
    ("mode", &["0800", "0100644", "040755", "010644", "0120777", "0"]),
    ("blocks", &["8", "0xffffffff", "0"]),
    ("size", &["4096", "0x80000000"]),
    ("flags", &["0x80000", "0x10000000", "0x1000", "0x20", "8", "0x40000000", "0x200000", "0x800", "0"]),
    ("block[0]", &["77", "99999999"]),
    ("block[IND]", &["99999999"]),
    ("block[DIND]", &["0"]),
    ("links_count", &["0", "1", "9"]),
    ("uid", &["7"]),
    ("uid_high", &["7"]),
    ("gid", &["7"]),
    ("generation", &["7"]),
    ("file_acl", &["700", "9000", "99999999"]),
    ("dtime", &["3", "0x65fb1ad8"]),
    ("faddr", &["3"]),
    ("extra_isize", &["3", "8"]),
    ("version", &["4"]),
    ("frag", &["3"]),
    ("file_acl_high", &["1"]),
    ("size_high", &["1"]),
    ("blocks_hi", &["1"]),
    ("checksum", &["7"]),
];

/// Changes one field of one inode at a time, for inodes 1 to 13, used or not. Tries a sample of
/// these changes, or all of them with `BLOCKYARD_FULL=1`.
#[test]
fn fields_of_reserved_inodes() {
    let Some(image) = Image::new() else { return };
    let mut random = ChaCha8Rng::seed_from_u64(seed(4));
    let share = if full_matrix() { 1.0 } else { 0.02 };
    for options in RESERVED {
        image.make(options, "20M");
        image.debugfs(&image.write("file"));
        for inode in 1..=13 {
            for (field, value) in
                FIELDS.iter().flat_map(|field| field.1.iter().map(move |value| (field.0, value)))
            {
                if random.random_bool(share) {
                    image.judge(&format!("set_inode_field <{inode}> {field} {value}"));
                }
            }
        }
    }
}

/// The encryption flag is an error without the attribute that holds the encryption context.
#[test]
fn encryption_without_its_attribute() {
    let Some(image) = Image::new() else { return };
    for options in ["-t ext4 -b 1024 -O encrypt", "-t ext4 -I 128", "-t ext4"] {
        image.make(options, "20M");
        for request in ["mkdir directory", "symlink link target", "mknod pipe p"] {
            image.debugfs(request);
        }
        assert!(!image.judge("set_inode_field directory flags 0x80800"), "{options}");
        assert!(!image.judge("set_inode_field link flags 0x800"), "{options}");
        assert!(!image.judge("set_inode_field pipe flags 0x800"), "{options}");
    }
}

/// Descriptors of 32 bytes with the feature 64bit, BLOCK_UNINIT in the last group, file systems of
/// the Hurd, and an attribute block of the list of bad blocks.
#[test]
fn odd_file_systems() {
    let Some(image) = Image::new() else { return };
    let write = image.write("file");
    // When each descriptor is taken to be 32 bytes long, only the first is found at its place. So
    // the small image, with one group, stays clean.
    for (size, clean) in [("16M", true), ("400M", false)] {
        image.make("-t ext4 -b 4096", size);
        assert_eq!(image.judge("ssv desc_size 32"), clean, "{size}");
    }
    // The last group is one block short, or whole.
    for size in ["64M", "65537k"] {
        image.make("-t ext4 -b 1024", size);
        assert!(!image.judge_all(&["set_bg 7 flags 7", "set_bg 7 checksum calc"]), "{size}");
        image.judge("set_bg 7 flags 7");
    }
    for block_size in [1024, 4096] {
        image.make(&format!("-t ext2 -b {block_size} -o hurd"), "24M");
        image.debugfs(&write);
        assert!(image.judge("sif file blocks 60"));
        for (translator, clean) in [("0", true), ("5000", false), ("3", false), ("99999", false)] {
            assert_eq!(image.judge(&format!("sif file translator {translator}")), clean, "{translator}");
        }
    }
    image.make("-t ext4 -b 1024", "16M");
    image.debugfs(&write);
    assert!(image.judge_all(&["sif file version 5000", "ssv creator_os 1"]));
    // The list of bad blocks: only the low 32 bits of its attribute block's number count.
    assert!(!image.judge("sif <1> file_acl 5"));
    assert!(image.judge("sif <1> file_acl 1099511627776"));
}

/// The list of bad blocks is a block map, or an extent tree if the flag says so. With the flag and
/// no tree, nothing is listed.
#[test]
fn maps_of_bad_blocks() {
    let Some(image) = Image::new() else { return };
    image.make("-t ext4 -b 1024 -O ^metadata_csum", "16M");
    let sif = |field: &str| format!("sif <1> {field}");
    let judge = |fields: &[&str]| {
        let requests: Vec<String> = fields.iter().map(|field| sif(field)).collect();
        image.judge_all(&requests.iter().map(String::as_str).collect::<Vec<_>>())
    };
    assert!(!judge(&["block[0] 5000"]), "block 5000 is marked free");
    assert!(judge(&["block[0] 5000", "flags 0x80000"]));
    let (header, max) = ("block[0] 0x0001F30A", "block[1] 4");
    assert!(judge(&["flags 0x80000", "block[0] 0x0000F30A", max]), "an empty tree");
    assert!(!judge(&["flags 0x80000", header, max, "block[4] 1", "block[5] 5000"]), "marked free");
    assert!(!judge(&["flags 0x80000", header, max, "block[4] 1", "block[5] 500000"]), "outside");
    // An extent of six blocks, the third of which is a bitmap.
    let statistics = image.debugfs("show_super_stats");
    let bitmap = statistics.split("block bitmap at ").nth(1).unwrap().split(',').next().unwrap();
    let before = format!("block[5] {}", bitmap.parse::<u32>().unwrap() - 2);
    assert!(!judge(&["flags 0x80000", header, max, "block[4] 6", &before]), "a bitmap is listed");
    assert!(!judge(&["flags 0x80000", header, max, "block[4] 6", "block[5] 5000"]), "marked free");
}

/// The boot loader's inode: unless it is a symbolic link, its size must be one that a block map can
/// hold. (For a FIFO, only the verdicts are compared.)
#[test]
fn sizes_of_the_boot_loader() {
    let Some(image) = Image::new() else { return };
    for block_size in [1024u64, 4096] {
        image.make(&format!("-t ext4 -b {block_size} -O ^metadata_csum"), "16M");
        let per = block_size / 4;
        let largest = (12 + per + per * per + per * per * per) * block_size;
        for (mode, is_link) in [("0120777", true), ("0100644", false), ("010644", false), ("0", false)] {
            for size in [largest, largest + 1, 1 << 62, u64::MAX] {
                let requests = [format!("sif <5> mode {mode}"), format!("sif <5> size {size}")];
                let clean = image.judge_all(&[&requests[0], &requests[1]]);
                let special = mode == "010644";
                assert!(special || clean == (is_link || size <= largest), "{mode} {size}");
            }
        }
    }
}

/// An index whose hash version is not that of its entries is an error.
#[test]
fn hashes_of_indexes() {
    let Some(image) = Image::new() else { return };
    let tree = image.folder.path().join("tree");
    std::fs::create_dir_all(tree.join("names")).unwrap();
    for n in 0..100 {
        std::fs::write(tree.join(format!("names/a-name-of-some-length-{n}")), b"").unwrap();
    }
    image.make(&format!("-t ext4 -b 1024 -O ^metadata_csum -d {}", tree.display()), "16M");
    run("e2fsck", &["-fyD", image.path.to_str().unwrap()]);
    let root: u64 = image.debugfs("bmap names 0").trim().parse().unwrap();
    let file = std::fs::File::options().write(true).open(&image.path).unwrap();
    for version in 0..=7 {
        file.write_all_at(&[version], root * 1024 + 28).unwrap();
        assert_eq!(image.judge_all(&[]), version == 1, "version {version}");
    }
}

/// A symbolic link's target that fits in the inode must not be in a block.
#[test]
fn short_links_in_blocks() {
    let Some(image) = Image::new() else { return };
    let target = image.folder.path().join("target");
    for length in [1, 59, 60, 100] {
        image.make("-t ext2 -b 1024 -O ^filetype", "8M");
        std::fs::write(&target, "t".repeat(length)).unwrap();
        image.debugfs(&format!("write {} link", target.display()));
        assert_eq!(image.judge("sif link mode 0120777"), length >= 60, "{length} bytes");
    }
}

/// Reserved inodes, too, must not have both the extents flag and the inline-data flag. In a file
/// system that has neither feature, this is not checked.
#[test]
fn reserved_inodes_with_both_maps() {
    let Some(image) = Image::new() else { return };
    for (options, clean) in [("-t ext4", false), ("-t ext2", true), ("-t ext2 -O inline_data", false)] {
        image.make(options, "16M");
        for inode in [3, 4, 5, 6, 9, 10] {
            let request = format!("sif <{inode}> flags 0x10080000");
            assert_eq!(image.judge(&request), clean, "{options}: inode {inode}");
        }
    }
}

/// In a file system without extents, the extents flag of a reserved inode (here 5, 6, 9 and 10) is
/// an error only if its link count is not zero. In such a file system, the map of an inode with
/// that flag is not checked. An inode with the inline-data flag has no map to check.
#[test]
fn reserved_inodes_with_flags_of_maps_that_nobody_has() {
    let Some(image) = Image::new() else { return };
    image.make("-t ext2 -b 1024", "16M");
    for (inode, mode) in [(5, "0100644"), (5, "0120777"), (5, "010644"), (6, "0"), (9, "0"), (10, "0")] {
        let field = |name: &str, value: &str| format!("sif <{inode}> {name} {value}");
        let (mode, flags) = (field("mode", mode), field("flags", "0x80000"));
        assert!(image.judge_all(&[&mode, &flags]), "inode {inode}, {mode}");
        assert!(!image.judge_all(&[&mode, &flags, &field("links_count", "1")]), "inode {inode}, {mode}");
    }
    for (options, extents_are_read) in [("-t ext2", false), ("-t ext4", true)] {
        image.make(options, "16M");
        for (flags, clean) in [("0x80000", !extents_are_read), ("0x10000000", true), ("0", false)] {
            let flags = format!("sif <5> flags {flags}");
            let requests = ["sif <5> mode 0100644", &flags, "sif <5> block[0] 99999999"];
            assert_eq!(image.judge_all(&requests), clean, "{options}, {flags}");
        }
    }
}

/// The size of the boot loader's file must be one that its kind of map can hold, even if the
/// inline-data flag says that it has no map. Without the feature extents, the kind is always the
/// block map.
#[test]
fn sizes_of_reserved_inodes_without_a_map() {
    let Some(image) = Image::new() else { return };
    for (options, extents) in [("-t ext2 -b 1024", false), ("-t ext4 -b 1024", true)] {
        image.make(options, "16M");
        for (flags, limit) in [("0x10000000", 1 << 35), ("0", 1 << 35), ("0x80000", 1 << 42)] {
            let clean = |size: u64| size < if extents { limit } else { 1 << 35 };
            for size in [1, 1 << 33, 1 << 40, 1 << 43] {
                let (flags, size_set) = (format!("sif <5> flags {flags}"), format!("sif <5> size {size}"));
                let mut requests = vec!["sif <5> mode 0100644", &flags, &size_set];
                if extents && flags.ends_with("0x80000") {
                    // The head of a leaf without extents.
                    requests.extend(["sif <5> block[0] 0xF30A", "sif <5> block[1] 4"]);
                }
                assert_eq!(image.judge_all(&requests), clean(size), "{options}, {flags}, {size}");
            }
        }
        // With extents, both flags together are an error, whatever the size.
        let requests = ["sif <5> mode 0100644", "sif <5> flags 0x10080000", "sif <5> size 1"];
        assert_eq!(image.judge_all(&requests), !extents, "{options}");
    }
}

/// If the boot loader's inode is a symbolic link and has the inline-data flag, it is an error for
/// it to have both an attribute block and a size other than 0.
#[test]
fn inline_links_of_reserved_inodes_with_attributes() {
    let Some(image) = Image::new() else { return };
    image.make("-t ext2", "16M");
    let link = ["sif <5> mode 0120777", "sif <5> flags 0x10000000", "sif <5> file_acl 99999999"];
    assert!(!image.judge_all(&[&link[..], &["sif <5> size 70"]].concat()));
    assert!(image.judge_all(&[&link[..], &["sif <5> size 0"]].concat()));
    assert!(image.judge_all(&[&link[..2], &["sif <5> size 70"]].concat()));
    // Without that flag the link's map is read, but only if the link has an attribute block.
    for options in ["-t ext2", "-t ext4"] {
        image.make(options, "16M");
        let link = ["sif <5> mode 0120777", "sif <5> size 70", "sif <5> block[0] 99999999"];
        assert!(image.judge_all(&link), "{options}");
        assert!(!image.judge_all(&[&link[..], &["sif <5> file_acl 99999999"]].concat()), "{options}");
    }
}

/// A descriptor with a wrong checksum: bitmaps that it calls uninitialised are read, but their
/// checksums do not count.
#[test]
fn checksums_of_bitmaps_that_are_in_doubt() {
    let Some(image) = Image::new().filter(|_| require(&["tune2fs"])) else { return };
    image.make("-t ext4 -b 1024 -O ^metadata_csum", "64M");
    // mke2fs wrote complete bitmaps, because this image has no checksums yet. These programs add
    // checksums and mark groups uninitialised, but leave the bitmaps as they are.
    for program in [["tune2fs", "-O", "metadata_csum"], ["e2fsck", "-f", "-y"]] {
        run(program[0], &[program[1], program[2], image.path.to_str().unwrap()]);
    }
    let file = std::fs::File::options().read(true).write(true).open(&image.path).unwrap();
    // The verdicts are for the block bitmap and for the inode bitmap. In group 6 both are marked
    // uninitialised, in group 2 only the inode bitmap, in group 0 neither.
    for (group, clean) in [(6, [true, true]), (2, [false, true]), (0, [false, false])] {
        for (field, clean) in [0x18, 0x1A].into_iter().zip(clean) {
            let (at, mut old) = (2048 + group * 64 + field, [0; 2]);
            file.read_exact_at(&mut old, at).unwrap();
            file.write_all_at(&old.map(|byte| byte ^ 0x5A), at).unwrap();
            assert_eq!(image.judge_all(&[]), clean, "group {group}, field {field:#x}");
            file.write_all_at(&old, at).unwrap();
        }
    }
}

/// Without the feature `ea_inode`, attributes may still refer to value inodes.
#[test]
fn values_in_inodes_without_the_feature() {
    let Some(image) = Image::new().filter(|_| require(&["root", "mount"])) else { return };
    image.make("-t ext4 -b 1024 -O ea_inode", "64M");
    let mounted = LoopMount::new(&image.path, "").unwrap();
    blockyard_testkit::images::fill(mounted.path(), true);
    drop(mounted);
    assert!(image.judge("feature -ea_inode"));
}

/// Fast commits must leave 1024 blocks to full commits; an area larger than the journal is no
/// error.
#[test]
fn areas_for_fast_commits() {
    let Some(image) = Image::new() else { return };
    for (mib, blocks) in [(1, 1024u32), (2, 2048)] {
        image.make(&format!("-t ext4 -b 1024 -O ^metadata_csum -J size={mib}"), "16M");
        let first: u64 = image.debugfs("blocks <8>").split(' ').next().unwrap().parse().unwrap();
        let file = std::fs::File::options().write(true).open(&image.path).unwrap();
        let put = |field: u64, value: u32| {
            file.write_all_at(&value.to_be_bytes(), first * 1024 + field).unwrap();
        };
        put(0x28, 0x20);
        for area in [0, 1, 256, 1023, 1024, 1025, 2048, 2049] {
            put(0x54, area);
            let area = if area == 0 { 256 } else { area };
            let clean = image.judge_all(&[]);
            assert_eq!(clean, blocks.checked_sub(area).is_none_or(|left| left >= 1024), "{area} of {blocks}");
        }
    }
}

/// A free inode with a single byte that is not zero: its checksum counts if that byte is one of the
/// first 128.
#[test]
fn inodes_that_are_almost_empty() {
    let Some(image) = Image::new() else { return };
    image.make("-t ext4 -b 1024", "16M");
    for name in ["first", "second"] {
        image.debugfs(&image.write(name));
    }
    image.debugfs("rm first");
    let place = image.debugfs("imap <12>");
    let after =
        |text: &str| place.split(text).nth(1).unwrap().split([',', '\n']).next().unwrap().trim().to_owned();
    let block: u64 = after("located at block ").parse().unwrap();
    let offset = u64::from_str_radix(after("offset ").trim_start_matches("0x"), 16).unwrap();
    let file = std::fs::File::options().write(true).open(&image.path).unwrap();
    for at in [0, 1, 64, 127, 128, 130, 160, 255] {
        let mut slot = [0; 256];
        slot[at] = 0x80;
        file.write_all_at(&slot, block * 1024 + offset).unwrap();
        assert_eq!(image.judge_all(&[]), at >= 128, "byte {at}");
    }
}

/// Without lost+found, or with something else of that name, a file system is clean.
#[test]
fn lost_and_found() {
    let Some(image) = Image::new() else { return };
    let write = image.write("lost+found");
    for features in ["dir_index", "inline_data"] {
        image.make(&format!("-t ext4 -b 1024 -O {features}"), "16M");
        assert!(image.judge("rmdir lost+found"), "{features}: none");
        assert!(image.judge_all(&["rmdir lost+found", &write]), "{features}: a file");
        assert!(image.judge_all(&["rmdir lost+found", "mkdir lost+found"]), "{features}: made anew");
    }
}
