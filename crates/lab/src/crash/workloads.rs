//! The workloads of `lab crash`: their operations, their images, and what is promised on the way.
//!
//! Images are small, so that the log wraps around and freed blocks are soon reused. A workload with
//! one thread is repeatable: the same seed gives the same writes. Some of these record the names of
//! the whole tree after each operation.

mod data;
mod direct;
mod names;
mod reuse;
mod scenarios;
mod threads;

use anyhow::Result;
use blockyard_engine::instruments::BrokenRule;
use blockyard_engine::{DataMode, OpenOptions, mkfs};

use super::stage::{Recording, Setup, Stage, record};

/// A workload.
pub(super) struct Workload {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// Whether the same seed gives the same writes.
    pub(super) repeats: bool,
    kind: Kind,
    work: fn(&Stage) -> Result<()>,
}

/// The file system that a workload runs on. With blocks of up to [`LARGE`] bytes, images have the
/// relative sizes given here. With larger blocks, all images have the same number of blocks.
#[derive(Clone, Copy)]
enum Kind {
    /// Four block groups, and the smallest possible log.
    Small,
    /// Like [`Kind::Small`], with an orphan file.
    OrphanFile,
    /// Like [`Kind::Small`], with file data in the log.
    Logged,
    /// Clusters of a few blocks, on an image four times as large.
    Clusters,
    /// Like [`Kind::Small`] but twice as large, for several threads.
    Threads,
    /// Like [`Kind::Small`]; every other handle ends its transaction.
    Commits,
    /// Like [`Kind::Threads`], with a commit every few handles, so that operations of two handles
    /// may be split between transactions.
    ThreadsCommits,
    /// Like [`Kind::Small`], with inodes of this size, large attribute values in inodes of their
    /// own, and this data mode.
    Values(u32, DataMode),
}

const fn workload(
    name: &'static str,
    about: &'static str,
    kind: Kind,
    work: fn(&Stage) -> Result<()>,
) -> Workload {
    let repeats = !matches!(kind, Kind::Threads | Kind::ThreadsCommits);
    Workload { name, about, repeats, kind, work }
}

const fn values(name: &'static str, inode_size: u32, data: DataMode) -> Workload {
    let about = "large attributes, with inodes and a data mode as in the name (default: ordered)";
    workload(name, about, Kind::Values(inode_size, data), names::values)
}

/// All workloads.
pub(super) const WORKLOADS: &[Workload] = &[
    workload(
        "names",
        "create, link, rename, exchange and unlink in a tree of directories",
        Kind::Small,
        names::storm,
    ),
    workload("append", "append to a few files, fsync and fdatasync", Kind::Small, data::append),
    workload("truncate", "truncate, punch, zero, collapse, insert and allocate", Kind::Small, data::change),
    workload("xattrs", "set, replace and remove attributes of all sizes", Kind::Small, names::attributes),
    workload("htree", "directories that grow, split and shrink", Kind::Small, names::split),
    workload("orphans", "files deleted and cut while they are open", Kind::Small, reuse::orphans),
    workload("orphan-file", "as orphans, with an orphan file", Kind::OrphanFile, reuse::orphans),
    workload(
        "fallocate2",
        "eight threads append by fallocate, truncate and repeat",
        Kind::Threads,
        threads::fallocate2,
    ),
    workload("bigalloc", "append and change files on clusters", Kind::Clusters, data::clusters),
    workload(
        "recycle",
        "blocks go from directories to data and back, with little space",
        Kind::Small,
        reuse::recycle,
    ),
    workload("tight", "what one file gives up is what the next one needs", Kind::Small, reuse::tight),
    workload("logged", "as recycle, with file data in the log", Kind::Logged, reuse::recycle),
    workload("threads", "four threads create, append, fsync and unlink", Kind::Threads, threads::race),
    workload(
        "scenarios",
        "rename over, swap, link, replace, cut and fsync: short stories",
        Kind::Small,
        scenarios::all,
    ),
    workload(
        "direct",
        "direct writes beyond the end, into holes and into preallocated blocks",
        Kind::Commits,
        direct::alone,
    ),
    workload(
        "direct-threads",
        "three threads write directly, a fourth commits; transactions have few handles",
        Kind::ThreadsCommits,
        direct::beside_commits,
    ),
    workload(
        "keep-size",
        "preallocate and zero, mostly with the size kept, write and truncate",
        Kind::Small,
        direct::keep_size,
    ),
    values("values-128", 128, DataMode::Ordered),
    values("values-256", 256, DataMode::Ordered),
    values("values-512", 512, DataMode::Ordered),
    values("values-1024", 1024, DataMode::Ordered),
    values("values-128-writeback", 128, DataMode::Writeback),
    values("values-256-writeback", 256, DataMode::Writeback),
    values("values-512-writeback", 512, DataMode::Writeback),
    values("values-1024-writeback", 1024, DataMode::Writeback),
    values("values-128-journal", 128, DataMode::Journal),
    values("values-256-journal", 256, DataMode::Journal),
    values("values-512-journal", 512, DataMode::Journal),
    values("values-1024-journal", 1024, DataMode::Journal),
];

impl Workload {
    /// Runs the workload with blocks of `block_size` bytes, on an engine that breaks `rule`, if
    /// given.
    pub(super) fn record(&self, block_size: u32, seed: u64, rule: Option<BrokenRule>) -> Result<Recording> {
        let mut setup = self.kind.setup(block_size, seed);
        setup.open.instruments.broken_rule = rule;
        record(setup, seed, self.work)
    }
}

/// Minimum size of a journal in blocks, which is also its size on most images.
const LOG_BLOCKS: u32 = 1024;

impl Kind {
    fn setup(self, block_size: u32, seed: u64) -> Setup {
        let mut mkfs = mkfs::Options::ext4().block_size(block_size);
        // Handles between two commits: so few that some operations of several handles are split
        // between transactions.
        let commit_point_handles = [23, 61, 13, 131][blockyard_disk::num::usize_from_u64(seed % 4)];
        let mut open = OpenOptions { commit_point_handles, seed, ..OpenOptions::default() };
        let (mut blocks, mut group) = (8 * LOG_BLOCKS, Some(2 * LOG_BLOCKS));
        match self {
            Self::Small => {}
            Self::OrphanFile => mkfs = mkfs.features("orphan_file"),
            Self::Logged => open.data = DataMode::Journal,
            Self::Clusters => {
                mkfs = mkfs.cluster_size(cluster_size(block_size));
                (blocks, group) = (32 * LOG_BLOCKS, None);
            }
            Self::Threads => {
                open.cpus = 8;
                blocks = 16 * LOG_BLOCKS;
            }
            Self::Commits => open.commit_point_handles = 2,
            Self::ThreadsCommits => {
                open.cpus = 8;
                open.commit_point_handles = [2, 3, 4, 3][blockyard_disk::num::usize_from_u64(seed % 4)];
                blocks = 16 * LOG_BLOCKS;
            }
            Self::Values(inode_size, data) => {
                mkfs = mkfs.features("ea_inode").inode_size(inode_size);
                open.data = data;
            }
        }
        // With blocks of 64 KiB the log alone takes 64 MiB. So images with large blocks have fewer
        // blocks beside the log.
        if block_size > LARGE {
            (blocks, group) = (2 * LOG_BLOCKS, group.map(|_| LOG_BLOCKS / 2));
            mkfs = mkfs.inodes(4096);
        }
        mkfs.blocks_per_group = group;
        Setup { size: u64::from(blocks) * u64::from(block_size), mkfs, open }
    }
}

/// The block size in bytes above which images have fewer blocks.
const LARGE: u32 = 4096;

/// Bytes of a cluster of [`Kind::Clusters`].
const fn cluster_size(block_size: u32) -> u32 {
    if block_size > LARGE { 2 * block_size } else { 8 * block_size }
}

/// A long name, which fills a directory quickly.
fn long_name(n: u32) -> String {
    format!("{}-{n}", "a-rather-long-name-".repeat(8))
}

/// Turns the errors that random operations may rightly get into `None`, and passes on all others.
fn tolerate<T>(result: blockyard_engine::Result<T>) -> Result<Option<T>> {
    use blockyard_engine::Error;
    match result {
        Ok(value) => Ok(Some(value)),
        Err(
            Error::NotFound
            | Error::Exists
            | Error::NotDirectory
            | Error::IsDirectory
            | Error::NotEmpty
            | Error::NoAttribute
            | Error::NoSpace
            | Error::NoInodes
            | Error::AttributeRoom { .. }
            | Error::Invalid(_)
            | Error::NotPermitted,
        ) => Ok(None),
        Err(other) => Err(other.into()),
    }
}
