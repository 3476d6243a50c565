//! The independent checker: reads everything an image holds and says what is wrong with it.
//!
//! Design: gather, then decide. Threads walk inode tables and directories in units of work that are fixed before they
//! run; each emits facts and findings only. What needs the whole picture (sharing, connectivity, link counts, bitmaps)
//! is decided afterwards in a fixed order. Findings are sorted, so that the output is the same for any number of
//! threads. Nothing is ever written to the device.
//!
//! The checker shares with the rest of blockyard only how bytes are read (`disk`), how devices are read (`device`) and
//! how a journal is replayed (`recovery`): never the code that wrote the image.

#![forbid(unsafe_code)]

mod bitmaps;
mod block_map;
mod code;
mod descriptors;
mod directories;
mod facts;
mod finding;
mod inode;
mod inodes;
mod journal;
mod map;
mod orphans;
mod replay;
mod shared;
mod superblock;
mod tree;
mod values;
mod volume;
mod xattr_blocks;

use blockyard_device::BlockDevice;

pub use code::{Code, Severity};
pub use finding::{Finding, Site};

use block_map::BlockMap;
use finding::{Ledger, Sink};
use inodes::Scan;
use superblock::Opened;

/// How to run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Worker threads; `None` for one per CPU.
    pub threads: Option<usize>,
}

/// Why a check could not be done at all (exit code 8 of e2fsck).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The image has features that change what metadata means.
    #[error("the file system has features that cannot be checked: {0}")]
    Unsupported(String),
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
    /// Findings that were counted and not kept.
    pub suppressed: u64,
}

impl Report {
    /// Whether the file system is clean: nothing but notes.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.errors == 0
    }
}

/// Checks the file system on a device without writing to it.
///
/// # Errors
/// [`Error`] when no verdict is possible; damage of any kind is a finding, not an error.
pub fn check(device: &dyn BlockDevice, options: &Options) -> Result<Report, Error> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(options.threads.unwrap_or(0))
        .build()
        .map_err(|error| Error::Threads(error.to_string()))?;
    pool.install(|| run(device))
}

fn run(device: &dyn BlockDevice) -> Result<Report, Error> {
    let mut ledger = Ledger::default();
    let mut sink = Sink::default();
    match replay::replayed(device, &mut sink) {
        Some(overlay) => run_on(&overlay, &mut ledger, sink)?,
        None => run_on(device, &mut ledger, sink)?,
    }
    let (findings, errors, suppressed) = ledger.finish();
    Ok(Report { findings, errors, suppressed })
}

fn run_on(device: &dyn BlockDevice, ledger: &mut Ledger, mut sink: Sink) -> Result<(), Error> {
    if let Opened::Volume(mut volume) = superblock::open(device, &mut sink)?
        && descriptors::load(&mut volume, &mut sink)
    {
        ledger.absorb(sink);
        passes(&volume, ledger);
        sink = Sink::default();
    }
    ledger.absorb(sink);
    Ok(())
}

/// Everything after the superblock and the descriptors could be read.
fn passes(volume: &volume::Volume<'_>, ledger: &mut Ledger) {
    let mut sink = Sink::default();
    descriptors::check_mmp(volume, &mut sink);
    descriptors::check_backups(volume, &mut sink);
    let system = descriptors::system_ranges(volume, &mut sink);
    journal::check(volume, &mut sink);
    let orphans = orphans::collect(volume, &mut sink);
    ledger.absorb(sink);
    let map = BlockMap::new(&volume.geometry);
    for range in &system {
        let first = map.cluster(range.first);
        let last = map.cluster(range.first + blockyard_disk::BlockCount::new(range.count.saturating_sub(1)));
        map.mark(first, last - first + 1);
    }
    let scan = Scan { volume, system: &system, map: &map, orphans: &orphans };
    let facts = inodes::gather(&scan, ledger);
    let xattr_references = xattr_blocks::references(&facts);
    let values = xattr_blocks::check(volume, &map, &xattr_references, ledger);
    let mut sink = Sink::default();
    let values = values::check(volume, &facts, values, &mut sink);
    ledger.absorb(sink);
    shared::report(&scan, &xattr_references, ledger);
    let tree = directories::check(volume, &facts, ledger);
    tree::check_connectivity(volume, &facts, &tree, ledger);
    tree::check_links(volume, &facts, &values, ledger);
    bitmaps::check(volume, &map, &facts, ledger);
}
