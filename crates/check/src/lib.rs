//! The independent checker: reads the metadata of an image and says what is wrong with it.
//!
//! Design: gather, then decide. Threads walk inode tables and directories in units of work that are
//! fixed before they run; each unit only emits facts and findings, and claims clusters. What needs
//! the whole picture (sharing, connectivity, link counts, bitmaps) is decided afterwards in a fixed
//! order. Findings are sorted, so that the output is the same for any number of threads. A check
//! writes nothing; a repair ([`plan`]) is decided in memory and written by [`Plan::apply`] alone.
//!
//! The checker shares with the rest of blockyard only the on-disk formats and checksums (`disk`),
//! the devices (`device`) and the replay of a journal (`recovery`): never the engine or the
//! allocator.

#![forbid(unsafe_code)]

mod ahead;
mod backup;
mod bitmaps;
mod block_map;
mod code;
mod descriptors;
mod directories;
mod facts;
mod finding;
mod in_order;
mod inode;
mod inodes;
mod journal;
mod map;
mod meter;
mod orphans;
mod paths;
mod quota;
mod repair;
mod replay;
mod shared;
mod superblock;
mod tree;
mod values;
mod vitals;
mod volume;
mod xattr_blocks;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blockyard_device::BlockDevice;
use blockyard_disk::InodeNr;

pub use code::{Code, Severity};
pub use finding::{Finding, Site};
pub use meter::PassCost;
pub use repair::{
    Action, Applied, Cost, Ending, InUse, Mmp, Plan, Preening, RepairOptions, Shared, UndoError, Undone,
    Wish, claimed_bytes, is_clean_once_replayed, is_marked_clean, plan, plan_with_journal, refresh_totals,
    save_undo_of_replay, undo, undo_forced,
};
pub use vitals::Vitals;

use block_map::BlockMap;
use finding::{Ledger, Sink};
use inode::Scan;
use meter::{Meter, Metered, Passes};
use paths::Paths;
use replay::Replayed;
use superblock::Opened;

/// How to run a check or a repair.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Worker threads; `None` for one per CPU.
    pub threads: Option<usize>,
    /// Reads in flight, at least one per worker; `None` for one per worker. Each read blocks a
    /// thread while it waits.
    pub io_depth: Option<usize>,
    /// The superblock to use instead of the primary one, with the descriptors after it.
    pub superblock: Option<Place>,
    /// Receives the progress of the check.
    pub watch: Watch,
}

impl Options {
    /// The thread pool of a check or a repair. A read blocks its thread, so the pool has at least
    /// `io_depth` threads.
    fn pool(&self) -> Result<rayon::ThreadPool, Error> {
        let threads = match (self.threads, self.io_depth) {
            (threads, None) => threads.unwrap_or(0),
            (None, Some(depth)) => depth.max(std::thread::available_parallelism().map_or(1, usize::from)),
            (Some(threads), Some(depth)) => depth.max(threads),
        };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        pool.map_err(|error| Error::Threads(error.to_string()))
    }
}

/// A part of a check, and what its progress counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Inodes that may be in use: pass 1.
    Inodes,
    /// Directories: pass 2.
    Directories,
    /// Directories, which must all be reachable: pass 3. Reported once, at the end of the pass.
    Connectivity,
    /// Groups, whose inodes' links are counted: pass 4. Reported once, at the end of the pass.
    Links,
    /// Groups, whose bitmaps are compared: pass 5.
    Groups,
}

/// How far a check has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// The part that is at work.
    pub part: Part,
    /// Items of the part that have been done since the last step; 0 when the part begins.
    pub more: u64,
    /// The number of items of the part: the sum of `more` over all its steps.
    pub all: u64,
    /// Bytes that all checks with this watch have read so far.
    pub read_bytes: u64,
}

/// Receives the progress of a check. Called often, and from many threads at once. The default does
/// nothing.
#[derive(Clone, Default)]
pub struct Watch(Option<Arc<Watched>>);

struct Watched {
    told: Box<dyn Fn(Step) + Send + Sync>,
    /// Accessed with `Relaxed`: it is only shown to the user.
    read_bytes: AtomicU64,
}

impl Watch {
    /// A watch that calls `told`.
    #[must_use]
    pub fn new(told: impl Fn(Step) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(Watched { told: Box::new(told), read_bytes: AtomicU64::new(0) })))
    }

    fn tell(&self, part: Part, more: u64, all: u64) {
        if let Some(watched) = &self.0 {
            let read_bytes = watched.read_bytes.load(Ordering::Relaxed);
            (watched.told)(Step { part, more, all, read_bytes });
        }
    }

    fn note_read(&self, bytes: u64) {
        if let Some(watched) = &self.0 {
            watched.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Watch").field(&self.0.is_some()).finish()
    }
}

/// Where a superblock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number of the block that begins with the superblock.
    pub block: u64,
    /// Size of a block in bytes; `None` to try every size.
    pub block_size: Option<u32>,
}

/// Why a check or a repair could not be done at all (exit code 8 of e2fsck).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system has features that change what metadata means, or whose rules the checker
    /// does not know.
    #[error("the file system has features that cannot be checked: {0}")]
    Unsupported(String),
    /// The block that was asked for holds no superblock.
    #[error("block {block} holds no superblock{}", .block_size.map_or(String::new(), |size| format!(" of a file system with blocks of {size} bytes")))]
    NoSuperblock {
        /// The block.
        block: u64,
        /// The block size that was asked for.
        block_size: Option<u32>,
    },
    /// Files share so many blocks that there is no room for copies of all of them
    /// ([`Wish::UnshareBlocks`]).
    #[error("unsharing blocks needs {wanted} free clusters, and {free} are free: nothing is changed")]
    NoRoomToUnshare {
        /// Clusters that copies and new maps may take.
        wanted: u64,
        /// Clusters that nobody uses.
        free: u64,
    },
    /// The device cannot be read where a repair needs it.
    #[error("{0}")]
    Device(String),
    /// Worker threads could not be started.
    #[error("cannot start worker threads: {0}")]
    Threads(String),
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Findings in order; at most 200,000.
    pub findings: Vec<Finding>,
    /// How many findings were errors, kept or not.
    pub errors: u64,
    /// How many findings were counted but not kept.
    pub suppressed: u64,
    /// Whether the file system could be examined. It could not if its superblock or descriptors,
    /// and the backups that were tried, are unusable, or if its external journal is missing,
    /// unusable, or shared with other file systems. e2fsck gives exit code 8 then.
    pub examined: bool,
    /// What the file system holds; `None` when it could not be examined.
    pub vitals: Option<Vitals>,
}

impl Report {
    /// Whether the file system is clean: all findings are notes.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.errors == 0
    }
}

/// Checks the file system on a device without writing to it.
///
/// # Errors
/// [`Error`] when no verdict is possible; damage of any kind is a finding, not an error.
///
/// ```
/// use blockyard_check::{Options, Report, check};
/// use blockyard_device::MemoryDevice;
///
/// /// What was found, and what the check did not cover.
/// fn tell(report: &Report) -> String {
///     let mut text = String::new();
///     for finding in &report.findings {
///         text += &format!("{} {}: {}\n", finding.code, finding.site, finding.code.text());
///     }
///     match &report.vitals {
///         Some(vitals) => text += &format!("checked: {} inodes in use\n", vitals.inodes_used),
///         None => text += "not checked: anything behind the superblock\n",
///     }
///     if report.suppressed > 0 {
///         text += &format!("not listed: {} more findings\n", report.suppressed);
///     }
///     text
/// }
///
/// # fn main() -> Result<(), blockyard_check::Error> {
/// let report = check(&MemoryDevice::new(1 << 20), &Options::default())?;
/// assert!(!report.is_clean() && !report.examined);
/// assert!(tell(&report).ends_with("not checked: anything behind the superblock\n"));
/// # Ok(())
/// # }
/// ```
pub fn check(device: &dyn BlockDevice, options: &Options) -> Result<Report, Error> {
    measure(device, None, options).map(|(report, _)| report)
}

/// As [`check`], for a file system whose journal is on a device of its own.
///
/// # Errors
/// As [`check`].
pub fn check_with_journal(
    device: &dyn BlockDevice,
    journal: &dyn BlockDevice,
    options: &Options,
) -> Result<Report, Error> {
    measure(device, Some(journal), options).map(|(report, _)| report)
}

/// As [`check`], and says what each pass cost. `journal` is the external journal, if there is one.
///
/// # Errors
/// As [`check`].
pub fn measure(
    device: &dyn BlockDevice,
    journal: Option<&dyn BlockDevice>,
    options: &Options,
) -> Result<(Report, Vec<PassCost>), Error> {
    let mut asked = Asked::default();
    measure_and_name(device, journal, options, &mut asked)
}

/// As [`measure`]; also finds the paths of the inodes in `asked`.
fn measure_and_name(
    device: &dyn BlockDevice,
    journal: Option<&dyn BlockDevice>,
    options: &Options,
    asked: &mut Asked,
) -> Result<(Report, Vec<PassCost>), Error> {
    let meter = Meter::default();
    let image = Metered { below: device, meter: &meter, watch: &options.watch };
    let journal = journal.map(|below| Metered { below, meter: &meter, watch: &options.watch });
    let journal = journal.as_ref().map(|journal| -> &dyn BlockDevice { journal });
    let devices = Devices { image: &image, journal, is_replayed: false, watch: &options.watch };
    let mut passes = Passes::begin(&meter);
    let report = check_devices(devices, options, (&mut passes, asked))?;
    Ok((report, passes.costs))
}

/// The inodes whose paths are wanted, and the paths.
#[derive(Default)]
struct Asked {
    about: BTreeSet<InodeNr>,
    paths: Paths,
}

/// The devices to check. They are only read.
#[derive(Clone, Copy)]
struct Devices<'a> {
    image: &'a dyn BlockDevice,
    /// The external journal.
    journal: Option<&'a dyn BlockDevice>,
    /// Whether both devices show the state after a replay of the journal.
    is_replayed: bool,
    watch: &'a Watch,
}

fn check_devices(
    devices: Devices<'_>,
    options: &Options,
    into: (&mut Passes<'_>, &mut Asked),
) -> Result<Report, Error> {
    options.pool()?.install(|| run(devices, options.superblock, into))
}

fn run(
    devices: Devices<'_>,
    place: Option<Place>,
    (passes, asked): (&mut Passes<'_>, &mut Asked),
) -> Result<Report, Error> {
    let mut course = Course { ledger: Ledger::default(), passes, asked, vitals: None };
    let mut sink = Sink::default();
    let examined = if let Some(place) = place {
        let Place { block, block_size } = place;
        let backup = backup::at(devices.image, place).ok_or(Error::NoSuperblock { block, block_size })?;
        run_on_backup(devices, &backup, &mut sink, &mut course)?
    } else {
        match replay::replayed(devices.image, devices.journal, &mut sink) {
            Some(Replayed { image, journal }) => {
                let journal = journal.as_ref().map(|journal| -> &dyn BlockDevice { journal });
                run_on(Devices { image: &image, journal, is_replayed: true, ..devices }, sink, &mut course)?
            }
            None => run_on(devices, sink, &mut course)?,
        }
    };
    let Course { ledger, vitals, .. } = course;
    if let Some(what) = ledger.no_verdict() {
        return Err(Error::Unsupported(format!("{what} (nothing else is wrong)")));
    }
    let examined = examined && !ledger.is_fatal();
    let (findings, errors, suppressed) = ledger.finish();
    let vitals = vitals.filter(|_| examined);
    Ok(Report { findings, errors, suppressed, examined, vitals })
}

/// What a check collects as it runs.
struct Course<'a, 'm> {
    ledger: Ledger,
    passes: &'a mut Passes<'m>,
    asked: &'a mut Asked,
    vitals: Option<Vitals>,
}

/// Examines a file system by its primary superblock and descriptors, or by a backup when those are
/// unusable. False when neither works.
fn run_on(devices: Devices<'_>, mut sink: Sink, course: &mut Course<'_, '_>) -> Result<bool, Error> {
    let mut found = Sink::default();
    let (volume, backup) = match superblock::open(devices.image, &mut found)? {
        Opened::Unusable => (None, None),
        Opened::Corrupt => (None, backup::find(devices.image)),
        Opened::Volume(mut volume) => {
            volume.is_replayed = devices.is_replayed;
            volume.watch = devices.watch.clone();
            let is_sound = descriptors::load(&mut volume, &mut found);
            let backup = if is_sound { None } else { backup::of(&volume) };
            (Some(volume), backup)
        }
    };
    if let Some(backup) = backup {
        let mut note = Sink::default();
        let what = if volume.is_some() { Code::DESCRIPTORS_BACKUP } else { Code::SUPERBLOCK_BACKUP };
        let first = found.first().filter(|first| first.is_error());
        let why = first.map_or_else(String::new, |first| format!("{} {}; ", first.code.text(), first.detail));
        let site = first.map_or(Site::NOWHERE, |first| first.site);
        note.add(what, site, format!("{why}the one in block {} is used", backup.block));
        if run_on_backup(devices, &backup, &mut note, course)? {
            course.ledger.absorb(sink);
            return Ok(true);
        }
    }
    sink.merge(found);
    examine(volume.as_deref(), devices.journal, sink, course)
}

/// Examines a file system by a backup. False when the backup is unusable, too.
fn run_on_backup(
    devices: Devices<'_>,
    backup: &backup::Backup,
    sink: &mut Sink,
    course: &mut Course<'_, '_>,
) -> Result<bool, Error> {
    let Some(overlay) = backup.laid_over(devices.image) else { return Ok(false) };
    let Opened::Volume(mut volume) = superblock::open(&overlay, sink)? else { return Ok(false) };
    backup.lay_descriptors(&volume, &overlay);
    volume.is_backup = true;
    volume.is_replayed = devices.is_replayed;
    volume.watch = devices.watch.clone();
    descriptors::load(&mut volume, sink);
    examine(Some(&volume), devices.journal, std::mem::take(sink), course)
}

/// Examines a file system, if it could be opened. False when its superblock or descriptors are
/// unusable.
fn examine(
    volume: Option<&volume::Volume<'_>>,
    journal: Option<&dyn BlockDevice>,
    mut sink: Sink,
    course: &mut Course<'_, '_>,
) -> Result<bool, Error> {
    let volume = volume.filter(|volume| !volume.groups.is_empty());
    let usable = match volume {
        Some(volume) => superblock::check_values(volume, &mut sink)?,
        None => false,
    };
    if let Some(volume) = volume.filter(|_| usable) {
        journal::check(volume, journal, &mut sink);
        course.ledger.absorb(sink);
        passes(volume, course);
    } else {
        course.ledger.absorb(sink);
    }
    Ok(usable)
}

/// Runs the passes. The superblock and the descriptors have been read.
fn passes(volume: &volume::Volume<'_>, course: &mut Course<'_, '_>) {
    let Course { ledger, passes, asked, vitals } = course;
    let groups = blockyard_disk::num::usize_from_u32(volume.geometry.groups());
    assert_eq!(volume.groups.len(), groups, "a descriptor of each group");
    let mut sink = Sink::default();
    descriptors::check_mmp(volume, &mut sink);
    descriptors::check_backups(volume, &mut sink);
    let system = descriptors::system_ranges(volume, &mut sink);
    let orphans = orphans::collect(volume, &mut sink);
    ledger.absorb(sink);
    let map = with_metadata(volume, &system);
    passes.end(0);
    let scan = Scan { volume, system: &system, map: &map, orphans: &orphans };
    let facts = inodes::gather(&scan, ledger);
    let xattr_references = xattr_blocks::references(&facts);
    xattr_blocks::claim(&map, &xattr_references);
    let values = xattr_blocks::check(volume, &xattr_references, ledger);
    let mut sink = Sink::default();
    let values = values::check(volume, &facts, values, &mut sink);
    ledger.absorb(sink);
    if !volume.ro_compat.contains(blockyard_disk::RoCompat::SHARED_BLOCKS) {
        shared::report(&scan, &xattr_references, ledger);
    }
    passes.end(1);
    let tree = directories::check(volume, &facts, ledger);
    passes.end(2);
    tree::check_connectivity(volume, &facts, &tree, ledger);
    tree::check_bad_blocks(volume, &facts, ledger);
    let directories: usize = facts.groups.iter().map(|group| group.directories.len()).sum();
    let told = blockyard_disk::num::u64_from_usize;
    volume.watch.tell(Part::Connectivity, told(directories), told(directories));
    passes.end(3);
    tree::check_links(volume, &facts, &values, ledger);
    volume.watch.tell(Part::Links, told(groups), told(groups));
    passes.end(4);
    let free = bitmaps::check(volume, &map, &facts, ledger);
    *vitals = Some(facts.vitals(&volume.geometry, free));
    quota::check(&scan, &facts, ledger);
    paths::attach(volume, &facts, &tree, ledger);
    asked.paths = paths::find(volume, &facts, &tree, &asked.about);
    leave_unjudged(&facts, ledger);
    passes.end(5);
}

/// A map of clusters in which only the file system's own metadata is marked.
fn with_metadata(volume: &volume::Volume<'_>, system: &[descriptors::SystemRange]) -> BlockMap {
    let map = BlockMap::new(&volume.geometry);
    for range in system {
        let first = map.cluster(range.first);
        let last = map.cluster(range.first + blockyard_disk::BlockCount::new(range.count.saturating_sub(1)));
        map.mark(first, last - first + 1);
    }
    map
}

/// Records what e2fsck can judge but this checker cannot.
fn leave_unjudged(facts: &facts::Facts, ledger: &mut Ledger) {
    if facts.groups.iter().flat_map(|group| &group.directories).any(|fact| fact.casefold) {
        ledger.leave_unjudged("casefold: hashes and repetitions of names");
    }
}
