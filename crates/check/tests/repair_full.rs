//! Repairs where no block is free, or none seems to be. Also repairs of inodes that have no map in
//! `i_block`, and of wrong fields of the superblock. There is one test for each cause.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use blockyard_check::{Code, Options, RepairOptions, Wish, check, plan, plan_with_journal};
use blockyard_device::{BlockDevice, FileDevice};
use blockyard_disk::Checksums;
use blockyard_disk::superblock::{PRIMARY_OFFSET, RawSuperblock};
use blockyard_testkit::{LoopDevice, e2fsck_clean, mke2fs, require, run};
use support::small::{self, debugfs, repair, slot_at};
use zerocopy::{FromBytes, IntoBytes};

/// The present time for repairs, in seconds since 1970.
const NOW: u64 = 1_700_000_000;
/// The most blocks of a file without an indirect block.
const DIRECT: u64 = 12;

/// Makes a file of `pieces` blocks of 1 KiB with a hole of a block after each, so that no two are
/// adjacent.
fn in_pieces(path: &Path, pieces: u64) {
    let file = File::create(path).unwrap();
    for piece in 0..pieces {
        file.write_all_at(&[u8::try_from(65 + piece % 26).unwrap(); 1024], 2 * piece * 1024).unwrap();
    }
}

fn field(text: &str, key: &str) -> u64 {
    let rest = text.split(key).nth(1).unwrap().trim_start();
    rest.split(|letter: char| !letter.is_ascii_digit()).next().unwrap().parse().unwrap()
}

fn u32_at(image: &Path, at: u64) -> u32 {
    let mut bytes = [0; 4];
    FileDevice::open_read_only(image).unwrap().read_at(at, &mut bytes).unwrap();
    u32::from_le_bytes(bytes)
}

fn write_at(image: &Path, at: u64, bytes: &[u8]) {
    FileDevice::open(image).unwrap().write_at(at, bytes).unwrap();
}

/// Fills an image with blocks of 1 KiB until no block is free.
fn fill(image: &Path) {
    let filler = image.with_extension("filler");
    for number in 0.. {
        let free = field(&debugfs(image, "stats"), "Free blocks:");
        if free == 0 {
            break;
        }
        // The last blocks get files without an indirect block, which would take one more.
        let blocks = if free > 300 { 250 } else { free.min(DIRECT) };
        std::fs::write(&filler, vec![b'z'; usize::try_from(blocks * 1024).unwrap()]).unwrap();
        debugfs(image, &format!("write {} filler{number}", filler.display()));
        assert!(number < 500, "{free} blocks stay free");
    }
}

/// An image of 1 KiB blocks that holds a tree made by `setup`, and has no free block.
fn full(folder: &Path, options: &[&str], setup: impl FnOnce(&Path)) -> PathBuf {
    let tree = folder.join("tree");
    std::fs::create_dir(&tree).unwrap();
    setup(&tree);
    let image = folder.join("image");
    let tree = tree.to_str().unwrap();
    mke2fs(&image, &[options, &["-b", "1024", "-m", "0", "-N", "512", "-d", tree]].concat(), "4M");
    run("e2fsck", &["-fyD", image.to_str().unwrap()]);
    fill(&image);
    e2fsck_clean(&image);
    image
}

fn content_of(image: &Path, name: &str) -> Vec<u8> {
    let copy = image.with_extension("copy");
    debugfs(image, &format!("dump {name} {}", copy.display()));
    let content = std::fs::read(&copy).unwrap();
    std::fs::remove_file(copy).unwrap();
    content
}

/// How many entries a directory has, without `.` and `..`.
fn names_in(image: &Path, directory: &str) -> usize {
    debugfs(image, &format!("ls -p {directory}")).lines().filter(|line| line.starts_with('/')).count() - 2
}

/// An image with a file `pieces` of so many blocks, and a file with an attribute block. The first
/// block bitmap of the image calls all blocks used.
fn marked_full(folder: &Path, pieces: u64) -> PathBuf {
    let tree = folder.join("tree");
    std::fs::create_dir(&tree).unwrap();
    in_pieces(&tree.join("pieces"), pieces);
    std::fs::write(tree.join("listed"), b"hello").unwrap();
    let image = folder.join("image");
    let options = ["-t", "ext4", "-b", "1024", "-I", "128", "-O", "^metadata_csum,^uninit_bg"];
    mke2fs(&image, &[&options[..], &["-d", tree.to_str().unwrap()]].concat(), "8M");
    debugfs(&image, &format!("ea_set listed user.precious {}", "v".repeat(200)));
    e2fsck_clean(&image);
    let bitmap = field(&debugfs(&image, "stats"), "block bitmap at ");
    write_at(&image, bitmap << 10, &[0xFF; 1024]);
    image
}

/// Attribute blocks are claimed before anything is repaired. Once, a new node of a map was written
/// to one of them.
#[test]
fn a_new_node_takes_no_attribute_block() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = ["-t", "ext2", "-I", "128"];
    let image =
        full(folder.path(), &options, |tree| std::fs::write(tree.join("data"), [b'x'; 20 << 10]).unwrap());
    // Some blocks are free again, one of them for the attributes.
    debugfs(&image, "rm filler0");
    debugfs(&image, &format!("ea_set data user.precious {}", "v".repeat(200)));
    fill(&image);
    e2fsck_clean(&image);
    let before = debugfs(&image, "ea_list data");
    assert!(before.contains("user.precious"), "{before}");
    // An impossible pointer behind the last block, so that the map must be written anew.
    let indirect = u64::from(u32_at(&image, slot_at(&image, "data", 1024) + 0x28 + 48)) << 10;
    write_at(&image, indirect + 400, &0xFFFF_FFF0u32.to_le_bytes());
    repair(&image);
    assert_eq!(debugfs(&image, "ea_list data"), before);
    assert_eq!(content_of(&image, "data"), [b'x'; 20 << 10]);
}

/// A truncation is finished before the inodes are read, when it is not yet known which blocks are
/// free.
#[test]
fn a_truncation_takes_no_block_that_may_be_in_use() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = marked_full(folder.path(), 40);
    let (others, inode) = (content_of(&image, "listed"), field(&debugfs(&image, "stat pieces"), "Inode:"));
    let kept = content_of(&image, "pieces")[..20 * 1024].to_vec();
    debugfs(&image, "set_inode_field pieces size 20480");
    debugfs(&image, &format!("set_super_value last_orphan {inode}"));
    let attributes = debugfs(&image, "ea_list listed");
    repair(&image);
    assert!(content_of(&image, "listed") == others && content_of(&image, "pieces") == kept);
    assert_eq!(debugfs(&image, "ea_list listed"), attributes);
    assert!(debugfs(&image, "ls -p lost+found").contains("/../"), "it is still a directory");
}

/// One pointer is lost, not the file: the new map takes the blocks of the old one.
#[test]
fn a_map_is_mended_without_free_space() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let data = vec![b'x'; 300 * 1024];
    let image =
        full(folder.path(), &["-t", "ext2"], |tree| std::fs::write(tree.join("data"), &data).unwrap());
    let indirect = u64::from(u32_at(&image, slot_at(&image, "data", 1024) + 0x28 + 48)) << 10;
    write_at(&image, indirect + 20, &0xFFFF_FFF0u32.to_le_bytes());
    repair(&image);
    let mut wanted = data;
    wanted[(12 + 5) * 1024..(12 + 6) * 1024].fill(0);
    assert!(content_of(&image, "data") == wanted, "only the block with the pointer is lost");
}

/// An index entry of an extent tree is out of order. The new tree takes the blocks of the old one,
/// and nothing is lost, although the walk leaves out what is below that entry.
#[test]
fn a_tree_is_mended_without_free_space() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = ["-t", "ext4", "-O", "^has_journal,^metadata_csum"];
    let image = full(folder.path(), &options, |tree| in_pieces(&tree.join("pieces"), 300));
    let before = content_of(&image, "pieces");
    // The key of the second leaf becomes 0, which is the key of the first leaf.
    let slot = slot_at(&image, "pieces", 1024);
    assert!(u32_at(&image, slot + 0x28) >> 16 >= 3, "leaves");
    write_at(&image, slot + 0x28 + 24, &[0; 4]);
    repair(&image);
    assert!(content_of(&image, "pieces") == before);
}

fn make_many(tree: &Path) {
    std::fs::create_dir(tree.join("many")).unwrap();
    for number in 0..200 {
        std::fs::write(tree.join(format!("many/{number:04}{}", "n".repeat(100))), b"").unwrap();
    }
}

/// Directories are rebuilt in their old blocks if no block is free.
#[test]
fn directories_are_rebuilt_without_free_space() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    for kind in ["ext2", "ext3"] {
        let folder = tempfile::tempdir().unwrap();
        let image = full(folder.path(), &["-t", kind, "-O", "^has_journal"], make_many);
        let device = FileDevice::open(&image).unwrap();
        let wishes = [Wish::RebuildDirectories].into();
        let how = RepairOptions { now: NOW, wishes, ..RepairOptions::default() };
        let plan = plan(&device, &how).unwrap();
        assert!(plan.is_complete(), "{kind}: {:?}", plan.after);
        plan.apply(&device).unwrap();
        e2fsck_clean(&image);
        assert_eq!(names_in(&image, "many"), 200, "{kind}");
    }
}

/// An index in hash order may need more blocks than the directory had. Without an index, the names
/// need no more.
#[test]
fn a_damaged_index_is_mended_without_free_space() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = full(folder.path(), &["-t", "ext3", "-O", "^has_journal"], make_many);
    let root = debugfs(&image, "bmap many 0").trim().parse::<u64>().unwrap() << 10;
    assert!(debugfs(&image, "stat many").contains("Flags: 0x1000"), "it has an index");
    // The hash version of the index.
    write_at(&image, root + 28, &[0x77]);
    repair(&image);
    assert_eq!(names_in(&image, "many"), 200);
}

fn inline(folder: &Path) -> PathBuf {
    let image = small::made(folder, &["-t", "ext4", "-O", "inline_data", "-I", "256"], "8M");
    for request in ["mkdir three/d", "write /dev/null three/d/f"] {
        debugfs(&image, request);
    }
    run("e2fsck", &["-fy", image.to_str().unwrap()]);
    e2fsck_clean(&image);
    image
}

/// The size of an inline directory is wrong. Its names must not be taken for a map.
#[test]
fn an_inline_directory_with_the_size_of_a_block_keeps_its_names() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = inline(folder.path());
    let before = debugfs(&image, "ls -p three/d");
    debugfs(&image, "set_inode_field three/d size 1084");
    repair(&image);
    assert_eq!(debugfs(&image, "ls -p three/d"), before);
}

/// A truncation of a file with inline data has no blocks to free.
#[test]
fn a_file_in_its_inode_is_not_truncated_as_a_map() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = inline(folder.path());
    let text = folder.path().join("text");
    std::fs::write(&text, [1u8, 0, 0, 0].repeat(10)).unwrap();
    debugfs(&image, &format!("write {} text", text.display()));
    let inode = field(&debugfs(&image, "stat text"), "Inode:");
    debugfs(&image, &format!("set_super_value last_orphan {inode}"));
    // An error besides the orphan list.
    debugfs(&image, "set_inode_field one links_count 9");
    let before = content_of(&image, "text");
    assert!(before.starts_with(&[1, 0, 0, 0].repeat(10)), "{before:?}");
    repair(&image);
    assert_eq!(content_of(&image, "text"), before);
}

#[test]
fn an_inline_directory_gets_its_parent_back() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = inline(folder.path());
    let before = debugfs(&image, "ls -p three/d");
    debugfs(&image, "set_inode_field three/d block[0] 0");
    let report = check(&FileDevice::open_read_only(&image).unwrap(), &Options::default()).unwrap();
    assert!(report.findings.iter().any(|finding| finding.code == Code::DOTDOT_MISSING), "as e2fsck says");
    repair(&image);
    assert_eq!(debugfs(&image, "ls -p three/d"), before);
}

/// e2fsck calls a special file illegal if it has the extents flag or the inline-data flag. The flag
/// is cleared, and the file stays.
#[test]
fn special_files_have_no_flags_of_maps() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let kinds = [("c 1 3", 0o020_644), ("b 8 1", 0o060_644), ("p", 0o010_644), ("p", 0o140_644)];
    for ((kind, mode), flag) in kinds.into_iter().flat_map(|kind| [(kind, "80000"), (kind, "10000000")]) {
        let image = inline(folder.path());
        debugfs(&image, &format!("mknod special {kind}"));
        debugfs(&image, &format!("set_inode_field special mode 0{mode:o}"));
        run("e2fsck", &["-fy", image.to_str().unwrap()]);
        e2fsck_clean(&image);
        let words = slot_at(&image, "special", 1024) + 0x28;
        let device = [u32_at(&image, words), u32_at(&image, words + 4)];
        debugfs(&image, &format!("set_inode_field special flags 0x{flag}"));
        let report = check(&FileDevice::open_read_only(&image).unwrap(), &Options::default()).unwrap();
        assert!(!report.is_clean(), "{kind} {flag}: as e2fsck says");
        repair(&image);
        assert_eq!([u32_at(&image, words), u32_at(&image, words + 4)], device, "{kind} {flag}");
        assert!(debugfs(&image, "stat special").contains("Flags: 0x0"), "{kind} {flag}");
    }
}

/// Without its header the map of the root is no extent tree, and with bigalloc it is no block map
/// either. So the root is made anew, and its directories get names in lost+found.
#[test]
fn a_root_without_a_map_is_made_anew_on_bigalloc() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = small::made(folder.path(), &["-t", "ext4", "-O", "bigalloc", "-C", "16384"], "32M");
    for word in 0..4 {
        debugfs(&image, &format!("set_inode_field <2> block[{word}] {}", 100 + word * 7));
    }
    repair(&image);
    let lost = small::lost_found(&image);
    assert!([12, 14].iter().all(|inode| lost.iter().any(|entry| entry.0 == *inode)), "{lost:?}");
}

/// The place of the descriptors does not tell blocks of 1 KiB from blocks of 2 KiB: with both, they
/// begin at byte 2048.
#[test]
fn a_wrong_block_size_does_not_empty_the_file_system() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options: [&[&str]; 4] =
        [&["-t", "ext4"], &["-t", "ext2"], &["-t", "ext4", "-g", "2048"], &["-t", "ext2", "-g", "2048"]];
    for options in options {
        let image = small::made(folder.path(), &[options, &["-b", "1024"]].concat(), "8M");
        let before = debugfs(&image, "ls -p /");
        let device = FileDevice::open(&image).unwrap();
        let mut bytes = [0; RawSuperblock::SIZE];
        device.read_at(PRIMARY_OFFSET, &mut bytes).unwrap();
        let mut sb = RawSuperblock::read_from_bytes(&bytes).unwrap();
        sb.s_log_block_size.set(1);
        Checksums::of(&sb).seal_superblock(&mut sb);
        device.write_at(PRIMARY_OFFSET, sb.as_bytes()).unwrap();
        drop(device);
        repair(&image);
        assert_eq!(debugfs(&image, "ls -p /"), before, "{options:?}");
    }
}

/// A repair removes the superblock's reference to a damaged journal device, so the next check does
/// not ask for it.
#[test]
fn a_file_system_forgets_its_damaged_journal_device() {
    if !require(&["root", "mke2fs", "debugfs", "e2fsck", "losetup"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for at in [2048, 2048 + 12] {
        let (image, journal) = (folder.path().join("image"), folder.path().join("journal"));
        mke2fs(&journal, &["-O", "journal_dev", "-b", "1024"], "8M");
        let device = LoopDevice::new(&journal);
        let place = format!("device={}", device.path());
        mke2fs(&image, &["-t", "ext4", "-b", "1024", "-J", &place], "16M");
        drop(device);
        write_at(&journal, at, &[0xFF, 0xFF, 0, 7]);
        let (device, log) = (FileDevice::open(&image).unwrap(), FileDevice::open(&journal).unwrap());
        let how = RepairOptions { now: NOW, ..RepairOptions::default() };
        let plan = plan_with_journal(&device, Some(&log), &how).unwrap();
        assert!(plan.is_complete(), "{at}: {:?}", plan.after);
        plan.apply_with_journal(&device, Some(&log)).unwrap();
        e2fsck_clean(&image);
        let report = check(&device, &Options::default()).unwrap();
        assert!(report.examined && report.is_clean(), "{:?}", report.findings);
    }
}

/// Without has_journal, Linux does not look at the fields that name a journal device. e2fsck asks
/// for the device.
#[test]
fn a_journal_device_without_a_journal_is_forgotten() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = small::made(folder.path(), &["-t", "ext4", "-O", "^has_journal"], "8M");
    debugfs(&image, "set_super_value journal_uuid 01234567-89ab-cdef-0123-456789abcdef");
    let device = FileDevice::open_read_only(&image).unwrap();
    let report = check(&device, &Options::default()).unwrap();
    assert!(report.examined && !report.is_clean(), "e2fsck -fn ends with 12");
    assert!(!blockyard_check::is_marked_clean(&device), "-p without -f would skip it");
    drop(device);
    repair(&image);
}
