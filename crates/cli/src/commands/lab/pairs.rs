//! `blockyard lab pairs`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use blockyard_inspect::units;
use blockyard_lab::figures::Table;
use blockyard_lab::figures::table::figure;
use blockyard_lab::machine::Machine;
use blockyard_lab::pairs::{self, PairsRow};

use super::run::EXIT_USAGE;
use crate::commands::Output;
use crate::commands::progress::Progress;
use crate::terminal;

/// Allocates and frees 8 KiB repeatedly, in memory (64 GiB, 512 groups), in one or many threads.
#[derive(clap::Args)]
#[command(after_help = "\
Keys of --json, one object per row: policy, threads, pairs, pairs_per_s, wall_ns (a pair, all threads together), cpu_ns (CPU
time a pair: unlike wall_ns it can be trusted on a busy machine), waits (group locks waited for, a pair), shared_locks
(acquisitions of locks that the whole file system shares, a pair).

Exit codes: 0 measured; 2 wrong usage, nothing ran; 8 failed.")]
pub(crate) struct Args {
    /// Policy arms, comma-separated
    #[arg(long, value_delimiter = ',', default_value = "linux-6.16,linux-6.18,yard")]
    policy: Vec<String>,
    /// Numbers of threads, comma-separated
    #[arg(long, value_delimiter = ',', default_value = "1,2,8,64")]
    workers: Vec<u32>,
    /// Duration of each row in seconds
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    seconds: f64,
    /// How the threads share time: threads, or virtual (each on a CPU of --machine in virtual time;
    /// results are repeatable)
    #[arg(long, value_parser = ["threads", "virtual"], default_value = "threads")]
    interleave: String,
    /// The machine of --interleave virtual: kunpeng-920, amd-9654-x2, or a file (see lab machine)
    #[arg(long, value_name = "NAME", default_value = "kunpeng-920")]
    machine: String,
    /// CPUs of --interleave virtual; threads beyond them take turns [default: as many as threads]
    #[arg(long)]
    cpus: Option<u32>,
    /// Pairs per thread in virtual time
    #[arg(long, default_value_t = 1000)]
    pairs: u64,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        let machine = match self.machine() {
            Ok(machine) => machine,
            Err(error) => {
                eprintln!("blockyard: {error:#}");
                return Ok(ExitCode::from(EXIT_USAGE));
            }
        };
        let progress = Progress::parts(output, "lab pairs", self.policy.len() * self.workers.len());
        let begin = |part: usize, name: &str| progress.begin(part, name);
        let (policies, workers) = (&self.policy, &self.workers);
        let rows = match &machine {
            Some(machine) => pairs::run_virtual(policies, workers, (machine, self.cpus), self.pairs, begin)?,
            None => pairs::run(policies, workers, Duration::from_secs_f64(self.seconds), begin)?,
        };
        drop(progress);
        if output.json {
            for row in &rows {
                println!("{}", serde_json::to_string(row)?);
            }
        } else if !output.quiet {
            println!("{}", table(&rows).terminal(terminal::columns()));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The modelled machine of virtual time; `None` for threads. Refuses options that cannot work.
    fn machine(&self) -> Result<Option<Machine>> {
        ensure!(
            self.seconds > 0.0 && self.seconds <= 86_400.0,
            "--seconds {}: give a time above 0, at most 86400",
            self.seconds
        );
        if self.interleave == "virtual" {
            pairs::check_virtual(&self.policy, &self.workers, self.cpus, self.pairs)?;
            return Machine::open(&self.machine).map(Some);
        }
        ensure!(self.cpus.is_none(), "--cpus: only for --interleave virtual; leave it out");
        pairs::check(&self.policy, &self.workers, Duration::from_secs_f64(self.seconds))?;
        Ok(None)
    }
}

fn table(rows: &[PairsRow]) -> Table {
    let mut table = Table::new(
        "pairs of allocation and free",
        [
            "policy",
            "threads",
            "pairs/s",
            "wall time/pair",
            "CPU time/pair",
            "waits/pair",
            "shared locks/pair",
        ],
    )
    .with_keys(2);
    for row in rows {
        table.push([
            row.policy.clone(),
            row.threads.to_string(),
            figure(row.pairs_per_s),
            units::micros(row.wall_ns / 1e3),
            row.cpu_ns.map_or_else(|| "-".to_owned(), |ns| units::micros(ns / 1e3)),
            format!("{:.4}", row.waits),
            format!("{:.2}", row.shared_locks),
        ]);
    }
    table
}
