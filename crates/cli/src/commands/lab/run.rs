//! `blockyard lab run`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use blockyard_lab::report::{Environment, Run, summary};
use blockyard_lab::run::{Plan, Verdict};
use blockyard_lab::runner::Limit;
use blockyard_lab::workload::Workload;
use blockyard_lab::{Interleave, Row};

use crate::commands::Output;

/// Each cell (a policy with a number of workers) runs on its own fresh file system in memory; no root, no files.
/// Exit code 0 when every image passed the check and e2fsck (where installed), 4 when one did not, 8 for an error.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// fallocate2, append64, seqwrite, smallfiles or allocstress
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
    /// How workers share time: threads (fast, not repeatable) or lockstep (repeatable)
    #[arg(long, default_value = "threads")]
    interleave: String,
    /// Size of the image in memory, with a suffix K, M, G or T
    #[arg(long, default_value = "64G")]
    memory: String,
    /// Seconds of each cell [default: 1, unless --ops is given or the workload ends by itself]
    #[arg(long)]
    seconds: Option<f64>,
    /// Operations of each worker, instead of a time
    #[arg(long)]
    ops: Option<u64>,
    /// Repetitions of each cell, in ABBA order
    #[arg(long, default_value_t = 1)]
    repeat: u32,
    /// Seed of every random choice
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Factor on the published file sizes
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Write rows, tables and the HTML page to this folder
    #[arg(long)]
    out: Option<PathBuf>,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        let plan = self.plan()?;
        let quiet = output.quiet || output.json;
        let (rows, verdict) = blockyard_lab::run::run(&plan, |cell| {
            if !quiet {
                eprintln!("{cell}");
            }
        })?;
        if output.json {
            for row in &rows {
                println!("{}", serde_json::to_string(row)?);
            }
        } else if !output.quiet {
            print_tables(&plan, &rows, &verdict);
        }
        if let Some(folder) = &self.out {
            let command = std::env::args().collect::<Vec<_>>().join(" ");
            let device = format!("memory, {} MiB, mkfs defaults with 4 KiB blocks", plan.memory >> 20);
            let run = Run { environment: Environment::of_this_machine(command, device), rows };
            run.save(folder)?;
            run.write_reports(folder)?;
        }
        let clean = verdict.check_errors == 0 && verdict.e2fsck_clean != Some(false);
        Ok(if clean { ExitCode::SUCCESS } else { ExitCode::from(4) })
    }

    fn plan(&self) -> Result<Plan> {
        let Some(workload) = Workload::by_name(&self.workload, self.scale) else {
            bail!("workload {:?} is unknown: use {}", self.workload, Workload::NAMES.join(", "));
        };
        if self.workers.is_empty() || self.workers.contains(&0) || self.repeat == 0 || self.cpus == Some(0) {
            bail!("--workers, --cpus and --repeat take numbers from 1 up");
        }
        if self.workers.iter().any(|&count| count > 4096) {
            bail!("--workers: at most 4096");
        }
        if !(self.scale > 0.0 && self.scale <= 1000.0) {
            bail!("--scale {}: give a factor above 0, at most 1000", self.scale);
        }
        let interleave = match self.interleave.as_str() {
            "threads" => Interleave::Threads,
            "lockstep" => Interleave::Lockstep,
            "overlap" => Interleave::Overlap,
            other => bail!("--interleave {other:?}: use threads, lockstep or overlap"),
        };
        if self.seconds.is_some_and(|seconds| !(seconds > 0.0 && seconds < 1e6)) {
            bail!("--seconds: give a time above 0");
        }
        if self.seconds.is_some() && interleave != Interleave::Threads {
            bail!("--seconds: rounds in lockstep are counted by --ops, so that they repeat");
        }
        let memory = size(&self.memory).with_context(|| format!("--memory {}", self.memory))?;
        let needed = u64::from(self.workers.iter().copied().max().unwrap_or(1)) * workload.file_size();
        if memory < needed + needed / 8 + (64 << 20) {
            bail!(
                "--memory {}: too small for {} of {} MiB files; give at least {} MiB or a smaller --scale",
                self.memory,
                self.workers.iter().copied().max().unwrap_or(1),
                workload.file_size() >> 20,
                (needed + needed / 8 + (64 << 20)) >> 20
            );
        }
        let default_seconds =
            (self.ops.is_none() && !workload.ends_by_itself() && interleave == Interleave::Threads)
                .then_some(1.0);
        let default_ops = (interleave != Interleave::Threads && !workload.ends_by_itself()).then_some(1000);
        let limit = Limit {
            time: self.seconds.or(default_seconds).map(std::time::Duration::from_secs_f64),
            ops_per_worker: self.ops.or(default_ops),
        };
        Ok(Plan {
            workload,
            policies: self.policy.clone(),
            workers: self.workers.clone(),
            cpus: self.cpus,
            interleave,
            memory,
            limit,
            repeat: self.repeat,
            seed: self.seed,
        })
    }
}

fn print_tables(plan: &Plan, rows: &[Row], verdict: &Verdict) {
    for table in summary::tables(rows) {
        println!("{}", table.terminal());
    }
    let ours = if verdict.check_errors == 0 {
        format!("all {} images passed our check", verdict.images)
    } else {
        format!("our check found {} errors in {} images", verdict.check_errors, verdict.images)
    };
    let theirs = match verdict.e2fsck_clean {
        Some(true) => "e2fsck -fn found nothing in the last one",
        Some(false) => "e2fsck -fn found errors in the last one",
        None => "e2fsck is not installed",
    };
    println!("seed {}: {ours}; {theirs}", plan.seed);
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
    let number: u64 = digits.parse().context("not a size such as 64G")?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes <= 1 << 44).context("sizes go to 16T")
}
