//! The list of commands and what they share: output mode and exit codes.

mod check;
mod mkfs;
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
    /// Verify an image without writing to it
    Check(check::Args),
    /// Make a file system: the layout of mke2fs 1.47 for the same parameters
    Mkfs(Box<mkfs::Args>),
    /// Show the version and the supported features
    Version(version::Args),
}

impl Command {
    /// Carries the command out and gives the exit code of the process.
    pub(crate) fn run(self, output: &Output) -> anyhow::Result<ExitCode> {
        match self {
            Self::Check(args) => args.run(output),
            Self::Mkfs(args) => args.run(output),
            Self::Version(args) => args.run(output),
        }
    }
}
