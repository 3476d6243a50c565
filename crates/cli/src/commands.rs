//! The list of commands and what they share: output mode and exit codes.

mod calendar;
mod cat;
mod check;
mod image;
mod lab;
mod ls;
mod map;
mod mkfs;
mod policy;
mod recover;
mod stat;
mod version;

use std::process::ExitCode;

/// Exit code of an operational error: the request was understood and could not be carried out.
pub(crate) const EXIT_OPERATIONAL: u8 = 8;

/// Options that every command takes.
#[derive(clap::Args)]
pub(crate) struct Output {
    /// Print one JSON object a line instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print errors only
    #[arg(long, global = true)]
    pub(crate) quiet: bool,
}

/// One variant a command; its file holds arguments and `run`.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Write the content of files to standard output
    Cat(cat::Args),
    /// Verify an image without writing to it
    Check(check::Args),
    /// Measure allocation: workloads, reports, traces
    Lab(lab::Args),
    /// List a directory
    Ls(ls::Args),
    /// Show where a file lies: its extents
    Map(map::Args),
    /// Make a file system: the layout of mke2fs 1.47 for the same parameters
    Mkfs(Box<mkfs::Args>),
    /// List and show allocation policies
    Policy(policy::Args),
    /// Replay the journal of an image
    Recover(recover::Args),
    /// Show the superblock and the groups, or an inode
    Stat(stat::Args),
    /// Show the version and the supported features
    Version(version::Args),
}

impl Command {
    /// Carries the command out and gives the exit code of the process.
    pub(crate) fn run(self, output: &Output) -> anyhow::Result<ExitCode> {
        match self {
            Self::Cat(args) => args.run(output),
            Self::Ls(args) => args.run(output),
            Self::Map(args) => args.run(output),
            Self::Recover(args) => args.run(output),
            Self::Stat(args) => args.run(output),
            Self::Check(args) => args.run(output),
            Self::Mkfs(args) => args.run(output),
            Self::Lab(args) => args.run(output),
            Self::Policy(args) => args.run(output),
            Self::Version(args) => args.run(output),
        }
    }
}
