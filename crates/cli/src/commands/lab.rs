//! `blockyard lab`: workloads measured, reports made, traces written.

mod age;
mod agree;
mod census;
mod crash;
mod device;
mod journal;
mod machine;
mod pairs;
mod report;
mod run;
mod supervise;
mod trace;

use std::process::ExitCode;

use super::Output;

/// What to do in the lab.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Have an image live a life: files made, grown, overwritten and removed by a profile, from a
    /// seed
    Age(Box<age::Args>),
    /// Compare block allocation with the running kernel's, decision by decision
    Agree(Box<agree::Args>),
    /// Count the locks that allocation and freeing share, patch by patch
    Census(census::Args),
    /// Cut the power at every write of a workload, and judge what three recoveries make of it
    Crash(crash::Args),
    /// Print the models of devices, or play kept requests on one
    Device(device::Args),
    /// Measure what the journal costs, and how many fsyncs share a commit
    Journal(journal::Args),
    /// Print the machines of virtual time, or measure this one
    Machine(machine::Args),
    /// Allocate and free in memory, in one or many threads: how far a policy scales
    Pairs(pairs::Args),
    /// Run a workload under several policies and numbers of workers, and print what came out
    Run(Box<run::Args>),
    /// Print and write the reports of a run's folder
    Report(report::Args),
    /// Make an operation trace, or record a directory tree as one
    Trace(trace::Args),
}

impl Args {
    /// Carries the command out.
    pub(crate) fn run(self, output: &Output) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Age(args) => args.run(output),
            Command::Agree(args) => supervise::supervised(|| args.run(output)),
            Command::Census(args) => args.run(output),
            Command::Crash(args) => supervise::supervised(|| args.run(output)),
            Command::Device(args) => args.run(output),
            Command::Journal(args) => args.run(output),
            Command::Machine(args) => args.run(output),
            Command::Pairs(args) => args.run(output),
            Command::Run(args) => supervise::supervised(|| args.run(output)),
            Command::Report(args) => args.run(output),
            Command::Trace(args) => args.run(),
        }
    }
}
