//! External journals: a check replays a dirty one in memory, and a repair replays it on the device.
//! If the journal is missing or damaged, or belongs to another file system, the check ends with the
//! exit code of e2fsck.
//!
//! 60 changed fields of the journal device by default, 1,000 with `BLOCKYARD_FULL=1`; `MUTATIONS=n`
//! sets another number.

#![allow(clippy::unwrap_used, clippy::as_conversions)]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use blockyard_check::{
    Code, Error, Options, RepairOptions, Report, check, check_with_journal, plan, plan_with_journal, undo,
};
use blockyard_device::FileDevice;
use blockyard_disk::Checksums;
use blockyard_disk::jbd2::RawJournalSuperblock;
use blockyard_disk::superblock::RawSuperblock;
use blockyard_testkit::crash::{CrashImage, Stop};
use blockyard_testkit::mutate::other_value;
use blockyard_testkit::{LoopDevice, e2fsck_bounded_with, full_matrix, mke2fs, require, run, seed};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use zerocopy::{FromBytes, IntoBytes};

/// A file system and its journal.
struct Pair {
    image: PathBuf,
    journal: PathBuf,
    block_size: u64,
}

impl Pair {
    fn make(directory: &Path, name: &str, block_size: &str) -> Self {
        let (image, journal) = (directory.join(name), directory.join(format!("{name}-journal")));
        mke2fs(&journal, &["-O", "journal_dev", "-b", block_size], "8M");
        let device = LoopDevice::new(&journal);
        let place = format!("device={}", device.path());
        mke2fs(&image, &["-t", "ext4", "-b", block_size, "-J", &place], "32M");
        Self { image, journal, block_size: block_size.parse().unwrap() }
    }

    fn make_dirty(&self, stop: Stop, seed: u64) {
        CrashImage {
            image: &self.image,
            journal: Some(&self.journal),
            options: "noinit_itable",
            seed,
            operations: 300,
            stop,
            orphans: false,
        }
        .make_dirty();
    }

    fn check_with(&self, journal: &Path) -> Result<Report, Error> {
        let image = FileDevice::open_read_only(&self.image).unwrap();
        let journal = FileDevice::open_read_only(journal).unwrap();
        check_with_journal(&image, &journal, &Options { threads: Some(2), ..Options::default() })
    }

    fn e2fsck_with(&self, journal: &Path) -> (Option<i32>, String) {
        let verdict = e2fsck_bounded_with(&self.image, &["-j", journal.to_str().unwrap()]);
        (verdict.code, verdict.text)
    }
}

/// Whether e2fsck ends with the same code. Code 12 of e2fsck (it found errors and gave up) equals
/// any of our codes but 0.
fn same(report: &Result<Report, Error>, theirs: Option<i32>) -> bool {
    code(report) == theirs || theirs == Some(12) && code(report) != Some(0)
}

/// The exit code of `blockyard check -n`.
fn code(report: &Result<Report, Error>) -> Option<i32> {
    Some(match report {
        Ok(report) if report.examined => {
            if report.is_clean() {
                0
            } else {
                4
            }
        }
        _ => 8,
    })
}

fn has(report: &Result<Report, Error>, code: Code) -> bool {
    report.as_ref().is_ok_and(|report| report.findings.iter().any(|finding| finding.code == code))
}

#[test]
fn a_journal_device_is_asked_for_and_compared() {
    if !require(&["root", "mke2fs", "e2fsck", "losetup", "prlimit"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for block_size in ["1024", "4096"] {
        let pair = Pair::make(directory.path(), "one", block_size);
        let other = Pair::make(directory.path(), "other", block_size);
        let (right, wrong) = (pair.check_with(&pair.journal), pair.check_with(&other.journal));
        let none = pair.check_with(&other.image);
        assert_eq!(code(&right), Some(0), "{right:?}");
        assert!(same(&right, pair.e2fsck_with(&pair.journal).0), "right");
        assert!(has(&wrong, Code::EXTERNAL_JOURNAL_OTHER), "{wrong:?}");
        assert!(same(&wrong, pair.e2fsck_with(&other.journal).0), "wrong");
        assert!(has(&none, Code::EXTERNAL_JOURNAL_BAD), "{none:?}");
        assert!(same(&none, pair.e2fsck_with(&other.image).0), "none");
        let image = FileDevice::open_read_only(&pair.image).unwrap();
        let missing = check(&image, &Options::default());
        assert!(has(&missing, Code::EXTERNAL_JOURNAL), "{missing:?}");
        assert!(same(&missing, e2fsck_bounded_with(&pair.image, &[]).code), "missing");
    }
}

#[test]
fn a_dirty_journal_device_is_replayed_in_memory() {
    if !require(&["root", "mke2fs", "e2fsck", "losetup", "perl", "prlimit"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let seed = seed(6);
    for (n, (block_size, stop)) in [("1024", Stop::CutAfterCommit), ("4096", Stop::Copy)].iter().enumerate() {
        let pair = Pair::make(directory.path(), "dirty", block_size);
        pair.make_dirty(*stop, seed + n as u64);
        let before = (fs::read(&pair.image).unwrap(), fs::read(&pair.journal).unwrap());
        let report = pair.check_with(&pair.journal);
        assert!(has(&report, Code::JOURNAL_REPLAYED) && code(&report) == Some(0), "{report:?}");
        assert!(before == (fs::read(&pair.image).unwrap(), fs::read(&pair.journal).unwrap()), "written");
        let image = FileDevice::open_read_only(&pair.image).unwrap();
        assert_ne!(code(&check(&image, &Options::default())), Some(0), "clean without its journal");
        let (image, journal) = (pair.image.to_str().unwrap(), pair.journal.to_str().unwrap());
        let replayed = run("e2fsck", &["-y", "-E", "journal_only", "-j", journal, image]);
        assert!(replayed.status.code().unwrap() <= 1, "{replayed:?}");
        assert_eq!(pair.e2fsck_with(&pair.journal).0, Some(0));
    }
}

/// Repairs a pair, which empties the journal, and saves what is overwritten; returns whether the
/// pair is clean then.
fn repair(pair: &Pair, undo_files: &[PathBuf; 2]) -> bool {
    let image = FileDevice::open(&pair.image).unwrap();
    let journal = FileDevice::open(&pair.journal).unwrap();
    let options = RepairOptions { now: 1_700_000_000, ..RepairOptions::default() };
    let plan = plan_with_journal(&image, Some(&journal), &options).unwrap();
    plan.save_undo(&image, &undo_files[0]).unwrap();
    assert!(plan.save_undo_of_journal(&journal, &undo_files[1]).unwrap(), "the journal is emptied");
    plan.apply_with_journal(&image, Some(&journal)).unwrap();
    plan.is_complete()
}

#[test]
fn a_repair_replays_a_journal_device_and_can_be_taken_back() {
    if !require(&["root", "mke2fs", "e2fsck", "debugfs", "losetup", "perl", "prlimit"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let undo_files = ["undo", "undo.journal"].map(|name| directory.path().join(name));
    // A dirty journal in three states: as it is, without the superblock's request for a replay, and
    // with other damage.
    let changes = ["", "feature ^needs_recovery", "set_inode_field / links_count 99"];
    for (change, block_size) in changes.into_iter().zip(["1024", "4096", "1024"]) {
        // A new name each time: the kernel may still hold the previous image for a moment.
        let pair = Pair::make(directory.path(), &format!("dirty-{}", change.len()), block_size);
        pair.make_dirty(Stop::CutAfterCommit, seed(8));
        run("debugfs", &["-w", "-R", change, pair.image.to_str().unwrap()]);
        let before = (fs::read(&pair.image).unwrap(), fs::read(&pair.journal).unwrap());
        assert!(repair(&pair, &undo_files), "{change}: incomplete");
        assert_eq!(pair.e2fsck_with(&pair.journal).0, Some(0), "{change}");
        let report = pair.check_with(&pair.journal);
        assert!(code(&report) == Some(0) && !has(&report, Code::JOURNAL_REPLAYED), "{change}: {report:?}");
        for (file, kept) in [&pair.image, &pair.journal].into_iter().zip(&undo_files) {
            undo(&FileDevice::open(file).unwrap(), kept).unwrap();
            fs::remove_file(kept).unwrap();
        }
        let after = (fs::read(&pair.image).unwrap(), fs::read(&pair.journal).unwrap());
        assert!(before == after, "{change}: not taken back to the byte");
    }
}

/// The file system is sound, but not marked as clean. A repair sets the mark and leaves the journal
/// device as it is.
#[test]
fn the_mark_alone_is_set_beside_a_journal_device() {
    if !require(&["root", "mke2fs", "e2fsck", "debugfs", "losetup", "prlimit"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for block_size in ["1024", "4096"] {
        let pair = Pair::make(directory.path(), &format!("mark-{block_size}"), block_size);
        run("debugfs", &["-w", "-R", "ssv state 0", pair.image.to_str().unwrap()]);
        let before = (fs::read(&pair.image).unwrap(), fs::read(&pair.journal).unwrap());
        let undo_file = directory.path().join(format!("undo-{block_size}"));
        {
            let image = FileDevice::open(&pair.image).unwrap();
            let journal = FileDevice::open(&pair.journal).unwrap();
            let plan = plan_with_journal(&image, Some(&journal), &RepairOptions::default()).unwrap();
            assert!(plan.actions.is_empty() && plan.is_complete(), "{:?}", plan.actions);
            plan.save_undo(&image, &undo_file).unwrap();
            plan.apply_with_journal(&image, Some(&journal)).unwrap();
        }
        let sb = RawSuperblock::read_from_bytes(&fs::read(&pair.image).unwrap()[1024..2048]).unwrap();
        assert_eq!(sb.s_state.get(), 1, "{block_size}: not marked as clean");
        assert_eq!(pair.e2fsck_with(&pair.journal).0, Some(0), "{block_size}");
        assert!(before.1 == fs::read(&pair.journal).unwrap(), "{block_size}: the journal is changed");
        undo(&FileDevice::open(&pair.image).unwrap(), &undo_file).unwrap();
        assert!(before.0 == fs::read(&pair.image).unwrap(), "{block_size}: not taken back to the byte");
    }
}

/// The log begins outside its journal device, and the superblock asks for no replay. One repair
/// empties the log, and then both checkers call the file system clean.
#[test]
fn a_log_that_begins_outside_its_device_is_emptied() {
    if !require(&["root", "mke2fs", "e2fsck", "losetup", "prlimit"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for block_size in ["1024", "4096"] {
        let pair = Pair::make(directory.path(), &format!("outside-{block_size}"), block_size);
        let mut head = fs::read(&pair.journal).unwrap()[..16384].to_vec();
        let at = if block_size == "1024" { 2048 } else { 4096 };
        head[at + 28..at + 32].copy_from_slice(&[0xFF, 0xEE, 0xDD, 0xCC]);
        reseal(&pair, &mut head, false);
        fs::File::options().write(true).open(&pair.journal).unwrap().write_all_at(&head, 0).unwrap();
        assert!(has(&pair.check_with(&pair.journal), Code::LOG_NOT_EMPTY), "{block_size}");
        let undo_files = ["undo", "undo.journal"].map(|name| directory.path().join(name));
        assert!(repair(&pair, &undo_files), "{block_size}");
        let report = pair.check_with(&pair.journal);
        assert!(code(&report) == Some(0) && !has(&report, Code::LOG_NOT_EMPTY), "{report:?}");
        assert_eq!(pair.e2fsck_with(&pair.journal).0, Some(0), "{block_size}");
        undo_files.iter().for_each(|file| fs::remove_file(file).unwrap());
    }
}

#[test]
fn nothing_is_repaired_without_the_journal_device() {
    if !require(&["root", "mke2fs", "debugfs", "losetup"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let pair = Pair::make(directory.path(), "one", "1024");
    run("debugfs", &["-w", "-R", "set_inode_field / links_count 99", pair.image.to_str().unwrap()]);
    let image = FileDevice::open(&pair.image).unwrap();
    let plan = plan(&image, &RepairOptions::default()).unwrap();
    assert!(plan.is_empty() && plan.ending().exit_code() == 8, "{:?}", plan.actions);
    run("debugfs", &["-w", "-R", "set_inode_field / links_count 3", pair.image.to_str().unwrap()]);
    let journal = FileDevice::open(&pair.journal).unwrap();
    let plan = plan_with_journal(&image, Some(&journal), &RepairOptions::default()).unwrap();
    let applied = plan.apply_with_journal(&image, Some(&journal)).unwrap();
    assert_eq!((plan.ending().exit_code(), applied.blocks), (0, 0));
}

/// The fields that are changed in the two superblocks of a journal device: name, byte offset, size
/// in bytes, and whether the field is in the first superblock.
fn fields(pair: &Pair) -> Vec<(&'static str, u64, usize, bool)> {
    let journal_superblock = if pair.block_size == 1024 { 2048 } else { pair.block_size };
    let small = |size: usize| size <= 16;
    let head = RawSuperblock::FIELDS.iter().filter(|field| small(field.size));
    let log =
        RawJournalSuperblock::FIELDS.iter().filter(|field| small(field.size) && field.name != "s_errno");
    let head = head.map(|field| (field.name, 1024 + field.offset as u64, field.size, true));
    let log = log.map(|field| (field.name, journal_superblock + field.offset as u64, field.size, false));
    let users =
        [("s_users", journal_superblock + 0x100, 16, false), ("h_magic", journal_superblock, 4, false)];
    head.chain(log).chain(users).collect()
}

/// Corrects the checksum of one of the superblocks.
fn reseal(pair: &Pair, bytes: &mut [u8], is_head: bool) {
    if is_head {
        let mut raw = RawSuperblock::read_from_bytes(&bytes[1024..2048]).unwrap();
        Checksums::of(&raw).seal_superblock(&mut raw);
        bytes[1024..2048].copy_from_slice(raw.as_bytes());
    } else {
        let at = if pair.block_size == 1024 { 2048 } else { pair.block_size as usize };
        let mut raw = RawJournalSuperblock::read_from_bytes(&bytes[at..at + 1024]).unwrap();
        raw.seal();
        bytes[at..at + 1024].copy_from_slice(raw.as_bytes());
    }
}

#[test]
fn a_damaged_journal_device_is_judged_as_e2fsck_does() {
    if !require(&["root", "mke2fs", "e2fsck", "losetup", "prlimit"]) {
        return;
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed(7));
    let asked = std::env::var("MUTATIONS").ok().and_then(|text| text.parse().ok());
    let wanted: usize = asked.unwrap_or(if full_matrix() { 1000 } else { 60 });
    let directory = tempfile::tempdir().unwrap();
    let mut differing = 0;
    for block_size in ["1024", "4096"] {
        let pair = Pair::make(directory.path(), "one", block_size);
        let fields = fields(&pair);
        let whole = fs::read(&pair.journal).unwrap();
        let file = fs::File::options().write(true).open(&pair.journal).unwrap();
        for _ in 0..wanted / 2 {
            let &(name, at, size, is_head) = fields.choose(&mut random).unwrap();
            let place = at as usize..at as usize + size;
            let new = other_value(&whole[place.clone()], &mut random);
            let mut bytes = whole[..16384].to_vec();
            bytes[place].copy_from_slice(&new);
            let resealed = random.random_bool(0.75);
            if resealed {
                reseal(&pair, &mut bytes, is_head);
            }
            file.write_all_at(&bytes, 0).unwrap();
            let report = pair.check_with(&pair.journal);
            let (theirs, text) = pair.e2fsck_with(&pair.journal);
            if !same(&report, theirs) {
                differing += 1;
                println!("--- {block_size}: {name} at {at:#x} = {new:02x?}, resealed {resealed}");
                println!("    here {:?}, e2fsck {theirs:?}: {text}", code(&report));
            }
        }
        file.write_all_at(&whole[..16384], 0).unwrap();
    }
    println!("{wanted} changes, {differing} verdicts differ");
    assert_eq!(differing, 0);
}
