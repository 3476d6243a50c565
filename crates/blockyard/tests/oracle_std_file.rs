//! `File` against `std::fs::File` on the kernel's ext4: the same random sequences of operations
//! give equal results, equal errors and equal files.
//!
//! `STEPS=n` sets the number of operations. The default is 2,000, or 100,000 with
//! `BLOCKYARD_FULL=1`. `SEED` sets the seed.

#![allow(clippy::as_conversions, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use blockyard::{FileSystem, ImageOptions, OpenOptions, mkfs};
use blockyard_testkit::{LoopDevice, LoopMount, e2fsck_clean, full_matrix, require, seed};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use rustix::fs::{FallocateFlags, fallocate, seek};

const NAMES: [&str; 3] = ["a", "b", "c"];
/// Operations in one sequence.
const STEPS: usize = 80;

#[derive(Clone, Debug)]
enum Op {
    Open { slot: usize, name: usize, bits: u8 },
    Clone { from: usize, to: usize },
    Close { slot: usize },
    Read { slot: usize, len: usize },
    Write { slot: usize, len: usize },
    Seek { slot: usize, to: Position },
    ReadAt { slot: usize, at: u64, len: usize },
    WriteAt { slot: usize, at: u64, len: usize },
    SetLen { slot: usize, len: u64 },
    Allocate { slot: usize, at: u64, len: u64 },
    Punch { slot: usize, at: u64, len: u64 },
    SeekData { slot: usize, at: u64 },
    SeekHole { slot: usize, at: u64 },
    Sync { slot: usize, data: bool },
    Metadata { slot: usize },
    SetPermissions { slot: usize, mode: u16 },
    SetModified { slot: usize, seconds: u32 },
    ReadToEnd { slot: usize },
    Rename { from: usize, to: usize },
    Remove { name: usize },
    Link { from: usize, to: usize },
}

#[derive(Clone, Copy, Debug)]
enum Position {
    Start(u64),
    Current(i64),
    End(i64),
}

impl From<Position> for SeekFrom {
    fn from(position: Position) -> Self {
        match position {
            Position::Start(at) => Self::Start(at),
            Position::Current(by) => Self::Current(by),
            Position::End(by) => Self::End(by),
        }
    }
}

fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0..20_000u64,
        2 => (0..64u64, 0..3u64).prop_map(|(block, by)| (block * 4096 + by).saturating_sub(1)),
        1 => 0..(4u64 << 20),
        1 => prop_oneof![Just(1u64 << 35), Just(1u64 << 63), Just(u64::MAX)],
    ]
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0..300usize, 3 => 0..20_000usize, 2 => prop_oneof![Just(0), Just(4095), Just(4096), Just(4097)]]
}

/// Operations that either allocate ranges or seek data and holes, but not both: once the kernel has
/// read unwritten blocks, it reports them as data.
fn op(allocates: bool) -> BoxedStrategy<Op> {
    let slot = 0..4usize;
    let name = 0..NAMES.len();
    let range =
        (0..64u64, 0..4u64, 0..60_000u64).prop_map(|(block, by, len)| (block * 4096 + by * 1000, len));
    let places = if allocates {
        (slot.clone(), range.clone()).prop_map(|(slot, (at, len))| Op::Allocate { slot, at, len }).boxed()
    } else {
        prop_oneof![
            (slot.clone(), offset()).prop_map(|(slot, at)| Op::SeekData { slot, at }),
            (slot.clone(), offset()).prop_map(|(slot, at)| Op::SeekHole { slot, at }),
        ]
        .boxed()
    };
    prop_oneof![
        6 => (slot.clone(), name.clone(), 0..64u8).prop_map(|(slot, name, bits)| Op::Open { slot, name, bits }),
        4 => (slot.clone(), name.clone()).prop_map(|(slot, name)| Op::Open { slot, name, bits: 0b01_0011 }),
        1 => (slot.clone(), slot.clone()).prop_map(|(from, to)| Op::Clone { from, to }),
        1 => slot.clone().prop_map(|slot| Op::Close { slot }),
        4 => (slot.clone(), len()).prop_map(|(slot, len)| Op::Read { slot, len }),
        6 => (slot.clone(), len()).prop_map(|(slot, len)| Op::Write { slot, len }),
        4 => (slot.clone(), position()).prop_map(|(slot, to)| Op::Seek { slot, to }),
        4 => (slot.clone(), offset(), len()).prop_map(|(slot, at, len)| Op::ReadAt { slot, at, len }),
        4 => (slot.clone(), offset(), len()).prop_map(|(slot, at, len)| Op::WriteAt { slot, at, len }),
        2 => (slot.clone(), offset()).prop_map(|(slot, len)| Op::SetLen { slot, len }),
        3 => (slot.clone(), range).prop_map(|(slot, (at, len))| Op::Punch { slot, at, len }),
        3 => places,
        1 => (slot.clone(), any::<bool>()).prop_map(|(slot, data)| Op::Sync { slot, data }),
        2 => slot.clone().prop_map(|slot| Op::Metadata { slot }),
        1 => (slot.clone(), 0..0o10000u16).prop_map(|(slot, mode)| Op::SetPermissions { slot, mode }),
        1 => (slot.clone(), any::<u32>()).prop_map(|(slot, seconds)| Op::SetModified { slot, seconds }),
        1 => slot.prop_map(|slot| Op::ReadToEnd { slot }),
        1 => (name.clone(), name.clone()).prop_map(|(from, to)| Op::Rename { from, to }),
        1 => name.clone().prop_map(|name| Op::Remove { name }),
        1 => (name.clone(), name).prop_map(|(from, to)| Op::Link { from, to }),
    ]
    .boxed()
}

fn position() -> impl Strategy<Value = Position> {
    let by = prop_oneof![-20_000..20_000i64, Just(i64::MIN), Just(-1), Just(0)];
    prop_oneof![
        3 => offset().prop_map(Position::Start),
        2 => by.clone().prop_map(Position::Current),
        2 => by.prop_map(Position::End),
    ]
}

/// The answer of an operation: a number and bytes, or an errno.
type Answer = Result<(u64, Vec<u8>), i32>;

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(match error.kind() {
        // The standard library refuses this before any system call.
        io::ErrorKind::InvalidInput => 22,
        _ => -1,
    })
}

fn number(result: io::Result<u64>) -> Answer {
    result.map(|number| (number, Vec::new())).map_err(|error| errno(&error))
}

fn done(result: io::Result<()>) -> Answer {
    number(result.map(|()| 0))
}

fn found(buf: Vec<u8>, result: io::Result<usize>) -> Answer {
    let read = result.map_err(|error| errno(&error))?;
    Ok((read as u64, buf[..read].to_vec()))
}

/// Non-zero bytes that depend on the step that writes them.
fn bytes(step: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (step * 31 + at) as u8 | 1).collect()
}

/// Operations that both kinds of file share through the standard library's traits.
fn through_traits<'f, F: FileExt>(file: &'f F, op: &Op, step: usize) -> Option<Answer>
where
    &'f F: Read + Write + Seek,
{
    let mut stream = file;
    Some(match *op {
        Op::Read { len, .. } => {
            let mut buf = vec![0; len];
            let read = stream.read(&mut buf);
            found(buf, read)
        }
        Op::Write { len, .. } => number(stream.write(&bytes(step, len)).map(|len| len as u64)),
        Op::Seek { to, .. } => number(stream.seek(to.into())),
        Op::ReadAt { at, len, .. } => {
            let mut buf = vec![0; len];
            let read = file.read_at(&mut buf, at);
            found(buf, read)
        }
        Op::WriteAt { at, len, .. } => number(file.write_at(&bytes(step, len), at).map(|len| len as u64)),
        Op::ReadToEnd { .. } => {
            // Limited, so that holes of gigabytes are not read in full.
            let mut buf = Vec::new();
            let read = stream.take(1 << 20).read_to_end(&mut buf);
            found(buf, read)
        }
        _ => return None,
    })
}

fn of_std(file: &fs::File, op: &Op, step: usize) -> Answer {
    let place = |result: rustix::io::Result<u64>| match result {
        Err(rustix::io::Errno::NXIO) => Ok((u64::MAX, Vec::new())),
        Ok(at) => Ok((at, Vec::new())),
        Err(errno) => Err(errno.raw_os_error()),
    };
    match *op {
        Op::SetLen { len, .. } => done(file.set_len(len)),
        Op::Allocate { at, len, .. } => {
            done(fallocate(file, FallocateFlags::empty(), at, len).map_err(Into::into))
        }
        Op::Punch { at, len, .. } => {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            done(fallocate(file, how, at, len).map_err(Into::into))
        }
        Op::SeekData { at, .. } => {
            keeping_position(file, || place(seek(file, rustix::fs::SeekFrom::Data(at))))
        }
        Op::SeekHole { at, .. } => {
            keeping_position(file, || place(seek(file, rustix::fs::SeekFrom::Hole(at))))
        }
        Op::Sync { data, .. } => done(if data { file.sync_data() } else { file.sync_all() }),
        Op::Metadata { .. } => {
            number(file.metadata().map(|data| facts(data.len(), data.mode(), data.nlink(), data.mtime())))
        }
        Op::SetPermissions { mode, .. } => {
            done(file.set_permissions(fs::Permissions::from_mode(mode.into())))
        }
        Op::SetModified { seconds, .. } => done(file.set_modified(time(seconds))),
        _ => through_traits(file, op, step).unwrap(),
    }
}

fn keeping_position(mut file: &fs::File, ask: impl FnOnce() -> Answer) -> Answer {
    let position = file.stream_position().unwrap();
    let answer = ask();
    file.seek(SeekFrom::Start(position)).unwrap();
    answer
}

fn of_ours(file: &blockyard::File, op: &Op, step: usize) -> Answer {
    let place = |result: blockyard::Result<Option<u64>>| {
        result.map(|at| (at.unwrap_or(u64::MAX), Vec::new())).map_err(|error| error.errno())
    };
    let done = |result: blockyard::Result<()>| done(result.map_err(Into::into));
    match *op {
        Op::SetLen { len, .. } => done(file.set_len(len)),
        Op::Allocate { at, len, .. } => done(file.allocate(at, len)),
        Op::Punch { at, len, .. } => done(file.punch_hole(at, len)),
        Op::SeekData { at, .. } => place(file.seek_data(at)),
        Op::SeekHole { at, .. } => place(file.seek_hole(at)),
        Op::Sync { data, .. } => done(if data { file.sync_data() } else { file.sync_all() }),
        Op::Metadata { .. } => file
            .metadata()
            .map(|data| {
                let mode = u32::from(data.mode()) | 0o100_000;
                (facts(data.len(), mode, data.nlink().into(), data.attributes().modified.seconds), Vec::new())
            })
            .map_err(|error| error.errno()),
        Op::SetPermissions { mode, .. } => done(file.set_permissions(mode)),
        Op::SetModified { seconds, .. } => done(file.set_times(None, Some(time(seconds)))),
        _ => through_traits(file, op, step).unwrap(),
    }
}

fn time(seconds: u32) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds.into())
}

/// Attributes folded into one number. Modification times in `1_700_000_000..=4_000_000_000` count
/// as 0: they may come from the clock, and then the two sides differ.
fn facts(len: u64, mode: u32, links: u64, seconds: i64) -> u64 {
    let is_set = !(1_700_000_000..=4_000_000_000).contains(&seconds);
    let seconds = if is_set { seconds as u64 } else { 0 };
    let mode = u64::from(mode);
    [len, mode, links, seconds]
        .iter()
        .fold(7, |all: u64, part| all.wrapping_mul(1_000_003).wrapping_add(*part))
}

/// The two directories in which one sequence runs, and its open files.
struct Pair<'a> {
    fs: &'a FileSystem,
    host: &'a Path,
    open: BTreeMap<usize, (blockyard::File, fs::File)>,
}

impl Pair<'_> {
    fn names(&self, name: usize) -> (String, std::path::PathBuf) {
        (format!("{}/{}", self.host.file_name().unwrap().display(), NAMES[name]), self.host.join(NAMES[name]))
    }

    fn step(&mut self, op: &Op, step: usize) -> Option<(Answer, Answer)> {
        let plain = |result: blockyard::Result<()>| done(result.map_err(Into::into));
        Some(match *op {
            Op::Open { slot, name, bits } => return self.open(slot, name, bits),
            Op::Clone { from, to } => {
                let (ours, theirs) = self.open.get(&from)?;
                let both = (ours.try_clone().unwrap(), theirs.try_clone().unwrap());
                self.open.insert(to, both);
                return None;
            }
            Op::Close { slot } => {
                self.open.remove(&slot);
                return None;
            }
            Op::Rename { from, to } => {
                let ((a, host_a), (b, host_b)) = (self.names(from), self.names(to));
                (plain(self.fs.rename(a, b)), done(fs::rename(host_a, host_b)))
            }
            Op::Remove { name } => {
                let (ours, theirs) = self.names(name);
                (plain(self.fs.remove_file(ours)), done(fs::remove_file(theirs)))
            }
            Op::Link { from, to } => {
                let ((a, host_a), (b, host_b)) = (self.names(from), self.names(to));
                (plain(self.fs.hard_link(a, b)), done(fs::hard_link(host_a, host_b)))
            }
            Op::Read { slot, .. }
            | Op::Write { slot, .. }
            | Op::Seek { slot, .. }
            | Op::ReadAt { slot, .. }
            | Op::WriteAt { slot, .. }
            | Op::SetLen { slot, .. }
            | Op::Allocate { slot, .. }
            | Op::Punch { slot, .. }
            | Op::SeekData { slot, .. }
            | Op::SeekHole { slot, .. }
            | Op::Sync { slot, .. }
            | Op::Metadata { slot }
            | Op::SetPermissions { slot, .. }
            | Op::SetModified { slot, .. }
            | Op::ReadToEnd { slot } => {
                let (ours, theirs) = self.open.get(&slot)?;
                (of_ours(ours, op, step), of_std(theirs, op, step))
            }
        })
    }

    fn open(&mut self, slot: usize, name: usize, bits: u8) -> Option<(Answer, Answer)> {
        let bit = |number: u8| bits & (1 << number) != 0;
        let (path, host) = self.names(name);
        let ours = OpenOptions::new()
            .read(bit(0))
            .write(bit(1))
            .append(bit(2))
            .truncate(bit(3))
            .create(bit(4))
            .create_new(bit(5))
            .open(self.fs, path);
        let theirs = fs::OpenOptions::new()
            .read(bit(0))
            .write(bit(1))
            .append(bit(2))
            .truncate(bit(3))
            .create(bit(4))
            .create_new(bit(5))
            .open(host);
        match (ours, theirs) {
            (Ok(ours), Ok(theirs)) => {
                self.open.insert(slot, (ours, theirs));
                None
            }
            (ours, theirs) => Some((
                ours.map(|_| (0, Vec::new())).map_err(|error| error.errno()),
                theirs.map(|_| (0, Vec::new())).map_err(|error| errno(&error)),
            )),
        }
    }
}

#[test]
fn a_file_answers_as_one_of_the_kernel() {
    if !require(&["root", "e2fsck", "losetup"]) {
        return;
    }
    let steps = std::env::var("STEPS").ok().and_then(|steps| steps.parse().ok());
    let steps = steps.unwrap_or(if full_matrix() { 100_000 } else { 2_000usize });
    let folder = tempfile::tempdir().unwrap();
    let kernel_image = folder.path().join("kernel");
    let format = || mkfs::Options::ext4().block_size(4096).identity(1, 1_600_000_000);
    ImageOptions::new().mkfs(format()).make(&kernel_image, 512 << 20).unwrap().close().unwrap();
    let device = LoopDevice::new(&kernel_image);
    let mount = LoopMount::of_device(&device, "rw").unwrap();
    let image = folder.path().join("ours");
    let fs = ImageOptions::new().mkfs(format()).make(&image, 512 << 20).unwrap();
    let seed = seed(24);
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed.to_le_bytes(); 4].concat());
    let config = Config {
        cases: (steps / STEPS).max(1) as u32,
        failure_persistence: None,
        max_shrink_iters: 2000,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, rng);
    let sequences = any::<bool>().prop_flat_map(|allocates| prop::collection::vec(op(allocates), STEPS));
    let result = runner.run(&sequences, |ops| {
        // Shrinking calls the closure again, so each call uses directories of its own.
        let number = SEQUENCE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let host = mount.path().join(format!("d{number}"));
        fs::create_dir(&host).unwrap();
        fs.create_dir(format!("d{number}")).unwrap();
        let mut pair = Pair { fs: &fs, host: &host, open: BTreeMap::new() };
        for (step, op) in ops.iter().enumerate() {
            if let Some((ours, theirs)) = pair.step(op, step) {
                COMPARED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if ours != theirs {
                    return Err(TestCaseError::fail(format!(
                        "step {step}, {op:?}: {} here, {} there",
                        shown(&ours),
                        shown(&theirs)
                    )));
                }
            }
        }
        drop(pair);
        for name in NAMES {
            let ours = fs.open(format!("d{number}/{name}")).ok().map(start);
            let theirs = fs::File::open(host.join(name)).ok().map(start);
            prop_assert!(ours == theirs, "{name} differs in the end");
        }
        fs.remove_dir_all(format!("d{number}")).unwrap();
        fs::remove_dir_all(&host).unwrap();
        Ok(())
    });
    let sequence = SEQUENCE.load(std::sync::atomic::Ordering::Relaxed);
    let compared = COMPARED.load(std::sync::atomic::Ordering::Relaxed);
    println!("seed {seed}: {sequence} sequences of {STEPS}, {compared} answers compared");
    result.unwrap();
    assert!(compared > sequence * 20, "{compared} answers of {sequence} sequences");
    fs.close().unwrap();
    e2fsck_clean(&image);
}

static SEQUENCE: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
static COMPARED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// The first 8 MiB of a file.
fn start(file: impl Read) -> Vec<u8> {
    let mut content = Vec::new();
    file.take(8 << 20).read_to_end(&mut content).unwrap();
    content
}

fn shown(answer: &Answer) -> String {
    match answer {
        Ok((number, bytes)) => {
            format!("{number} and {} bytes {:?}...", bytes.len(), &bytes[..bytes.len().min(8)])
        }
        Err(errno) => format!("errno {errno}"),
    }
}
