//! Recovers images of file systems that the kernel was writing to: they were shut down under load
//! with ext4's shutdown ioctl, or copied while mounted. Three copies of such an image are
//! recovered: by us, by Linux and by e2fsck. They must then show the same tree of files, with every
//! attribute.
//!
//! - If there are no orphans, the copies must also be equal block for block, except for the
//!   superblock and the journal.
//! - If there are orphans, the times of the last changes of regular files are not compared.
//!
//! [`judge`] has the exceptions: images that we refuse, and what e2fsck cannot recover.
//!
//! A normal run tries a few kinds of image, each interrupted in one way. With
//! `BLOCKYARD_FULL=1` every kind is tried in every way; `CASE=name` does this for one kind. If the
//! first test fails, it keeps the dirty image in the directory for temporary files.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

use blockyard_device::{BlockDevice, FileDevice};
use blockyard_engine::{FileSystem, OpContext, OpenOptions};
use blockyard_recovery::{Error, Options, Report, Session};
use blockyard_testkit::crash::{CrashImage, Stop, operations, shutdown};
use blockyard_testkit::tree::{Content, Node, read_tree};
use blockyard_testkit::{LoopDevice, LoopMount, coverage, full_matrix, mke2fs, require, run, seed};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

struct Case {
    name: &'static str,
    mke2fs: &'static [&'static str],
    mount: &'static str,
    is_external: bool,
}

const fn case(name: &'static str, mke2fs: &'static [&'static str], mount: &'static str) -> Case {
    Case { name, mke2fs, mount, is_external: false }
}

/// The images and how they are mounted. A normal run takes only the first [`SAMPLE`] cases.
const CASES: &[Case] = &[
    case("ext4", &["-b", "4096", "-J", "size=4"], ""),
    case("1k-journal-data", &["-b", "1024", "-J", "size=1"], "data=journal"),
    case("fast-commit", &["-b", "4096", "-O", "fast_commit"], ""),
    Case { is_external: true, ..case("external", &["-b", "4096"], "") },
    case("1k", &["-b", "1024"], ""),
    case("2k", &["-b", "2048", "-J", "size=4"], ""),
    case("1k-tiny", &["-b", "1024", "-J", "size=1"], ""),
    case("journal-data", &["-b", "4096"], "data=journal"),
    case("writeback", &["-b", "4096"], "data=writeback"),
    case("async-commit", &["-b", "4096"], "data=writeback,journal_checksum,journal_async_commit"),
    case("no-csum", &["-O", "^metadata_csum,uninit_bg", "-b", "1024", "-J", "size=1"], ""),
    case("v1-csum", &["-O", "^metadata_csum", "-b", "4096"], "journal_checksum"),
    case("v1-async", &["-O", "^metadata_csum", "-b", "1024"], "data=writeback,journal_async_commit"),
    case("32-bit", &["-O", "^64bit", "-b", "1024"], ""),
    case("32-bit-no-csum", &["-O", "^64bit,^metadata_csum", "-b", "4096"], "data=journal"),
    case("ext3", &["-t", "ext3", "-b", "1024", "-I", "128"], ""),
    case("bigalloc", &["-O", "bigalloc", "-C", "16384"], ""),
    case("orphan-file", &["-O", "orphan_file", "-b", "1024"], ""),
    case("inline", &["-O", "inline_data,metadata_csum_seed", "-b", "4096"], ""),
    case("ea-inode", &["-O", "ea_inode,large_dir,meta_bg,^resize_inode", "-b", "1024"], ""),
    case("fast-commit-1k", &["-b", "1024", "-O", "fast_commit"], ""),
];

/// How many cases a normal run takes.
const SAMPLE: usize = 4;

const UUID: &str = "6a6a6a6a-1111-2222-3333-444444444444";

/// A dirty image, and its journal if that is external.
struct Dirty {
    image: PathBuf,
    journal: Option<PathBuf>,
}

impl Dirty {
    fn make(case: &Case, stop: Stop, number: u64, directory: &Path) -> Self {
        let image = directory.join("dirty");
        let journal = case.is_external.then(|| directory.join("dirty-journal"));
        let mut options = vec!["-U", UUID];
        if !case.mke2fs.contains(&"-t") {
            options.extend(["-t", "ext4"]);
        }
        options.extend_from_slice(case.mke2fs);
        match &journal {
            None => mke2fs(&image, &options, "40M"),
            Some(journal) => {
                mke2fs(journal, &["-O", "journal_dev", "-b", "4096"], "8M");
                let device = LoopDevice::new(journal);
                let place = format!("device={}", device.path());
                options.extend(["-J", &place]);
                mke2fs(&image, &options, "40M");
            }
        }
        let seed = number.wrapping_mul(0x1234_5678_9ABC_DEF1);
        CrashImage {
            image: &image,
            journal: journal.as_deref(),
            options: [case.mount, "noinit_itable"].join(",").trim_start_matches(','),
            seed,
            operations: 150 + seed % 700,
            stop,
            orphans: number.is_multiple_of(2),
        }
        .make_dirty();
        Self { image, journal }
    }

    fn copy(&self, name: &str) -> Self {
        let copy = |path: &Path, suffix: &str| {
            let to = path.with_file_name(format!("{name}{suffix}"));
            fs::copy(path, &to).unwrap();
            to
        };
        Self {
            image: copy(&self.image, ""),
            journal: self.journal.as_deref().map(|journal| copy(journal, "-journal")),
        }
    }

    fn recover(&self) -> Result<Report, Error> {
        let image = FileDevice::open(&self.image).unwrap();
        match &self.journal {
            None => Session::open(&image)?.replay(&Options::default()),
            Some(journal) => {
                assert!(matches!(Session::open(&image), Err(Error::ExternalJournal { .. })));
                let journal = FileDevice::open(journal).unwrap();
                Session::open_with_journal(&image, &journal)?.replay(&Options::default())
            }
        }
    }

    /// Mounts read-only, which replays the journal and finishes orphans. Returns what the kernel
    /// shows.
    fn mounted(&self) -> BTreeMap<Vec<u8>, Node> {
        let device = LoopDevice::new(&self.image);
        let journal = self.journal.as_deref().map(LoopDevice::new);
        let options = match &journal {
            Some(journal) => format!("ro,journal_path={}", journal.path()),
            None => "ro".to_owned(),
        };
        let mount = LoopMount::of_device(&device, &options).unwrap();
        read_tree(mount.path())
    }

    fn e2fsck(&self, arguments: &[&str]) -> (i32, String) {
        let journal = self.journal.as_deref().map(LoopDevice::new);
        let mut all = arguments.to_vec();
        if let Some(journal) = &journal {
            all.extend(["-j", journal.path()]);
        }
        all.push(self.image.to_str().unwrap());
        let output = run("e2fsck", &all);
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Asserts that e2fsck finds nothing but these:
    ///
    /// - wrong totals of free blocks and inodes in the superblock, which are not logged;
    /// - another device number of the external journal, which is on a loop device;
    /// - extent trees that could be smaller.
    fn assert_clean(&self, what: &str) {
        let (_, text) = self.e2fsck(&["-fn"]);
        let is_harmless = |line: &str| {
            line.starts_with("Free ") && line.contains("s count wrong (")
                || line.starts_with("Superblock hint for external superblock")
                || line.starts_with("Fix? no")
                || line.ends_with("Optimize? no")
        };
        let mut findings = text.lines().filter(|line| line.contains("? no") || line.contains("wrong"));
        assert!(findings.all(is_harmless) && text.contains("Pass 5"), "{what}: {text}");
    }

    fn has_orphans(&self) -> bool {
        let output = run("dumpe2fs", &["-h", self.image.to_str().unwrap()]);
        let text = String::from_utf8_lossy(&output.stdout);
        text.contains("First orphan inode") || text.contains("orphan_present")
    }

    /// Numbers of the 1 KiB pieces that belong to the superblock or to an internal journal.
    fn own_pieces(&self) -> BTreeSet<usize> {
        let mut own = BTreeSet::from([1]);
        if self.journal.is_none() {
            let image = self.image.to_str().unwrap();
            let head = run("dumpe2fs", &["-h", image]);
            let head = String::from_utf8_lossy(&head.stdout).into_owned();
            let size = head.lines().find_map(|line| line.strip_prefix("Block size:")).unwrap();
            let pieces = size.trim().parse::<usize>().unwrap() / 1024;
            let blocks = run("debugfs", &["-R", "blocks <8>", image]);
            let blocks = String::from_utf8_lossy(&blocks.stdout).into_owned();
            let blocks = blocks.split_whitespace().map(|block| block.parse::<usize>().unwrap());
            own.extend(blocks.flat_map(|block| block * pieces..(block + 1) * pieces));
        }
        own
    }

    /// Numbers of the 1 KiB pieces outside superblock and journal in which two images differ.
    fn differences(&self, other: &Self) -> Vec<usize> {
        let (own, a, b) =
            (self.own_pieces(), fs::read(&self.image).unwrap(), fs::read(&other.image).unwrap());
        assert_eq!(a.len(), b.len());
        let pieces = a.chunks(1024).zip(b.chunks(1024)).enumerate();
        pieces.filter(|(n, (a, b))| a != b && !own.contains(n)).map(|(n, _)| n).collect()
    }
}

/// Opens and closes the image with our engine, which finishes the orphans.
fn finish_orphans(dirty: &Dirty) {
    let open = |path: &Path| -> Arc<dyn BlockDevice> { Arc::new(FileDevice::open(path).unwrap()) };
    let context = OpContext::root_at(blockyard_disk::Timestamp::from_seconds(1_700_000_000));
    let device = open(&dirty.image);
    let fs = match &dirty.journal {
        None => FileSystem::open(device, OpenOptions::default(), &context),
        Some(journal) => {
            FileSystem::open_with_journal(device, open(journal), OpenOptions::default(), &context)
        }
    };
    let fs = fs.unwrap();
    fs.close(&context).unwrap();
}

/// The tree as it is compared. Without `with_times`, the times of the last changes of regular files
/// are left out, because finishing a truncation sets them to the present.
fn comparable(mut tree: BTreeMap<Vec<u8>, Node>, with_times: bool) -> BTreeMap<Vec<u8>, Node> {
    for node in tree.values_mut() {
        if !with_times && matches!(node.content, Content::Hash(_)) {
            (node.modified, node.changed) = ((0, 0), (0, 0));
        }
    }
    tree
}

/// Inodes whose truncation e2fsck reports as finished.
fn truncated_by_e2fsck(text: &str) -> BTreeSet<u64> {
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("Truncating orphaned inode "));
    lines.map(|line| line.split_whitespace().next().unwrap().parse().unwrap()).collect()
}

/// Restores what e2fsck 1.47.0 loses: when it finishes a truncation, it also frees the file's
/// attribute block. Only the missing attributes and this one block are restored.
fn restore_attributes(
    tree: &mut BTreeMap<Vec<u8>, Node>,
    kernel: &BTreeMap<Vec<u8>, Node>,
    truncated: &BTreeSet<u64>,
) {
    for (name, node) in tree {
        let Some(theirs) = kernel.get(name).filter(|_| truncated.contains(&node.inode)) else { continue };
        let is_kept = node.xattrs.iter().all(|(name, value)| theirs.xattrs.get(name) == Some(value));
        if node.xattrs.len() < theirs.xattrs.len() && is_kept {
            let block = theirs.sectors.saturating_sub(node.sectors);
            assert!(matches!(block, 2 | 4 | 8), "one block is freed, not {block} sectors");
            (node.xattrs, node.sectors) = (theirs.xattrs.clone(), theirs.sectors);
        }
    }
}

fn assert_same_tree(ours: &BTreeMap<Vec<u8>, Node>, theirs: &BTreeMap<Vec<u8>, Node>, what: &str) {
    let names: BTreeSet<&Vec<u8>> = ours.keys().chain(theirs.keys()).collect();
    for name in names {
        let (ours, theirs) = (ours.get(name), theirs.get(name));
        assert!(ours == theirs, "{what}: {}: {ours:?}, {theirs:?}", String::from_utf8_lossy(name));
    }
}

/// The result for one image.
struct Outcome {
    report: Option<Report>,
    has_orphans: bool,
}

fn judge(case: &Case, dirty: &Dirty) -> Outcome {
    let (ours, kernel, checker) = (dirty.copy("ours"), dirty.copy("kernel"), dirty.copy("checker"));
    let report = match ours.recover() {
        Ok(report) => report,
        Err(Error::FastCommits { .. }) if case.name.starts_with("fast-commit") => {
            assert!(dirty.differences(&ours).is_empty(), "a refused image was written");
            return Outcome { report: None, has_orphans: false };
        }
        Err(error) => panic!("{error}"),
    };
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    let has_orphans = ours.has_orphans();
    let kernel_tree = comparable(kernel.mounted(), !has_orphans);
    kernel.assert_clean("kernel");
    if !has_orphans {
        assert_eq!(ours.differences(&kernel), [], "pieces in which the kernel's replay differs");
        ours.assert_clean("ours");
    }
    // e2fsck 1.47.0 gives up on journals with a fast-commit area ("Invalid argument"). It moves the
    // value inodes of orphans to lost+found, where Linux cannot list them. If it truncates an
    // orphan to size 0 on an image with clusters, the file keeps all blocks of a cluster except the
    // first, and loses its attributes.
    let beyond_e2fsck =
        case.name.starts_with("fast-commit") || matches!(case.name, "ea-inode" | "bigalloc") && has_orphans;
    if !beyond_e2fsck {
        let (code, text) = checker.e2fsck(&["-y", "-E", "journal_only"]);
        assert!(code <= 1, "{code} {text}");
        // With meta_bg, e2fsck also refreshes the copies of the descriptors.
        if !has_orphans && !case.mke2fs.iter().any(|option| option.contains("meta_bg")) {
            assert_eq!(ours.differences(&checker), [], "pieces in which e2fsck's replay differs");
        }
        // e2fsck must not shrink extent trees that could be smaller: neither Linux nor we do.
        let (code, repairs) = checker.e2fsck(&["-fy", "-E", "no_optimize_extents"]);
        assert!(code <= 1, "{code} {repairs}");
        let mut tree = comparable(checker.mounted(), !has_orphans);
        restore_attributes(&mut tree, &kernel_tree, &truncated_by_e2fsck(&format!("{text}\n{repairs}")));
        assert_same_tree(&tree, &kernel_tree, "e2fsck's and the kernel's");
    }
    finish_orphans(&ours);
    ours.assert_clean("ours after an open and a close");
    let tree = comparable(ours.mounted(), !has_orphans);
    assert_same_tree(&tree, &kernel_tree, "ours and the kernel's");
    Outcome { report: Some(report), has_orphans }
}

fn selected() -> Vec<(&'static Case, Stop)> {
    const STOPS: [Stop; 3] = [Stop::Cut, Stop::CutAfterCommit, Stop::Copy];
    let wanted = std::env::var("CASE").ok();
    if wanted.is_none() && !full_matrix() {
        return CASES.iter().take(SAMPLE).enumerate().map(|(n, case)| (case, STOPS[n % 3])).collect();
    }
    let cases = CASES.iter().filter(|case| wanted.as_ref().is_none_or(|name| name == case.name));
    cases.flat_map(|case| STOPS.map(|stop| (case, stop))).collect()
}

#[test]
fn a_stopped_kernel_leaves_what_all_recover_alike() {
    if !require(&["root", "mke2fs", "e2fsck", "dumpe2fs", "debugfs", "losetup", "perl"]) {
        return;
    }
    let seed = seed(1);
    let (mut replayed, mut refused, mut with_orphans, mut transactions, mut revoked) = (0, 0, 0, 0, 0);
    let selected = selected();
    for (number, (case, stop)) in selected.iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let dirty = Dirty::make(case, *stop, seed + number as u64, directory.path());
        let outcome = std::panic::catch_unwind(|| judge(case, &dirty));
        let Ok(outcome) = outcome else {
            panic!("{} {stop:?}: kept in {}", case.name, directory.keep().display());
        };
        with_orphans += u32::from(outcome.has_orphans);
        match outcome.report {
            None => {
                refused += 1;
                println!("{} {stop:?}: refused for its fast commits", case.name);
            }
            Some(report) => {
                replayed += 1;
                transactions += report.transactions;
                revoked += report.revoked;
                println!(
                    "{} {stop:?}: {} transactions, {} blocks of {} logged, {} revoked{}",
                    case.name,
                    report.transactions,
                    report.written,
                    report.logged,
                    report.revoked,
                    if outcome.has_orphans { ", orphans" } else { "" }
                );
            }
        }
    }
    println!(
        "{} images: {replayed} replayed ({transactions} transactions, {revoked} blocks revoked), {refused} refused, \
         {with_orphans} with orphans",
        selected.len()
    );
    assert!(transactions > 0 && replayed >= selected.len() - selected.len() / 4);
}

/// fsync of plain files after a full commit makes fast commits. An image with them is refused and
/// stays as it was, and the kernel finds what was synced.
#[test]
fn fast_commits_are_refused_by_name() {
    if !require(&["root", "mke2fs", "losetup", "perl"]) {
        return;
    }
    for block_size in ["1024", "4096"] {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("dirty");
        mke2fs(&image, &["-t", "ext4", "-O", "fast_commit", "-b", block_size], "40M");
        let mount = LoopMount::new(&image, "").unwrap();
        let file = |n: u32| mount.path().join(format!("file-{n}"));
        (0..10).for_each(|n| fs::write(file(n), [1; 5000]).unwrap());
        rustix::fs::syncfs(fs::File::open(mount.path()).unwrap()).unwrap();
        for n in 0..10 {
            let mut file = fs::File::options().append(true).open(file(n)).unwrap();
            file.write_all(&[2; 7000]).unwrap();
            file.sync_all().unwrap();
        }
        shutdown(mount.path(), Stop::Cut);
        drop(mount);

        let dirty = Dirty { image, journal: None };
        let ours = dirty.copy("ours");
        let result = ours.recover();
        assert!(matches!(result, Err(Error::FastCommits { .. })), "{result:?}");
        assert!(fs::read(&ours.image).unwrap() == fs::read(&dirty.image).unwrap(), "the image was written");
        let error = FileSystem::open(
            Arc::new(FileDevice::open(&ours.image).unwrap()),
            OpenOptions::default(),
            &OpContext::root_at(blockyard_disk::Timestamp::from_seconds(1_700_000_000)),
        );
        assert!(error.err().unwrap().to_string().contains("fast commits"));
        let sizes: Vec<u64> =
            dirty.mounted().values().filter(|node| node.size == 12_000).map(|node| node.size).collect();
        assert_eq!(sizes.len(), 10, "what the kernel recovers");
    }
}

/// docs/testing.md must list the images and what the kernel does on them. Without an explicit block
/// size, mke2fs chooses blocks of 1 KiB, because those images are smaller than 512 MiB.
#[test]
fn the_cases_are_told() {
    let block = |case: &Case| {
        let mut words = case.mke2fs.iter().skip_while(|word| **word != "-b").skip(1);
        words.next().map_or(1024, |size| size.parse().unwrap())
    };
    coverage::assert_images("oracle_kernel_crash", CASES.iter().map(|case| (case.name, block(case))));
    coverage::assert_operations("oracle_kernel_crash", operations());
}
