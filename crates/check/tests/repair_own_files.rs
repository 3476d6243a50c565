//! Damages of journals, the resize inode and the list of bad blocks that repairs handled badly in
//! runs of `oracle_repair.rs`, one for each test.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;

use blockyard_check::{Code, Cost, Ending, Options, Preening, RepairOptions, check, is_marked_clean, plan};
use blockyard_device::{BlockDevice, FileDevice};
use blockyard_disk::jbd2::{JournalFeatures, JournalIncompat, RawJournalSuperblock};
use blockyard_testkit::{mke2fs, require, run};
use support::small::{debugfs, lost_found, made_32m as made, repair, slot_at};
use zerocopy::{FromBytes, IntoBytes};

/// A new journal is as long as mke2fs would make it, as with e2fsck.
#[test]
fn a_new_journal_is_as_long_as_by_mke2fs() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (size, blocks) in [("32M", 4096), ("4G", 16_384)] {
        let image = folder.path().join("image");
        mke2fs(&image, &["-t", "ext4", "-b", if size == "32M" { "1024" } else { "4096" }], size);
        debugfs(&image, "clri <8>");
        repair(&image);
        let device = std::sync::Arc::new(FileDevice::open_read_only(&image).unwrap());
        let reader = blockyard_inspect::reader::Reader::open(device).unwrap();
        let journal = reader.inode(blockyard_disk::InodeNr::JOURNAL).unwrap();
        assert_eq!(journal.size() >> reader.superblock().geometry().block_bits(), blocks, "{size}");
    }
}

/// Garbage in the bad-blocks inode, with the extents flag but no extent tree: it is not a list.
#[test]
fn garbage_is_no_list_of_bad_blocks() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"]);
    for request in ["uid 7", "flags 0x80000", "block[0] 30000"] {
        debugfs(&image, &format!("set_inode_field <1> {request}"));
    }
    repair(&image);
    assert!(debugfs(&image, "testb 30000").contains("not in use"));
}

#[test]
fn a_journal_device_beside_a_journal_inode_is_none() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"]);
    debugfs(&image, "set_super_value journal_uuid 00000000-0002-0000-0000-000000000000");
    repair(&image);
    assert!(debugfs(&image, "ls -p one").contains("/two/"), "its files are there");
    assert!(debugfs(&image, "features").contains("has_journal"), "its journal is there");
}

#[test]
fn a_bitmap_on_the_list_of_bad_blocks_is_an_error() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext2", "-b", "1024"]);
    let stats = debugfs(&image, "stats");
    let (_, place) = stats.split_once("block bitmap at ").unwrap();
    let place: String = place.chars().take_while(char::is_ascii_digit).collect();
    for field in [format!("block[0] {place}"), "blocks 2".to_owned()] {
        debugfs(&image, &format!("set_inode_field <1> {field}"));
    }
    let report = check(&FileDevice::open_read_only(&image).unwrap(), &Options::default()).unwrap();
    let codes: Vec<String> = report.findings.iter().map(|finding| finding.code.to_string()).collect();
    assert!(codes.contains(&"0x01000a".to_owned()), "{codes:?}");
    repair(&image);
}

/// e2fsck does not accept a journal whose flags say that it is encrypted or inline. A repair
/// restores the inode from the copy in the superblock, so the log stays in its blocks.
#[test]
fn a_journal_that_claims_to_be_encrypted_or_inline_is_made_again() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (options, flags) in [
        (&["-t", "ext4", "-J", "size=6"][..], "0x80800"),
        (&["-t", "ext4", "-J", "size=6", "-O", "encrypt"], "0x80800"),
        (&["-t", "ext4", "-J", "size=6"], "0xffffffff"),
        (&["-t", "ext3", "-J", "size=6"], "0x800"),
        (&["-t", "ext3", "-J", "size=6"], "0x10000000"),
    ] {
        let image = made(folder.path(), options);
        let log = debugfs(&image, "blocks <8>");
        debugfs(&image, &format!("sif <8> flags {flags}"));
        let found = check(&FileDevice::open_read_only(&image).unwrap(), &Options::default()).unwrap();
        let codes: Vec<Code> = found.findings.iter().map(|finding| finding.code).collect();
        assert!(codes.contains(&Code::JOURNAL_INODE), "{options:?} {flags}: {codes:?}");
        repair(&image);
        assert_eq!(debugfs(&image, "blocks <8>"), log, "{options:?} {flags}");
    }
}

/// The superblock names a file as the journal, but the reserved inode holds the log. The file
/// stays, and the superblock names the reserved inode again.
#[test]
fn a_file_that_is_named_as_the_journal_stays() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let content = folder.path().join("content");
    std::fs::write(&content, vec![0x5A; 1 << 20]).unwrap();
    for options in [&["-t", "ext3"][..], &["-t", "ext4", "-O", "^metadata_csum"], &["-t", "ext4"]] {
        let image = made(folder.path(), options);
        debugfs(&image, &format!("write {} file", content.display()));
        let stat = debugfs(&image, "stat file");
        let inode = stat.split("Inode:").nth(1).unwrap().split_whitespace().next().unwrap();
        debugfs(&image, &format!("set_super_value journal_inum {inode}"));
        repair(&image);
        let kept = folder.path().join("kept");
        debugfs(&image, &format!("dump file {}", kept.display()));
        assert!(std::fs::read(&kept).unwrap() == std::fs::read(&content).unwrap(), "{options:?}");
        assert!(debugfs(&image, "stats").contains("Journal inode:            8"), "{options:?}");
    }
}

/// The map of the journal's inode leads to a file. A new journal superblock in that place would
/// destroy the file's first block. The superblock has a copy of the map, which leads to the log.
#[test]
fn a_journal_that_leads_to_a_file_is_found_by_the_copy() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let content = folder.path().join("content");
    std::fs::write(&content, vec![0x5A; 1 << 20]).unwrap();
    // Where the first block is named: in a block map, and in the first extent.
    for (options, field) in [
        (&["-t", "ext3", "-J", "size=6"][..], "block[0]"),
        (&["-t", "ext4", "-J", "size=6", "-O", "^metadata_csum"], "block[5]"),
        (&["-t", "ext4", "-J", "size=6"], "block[5]"),
    ] {
        let image = made(folder.path(), options);
        debugfs(&image, &format!("write {} file", content.display()));
        let log = debugfs(&image, "blocks <8>");
        let blocks = debugfs(&image, "blocks file");
        let first = blocks.split_whitespace().next().unwrap();
        debugfs(&image, &format!("sif <8> {field} {first}"));
        assert!(debugfs(&image, "blocks <8>").starts_with(&format!("{first} ")), "{options:?}");
        repair(&image);
        let kept = folder.path().join("kept");
        debugfs(&image, &format!("dump file {}", kept.display()));
        assert!(std::fs::read(&kept).unwrap() == std::fs::read(&content).unwrap(), "{options:?}");
        assert_eq!(debugfs(&image, "blocks <8>"), log, "{options:?}");
    }
}

/// A file claims the double-indirect block of the resize inode. That block stays in the resize
/// inode, and the file no longer has it.
#[test]
fn the_resize_inode_keeps_its_list() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let content = folder.path().join("content");
    std::fs::write(&content, [b'c'; 3072]).unwrap();
    let image = made(folder.path(), &["-t", "ext3", "-b", "1024"]);
    debugfs(&image, &format!("write {} file", content.display()));
    let listed = debugfs(&image, "stat <7>");
    let list = listed.split("(DIND):").nth(1).unwrap().split([',', '\n']).next().unwrap();
    debugfs(&image, &format!("set_inode_field file block[1] {list}"));
    repair(&image);
    assert!(debugfs(&image, "stat <7>").contains(&format!("(DIND):{list}")), "it stays where it was");
    assert!(!debugfs(&image, "blocks file").split_whitespace().any(|block| block == list));
    let kept = folder.path().join("kept");
    debugfs(&image, &format!("dump file {}", kept.display()));
    assert_eq!(std::fs::read(kept).unwrap().len(), 3072);
}

/// A copy of the journal's inode is in the slot of a file, and no checksum shows that. The log does
/// not become the file's content.
#[test]
fn a_copy_of_the_journal_inode_is_no_file() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let content = folder.path().join("content");
    std::fs::write(&content, [b'c'; 100]).unwrap();
    for kind in [&["-t", "ext3"][..], &["-t", "ext4", "-O", "^metadata_csum"]] {
        let image = made(folder.path(), &[kind, &["-b", "1024"]].concat());
        debugfs(&image, &format!("write {} file", content.display()));
        let (journal, file) = (slot_at(&image, "<8>", 1024), slot_at(&image, "file", 1024));
        let device = FileDevice::open(&image).unwrap();
        let mut slot = [0; 128];
        device.read_at(journal, &mut slot).unwrap();
        device.write_at(file, &slot).unwrap();
        drop(device);
        repair(&image);
        assert!(!debugfs(&image, "ls -p").contains("/file/"), "{kind:?}: the log has no other name");
        let found = lost_found(&image);
        assert!(!found.iter().any(|entry| entry.1.starts_with('#')), "{kind:?}: {found:?}");
    }
}

/// The byte offset of the journal's superblock, and what it says.
fn journal_of(image: &Path) -> (u64, RawJournalSuperblock) {
    let at = debugfs(image, "bmap <8> 0").trim().parse::<u64>().unwrap() << 10;
    let mut bytes = vec![0; RawJournalSuperblock::SIZE];
    FileDevice::open_read_only(image).unwrap().read_at(at, &mut bytes).unwrap();
    (at, RawJournalSuperblock::read_from_bytes(&bytes).unwrap())
}

/// Writes a log of three transactions for one block each, from block 9000 on.
fn write_log(folder: &Path, image: &Path) {
    let (commands, data) = (folder.join("commands"), folder.join("data"));
    std::fs::write(&data, [7; 1024]).unwrap();
    let blocks = (9000..9003).map(|block| format!("jw -b {block} {}\n", data.display()));
    std::fs::write(&commands, format!("jo -c\n{}jc\n", blocks.collect::<String>())).unwrap();
    run("debugfs", &["-w", "-f", commands.to_str().unwrap(), image.to_str().unwrap()]);
}

/// Once, files that were synchronised with fast commits were lost: `-p` and `-y` discarded the log.
#[test]
fn fast_commits_are_not_discarded() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"]);
    write_log(folder.path(), &image);
    let (at, mut journal) = journal_of(&image);
    let device = FileDevice::open(&image).unwrap();
    let features = journal.features();
    let incompat = features.incompat | JournalIncompat::FAST_COMMIT;
    journal.set_features(JournalFeatures { incompat, ..features });
    journal.seal();
    device.write_at(at, journal.as_bytes()).unwrap();
    // A fast-commit record of the transaction after the last one, at the start of the area for fast
    // commits.
    let area = at + (u64::from(journal.s_maxlen.get() - journal.fast_commit_area()) << 10);
    device.write_at(area, &[9, 0, 8, 0, 0, 0, 0, 0, 4, 0, 0, 0]).unwrap();
    let before = std::fs::read(&image).unwrap();
    let refused = plan(&device, &RepairOptions::default()).unwrap();
    let Preening::Refuses(finding) = refused.preening() else { panic!("{:?}", refused.preening()) };
    assert_eq!(finding.code, Code::LOG_UNSUPPORTED);
    assert!(finding.detail.contains("mount it with Linux or run e2fsck"), "{}", finding.detail);
    assert_eq!((refused.preened_ending(), refused.ending()), (Ending::Uncorrected, Ending::Unusable));
    refused.apply(&device).unwrap();
    assert!(std::fs::read(&image).unwrap() == before, "nothing is written");
    // If the superblock does not ask for recovery, Linux discards such a log. So does the repair,
    // which says so.
    debugfs(&image, "feature ^needs_recovery");
    let discarded = plan(&device, &RepairOptions::default()).unwrap();
    let action = discarded.actions.iter().find(|action| action.code == Code::LOG_NOT_EMPTY).unwrap();
    assert!(action.what.contains("fast commits") && action.cost == Cost::Doubtful, "{action:?}");
}

/// Once, the new, empty log began with transaction 1. After the next crash, old transactions that
/// followed a new one in the ring were replayed.
#[test]
fn an_emptied_journal_begins_after_the_transactions_in_it() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"]);
    write_log(folder.path(), &image);
    let (at, _) = journal_of(&image);
    FileDevice::open(&image).unwrap().write_at(at, &[0; 1024]).unwrap();
    repair(&image);
    let journal = journal_of(&image).1;
    assert_eq!((journal.s_start.get(), journal.s_sequence.get()), (0, 4));
}

/// Once, the whole log was discarded because the copy of the superblock in it was corrupt.
#[test]
fn a_corrupt_superblock_in_the_log_costs_nothing_else() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), &["-t", "ext4", "-b", "1024"]);
    let (commands, data, zeros) =
        (folder.path().join("commands"), folder.path().join("data"), folder.path().join("zeros"));
    std::fs::write(&data, [7; 1024]).unwrap();
    std::fs::write(&zeros, [0; 1024]).unwrap();
    let text = format!("jo -c\njw -b 1 {}\njw -b 9000 {}\njc\n", zeros.display(), data.display());
    std::fs::write(&commands, text).unwrap();
    run("debugfs", &["-w", "-f", commands.to_str().unwrap(), image.to_str().unwrap()]);
    repair(&image);
    let mut block = [0; 1024];
    let device = FileDevice::open(&image).unwrap();
    device.read_at(9000 << 10, &mut block).unwrap();
    assert_eq!((block[0], is_marked_clean(&device)), (7, true));
}
