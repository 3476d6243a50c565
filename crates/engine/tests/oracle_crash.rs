//! Power cuts during a workload. The power may fail after each write, and a volatile cache may have
//! lost any of the writes since the last flush. Our recovery, e2fsck and the kernel must find the
//! same content. Most tests recover only a sample of the states that such cuts leave. A part of the
//! sample is also recovered with e2fsck and with the kernel.
//!
//! A *fact* is a mark in the log of writes. It says what a path may hold after any later cut, until
//! the next fact about this path. After an fsync only one content is allowed; before a change, the
//! new content is allowed too.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

use blockyard_device::{BlockDevice, CrashPlan, CrashState, Event, MemoryDevice, RecorderDevice, WriteLog};
use blockyard_disk::inode::FileType;
use blockyard_disk::{InodeNr, Timestamp, TxnId};
use blockyard_engine::instruments::{BrokenRule, Instruments};
use blockyard_engine::mkfs;
use blockyard_engine::{
    DataMode, Fallocate, FileSystem, JournalUse, NewInode, OpContext, OpenOptions, Watched,
};
use blockyard_sync::CpuSlot;
use blockyard_testkit::repair::repair;
use blockyard_testkit::{LoopMount, coverage, full_matrix, require, seed, tree};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use zerocopy::IntoBytes;

type Recorder = RecorderDevice<MemoryDevice>;

fn context() -> OpContext {
    OpContext::root_at(Timestamp::from_seconds(1_700_000_000))
}

fn regular() -> NewInode {
    NewInode { kind: FileType::Regular, permissions: 0o644, device: None }
}

/// A file system on a recording device. The device's log also takes the facts.
struct Stage {
    fs: Watched,
    device: Arc<Recorder>,
}

impl Stage {
    fn make(&self, name: &str) -> InodeNr {
        self.fs.create(&context(), InodeNr::ROOT, name.as_bytes(), &regular()).unwrap()
    }

    fn file(&self, name: &str, content: &[u8]) -> InodeNr {
        let inode = self.make(name);
        self.fs.write(&context(), inode, 0, content).unwrap();
        inode
    }

    fn directory(&self, name: &str) -> InodeNr {
        let new = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
        self.fs.create(&context(), InodeNr::ROOT, name.as_bytes(), &new).unwrap()
    }

    /// Makes a file durable and records that it is there with this content.
    fn promise(&self, inode: InodeNr, path: &str, content: &[u8]) {
        self.fs.fsync(&context(), inode).unwrap();
        self.allow(path, &[Some(content)]);
    }

    /// From here on a path holds one of these contents; `None` means that the path does not exist.
    fn allow(&self, path: &str, contents: &[Option<&[u8]>]) {
        let words: Vec<String> = contents.iter().map(|content| content.map_or(0, hash).to_string()).collect();
        self.device.mark(&format!("{path} {}", words.join(" ")));
    }

    /// From here on a path may hold any content, or not exist.
    fn release(&self, path: &str) {
        self.device.mark(path);
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hash = tree::ContentHash::default();
    hash.add(bytes);
    hash.finish()
}

/// The image before the workload, and the log of what the workload wrote.
struct Recording {
    base: MemoryDevice,
    log: WriteLog,
}

/// Runs `work` on a new image; `name` is the image's name in docs/testing.md.
fn record(
    name: &str,
    size: u64,
    make: &mkfs::Options,
    options: OpenOptions,
    work: impl FnOnce(&Stage),
) -> Recording {
    let device = MemoryDevice::new(size);
    mkfs::format(&device, &make.clone().identity(1, 1)).unwrap();
    record_on(name, device, options, work)
}

fn record_on(name: &str, device: MemoryDevice, options: OpenOptions, work: impl FnOnce(&Stage)) -> Recording {
    let base = device.duplicate();
    let device = Arc::new(Recorder::new(device));
    let shared: Arc<dyn BlockDevice> = Arc::<Recorder>::clone(&device);
    let fs = FileSystem::open(shared, options, &context()).unwrap();
    let stage = Stage { fs: Watched::new(fs), device: Arc::clone(&device) };
    work(&stage);
    coverage::assert_done("oracle_crash", &[name], stage.fs.done());
    stage.fs.into_inner().close(&context()).unwrap();
    Recording { base, log: device.take_log() }
}

/// Paths with their content: the hash of a file's bytes, 0 for anything else.
type Tree = BTreeMap<String, u64>;

fn tree_of(fs: &FileSystem) -> blockyard_engine::Result<Tree> {
    let mut tree = Tree::new();
    let mut left = vec![(String::new(), InodeNr::ROOT)];
    while let Some((path, dir)) = left.pop() {
        let mut entries = Vec::new();
        fs.read_dir(dir, 0, |entry| {
            entries.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.inode));
            true
        })?;
        for (name, inode) in entries.into_iter().filter(|(name, _)| name != "." && name != "..") {
            let path = format!("{path}/{name}");
            let attributes = fs.attributes(inode)?;
            let mut value = 0;
            if attributes.kind == FileType::Regular {
                let mut content = vec![0; attributes.size as usize];
                fs.read(&context(), inode, 0, &mut content)?;
                value = hash(&content);
            } else if attributes.kind == FileType::Directory {
                left.push((path.clone(), inode));
            }
            tree.insert(path, value);
        }
    }
    Ok(tree)
}

impl Recording {
    fn image(&self, state: &CrashState) -> MemoryDevice {
        let device = self.base.duplicate();
        state.build(&self.log, &device).unwrap();
        device
    }

    /// What may be found after a cut: the last fact about each path.
    fn facts(&self, state: &CrashState) -> BTreeMap<&str, Vec<u64>> {
        let mut facts = BTreeMap::new();
        for (_, mark) in self.log.marks().take_while(|(at, _)| *at < state.point) {
            let (path, values) = mark.split_once(' ').unwrap_or((mark, ""));
            facts.insert(path, values.split_whitespace().map(|value| value.parse().unwrap()).collect());
        }
        facts
    }

    /// Recovers with our code and checks structure and facts. Returns the content or an error.
    fn recover(&self, state: &CrashState) -> Result<Tree, String> {
        let device = Arc::new(self.image(state));
        let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
        let fs = FileSystem::open(shared, OpenOptions::default(), &context())
            .map_err(|error| format!("{state}: {error}"))?;
        let tree = tree_of(&fs).map_err(|error| format!("{state}: {error}"))?;
        fs.close(&context()).map_err(|error| format!("{state}: {error}"))?;
        let report = blockyard_check::check(&*device, &blockyard_check::Options::default()).unwrap();
        if !report.is_clean() {
            return Err(format!("{state}: {:?}", report.findings));
        }
        for (path, allowed) in self.facts(state) {
            let found = tree.get(path).copied().unwrap_or(0);
            if !allowed.is_empty() && !allowed.contains(&found) {
                return Err(format!("{state}: {path} holds {found}, not one of {allowed:?}"));
            }
        }
        Ok(tree)
    }

    /// Recovers with e2fsck and with the kernel. Both must find the content that we found.
    fn compare(&self, state: &CrashState, ours: &Tree, directory: &Path) {
        let image = directory.join("image");
        let text = image.to_str().unwrap();
        self.image(state).save(&image).unwrap();
        let repair = repair(&image, None);
        assert!(repair.is_recovery_only(), "{state}: {repair:?}");
        blockyard_testkit::e2fsck_clean(&image);
        let after = |text: &str| {
            let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::load(Path::new(text)).unwrap());
            let options = OpenOptions { read_only: true, ..OpenOptions::default() };
            tree_of(&FileSystem::open(device, options, &context()).unwrap()).unwrap()
        };
        assert_eq!(&after(text), ours, "{state}: e2fsck");
        self.image(state).save(&image).unwrap();
        drop(LoopMount::new(&image, "").unwrap_or_else(|error| panic!("{state}: {error}")));
        assert_eq!(&after(text), ours, "{state}: kernel");
    }

    /// Whether the cut tears the superblock, which spans two sectors. Such states are not tested,
    /// because Linux, too, needs a backup superblock if the checksum of the primary one is wrong.
    fn tears_superblock(&self, state: &CrashState) -> bool {
        state.steps.iter().any(|step| {
            let Event::Write { offset, .. } = &self.log.events()[step.event] else { return false };
            let has = |at: u64| {
                let sector = at.checked_sub(*offset).map(|inside| (inside / 512) as usize);
                let sectors = step.sectors.as_ref();
                sector.is_some_and(|sector| sectors.and_then(|all| all.get(sector)) == Some(&true))
            };
            has(1024) != has(1536)
        })
    }

    /// Checks a sample of the states with our recovery, and one in `others` of them also with
    /// e2fsck and the kernel.
    fn check(&self, plan: &CrashPlan, ours: usize, others: usize) {
        let directory = tempfile::tempdir().unwrap();
        let mut states = 0;
        for state in self.sample(plan, ours) {
            let tree = self.recover(&state).unwrap_or_else(|error| panic!("{error}"));
            if states % others == 0 {
                self.compare(&state, &tree, directory.path());
            }
            states += 1;
        }
        println!("{states} states");
    }

    /// One in `ours` states, and all states directly after a durable write: that of a commit block,
    /// or of the superblock of the journal or the file system. States that tear the superblock are
    /// left out.
    fn sample<'a>(&'a self, plan: &'a CrashPlan, ours: usize) -> impl Iterator<Item = CrashState> + 'a {
        let is_kept = move |(number, state): &(usize, CrashState)| {
            let last = state.point.checked_sub(1).map(|at| &self.log.events()[at]);
            let is_durable = matches!(last, Some(Event::Write { is_durable: true, .. }));
            (is_durable || number % ours == 0) && !self.tears_superblock(state)
        };
        self.log.crash_states(plan).enumerate().filter(is_kept).map(|(_, state)| state)
    }
}

fn small() -> mkfs::Options {
    mkfs::Options::ext4().block_size(1024)
}

fn plan() -> CrashPlan {
    CrashPlan { seed: seed(7), subsets_max: 4, random_subsets: 4, torn: 1 }
}

/// A name that fills a directory quickly.
fn long_name(n: u32) -> String {
    format!("{}-{n}", "a-rather-long-name-".repeat(8))
}

/// Blocks go from directories to file data and back, files grow, are truncated and deleted, and the
/// log wraps around. If data is `logged`, an append fills the file's last block in a handle of its
/// own, which raises the size to the end of this block.
fn recycle(stage: &Stage, logged: bool) {
    let ctx = context();
    let fs = &stage.fs;
    // Little is left free, so that blocks are reused.
    let ballast = stage.make("ballast");
    let free = fs.statistics().blocks_free;
    fs.fallocate(&ctx, ballast, Fallocate::Allocate, 0, (free - 500) * 1024).unwrap();
    let steady = stage.file("steady", &[9; 2000]);
    stage.promise(steady, "/steady", &[9; 2000]);
    for round in 0..6u8 {
        let name = format!("directory-{round}");
        let dir = stage.directory(&name);
        for n in 0..40 {
            fs.create(&ctx, dir, long_name(n).as_bytes(), &regular()).unwrap();
        }
        fs.fsync(&ctx, dir).unwrap();
        let old = vec![round; 60_000];
        stage.release("/doomed");
        let doomed = stage.file("doomed", &old);
        stage.promise(doomed, "/doomed", &old);
        // Until appended data is written back, the size on disk must not include it.
        let tail = vec![round + 100; 7000];
        let grown: Vec<u8> = [9; 2000].iter().chain(&tail).copied().collect();
        let begun = [Some(&grown[..2048])].into_iter().filter(|_| logged);
        let allowed: Vec<_> = [Some(&[9; 2000][..]), Some(&grown)].into_iter().chain(begun).collect();
        stage.allow("/steady", &allowed);
        fs.write(&ctx, steady, 2000, &tail).unwrap();
        let other = stage.file("other", &[round; 100]);
        stage.promise(other, "/other", &[round; 100]);
        // A deleted file is complete or gone, even if its blocks are reused.
        stage.allow("/doomed", &[Some(&old), None]);
        fs.unlink(&ctx, InodeNr::ROOT, b"doomed").unwrap();
        for n in 0..40 {
            fs.unlink(&ctx, dir, long_name(n).as_bytes()).unwrap();
        }
        fs.rmdir(&ctx, InodeNr::ROOT, name.as_bytes()).unwrap();
        let early = stage.file("early", &vec![200 + round; 80_000]);
        fs.write_back_file(&ctx, early).unwrap();
        fs.fsync(&ctx, other).unwrap();
        let new = vec![150 + round; 150_000];
        let heir = stage.file("heir", &new);
        stage.promise(heir, "/heir", &new);
        stage.promise(steady, "/steady", &grown);
        stage.release("/heir");
        stage.release("/other");
        for name in ["heir", "early", "other"] {
            fs.unlink(&ctx, InodeNr::ROOT, name.as_bytes()).unwrap();
        }
        // The rest of the block with the new end is zeroed in place before the size falls.
        let mut zeroed = grown.clone();
        zeroed[2000..2048].fill(0);
        stage.allow("/steady", &[Some(&grown), Some(&zeroed), Some(&[9; 2000])]);
        fs.truncate(&ctx, steady, 2000).unwrap();
        stage.promise(steady, "/steady", &[9; 2000]);
    }
}

/// Numbers of handles between two commit points: unlimited, and so few that commits also fall
/// between the handles of one operation.
const HANDLES: [u64; 2] = [u64::MAX, 23];

fn recycled(broken_rule: Option<BrokenRule>, commit_point_handles: u64) -> Recording {
    let options = OpenOptions {
        instruments: Instruments::breaking(broken_rule),
        commit_point_handles,
        ..OpenOptions::default()
    };
    record("recycled", 8 << 20, &small(), options, |stage| recycle(stage, false))
}

#[test]
fn names_and_contents_survive_every_cut() {
    if !require(&["root", "e2fsck"]) {
        return;
    }
    let recording = record("names", 16 << 20, &small(), OpenOptions::default(), |stage| {
        let ctx = context();
        let first = stage.file("first", &[1; 3000]);
        stage.promise(first, "/first", &[1; 3000]);
        let dir = stage.directory("dir");
        for n in 0..20 {
            stage.fs.create(&ctx, dir, format!("a-rather-long-name-{n}").as_bytes(), &regular()).unwrap();
        }
        let second = stage.file("second", &[2; 10_000]);
        stage.promise(second, "/second", &[2; 10_000]);
        stage.allow("/first", &[Some(&[1; 3000]), None]);
        stage.fs.unlink(&ctx, InodeNr::ROOT, b"first").unwrap();
        stage.release("/second");
        stage.fs.fallocate(&ctx, second, Fallocate::Allocate, 0, 50_000).unwrap();
        stage.fs.truncate(&ctx, second, 5000).unwrap();
        stage.promise(second, "/second", &[2; 5000]);
    });
    recording.check(&plan(), 1, if full_matrix() { 1 } else { 12 });
}

#[test]
fn recycled_blocks_keep_their_owners() {
    if !require(&["root", "e2fsck"]) {
        return;
    }
    let (ours, others) = if full_matrix() { (1, 10) } else { (11, 60) };
    for handles in HANDLES {
        recycled(None, handles).check(&plan(), ours, others);
    }
}

/// The work of one of several threads: files in its own directory, and names in the root.
fn race(stage: &Stage, number: u32, rounds: u32) {
    let ctx = context().on(CpuSlot::new(number));
    let fs = &stage.fs;
    let dir_name = format!("thread-{number}");
    let new = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
    let dir = fs.create(&ctx, InodeNr::ROOT, dir_name.as_bytes(), &new).unwrap();
    let steady = fs.create(&ctx, dir, b"steady", &regular()).unwrap();
    let mut content = Vec::new();
    for round in 0..rounds {
        let byte = (number * 16 + round) as u8;
        let name = format!("file-{number}-{round}");
        let file = fs.create(&ctx, InodeNr::ROOT, name.as_bytes(), &regular()).unwrap();
        fs.fallocate(&ctx, file, Fallocate::Allocate, 0, 40_000).unwrap();
        fs.truncate(&ctx, file, 1000).unwrap();
        for n in 0..6 {
            fs.create(&ctx, dir, format!("{round}-{n}").as_bytes(), &regular()).unwrap();
        }
        let before = content.clone();
        content.extend(vec![byte; 3000]);
        let path = format!("/{dir_name}/steady");
        let first = (round == 0).then_some(None);
        let either: Vec<Option<&[u8]>> = [Some(&*before), Some(&*content)].into_iter().chain(first).collect();
        stage.allow(&path, &either);
        fs.write(&ctx, steady, before.len() as u64, &content[before.len()..]).unwrap();
        fs.fsync(&ctx, steady).unwrap();
        stage.allow(&path, &[Some(&content)]);
        fs.unlink(&ctx, InodeNr::ROOT, name.as_bytes()).unwrap();
        for n in 0..5 {
            fs.unlink(&ctx, dir, format!("{round}-{n}").as_bytes()).unwrap();
        }
    }
}

/// Work that every kind of image supports: no fallocate, so images with block maps are included.
fn plain(stage: &Stage) {
    let ctx = context();
    for round in 0..3u8 {
        let dir = stage.directory(&format!("dir-{round}"));
        for n in 0..12 {
            stage.fs.create(&ctx, dir, long_name(n).as_bytes(), &regular()).unwrap();
        }
        let name = format!("file-{round}");
        let path = format!("/{name}");
        let content = vec![round + 1; 90_000];
        let file = stage.file(&name, &content);
        stage.promise(file, &path, &content);
        stage.allow(&path, &[Some(&content), Some(&content[..50_000]), Some(&cut(&content, 50_000))]);
        stage.fs.truncate(&ctx, file, 50_000).unwrap();
        stage.fs.unlink(&ctx, dir, long_name(3).as_bytes()).unwrap();
        stage.promise(file, &path, &content[..50_000]);
        stage.allow(&path, &[Some(&content[..50_000]), None]);
        stage.fs.unlink(&ctx, InodeNr::ROOT, name.as_bytes()).unwrap();
    }
}

/// What a file may hold during a truncation to `size`: the rest of the new last block (of 1 KiB) is
/// zeroed in place before the size falls.
fn cut(content: &[u8], size: usize) -> Vec<u8> {
    let mut cut = content.to_vec();
    cut[size..size.next_multiple_of(1024)].fill(0);
    cut
}

#[test]
fn every_log_format_recovers() {
    if !require(&["root", "e2fsck"]) {
        return;
    }
    let ext4 = || mkfs::Options::ext4().block_size(1024);
    let images = [
        ("32-bit tags", ext4().features("^64bit")),
        ("64-bit tags", ext4().features("^metadata_csum,64bit")),
        ("ext3", mkfs::Options::ext3().block_size(1024)),
        ("orphan file", ext4().features("orphan_file")),
        ("clusters", ext4().cluster_size(8192)),
    ];
    for (name, make) in images {
        println!("{name}");
        let options = OpenOptions { commit_point_handles: 13, ..OpenOptions::default() };
        record(name, 16 << 20, &make, options, plain).check(&plan(), if full_matrix() { 1 } else { 37 }, 25);
    }
}

/// With data in the log, all content survives cuts, even data that begins like a block of the log
/// itself, and data in blocks that held directories before.
#[test]
fn logged_data_recovers() {
    if !require(&["root", "e2fsck"]) {
        return;
    }
    let options = OpenOptions { data: DataMode::Journal, commit_point_handles: 23, ..OpenOptions::default() };
    let (ours, others) = if full_matrix() { (1, 10) } else { (17, 40) };
    record("logged", 16 << 20, &small(), options.clone(), |stage| {
        // Every block begins with the magic number of the log's own blocks.
        let escaped = [0xC0, 0x3B, 0x39, 0x98].repeat(256 * 5);
        let file = stage.file("escaped", &escaped);
        stage.promise(file, "/escaped", &escaped);
        plain(stage);
        let mut changed = escaped.clone();
        changed[2000..2500].fill(1);
        stage.allow("/escaped", &[Some(&escaped), Some(&changed)]);
        stage.fs.write(&context(), file, 2000, &[1; 500]).unwrap();
        stage.promise(file, "/escaped", &changed);
        let mut bytes = vec![0; changed.len()];
        stage.fs.read(&context(), file, 0, &mut bytes).unwrap();
        assert_eq!(bytes, changed);
    })
    .check(&plan(), ours, others);
    record("logged, recycled", 8 << 20, &small(), options, |stage| recycle(stage, true)).check(
        &plan(),
        ours,
        others,
    );
}

#[test]
fn writeback_keeps_the_structure() {
    let options = OpenOptions { data: DataMode::Writeback, ..OpenOptions::default() };
    let recording = record("writeback", 8 << 20, &small(), options, |stage| recycle(stage, false));
    for state in recording.sample(&plan(), 11) {
        // If the removal of a file was not committed, the file may hold anything.
        if let Err(error) = recording.recover(&state) {
            assert!(error.contains("/doomed holds"), "{error}");
        }
    }
}

/// With a small cache and a large log, checkpoints empty the log long before it is full, and it
/// then starts over at its first block. Its earlier content is never replayed.
#[test]
fn a_log_that_begins_anew_recovers() {
    if !require(&["root", "e2fsck"]) {
        return;
    }
    let options = OpenOptions { cache_bytes: 1, ..OpenOptions::default() };
    let recording = record("begins anew", 32 << 20, &small().journal_mib(8), options, |stage| {
        for round in 0..36u8 {
            for number in 0..60 {
                stage.directory(&format!("directory-{round}-{number}"));
            }
            let content = vec![round; 3000];
            let name = format!("file-{round}");
            let file = stage.file(&name, &content);
            stage.promise(file, &format!("/{name}"), &content);
        }
    });
    let place = blockyard_recovery::Session::open(&recording.base).unwrap().into_journal().unwrap();
    let (at, first) = (place.physical(0).raw() * 1024, place.superblock().raw().s_first.get());
    let begins: Vec<u32> = recording
        .log
        .events()
        .iter()
        .filter_map(|event| match event {
            Event::Write { offset, data, .. } if *offset == at => {
                Some(u32::from_be_bytes(data[28..32].try_into().unwrap()))
            }
            _ => None,
        })
        .collect();
    // A log that starts over has its tail at the first block. The tail was there once at the
    // beginning, too.
    let again = begins.iter().filter(|&&start| start == first).count() - 1;
    assert!(again >= 3, "the log did not begin anew: {begins:?}");
    assert!(begins.iter().all(|&start| start < 1500), "{begins:?}");
    let (ours, others) = if full_matrix() { (3, 10) } else { (61, 30) };
    recording.check(&plan(), ours, others);
}

/// Directories of hundreds of blocks are created, filled and removed with a small cache:
/// transactions grow and shrink, and the blocks of removed directories become file data.
#[test]
fn transactions_that_grow_with_a_directory_recover() {
    if !require(&["root", "e2fsck"]) {
        return;
    }
    let options = OpenOptions { cache_bytes: 300_000, inodes_max: 64, ..OpenOptions::default() };
    let recording = record("grow", 32 << 20, &small().journal_mib(4), options, |stage| {
        let (fs, ctx) = (&stage.fs, context());
        let long_name = |number: u32| format!("{number:0>150}");
        let fifo = NewInode { kind: FileType::Fifo, permissions: 0o644, device: None };
        for round in 0..2u8 {
            let name = format!("large{round}");
            let directory = stage.directory(&name);
            for number in 0..2000 {
                fs.create(&ctx, directory, long_name(number).as_bytes(), &fifo).unwrap();
            }
            assert!(fs.attributes(directory).unwrap().size / 1024 >= 256);
            let held = stage.file(&format!("held{round}"), &[3; 100]);
            stage.promise(held, &format!("/held{round}"), &[3; 100]);
            for number in 0..2000 {
                fs.unlink(&ctx, directory, long_name(number).as_bytes()).unwrap();
            }
            fs.rmdir(&ctx, InodeNr::ROOT, name.as_bytes()).unwrap();
            let content = vec![round; 600_000];
            let heir = stage.file(&format!("heir{round}"), &content);
            stage.promise(heir, &format!("/heir{round}"), &content);
        }
    });
    let (ours, others) = if full_matrix() { (5, 40) } else { (201, 20) };
    recording.check(&plan(), ours, others);
}

#[test]
fn transaction_numbers_wrap() {
    let make = small().identity(1, 1);
    let device = MemoryDevice::new(16 << 20);
    mkfs::format(&device, &make).unwrap();
    set_next_transaction(&device, TxnId::new(0xFFFF_FFF8));
    let options = OpenOptions { commit_point_handles: 13, ..OpenOptions::default() };
    let recording = record_on("numbers wrap", device, options, plain);
    for state in recording.sample(&plan(), 37) {
        recording.recover(&state).unwrap_or_else(|error| panic!("{error}"));
    }
    let device = recording.base.duplicate();
    recording.log.apply_prefix(recording.log.events().len(), &device).unwrap();
    let end = blockyard_recovery::inspect(&device).unwrap().sequence;
    assert!(end.raw() < 0x8000_0000, "{end}: the numbers did not wrap");
}

/// Sets the number of the journal's next transaction, as if it had seen many transactions.
fn set_next_transaction(device: &MemoryDevice, tid: TxnId) {
    let place = blockyard_recovery::Session::open(device).unwrap().into_journal().unwrap();
    let mut raw = *place.superblock().raw();
    raw.s_sequence.set(tid.raw());
    raw.seal();
    device.write_at(place.physical(0).raw() * 1024, raw.as_bytes()).unwrap();
}

#[test]
fn threads_leave_whole_transactions() {
    if !require(&["root", "e2fsck"]) {
        return;
    }
    let rounds = if full_matrix() { 12 } else { 6 };
    let options = OpenOptions { cpus: 4, commit_point_handles: 31, ..OpenOptions::default() };
    let recording = record("threads", 16 << 20, &small(), options, |stage| {
        std::thread::scope(|scope| {
            for number in 0..4 {
                scope.spawn(move || race(stage, number, rounds));
            }
        });
    });
    recording.check(&plan(), 31, 60);
}

#[test]
fn each_broken_rule_is_noticed() {
    let plan = plan();
    for rule in BrokenRule::ALL {
        let mut tried = 0;
        let noticed = HANDLES.into_iter().find_map(|handles| {
            let recording = recycled(Some(rule), handles);
            recording.sample(&plan, 11).find_map(|state| {
                tried += 1;
                recording.recover(&state).err()
            })
        });
        let noticed = noticed.unwrap_or_else(|| panic!("{rule:?}: {tried} states, nothing noticed"));
        println!("{rule:?}: state {tried}: {}", &noticed[..noticed.len().min(300)]);
    }
}

#[test]
fn an_ignored_journal_stays_empty() {
    let options = OpenOptions { journal: JournalUse::Ignored, ..OpenOptions::default() };
    let recording = record("ignored", 16 << 20, &small(), options, |stage| {
        let file = stage.file("file", &[1; 3000]);
        stage.fs.fsync(&context(), file).unwrap();
        assert!(!stage.fs.superblock().needs_recovery());
    });
    let device = recording.base.duplicate();
    recording.log.apply_prefix(recording.log.events().len() / 2, &device).unwrap();
    let status = blockyard_recovery::inspect(&device).unwrap();
    assert_eq!((status.state, status.start), (blockyard_recovery::JournalState::Clean, None));
}

/// docs/testing.md must list the images.
#[test]
fn the_images_are_told() {
    let formats = ["32-bit tags", "64-bit tags", "ext3", "orphan file", "clusters"];
    let others = ["names", "recycled", "logged", "logged, recycled", "writeback", "begins anew", "grow"];
    let last = ["numbers wrap", "threads", "ignored"];
    let all = formats.into_iter().chain(others).chain(last);
    coverage::assert_images("oracle_crash", all.map(|name| (name, 1024)));
}
