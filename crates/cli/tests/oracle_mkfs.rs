//! Images of `blockyard mkfs` against those of mke2fs 1.47 with the same arguments. They must be
//! equal byte by byte, except for what [`mask_superblock`] and [`mask_mmp`] name. Then e2fsck, our
//! check, dumpe2fs and, where possible, a kernel mount judge them.
//!
//! The sets of arguments are the lines of `mkfs_cases.txt` (the awkward ones) and random ones. By
//! default a seeded sample of each is tried. With `BLOCKYARD_FULL=1` all lines are tried, and more
//! random sets.

#![allow(clippy::unwrap_used, clippy::as_conversions)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use blockyard_device::{BlockDevice, FileDevice};
use blockyard_testkit::{LoopMount, e2fsck_clean, full_matrix, require, run, seed};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";
const HASH_SEED: &str = "hash_seed=fedcba98-7654-3210-fedc-ba9876543210";
const TIME: &str = "1600000000";
/// The default sample has no images larger than this.
const SAMPLE_BYTES_MAX: u64 = 4 << 30;

/// One set of parameters: the size of the image and mke2fs's options.
#[derive(Clone, Debug)]
struct Case {
    size: String,
    options: Vec<String>,
}

impl Case {
    fn parse(line: &str) -> Self {
        let mut words = line.split_whitespace().map(str::to_owned);
        let size = words.next().expect("a case begins with a size");
        let mut options: Vec<String> = words.collect();
        if !options.iter().any(|option| option == "-t") {
            options.splice(0..0, ["-t".to_owned(), "ext2".to_owned()]);
        }
        // mke2fs honours only the last -E, so the case gets a single -E.
        match options.iter().position(|option| option == "-E") {
            Some(at) => options[at + 1] = format!("{},{HASH_SEED}", options[at + 1]),
            None => options.extend(["-E".to_owned(), HASH_SEED.to_owned()]),
        }
        Self { size, options }
    }

    fn bytes(&self) -> u64 {
        let (digits, unit) = self.size.split_at(self.size.len() - 1);
        let unit = match unit {
            "K" => 10,
            "M" => 20,
            "G" => 30,
            "T" => 40,
            _ => panic!("size {}", self.size),
        };
        digits.parse::<u64>().unwrap() << unit
    }

    fn has(&self, text: &str) -> bool {
        self.options.iter().any(|option| option.split(',').any(|part| part == text))
    }
}

/// The paths of a case's two images.
struct Pair {
    ours: PathBuf,
    theirs: PathBuf,
}

impl Pair {
    fn new(directory: &Path) -> Self {
        Self { ours: directory.join("ours.img"), theirs: directory.join("theirs.img") }
    }

    fn make(&self, case: &Case) -> (Output, Output) {
        for image in [&self.ours, &self.theirs] {
            let file = std::fs::File::create(image).unwrap();
            file.set_len(case.bytes()).unwrap();
        }
        let ours = command(env!("CARGO_BIN_EXE_blockyard"), &["mkfs"], case, &self.ours);
        let theirs = command("mke2fs", &[], case, &self.theirs);
        (ours, theirs)
    }
}

fn command(program: &str, first: &[&str], case: &Case, image: &Path) -> Output {
    Command::new(program)
        .args(first)
        .args(["-q", "-F", "-U", UUID])
        .args(&case.options)
        .arg(image)
        .env("E2FSPROGS_FAKE_TIME", TIME)
        .env("LC_ALL", "C")
        .output()
        .unwrap()
}

/// Masks what may differ in a superblock: the KiB written (the two programs write different
/// amounts), and hence the checksum.
fn mask_superblock(block: &mut [u8]) {
    block[0x178..0x180].fill(0);
    block[0x3FC..0x400].fill(0);
}

/// Masks what may differ in the MMP block: the current time, the host and the device, which mke2fs
/// stores there, and hence the checksum.
fn mask_mmp(block: &mut [u8]) {
    block[0x08..0x70].fill(0);
    block[0x3FC..0x400].fill(0);
}

fn masked(mut block: Vec<u8>) -> Vec<u8> {
    if block.len() < 1024 {
        return block;
    }
    if block[0x38..0x3A] == [0x53, 0xEF] {
        mask_superblock(&mut block);
    } else if block[..4] == [0x50, 0x4D, 0x4D, 0x00] {
        mask_mmp(&mut block);
    }
    block
}

/// The first difference between two images, if any. Holes are compared only where the other image
/// has data.
fn difference(pair: &Pair) -> Option<String> {
    one_way(&pair.ours, &pair.theirs).or_else(|| one_way(&pair.theirs, &pair.ours))
}

/// The first position where data of `left` differs in `right`.
fn one_way(left: &Path, right: &Path) -> Option<String> {
    let other = FileDevice::open_read_only(right).unwrap();
    let mut found = None;
    let mut buffer = Vec::new();
    let visited = FileDevice::open_read_only(left).unwrap().for_each_data(|at, bytes| {
        buffer.resize(bytes.len(), 0);
        other.read_at(at, &mut buffer)?;
        if found.is_none() && bytes != buffer.as_slice() {
            assert!(at % 1024 == 0, "stretches of data begin at pages");
            let blocks = bytes.chunks(1024).zip(buffer.chunks(1024));
            found = blocks
                .enumerate()
                .find_map(|(index, (a, b))| block_difference(at / 1024 + index as u64, a, b));
        }
        Ok(())
    });
    visited.unwrap();
    found.map(|what| format!("{} has {what}", left.file_name().unwrap().display()))
}

fn block_difference(number: u64, a: &[u8], b: &[u8]) -> Option<String> {
    let (a, b) = (masked(a.to_vec()), masked(b.to_vec()));
    let at = a.iter().zip(&b).position(|(x, y)| x != y)?;
    Some(format!("KiB {number}, byte {at:#x}: {:#04x}, the other {:#04x}", a[at], b[at]))
}

/// The output of dumpe2fs without the lines that [`mask_superblock`] and [`mask_mmp`] explain.
fn dump(image: &Path) -> Vec<String> {
    let output = run("dumpe2fs", &[image.to_str().unwrap()]);
    assert!(output.status.success(), "dumpe2fs {}: {output:?}", image.display());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let differs = |line: &str| line.starts_with("Lifetime writes") || line.starts_with("Checksum:");
    let differs_mmp = |line: &str| line.trim_start().starts_with("mmp_");
    text.lines().filter(|line| !differs(line) && !differs_mmp(line)).map(str::to_owned).collect()
}

/// Judges one case. Returns `Ok(true)` if the images are as they must be, `Ok(false)` if both
/// programs refuse the case, and the first fault otherwise.
fn judge(case: &Case, pair: &Pair) -> Result<bool, String> {
    let (ours, theirs) = pair.make(case);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().replace('\n', " ");
    match (ours.status.success(), theirs.status.success()) {
        (true, true) => {}
        (false, false) => {
            let message = text(&ours.stderr);
            return if message.starts_with("blockyard: ") {
                Ok(false)
            } else {
                Err(format!("crash: {message}"))
            };
        }
        (true, false) => return Err(format!("mke2fs refuses: {}", text(&theirs.stderr))),
        (false, true) => return Err(format!("blockyard refuses: {}", text(&ours.stderr))),
    }
    // For some arguments mke2fs searches beyond its bitmap, prints this message and continues. Then
    // our image is not compared with mke2fs's, but only checked.
    let lost_its_way =
        text(&theirs.stderr).contains("Illegal block number passed to ext2fs_test_block_bitmap");
    if lost_its_way {
        e2fsck_clean(&pair.ours);
        our_check_is_clean(&pair.ours)?;
        return Ok(true);
    }
    if let Some(difference) = difference(pair) {
        return Err(difference);
    }
    if dump(&pair.ours) != dump(&pair.theirs) {
        return Err("dumpe2fs differs".to_owned());
    }
    e2fsck_clean(&pair.ours);
    our_check_is_clean(&pair.ours)?;
    Ok(true)
}

/// Returns an error if `blockyard check -n` finds something wrong.
fn our_check_is_clean(image: &Path) -> Result<(), String> {
    let output =
        Command::new(env!("CARGO_BIN_EXE_blockyard")).args(["check", "-n"]).arg(image).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.success() { Ok(()) } else { Err(format!("check -n: {}", text.replace('\n', "; "))) }
}

/// Mounts the image with the kernel, writes a file, and requires that the image is clean after
/// that.
fn mount_and_write(case: &Case, pair: &Pair) -> Result<(), String> {
    let mounted = LoopMount::new(&pair.ours, "")?;
    let file = mounted.path().join("file");
    std::fs::write(&file, [7u8; 3000]).map_err(|error| format!("write on {case:?}: {error}"))?;
    drop(mounted);
    e2fsck_clean(&pair.ours);
    our_check_is_clean(&pair.ours)
}

/// Whether this kernel can mount images of the case quickly. They must have blocks of at most a
/// page (4 KiB), no MMP (which delays a mount), no `test_fs`, and at most 1 TiB.
fn is_mountable(case: &Case, pair: &Pair) -> bool {
    let mut block_size = [0; 4];
    let device = FileDevice::open_read_only(&pair.ours).unwrap();
    device.read_at(1024 + 0x18, &mut block_size).unwrap();
    u32::from_le_bytes(block_size) <= 2 && !case.has("mmp") && !case.has("test_fs") && case.bytes() <= 1 << 40
}

fn fixed_cases() -> Vec<Case> {
    include_str!("mkfs_cases.txt").lines().filter(|line| !line.starts_with('#')).map(Case::parse).collect()
}

fn pick<'a>(rng: &mut ChaCha8Rng, choices: &[&'a str]) -> &'a str {
    choices.choose(rng).expect("a choice")
}

/// A random set of parameters that mostly suit each other.
fn random_case(rng: &mut ChaCha8Rng, bytes_max: u64) -> Case {
    let profile = pick(rng, &["ext2", "ext3", "ext4", "ext4", "ext4", "ext4"]);
    let block = pick(rng, &["", "1024", "2048", "4096", "4096", "8192", "65536"]);
    let features = random_features(rng, profile);
    let has_small_groups = rng.random_bool(0.25);
    let has_all_backups = features.contains(&ALL_BACKUPS);
    // Backups in all groups, or many small groups, take much disk space, so such images stay small.
    let mib_max = match (has_all_backups || has_small_groups, profile) {
        (true, _) => 1000,
        (false, "ext4") => 60_000,
        // In ext2 and ext3, inode tables are usually not marked unused, so checkers read all of
        // them.
        (false, _) => 6000,
    };
    let mib = random_mib(rng).min(mib_max);
    let kib = (mib * 1024 + rng.random_range(0..1024)).min(bytes_max >> 10);
    let mut line = format!("{kib}K -t {profile}");
    if !block.is_empty() {
        line += &format!(" -b {block}");
    }
    // A few sets for ext2 and ext3 have options for groups, too, to see both programs refuse -G
    // without flex_bg.
    if profile == "ext4" || rng.random_bool(0.2) {
        line += &random_groups(rng, &features, block, has_small_groups);
    }
    line += &random_inodes(rng);
    if rng.random_bool(0.2) {
        line += &format!(" -m {}", pick(rng, &["0", "1", "2.5", "10", "33.3"]));
    }
    if rng.random_bool(0.15) && !features.contains(&"^has_journal") {
        line += &format!(" -J size={}", rng.random_range(1..40));
    }
    line += &random_extended(rng, &line.clone(), &features, mib);
    if !features.is_empty() {
        line += &format!(" -O {}", features.join(","));
    }
    Case::parse(&line)
}

/// Features that put a copy of the superblock into every group.
const ALL_BACKUPS: &str = "^sparse_super,^resize_inode";
const META_BG: &str = "meta_bg,^resize_inode";

fn random_mib(rng: &mut ChaCha8Rng) -> u64 {
    match rng.random_range(0..4) {
        0 => rng.random_range(4..40),
        1 => rng.random_range(40..700),
        2 => rng.random_range(700..9000),
        _ => rng.random_range(9000..60_000),
    }
}

fn random_features(rng: &mut ChaCha8Rng, profile: &str) -> Vec<&'static str> {
    let mut features = Vec::new();
    let any = [
        "^has_journal",
        "^resize_inode",
        META_BG,
        ALL_BACKUPS,
        "sparse_super2",
        "^metadata_csum",
        "uninit_bg,^metadata_csum",
        "orphan_file",
        "inline_data",
        "metadata_csum_seed",
        "fast_commit",
        "^dir_index",
        "large_dir",
        "ea_inode",
        "mmp",
        "^large_file",
    ];
    features.extend(any.into_iter().filter(|_| rng.random_bool(0.08)));
    if profile == "ext4" && rng.random_bool(0.25) {
        features.push("bigalloc");
    } else if profile == "ext4" {
        features
            .extend(["^flex_bg", "^64bit", "^extent,^64bit"].into_iter().filter(|_| rng.random_bool(0.12)));
    }
    features
}

/// Random options for clusters, flex groups and group sizes.
fn random_groups(rng: &mut ChaCha8Rng, features: &[&str], block: &str, has_small_groups: bool) -> String {
    let mut line = String::new();
    let is_cluster = features.contains(&"bigalloc");
    let block_size: u64 = block.parse().unwrap_or(1024);
    if is_cluster && !block.is_empty() && rng.random_bool(0.7) {
        line += &format!(" -C {}", (block_size << rng.random_range(1..6)).max(2048));
    }
    // With clusters, meta_bg and `-G 1`, mke2fs counts a shared cluster more than once when it
    // chooses the journal's position. So sets with bigalloc and meta_bg get no -G.
    let counts_twice = is_cluster && features.contains(&META_BG);
    let is_flex = features.iter().all(|feature| *feature != "^flex_bg");
    if is_flex && !counts_twice && rng.random_bool(0.3) {
        line += &format!(" -G {}", 1 << rng.random_range(0..10));
    }
    if has_small_groups {
        let limit = (block_size * 8).min(65528);
        line += &format!(" -g {}", rng.random_range(32..=limit / 8) * 8);
    }
    line
}

fn random_inodes(rng: &mut ChaCha8Rng) -> String {
    let mut line = match rng.random_range(0..6) {
        0 => format!(" -i {}", 1024 << rng.random_range(0..14)),
        1 => format!(" -N {}", rng.random_range(1..40_000)),
        _ => String::new(),
    };
    if rng.random_bool(0.2) {
        line += &format!(" -I {}", 128 << rng.random_range(0..4));
    }
    line
}

fn random_extended(rng: &mut ChaCha8Rng, line: &str, features: &[&str], mib: u64) -> String {
    // With packed tables and `-G 1`, mke2fs counts free blocks wrongly: see
    // `packed_tables_of_single_groups_are_counted_where_they_lie`.
    let may_pack =
        line.contains("-t ext4") && !features.contains(&"^flex_bg") && !format!("{line} ").contains(" -G 1 ");
    let stride = format!("stride={},stripe_width=64", rng.random_range(1..300));
    let resize = format!("resize={}M", mib * rng.random_range(2..2000));
    let all = [
        ("packed_meta_blocks=1", may_pack),
        (stride.as_str(), true),
        ("nodiscard", true),
        (resize.as_str(), true),
        ("num_backup_sb=1", true),
        ("root_owner=100000:5", true),
    ];
    let chosen: Vec<&str> = all
        .into_iter()
        .filter(|(_, fits)| *fits && rng.random_bool(0.12))
        .map(|(option, _)| option)
        .collect();
    if chosen.is_empty() { String::new() } else { format!(" -E {}", chosen.join(",")) }
}

/// Judges cases until both programs have made `wanted` images. Then panics with a list of the cases
/// that are wrong, if there are any.
fn judge_all(cases: impl Iterator<Item = Case>, wanted: usize) {
    let directory = tempfile::tempdir().unwrap();
    let pair = Pair::new(directory.path());
    let can_mount = blockyard_testkit::is_root();
    let (mut made, mut refused, mut mounted, mut wrong) = (0, 0, 0, Vec::new());
    for case in cases {
        if made == wanted {
            break;
        }
        let started = std::time::Instant::now();
        let first = judge(&case, &pair);
        let mount = can_mount && matches!(first, Ok(true)) && is_mountable(&case, &pair);
        let verdict = if mount { mount_and_write(&case, &pair).map(|()| true) } else { first };
        match verdict {
            Ok(true) => made += 1,
            Ok(false) => refused += 1,
            Err(what) => wrong.push(format!("{} {}: {what}", case.size, case.options.join(" "))),
        }
        mounted += usize::from(mount);
        if started.elapsed().as_secs() >= 5 {
            println!("{:.0?}: {} {}", started.elapsed(), case.size, case.options.join(" "));
        }
    }
    println!("{made} sets equal ({mounted} mounted), {refused} refused by both, {} wrong", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn images_equal_those_of_mke2fs() {
    if !require(&["mke2fs", "e2fsck", "dumpe2fs"]) {
        return;
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed(20_260_101));
    if full_matrix() {
        judge_all(fixed_cases().into_iter(), usize::MAX);
    } else {
        let small: Vec<Case> =
            fixed_cases().into_iter().filter(|case| case.bytes() <= SAMPLE_BYTES_MAX).collect();
        let sample: Vec<Case> = small.choose_multiple(&mut rng, 16).cloned().collect();
        judge_all(sample.into_iter(), usize::MAX);
    }
}

#[test]
fn random_sets_equal_those_of_mke2fs() {
    if !require(&["mke2fs", "e2fsck", "dumpe2fs"]) {
        return;
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed(20_260_102));
    let (wanted, bytes_max) = if full_matrix() { (200, u64::MAX) } else { (10, SAMPLE_BYTES_MAX) };
    judge_all(std::iter::repeat_with(|| random_case(&mut rng, bytes_max)).take(wanted * 4), wanted);
}

/// mke2fs subtracts each table from the free count of the group that owns the table, not of the
/// group in which the table lies. So mke2fs's image has errors. When a later mke2fs makes none, the
/// exceptions in docs/format-notes.md and in the random sets can go.
#[test]
fn packed_tables_of_single_groups_are_counted_where_they_lie() {
    if !require(&["mke2fs", "e2fsck"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let pair = Pair::new(directory.path());
    let (ours, theirs) = pair.make(&Case::parse("300M -t ext4 -b 1024 -G 1 -E packed_meta_blocks=1"));
    assert!(ours.status.success() && theirs.status.success());
    e2fsck_clean(&pair.ours);
    let judged = Command::new("e2fsck").arg("-fn").arg(&pair.theirs).output().unwrap();
    assert_eq!(judged.status.code(), Some(4), "{judged:?}");
}

#[test]
fn a_mounted_image_is_not_overwritten() {
    if !require(&["root", "mount", "e2fsck"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("mounted.img");
    let mkfs = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_blockyard"))
            .arg("mkfs")
            .arg(&image)
            .args(arguments)
            .output()
            .unwrap()
    };
    assert!(mkfs(&["32M"]).status.success());
    let mounted = LoopMount::new(&image, "").unwrap();
    let refused = mkfs(&["-F"]);
    assert_eq!(refused.status.code(), Some(8), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("in use by /dev/loop"), "{refused:?}");
    drop(mounted);
    e2fsck_clean(&image);
}
