//! Damaged blocks, and images that are cut short: verdict and exit code are those of `e2fsck -fn`,
//! with the exceptions in [`agree`]. This is also tested for some images that `e2fsck -fy` has
//! repaired.
//!
//! Images of a kernel that was stopped in the middle of its work are judged, too: the verdict is
//! that of e2fsck on a copy that Linux has mounted.
//!
//! By default 60 damages of six images; with `BLOCKYARD_FULL=1` 2,000 damages of all images.
//! `DAMAGES=n` sets another number, and `PROFILE=name` selects one image.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use blockyard_check::{Code, Finding, Options, check};
use blockyard_device::FileDevice;
use blockyard_testkit::crash::{CrashImage, Stop};
use blockyard_testkit::images::{
    MORE_PROFILES, PROFILES, Profile, RARE_PROFILES, make, make_filled, profile_named,
};
use blockyard_testkit::mutate::Inventory;
use blockyard_testkit::{LoopMount, Verdict, e2fsck_bounded, full_matrix, require, run, seed};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The exit code of `blockyard check -n`, and its findings.
fn examine(image: &Path) -> (i32, Vec<Finding>) {
    let device = FileDevice::open_read_only(image).unwrap();
    match check(&device, &Options { threads: Some(2), ..Options::default() }) {
        Err(_) => (8, Vec::new()),
        Ok(report) if !report.examined => (8, report.findings),
        Ok(report) => (if report.is_clean() { 0 } else { 4 }, report.findings),
    }
}

/// Whether both checkers say the same of an image. If not, prints what differs and keeps the image.
fn agree(profile: &Profile, what: &str, image: &Path, theirs: &Verdict) -> bool {
    let (ours, findings) = examine(image);
    // If an image is truncated, `e2fsck -n` calls it clean as long as no metadata is missing, and
    // otherwise gives up. It also gives up if an inode table has no possible place. In all these
    // cases our check reports damage and goes on.
    let found = |code: Code| findings.iter().any(|finding| finding.code == code);
    let (is_cut, no_table) = (found(Code::DEVICE_SHORT), found(Code::INODE_TABLE_PLACE));
    let same = match (theirs.code, ours) {
        (Some(theirs), ours) if theirs == ours => true,
        // e2fsck found errors and gave up in the middle. Our check may go on.
        (Some(12), 4 | 8) => true,
        (Some(0), 4) => is_cut,
        (Some(8), 4) => is_cut || no_table,
        _ => false,
    };
    if same {
        return true;
    }
    println!("--- {}: {}", profile.name, what);
    println!("    e2fsck {:?}, here {ours}", theirs.code);
    theirs.lines().take(8).for_each(|line| println!("    e2fsck: {line}"));
    let (errors, notes): (Vec<&Finding>, Vec<&Finding>) =
        findings.iter().partition(|finding| finding.is_error());
    for finding in errors.iter().chain(&notes).take(6) {
        println!("    here: {} {} {} {}", finding.code, finding.site, finding.code.text(), finding.detail);
    }
    let (_, kept) = tempfile::Builder::new().suffix(".img").tempfile().unwrap().keep().unwrap();
    std::fs::copy(image, &kept).unwrap();
    println!("    kept in {}", kept.display());
    false
}

fn wanted() -> usize {
    let asked = std::env::var("DAMAGES").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(if full_matrix() { 2000 } else { 60 })
}

/// The profile that `PROFILE` names. Without it, all profiles in a full run, and six otherwise:
/// filling one image takes longer than checking many.
fn profiles(random: &mut ChaCha8Rng) -> Vec<&'static Profile> {
    if let Ok(only) = std::env::var("PROFILE") {
        return vec![profile_named(&only)];
    }
    if full_matrix() {
        return PROFILES.iter().chain(MORE_PROFILES).chain(RARE_PROFILES).collect();
    }
    PROFILES.choose_multiple(random, 6).collect()
}

/// A copy that e2fsck has repaired as far as it can in one run: such file systems look unusual.
fn repaired(image: &Path) -> PathBuf {
    let copy = image.with_extension("repaired");
    std::fs::copy(image, &copy).unwrap();
    run("prlimit", &["--as=4294967296", "timeout", "60", "e2fsck", "-fy", copy.to_str().unwrap()]);
    copy
}

#[test]
fn verdicts_on_damaged_blocks_equal_those_of_e2fsck() {
    if !require(&["root", "mke2fs", "e2fsck", "timeout", "prlimit"]) {
        return;
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed(4));
    let (wanted, profiles) = (wanted(), profiles(&mut random));
    let directory = tempfile::tempdir().unwrap();
    let mut differing = 0;
    for (n, profile) in profiles.iter().enumerate() {
        let image = make_filled(profile, directory.path());
        let inventory = Inventory::read(&image);
        for _ in 0..(wanted * (n + 1)) / profiles.len() - (wanted * n) / profiles.len() {
            let damage = inventory.damage(&mut random);
            damage.apply(&image);
            let what = &damage.description;
            differing += usize::from(!agree(profile, what, &image, &e2fsck_bounded(&image)));
            if random.random_bool(0.25) {
                let repaired = repaired(&image);
                let what = format!("{what}, repaired");
                differing += usize::from(!agree(profile, &what, &repaired, &e2fsck_bounded(&repaired)));
            }
            damage.undo(&image, &inventory);
        }
        std::fs::remove_file(image).unwrap();
    }
    println!("{wanted} damages, {differing} verdicts differ");
    assert_eq!(differing, 0);
}

#[test]
fn crash_images_are_judged_as_after_a_mount() {
    if !require(&["root", "mke2fs", "e2fsck", "timeout", "prlimit", "perl"]) {
        return;
    }
    let seed = seed(8);
    let names: &[&str] = if full_matrix() {
        &[
            "ext4",
            "ext4-1k",
            "ext3-1k",
            "orphan_file",
            "bigalloc",
            "uninit_bg",
            "inline",
            "indirect",
            "csum_seed",
        ]
    } else {
        &["ext4-1k", "orphan_file"]
    };
    let stops = if full_matrix() { 6 } else { 2 };
    let directory = tempfile::tempdir().unwrap();
    let mut differing = 0;
    for (n, profile) in (0..).zip(names.iter().map(|name| profile_named(name))) {
        for stop in 0..stops {
            let image = make(profile, directory.path());
            let number = seed + n * 100 + stop;
            CrashImage {
                image: &image,
                journal: None,
                options: "noinit_itable",
                seed: number,
                operations: 150 + number * 7919 % 600,
                stop: [Stop::Cut, Stop::CutAfterCommit][usize::from(stop % 2 == 1)],
                orphans: stop % 4 < 2,
            }
            .make_dirty();
            let replayed = directory.path().join("replayed.img");
            std::fs::copy(&image, &replayed).unwrap();
            drop(LoopMount::new(&replayed, "").unwrap());
            let what = format!("stop {stop}, seed {number}");
            differing += usize::from(!agree(profile, &what, &image, &e2fsck_bounded(&replayed)));
        }
    }
    assert_eq!(differing, 0);
}

/// Linux can free the blocks of a deleted directory in one transaction and its inode in the next.
/// Between the two, the directory is a pending orphan and no damage.
#[test]
fn a_directory_whose_deletion_was_half_done_is_to_be_finished() {
    if !require(&["root", "mke2fs", "debugfs", "e2fsck", "timeout", "prlimit"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = make(profile_named("ext3-1k"), directory.path());
    let path = image.to_str().unwrap();
    let debugfs = |command: &str| run("debugfs", &["-w", "-R", command, path]);
    debugfs("mkdir /gone");
    let answer = |command: &str| String::from_utf8(debugfs(command).stdout).unwrap().trim().to_owned();
    let inode: u32 = answer("ncheck 12").contains("/gone").then_some(12).unwrap();
    let block = answer("blocks /gone");
    let data = directory.path().join("data");
    std::fs::write(&data, [7; 1024]).unwrap();
    for command in [
        "unlink /gone".to_owned(),
        "sif / links_count 3".to_owned(),
        format!("freeb {block}"),
        format!("sif <{inode}> links_count 0"),
        format!("sif <{inode}> size 0"),
        format!("sif <{inode}> blocks 0"),
        format!("sif <{inode}> block[0] 0"),
        format!("ssv last_orphan {inode}"),
    ] {
        debugfs(&command);
    }
    let script = directory.path().join("script");
    std::fs::write(&script, format!("jo\njw -b 60000 {}\njc\n", data.display())).unwrap();
    run("debugfs", &["-w", "-f", script.to_str().unwrap(), path]);
    let (_, findings) = examine(&image);
    let seen = |code: Code| findings.iter().any(|finding| finding.code == code);
    assert!(seen(Code::ORPHAN_PENDING) && !seen(Code::DIRECTORY_EMPTY), "{findings:?}");
    let mounted = directory.path().join("mounted.img");
    std::fs::copy(&image, &mounted).unwrap();
    drop(LoopMount::new(&mounted, "").unwrap());
    assert!(agree(profile_named("ext3-1k"), "a deleted directory", &image, &e2fsck_bounded(&mounted)));
}
