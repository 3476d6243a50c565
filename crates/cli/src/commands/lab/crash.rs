//! `blockyard lab crash`: cuts the power during workloads, and checks what recoveries restore.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use blockyard_disk::num::{count_as_f64, u64_from_usize};
use blockyard_inspect::units::{self, counted};
use blockyard_lab::crash::{self, Failure, Judges, Plan, Row};
use blockyard_lab::figures::Table;

use crate::commands::Output;
use crate::commands::progress::Progress;
use crate::terminal;

/// Records the writes and flushes of a workload, builds a sample of the images that a power cut
/// could have left, and recovers each with blockyard, with e2fsck -fy and with a mount. All results
/// must be clean and equal, and keep what fsync promised.
#[derive(clap::Args)]
#[command(after_help = "\
A state is the content of the device after a cut: everything that was flushed, and any part of the other writes, in
any order, torn at sectors of 512 bytes. States are drawn with the seed and differ in content; most are inside commits
and checkpoints. --workload list prints the workloads. --mutant list prints the rules of durability that can be
broken, to see whether the judges notice. Without root or e2fsprogs, some judges are missing: the command says which,
and only the others judge.

Linux cannot mount a file system with blocks larger than a page (4 KiB). There, only the other judges judge.

Keys of --json, one object per workload and block size: workload, block_size, operations, events, bytes_written,
facts, tried, distinct, in_windows, in_recovery, left_out, failures (each: workload, block_size, state, description,
judge, found, repeat); then one object: states, in_windows, in_recovery, failures, seed, mutant, missing.

Exit codes: 0 no failures; 2 wrong usage, nothing ran; 4 failures; 8 failed to run.")]
pub(crate) struct Args {
    /// Workloads, comma-separated, or all; list prints their names
    #[arg(long, value_delimiter = ',', default_value = "all")]
    workload: Vec<String>,
    /// Block sizes in bytes, comma-separated: powers of two from 1024 to 65536
    #[arg(long, value_delimiter = ',', default_value = "1024")]
    block_size: Vec<u32>,
    /// Seed of the workloads and of the sample
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of distinct crash states over all workloads
    #[arg(long, default_value_t = 500)]
    states: usize,
    /// Break this rule of durability, to see whether the judges notice
    #[arg(long)]
    mutant: Option<String>,
    /// Threads that check states [default: as many as CPUs]
    #[arg(long)]
    jobs: Option<usize>,
    /// Cut the power also during the recovery of one state in N; with 0, of none
    #[arg(long, default_value_t = 8)]
    recovery_cuts: usize,
    /// Only the state with this number, of a single workload and block size
    #[arg(long)]
    state: Option<usize>,
    /// Stop at the first failure
    #[arg(long)]
    first: bool,
    /// Write the images of failures to this folder
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Folder for the images under test [default: /dev/shm if it exists, else the folder for
    /// temporary files]
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// Use only our own recovery and checker
    #[arg(long)]
    ours_only: bool,
}

/// Exit code for wrong usage, when nothing ran.
const EXIT_USAGE: u8 = 2;
/// Exit code if a state was not recovered correctly.
const EXIT_FAILURES: u8 = 4;

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        if self.workload == ["list"] {
            crash::names().for_each(|(name, about)| println!("{name:12} {about}"));
            return Ok(ExitCode::SUCCESS);
        }
        if self.mutant.as_deref() == Some("list") {
            crash::mutants().for_each(|name| println!("{name}"));
            return Ok(ExitCode::SUCCESS);
        }
        let plan = self.plan();
        if let Err(error) = plan.check() {
            eprintln!("blockyard: {}", crate::commands::describe(&error));
            return Ok(ExitCode::from(EXIT_USAGE));
        }
        if let Some(folder) = &plan.keep {
            super::run::check_folder("--keep", folder)?;
        }
        let progress = Progress::parts(output, "lab crash", plan.workloads.len() * plan.block_sizes.len());
        let (rows, judges) = crash::run(
            &plan,
            |number, name| progress.begin(number, name),
            |row| {
                if output.json
                    && let Ok(line) = serde_json::to_string(row)
                {
                    println!("{line}");
                }
            },
        )?;
        drop(progress);
        let total = Total::of(&rows);
        if output.json {
            println!("{}", total.json(&plan, &judges));
        } else {
            show(&rows, &total, &plan, &judges, output.quiet);
        }
        Ok(if total.failures == 0 { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILURES) })
    }

    fn plan(self) -> Plan {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let all = self.workload == ["all"];
        Plan {
            workloads: if all {
                crash::names().map(|(name, _)| name.to_owned()).collect()
            } else {
                self.workload
            },
            block_sizes: self.block_size,
            states: self.states,
            seed: self.seed,
            mutant: self.mutant,
            jobs: self.jobs.unwrap_or(cpus),
            recovery_cuts: self.recovery_cuts,
            stop_at_first: self.first,
            only: self.state,
            keep: self.keep,
            ours_only: self.ours_only,
            scratch: self.scratch,
        }
    }
}

/// Sums over all workloads.
#[derive(Default)]
struct Total {
    states: usize,
    in_windows: usize,
    in_recovery: usize,
    failures: usize,
}

impl Total {
    fn of(rows: &[Row]) -> Self {
        rows.iter().fold(Self::default(), |sum, row| Self {
            states: sum.states + row.distinct,
            in_windows: sum.in_windows + row.in_windows,
            in_recovery: sum.in_recovery + row.in_recovery,
            failures: sum.failures + row.failures.len(),
        })
    }

    fn json(&self, plan: &Plan, judges: &Judges) -> serde_json::Value {
        serde_json::json!({
            "states": self.states,
            "in_windows": self.in_windows,
            "in_recovery": self.in_recovery,
            "failures": self.failures,
            "seed": plan.seed,
            "mutant": plan.mutant,
            "missing": judges.missing,
        })
    }
}

fn show(rows: &[Row], total: &Total, plan: &Plan, judges: &Judges, quiet: bool) {
    for failure in rows.iter().flat_map(|row| &row.failures) {
        let Failure { workload, block_size, state, judge, found, .. } = failure;
        println!("{workload}, blocks of {block_size}, state {state}: {judge}: {found}");
        println!("  {}\n  {}", failure.description, failure.repeat);
    }
    if quiet {
        return;
    }
    println!("{}", table(rows).terminal(terminal::columns()));
    for missing in &judges.missing {
        println!("not judged by {missing}");
    }
    let share = (total.in_windows * 100).checked_div(total.states).unwrap_or(0);
    println!(
        "seed {}: {}, {share} % inside a commit or checkpoint, and {} inside a recovery: {}",
        plan.seed,
        counted(u64_from_usize(total.states), "crash state"),
        total.in_recovery,
        counted(u64_from_usize(total.failures), "failure")
    );
}

fn table(rows: &[Row]) -> Table {
    let columns = [
        "workload",
        "block",
        "events",
        "written",
        "facts",
        "tried",
        "states",
        "in windows",
        "in recovery",
        "failures",
    ];
    let mut table = Table::new("power cuts", columns);
    for row in rows {
        table.push([
            row.workload.clone(),
            row.block_size.to_string(),
            row.events.to_string(),
            units::bytes(count_as_f64(row.bytes_written)),
            row.facts.to_string(),
            row.tried.to_string(),
            row.distinct.to_string(),
            row.in_windows.to_string(),
            row.in_recovery.to_string(),
            row.failures.len().to_string(),
        ]);
    }
    table
}
