//! `blockyard lab`: measures workloads, makes reports, writes traces.

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

use blockyard_lab::folder::{Environment, command_line};

use super::Output;

/// What to do in the lab.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Age an image: make, grow, overwrite and remove files by a profile, from a seed
    Age(Box<age::Args>),
    /// Compare block allocation with the running kernel's, decision by decision
    Agree(Box<agree::Args>),
    /// Count how often allocation and freeing take locks of the whole file system, with and without
    /// patches of the scalability series
    Census(census::Args),
    /// Cut the power at random points of a workload, and check the results of three recoveries
    Crash(crash::Args),
    /// Print the models of devices, or play recorded requests on one
    Device(device::Args),
    /// Measure what the journal costs, and how many fsyncs share a commit
    Journal(journal::Args),
    /// Print the machine models of virtual time, or measure this machine
    Machine(machine::Args),
    /// Allocate and free in memory, in one or many threads, to see how far a policy scales
    Pairs(Box<pairs::Args>),
    /// Run a workload under several policies and numbers of workers, and print the results
    Run(Box<run::Args>),
    /// Print and write the reports in the folder of a run
    Report(report::Args),
    /// Make an operation trace, or record a directory tree as one
    Trace(trace::Args),
}

impl Args {
    /// Runs the command.
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

/// This machine, this program and its command line.
fn environment() -> Environment {
    let commit = env!("BLOCKYARD_COMMIT").to_owned();
    Environment { commit, ..Environment::of_this_machine(command_line(), String::new()) }
}
