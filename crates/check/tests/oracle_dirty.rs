//! Repairs of images whose journal needs a replay, with each kind of checksums that a log can have
//! (none, of commits only, version 2, version 3). The damage is in a block of the log or anywhere
//! else. Two things are asserted:
//!
//! - After the repair a second check and `e2fsck -fn` find nothing, and the repair keeps each file
//!   that the damage did not touch or that `e2fsck -fy` keeps. This is not asked if `e2fsck -fy`
//!   leaves a copy of the damaged image unclean, too, and keeps no file that the repair loses.
//! - If the log is damaged, a preen (`-p`) ends as `e2fsck -fp` does.
//!
//! debugfs writes the log from blocks that the kernel changed: three transactions.
//!
//! By default 16 damages for each of three kinds of checksums, with `BLOCKYARD_FULL=1` 500 for each
//! of five. `REPAIRS=n` sets another number of damages. `KIND=name` selects one kind, and `ONLY=n`
//! one damage of each kind. Images whose repair fails are saved in `KEEP=folder`.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blockyard_check::{Code, Options, RepairOptions, check, is_clean_once_replayed, plan};
use blockyard_device::{BlockDevice, FileDevice, MemoryDevice};
use blockyard_disk::InodeNr;
use blockyard_disk::num::{u64_from_u32, u64_from_usize, usize_from_u64};
use blockyard_inspect::reader::Reader;
use blockyard_recovery::inspect;
use blockyard_testkit::images::{Profile, make_filled};
use blockyard_testkit::mutate::Inventory;
use blockyard_testkit::{LoopMount, e2fsck_clean, full_matrix, require, run, seed};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use support::base::Base;
use support::draw::{Drawn, damage};
use support::judge::{Bench, Preen, judge};
use support::kept::files;

/// Bytes of a block.
const BLOCK: usize = 1024;

/// A kind of checksums in a log.
struct Kind {
    profile: Profile,
    /// Options of debugfs's journal_open.
    open: &'static str,
    /// What the features of the log must contain.
    feature: &'static str,
}

const fn kind(
    name: &'static str,
    options: &'static [&'static str],
    open: &'static str,
    feature: &'static str,
) -> Kind {
    let profile = Profile { name, options, size_mib: 32, first: &[], last: &[], is_deep: false };
    Kind { profile, open, feature }
}

static KINDS: [Kind; 5] = [
    kind("v1", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"], "-c", "journal_checksum "),
    kind("v2", &["-t", "ext4", "-b", "1024"], "-c -v 2", "journal_checksum_v2"),
    kind("v3", &["-t", "ext4", "-b", "1024"], "-c -v 3", "journal_checksum_v3"),
    kind("v2-32", &["-t", "ext4", "-b", "1024", "-O", "^64bit"], "-c -v 2", "journal_checksum_v2"),
    kind("none", &["-t", "ext3", "-b", "1024"], "", ""),
];

/// How many kinds the default run has.
const SAMPLE: usize = 3;

/// Changes a file system with the kernel; each step becomes one transaction of the log.
fn step(image: &Path, nth: usize) {
    let mount = LoopMount::new(image, "noinit_itable").unwrap();
    let late = mount.path().join("late");
    match nth {
        0 => {
            fs::create_dir(&late).unwrap();
            for n in 0..30u8 {
                fs::write(late.join(format!("file-{n}")), vec![n + 1; 700 * usize::from(n)]).unwrap();
            }
            symlink("t".repeat(90), late.join("link")).unwrap();
        }
        1 => {
            fs::create_dir(late.join("below")).unwrap();
            fs::rename(mount.path().join("tiny"), late.join("below/tiny")).unwrap();
            fs::remove_file(late.join("file-7")).unwrap();
            fs::write(late.join("file-9"), b"shorter").unwrap();
        }
        _ => {
            fs::hard_link(late.join("file-20"), mount.path().join("linked")).unwrap();
            fs::remove_dir(mount.path().join("deep/sub3")).unwrap();
            fs::write(late.join("below/new"), vec![0xE5; 9000]).unwrap();
        }
    }
    drop(mount);
    e2fsck_clean(image);
}

/// The blocks of a file system's journal.
fn log_blocks(image: &Path) -> BTreeSet<usize> {
    let reader = Reader::open(Arc::new(FileDevice::open_read_only(image).unwrap())).unwrap();
    let journal = reader.inode(InodeNr::JOURNAL).unwrap();
    let extents: Vec<_> = reader.extents(&journal).map(Result::unwrap).collect();
    let blocks = extents.iter().flat_map(|extent| {
        let first = extent.physical.raw();
        (first..first + u64_from_u32(extent.length)).map(usize_from_u64)
    });
    blocks.collect()
}

/// Blocks in which two images differ.
fn differing(one: &[u8], other: &[u8]) -> BTreeSet<usize> {
    let pairs = one.chunks(BLOCK).zip(other.chunks(BLOCK)).enumerate();
    pairs.filter(|(_, (a, b))| a != b).map(|(nth, _)| nth).collect()
}

/// An image with a log of three transactions.
struct Dirty {
    image: PathBuf,
    /// A copy that the kernel changed: a replay must result in the same files.
    whole: PathBuf,
    /// Blocks of the journal. `log` has those of them that debugfs wrote.
    journal: BTreeSet<usize>,
    log: Vec<usize>,
}

impl Dirty {
    fn make(kind: &Kind, folder: &Path) -> Self {
        let image = make_filled(&kind.profile, folder);
        let whole = folder.join("whole.img");
        fs::copy(&image, &whole).unwrap();
        let journal = log_blocks(&image);
        let mut script = vec![format!("jo {}", kind.open)];
        for nth in 0..3 {
            let before = fs::read(&whole).unwrap();
            step(&whole, nth);
            let after = fs::read(&whole).unwrap();
            let mut changed = differing(&before, &after);
            // The superblock stays out of the log, and so do the blocks of the kernel's own log.
            changed.retain(|block| *block > 1 && !journal.contains(block));
            let data: Vec<u8> = changed
                .iter()
                .flat_map(|block| &after[block * BLOCK..(block + 1) * BLOCK])
                .copied()
                .collect();
            let file = folder.join(format!("data-{nth}"));
            fs::write(&file, data).unwrap();
            let list: Vec<String> = changed.iter().map(usize::to_string).collect();
            script.push(format!("jw -b {} {}", list.join(","), file.to_str().unwrap()));
        }
        script.push("jc".to_owned());
        let before = fs::read(&image).unwrap();
        let commands = folder.join("script");
        fs::write(&commands, script.join("\n") + "\n").unwrap();
        let output = run("debugfs", &["-w", "-f", commands.to_str().unwrap(), image.to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
        let status = inspect(&FileDevice::open_read_only(&image).unwrap()).unwrap();
        assert!(status.features.contains(kind.feature), "{}: {status:?}", kind.profile.name);
        let log = differing(&before, &fs::read(&image).unwrap()).intersection(&journal).copied().collect();
        Self { image, whole, journal, log }
    }

    /// The base for [`judge`]: its files are those of `whole`, and each of them needs the log.
    fn base(&self, kind: &'static Kind) -> Base {
        let device = MemoryDevice::load(&self.image).unwrap();
        let mut base = Base::of(&kind.profile, device, &self.whole);
        base.inventory = Inventory::read(&self.image);
        let range = |block: usize| u64_from_usize(block * BLOCK)..u64_from_usize((block + 1) * BLOCK);
        let mut needed: Vec<Range<u64>> = self.journal.iter().copied().map(range).collect();
        // The superblock says that there is a log, and the journal's inode says where.
        needed.push(range(1));
        let own = base.inventory.structures.iter();
        let own = own.filter(|one| one.owner.inode == Some(InodeNr::JOURNAL.raw()));
        needed.extend(own.map(|one| u64_from_usize(one.at)..u64_from_usize(one.at + one.length)));
        base.need_everywhere(&needed);
        base
    }
}

/// Draws a damage of a block of the log.
fn damage_log(base: &Base, log: &[usize], random: &mut ChaCha8Rng) -> Drawn {
    let read = |block: usize| {
        let mut bytes = vec![0; BLOCK];
        base.device.read_at(u64_from_usize(block * BLOCK), &mut bytes).unwrap();
        bytes
    };
    // Most depends on the journal superblock, which is the first block of the log.
    let block = if random.random_range(0..5) == 0 { log[0] } else { *log.choose(random).unwrap() };
    let mut bytes = read(block);
    let mut drawn = Drawn::default();
    let what = match random.random_range(0..6) {
        0 => {
            bytes.fill(0);
            "zeroed"
        }
        1 => {
            random.fill(&mut bytes[..]);
            "garbled"
        }
        2 => {
            bytes[random.random_range(1..BLOCK)..].fill(0);
            "torn"
        }
        3 => {
            let other = *log.choose(random).unwrap();
            drawn.edits.push((u64_from_usize(other * BLOCK), std::mem::replace(&mut bytes, read(other))));
            "swapped"
        }
        // In descriptor and commit blocks, the first bytes matter most.
        4 => {
            bytes[random.random_range(0..64)] ^= random.random_range(1..=255u8);
            "a byte of its head"
        }
        _ => {
            // If a commit block is damaged after its first bytes, Linux and our recovery treat it
            // as half-written. e2fsck 1.47.0 treats it as wrong and replays less. So only its head
            // is damaged here.
            let is_commit = bytes[..8] == [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 2];
            let end = if is_commit { 64 } else { BLOCK };
            bytes[random.random_range(0..end)] ^= random.random_range(1..=255u8);
            "a byte"
        }
    };
    drawn.class = format!("log: {what}");
    drawn.what = format!(
        "{what}: block {block}, {} of {} of the log",
        log.iter().position(|one| *one == block).unwrap(),
        log.len()
    );
    drawn.edits.push((u64_from_usize(block * BLOCK), bytes));
    drawn
}

fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Asserts that the undamaged log is replayed as a whole.
fn is_replayed_whole(base: &Base, whole: &Path) {
    assert!(is_clean_once_replayed(&base.device, None), "{}", base.profile.name);
    let report = check(&base.device, &Options::default()).unwrap();
    let replayed = report.findings.iter().find(|finding| finding.code == Code::JOURNAL_REPLAYED);
    assert!(replayed.unwrap().detail.starts_with("3 transactions"), "{replayed:?}");
    let device = base.device.duplicate();
    let how = RepairOptions { now: 1_700_000_000, ..RepairOptions::default() };
    plan(&device, &how).unwrap().apply(&device).unwrap();
    assert_eq!(support::kept::files_on(Arc::new(device)), files(whole), "{}", base.profile.name);
}

#[test]
fn dirty_images_are_repaired_as_e2fsck_repairs_them() {
    if !require(&["root", "mke2fs", "e2fsck", "debugfs", "timeout", "prlimit"]) {
        return;
    }
    let seed = seed(72);
    let only_kind = std::env::var("KIND").ok();
    let kinds = if full_matrix() || only_kind.is_some() { KINDS.len() } else { SAMPLE };
    let count = number("REPAIRS").unwrap_or(if full_matrix() { 500 } else { 16 });
    let (mut faults, mut all) = (0, 0);
    for kind in
        KINDS[..kinds].iter().filter(|kind| only_kind.as_ref().is_none_or(|one| kind.profile.name == *one))
    {
        let folder = support::folder();
        let dirty = Dirty::make(kind, folder.path());
        let base = dirty.base(kind);
        is_replayed_whole(&base, &dirty.whole);
        let bench = Bench::in_folder(folder.path(), 0);
        for nth in (0..count).filter(|nth| number("ONLY").is_none_or(|only| only == *nth)) {
            let mut random = ChaCha8Rng::seed_from_u64(seed ^ u64_from_usize(nth).rotate_left(16));
            let drawn = match nth % 4 {
                0 => damage(&base.inventory, &mut random),
                _ => damage_log(&base, &dirty.log, &mut random),
            };
            let outcome = judge(&base, &drawn, &bench, Preen::Judged);
            all += 1;
            let mut wrong = if outcome.beyond_e2fsck { Vec::new() } else { outcome.faults };
            // For other damages `oracle_repair.rs` counts the differences of `-p`.
            wrong.extend(outcome.preened.filter(|_| drawn.class.starts_with("log")));
            if !wrong.is_empty() {
                faults += 1;
                println!("--- {}:{nth}: {}: {}", kind.profile.name, drawn.class, drawn.what);
                wrong.iter().for_each(|fault| println!("    {fault}"));
                if let Ok(folder) = std::env::var("KEEP") {
                    let damaged = base.device.duplicate();
                    drawn.apply(&damaged);
                    let name = format!("{}-{nth}.img", kind.profile.name);
                    damaged.save(&Path::new(&folder).join(name)).unwrap();
                }
            }
        }
    }
    println!("{all} damages, {faults} faults");
    assert_eq!(faults, 0);
}
