//! Random runs of eight threads over every operation, on images that mke2fs made with many sets of
//! options. In each run the image has several lives: it is opened several times, and the options
//! change from life to life. After each life, the image is judged by e2fsck, our checker, our
//! reader and the engine, and where they can read it, by ext4-view and the kernel.
//!
//! A second test in this file reads, changes and judges images that the kernel filled.
//!
//! `cargo test -p blockyard-engine --test oracle_matrix` takes a sample that changes with the seed;
//! `BLOCKYARD_FULL=1` runs every set with 20,000 operations. `SET=name` picks one set, and
//! `OPERATIONS=n` sets the number of operations. `THREADS=n` sets the number of threads; with one
//! thread, a run is repeatable.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

#[path = "../../inspect/tests/support/walk.rs"]
mod reader;
#[path = "../../inspect/tests/support/view.rs"]
mod view;
#[path = "support/walk.rs"]
mod walk;
#[path = "matrix/work.rs"]
mod work;

use blockyard_alloc::Policy;
use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::Timestamp;
use blockyard_engine::{FileSystem, OpContext, OpenOptions, Watched};
use blockyard_inspect::reader::Reader;
use blockyard_testkit::tree::{Tree, assert_same, read_tree};
use blockyard_testkit::{LoopMount, coverage, e2fsck_clean, fill, full_matrix, mke2fs, require, seed};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use work::{Answers, Plan, Worker};

/// A kind of image, the policy that is used on it, and whether the kernel and ext4-view can judge
/// it.
#[derive(Clone, Copy)]
struct Set {
    name: &'static str,
    options: &'static [&'static str],
    mib: u64,
    kernel: bool,
    view: bool,
    policy: &'static str,
}

const fn set(name: &'static str, mib: u64, options: &'static [&'static str]) -> Set {
    Set { name, options, mib, kernel: true, view: true, policy: "linux-6.18" }
}

/// A set from the era of a policy. This policy places everything that is created on the image.
const fn placed(policy: &'static str, set: Set) -> Set {
    Set { policy, ..set }
}

/// A set that ext4-view 0.9 cannot read. ext4-view does not know clusters, inline data, value
/// inodes, inodes of 128 bytes, meta_bg, large_dir, and directories that record no file types.
const fn unseen(set: Set) -> Set {
    Set { view: false, ..set }
}

/// A set that the kernel cannot mount: its blocks are larger than a page.
const fn unmounted(set: Set) -> Set {
    Set { kernel: false, ..set }
}

/// The features of 2008.
const OF_2008: &[&str] = &["-b", "1024", "-O", "^metadata_csum,^64bit,^orphan_file,uninit_bg"];

const SETS: &[Set] = &[
    set("plain", 128, &["-b", "4096"]),
    set("1k", 96, &["-b", "1024"]),
    set("2k", 96, &["-b", "2048", "-G", "4"]),
    unmounted(set("64k", 512, &["-b", "65536"])),
    placed("ext3", set("ext3", 96, &["-t", "ext3"])),
    placed("ext3", set("ext3-1k", 64, &["-t", "ext3", "-b", "1024"])),
    set("ext2", 96, &["-t", "ext2"]),
    set("ext2-1k", 64, &["-t", "ext2", "-b", "1024"]),
    set("no-journal", 96, &["-O", "^has_journal"]),
    set("no-csum", 96, &["-O", "^metadata_csum"]),
    set("uninit_bg", 96, &["-b", "1024", "-O", "^metadata_csum,uninit_bg"]),
    placed("ext4-2008", set("of-2008", 96, OF_2008)),
    placed("ext4-2009", set("of-2009", 96, OF_2008)),
    set("no-64bit", 96, &["-O", "^64bit"]),
    set("no-flex", 96, &["-O", "^flex_bg", "-b", "1024"]),
    unseen(set("inodes-128", 96, &["-I", "128"])),
    set("inodes-512", 96, &["-I", "512"]),
    set("inodes-4096", 96, &["-b", "4096", "-I", "4096", "-N", "3000"]),
    unseen(set("cluster-2", 96, &["-b", "4096", "-O", "bigalloc", "-C", "8192"])),
    unseen(set("cluster-2-1k", 64, &["-b", "1024", "-O", "bigalloc", "-C", "2048"])),
    unseen(set("cluster-4", 128, &["-b", "4096", "-O", "bigalloc", "-C", "16384"])),
    unseen(set("cluster-16", 256, &["-b", "4096", "-O", "bigalloc", "-C", "65536"])),
    unseen(set("cluster-64-1k", 256, &["-b", "1024", "-O", "bigalloc", "-C", "65536"])),
    unseen(set("cluster-256", 1024, &["-b", "4096", "-O", "bigalloc", "-C", "1048576"])),
    unseen(set("inline", 96, &["-b", "4096", "-O", "inline_data"])),
    unseen(set("inline-512", 96, &["-b", "1024", "-I", "512", "-O", "inline_data"])),
    unseen(set("ea_inode", 96, &["-b", "1024", "-O", "ea_inode"])),
    unseen(set("meta_bg", 96, &["-b", "1024", "-O", "meta_bg,^resize_inode"])),
    unseen(set("large_dir", 96, &["-b", "1024", "-O", "large_dir"])),
    set("orphan_file", 96, &["-O", "metadata_csum_seed,orphan_file"]),
    set("sparse_super2", 96, &["-b", "1024", "-O", "sparse_super2"]),
    set("stripe", 96, &["-b", "4096", "-E", "stride=4,stripe_width=16"]),
    set("small-groups", 96, &["-b", "4096", "-g", "1024"]),
    set("lazy", 96, &["-E", "lazy_itable_init=1"]),
    unseen(set("no-dir_index", 64, &["-O", "^dir_index,^filetype,^large_file,^huge_file,^extra_isize"])),
    set("full", 10, &["-b", "1024", "-m", "3", "-N", "1500"]),
    set("full-4k", 24, &["-b", "4096", "-N", "2000"]),
    placed("ext3", set("full-ext3", 10, &["-t", "ext3", "-b", "1024"])),
    unseen(set("full-cluster", 48, &["-b", "4096", "-O", "bigalloc", "-C", "32768"])),
    unseen(set("full-inline", 10, &["-b", "1024", "-O", "inline_data,^has_journal"])),
    set("few-inodes", 64, &["-b", "1024", "-N", "300"]),
];

/// How many lives an image has in one run.
const LIVES: u32 = 4;

fn context() -> OpContext {
    OpContext::root_at(Timestamp::from_seconds(1_700_000_000))
}

fn number(variable: &str) -> Option<u32> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

/// The sets of this run: the one that `SET` names, or all in a full run, otherwise `sampled` of
/// them, chosen by the seed.
fn chosen(seed: u64, sampled: usize) -> Vec<Set> {
    if let Ok(name) = std::env::var("SET") {
        return SETS.iter().filter(|set| set.name == name).copied().collect();
    }
    let first = usize::try_from(seed).unwrap() * sampled;
    let count = if full_matrix() { SETS.len() } else { sampled };
    (0..count).map(|n| SETS[(first + n) % SETS.len()]).collect()
}

fn operations() -> u32 {
    number("OPERATIONS").unwrap_or(if full_matrix() { 20_000 } else { 1_600 })
}

fn make(set: &Set, image: &Path) {
    let mut options = vec!["-U", "6a6a6a6a-1111-2222-3333-444444444444"];
    if !set.options.contains(&"-t") {
        options.extend(["-t", "ext4"]);
    }
    options.extend_from_slice(set.options);
    mke2fs(image, &options, &format!("{}M", set.mib));
}

fn open(device: &Arc<MemoryDevice>, options: OpenOptions) -> FileSystem {
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(device);
    FileSystem::open(shared, options, &context()).unwrap()
}

/// The options of a life: defaults in the first and the last one, little memory in the second, no
/// delayed allocation in the third.
fn options_of(set: &Set, life: u32) -> OpenOptions {
    let policy = Policy::parse(set.policy).unwrap();
    let options = OpenOptions { cpus: 8, policy, seed: u64::from(life), ..OpenOptions::default() };
    match life % LIVES {
        1 => OpenOptions {
            cache_bytes: 1 << 20,
            dirty_data_bytes: 1 << 20,
            inodes_max: 40,
            commit_point_handles: 50,
            ..options
        },
        2 => OpenOptions { delayed_allocation: false, commit_point_handles: 500, ..options },
        _ => options,
    }
}

/// The results, and the names of the operations that succeeded, of all lives together.
#[derive(Default)]
struct Sum {
    answers: Answers,
    done: BTreeSet<&'static str>,
}

/// One life: all threads work, everything is synced, and the image is closed. Returns the tree as
/// the instance showed it.
fn live(set: &Set, device: &Arc<MemoryDevice>, life: u32, seed: u64, sum: &mut Sum) -> Tree {
    let threads = number("THREADS").unwrap_or(8);
    let fs = Watched::new(open(device, options_of(set, life)));
    let geometry = fs.geometry();
    let unit = (geometry.block_size() as u64) << geometry.cluster_ratio_bits();
    let steps = operations() / LIVES / threads;
    let plan = Plan { fs: &fs, seed: seed ^ (u64::from(life) << 48), unit, names: 60, steps };
    let results: Vec<Answers> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..threads).map(|slot| scope.spawn(move || Worker::new(plan, slot).run())).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    for (name, (worked, refused)) in results.into_iter().flatten() {
        let sum = sum.answers.entry(name).or_default();
        *sum = (sum.0 + worked, sum.1 + refused);
    }
    fs.sync(&context()).unwrap();
    let tree = walk::of_engine(&fs);
    sum.done.extend(fs.done());
    fs.into_inner().close(&context()).unwrap();
    tree
}

/// Asserts that e2fsck and our checker find nothing, and that every reader sees `expected`.
fn judge(set: &Set, device: &Arc<MemoryDevice>, image: &Path, expected: &Tree) {
    device.save(image).unwrap();
    e2fsck_clean(image);
    let report = blockyard_check::check(&**device, &blockyard_check::Options::default()).unwrap();
    assert!(
        report.is_clean(),
        "e2fsck finds nothing, our checker: {:?}",
        &report.findings[..report.findings.len().min(10)]
    );
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(device);
    assert_same(expected, &reader::of_reader(&Reader::open(shared).unwrap()));
    let again = open(device, OpenOptions { read_only: true, ..OpenOptions::default() });
    assert_same(expected, &walk::of_engine(&again));
    if set.kernel {
        let mount = LoopMount::new(image, "ro,noatime").unwrap();
        assert_same(expected, &read_tree(mount.path()));
    }
    if set.view {
        view::assert_same(image, expected);
    }
}

/// Takes an image through its lives and judges it after each. Returns the operations that
/// succeeded.
fn run(set: &Set, device: &Arc<MemoryDevice>, image: &Path, seed: u64) -> BTreeSet<&'static str> {
    let mut sum = Sum::default();
    for life in 0..LIVES {
        let tree = live(set, device, life, seed, &mut sum);
        println!("{}: life {life}: {} names", set.name, tree.len());
        judge(set, device, image, &tree);
    }
    for (name, (worked, refused)) in &sum.answers {
        println!("  {name}: {worked} worked, {refused} refused");
    }
    coverage::assert_done_within("oracle_matrix", &[set.name], sum.done.iter().copied());
    sum.done
}

#[test]
fn random_runs_leave_what_everybody_reads_the_same() {
    if !require(&["mke2fs", "e2fsck", "mount", "root"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("image");
    let (seed, mut done) = (seed(4), BTreeSet::new());
    let sets = chosen(seed, 4);
    for set in &sets {
        println!("{} {:?}", set.name, set.options);
        make(set, &image);
        let device = Arc::new(MemoryDevice::load(&image).unwrap());
        done.extend(run(set, &device, &image, seed));
    }
    // One set, or few operations, cover only some of what docs/testing.md lists for this test.
    if ["SET", "OPERATIONS"].iter().all(|variable| std::env::var_os(variable).is_none()) {
        let names: Vec<&str> = sets.iter().map(|set| set.name).collect();
        coverage::assert_done("oracle_matrix", &names, done);
    }
}

/// Has the kernel create every kind of file, name and attribute that this kind of image supports,
/// as far as they fit. Returns the tree that the kernel then shows.
fn fill_by_the_kernel(set: &Set, image: &Path) -> Tree {
    let mount = LoopMount::new(image, "").unwrap();
    let root = mount.path();
    let block_size = rustix::fs::statvfs(root).unwrap().f_bsize;
    fill::sizes(root, block_size as usize);
    fill::sparse(root, 3_000_000);
    fill::fragmented(root, "fragmented", block_size as usize, 600);
    fill::symlinks(root, [1, 58, 59, 60, 61, 200, 1000]);
    fill::specials(root);
    fill::owners(root);
    fill::times(root, !set.options.contains(&"128") && !set.options.contains(&"ext3"));
    fill::attributes(root, if set.options.contains(&"ea_inode") { 40_000 } else { 500 });
    fill::access_lists(root);
    fill::names(root);
    fill::many_names(root, "many", 2000, 40);
    fill::deep(root, 20);
    drop(mount);
    let mount = LoopMount::new(image, "ro,noatime").unwrap();
    read_tree(mount.path())
}

#[test]
fn what_the_kernel_filled_is_read_and_changed() {
    if !require(&["mke2fs", "e2fsck", "mount", "root"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("image");
    let seed = seed(11);
    let sets = chosen(seed, 3);
    for set in sets.into_iter().filter(|set| set.kernel && set.mib > 60 && set.name != "few-inodes") {
        println!("{} {:?}", set.name, set.options);
        make(&set, &image);
        let theirs = fill_by_the_kernel(&set, &image);
        let device = Arc::new(MemoryDevice::load(&image).unwrap());
        let fs = open(&device, OpenOptions { read_only: true, ..OpenOptions::default() });
        assert_same(&walk::of_engine(&fs), &theirs);
        drop(fs);
        run(&set, &device, &image, seed);
    }
}

/// docs/testing.md must list the images. Without an explicit block size, mke2fs chooses blocks of
/// 1 KiB, because those images are smaller than 512 MiB.
#[test]
fn the_sets_are_told() {
    let block = |set: &Set| {
        let mut words = set.options.iter().skip_while(|word| **word != "-b").skip(1);
        words.next().map_or(1024, |size| size.parse().unwrap())
    };
    coverage::assert_images("oracle_matrix", SETS.iter().map(|set| (set.name, block(set))));
}
