//! `lab run e3`, the published bigalloc experiment of 2011: how many metadata reads and how much
//! time clusters save.
//!
//! A file server keeps large preallocated files. Its memory is short, so a call may have to fetch
//! the metadata that it needs. Here such a server ([`server`]) works on a file system in memory.
//! The lab counts what each call has to fetch ([`crate::metered`]). A modelled disk that all calls
//! share says how long that takes ([`spindle`]). Three parameters were fitted to the published
//! column for clusters of 64 KiB ([`Memory::CALIBRATED`]): the amount of memory, how often its
//! content is lost, and the calls a second. The other columns are predictions. Nothing depends on a
//! clock: the same seed gives the same rows.

mod published;
mod server;
mod spindle;
pub mod table;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use blockyard_alloc::Policy;
use blockyard_disk::num::{count_as_f64, u64_from_usize, usize_from_u64};
use blockyard_engine::mkfs;
use serde::{Deserialize, Serialize};

use crate::age::Ageing;
use crate::figures::states::FRESH;
use crate::folder::ledger::Ledger;
use crate::run::{Verdict, default_mkfs, refuse_twice};
use crate::workload::scale::scaled;
use crate::workload::{GIB, MIB};
use server::{Measured as Call, Server};

pub use crate::metered::MetadataReads;

/// Cluster sizes in KiB in the order of the published columns; `None` is a file system without
/// clusters.
pub const CLUSTERS: [Option<u32>; 4] = [None, Some(64), Some(256), Some(1024)];
/// Size of the image at scale 1.
const IMAGE_BYTES: u64 = 1024 * GIB;
/// Calls that take longer than this count as slow.
const LONG: Duration = Duration::from_millis(100);

/// The server's memory and load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// Pages of metadata that fit in memory, at scale 1.
    pub pages: u64,
    /// Number of fallocates and truncates after which all pages are dropped, at scale 1.
    pub spike_every: u64,
    /// Share (0..=1) of the free space that files take.
    pub fill: f64,
    /// Calls a second, of all kinds.
    pub calls_per_s: f64,
    /// How often a file is replaced, on average, before anything is measured.
    pub turnovers: u64,
}

impl Memory {
    /// Fitted to the published column for clusters of 64 KiB: `pages` and `spike_every` to
    /// fallocate's reads, `calls_per_s` to fallocate's time and to the share of slow reads. When
    /// these values were fitted, the server made no unlinks.
    pub const CALIBRATED: Self =
        Self { pages: 5000, spike_every: 30_000, fill: 0.85, calls_per_s: 56.0, turnovers: 1 };
}

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Allocates space.
    Fallocate,
    /// Truncates a file to zero bytes.
    Truncate,
    /// Removes the name of a truncated file, and so its inode.
    Unlink,
    /// A direct read.
    Read,
    /// A direct write.
    Write,
}

impl Op {
    /// All kinds, in the order of rows.
    pub const ALL: [Self; 5] = [Self::Fallocate, Self::Truncate, Self::Unlink, Self::Read, Self::Write];

    /// The name of the kind in rows.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fallocate => "fallocate",
            Self::Truncate => "truncate",
            Self::Unlink => "unlink",
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct ClusterPlan {
    /// Policy, as given on the command line.
    pub policy: String,
    /// Factor for the size of the image and for memory.
    pub scale: f64,
    /// Number of fallocates and truncates to measure.
    pub calls: u64,
    /// Seed.
    pub seed: u64,
    /// Whether the allocator assumes a device with seek times.
    pub rotational: bool,
    /// Ageings to measure one after the other, in addition to fresh images.
    pub aged: Vec<Ageing>,
    /// Memory and load of the server.
    pub memory: Memory,
    /// Whether to repeat everything with other memory, load, fill and size.
    pub sensitivity: bool,
}

/// The calls of one kind on one file system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterRow {
    /// Always `e3`.
    pub workload: String,
    /// The policy.
    pub policy: String,
    /// `fresh`, or the ageing of the image.
    #[serde(default = "crate::figures::states::fresh")]
    pub state: String,
    /// What differs from the calibration; empty if nothing does.
    #[serde(default)]
    pub variant: String,
    /// Cluster size in KiB; `None` without clusters.
    pub cluster_kb: Option<u32>,
    /// The kind of call: fallocate, truncate, unlink, read, write.
    pub op: String,
    /// Seed.
    pub seed: u64,
    /// Number of files that have their full size at the end.
    pub files: u64,
    /// Number of calls.
    pub calls: u64,
    /// Mean time in microseconds, on the modelled disk.
    pub mean_us: f64,
    /// Mean number of bitmaps and mapping blocks that a call reads.
    pub meta_reads_mean: f64,
    /// Most bitmaps and mapping blocks that one call reads.
    pub meta_reads_max: u64,
    /// Share (0..=1) of the calls that took over 100 ms.
    pub share_over_100ms: f64,
    /// All reads of bitmaps and mapping blocks, by kind.
    pub meta_reads: MetadataReads,
    /// Mean number of separate physical runs that a direct read or write touches; 0 for other
    /// calls.
    pub pieces_mean: f64,
    /// Mean number of extents of a file of full size.
    pub extents_per_file: f64,
}

impl crate::figures::states::Stated for ClusterRow {
    fn state(&self) -> &str {
        &self.state
    }

    fn as_fresh(&self) -> Self {
        Self { state: crate::figures::states::fresh(), ..self.clone() }
    }
}

/// The stored results of one file system.
#[derive(Serialize, Deserialize)]
struct Measured {
    rows: Vec<ClusterRow>,
    verdict: Verdict,
}

impl crate::folder::ledger::Cell for Measured {
    const FILE: &'static str = crate::folder::files::CLUSTERS_FILE;
    type Row = ClusterRow;

    fn rows(&self) -> &[ClusterRow] {
        &self.rows
    }
}

/// One file system to measure.
#[derive(Clone, Debug)]
pub struct ClusterCell<'p> {
    variant: &'static str,
    plan: ClusterPlan,
    aged: Option<&'p Ageing>,
    cluster_kib: Option<u32>,
}

impl ClusterPlan {
    /// A warning if the image has so few bitmaps that nearly nothing is read; `None` otherwise.
    #[must_use]
    pub fn too_small(&self) -> Option<String> {
        let groups = self.image_bytes() / (128 * MIB);
        (groups < 256).then(|| {
            format!("e3: {groups} groups have few bitmaps, and with clusters there are fewer still; at this --scale reads show little")
        })
    }

    /// All settings of the plan, as text.
    #[must_use]
    pub fn identity(&self) -> String {
        format!("{self:?}")
    }

    fn image_bytes(&self) -> u64 {
        scaled(IMAGE_BYTES, self.scale) / (128 * MIB) * (128 * MIB)
    }

    fn mkfs_options(&self, cluster_kib: Option<u32>) -> mkfs::Options {
        let options = default_mkfs(self.seed);
        match cluster_kib {
            None => options,
            Some(kib) => options.features("bigalloc").cluster_size(kib << 10),
        }
    }

    fn pages(&self) -> usize {
        usize_from_u64(scaled(self.memory.pages, self.scale).max(8))
    }

    fn spike_every(&self) -> u64 {
        scaled(self.memory.spike_every, self.scale).max(8)
    }

    /// The variants: what differs, and the changed plan.
    fn variants(&self) -> Vec<(&'static str, Self)> {
        let with = |memory: Memory, scale: f64| Self { memory, scale, ..self.clone() };
        let Memory { pages, spike_every, fill, calls_per_s, .. } = self.memory;
        let mut variants = vec![("", self.clone())];
        if self.sensitivity {
            let memory = self.memory;
            variants.extend([
                ("half the memory", with(Memory { pages: pages / 2, ..memory }, self.scale)),
                ("twice the memory", with(Memory { pages: pages * 2, ..memory }, self.scale)),
                ("lost twice as often", with(Memory { spike_every: spike_every / 2, ..memory }, self.scale)),
                ("75 % full", with(Memory { fill: fill - 0.1, ..memory }, self.scale)),
                ("92 % full", with(Memory { fill: fill + 0.07, ..memory }, self.scale)),
                (
                    "a tenth fewer calls a second",
                    with(Memory { calls_per_s: calls_per_s * 0.9, ..memory }, self.scale),
                ),
                // Here memory does not shrink with the disk.
                (
                    "half the disk",
                    with(
                        Memory { pages: pages * 2, spike_every: spike_every * 2, ..memory },
                        self.scale / 2.0,
                    ),
                ),
            ]);
        }
        variants
    }

    /// Every cluster size on images of each state, in each variant.
    #[must_use]
    pub fn cells(&self) -> Vec<ClusterCell<'_>> {
        let mut cells = Vec::new();
        for (variant, plan) in self.variants() {
            for aged in std::iter::once(None).chain(self.aged.iter().map(Some)) {
                for cluster_kib in CLUSTERS {
                    cells.push(ClusterCell { variant, plan: plan.clone(), aged, cluster_kib });
                }
            }
        }
        cells
    }

    /// Refuses a plan that cannot work, before anything runs.
    ///
    /// # Errors
    /// Says what is wrong and what to do.
    pub fn check(&self) -> Result<()> {
        let policy = Policy::parse(&self.policy)
            .with_context(|| format!("--policy {} (see blockyard policy list)", self.policy))?;
        refuse_twice("--aged", &self.aged)?;
        ensure!(self.calls > 0, "--ops: give a number from 1 up");
        ensure!(
            (0.005..=1.8).contains(&self.scale),
            "--scale {}: for e3 give a factor from 0.005 (5 GiB) to 1.8, which the modelled disk holds",
            self.scale
        );
        // All cluster sizes are compared under the same policy, so it has to serve bigalloc.
        for kib in CLUSTERS {
            let features = mkfs::plan(self.image_bytes(), &self.mkfs_options(kib))?.features;
            policy.serves(&features).with_context(|| {
                format!("--policy {}: e3 makes ext4 of today, with clusters and without", self.policy)
            })?;
        }
        Ok(())
    }
}

/// Runs every cell. `progress` is called before each cell with the cell's number (from 1) and name.
///
/// # Errors
/// Those of [`ClusterPlan::check`], and of the file system.
pub fn run(plan: &ClusterPlan, progress: impl FnMut(usize, &str)) -> Result<(Vec<ClusterRow>, Verdict)> {
    run_kept(plan, &mut Ledger::none(), progress)
}

/// Like [`run`], but a cell whose results are in `ledger` is not measured again. The results of the
/// other cells are added to it.
///
/// # Errors
/// Those of [`run`], and when results cannot be written to the ledger.
pub fn run_kept(
    plan: &ClusterPlan,
    ledger: &mut Ledger,
    mut progress: impl FnMut(usize, &str),
) -> Result<(Vec<ClusterRow>, Verdict)> {
    plan.check()?;
    let (mut rows, mut verdict) = (Vec::new(), Verdict::default());
    let cells = plan.cells();
    for (index, cell) in cells.iter().enumerate() {
        let name = cell.name();
        progress(index + 1, &name);
        let is_last = index + 1 == cells.len();
        let measured = ledger.cell(cell.decides()?, || cell.measure(is_last));
        let measured = measured.with_context(|| name)?;
        rows.extend(measured.rows);
        verdict.add(&measured.verdict);
    }
    Ok((rows, verdict))
}

impl ClusterCell<'_> {
    fn name(&self) -> String {
        let mut name = format!("e3 on {}", name_of(self.cluster_kib));
        for more in [self.variant.to_owned(), self.aged.map_or(String::new(), ToString::to_string)] {
            if !more.is_empty() {
                name = format!("{name}, {more}");
            }
        }
        name
    }

    /// All settings that determine the results of one file system.
    fn decides(&self) -> Result<serde_json::Value> {
        let policy = format!("{:?}", Policy::parse(&self.plan.policy)?);
        Ok(
            serde_json::json!({"workload": "e3", "name": self.name(), "policy": policy, "plan": self.plan.identity(),
            "aged": self.aged.map(|aged| format!("{aged:?}"))}),
        )
    }

    fn measure(&self, show_e2fsck: bool) -> Result<Measured> {
        let mut verdict = Verdict::default();
        let server = Server::open(&self.plan, self.cluster_kib, self.aged)?;
        let outcome = server.run(self.plan.calls, &mut verdict, show_e2fsck)?;
        let state = self.aged.map_or(FRESH.to_owned(), ToString::to_string);
        let row = |op: Op| {
            let calls: Vec<&Call> = outcome.calls.iter().filter(|call| call.op == op).collect();
            ClusterRow {
                workload: "e3".to_owned(),
                policy: self.plan.policy.clone(),
                state: state.clone(),
                variant: self.variant.to_owned(),
                cluster_kb: self.cluster_kib,
                seed: self.plan.seed,
                files: outcome.files,
                extents_per_file: outcome.extents_per_file,
                ..figures(op, &calls)
            }
        };
        Ok(Measured { rows: Op::ALL.map(row).to_vec(), verdict })
    }
}

/// The row of calls of one kind. The fields that describe the file system are left empty.
fn figures(op: Op, calls: &[&Call]) -> ClusterRow {
    let count = count_as_f64(u64_from_usize(calls.len().max(1)));
    let mean = |value: &dyn Fn(&Call) -> f64| calls.iter().map(|call| value(call)).sum::<f64>() / count;
    let of = |number: usize| count_as_f64(u64_from_usize(number));
    let mut meta_reads = MetadataReads::default();
    calls.iter().flat_map(|call| &call.fetches).for_each(|fetch| meta_reads.add(fetch.class));
    ClusterRow {
        workload: String::new(),
        policy: String::new(),
        state: String::new(),
        variant: String::new(),
        cluster_kb: None,
        op: op.name().to_owned(),
        seed: 0,
        files: 0,
        calls: u64_from_usize(calls.len()),
        mean_us: mean(&|call| call.time.as_secs_f64() * 1e6),
        meta_reads_mean: mean(&|call| of(call.fetches.len())),
        meta_reads_max: calls.iter().map(|call| u64_from_usize(call.fetches.len())).max().unwrap_or(0),
        share_over_100ms: mean(&|call| f64::from(u8::from(call.time > LONG))),
        meta_reads,
        pieces_mean: mean(&|call| of(call.pieces)),
        extents_per_file: 0.0,
    }
}

/// The name of a cluster size in tables.
#[must_use]
pub fn name_of(cluster_kib: Option<u32>) -> String {
    match cluster_kib {
        None => "stock ext4".to_owned(),
        Some(1024) => "1M clusters".to_owned(),
        Some(kib) => format!("{kib}k clusters"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metered::{Class, Fetch};

    fn plan() -> ClusterPlan {
        ClusterPlan {
            policy: "linux-6.18:scan=linear".into(),
            scale: 0.02,
            calls: 300,
            seed: 1,
            rotational: false,
            aged: Vec::new(),
            memory: Memory::CALIBRATED,
            sensitivity: false,
        }
    }

    /// Clusters of 1 MiB save reads and time, and a second run gives the same rows.
    #[test]
    fn clusters_save_metadata_reads_and_all_of_it_repeats() {
        let (rows, verdict) = run(&plan(), |_, _| ()).unwrap();
        assert!(verdict.is_clean() && verdict.images == 4, "{}", verdict.text());
        assert_eq!(verdict.e2fsck_clean.is_some(), crate::run::e2fsck_program().is_some());
        assert_eq!(rows.len(), 20);
        let [stock, .., largest] = [0, 5, 10, 15].map(|at| &rows[at]);
        assert_eq!((stock.op.as_str(), largest.cluster_kb), ("fallocate", Some(1024)));
        assert!(stock.meta_reads_mean > 10.0 * largest.meta_reads_mean, "{stock:?} {largest:?}");
        assert!(stock.mean_us > 3.0 * largest.mean_us, "{stock:?} {largest:?}");
        assert!(rows[1].meta_reads_mean > rows[16].meta_reads_mean, "{:?} {:?}", rows[1], rows[16]);
        assert_eq!(rows[0].calls + rows[1].calls, 300);
        assert_eq!((rows[2].op.as_str(), rows[2].calls), ("unlink", rows[1].calls));
        assert!(rows[3].calls == 3600 && rows[3].pieces_mean >= 1.0, "{:?}", rows[3]);
        assert_eq!(run(&plan(), |_, _| ()).unwrap().0, rows);
    }

    #[test]
    fn variants_and_states_are_cells() {
        let aged = vec!["mail:100".parse().unwrap()];
        let all = ClusterPlan { sensitivity: true, aged, ..plan() };
        assert_eq!((plan().cells().len(), all.cells().len()), (4, 64));
        assert_eq!(all.cells()[12].name(), "e3 on stock ext4, half the memory, mail:100");
    }

    #[test]
    fn bad_plans_are_refused() {
        for (plan, part) in [
            (ClusterPlan { policy: "linux-9".into(), ..plan() }, "no policy"),
            (ClusterPlan { policy: "ext3".into(), ..plan() }, "--policy ext3: e3 makes ext4"),
            (ClusterPlan { scale: 0.0001, ..plan() }, "--scale"),
            (ClusterPlan { calls: 0, ..plan() }, "--ops"),
        ] {
            let text = format!("{:#}", run(&plan, |_, name| panic!("{name} ran")).unwrap_err());
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn calls_have_their_means_and_the_most() {
        let call = |bitmaps: usize, maps: usize, ms: u64| {
            let of = |class, count| vec![Fetch { class, offset: 0 }; count];
            let fetches = [of(Class::Bitmap, bitmaps), of(Class::Map, maps)].concat();
            Call { op: Op::Truncate, fetches, pieces: maps, time: Duration::from_millis(ms) }
        };
        let calls = [call(3, 0, 1), call(5, 2, 101), call(0, 0, 100), call(3, 1, 6)];
        let row = figures(Op::Truncate, &calls.iter().collect::<Vec<_>>());
        assert_eq!((row.calls, row.meta_reads_max, row.op.as_str()), (4, 7, "truncate"));
        assert_eq!((row.mean_us, row.meta_reads_mean, row.pieces_mean), (52_000.0, 3.5, 0.75));
        // One call took exactly 100 ms, which is not slow.
        assert_eq!((row.share_over_100ms, row.meta_reads.bitmap, row.meta_reads.map), (0.25, 11, 3));
        assert_eq!(figures(Op::Read, &[]).mean_us, 0.0);
    }

    #[test]
    fn few_groups_are_said_to_be_too_small() {
        let said = |gib: u32| ClusterPlan { scale: f64::from(gib) / 1024.0, ..plan() }.too_small();
        assert!(said(31).unwrap().contains("248 groups"));
        assert_eq!(said(32), None);
    }

    #[test]
    fn clusters_have_the_size_of_their_column() {
        for (kib, blocks) in [(None, 1), (Some(64), 16), (Some(1024), 256)] {
            let plan = ClusterPlan { scale: 0.005, ..plan() };
            let server = Server::open(&plan, kib, None).unwrap();
            assert_eq!(server.fs.geometry().cluster_ratio(), blocks);
        }
    }
}
