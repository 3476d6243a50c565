//! `blockyard lab pairs`: allocates and frees in memory, to see how far a policy scales.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use blockyard_inspect::units;
use blockyard_lab::figures::Table;
use blockyard_lab::figures::table::figure;
use blockyard_lab::machine::Machine;
use blockyard_lab::pairs::{self, Locks, PairsRow};

use super::run::{EXIT_USAGE, refuse};
use crate::commands::Output;
use crate::commands::progress::Progress;
use crate::terminal;

/// Allocates and frees 8 KiB repeatedly, in memory (64 GiB, 512 groups), in one or many threads.
#[derive(clap::Args)]
#[command(after_help = "\
Keys of --json, one object per row: policy, threads, pairs, pairs_per_s, wall_ns (the time of the row divided by the
pairs of all threads), cpu_ns (CPU time per pair; unlike wall_ns it can be trusted on a busy machine), waits (waits
for group locks, per pair), shared_locks (acquisitions of locks that the whole file system shares, per pair). A pair
is one allocation and its free.

What a pair frees can be allocated again at once, without a commit. With --interleave virtual, there is no cache line
that all operations share, and the threads of one CPU take turns: each turn lasts the machine's quantum_ns, and each
switch costs the machine's switch_ns.

Exit codes: 0 measured; 2 wrong usage, nothing ran; 8 failed.")]
pub(crate) struct Args {
    /// Policy arms, comma-separated
    #[arg(long, value_delimiter = ',', default_value = "linux-6.16,linux-6.18,yard")]
    policy: Vec<String>,
    /// Numbers of threads, comma-separated [default: 1,2,8,64; with --cpus as many as CPUs]
    #[arg(long, value_delimiter = ',')]
    workers: Option<Vec<u32>>,
    /// Duration of each row in seconds, for threads [default: 1]
    #[arg(long, allow_negative_numbers = true)]
    seconds: Option<f64>,
    /// How the threads share time. threads: real threads. in-turn: real threads whose locks serve
    /// them in turn, as the kernel's spin locks do. virtual: each thread on a CPU of --machine in
    /// virtual time; results are repeatable
    #[arg(long, value_parser = ["threads", "in-turn", "virtual"], default_value = "threads")]
    interleave: String,
    /// The machine of --interleave virtual: kunpeng-920, amd-9654-x2, or a file (see lab machine)
    /// [default: kunpeng-920]
    #[arg(long, value_name = "NAME")]
    machine: Option<Machine>,
    /// Let a virtual CPU take any lock that it finds free, and sleep after a long wait, as threads
    /// do with --interleave threads. Without this option, a lock serves waiting CPUs in turn. Needs
    /// a --machine measured with lab machine measure
    #[arg(long)]
    library_locks: bool,
    /// CPUs of --interleave virtual, at most 1024. If there are more threads than CPUs, threads
    /// take turns; if there are fewer, the other CPUs are left out [default: as many as threads]
    #[arg(long)]
    cpus: Option<u32>,
    /// Pairs per thread in virtual time [default: 1000]
    #[arg(long)]
    pairs: Option<u64>,
}

/// How long each row runs: for a time, or for a number of pairs per thread.
enum Extent {
    Time(Duration, Locks),
    Virtual { machine: Box<Machine>, locks: Locks, pairs: u64 },
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        let workers = &self.workers();
        let extent = match self.extent(workers) {
            Ok(extent) => extent,
            Err(error) => {
                eprintln!("blockyard: {error:#}");
                return Ok(ExitCode::from(EXIT_USAGE));
            }
        };
        let policies = &self.policy;
        let progress = Progress::parts(output, "lab pairs", policies.len() * workers.len());
        let begin = |part: usize, name: &str| progress.begin(part, name);
        let rows = match extent {
            Extent::Time(time, locks) => pairs::run(policies, workers, (time, locks), begin)?,
            Extent::Virtual { machine, locks, pairs } => {
                pairs::run_virtual(policies, workers, (&machine, locks, self.cpus), pairs, begin)?
            }
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

    fn workers(&self) -> Vec<u32> {
        let default = || self.cpus.map_or_else(|| vec![1, 2, 8, 64], |cpus| vec![cpus]);
        self.workers.clone().unwrap_or_else(default)
    }

    /// How long each row runs, from the options. Refuses options that cannot work or would be
    /// ignored.
    fn extent(&self, workers: &[u32]) -> Result<Extent> {
        if self.interleave == "virtual" {
            refuse("--interleave threads or in-turn", &[("--seconds", self.seconds.is_some())])?;
            let pairs = self.pairs.unwrap_or(1000);
            let machine = self.machine.clone().unwrap_or_default();
            let locks = if self.library_locks { Locks::Library } else { Locks::InTurn };
            pairs::check_virtual(&self.policy, workers, (&machine, locks, self.cpus), pairs)?;
            return Ok(Extent::Virtual { machine: Box::new(machine), locks, pairs });
        }
        let of_virtual = [
            ("--machine", self.machine.is_some()),
            ("--library-locks", self.library_locks),
            ("--cpus", self.cpus.is_some()),
            ("--pairs", self.pairs.is_some()),
        ];
        refuse("--interleave virtual", &of_virtual)?;
        let seconds = self.seconds.unwrap_or(1.0);
        ensure!(
            seconds > 0.0 && seconds <= 86_400.0,
            "--seconds {seconds}: give a time above 0, at most 86400"
        );
        let time = Duration::from_secs_f64(seconds);
        let locks = if self.interleave == "in-turn" { Locks::InTurn } else { Locks::Library };
        pairs::check(&self.policy, workers, (time, locks))?;
        Ok(Extent::Time(time, locks))
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
