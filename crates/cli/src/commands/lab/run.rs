//! `blockyard lab run`: runs a workload or an experiment under several policies.

mod belonging;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use blockyard_device::ImagePath;
use blockyard_lab::Interleave;
use blockyard_lab::age::Ageing;
use blockyard_lab::copy::{CopyPlan, Tree};
use blockyard_lab::device_model::DeviceModel;
use blockyard_lab::e3::{ClusterPlan, Memory};
use blockyard_lab::e4::PassPlan;
use blockyard_lab::experiment::Experiment;
use blockyard_lab::folder::Environment;
use blockyard_lab::folder::ledger::{Existing, Ledger};
use blockyard_lab::machine::Machine;
use blockyard_lab::report::Run;
use blockyard_lab::run::Setup;
use blockyard_lab::run::{CAVEAT, Held, ImageSource, KERNEL_ARM, Plan, Verdict, default_mkfs, refuse_twice};
use blockyard_lab::runner::Limit;
use blockyard_lab::workload::Workload;

use crate::commands::Output;
use crate::commands::image::{device, operand};
use crate::commands::progress::Progress;
use crate::commands::rotational::Rotational;
use crate::terminal;

/// Each cell (a policy with a number of workers) runs on its own file system: a fresh one in
/// memory, which needs neither root nor files, or a copy-on-write view of an image.
#[derive(clap::Args)]
#[command(after_help = "\
Workloads:
  fallocate2   over and over, each worker appends to its file by fallocate, 8 KiB at a time up to 1 MiB, and truncates it
               (will-it-scale)
  append64     each worker appends to its file by fallocate, 4 KiB at a time up to 1 GiB, once
  scanswitch   as fallocate2, but 256 KiB at a time up to 32 MiB, so that groups fill; the first worker switches
               mb_optimize_scan each time its file is full
  seqwrite     fio: rw=write bs=1M size=4G, one file per job, again and again until the time is over
  smallfiles   fio: rw=write bs=4k size=1G
  allocstress  fio: rw=write bs=4k size=2G
  randwrite    fio: rw=randwrite bs=4k size=1G; no block is written again before all are written
  seqread      fio: rw=read bs=1M size=4G, of files laid out in advance
  randread     fio: rw=randread bs=4k size=1G
  directappend each worker appends to its file by direct writes, 64 KiB at a time up to 1 GiB, once
  churn        over and over, each worker creates a file, appends to it, 16 KiB at a time up to a random size (16 KiB to
               4 MiB), and makes it durable; if it then has more than 64 files, it deletes one at random
  copy         a tree of 182515 files, 27 GiB, is copied three times to the same place, each time over the copy before;
               shows the allocation map after each copy
Before a job starts, fio preallocates every file, and so do the workloads marked fio. To skip that, append
:fallocate=none to the name, as in seqwrite:fallocate=none.

Published experiments, printed as the published tables next to our figures:
  e1           fallocate2 with 1 to 64 workers, and append64, before and after the series (17 allocator patches) of Linux
               6.17, in both scan modes; with --sensitivity, see there
  e1-patches   patches of that series, on 96 virtual CPUs: added to Linux 6.16, and left out of the whole series, one or a
               few at a time; also one after another, on all CPUs of both machines (80 and 96)
  e2           seqwrite, smallfiles and allocstress, each with and without preallocation, directappend and churn, under
               eight arms (or those of --policy); with --device on modelled devices, where each file is written once,
               and the measured time includes making it durable
  e3           a file server with preallocated files whose disk is 85 % full and whose memory is short: how much metadata
               calls read, and how long they take on a modelled disk, by cluster size; takes --policy (one), --ops
               (number of fallocates and truncates), --scale (1: a disk of 1 TiB), --seed, --aged, --sensitivity
  yard         not published: compares yard with the other policies for today's images, by every figure that yard is
               judged by, and marks where yard loses
  e4           each pass of e2fsck on a copied tree of 312820 files; the policies that place it are ext3, ext4-2008,
               ext4-2009, and --policy (one) with and without a linear prefix (--rotational on: only with, off: only
               without); takes --scale, --seed and --aged; needs e2fsck, and strace for the seconds of I/O, which are
               modelled for a notebook disk of 2009

Columns of the tables: locks/op is the number of times that an operation takes a lock which all CPUs share. waits/op
is how often it has to wait for such a lock or for the lock of a group. busy skips is the number of groups that were
passed over because their lock was held. More is better for operations a second, bandwidth, mean extent and mean free
extent. Less is better for all other figures, except for groups and busy skips, where neither is better.

Keys of --json, one object per cell: workload, policy, state (fresh, or the life of --aged), workers, cpus,
interleave, seed, ops, seconds, ops_per_s, ops_per_s_per_worker, bw_mib_s, lat_us_mean, lat_us_p50, lat_us_p99,
lat_us_p9999, lat_us_max, extents_per_file, mean_extent_kb, free_extents, avg_free_extent_kb, groups_touched,
lock_acquisitions (of shared locks, per operation), lock_waits (for shared and group locks, per operation),
groups_skipped_busy, goal_hits (results that start at the goal), stream_goal_hits (requests that found space in the
group of the stream goal; null for policies without patch 2 of the series, which began to count them), index_entries
(visited by searches), hits (number of searches that ended at each criterion), score (e4defrag -c), read_file_hdd_ms,
read_directory_hdd_ms, read_tree_hdd_ms, read_file_ssd_ms, read_directory_ssd_ms, read_tree_ssd_ms (time to read one
file, the fullest directory, and all files, on a modelled disk and SSD; null without an image), directory_runs (runs
that all directory blocks form), free_by_length (free extents from each power of two blocks to the next: from_kb,
extents, share_from: the share of the free space that is in extents of this length or longer). Extents, groups and
score are those of the whole image with the files at full size; with --interleave virtual, those of the workers' files
alone. null means unknown. With --interleave virtual also: machine, waits (by name of locks or lines: name, taken,
waits, wait_ns, section_ns (work under the locks), moved and moved_ns (moves of cache lines, and their time); times
are summed over all CPUs). For fallocate2 and scanswitch, counting begins when each worker has filled its first file.
With --device also: device, job, lat_us_stdev, lat_us_p999, requests, write_amplification, wear_spread (fewest and
most erasures of a block), meta_reads_mean, meta_reads_max (metadata that an operation reads, in pages of 4 KiB or in
blocks if these are larger), meta_reads (by what was read). All of these count only from when the workers begin; files
to be read were laid out and made durable before.

For copy, one object per copy: workload, policy, state, variant, copy, seed, files, bytes, boundaries, empty_groups,
overlap_previous, free_share_long_runs, free_by_length (as above), reuse_interval_mib_p50,
reuse_interval_mib_group_mean, reuses, extents_per_file, mean_extent_kb, free_extents, avg_free_extent_kb, score,
groups_per_transaction, write_entropy, write_gini, discard (for devices that are told of free space never, after each
commit, after each copy: none, online, periodic; each has segments, segment_kb_mean, thin_mib, write_amplification,
wear_spread), readings (read_back, walk, check: each has reads, read_mb, seeks, seek_mib_mean, hdd_s, ssd_s).

For e3, one object per cluster size and kind of call: workload, policy, state, variant, cluster_kb (null without
clusters), op, seed, files, calls, mean_us, meta_reads_mean, meta_reads_max, share_over_100ms, meta_reads (by what was
read), pieces_mean, extents_per_file.

For e4, one object per file system and pass of e2fsck: workload, policy, state, kind, seed, scale, pass (1 to 5, or
total), real, user, system, read_mib, rate_mib_s (as e2fsck reports them: real, user, system and rate_mib_s depend on
this machine and do not repeat, but all other keys do); for e2fsck's reads on the modelled disk reads, read_mb, seeks,
runs, modelled_s, modelled_mb_s, is_calibrated, disk_mb_s (the disk's transfer rate), disk_positioning (factor on the
model's time for a seek or a turn); for our checker's reads checker_reads, checker_read_mb, checker_seeks,
checker_runs, checker_modelled_s. Without strace, all keys of the modelled disk are null. The object with pass total
also has vitals (what e2fsck counts: what, count) and directories (blocks, runs, runs_elsewhere: the runs outside the
first groups of flex groups).

On a terminal, standard error shows which cell runs. With --out, each cell is kept once it is measured, so an
interrupted run loses only the cell that was running. If a cell fails, the cells before it are still shown (except for
e3 and e4, which only keep them in --out).

Exit codes: 0 every image passed our check, and the last one also passed e2fsck, if it is installed; 2 wrong usage,
nothing ran; 4 a judge found errors; 8 failed, or --out holds another run. An image given with --image is changed only
by --in-place, after the judges passed the result.")]
pub(crate) struct Args {
    /// The workload; see below
    workload: String,
    /// Policy arms, comma-separated; overrides follow a colon: linux-6.18:slots=one:busy=wait. In
    /// e1 and e1-patches, the given arms run in addition to the experiment's own. In e2 they
    /// replace them. In yard, they replace the policies that yard is compared with in the cells
    /// with threads; in all other cells, yard is compared with linux-6.18 [default:
    /// linux-6.16,linux-6.18,rralloc-v2,yard; for copy linux-6.18,rralloc-v2; for e3
    /// linux-6.18:scan=linear; for e4 linux-6.18]
    #[arg(long, value_delimiter = ',')]
    policy: Option<Vec<String>>,
    /// Numbers of workers, comma-separated [default: 1,2,8,64; with --interleave virtual as many as
    /// CPUs; experiments have their own]
    #[arg(long, value_delimiter = ',')]
    workers: Option<Vec<u32>>,
    /// Number of logical CPUs. The allocator has a locality group for each, and its numbers of
    /// stream goals and zones depend on it [default: as many as workers; for copy 6]
    #[arg(long)]
    cpus: Option<u32>,
    /// How workers share time. threads: real threads; fast, but not repeatable. lockstep: in turn,
    /// one operation each. overlap: in turn, but each operation keeps the lock of its group until
    /// every worker has had its turn. virtual: on CPUs of a modelled machine, in virtual time (see
    /// --machine). With lockstep and overlap, placement repeats to the byte, and rates are those of
    /// one thread. With virtual, rates are predictions and repeat to the byte; it takes only
    /// fallocate2, scanswitch and append64, on 1 to 1024 CPUs, and a CPU switches workers only
    /// between operations [default: lockstep with --device; otherwise threads, then also overlap,
    /// for a placement that repeats; only threads with --in-place]
    #[arg(long)]
    interleave: Option<String>,
    /// The machine of --interleave virtual: kunpeng-920, amd-9654-x2, or a file (see lab machine).
    /// With :spread after the name, workers run on CPUs far apart instead of on the first ones
    /// [default: kunpeng-920]
    #[arg(long, value_name = "NAME")]
    machine: Option<Machine>,
    /// Run on this modelled device: hdd, ssd, ftl, latency, memory, a name from lab device list, or
    /// a file; e2 and yard take several. Times are those of the model and repeat to the byte.
    /// Workers take turns, as with --interleave lockstep. --rotational auto means what the model is
    #[arg(long, value_delimiter = ',', value_name = "MODEL")]
    device: Vec<DeviceModel>,
    /// How much metadata the engine keeps in memory on --device, in bytes or with a suffix K, M or
    /// G. The less it keeps, the more often operations read metadata from the device [default: 16M]
    #[arg(long, value_name = "SIZE", requires = "device")]
    cache: Option<String>,
    /// Write the requests that the workers make to --device to this new file, one per line (lab
    /// device replay plays them). Only for a run of one cell
    #[arg(long, value_name = "FILE", requires = "device")]
    keep_requests: Option<PathBuf>,
    /// Write to this new file, for each operation on --device, what it read and how long it took.
    /// Each line is a JSON object: worker, began_us, waited_us (for the device), us (waited_us plus
    /// CPU time), bytes, and the number of metadata pages read, by kind: bitmap, descriptor,
    /// inode_table, map, directory. Only for a run of one cell
    #[arg(long, value_name = "FILE", requires = "device")]
    keep_operations: Option<PathBuf>,
    /// Run on aged images too: PROFILE[:N][:P%], comma-separated (see lab age). N is a number of
    /// operations, or how many times the size of the image is written (2x). P is the share of the
    /// free space that files fill. With --interleave virtual, a run takes from the aged image only
    /// which blocks are used
    #[arg(long, value_delimiter = ',', value_name = "LIFE")]
    aged: Vec<Ageing>,
    /// Size of the image in memory, with a suffix K, M, G or T [default: that of the published
    /// experiment]
    #[arg(long, conflicts_with = "image")]
    memory: Option<String>,
    /// What holds the image in memory: this process (memory), or a file on tmpfs (tmpfs), which is
    /// read and written through the kernel
    #[arg(long, value_name = "HOLDER", value_parser = [IN_PROCESS, "tmpfs"], default_value = IN_PROCESS, conflicts_with = "image")]
    image_in: String,
    /// Bytes of dirty data that may wait for write-back, in the engine and in the kernel arm; may
    /// have a suffix K, M, G or T [default: 64M in the engine; in the kernel arm the kernel's own
    /// settings]
    #[arg(long, value_name = "SIZE")]
    dirty_limit: Option<String>,
    /// Let each worker end with an fsync of its file, inside the measured time (fio: end_fsync=1)
    #[arg(long)]
    fsync_end: bool,
    /// How to make the image in memory: options of blockyard mkfs in one string, such as "-b 1024
    /// -O ^has_journal" [default: "-b 4096"]
    #[arg(long, conflicts_with = "image", allow_hyphen_values = true)]
    mkfs: Option<String>,
    /// Whether the allocator treats the device as one with seek times, which decides how its search
    /// begins
    #[arg(long, value_enum, default_value = "auto")]
    rotational: Rotational,
    /// Run each cell on a copy-on-write view of this image or block device, which is only read
    /// unless --in-place is given
    #[arg(long, value_parser = operand())]
    image: Option<ImagePath>,
    /// Write the result back to --image. Only for a run of one cell
    #[arg(long, requires = "image")]
    in_place: bool,
    /// Write the image's journal as a mount does (on), or write metadata straight to its home, so
    /// that only allocation is measured (off). With off,on each policy runs in both ways, as two
    /// arms [default: off; without a value: on]
    #[arg(long, value_delimiter = ',', num_args = 0..=1, require_equals = true, default_missing_value = "on",
        value_parser = ["off", "on"])]
    journal: Vec<String>,
    /// Seconds of each cell [default with threads: 1, unless --ops is given or the workload ends by
    /// itself]
    #[arg(long, allow_negative_numbers = true)]
    seconds: Option<f64>,
    /// Operations of each worker, instead of a time [default with lockstep, overlap and virtual:
    /// 1000, unless the workload ends by itself; for e3 10000]
    #[arg(long, conflicts_with = "seconds")]
    ops: Option<u64>,
    /// Repetitions of each cell; tables show medians. Repetitions come in pairs: the second one of
    /// a pair runs the cells in reverse order (ABBA). The first pair begins in the given order, and
    /// each further pair in an order drawn from the seed. Not for --interleave virtual, where each
    /// repetition would give the same figures
    #[arg(long, default_value_t = 1)]
    repeat: u32,
    /// Seed of every random choice
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Factor on the file sizes of the workload; in experiments, the files of fallocate2 keep their
    /// 1 MiB. copy: factor on the number of made-up files. e3, from 0.005 to 1.8: on the sizes of
    /// disk and memory. e4, from 0.005 to 1: on the sizes of tree and image
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    scale: f64,
    /// For copy: copy a tree with the directories and file sizes of this directory, not a made-up
    /// tree
    #[arg(long)]
    tree: Option<PathBuf>,
    /// Vary parameters. e3 and copy run as usual and then with variants: e3 with other memory,
    /// fill, load and disk size; copy with other commits, CPU slots, processes, orders and mounts.
    /// e1 instead runs only fallocate2 in virtual time, with each constant of the machines halved
    /// and doubled, and under other assumptions
    #[arg(long)]
    sensitivity: bool,
    /// For copy: number of copies, including the first [default: 3]
    #[arg(long)]
    copies: Option<u32>,
    /// Add an arm: with kernel, the running kernel runs the workload on an image on tmpfs, mounted
    /// through a loop device; needs root
    #[arg(long, value_parser = [KERNEL_ARM])]
    beside: Option<String>,
    /// Write rows to this folder as they are measured, and at the end tables and the HTML page. A
    /// folder that already holds a run is refused without --resume or --force
    #[arg(long)]
    out: Option<PathBuf>,
    /// Continue the run in --out: only cells that it lacks are measured. Refused unless plan,
    /// commit and machine are the same
    #[arg(long, requires = "out", conflicts_with_all = ["force", "in_place"])]
    resume: bool,
    /// Delete the run in --out first
    #[arg(long, requires = "out")]
    force: bool,
}

/// The default of `--image-in`.
const IN_PROCESS: &str = "memory";
/// Exit code for wrong usage, when nothing ran.
pub(super) const EXIT_USAGE: u8 = 2;
/// Exit code if a judge found errors in an image.
pub(super) const EXIT_ERRORS: u8 = 4;

/// The requested work, as far as it is known without looking at images or the machine.
enum Work {
    Cells(Vec<Plan>, Option<Experiment>),
    Copy(CopyPlan),
    Clusters(ClusterPlan),
    Passes(PassPlan),
}

impl Work {
    /// A line about what affects the rates besides the arms, such as the limit of dirty data.
    /// `None` for experiments, for `copy`, and for workloads that write no data.
    fn conditions(&self) -> Option<String> {
        match self {
            Self::Cells(plans, None) => plans.first().and_then(Plan::conditions),
            _ => None,
        }
    }

    /// A warning about an experiment at a scale where it shows little, or about CPUs, a machine or
    /// an image that do not fit the workload.
    fn warning(&self) -> Option<String> {
        match self {
            Self::Cells(plans, Some(_)) => plans.iter().find_map(|plan| plan.workload.too_small()),
            Self::Cells(plans, None) => plans.iter().find_map(|plan| {
                plan.idle_cpus().or_else(|| plan.uncalibrated()).or_else(|| plan.one_order())
            }),
            Self::Copy(plan) => plan.too_small(),
            Self::Clusters(plan) => plan.too_small(),
            Self::Passes(plan) => plan.too_small(),
        }
    }
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        let work = match self.work() {
            Ok(work) => work,
            Err(error) => {
                eprintln!("blockyard: {error:#}");
                return Ok(ExitCode::from(EXIT_USAGE));
            }
        };
        if let Some(folder) = &self.out {
            check_folder("--out", folder)?;
        }
        let mut environment = super::environment();
        environment.seed = self.seed;
        let (warning, conditions) = (work.warning(), work.conditions());
        let begin = |environment: &Environment, plan: String| self.ledger(environment, &plan, output);
        let mut failed = None;
        let (run, verdict) = match work {
            Work::Cells(plans, experiment) => {
                environment.experiment = experiment.map(|experiment| experiment.name().to_owned());
                run_cells(&plans, environment, output, begin, &mut failed)?
            }
            Work::Copy(plan) => run_copy(&plan, environment, output, begin, &mut failed)?,
            Work::Clusters(plan) => run_clusters(&plan, environment, output, begin)?,
            Work::Passes(plan) => run_passes(&plan, environment, output, begin)?,
        };
        if failed.is_none() || !run.rows.is_empty() || !run.copies.is_empty() {
            self.show(&run, &verdict, output)?;
        }
        if let Some(error) = failed {
            return Err(error);
        }
        if let Some(text) = conditions.filter(|_| !output.quiet && !output.json) {
            println!("{text}");
        }
        if let Some(text) = warning.filter(|_| !output.quiet) {
            eprintln!("blockyard: note: {text}");
        }
        if let Some(folder) = &self.out {
            run.save(folder)?;
            run.write_reports(folder)?;
        }
        Ok(if verdict.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_ERRORS) })
    }

    /// Opens the ledger in `--out`, which keeps each cell once it is measured. Called only after
    /// the plan was checked.
    fn ledger(&self, environment: &Environment, plan: &str, output: &Output) -> Result<Ledger> {
        let Some(folder) = &self.out else { return Ok(Ledger::none()) };
        let existing = match (self.resume, self.force) {
            (true, _) => Existing::Resume,
            (_, true) => Existing::Replace,
            _ => Existing::Refuse,
        };
        let ledger = Ledger::open(folder, environment, plan, existing)?;
        if self.resume && !output.quiet {
            eprintln!("blockyard: {}: {} cells are there", folder.display(), ledger.kept());
        }
        Ok(ledger)
    }

    fn work(&self) -> Result<Work> {
        ensure!(
            self.scale > 0.0 && self.scale <= 1000.0,
            "--scale {}: give a factor above 0, at most 1000",
            self.scale
        );
        ensure!(self.repeat > 0, "--repeat: give a number from 1 up");
        self.ensure_all_belong()?;
        match self.workload.as_str() {
            "copy" => return Ok(Work::Copy(self.copy()?)),
            "e3" => return Ok(Work::Clusters(self.clusters()?)),
            "e4" => return Ok(Work::Passes(self.passes()?)),
            _ => {}
        }
        let (plans, experiment) = match Experiment::by_name(&self.workload) {
            Some(experiment) => (self.experiment(experiment)?, Some(experiment)),
            None => (self.plans()?, None),
        };
        refuse_twice("--aged", &self.aged)?;
        refuse_twice("--device", &self.device)?;
        // Only the plans of `yard` have aged images of their own. If `--aged` named the life of one
        // of them, cells would be measured twice, and their rows would look like repetitions.
        let is_there = |life: &Ageing| {
            plans.iter().any(|plan| plan.aged.as_ref().is_some_and(|aged| aged.is_same_life(life)))
        };
        if let Some(life) = self.aged.iter().find(|life| is_there(life)) {
            bail!(
                "--aged {life}: {} runs some cells on images of that life, which would be measured twice; leave it out \
                 or give another length",
                self.workload
            );
        }
        let mut plans = self.with_aged(plans);
        let cache_bytes = self.cache_bytes()?;
        plans.iter_mut().for_each(|plan| plan.cache_bytes = cache_bytes);
        let keeps = self.keep_requests.is_some() || self.keep_operations.is_some();
        ensure!(
            !keeps || plans.len() == 1,
            "--keep-requests and --keep-operations: one cell only; leave out --aged"
        );
        plans.iter().try_for_each(Plan::check_words)?;
        Ok(Work::Cells(plans, experiment))
    }

    /// After each plan, adds copies of the plan that run on the images of `--aged`. Plans of `yard`
    /// that already run on aged images get no copies.
    fn with_aged(&self, plans: Vec<Plan>) -> Vec<Plan> {
        let states = |plan: Plan| {
            let aged = self.aged.iter().filter(|_| plan.aged.is_none());
            let aged: Vec<Plan> =
                aged.map(|aged| Plan { aged: Some(aged.clone()), ..plan.clone() }).collect();
            std::iter::once(plan).chain(aged)
        };
        plans.into_iter().flat_map(states).collect()
    }

    /// The plans of the requested workload. By default the workers are free threads, which leave
    /// the layout to chance. So a second plan runs the workload with overlapping operations, whose
    /// layout is repeatable.
    fn plans(&self) -> Result<Vec<Plan>> {
        let plan = self.plan()?;
        if self.interleave.is_some() || self.in_place || plan.device.is_some() {
            refuse("images that are not changed", &[("--aged", self.in_place && !self.aged.is_empty())])?;
            return Ok(vec![plan]);
        }
        let overlap = Plan {
            interleave: Interleave::Overlap,
            limit: self.limit_of(None, plan.workload.ends_by_itself(), Interleave::Overlap)?,
            repeat: 1,
            beside_kernel: false,
            ..plan.clone()
        };
        Ok(vec![plan, overlap])
    }

    /// The plan of the requested workload.
    fn plan(&self) -> Result<Plan> {
        let Some(workload) = Workload::by_name(&self.workload, self.scale) else {
            bail!(
                "workload {:?} is unknown: use {} (the jobs of fio also with :fallocate=none), copy, {}, e3, e4",
                self.workload,
                Workload::NAMES.join(", "),
                Experiment::NAMES.join(", ")
            );
        };
        let device = self.only_device()?;
        let interleave = match &device {
            Some(_) if self.interleave.is_none() => Interleave::Lockstep,
            _ => self.interleave()?,
        };
        let is_rotational = device.as_ref().is_some_and(|device| device.parameters.is_rotational());
        let machine = self.machine(interleave)?;
        let workers = match (&self.workers, &machine) {
            (Some(workers), _) => workers.clone(),
            (None, Some(machine)) => vec![self.cpus.unwrap_or(machine.cpus)],
            (None, None) => vec![1, 2, 8, 64],
        };
        Ok(Plan {
            image: self.image(workload.published_device())?,
            limit: self.limit(workload.ends_by_itself(), interleave)?,
            policies: self.policies(&["linux-6.16", "linux-6.18", "rralloc-v2", "yard"]),
            workers,
            cpus: self.cpus,
            interleave,
            repeat: self.repeat,
            seed: self.seed,
            beside_kernel: self.beside.is_some(),
            journal: self.journal(),
            rotational: self.rotational() || (is_rotational && self.rotational == Rotational::Auto),
            dirty_limit: self.dirty_limit()?,
            machine,
            device,
            requests: self.keep_requests.clone(),
            operations: self.keep_operations.clone(),
            ..Plan::new(workload, &[])
        })
    }

    /// The model of `--device`, for workloads that take at most one.
    fn only_device(&self) -> Result<Option<DeviceModel>> {
        match &self.device[..] {
            [] => Ok(None),
            [device] => Ok(Some(device.clone())),
            _ => bail!("--device: {} takes one; e2 and yard take several", self.workload),
        }
    }

    /// The modelled machine, for virtual time only.
    fn machine(&self, interleave: Interleave) -> Result<Option<Machine>> {
        if interleave != Interleave::Virtual {
            refuse("--interleave virtual", &[("--machine", self.machine.is_some())])?;
            return Ok(None);
        }
        // Refuse these here, because the plan holds only values, not whether they were given.
        let ignored = [
            ("--mkfs", self.mkfs.is_some()),
            ("--image-in", self.image_in != IN_PROCESS),
            ("--dirty-limit", self.dirty_limit.is_some()),
            ("--fsync-end", self.fsync_end),
            ("--repeat", self.repeat > 1),
        ];
        refuse("other ways than --interleave virtual", &ignored)?;
        Ok(Some(self.machine.clone().unwrap_or_default()))
    }

    fn cache_bytes(&self) -> Result<Option<usize>> {
        let Some(text) = &self.cache else { return Ok(None) };
        let bytes = size(text).and_then(|bytes| Ok(usize::try_from(bytes)?));
        let bytes = bytes.with_context(|| format!("--cache {text}"))?;
        ensure!(bytes >= 1 << 16, "--cache {text}: give 64K or more");
        Ok(Some(bytes))
    }

    fn dirty_limit(&self) -> Result<Option<u64>> {
        let limit = |text: &String| size(text).with_context(|| format!("--dirty-limit {text}"));
        let limit = self.dirty_limit.as_ref().map(limit).transpose()?;
        ensure!(limit.is_none_or(|limit| limit >= 1 << 20), "--dirty-limit: give 1M or more");
        Ok(limit)
    }

    fn experiment(&self, experiment: Experiment) -> Result<Vec<Plan>> {
        ensure!(
            !self.sensitivity || self.workers.as_ref().is_none_or(|counts| counts.len() == 1),
            "--workers: e1 --sensitivity compares machines with one number of workers; give one"
        );
        ensure!(
            !(self.sensitivity && (self.scale - 1.0).abs() > 0.0),
            "--scale: e1 --sensitivity runs fallocate2 only, whose files of 1 MiB are never scaled; give --ops for \
             a shorter run"
        );
        let image = self.image.is_some()
            || self.memory.is_some()
            || self.mkfs.is_some()
            || self.image_in != IN_PROCESS;
        let setup = Setup {
            scale: self.scale,
            limit: self.limit(false, Interleave::Threads)?,
            workers: self.workers.clone(),
            repeat: self.repeat,
            seed: self.seed,
            rotational: self.rotational(),
            policies: self.policy.clone(),
            devices: self.device.clone(),
            sensitivity: self.sensitivity,
            // Without --memory, the image is as large as the largest published one.
            image: image.then(|| self.image(200 << 30)).transpose()?,
        };
        Ok(experiment.plans(&setup))
    }

    fn copy(&self) -> Result<CopyPlan> {
        let tree = match &self.tree {
            Some(path) => {
                refuse("a made-up tree", &[("--scale", (self.scale - 1.0).abs() > 0.0)])?;
                Tree::of_directory(path)?
            }
            None => {
                ensure!(self.scale <= 10.0, "--scale {}: at most 10 for copy", self.scale);
                Tree::synthetic(self.scale, self.seed)
            }
        };
        let mut plan = CopyPlan::published(self.policies(&["linux-6.18", "rralloc-v2"]), tree, self.seed);
        plan.copies = self.copies.unwrap_or(plan.copies);
        plan.cpus = self.cpus.unwrap_or(plan.cpus);
        plan.rotational = self.rotational();
        plan.aged.clone_from(&self.aged);
        plan.sensitivity = self.sensitivity;
        if let ImageSource::Memory { bytes, .. } = plan.image {
            plan.image = self.image(bytes)?;
        }
        if self.image.is_none() {
            plan.check()?;
        }
        Ok(plan)
    }

    fn clusters(&self) -> Result<ClusterPlan> {
        let calls = self.ops.unwrap_or(10_000);
        let (policy, rotational) = (self.only_policy()?, self.rotational());
        let aged = self.aged.clone();
        let (memory, sensitivity) = (Memory::CALIBRATED, self.sensitivity);
        let (scale, seed) = (self.scale, self.seed);
        let plan = ClusterPlan { policy, scale, calls, seed, rotational, aged, memory, sensitivity };
        plan.check()?;
        Ok(plan)
    }

    fn passes(&self) -> Result<PassPlan> {
        let rotational = match self.rotational {
            Rotational::Auto => None,
            Rotational::On => Some(true),
            Rotational::Off => Some(false),
        };
        let policy = self.only_policy()?;
        let aged = self.aged.clone();
        let plan = PassPlan { policy, scale: self.scale, seed: self.seed, rotational, aged };
        plan.check()?;
        Ok(plan)
    }

    /// The policy of an experiment that takes only one: e3 and e4.
    fn only_policy(&self) -> Result<String> {
        // In 2011, when e3 was published, a linear scan was the only way to search.
        let default = if self.workload == "e3" { "linux-6.18:scan=linear" } else { "linux-6.18" };
        let [policy] = &self.policies(&[default])[..] else { bail!("--policy: {} takes one", self.workload) };
        Ok(policy.clone())
    }

    fn rotational(&self) -> bool {
        self.rotational.of(self.image.as_ref().map(ImagePath::file))
    }

    fn journal(&self) -> Vec<bool> {
        if self.journal.is_empty() {
            vec![false]
        } else {
            self.journal.iter().map(|way| way == "on").collect()
        }
    }

    fn policies(&self, default: &[&str]) -> Vec<String> {
        self.policy.clone().unwrap_or_else(|| default.iter().map(|&name| name.to_owned()).collect())
    }

    fn interleave(&self) -> Result<Interleave> {
        Ok(match self.interleave.as_deref() {
            None | Some("threads") => Interleave::Threads,
            Some("lockstep") => Interleave::Lockstep,
            Some("overlap") => Interleave::Overlap,
            Some("virtual") => Interleave::Virtual,
            Some(other) => bail!("--interleave {other:?}: use threads, lockstep, overlap or virtual"),
        })
    }

    fn image(&self, default_bytes: u64) -> Result<ImageSource> {
        if let Some(path) = &self.image {
            return Ok(ImageSource::File { path: path.clone(), in_place: self.in_place });
        }
        let bytes = match &self.memory {
            Some(text) => size(text).with_context(|| format!("--memory {text}"))?,
            None => default_bytes,
        };
        match &self.mkfs {
            None => {
                let options = Box::new(default_mkfs(self.seed));
                Ok(ImageSource::Memory { bytes, mkfs: options, held: self.held() })
            }
            Some(text) => {
                let options = crate::commands::mkfs::options_of_text(text, self.seed)
                    .with_context(|| format!("--mkfs {text:?}"))?;
                Ok(ImageSource::Memory { bytes, mkfs: Box::new(options), held: self.held() })
            }
        }
    }

    fn held(&self) -> Held {
        if self.image_in == "tmpfs" { Held::Tmpfs } else { Held::Process }
    }

    fn limit(&self, ends_by_itself: bool, interleave: Interleave) -> Result<Limit> {
        self.limit_of(self.seconds, ends_by_itself, interleave)
    }

    fn limit_of(&self, seconds: Option<f64>, ends_by_itself: bool, interleave: Interleave) -> Result<Limit> {
        let seconds = match seconds {
            Some(seconds) if !(seconds > 0.0 && seconds <= 1e6) => {
                bail!("--seconds {seconds}: give a time above 0, at most 1000000")
            }
            Some(seconds) => Some(seconds),
            None if self.ops.is_some() || ends_by_itself => None,
            None => (interleave == Interleave::Threads).then_some(1.0),
        };
        let default_ops = (interleave != Interleave::Threads && !ends_by_itself).then_some(1000);
        ensure!(self.ops != Some(0), "--ops 0: give a number from 1 up");
        Ok(Limit {
            time: seconds.map(std::time::Duration::from_secs_f64),
            ops_per_worker: self.ops.or(default_ops),
            fsync_end: self.fsync_end,
        })
    }

    fn show(&self, run: &Run, verdict: &Verdict, output: &Output) -> Result<()> {
        if output.json {
            print!("{}", run.json_lines()?);
        } else if !output.quiet {
            for table in run.main_tables() {
                println!("{}", table.terminal(terminal::columns()));
            }
            for timeline in &run.timelines {
                println!("{}", timeline.text(terminal::columns()));
            }
            if self.beside.is_some() {
                println!("{CAVEAT}");
            }
            println!("seed {}: {}", self.seed, verdict.text());
        }
        Ok(())
    }
}

/// Refuses the first of the `options` that was given, because only `whose` takes it.
pub(super) fn refuse(whose: &str, options: &[(&str, bool)]) -> Result<()> {
    match options.iter().find(|(_, is_given)| *is_given) {
        Some((name, _)) => bail!("{name}: only for {whose}; leave it out"),
        None => Ok(()),
    }
}

/// Refuses the options that were given but that `whose` would ignore.
pub(super) fn refuse_ignored(whose: &str, ignored: &[&str]) -> Result<()> {
    ensure!(
        ignored.is_empty(),
        "{whose} would ignore {}; leave {} out",
        ignored.join(", "),
        if ignored.len() == 1 { "it" } else { "them" }
    );
    Ok(())
}

/// Runs the cells of all plans. A cell that fails ends the run: its error is put into `failed`, and
/// what was measured before it is returned.
fn run_cells(
    plans: &[Plan],
    mut environment: Environment,
    output: &Output,
    begin: impl FnOnce(&Environment, String) -> Result<Ledger>,
    failed: &mut Option<anyhow::Error>,
) -> Result<(Run, Verdict)> {
    for plan in plans {
        look_at(&plan.image)?;
        plan.check()?;
    }
    let images: Vec<String> = plans.iter().map(|plan| plan.image.description()).collect();
    environment.device = unique(images).join("; ");
    let mut ledger = begin(&environment, plans.iter().map(Plan::identity).collect())?;
    let mut run = Run::new(environment);
    let mut verdict = Verdict::default();
    let progress = Progress::parts(output, "lab run", plans.iter().map(Plan::cells).sum());
    let mut done = 0;
    for plan in plans {
        let told = |cell: usize, name: &str| progress.begin(done + cell, name);
        let (outcome, ended) = blockyard_lab::run::run_as_far(plan, &mut ledger, told)?;
        done += plan.cells();
        run.rows.extend(outcome.rows);
        run.maps.extend(outcome.maps);
        verdict.add(&outcome.verdict);
        *failed = ended.err();
        if failed.is_some() {
            break;
        }
    }
    Ok((run, verdict))
}

fn run_copy(
    plan: &CopyPlan,
    mut environment: Environment,
    output: &Output,
    begin: impl FnOnce(&Environment, String) -> Result<Ledger>,
    failed: &mut Option<anyhow::Error>,
) -> Result<(Run, Verdict)> {
    look_at(&plan.image)?;
    plan.check()?;
    environment.device = plan.image.description();
    let mut ledger = begin(&environment, plan.identity())?;
    let progress = Progress::parts(output, "lab run", plan.parts());
    let told = |part: usize, name: &str| progress.begin(part, name);
    let (outcome, ended) = blockyard_lab::copy::run_as_far(plan, &mut ledger, told)?;
    *failed = ended.err();
    let run = Run {
        copies: outcome.rows,
        maps: outcome.maps,
        timelines: outcome.timelines,
        ..Run::new(environment)
    };
    Ok((run, outcome.verdict))
}

/// Refuses an image file for the same reasons as the other commands.
fn look_at(image: &ImageSource) -> Result<()> {
    if let ImageSource::File { path, in_place } = image {
        device(path, *in_place)?;
    }
    Ok(())
}

fn run_clusters(
    plan: &ClusterPlan,
    mut environment: Environment,
    output: &Output,
    begin: impl FnOnce(&Environment, String) -> Result<Ledger>,
) -> Result<(Run, Verdict)> {
    environment.device = "memory, one image a cluster size".to_owned();
    let mut ledger = begin(&environment, plan.identity())?;
    let progress = Progress::parts(output, "lab run", plan.cells().len());
    let (clusters, verdict) =
        blockyard_lab::e3::run_kept(plan, &mut ledger, |part, name| progress.begin(part, name))?;
    Ok((Run { clusters, ..Run::new(environment) }, verdict))
}

fn run_passes(
    plan: &PassPlan,
    mut environment: Environment,
    output: &Output,
    begin: impl FnOnce(&Environment, String) -> Result<Ledger>,
) -> Result<(Run, Verdict)> {
    environment.device = "memory, one image a kind".to_owned();
    let mut ledger = begin(&environment, plan.identity())?;
    let progress = Progress::parts(output, "lab run", plan.cells().len());
    let (passes, verdict) =
        blockyard_lab::e4::run_kept(plan, &mut ledger, |part, name| progress.begin(part, name))?;
    Ok((Run { passes, ..Run::new(environment) }, verdict))
}

/// Removes duplicates, keeping the order.
fn unique(texts: Vec<String>) -> Vec<String> {
    let mut seen = Vec::new();
    for text in texts {
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    seen
}

/// Creates the folder that an option names and checks that it can be written, so that a long run
/// does not fail at its end.
pub(super) fn check_folder(option: &str, folder: &Path) -> Result<()> {
    if folder.exists() && !folder.is_dir() {
        bail!("{option} {}: not a folder; give a new name or a folder", folder.display());
    }
    let writable = || -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        tempfile_in(folder)
    };
    writable().with_context(|| format!("{option} {}: cannot be written", folder.display()))
}

/// Creates a file in a folder and removes it.
fn tempfile_in(folder: &Path) -> std::io::Result<()> {
    let path = folder.join(format!(".blockyard-{}", std::process::id()));
    std::fs::File::create(&path)?;
    std::fs::remove_file(path)
}

/// Parses a number of bytes, with or without a binary suffix; at most 16 TiB.
pub(super) fn size(text: &str) -> Result<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        other => bail!("suffix {other:?}: use K, M, G or T"),
    };
    let number: u64 = digits.parse().ok().context("not a size such as 64G")?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes <= 1 << 44).context("sizes go to 16T")
}
