//! Power cuts: every prefix of the writes of a workload, and samples of what a volatile cache may leave of the last
//! epoch, recovered by us, by e2fsck and by the kernel to the same content.
//!
//! A *fact* is a mark in the log of writes, put there when an fsync or a sync returned; from then on what it says must
//! be found after any cut.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

use blockyard_device::{BlockDevice, CrashPlan, CrashState, Event, MemoryDevice, RecorderDevice, WriteLog};
use blockyard_disk::inode::FileType;
use blockyard_disk::{InodeNr, Timestamp};
use blockyard_engine::mkfs;
use blockyard_engine::{Fallocate, FileSystem, JournalUse, NewInode, OpContext, OpenOptions};
use blockyard_testkit::{LoopMount, full_matrix, require, seed, tree};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

type Recorder = RecorderDevice<MemoryDevice>;

fn context() -> OpContext {
    OpContext::root_at(Timestamp::from_seconds(1_700_000_000))
}

fn regular() -> NewInode {
    NewInode { kind: FileType::Regular, permissions: 0o644, device: None }
}

/// A file system whose device records, and the facts that it promised.
struct Stage {
    fs: FileSystem,
    device: Arc<Recorder>,
}

impl Stage {
    fn file(&self, name: &str, content: &[u8]) -> InodeNr {
        let inode = self.fs.create(&context(), InodeNr::ROOT, name.as_bytes(), &regular()).unwrap();
        self.fs.write(&context(), inode, 0, content).unwrap();
        inode
    }

    /// Makes a file durable and notes that it is there with this content.
    fn promise(&self, inode: InodeNr, path: &str, content: &[u8]) {
        self.fs.fsync(&context(), inode).unwrap();
        self.device.mark(&format!("has {path} {}", hash(content)));
    }

    /// From here on nothing is promised about a path.
    fn release(&self, path: &str) {
        self.device.mark(&format!("free {path}"));
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hash = tree::ContentHash::default();
    hash.add(bytes);
    hash.finish()
}

/// The image before the workload and what was written then.
struct Recording {
    base: MemoryDevice,
    log: WriteLog,
}

fn record(size: u64, make: &mkfs::Options, options: OpenOptions, work: impl FnOnce(&Stage)) -> Recording {
    let device = MemoryDevice::new(size);
    mkfs::format(&device, &make.clone().identity(1, 1)).unwrap();
    let base = device.duplicate();
    let device = Arc::new(Recorder::new(device));
    let shared: Arc<dyn BlockDevice> = Arc::<Recorder>::clone(&device);
    let fs = FileSystem::open(shared, options, &context()).unwrap();
    let stage = Stage { fs, device: Arc::clone(&device) };
    work(&stage);
    stage.fs.close(&context()).unwrap();
    Recording { base, log: device.take_log() }
}

/// Paths with what they hold: the hash of a file's bytes, 0 for anything else.
type Tree = BTreeMap<String, u64>;

fn tree_of(fs: &FileSystem) -> Tree {
    let mut tree = Tree::new();
    let mut left = vec![(String::new(), InodeNr::ROOT)];
    while let Some((path, dir)) = left.pop() {
        let mut entries = Vec::new();
        fs.read_dir(dir, 0, |entry| {
            entries.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.inode));
            true
        })
        .unwrap();
        for (name, inode) in entries.into_iter().filter(|(name, _)| name != "." && name != "..") {
            let path = format!("{path}/{name}");
            let attributes = fs.attributes(inode).unwrap();
            let mut value = 0;
            if attributes.kind == FileType::Regular {
                let mut content = vec![0; attributes.size as usize];
                fs.read(&context(), inode, 0, &mut content).unwrap();
                value = hash(&content);
            } else if attributes.kind == FileType::Directory {
                left.push((path.clone(), inode));
            }
            tree.insert(path, value);
        }
    }
    tree
}

impl Recording {
    fn image(&self, state: &CrashState) -> MemoryDevice {
        let device = self.base.duplicate();
        state.build(&self.log, &device).unwrap();
        device
    }

    /// What must be found after a cut: the last word on each path.
    fn facts(&self, state: &CrashState) -> BTreeMap<&str, u64> {
        let mut facts = BTreeMap::new();
        for (_, mark) in self.log.marks().take_while(|(at, _)| *at < state.point) {
            let mut words = mark.split(' ');
            match (words.next(), words.next(), words.next()) {
                (Some("has"), Some(path), Some(value)) => {
                    facts.insert(path, value.parse().unwrap());
                }
                (Some("free"), Some(path), None) => {
                    facts.remove(path);
                }
                other => panic!("mark {other:?}"),
            }
        }
        facts
    }

    /// Recovers with our code and checks structure and facts; gives the content.
    fn recover(&self, state: &CrashState) -> Tree {
        let device = Arc::new(self.image(state));
        let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
        let fs = FileSystem::open(shared, OpenOptions::default(), &context())
            .unwrap_or_else(|error| panic!("{state}: {error}"));
        let tree = tree_of(&fs);
        fs.close(&context()).unwrap();
        let report = blockyard_check::check(&*device, &blockyard_check::Options::default()).unwrap();
        assert!(report.is_clean(), "{state}: {:?}", report.findings);
        for (path, value) in self.facts(state) {
            assert_eq!(tree.get(path), Some(&value), "{state}: {path}");
        }
        tree
    }

    /// Recovers with e2fsck and with the kernel.
    fn compare(&self, state: &CrashState, ours: &Tree, directory: &Path) {
        let image = directory.join("image");
        let text = image.to_str().unwrap();
        self.image(state).save(&image).unwrap();
        let problems = directory.join("problems");
        let log = format!("problem_log_filename={}", problems.to_str().unwrap());
        let _ = std::fs::remove_file(&problems);
        let config = directory.join("e2fsck.conf");
        std::fs::write(&config, format!("[options]\n{}\n", log.replacen('=', " = ", 1))).unwrap();
        let output = std::process::Command::new("e2fsck")
            .args(["-fy", text])
            .env("E2FSCK_CONFIG", &config)
            .output()
            .unwrap();
        assert!(
            matches!(output.status.code(), Some(0 | 1)),
            "{state}: {}",
            String::from_utf8_lossy(&output.stdout)
        );
        let found = std::fs::read_to_string(&problems).unwrap_or_default();
        for code in found.split("<problem code=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(matches!(code, "0x05000f" | "0x05000d"), "{state}: {code}\n{found}");
        }
        blockyard_testkit::e2fsck_clean(&image);
        let after = |text: &str| {
            let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::load(Path::new(text)).unwrap());
            let options = OpenOptions { read_only: true, ..OpenOptions::default() };
            tree_of(&FileSystem::open(device, options, &context()).unwrap())
        };
        assert_eq!(&after(text), ours, "{state}: e2fsck");
        self.image(state).save(&image).unwrap();
        drop(LoopMount::new(&image, "").unwrap_or_else(|error| panic!("{state}: {error}")));
        assert_eq!(&after(text), ours, "{state}: kernel");
    }

    /// The superblock spans two sectors and is written directly at open and close: torn, its checksum is wrong, and
    /// only a backup helps. That is so for Linux as well.
    fn tears_superblock(&self, state: &CrashState) -> bool {
        state.steps.iter().any(|step| {
            let event = &self.log.events()[step.event];
            step.sectors.is_some()
                && matches!(event, Event::Write { offset: 1024, data, .. } if data.len() == 1024)
        })
    }

    /// All states of the plan by our recovery, every `sample`-th also by the others.
    fn check(&self, plan: &CrashPlan, sample: usize) {
        let directory = tempfile::tempdir().unwrap();
        let mut states = 0;
        let states_of = self.log.crash_states(plan).filter(|state| !self.tears_superblock(state));
        for (number, state) in states_of.enumerate() {
            let tree = self.recover(&state);
            if number % sample == 0 {
                self.compare(&state, &tree, directory.path());
            }
            states += 1;
        }
        println!("{states} states");
    }
}

fn small() -> mkfs::Options {
    mkfs::Options::ext4().block_size(1024)
}

fn plan() -> CrashPlan {
    CrashPlan { seed: seed(7), subsets_max: 4, random_subsets: 4, torn: 1 }
}

#[test]
fn names_and_contents_survive_every_cut() {
    if !require(&["root", "e2fsck"]) {
        return;
    }
    let recording = record(16 << 20, &small(), OpenOptions::default(), |stage| {
        let ctx = context();
        let first = stage.file("first", &[1; 3000]);
        stage.promise(first, "/first", &[1; 3000]);
        let directory = NewInode { kind: FileType::Directory, permissions: 0o755, device: None };
        let dir = stage.fs.create(&ctx, InodeNr::ROOT, b"dir", &directory).unwrap();
        for n in 0..20 {
            stage.fs.create(&ctx, dir, format!("a-rather-long-name-{n}").as_bytes(), &regular()).unwrap();
        }
        let second = stage.file("second", &[2; 10_000]);
        stage.promise(second, "/second", &[2; 10_000]);
        stage.release("/first");
        stage.fs.unlink(&ctx, InodeNr::ROOT, b"first").unwrap();
        stage.fs.fallocate(&ctx, second, Fallocate::Allocate, 0, 50_000).unwrap();
        stage.release("/second");
        stage.fs.truncate(&ctx, second, 5000).unwrap();
        stage.promise(second, "/second", &[2; 5000]);
    });
    recording.check(&plan(), if full_matrix() { 1 } else { 12 });
}

#[test]
fn an_ignored_journal_stays_empty() {
    let options = OpenOptions { journal: JournalUse::Ignored, ..OpenOptions::default() };
    let recording = record(16 << 20, &small(), options, |stage| {
        let file = stage.file("file", &[1; 3000]);
        stage.fs.fsync(&context(), file).unwrap();
        assert!(!stage.fs.superblock().needs_recovery());
    });
    let device = recording.base.duplicate();
    recording.log.apply_prefix(recording.log.events().len() / 2, &device).unwrap();
    let status = blockyard_recovery::inspect(&device).unwrap();
    assert_eq!((status.state, status.start), (blockyard_recovery::JournalState::Clean, None));
}
