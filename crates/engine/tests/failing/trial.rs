//! One run on a device that fails one call, or one call and all later ones. A run does operations,
//! and checks their results and what they leave on the device.

use super::cases::{Case, cases, scene};
use super::expected::{Expected, Loss};
use super::images::Image;
use super::judges::{Bench, is_whole, nothing_behind_the_end, recovered, view};
use super::operations::Op;
use crate::support::{context, new};
use blockyard_device::{
    BlockDevice, Effect, Fault, FaultyDevice, MemoryDevice, Operation, OperationCounts, When,
};
use blockyard_disk::inode::FileType;
use blockyard_disk::superblock::{FsState, PRIMARY_OFFSET, RawSuperblock, Superblock};
use blockyard_disk::{Incompat, InodeNr};
use blockyard_engine::{Error, FileSystem, OpContext, OpenOptions};
use blockyard_sync::CpuSlot;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

/// The result of a check. The error says what was found wrong.
pub(crate) type Verdict<T = ()> = Result<T, String>;

type Faulty = FaultyDevice<MemoryDevice>;

/// How a run goes, apart from its operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// Whether every handle commits earlier changes.
    pub(crate) eager: bool,
    /// Commits before the first operation; they bring the next checkpoint nearer.
    pub(crate) warm: u32,
    /// Whether all earlier changes are made durable before the operation begins.
    pub(crate) synced: bool,
    /// Whether the device works again after the operation.
    pub(crate) heals: bool,
    /// Whether there is a sync between the operation and the close.
    pub(crate) syncs: bool,
}

/// How many calls the device had received at some moments of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moments {
    /// When the operation began.
    pub(crate) begun: OperationCounts,
    /// When the operation had ended.
    pub(crate) done: OperationCounts,
    /// When the visible state was checked.
    pub(crate) seen: OperationCounts,
    /// When the instance had been closed.
    pub(crate) closed: OperationCounts,
}

/// An image of one kind. Each worker has a directory of its own there, and all these directories
/// hold the same files.
pub(crate) struct Base {
    pub(crate) image: Image,
    pub(crate) cases: Vec<Case>,
    device: MemoryDevice,
    expected: Expected,
    /// The number of commits until the first checkpoint, in a lazy and in an eager instance
    /// ([`Manner::eager`]); 0 without a journal.
    pub(crate) checkpoint: [u32; 2],
}

fn on_slot(worker: u16) -> OpContext {
    context().on(CpuSlot::new(worker.into()))
}

fn directory_of(fs: &FileSystem, worker: u16) -> blockyard_engine::Result<InodeNr> {
    fs.lookup(InodeNr::ROOT, format!("worker-{worker}").as_bytes())
}

/// The number of directories for the commits that only fill the log. Successive commits change
/// different directories, so each logs a block that the next ones do not log. A checkpoint must
/// read that block from the log.
const FILLED: u32 = 64;

/// Creates a fifo, and commits it by a sync.
fn commit_something(fs: &FileSystem, number: u32) {
    let dir = fs.lookup(InodeNr::ROOT, format!("filled-{}", number % FILLED).as_bytes()).unwrap();
    fs.create(&context(), dir, number.to_string().as_bytes(), &new(FileType::Fifo)).unwrap();
    fs.sync(&context()).unwrap();
}

impl Base {
    pub(crate) fn new(image: Image, workers: u16) -> Self {
        let device = Arc::new(image.format());
        let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
        let fs = FileSystem::open(shared, image.open_options(false), &context()).unwrap();
        let mut expected = Expected::empty(&image);
        for number in 0..FILLED {
            let name = format!("filled-{number}");
            fs.create(&context(), InodeNr::ROOT, name.as_bytes(), &new(FileType::Directory)).unwrap();
        }
        for worker in 0..workers {
            let name = format!("worker-{worker}");
            let directory = new(FileType::Directory);
            let dir = fs.create(&context(), InodeNr::ROOT, name.as_bytes(), &directory).unwrap();
            expected = Expected::empty(&image);
            for op in scene(&image) {
                op.run(&fs, &context(), dir)
                    .unwrap_or_else(|error| panic!("{}: {op:?}: {error}", image.name));
                expected.note(&op, true);
            }
        }
        fs.close(&context()).unwrap();
        let device = device.duplicate();
        let mut base = Self { image, cases: cases(&image), device, expected, checkpoint: [0; 2] };
        base.checkpoint = [base.commits_to_checkpoint(false), base.commits_to_checkpoint(true)];
        base
    }

    fn open(&self, eager: bool) -> (Arc<Faulty>, FileSystem) {
        let device = Arc::new(Faulty::new(self.device.duplicate()));
        let shared: Arc<dyn BlockDevice> = Arc::<Faulty>::clone(&device);
        let fs = FileSystem::open(shared, self.image.open_options(eager), &context()).unwrap();
        (device, fs)
    }

    fn commits_to_checkpoint(&self, eager: bool) -> u32 {
        if !self.image.has_journal() {
            return 0;
        }
        let (device, fs) = self.open(eager);
        let flushes = |number| {
            let before = device.counts().flushes;
            commit_something(&fs, number);
            device.counts().flushes - before
        };
        // A commit with a checkpoint flushes more often than one without.
        let usual = flushes(0);
        let first = (1..100).find(|number| flushes(*number) > usual);
        fs.close(&context()).unwrap();
        first.unwrap_or_else(|| panic!("{}: no checkpoint comes", self.image.name))
    }

    /// A manner in which a checkpoint often comes with the first handle of the operation, or with a
    /// later one.
    pub(crate) fn manner(&self, random: &mut ChaCha8Rng) -> Manner {
        let (eager, synced) = (random.random_range(0..4) > 0, random.random());
        let nearly = self.checkpoint[usize::from(eager)].saturating_sub(u32::from(synced));
        let most = if random.random() { 2 } else { 7 };
        let warm = nearly.saturating_sub(random.random_range(0..most));
        Manner { eager, warm, synced, heals: random.random(), syncs: random.random() }
    }
}

/// Checks that the error of an operation follows from failed calls of the device (`strikes`), or
/// from an instance that has failed.
fn check_answer(op: &Op, error: &Error, strikes: u64, has_failed: bool) -> Verdict {
    let fits = match error {
        Error::Device(_) | Error::LostData(_) => strikes > 0,
        Error::ReadOnly => has_failed,
        _ => false,
    };
    if fits { Ok(()) } else { Err(format!("{op:?} answers {error:?} after {strikes} failed calls")) }
}

/// A run of one thread. The device has `fault` from the beginning of [`Case::op`] on. Returns how
/// many calls the device had received at each moment.
pub(crate) fn alone(
    bench: &Bench,
    base: &Base,
    case: &Case,
    manner: Manner,
    fault: Option<Fault>,
) -> Verdict<Moments> {
    let (device, fs) = base.open(manner.eager);
    let dir = directory_of(&fs, 0).unwrap();
    let mut expected = base.expected.clone();
    for number in 0..manner.warm {
        commit_something(&fs, number);
    }
    for op in &case.first {
        op.run(&fs, &context(), dir).unwrap_or_else(|error| panic!("{op:?}: {error}"));
        expected.note(op, true);
    }
    if manner.synced {
        commit_something(&fs, manner.warm);
        expected.note_synced();
    }
    let begun = device.counts();
    device_fails(&device, fault);
    do_one(&fs, &device, &mut expected, (&case.op, dir, context()))?;
    let done = device.counts();
    if manner.heals {
        device.heal();
    }
    look_at(&fs, &device, &expected, dir)?;
    let seen = device.counts();
    let left = end(&device, fs, manner.syncs, vec![expected], fault)?;
    let closed = device.counts();
    if fault.is_some() {
        left.judge(bench, &base.image)?;
    }
    Ok(Moments { begun, done, seen, closed })
}

fn device_fails(device: &Faulty, fault: Option<Fault>) {
    if let Some(fault) = fault {
        device.add(fault);
    }
}

/// Does one operation, and checks and records its result.
fn do_one(
    fs: &FileSystem,
    device: &Faulty,
    expected: &mut Expected,
    (op, dir, ctx): (&Op, InodeNr, OpContext),
) -> Verdict {
    let answer = op.run(fs, &ctx, dir);
    if let Err(error) = &answer {
        check_answer(op, error, device.strikes(), fs.has_failed())?;
    }
    expected.note(op, answer.is_ok());
    Ok(())
}

/// Checks that the files in an instance are in a state that the results of its operations allow.
/// Checks nothing if the instance has failed, or if the files cannot be read because a device call
/// failed.
fn look_at(fs: &FileSystem, device: &Faulty, expected: &Expected, dir: InodeNr) -> Verdict {
    match view(fs, dir) {
        // A failed instance may have changes in memory that it has not reported as done.
        _ if fs.has_failed() => Ok(()),
        Ok(view) => expected.judge(&view, Loss::None).map_err(|why| format!("open: {why}")),
        Err(_) if device.strikes() > 0 => Ok(()),
        Err(error) => Err(format!("looking: {error}")),
    }
}

/// Closes an instance, after a sync if `syncs`, and checks the results of both.
fn end(
    device: &Arc<Faulty>,
    fs: FileSystem,
    syncs: bool,
    mut expected: Vec<Expected>,
    fault: Option<Fault>,
) -> Verdict<Left> {
    if syncs {
        match fs.sync(&context()) {
            Ok(()) => expected.iter_mut().for_each(Expected::note_synced),
            Err(error) => {
                check_answer(&Op::Sync, &error, device.strikes(), fs.has_failed())?;
                expected.iter_mut().for_each(Expected::note_lost_data);
            }
        }
    }
    let has_failed = fs.has_failed();
    if has_failed && fault.is_some_and(|fault| fault.operation == Operation::Read) {
        return Err("a failed read ended the instance: something was half changed".to_owned());
    }
    let closed = fs.close(&context());
    if let Err(error) = &closed {
        let has_failed = has_failed || matches!(error, Error::ReadOnly);
        check_answer(&Op::Sync, error, device.strikes(), has_failed)?;
    } else if has_failed {
        return Err("an instance that failed was closed as if it were clean".to_owned());
    }
    Ok(Left { device: Arc::clone(device), is_closed: closed.is_ok(), expected })
}

/// What a run left: the device, and for each worker the states that are allowed on it.
struct Left {
    device: Arc<Faulty>,
    is_closed: bool,
    expected: Vec<Expected>,
}

impl Left {
    /// Checks the image. If its superblock is torn, nothing is checked.
    /// * If the image was closed without an error, it must be marked clean.
    /// * If it is not marked clean and has a journal, it is recovered first. Without a journal, it
    ///   is not checked further.
    /// * e2fsck must find the image clean.
    /// * The files must be in an allowed state, with nothing but zeroes behind their ends.
    fn judge(&self, bench: &Bench, image: &Image) -> Verdict {
        let device = self.device.below();
        if !is_whole(device) {
            return Ok(());
        }
        let is_clean = says_clean(device);
        if self.is_closed && !is_clean {
            return Err("closed, but not marked clean".to_owned());
        }
        let (device, loss) = match (is_clean, self.is_closed) {
            (true, true) => (Arc::new(device.duplicate()), Loss::None),
            (true, false) => (Arc::new(device.duplicate()), Loss::Data),
            // Without a journal a crash leaves an image that must be checked.
            (false, _) if !image.has_journal() => return Ok(()),
            (false, _) => (recovered(device)?, Loss::All),
        };
        let how = if is_clean { "closed" } else { "recovered" };
        bench.e2fsck(&device).map_err(|why| format!("{how}: {why}"))?;
        let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
        let fs = FileSystem::open(shared, OpenOptions::default(), &context())
            .map_err(|error| format!("{how}, opening: {error}"))?;
        for (worker, expected) in (0..).zip(&self.expected) {
            let dir = directory_of(&fs, worker).map_err(|error| format!("{how}: {error}"))?;
            let view = view(&fs, dir).map_err(|error| format!("{how}: {error}"))?;
            expected.judge(&view, loss).map_err(|why| format!("{how}: {why}"))?;
            nothing_behind_the_end(&fs, dir).map_err(|why| format!("{how}: {why}"))?;
        }
        fs.close(&context()).map_err(|error| format!("{how}, closing: {error}"))
    }
}

fn says_clean(device: &MemoryDevice) -> bool {
    let mut bytes = [0; RawSuperblock::SIZE];
    device.read_at(PRIMARY_OFFSET, &mut bytes).unwrap();
    let Ok(sb) = Superblock::parse(&bytes) else { return false };
    let state = sb.state();
    state.contains(FsState::VALID)
        && !state.contains(FsState::ERROR)
        && !sb.features().incompat.contains(Incompat::RECOVER)
}

/// How many threads work in a run of many threads.
pub(crate) const WORKERS: u16 = 8;

/// How many cases one worker draws. A case is one operation or more.
const STEPS: usize = 6;

/// A run of [`WORKERS`] threads, each in its own directory. The device has `fault` from the start
/// of the threads on. Returns how many calls the device had received at each moment.
pub(crate) fn together(bench: &Bench, base: &Base, seed: u64, fault: Option<Fault>) -> Verdict<Moments> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let manner = base.manner(&mut random);
    let (device, fs) = base.open(manner.eager);
    for number in 0..manner.warm {
        commit_something(&fs, number);
    }
    let begun = device.counts();
    device_fails(&device, fault);
    let expected: Verdict<Vec<Expected>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let (fs, device) = (&fs, &*device);
                scope.spawn(move || work(fs, device, base, worker, seed))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut expected = expected?;
    if device.strikes() > 0 {
        // A thread's write-back may fail on data that another thread wrote.
        expected.iter_mut().for_each(Expected::note_lost_data);
    }
    let done = device.counts();
    if manner.heals {
        device.heal();
    }
    for (worker, expected) in (0..).zip(&expected) {
        match directory_of(&fs, worker) {
            Ok(dir) => look_at(&fs, &device, expected, dir)?,
            Err(error) => check_answer(&Op::Sync, &error, device.strikes(), fs.has_failed())?,
        }
    }
    let seen = device.counts();
    let left = end(&device, fs, manner.syncs, expected, fault)?;
    let closed = device.counts();
    if fault.is_some() {
        left.judge(bench, &base.image)?;
    }
    Ok(Moments { begun, done, seen, closed })
}

/// The work of one thread: [`STEPS`] cases on its own files. A case ends early if its next
/// operation may have become impossible. After two errors the thread does nothing more.
fn work(fs: &FileSystem, device: &Faulty, base: &Base, worker: u16, seed: u64) -> Verdict<Expected> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(1 + u64::from(worker));
    let ctx = on_slot(worker);
    let mut expected = base.expected.clone();
    let Ok(dir) = directory_of(fs, worker) else { return Ok(expected) };
    let mut errors = 0;
    for _ in 0..STEPS {
        let case = base.cases.choose(&mut random).unwrap();
        for op in case.first.iter().chain([&case.op]) {
            if !expected.allows(op) || errors >= 2 {
                break;
            }
            let answer = op.run(fs, &ctx, dir);
            if let Err(error) = &answer {
                check_answer(op, error, device.strikes(), fs.has_failed())?;
                errors += 1;
            }
            expected.note_beside_others(op, answer.is_ok());
        }
    }
    Ok(expected)
}

/// A fault that strikes call number `nth`, or that call and all later ones, with a random effect.
pub(crate) fn fault_at(operation: Operation, nth: u64, random: &mut ChaCha8Rng) -> Fault {
    let when = if random.random() { When::Nth(nth) } else { When::From(nth) };
    let effect = match random.random_range(0..6) {
        0 => Effect::Short(512),
        1 => Effect::Everything,
        _ => Effect::Nothing,
    };
    Fault { operation, when, effect }
}
