//! `blockyard lab run`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use blockyard_lab::Interleave;
use blockyard_lab::report::{Environment, Run, summary};
use blockyard_lab::run::{CAVEAT, ImageSource, KERNEL_ARM, Outcome, Plan, Verdict};
use blockyard_lab::runner::Limit;
use blockyard_lab::workload::Workload;

use super::progress::Progress;
use crate::commands::Output;

/// Each cell (a policy with a number of workers) runs on its own file system: a fresh one in memory, without root and
/// without files, or a copy-on-write view of an image.
#[derive(clap::Args)]
#[command(after_help = "\
Workloads:
  fallocate2   each worker appends 8 KiB by fallocate to its file until 1 MiB, truncates it, repeats (will-it-scale)
  append64     each worker appends 4 KiB by fallocate to its file until 1 GiB, once
  seqwrite     fio: rw=write bs=1M size=4G, one file a job, over and over while time lasts
  smallfiles   fio: rw=write bs=4k size=1G
  allocstress  fio: rw=write bs=4k size=2G
fio's parent preallocates every file before a job starts; seqwrite:fallocate=none and so on leave that out.

Keys of --json, one object a cell: workload, policy, workers, cpus, interleave, seed, ops, seconds, ops_per_s,
ops_per_s_per_worker, bw_mib_s, lat_us_mean, lat_us_p50, lat_us_p99, lat_us_p9999, lat_us_max, extents_per_file,
mean_extent_kb, free_extents, avg_free_extent_kb, groups_touched, lock_acquisitions and lock_waits (of shared locks, an
operation), groups_skipped_busy, hits (searches by the criterion that ended them), score (e4defrag -c). null is what
cannot be known.

Exit codes: 0 every image passed the check, and e2fsck where that is installed; 2 wrong usage, nothing ran; 4 a judge
found errors; 8 failed. An image given with --image is changed only by --in-place, after the judges passed the result.")]
pub(crate) struct Args {
    /// What runs; see below
    workload: String,
    /// Policy arms, parted by commas; overrides follow a colon: linux-6.18:slots=one:busy=wait
    #[arg(long, value_delimiter = ',', default_value = "linux-6.16,linux-6.18,rralloc-v2,yard")]
    policy: Vec<String>,
    /// Numbers of workers, parted by commas
    #[arg(long, value_delimiter = ',', default_value = "1,2,8,64")]
    workers: Vec<u32>,
    /// Logical CPUs that locality groups, stream goals and zones follow [default: as many as workers]
    #[arg(long)]
    cpus: Option<u32>,
    /// How workers share time: threads (fast, not repeatable), lockstep (in turn) or overlap (in turn, but each keeps
    /// the lock of its group until all have had their turn); the last two repeat to the byte
    #[arg(long, default_value = "threads")]
    interleave: String,
    /// Size of the image in memory, with a suffix K, M, G or T [default: that of the published experiment]
    #[arg(long, conflicts_with = "image")]
    memory: Option<String>,
    /// How the image in memory is made: options of blockyard mkfs in one string, such as "-b 1024 -O ^has_journal"
    /// [default: "-b 4096"]
    #[arg(long, conflicts_with = "image", allow_hyphen_values = true)]
    mkfs: Option<String>,
    /// Run each cell on a copy-on-write view of this image or block device, which is only read
    #[arg(long)]
    image: Option<PathBuf>,
    /// Write the result of the one cell to --image
    #[arg(long, requires = "image")]
    in_place: bool,
    /// Seconds of each cell [default: 1, unless --ops is given or the workload ends by itself]
    #[arg(long)]
    seconds: Option<f64>,
    /// Operations of each worker, instead of a time [default with lockstep and overlap: 1000]
    #[arg(long, conflicts_with = "seconds")]
    ops: Option<u64>,
    /// Repetitions of each cell, in ABBA order; tables show medians
    #[arg(long, default_value_t = 1)]
    repeat: u32,
    /// Seed of every random choice
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Factor on the published file sizes
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Another arm: kernel runs the workload on an image on tmpfs, mounted through a loop device (root)
    #[arg(long, value_parser = [KERNEL_ARM])]
    beside: Option<String>,
    /// Write rows, tables and the HTML page to this folder
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Exit code when nothing ran because of what was asked for.
const EXIT_USAGE: u8 = 2;
/// Exit code when a judge found errors in an image.
const EXIT_ERRORS: u8 = 4;

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        let plan = match self.plan() {
            Ok(plan) => plan,
            Err(error) => {
                eprintln!("blockyard: {error:#}");
                return Ok(ExitCode::from(EXIT_USAGE));
            }
        };
        plan.check()?;
        if let Some(folder) = &self.out {
            check_folder(folder)?;
        }
        let mut progress = Progress::new(output, plan.cells());
        let outcome = blockyard_lab::run::run(&plan, |cell, name| progress.begin(cell, name))?;
        drop(progress);
        let Outcome { rows, verdict, maps } = outcome;
        let command = std::env::args().collect::<Vec<_>>().join(" ");
        let environment = Environment::of_this_machine(command, plan.image.description());
        let run = Run { environment, rows, maps };
        show(&run, &verdict, &plan, output)?;
        if let Some(folder) = &self.out {
            run.save(folder)?;
            run.write_reports(folder)?;
        }
        Ok(if verdict.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_ERRORS) })
    }

    /// What was asked for, as far as it can be told without looking at images or machine.
    fn plan(&self) -> Result<Plan> {
        ensure!(
            self.scale > 0.0 && self.scale <= 1000.0,
            "--scale {}: give a factor above 0, at most 1000",
            self.scale
        );
        let Some(workload) = Workload::by_name(&self.workload, self.scale) else {
            bail!(
                "workload {:?} is unknown: use {}; the last three also with :fallocate=none",
                self.workload,
                Workload::NAMES.join(", ")
            );
        };
        let interleave = match self.interleave.as_str() {
            "threads" => Interleave::Threads,
            "lockstep" => Interleave::Lockstep,
            "overlap" => Interleave::Overlap,
            other => bail!("--interleave {other:?}: use threads, lockstep or overlap"),
        };
        let plan = Plan {
            image: self.image(&workload)?,
            limit: self.limit(&workload, interleave)?,
            workload,
            policies: self.policy.clone(),
            workers: self.workers.clone(),
            cpus: self.cpus,
            interleave,
            repeat: self.repeat,
            seed: self.seed,
            beside_kernel: self.beside.is_some(),
        };
        plan.check_words()?;
        Ok(plan)
    }

    fn image(&self, workload: &Workload) -> Result<ImageSource> {
        if let Some(path) = &self.image {
            return Ok(ImageSource::File { path: path.clone(), in_place: self.in_place });
        }
        let bytes = match &self.memory {
            Some(text) => size(text).with_context(|| format!("--memory {text}"))?,
            None => workload.published_device(),
        };
        match &self.mkfs {
            None => Ok(ImageSource::memory(bytes, self.seed)),
            Some(text) => {
                let options = crate::commands::mkfs::options_of_text(text, self.seed)
                    .with_context(|| format!("--mkfs {text:?}"))?;
                Ok(ImageSource::Memory { bytes, mkfs: Box::new(options) })
            }
        }
    }

    fn limit(&self, workload: &Workload, interleave: Interleave) -> Result<Limit> {
        let seconds = match self.seconds {
            Some(seconds) if !(seconds > 0.0 && seconds <= 1e6) => {
                bail!("--seconds {seconds}: give a time above 0, at most 1000000")
            }
            Some(seconds) => Some(seconds),
            None if self.ops.is_some() || workload.ends_by_itself() => None,
            None => (interleave == Interleave::Threads).then_some(1.0),
        };
        let default_ops = (interleave != Interleave::Threads && !workload.ends_by_itself()).then_some(1000);
        ensure!(self.ops != Some(0), "--ops 0: give a number from 1 up");
        Ok(Limit {
            time: seconds.map(std::time::Duration::from_secs_f64),
            ops_per_worker: self.ops.or(default_ops),
        })
    }
}

/// Makes the folder of a run, so that a long run does not end with one that cannot be written.
pub(super) fn check_folder(folder: &Path) -> Result<()> {
    let writable = || -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        tempfile_in(folder)
    };
    writable().with_context(|| format!("--out {}: cannot be written", folder.display()))
}

/// Makes a file in a folder and removes it.
fn tempfile_in(folder: &Path) -> std::io::Result<()> {
    let path = folder.join(format!(".blockyard-{}", std::process::id()));
    std::fs::File::create(&path)?;
    std::fs::remove_file(path)
}

fn show(run: &Run, verdict: &Verdict, plan: &Plan, output: &Output) -> Result<()> {
    if output.json {
        for row in &run.rows {
            println!("{}", serde_json::to_string(row)?);
        }
    } else if !output.quiet {
        for table in summary::tables(&run.rows) {
            println!("{}", table.terminal());
        }
        if plan.beside_kernel {
            println!("{CAVEAT}");
        }
        println!("seed {}: {}", plan.seed, verdict.text());
    }
    Ok(())
}

/// Bytes with a binary suffix.
fn size(text: &str) -> Result<u64> {
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
