//! Damages of extent trees, block maps and clusters that repairs handled badly in runs of
//! `oracle_repair.rs`, one for each test.

#![allow(clippy::unwrap_used)]

mod support;

use blockyard_check::{Cost, Options, RepairOptions, check, plan};
use blockyard_device::{BlockDevice, FileDevice};
use blockyard_testkit::{mke2fs, require, run};
use support::small::{debugfs, is_clean, made_32m as made, repair, slot_at};

#[test]
fn a_directory_with_too_long_an_extent_stays() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
    // The length of its extent: 256 blocks, unwritten.
    debugfs(&image, "set_inode_field one block[4] 0x00008100");
    let before = debugfs(&image, "stat one");
    assert!(before.contains("Size: 1024"), "{before}");
    repair(&image);
    assert!(debugfs(&image, "ls -p one").contains("/two/"), "its name is there");
}

/// A directory has no holes, so its only extent belongs at logical block 0, whatever its key. The
/// keys here are past the last logical block of a file, past that of a directory, or within both
/// limits.
#[test]
fn a_directory_with_a_hole_of_any_size_stays() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
    for key in ["0xffffffff", "0xfffffffe", "0x400000", "0x3fffff", "5"] {
        debugfs(&image, &format!("set_inode_field one block[3] {key}"));
        assert!(!is_clean(&image), "{key}");
        repair(&image);
        assert!(debugfs(&image, "ls -p one").contains("/two/"), "{key}: its name is there");
    }
}

/// All blocks of a logical cluster must be in one cluster of the device. If an extent maps some of
/// them elsewhere, its content is copied to where the cluster is.
#[test]
fn an_extent_that_splits_a_cluster_is_copied() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = ["-t", "ext4", "-b", "1024", "-O", "bigalloc,^metadata_csum", "-C", "16384"];
    let image = made(folder.path(), &options);
    // Data in the blocks 0 to 3 and 8 to 11 of one cluster.
    let file = folder.path().join("file");
    let content: Vec<u8> =
        (0..12u8).flat_map(|block| vec![if block / 4 == 1 { 0 } else { block + 1 }; 1024]).collect();
    std::fs::write(&file, &content).unwrap();
    debugfs(&image, &format!("write {} file", file.display()));
    debugfs(&image, &format!("write {} other", file.display()));
    let first = |name: &str| debugfs(&image, &format!("bmap {name} 0")).trim().parse::<u64>().unwrap();
    let (own, others) = (first("file"), first("other"));
    assert_eq!(debugfs(&image, "bmap file 8").trim(), (own + 8).to_string(), "two extents in one cluster");
    // `i_block` has the header and two extents. Word 8 is the low half of the second one's start.
    for start in [others + 8, own + 3, others] {
        debugfs(&image, &format!("set_inode_field file block[8] {start}"));
        assert!(!is_clean(&image), "{start}");
        repair(&image);
        assert!(is_clean(&image), "{start}");
        assert_eq!(debugfs(&image, "bmap file 8").trim(), (own + 8).to_string(), "{start}");
        let kept = folder.path().join("kept");
        debugfs(&image, &format!("dump other {}", kept.display()));
        assert!(std::fs::read(&kept).unwrap() == content, "{start}: the other file stays");
        debugfs(&image, &format!("dump file {}", kept.display()));
        let kept = std::fs::read(&kept).unwrap();
        assert!(
            kept[..8192] == content[..8192] && kept.len() == content.len(),
            "{start}: the first extent stays"
        );
    }
}

/// The start of an extent is changed to a cluster that has another owner: another part of the file,
/// or another file. The next extent is in the same logical cluster and still has the old start. The
/// two extents get a new cluster together, so nothing else is lost or overwritten.
#[test]
fn an_extent_in_anothers_cluster_takes_no_content_along() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = ["-t", "ext4", "-b", "1024", "-O", "bigalloc,^metadata_csum", "-C", "16384"];
    let (file, kept) = (folder.path().join("file"), folder.path().join("kept"));
    // Two clusters, each with blocks 0 to 3 and 8 to 11.
    let filled = |block: u8| if block / 4 % 2 == 1 { 0 } else { block + 1 };
    let content: Vec<u8> = (0..28).flat_map(|block| vec![filled(block); 1024]).collect();
    std::fs::write(&file, &content).unwrap();
    for owner in ["file", "other"] {
        let image = made(folder.path(), &options);
        debugfs(&image, &format!("write {} file", file.display()));
        debugfs(&image, &format!("write {} other", file.display()));
        let block = |nth: u32| debugfs(&image, &format!("bmap file {nth}")).trim().parse::<u64>().unwrap();
        assert_eq!(block(24), block(16) + 8, "two extents in one cluster");
        let start = debugfs(&image, &format!("bmap {owner} 0"));
        // `i_block` has the header and four extents. Word 11 is the low half of the third one's
        // start.
        debugfs(&image, &format!("set_inode_field file block[11] {}", start.trim()));
        assert!(!is_clean(&image), "{owner}");
        repair(&image);
        assert!(is_clean(&image), "{owner}");
        debugfs(&image, &format!("dump other {}", kept.display()));
        assert!(std::fs::read(&kept).unwrap() == content, "{owner}: the other file stays");
        debugfs(&image, &format!("dump file {}", kept.display()));
        let kept = std::fs::read(&kept).unwrap();
        // The third extent has the content of the blocks that it named: the owner's first extent.
        let expected = [&content[..16384], &content[..4096], &content[20480..]].concat();
        assert!(kept == expected, "{owner}: the other extents stay");
    }
}

/// The key of one extent in the middle is far too high: only that extent is lost, and not those
/// after it.
#[test]
fn an_extent_out_of_order_goes_alone() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
    let pieces = folder.path().join("pieces");
    let file = std::fs::File::create(&pieces).unwrap();
    for piece in 0..20 {
        std::os::unix::fs::FileExt::write_all_at(&file, &[piece + 1; 1024], u64::from(piece) * 4096).unwrap();
    }
    debugfs(&image, &format!("write {} pieces", pieces.display()));
    let tree = debugfs(&image, "dump_extents pieces");
    let leaf = tree.lines().find(|line| line.trim_start().starts_with("0/ 1")).unwrap();
    let leaf: u64 = leaf.split_whitespace().nth(7).unwrap().parse().unwrap();
    let device = FileDevice::open(&image).unwrap();
    device.write_at((leaf << 10) + 12 + 12 * 10, &31_375u32.to_le_bytes()).unwrap();
    drop(device);
    repair(&image);
    let copy = folder.path().join("copy");
    debugfs(&image, &format!("dump pieces {}", copy.display()));
    let mut expected = std::fs::read(&pieces).unwrap();
    expected[10 * 4096..10 * 4096 + 1024].fill(0);
    assert!(std::fs::read(copy).unwrap() == expected, "one piece is missing");
}

/// The extent of a directory begins a block too early on the device, or a block too late in the
/// directory, where no cluster begins. It is moved back to its first block on the device, or to
/// logical block 0.
#[test]
fn a_directory_beside_its_cluster_stays() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = ["-t", "ext4", "-b", "4096", "-O", "bigalloc,^metadata_csum", "-C", "16384"];
    for is_early in [true, false] {
        let image = made(folder.path(), &options);
        let block: u64 = debugfs(&image, "blocks one").split_whitespace().next().unwrap().parse().unwrap();
        let field = if is_early { format!("block[5] {}", block - 1) } else { "block[3] 1".to_owned() };
        debugfs(&image, &format!("set_inode_field one {field}"));
        repair(&image);
        assert!(debugfs(&image, "ls -p one").contains("/two/"), "{field}: its name is there");
    }
}

#[test]
fn what_is_cut_out_of_a_file_is_named_in_bytes() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext2", "-b", "1024"]);
    let content = folder.path().join("content");
    std::fs::write(&content, [7; 9000]).unwrap();
    debugfs(&image, &format!("write {} file", content.display()));
    debugfs(&image, "set_inode_field file block[3] 99999999");
    let device = FileDevice::open(&image).unwrap();
    let how = RepairOptions { check: Options::default(), now: 1_700_000_000, ..RepairOptions::default() };
    let plan = plan(&device, &how).unwrap();
    let cut: Vec<_> = plan.actions.iter().filter(|action| action.cost == Cost::Cut).collect();
    let [cut] = cut[..] else { panic!("{cut:?}") };
    let [range] = &cut.ranges[..] else { panic!("{cut:?}") };
    assert_eq!((cut.path.as_deref(), range), (Some(&b"/file"[..]), &(3072..4096)));
}

/// An empty file whose extent tree has a depth that Linux refuses: the depth becomes 0.
#[test]
fn an_empty_tree_has_no_depth() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("empty"), b"").unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
    debugfs(&image, &format!("write {} empty", folder.path().join("empty").display()));
    debugfs(&image, "set_inode_field empty block[0] 0x0000f30a");
    debugfs(&image, "set_inode_field empty block[1] 0x40000004");
    repair(&image);
    let at = slot_at(&image, "empty", 1024);
    let mut root = [0; 8];
    FileDevice::open(&image).unwrap().read_at(at + 40, &mut root).unwrap();
    assert_eq!(root, [0x0A, 0xF3, 0, 0, 4, 0, 0, 0]);
}

/// An index node is written over a leaf, in a directory without checksums. It looks like an empty
/// leaf, but both checkers find the error.
#[test]
fn an_index_node_in_the_place_of_a_leaf_is_found() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let many = folder.path().join("tree/many");
    std::fs::create_dir_all(&many).unwrap();
    for n in 0..900 {
        std::fs::write(many.join(format!("{n:0>200}")), b"").unwrap();
    }
    let image = folder.path().join("image");
    let tree = folder.path().join("tree");
    let options = ["-t", "ext4", "-b", "1024", "-O", "^metadata_csum", "-d", tree.to_str().unwrap()];
    mke2fs(&image, &options, "32M");
    run("e2fsck", &["-fyD", image.to_str().unwrap()]);
    let device = FileDevice::open(&image).unwrap();
    let block = |logical: u32| {
        let place = debugfs(&image, &format!("bmap many {logical}")).trim().parse::<u64>().unwrap() << 10;
        let mut bytes = vec![0; 1024];
        device.read_at(place, &mut bytes).unwrap();
        (place, bytes)
    };
    let first_below = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap());
    let (_, root) = block(0);
    assert_eq!(root[30], 1, "the tree has two levels");
    let (_, node) = block(first_below(&root, 32));
    let (leaf, _) = block(first_below(&node, 8));
    device.write_at(leaf, &node).unwrap();
    drop(device);
    let found = run("e2fsck", &["-fn", image.to_str().unwrap()]);
    assert_eq!(found.status.code(), Some(4), "{found:?}");
    let device = FileDevice::open(&image).unwrap();
    assert!(!check(&device, &Options::default()).unwrap().is_clean());
    drop(device);
    repair(&image);
}

/// All flags of a file are set, but it still has a block map: that is recognised, and the content
/// stays.
#[test]
fn a_file_with_a_block_map_has_no_inline_data() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let content = folder.path().join("content");
    std::fs::write(&content, [b'c'; 30_000]).unwrap();
    let features = "inline_data,^extent,^64bit,^metadata_csum";
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024", "-I", "256", "-O", features]);
    debugfs(&image, &format!("write {} file", content.display()));
    debugfs(&image, "set_inode_field file flags 0xffffffff");
    repair(&image);
    let kept = folder.path().join("kept");
    debugfs(&image, &format!("dump file {}", kept.display()));
    assert!(std::fs::read(kept).unwrap() == [b'c'; 30_000]);
}
