//! `lab run`: one workload over policies and numbers of workers, each cell on its own image.
//!
//! A plan is checked as a whole before the first cell runs ([`Plan::check`]), so what is known to
//! be wrong is reported before anything is measured or written. Cells run in ABBA order over the
//! repetitions.

mod cell;
mod image;
mod judge;
mod kernel;
mod on_device;
mod setup;
mod virtual_time;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use blockyard_alloc::Policy;
use blockyard_device::BlockDevice;
use blockyard_disk::num::u64_from_usize;
use blockyard_disk::{Compat, Incompat};
use blockyard_engine::OpenOptions;
use blockyard_inspect::map::AllocationMap;
use blockyard_inspect::scan::ImageScan;

use crate::age::{Ageing, Circumstances, age};
use crate::device_model::DeviceModel;
use crate::figures::row::{Interleave, Row};
use crate::figures::spread::abba;
use crate::figures::states::FRESH;
use crate::folder::ledger::{self, Ledger};
use crate::machine::Machine;
use crate::new_file;
use crate::runner::Limit;
use crate::workload::{MIB, Workload};
use cell::Cell;

#[cfg(test)]
pub(crate) use cell::tests::scan as example_scan;
pub(crate) use image::CellDevice;
pub use image::{Held, ImageSource, default_mkfs};
pub use judge::Verdict;
pub(crate) use judge::e2fsck_program;
pub use kernel::CAVEAT;
pub use setup::Setup;

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The workload.
    pub workload: Workload,
    /// Policy arms, as given on the command line.
    pub policies: Vec<String>,
    /// Policies from other crates; arms may begin with their names.
    pub others: Vec<Policy>,
    /// Numbers of workers.
    pub workers: Vec<u32>,
    /// Logical CPUs; `None`: as many as workers.
    pub cpus: Option<u32>,
    /// How workers share time.
    pub interleave: Interleave,
    /// The image that each cell runs on.
    pub image: ImageSource,
    /// When a cell ends.
    pub limit: Limit,
    /// Repetitions of each cell.
    pub repeat: u32,
    /// Seed.
    pub seed: u64,
    /// Whether the running kernel is an arm too.
    pub beside_kernel: bool,
    /// Whether the engine writes the image's journal. Without it, metadata is written directly to
    /// its home. If both values are given, each policy is two arms.
    pub journal: Vec<bool>,
    /// Whether the allocator assumes a device with seek times.
    pub rotational: bool,
    /// Bytes of dirty data allowed in the engine and in the running kernel; `None`: their defaults.
    pub dirty_limit: Option<u64>,
    /// The machine of [`Interleave::Virtual`]; `None` for other interleavings.
    pub machine: Option<Machine>,
    /// How the image of each cell is aged, under the policy of the cell (for the kernel, under the
    /// default policy); `None`: not at all.
    pub aged: Option<Ageing>,
    /// The modelled device that each cell runs on. The time of the cell is then the model's.
    /// `None`: no modelled device.
    pub device: Option<DeviceModel>,
    /// Bytes of metadata that the engine keeps in memory on a modelled device; `None`: 16 MiB.
    pub cache_bytes: Option<usize>,
    /// New file that lists the requests to the modelled device; for a plan of one cell. `None`: not
    /// kept.
    pub requests: Option<PathBuf>,
    /// New file that lists, for each operation on the modelled device, what it read and how long it
    /// took; for a plan of one cell. `None`: not kept.
    pub operations: Option<PathBuf>,
}

/// The results of a plan.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Every measured cell: by arm in the given order, then workers, then repetitions.
    pub rows: Vec<Row>,
    /// The judges' verdict on the images.
    pub verdict: Verdict,
    /// For each arm, the allocation map after its last repetition with the most workers. Cells in
    /// virtual time have none.
    pub maps: Vec<NamedMap>,
}

/// An allocation map and its cell.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NamedMap {
    /// What the map shows.
    pub title: String,
    /// The policy arm.
    pub policy: String,
    /// Workers of the cell.
    pub workers: u32,
    /// The map.
    pub map: AllocationMap,
    /// The part of the map that holds content of files; `None` in runs of earlier versions.
    #[serde(default)]
    pub files: Option<AllocationMap>,
}

impl NamedMap {
    /// The map as an `<svg>` element.
    #[must_use]
    pub fn svg(&self) -> String {
        self.map.svg(&self.title, self.files.as_ref())
    }
}

/// What the judges found so far, and the allocation maps to show.
#[derive(Default)]
struct Judged {
    workload: String,
    verdict: Verdict,
    maps: Vec<NamedMap>,
}

impl Judged {
    fn note_map(&mut self, policy: &str, workers: u32, scan: ImageScan) {
        let title = format!(
            "{}: {policy}, {}",
            self.workload,
            blockyard_inspect::units::counted(workers.into(), "worker")
        );
        let (map, files) = (scan.map, Some(scan.file_map));
        self.keep_map(NamedMap { title, policy: policy.to_owned(), workers, map, files });
    }

    /// Keeps the map if no other cell of the arm has had more workers.
    fn keep_map(&mut self, new: NamedMap) {
        match self.maps.iter_mut().find(|known| known.policy == new.policy) {
            Some(known) if known.workers <= new.workers => *known = new,
            Some(_) => {}
            None => self.maps.push(new),
        }
    }
}

/// The stored results of a cell.
#[derive(serde::Serialize, serde::Deserialize)]
struct MeasuredCell {
    rows: Vec<Row>,
    verdict: Verdict,
    maps: Vec<NamedMap>,
}

impl ledger::Cell for MeasuredCell {
    const FILE: &'static str = crate::folder::files::ROWS_FILE;
    type Row = Row;

    fn rows(&self) -> &[Row] {
        &self.rows
    }
}

/// The name of the kernel's arm in rows.
pub const KERNEL_ARM: &str = "kernel";

/// What makes the decisions of an arm.
enum Arm {
    /// The engine under a policy, and whether it writes the journal.
    Engine(Box<Policy>, bool),
    Kernel,
}

impl Plan {
    /// A workload under some arms with the defaults of `lab run`, except that workers run in
    /// lockstep, so that results repeat. Each cell has a fresh image in memory. There are cells
    /// with 1, 2, 8 and 64 workers. If the workload does not end on its own, each worker does 1000
    /// operations.
    #[must_use]
    pub fn new(workload: Workload, policies: &[&str]) -> Self {
        const SEED: u64 = 1;
        let ops = (!workload.ends_by_itself()).then_some(1000);
        Self {
            image: ImageSource::memory(workload.published_device(), SEED),
            limit: Limit { time: None, ops_per_worker: ops, fsync_end: false },
            workload,
            policies: policies.iter().map(|&policy| policy.to_owned()).collect(),
            others: Vec::new(),
            workers: vec![1, 2, 8, 64],
            cpus: None,
            interleave: Interleave::Lockstep,
            repeat: 1,
            seed: SEED,
            beside_kernel: false,
            journal: vec![false],
            rotational: false,
            dirty_limit: None,
            machine: None,
            aged: None,
            device: None,
            cache_bytes: None,
            requests: None,
            operations: None,
        }
    }

    /// The files to which a run on a modelled device writes requests and operations, and the
    /// options that name them.
    fn kept(&self) -> impl Iterator<Item = (&'static str, &PathBuf)> {
        let kept = [("--keep-requests", &self.requests), ("--keep-operations", &self.operations)];
        kept.into_iter().filter_map(|(option, path)| Some((option, path.as_ref()?)))
    }

    /// Refuses a plan that cannot work, before anything runs or is written.
    ///
    /// # Errors
    /// Says what is wrong and what to do.
    pub fn check(&self) -> Result<()> {
        self.check_words()?;
        if self.beside_kernel {
            kernel::check(self)?;
        }
        self.kept().try_for_each(|(option, path)| new_file::check(option, path))?;
        self.check_image()
    }

    fn check_image(&self) -> Result<()> {
        self.image.check(self.space_of_files())?;
        // In virtual time a fresh file system has no image, so there are no features that a policy
        // could refuse.
        if self.interleave != Interleave::Virtual || self.aged.is_some() {
            let parsed = self.parsed()?;
            self.policies
                .iter()
                .zip(&parsed)
                .try_for_each(|(name, policy)| self.image.check_policy(name, policy))?;
        }
        self.check_features()
    }

    /// Refuses an image that lacks a feature which the plan needs.
    fn check_features(&self) -> Result<()> {
        let (image, features) = (self.image.name(), self.image.features()?);
        ensure!(
            self.workload.writes_data() || features.incompat.contains(Incompat::EXTENTS),
            "{image}: {} allocates by fallocate, which needs the feature extent (ext4); take a workload that writes, such \
             as smallfiles",
            self.workload.name()
        );
        ensure!(
            !self.journal.contains(&true) || features.compat.contains(Compat::HAS_JOURNAL),
            "{image}: --journal needs the feature has_journal; leave it out, or take an image with a journal"
        );
        Ok(())
    }

    /// The part of [`Self::check`] that looks at neither an image file nor this machine.
    ///
    /// # Errors
    /// Says what is wrong and what to do.
    pub fn check_words(&self) -> Result<()> {
        self.parsed()?;
        ensure!(
            !self.workers.is_empty() && !self.workers.contains(&0) && self.repeat > 0 && self.cpus != Some(0),
            "--workers, --cpus and --repeat take numbers from 1 up"
        );
        refuse_twice("--policy", &self.policies)?;
        refuse_twice("--workers", &self.workers)?;
        ensure!(
            matches!(self.journal[..], [_] | [false, true] | [true, false]),
            "--journal takes off, on, or off,on"
        );
        ensure!(
            self.workers.iter().chain(&self.cpus).all(|&count| count <= 4096),
            "--workers, --cpus: at most 4096"
        );
        let is_endless = self.limit.time.is_none() && self.limit.ops_per_worker.is_none();
        if is_endless && !self.workload.ends_by_itself() {
            bail!("{}: give --seconds or --ops, it does not end by itself", self.workload.name());
        }
        if self.limit.time.is_some() && self.interleave != Interleave::Threads {
            match &self.device {
                Some(device) => bail!(
                    "--seconds does not fit --device {device}: its time is the model's, and the work is counted so that it \
                     repeats; give --ops instead"
                ),
                None => bail!(
                    "--seconds: rounds of --interleave {} are counted by --ops, so that they repeat",
                    self.interleave.name()
                ),
            }
        }
        if self.interleave == Interleave::Virtual {
            self.check_virtual()?;
        }
        self.check_device()?;
        if self.image.is_in_place() && self.cells() != 1 {
            bail!(
                "--in-place: one cell only, because each changes the image; give one --policy, one number of \
                 --workers, --repeat 1, and leave out --beside"
            );
        }
        match self.image {
            ImageSource::Memory { .. } => self.check_image(),
            ImageSource::File { .. } => Ok(()),
        }
    }

    /// Checks what a modelled device requires from the plan. Without such a device, refuses options
    /// that need one.
    fn check_device(&self) -> Result<()> {
        let Some(device) = &self.device else {
            if let Some((option, _)) = self.kept().next() {
                bail!("{option}: only of a modelled device; give --device");
            }
            ensure!(self.cache_bytes.is_none(), "--cache: only on a modelled device; give --device");
            return Ok(());
        };
        ensure!(
            self.interleave == Interleave::Lockstep && !self.beside_kernel && self.limit.time.is_none(),
            "--device {device}: its clock advances as workers take turns; give --ops, and leave out --seconds, --beside and \
             every --interleave but lockstep"
        );
        if let Some((option, _)) = self.kept().next().filter(|_| self.cells() != 1) {
            bail!("{option}: one cell only; give one --policy, one number of --workers and --repeat 1");
        }
        if let Some(bytes) = self.image.memory_bytes() {
            device.parameters.model(bytes).with_context(|| format!("--device {device}"))?;
        }
        Ok(())
    }

    /// Bytes of dirty data allowed in the engine.
    #[must_use]
    pub fn dirty_data_bytes(&self) -> usize {
        let limit = self.dirty_limit.and_then(|limit| usize::try_from(limit).ok());
        limit.unwrap_or(OpenOptions::default().dirty_data_bytes)
    }

    /// The conditions of a workload that writes data, for reports: the image, the limits of dirty
    /// data, and whether workers end with fsync. `None` if the workload writes no data.
    #[must_use]
    pub fn conditions(&self) -> Option<String> {
        self.workload.writes_data().then(|| {
            let mib = |bytes: u64| format!("{} MiB", bytes / MIB);
            let ours = mib(u64_from_usize(self.dirty_data_bytes()));
            let kernel = match (self.beside_kernel, self.dirty_limit) {
                (false, _) => String::new(),
                (true, Some(limit)) => format!(", the kernel's {}", mib(limit)),
                (true, None) => ", the kernel's is its own (vm.dirty_ratio)".to_owned(),
            };
            let end = if self.limit.fsync_end { "; each worker ends with fsync" } else { "" };
            format!("image: {}; dirty data: at most {ours}{kernel}{end}", self.image.description())
        })
    }

    /// A warning about virtual CPUs on which no worker runs.
    #[must_use]
    pub fn idle_cpus(&self) -> Option<String> {
        let most = self.workers.iter().max()?;
        let is_virtual = self.interleave == Interleave::Virtual;
        let cpus = self.cpus.filter(|cpus| is_virtual && cpus > most)?;
        Some(format!("--cpus {cpus}: workers run on at most {most} of them; the others are idle"))
    }

    /// A warning about an image on which the workload scanswitch shows next to nothing. If the
    /// image is smaller than two groups, or the files fill more than half of it, the largest free
    /// chunks of nearly all groups are of one order. Then both scan modes find nearly the same
    /// groups.
    #[must_use]
    pub fn one_order(&self) -> Option<String> {
        let is_switched = matches!(self.workload, Workload::ScanSwitch { .. });
        let (bytes, group) = self.image.sizes().ok().filter(|_| is_switched)?;
        let enough = 2 * self.space_of_files().max(group);
        (bytes < enough).then(|| {
            format!(
                "scanswitch: the image of {} MiB is too small to have groups of several orders, so the scan mode makes no \
                 difference; from {} MiB up it does",
                bytes / MIB,
                enough.div_ceil(MIB)
            )
        })
    }

    /// The state of the image, as rows name it.
    #[must_use]
    pub fn state(&self) -> String {
        self.aged.as_ref().map_or(FRESH.to_owned(), ToString::to_string)
    }

    /// Ages the image of a cell as planned, and leaves space for the files of the workload. In
    /// virtual time, leaves space for all that the workers may allocate before a commit.
    fn age(&self, device: Arc<dyn BlockDevice>, policy: Policy) -> Result<()> {
        if let Some(ageing) = &self.aged {
            let files = match self.interleave {
                Interleave::Virtual => self.space_before_commit(),
                _ => self.space_of_files(),
            };
            let room = image::with_mapping(files);
            let who =
                Circumstances { rotational: self.rotational, room, ..Circumstances::new(policy, self.seed) };
            age(device, ageing, &who)?;
        }
        Ok(())
    }

    /// Bytes that the files of the cell with the most workers may fill.
    fn space_of_files(&self) -> u64 {
        let most = self.workers.iter().copied().max().unwrap_or(1);
        u64::from(most) * self.workload.space_of_worker()
    }

    /// Number of cells that will run.
    #[must_use]
    pub fn cells(&self) -> usize {
        let arms = self.policies.len() * self.journal.len() + usize::from(self.beside_kernel);
        arms * self.workers.len() * blockyard_disk::num::usize_from_u32(self.repeat)
    }

    /// All fields of the plan, as text.
    #[must_use]
    pub fn identity(&self) -> String {
        format!("{self:?}")
    }

    /// Everything that determines one cell.
    fn decides(
        &self,
        arm: &Arm,
        name: &str,
        workers: u32,
        repeat: u32,
        is_last: bool,
    ) -> Result<serde_json::Value> {
        let (policy, journal) = match arm {
            Arm::Engine(policy, journal) => (format!("{policy:?}"), *journal),
            Arm::Kernel => (KERNEL_ARM.to_owned(), true),
        };
        Ok(serde_json::json!({
            "workload": format!("{:?}", self.workload),
            "name": name,
            "policy": policy,
            "journal": journal,
            "workers": workers,
            "cpus": self.cpus,
            "interleave": self.interleave.name(),
            "machine": self.machine.as_ref().map(|machine| format!("{machine:?}")),
            "image": self.image.identity()?,
            "rotational": self.rotational,
            "device": self.device.as_ref().map(|device| format!("{device:?}")),
            "cache_bytes": self.cache_bytes,
            "dirty_limit": self.dirty_limit,
            "aged": self.aged.as_ref().map(|aged| format!("{aged:?}")),
            "limit": format!("{:?}", self.limit),
            "seed": self.seed,
            "repetition": repeat,
            "shown_to_e2fsck": is_last,
        }))
    }

    fn parsed(&self) -> Result<Vec<Policy>> {
        ensure!(!self.policies.is_empty(), "--policy: name at least one (see blockyard policy list)");
        let parsed = self.policies.iter().map(|text| {
            Policy::parse_among(text, &self.others)
                .with_context(|| format!("--policy {text} (see blockyard policy list)"))
        });
        parsed.collect()
    }

    /// The arms that run on our engine, with their names. If the plan runs both with and without a
    /// journal, the name says which.
    fn engine_arms(&self) -> Result<Vec<(String, Arm)>> {
        let mut arms = Vec::new();
        for (name, policy) in self.policies.iter().zip(self.parsed()?) {
            for &journal in &self.journal {
                let name = match (self.journal.len(), journal) {
                    (1, _) => name.clone(),
                    (_, false) => format!("{name}, journal off"),
                    (_, true) => format!("{name}, journal on"),
                };
                arms.push((name, Arm::Engine(Box::new(policy), journal)));
            }
        }
        Ok(arms)
    }
}

/// Runs every cell. `progress` is called before each cell with the cell's number (from 1) and name.
///
/// # Errors
/// Those of [`Plan::check`] before anything runs. A cell that fails is named.
pub fn run(plan: &Plan, progress: impl FnMut(usize, &str)) -> Result<Outcome> {
    run_kept(plan, &mut Ledger::none(), progress)
}

/// Like [`run`]. Cells in `ledger` are not measured again; new ones are added to it.
///
/// # Errors
/// As [`run`], and when a cell cannot be written.
pub fn run_kept(plan: &Plan, ledger: &mut Ledger, progress: impl FnMut(usize, &str)) -> Result<Outcome> {
    let (outcome, ended) = run_as_far(plan, ledger, progress)?;
    ended.map(|()| outcome)
}

/// Like [`run_kept`], but keeps the rows that were measured before a cell failed, and returns the
/// error beside them.
///
/// # Errors
/// Those of [`Plan::check`].
pub fn run_as_far(
    plan: &Plan,
    ledger: &mut Ledger,
    progress: impl FnMut(usize, &str),
) -> Result<(Outcome, Result<()>)> {
    plan.check()?;
    let (mut judged, mut rows) = (Judged::default(), Vec::new());
    let ended = measure(plan, ledger, progress, (&mut judged, &mut rows));
    rows.sort_by_key(|(key, _)| *key);
    let rows = rows.into_iter().map(|(_, row)| row).collect();
    Ok((Outcome { rows, verdict: judged.verdict, maps: judged.maps }, ended))
}

/// The place of a row: arm, workers and repetition.
type Place = (usize, u32, u32);

fn measure(
    plan: &Plan,
    ledger: &mut Ledger,
    mut progress: impl FnMut(usize, &str),
    (judged, rows): (&mut Judged, &mut Vec<(Place, Row)>),
) -> Result<()> {
    let mut arms = plan.engine_arms()?;
    if plan.beside_kernel {
        arms.push((KERNEL_ARM.to_owned(), Arm::Kernel));
    }
    let cells: Vec<(usize, u32)> =
        (0..arms.len()).flat_map(|arm| plan.workers.iter().map(move |&workers| (arm, workers))).collect();
    let workload = match plan.interleave {
        Interleave::Threads => plan.workload.name(),
        other => format!("{}, {}", plan.workload.name(), other.name()),
    };
    let workload = plan.aged.iter().fold(workload, |workload, aged| format!("{workload}; {aged}"));
    for (index, (repeat, cell)) in abba(cells.len(), plan.repeat, plan.seed).enumerate() {
        let (arm, workers) = cells[cell];
        let (name, decides) = &arms[arm];
        let title =
            plan.aged.iter().fold(format!("{} {name} x {workers}", plan.workload.name()), |title, aged| {
                format!("{title}, {aged}")
            });
        let title = plan.device.iter().fold(title, |title, device| format!("{title} on {device}"));
        progress(index + 1, &title);
        let is_last = index + 1 == plan.cells();
        let measured = ledger.cell(plan.decides(decides, name, workers, repeat, is_last)?, || {
            let mut judged = Judged { workload: workload.clone(), ..Judged::default() };
            let row = match decides {
                Arm::Engine(policy, journal) => {
                    Cell { plan, policy: **policy, journal: *journal, name, workers }
                        .run(&mut judged, is_last)
                }
                Arm::Kernel => kernel::run(plan, workers, &mut judged),
            };
            let rows = vec![row?];
            Ok(MeasuredCell { rows, verdict: judged.verdict, maps: judged.maps })
        });
        let measured = measured.with_context(|| plan.image.prefixed(&title))?;
        judged.verdict.add(&measured.verdict);
        measured.maps.into_iter().for_each(|map| judged.keep_map(map));
        rows.extend(measured.rows.into_iter().map(|row| ((arm, workers, repeat), row)));
    }
    Ok(())
}

/// Refuses a value that is given twice: the rows of two arms with one name would look like
/// repetitions of one arm.
///
/// # Errors
/// Names the value that is given twice.
pub fn refuse_twice(option: &str, given: &[impl ToString]) -> Result<()> {
    let mut seen = BTreeSet::new();
    match given.iter().map(ToString::to_string).find(|text| !seen.insert(text.clone())) {
        Some(text) => bail!("{option}: {text} twice; give it once"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn plan(name: &str, interleave: Interleave, ops: u64) -> Plan {
        let workload = Workload::by_name(name, if name == "fallocate2" { 1.0 } else { 0.002 }).unwrap();
        Plan {
            workers: vec![1, 3],
            interleave,
            image: ImageSource::memory(1 << 30, 7),
            limit: Limit { time: None, ops_per_worker: Some(ops), fsync_end: false },
            seed: 7,
            ..Plan::new(workload, &["linux-6.16", "linux-6.18", "rralloc-v2", "yard"])
        }
    }

    #[test]
    fn the_journal_can_be_an_arm() {
        let both = Plan {
            journal: vec![false, true],
            policies: vec!["yard".into()],
            ..plan("fallocate2", Interleave::Lockstep, 300)
        };
        assert_eq!(both.cells(), 4);
        let outcome = run(&both, |_, _| ()).unwrap();
        let arms: Vec<_> = outcome.rows.iter().map(|row| (row.policy.as_str(), row.workers)).collect();
        let (off, on) = ("yard, journal off", "yard, journal on");
        assert_eq!(arms, [(off, 1), (off, 3), (on, 1), (on, 3)]);
        assert!(outcome.verdict.is_clean());
        assert_eq!(outcome.rows[0].free_extents, outcome.rows[2].free_extents, "the journal moves no block");
    }

    #[test]
    fn every_workload_runs_under_every_arm_and_leaves_clean_images() {
        for name in Workload::NAMES.into_iter().chain(["allocstress:fallocate=none"]) {
            for interleave in [Interleave::Lockstep, Interleave::Overlap] {
                let outcome = run(&plan(name, interleave, 300), |_, _| ()).unwrap();
                assert_eq!(outcome.rows.len(), 8, "{name}");
                assert_eq!((outcome.verdict.check_errors, outcome.verdict.images), (0, 8), "{name}");
                assert_ne!(outcome.verdict.e2fsck_clean, Some(false), "{name}");
                assert_eq!(outcome.maps.len(), 4);
                for row in &outcome.rows {
                    assert!(row.ops > 0 && row.extents_per_file >= 1.0 && row.groups_touched > 0, "{row:?}");
                }
            }
        }
    }

    #[test]
    fn rounds_repeat_to_the_figure() {
        let figures = |rows: Vec<Row>| {
            rows.into_iter()
                .map(|row| (row.ops, row.extents_per_file, row.free_extents, row.lock_acquisitions, row.hits))
                .collect::<Vec<_>>()
        };
        for interleave in [Interleave::Lockstep, Interleave::Overlap] {
            let plan = plan("append64", interleave, 400);
            let first = figures(run(&plan, |_, _| ()).unwrap().rows);
            assert_eq!(first, figures(run(&plan, |_, _| ()).unwrap().rows));
        }
    }

    /// Rows are ordered by arm and number of workers, whatever the order in which cells ran.
    #[test]
    fn repetitions_of_a_cell_stand_together() {
        let plan = Plan {
            policies: vec!["yard".into(), "linux-6.16".into()],
            repeat: 2,
            ..plan("fallocate2", Interleave::Threads, 50)
        };
        let mut told = Vec::new();
        let outcome = run(&plan, |_, cell| told.push(cell.to_owned())).unwrap();
        let order: Vec<_> = outcome.rows.iter().map(|row| (row.policy.as_str(), row.workers)).collect();
        let expected = [("yard", 1), ("yard", 1), ("yard", 3), ("yard", 3)].into_iter().chain([
            ("linux-6.16", 1),
            ("linux-6.16", 1),
            ("linux-6.16", 3),
            ("linux-6.16", 3),
        ]);
        assert_eq!(order, expected.collect::<Vec<_>>());
        assert_eq!((told[0].as_str(), told[7].as_str()), ("fallocate2 yard x 1", "fallocate2 yard x 1"));
    }

    #[test]
    fn bad_plans_are_refused_before_anything_runs() {
        let good = || plan("fallocate2", Interleave::Threads, 1);
        let refused = |plan: Plan, part: &str| {
            let error = run(&plan, |_, cell| panic!("{cell} ran")).unwrap_err();
            let text = format!("{error:#}");
            assert!(text.contains(part) && !text.contains('\n'), "{text}");
        };
        refused(Plan { policies: vec!["linux-9".into()], ..good() }, "no policy \"linux-9\"");
        refused(
            Plan { policies: vec!["linux-6.18:visit=choose".into()], ..good() },
            "impossible combination",
        );
        refused(Plan { policies: Vec::new(), ..good() }, "--policy");
        let misfit = vec!["yard".into(), "ext3".into()];
        refused(Plan { policies: misfit, ..good() }, "policy ext3 serves no image with extent");
        refused(Plan { policies: vec!["yard".into(), "yard".into()], ..good() }, "--policy: yard twice");
        refused(Plan { workers: vec![1, 2, 1], ..good() }, "--workers: 1 twice");
        refused(Plan { workers: vec![0], ..good() }, "numbers from 1 up");
        refused(Plan { workers: vec![5000], ..good() }, "at most 4096");
        refused(Plan { repeat: 0, ..good() }, "numbers from 1 up");
        let endless = Limit { time: None, ops_per_worker: None, fsync_end: false };
        refused(Plan { limit: endless, ..good() }, "--seconds or --ops");
        let timed =
            Limit { time: Some(std::time::Duration::from_secs(1)), ops_per_worker: None, fsync_end: false };
        refused(Plan { limit: timed, interleave: Interleave::Overlap, ..good() }, "--ops");
        refused(Plan { image: ImageSource::memory(8 << 20, 1), ..good() }, "too small");
        let file = |in_place| ImageSource::File {
            path: blockyard_device::ImagePath::whole("/nonexistent/image"),
            in_place,
        };
        refused(Plan { image: file(false), ..good() }, "/nonexistent/image");
        refused(Plan { image: file(true), ..good() }, "one cell only");
    }

    /// Patch 11 of the Linux 6.17 series keeps the largest-order index up to date while
    /// `mb_optimize_scan` is 0. Without that patch (`scan_toggle=freeze`), searches look at more
    /// index entries. On an image that is too small, the patch makes next to no difference, and the
    /// plan warns of such an image.
    #[test]
    fn scanswitch_tells_of_an_image_too_small_for_it() {
        let switched = |workers, mib: u64| Plan {
            workers: vec![workers],
            image: ImageSource::memory(mib << 20, 1),
            limit: Limit { time: None, ops_per_worker: Some(400), fsync_end: false },
            ..Plan::new(
                Workload::by_name("scanswitch", 1.0).unwrap(),
                &["linux-6.18:scan=optimized:scan_toggle=freeze", "linux-6.18:scan=optimized"],
            )
        };
        for (workers, mib, enough) in [(1, 128, 256), (28, 1024, 1792)] {
            let told = switched(workers, mib).one_order().unwrap();
            assert!(told.contains(&format!("from {enough} MiB up")), "{told}");
            assert_eq!(switched(workers, enough).one_order(), None);
        }
        assert_eq!(plan("fallocate2", Interleave::Lockstep, 1).one_order(), None);
        let entries = |workers, mib| {
            let rows = run(&switched(workers, mib), |_, _| ()).unwrap().rows;
            [0, 1].map(|arm: usize| rows[arm].index_entries.unwrap())
        };
        let ([crowded, crowded_whole], [base, whole]) = (entries(28, 1024), entries(3, 256));
        assert!(100 * crowded < 102 * crowded_whole, "{crowded} {crowded_whole}");
        assert!(100 * base > 120 * whole, "{base} {whole}");
    }

    #[test]
    fn a_cell_is_an_arm_with_a_number_of_workers_once() {
        let plan = Plan {
            policies: vec!["yard".into(), "linux-6.18".into()],
            journal: vec![false, true],
            beside_kernel: true,
            workers: vec![1, 2],
            repeat: 3,
            ..plan("fallocate2", Interleave::Threads, 1)
        };
        // Two policies with and without a journal, and the kernel.
        assert_eq!(plan.cells(), 5 * 2 * 3);
    }

    #[test]
    fn the_map_of_an_arm_is_that_of_its_largest_cell() {
        let mut judged = Judged::default();
        let map = AllocationMap::new(1, 32, 32);
        for (policy, workers, title) in
            [("a", 2, "1"), ("a", 4, "2"), ("b", 1, "3"), ("a", 4, "4"), ("a", 1, "5")]
        {
            let (title, policy) = (title.to_owned(), policy.to_owned());
            judged.keep_map(NamedMap { title, policy, workers, map: map.clone(), files: None });
        }
        let kept: Vec<_> = judged.maps.iter().map(|map| (map.workers, map.title.as_str())).collect();
        assert_eq!(kept, [(4, "4"), (1, "3")]);
    }
}
