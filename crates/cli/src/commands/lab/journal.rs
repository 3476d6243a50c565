//! `blockyard lab journal`: measures what the journal costs.

use std::process::ExitCode;

use anyhow::Result;
use blockyard_lab::journal::{self, Plan};

use crate::commands::Output;
use crate::commands::progress::Progress;
use crate::terminal;

/// Measures the cost of the journal for `fallocate2`, the locks that an operation takes, and how
/// many fsyncs share a commit, on images in memory.
#[derive(clap::Args)]
#[command(after_help = "\
Keys of --json, one object: cost (workers, off_ops_per_s, on_ops_per_s, ratio, off_cpu_ns, on_cpu_ns, commits), locks
(lock, off and on: acquisitions per operation without and with the journal, covers: what the lock protects; only in
debug builds), sharing (threads, flush_us, fsyncs, commits, flushes, fsyncs_per_s, commits_per_s, fsyncs_per_commit).")]
pub(crate) struct Args {
    /// Numbers of workers for fallocate2, comma-separated
    #[arg(long, value_delimiter = ',', default_value = "1,2,8,64")]
    workers: Vec<u32>,
    /// Operations of fallocate2 in each cell, all workers together
    #[arg(long, default_value_t = 2_000_000)]
    ops: u64,
    /// Repetitions of each cell, with the journal off and on in turn. Tables show medians
    #[arg(long, default_value_t = 3)]
    repeat: u32,
    /// Numbers of threads that create, write and fsync
    #[arg(long, value_delimiter = ',', default_value = "1,8,64")]
    threads: Vec<u32>,
    /// Files that each thread syncs
    #[arg(long, default_value_t = 100)]
    fsyncs: u32,
    /// Duration of a device flush in microseconds
    #[arg(long, value_delimiter = ',', default_value = "0,100,2000")]
    flush_us: Vec<u64>,
    /// Seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Allocation policy of fallocate2
    #[arg(long, default_value = "linux-6.18")]
    policy: String,
    /// Print Markdown, as in docs/experiments/journal.md
    #[arg(long)]
    markdown: bool,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        let plan = Plan {
            workers: self.workers,
            ops: self.ops,
            repeat: self.repeat,
            threads: self.threads,
            fsyncs: self.fsyncs,
            flush_us: self.flush_us,
            seed: self.seed,
            policy: self.policy,
        };
        let progress = Progress::parts(output, "lab journal", plan.parts());
        let outcome = journal::run(&plan, |part, name| progress.begin(part, name))?;
        drop(progress);
        if output.json {
            println!("{}", serde_json::to_string(&outcome)?);
        } else if self.markdown {
            outcome.tables().iter().for_each(|table| println!("{}", table.markdown()));
        } else if !output.quiet {
            outcome.tables().iter().for_each(|table| println!("{}", table.terminal(terminal::columns())));
        }
        Ok(ExitCode::SUCCESS)
    }
}
