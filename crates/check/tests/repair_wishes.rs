//! What the user asks for besides repairs: shared blocks are all copied, or the plan is refused. A
//! wish that finds nothing to do does not end the repair. What a repair did can be taken back as
//! long as nobody used the image since.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};

use blockyard_check::{Code, Error, RepairOptions, UndoError, Wish, plan, undo, undo_forced};
use blockyard_device::{BlockDevice, CrashPlan, FileDevice, MemoryDevice, OverlayDevice, RecorderDevice};
use blockyard_disk::Checksums;
use blockyard_disk::superblock::{FsState, PRIMARY_OFFSET, RawSuperblock};
use blockyard_testkit::{e2fsck_clean, mke2fs, require, run};
use zerocopy::{FromBytes, IntoBytes};

use support::small::{debugfs, made};

/// The present time for repairs, in seconds since 1970.
const NOW: u64 = 1_700_000_000;

fn how(wishes: &[Wish]) -> RepairOptions {
    let wishes = wishes.iter().copied().collect();
    RepairOptions { now: NOW, wishes, ..RepairOptions::default() }
}

/// An image on which two files have the same 3000 blocks of 1 KiB.
fn sharing(folder: &Path, size: &str) -> PathBuf {
    let content = folder.join("content");
    let bytes: Vec<u8> = (0..3_072_000u32).map(|n| (n % 251).to_le_bytes()[0]).collect();
    std::fs::write(&content, bytes).unwrap();
    let image = folder.join("image");
    mke2fs(&image, &["-t", "ext4", "-b", "1024", "-O", "^has_journal"], size);
    debugfs(&image, &format!("write {} one", content.display()));
    debugfs(&image, "copy_inode one <13>");
    for request in
        ["seti <13>", "link <13> two", "set_inode_field two links_count 1", "feature shared_blocks"]
    {
        debugfs(&image, request);
    }
    let device = FileDevice::open(&image).unwrap();
    plan(&device, &how(&[])).unwrap().apply(&device).unwrap();
    drop(device);
    image
}

fn content_of(image: &Path, name: &str) -> Vec<u8> {
    let copy = image.with_extension("copy");
    debugfs(image, &format!("dump {name} {}", copy.display()));
    std::fs::read(copy).unwrap()
}

/// Once, when there was no room for the copies, sound files lost their ends.
#[test]
fn blocks_are_unshared_only_where_every_copy_finds_room() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = sharing(folder.path(), "5M");
    let before = std::fs::read(&image).unwrap();
    let device = FileDevice::open(&image).unwrap();
    let error = plan(&device, &how(&[Wish::UnshareBlocks])).unwrap_err();
    let Error::NoRoomToUnshare { wanted, free } = error else { panic!("{error}") };
    assert!(wanted >= 3000 && free < 3000, "{wanted} of {free}");
    assert!(std::fs::read(&image).unwrap() == before, "a plan wrote to the image");

    let image = sharing(folder.path(), "8M");
    let device = FileDevice::open(&image).unwrap();
    let plan = plan(&device, &how(&[Wish::UnshareBlocks])).unwrap();
    assert!(plan.is_complete(), "{:?}", plan.after);
    plan.apply(&device).unwrap();
    e2fsck_clean(&image);
    let wanted = std::fs::read(folder.path().join("content")).unwrap();
    for name in ["one", "two"] {
        assert!(content_of(&image, name) == wanted, "{name}");
    }
}

#[test]
fn blocks_stay_shared_if_that_is_declined_or_nothing_is_shared() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = sharing(folder.path(), "8M");
    let device = FileDevice::open(&image).unwrap();
    let declined = [Code::SHARED_BLOCKS].into();
    let options = RepairOptions { declined, ..how(&[Wish::UnshareBlocks]) };
    assert!(plan(&device, &options).unwrap().is_empty());
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"], "8M");
    let device = FileDevice::open(&image).unwrap();
    assert!(plan(&device, &how(&[Wish::UnshareBlocks])).unwrap().is_empty());
}

/// Once, a wish that found nothing to do ended the repair before the bitmaps were compared.
#[test]
fn bitmaps_are_repaired_after_wishes_with_nothing_to_do() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for wishes in [
        &[Wish::BlockMapsToExtents][..],
        &[Wish::RebuildDirectories, Wish::BlockMapsToExtents],
        &[Wish::RebuildDirectories, Wish::BlockMapsToExtents, Wish::UnshareBlocks],
    ] {
        let image = made(folder.path(), &["-t", "ext4", "-b", "1024"], "8M");
        for request in ["setb 6000 5", "freei <20>", "seti <25>"] {
            debugfs(&image, request);
        }
        let device = FileDevice::open(&image).unwrap();
        let plan = plan(&device, &how(wishes)).unwrap();
        assert!(plan.is_complete(), "{wishes:?}: {:?}", plan.after);
        plan.apply(&device).unwrap();
        e2fsck_clean(&image);
    }
}

/// lost+found keeps its empty blocks, and a second run finds nothing to write anew.
#[test]
fn directories_are_written_anew_only_where_that_changes_something() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for options in [&["-t", "ext4", "-b", "1024"][..], &["-t", "ext2", "-b", "1024", "-O", "^dir_index"]] {
        let image = support::small::with_many(folder.path(), 200, options, "8M");
        for n in 0..60 {
            debugfs(&image, &format!("rmdir many/{n}"));
        }
        e2fsck_clean(&image);
        let size = |path: &str| {
            debugfs(&image, &format!("stat {path}")).split("Size: ").nth(1).unwrap()[..6].to_owned()
        };
        let before = size("lost+found");
        for run in 0..2 {
            let device = FileDevice::open(&image).unwrap();
            let plan = plan(&device, &how(&[Wish::RebuildDirectories])).unwrap();
            assert!(plan.is_complete(), "{:?}", plan.after);
            assert_eq!(plan.is_empty(), run == 1, "{options:?}, run {run}: {:?}", plan.actions);
            plan.apply(&device).unwrap();
            e2fsck_clean(&image);
        }
        assert_eq!(size("lost+found"), before);
    }
}

/// Exit codes of a repair with wishes: ours, and that of `e2fsck -fy` on a copy. Asserts that our
/// repair rewrites something, and leaves a clean image.
fn exits_with(image: &Path, wishes: &[Wish]) -> (u8, Option<i32>) {
    let theirs = image.with_extension("theirs");
    std::fs::copy(image, &theirs).unwrap();
    let options = [(Wish::RebuildDirectories, "-D"), (Wish::BlockMapsToExtents, "-Ebmap2extent")];
    let mut arguments = vec!["-fy"];
    arguments.extend(options.into_iter().filter(|(wish, _)| wishes.contains(wish)).map(|(_, option)| option));
    arguments.push(theirs.to_str().unwrap());
    let code = run("e2fsck", &arguments).status.code();
    let device = FileDevice::open(image).unwrap();
    let plan = plan(&device, &how(wishes)).unwrap();
    assert!(!plan.actions.is_empty(), "{wishes:?}: nothing is rewritten");
    plan.apply(&device).unwrap();
    e2fsck_clean(image);
    (plan.ending().exit_code(), code)
}

/// What `-D` and `-E bmap2extent` rewrite is no correction. Corrections beside it count.
#[test]
fn the_exit_code_counts_corrections_and_no_wishes() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (ext2, ext4) = (&["-t", "ext2", "-b", "1024"][..], &["-t", "ext4", "-b", "1024"][..]);
    let (directories, extents) = (Wish::RebuildDirectories, Wish::BlockMapsToExtents);
    for (options, damage, wishes, expected) in [
        (ext2, "rmdir many/7", &[directories][..], 0),
        (ext4, "rmdir many/7", &[directories], 0),
        (ext2, "rmdir many/7", &[extents], 0),
        (ext2, "rmdir many/7", &[directories, extents], 0),
        (ext2, "sif many/9 links_count 7", &[directories, extents], 1),
        (ext2, "setb 6000 5", &[directories], 1),
    ] {
        let image = support::small::with_many(folder.path(), 200, options, "8M");
        debugfs(&image, damage);
        let codes = exits_with(&image, wishes);
        assert_eq!(codes, (expected, Some(i32::from(expected))), "{damage} {wishes:?} {options:?}");
    }
}

/// Two equal names in different blocks are found only when the directory is written anew. One of
/// them gets a new name, which counts as a correction.
#[test]
fn the_exit_code_counts_a_name_that_changes_with_its_directory() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = support::small::with_many(folder.path(), 200, &["-t", "ext2", "-b", "1024"], "8M");
    let blocks = debugfs(&image, "blocks many");
    let blocks: Vec<u64> = blocks.split_whitespace().map(|block| block.parse().unwrap()).collect();
    let (first, last) = (blocks[0] << 10, blocks[blocks.len() - 1] << 10);
    assert!(last > first, "one block");
    // Length, type and bytes of the name behind `.` and `..` replace those of the first name in the
    // last block.
    let device = FileDevice::open(&image).unwrap();
    let mut name = [0; 6];
    device.read_at(first + 24 + 6, &mut name).unwrap();
    device.write_at(last + 6, &name).unwrap();
    drop(device);
    e2fsck_clean(&image);
    assert_eq!(exits_with(&image, &[Wish::RebuildDirectories]), (1, Some(1)), "{name:?}");
}

/// With blocks of 8 KiB or more, a block map reaches beyond the 2^32 - 1 blocks that extents can
/// map. A file with blocks out there keeps its map.
#[test]
fn a_file_too_long_for_extents_keeps_its_block_map() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    mke2fs(&image, &["-t", "ext2", "-b", "65536", "-N", "64"], "96M");
    let content = folder.path().join("content");
    std::fs::write(&content, [7; 100_000]).unwrap();
    debugfs(&image, &format!("write {} long", content.display()));
    debugfs(&image, &format!("write {} short", content.display()));
    let device = FileDevice::open(&image).unwrap();
    for (place, at, next) in [(1200u64, 100, 1201u32), (1201, 0, 1202), (1202, 0, 1203)] {
        device.write_at(place << 16, &[0; 65536]).unwrap();
        device.write_at((place << 16) + 4 * at, &next.to_le_bytes()).unwrap();
    }
    drop(device);
    let size = ((100u64 << 28) + (1 << 28) + (1 << 14) + 13) << 16;
    debugfs(&image, "set_inode_field long block[TIND] 1200");
    debugfs(&image, &format!("set_inode_field long size {size}"));
    support::small::repair(&image);
    let device = FileDevice::open(&image).unwrap();
    let plan = plan(&device, &how(&[Wish::BlockMapsToExtents])).unwrap();
    assert!(plan.is_complete(), "{:?}", plan.after);
    plan.apply(&device).unwrap();
    e2fsck_clean(&image);
    let has_extents = |name: &str| debugfs(&image, &format!("stat {name}")).contains("EXTENTS");
    assert_eq!(["long", "short"].map(has_extents), [false, true]);
}

/// Extent trees that `e2fsck -fy` makes smaller, and others that it leaves alone. After our repair
/// a tree has as many entries as after e2fsck's, and a second run finds nothing to do. Without the
/// wish nothing is done.
#[test]
fn extent_trees_are_packed_as_e2fsck_does() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let pieces = folder.path().join("pieces");
    let file = std::fs::File::create(&pieces).unwrap();
    for piece in 0..200 {
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 1024], piece * 2048).unwrap();
    }
    for (options, kept) in
        [("metadata_csum", 6), ("^metadata_csum", 4), ("^metadata_csum", 8), ("metadata_csum", 60)]
    {
        let image = folder.path().join("image");
        mke2fs(&image, &["-t", "ext4", "-b", "1024", "-O", options], "32M");
        debugfs(&image, &format!("write {} pieces", pieces.display()));
        debugfs(&image, &format!("punch pieces {kept}"));
        debugfs(&image, &format!("set_inode_field pieces size {}", kept * 1024));
        support::small::repair(&image);
        let theirs = folder.path().join("theirs");
        std::fs::copy(&image, &theirs).unwrap();
        let ended = run("e2fsck", &["-fy", theirs.to_str().unwrap()]);
        let device = FileDevice::open(&image).unwrap();
        assert!(plan(&device, &how(&[])).unwrap().is_empty(), "{kept} without the wish");
        for again in [false, true] {
            let plan = plan(&device, &how(&[Wish::PackExtentTrees])).unwrap();
            assert_eq!(plan.is_empty(), again || kept > 6, "{kept}: {:?}", plan.actions);
            assert_eq!(Some(i32::from(plan.ending().exit_code())), ended.status.code(), "{kept}");
            plan.apply(&device).unwrap();
        }
        e2fsck_clean(&image);
        let lines = |image: &Path| debugfs(image, "dump_extents pieces").lines().count();
        assert_eq!(lines(&image), lines(&theirs), "{kept}");
        assert!(content_of(&image, "pieces") == content_of(&theirs, "pieces"), "{kept}");
    }
}

/// Once, a single shared block made the repair remember every block of a large file.
#[test]
fn a_shared_block_of_a_large_file_costs_no_memory_for_the_rest() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    mke2fs(&image, &["-t", "ext4", "-b", "4096", "-O", "^has_journal", "-E", "lazy_itable_init=1"], "100G");
    for request in ["write /dev/null one", "fallocate one 0 24000000", "write /etc/passwd two"] {
        debugfs(&image, request);
    }
    debugfs(&image, "set_inode_field one size 98304000000");
    let said = debugfs(&image, "bmap one 5000000");
    let block = said.split_whitespace().next().unwrap();
    debugfs(&image, &format!("set_inode_field two block[5] {block}"));
    let device = FileDevice::open(&image).unwrap();
    let plan = plan(&device, &how(&[])).unwrap();
    assert!(plan.is_complete(), "{:?}", plan.after);
    let copied: Vec<_> = plan.actions.iter().filter(|action| action.code == Code::SHARED_BLOCKS).collect();
    assert!(copied.iter().any(|action| action.what.starts_with("1 shared blocks copied")), "{copied:?}");
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    let kibibytes: u64 = peak.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kibibytes < 250_000, "{peak}");
}

/// An image whose wrong link count was repaired, and the undo file of the repair.
fn repaired(folder: &Path) -> (PathBuf, PathBuf) {
    let image = made(folder, &["-t", "ext4", "-b", "1024"], "8M");
    debugfs(&image, "sif one links_count 9");
    let device = FileDevice::open(&image).unwrap();
    let path = folder.join("undo");
    let _ = std::fs::remove_file(&path);
    let plan = plan(&device, &how(&[])).unwrap();
    plan.save_undo(&device, &path).unwrap();
    plan.apply(&device).unwrap();
    (image, path)
}

#[test]
fn a_repair_is_not_taken_back_from_an_image_that_was_used_since_or_is_another() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (image, path) = repaired(folder.path());
    let used = folder.path().join("used");
    std::fs::copy(&image, &used).unwrap();
    debugfs(&used, "mkdir /four");
    let fresh = folder.path().join("fresh");
    mke2fs(&fresh, &["-t", "ext4", "-b", "1024"], "8M");
    for other in [&used, &fresh] {
        let before = std::fs::read(other).unwrap();
        let device = FileDevice::open(other).unwrap();
        let error = undo(&device, &path).unwrap_err();
        assert!(matches!(error, UndoError::Changed), "{error}");
        assert!(std::fs::read(other).unwrap() == before);
        undo_forced(&device, &path).unwrap();
        assert!(std::fs::read(other).unwrap() != before);
    }
    // A copy that was changed, but not in its superblock.
    let [old, sibling] = ["old", "sibling"].map(|name| folder.path().join(name));
    let repaired = std::fs::read(&image).unwrap();
    for copy in [&old, &sibling] {
        std::fs::write(copy, &repaired).unwrap();
    }
    undo(&FileDevice::open(&old).unwrap(), &path).unwrap();
    let before = std::fs::read(&old).unwrap();
    let written = (2048..before.len()).find(|at| before[*at] != repaired[*at]).unwrap();
    let device = FileDevice::open(&sibling).unwrap();
    let third = (0..=255).find(|byte| ![before[written], repaired[written]].contains(byte)).unwrap();
    device.write_at(u64::try_from(written).unwrap(), &[third]).unwrap();
    let error = undo(&device, &path).unwrap_err();
    assert!(matches!(error, UndoError::Changed), "{error}");
    // A repair can be taken back twice. That is how an interrupted undo is finished.
    let device = FileDevice::open(&image).unwrap();
    undo(&device, &path).unwrap();
    undo(&device, &path).unwrap();
}

/// Whatever a power cut leaves of a repair, an undo restores the image to the byte.
#[test]
fn a_cut_repair_can_be_taken_back() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"], "8M");
    for request in ["sif one links_count 9", "setb 6000 5", "clri three"] {
        debugfs(&image, request);
    }
    let damaged = MemoryDevice::load(&image).unwrap();
    let content = |device: &MemoryDevice| {
        let mut bytes = vec![0; usize::try_from(device.size()).unwrap()];
        device.read_at(0, &mut bytes).unwrap();
        bytes
    };
    let recorder = RecorderDevice::new(damaged.duplicate());
    let plan = plan(&recorder, &how(&[])).unwrap();
    let path = folder.path().join("undo");
    plan.save_undo(&recorder, &path).unwrap();
    plan.apply(&recorder).unwrap();
    let log = recorder.log();
    let mut all = 0;
    for state in log.crash_states(&CrashPlan::default()) {
        let device = damaged.duplicate();
        state.build(&log, &device).unwrap();
        undo(&device, &path).unwrap_or_else(|error| panic!("{state}: {error}"));
        assert!(content(&device) == content(&damaged), "{state}");
        all += 1;
    }
    assert!(all > 10, "{all} states are tried");
}

#[test]
fn an_undo_file_that_cannot_be_written_whole_is_removed() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"], "8M");
    debugfs(&image, "sif one links_count 9");
    let device = FileDevice::open(&image).unwrap();
    let plan = plan(&device, &how(&[])).unwrap();
    // Saving fails: this device is too short to read the old content from.
    let short = MemoryDevice::new(64 << 10);
    let path = folder.path().join("undo");
    assert!(plan.save_undo(&short, &path).is_err());
    assert!(!path.exists());
    plan.save_undo(&device, &path).unwrap();
}

/// The redo log of a cut repair is changed so that no repair can have written it. It does not count
/// then, although every checksum is right.
#[test]
fn a_log_on_a_clean_file_system_is_none() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"], "8M");
    debugfs(&image, "sif one links_count 9");
    let damaged = MemoryDevice::load(&image).unwrap();
    let recorder = RecorderDevice::new(damaged.duplicate());
    plan(&recorder, &how(&[])).unwrap().apply(&recorder).unwrap();
    let log = recorder.log();
    let superblock = |device: &MemoryDevice| {
        let mut bytes = [0; RawSuperblock::SIZE];
        device.read_at(PRIMARY_OFFSET, &mut bytes).unwrap();
        RawSuperblock::read_from_bytes(&bytes).unwrap()
    };
    // The first write of the superblock names the log, in the last three of its reserved words.
    let named = (0..=log.events().len()).find_map(|count| {
        let device = damaged.duplicate();
        log.apply_prefix(count, &device).unwrap();
        superblock(&device).s_reserved[91..94].iter().any(|word| word.get() != 0).then_some(device)
    });
    let named = named.expect("the repair keeps a log");
    let has_log = |device: &MemoryDevice| {
        let overlay = OverlayDevice::new(device);
        let plan = plan(&overlay, &how(&[])).unwrap();
        plan.actions.is_empty() && !plan.is_empty()
    };
    assert!(has_log(&named), "the repair is to be finished, and nothing else to be done");
    // The superblock as a forger would write it, with every checksum right.
    let mut sb = superblock(&named);
    let old_sum = blockyard_disk::checksum::crc32c_raw(!0, &sb.as_bytes()[..RawSuperblock::SIZE - 4]);
    sb.set_state(sb.state() | FsState::VALID);
    Checksums::of(&sb).seal_superblock(&mut sb);
    let new_sum = blockyard_disk::checksum::crc32c_raw(!0, &sb.as_bytes()[..RawSuperblock::SIZE - 4]);
    let at = u64::from(sb.s_reserved[92].get()) << 10;
    let mut index = [0; 1024];
    named.read_at(at, &mut index).unwrap();
    assert_eq!(index[24..28], old_sum.to_le_bytes());
    let forge = |change: &dyn Fn(&mut [u8; 1024]), sb: Option<&RawSuperblock>| {
        let device = named.duplicate();
        let mut index = index;
        change(&mut index);
        let sum = blockyard_disk::checksum::crc32c_raw(!0, &index[..1020]);
        index[1020..].copy_from_slice(&sum.to_le_bytes());
        device.write_at(at, &index).unwrap();
        if let Some(sb) = sb {
            device.write_at(PRIMARY_OFFSET, sb.as_bytes()).unwrap();
        }
        has_log(&device)
    };
    assert!(forge(&|_| {}, None), "the checksums of the forger are right");
    assert!(
        !forge(&|index| index[24..28].copy_from_slice(&new_sum.to_le_bytes()), Some(&sb)),
        "marked clean"
    );
    // Entries of 20 bytes follow a head of 36.
    assert!(!forge(&|index| index.copy_within(36..56, 56), None), "a block twice");
}
