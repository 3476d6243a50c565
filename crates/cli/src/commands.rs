//! The list of commands, and what they share: output mode and exit codes.

mod below;
mod build;
mod calendar;
mod cat;
mod check;
mod chmod;
mod chown;
mod clock;
mod completions;
mod diff;
mod export;
mod frag;
mod get;
mod host;
mod image;
mod interrupt;
mod lab;
mod ln;
mod longer;
mod ls;
mod map;
mod mkdir;
mod mkfs;
mod mode;
mod mount;
mod mounted;
mod mv;
mod names;
mod other_hosts;
mod owner;
mod partial;
mod policy;
mod progress;
mod put;
mod recover;
mod rm;
mod rotational;
mod salvage;
mod stat;
mod touch;
mod undo;
mod version;
mod volume;

use std::process::ExitCode;

/// Exit code of an operational error: the request was understood, but could not be carried out.
pub(crate) const EXIT_OPERATIONAL: u8 = 8;

/// An error with its causes, in one line. If a cause begins with the text so far, it replaces the
/// text. If the text so far already ends with a cause, that cause is left out.
pub(crate) fn describe(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if line.is_empty() || cause.starts_with(&line) {
            line = cause;
        } else if !line.ends_with(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

/// Wrong usage that the argument definitions cannot detect: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(String);

impl UsageError {
    fn new(text: String) -> Self {
        Self(text)
    }
}

impl From<anyhow::Error> for UsageError {
    fn from(error: anyhow::Error) -> Self {
        Self(describe(&error))
    }
}

pub(crate) use interrupt::Interrupted;
pub(crate) use mount::{EXIT_HELPER_FAILED, EXIT_HELPER_USAGE, of_helper};

/// Options of every command.
#[derive(clap::Args)]
pub(crate) struct Output {
    /// Print JSON instead of text, one object per line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print errors only (with --json: the objects, and no text beside them)
    #[arg(long, global = true)]
    pub(crate) quiet: bool,
}

impl Output {
    /// Whether `--quiet` silences a command that only prints something. With `--json` it does not.
    pub(crate) const fn mutes_text(&self) -> bool {
        self.quiet && !self.json
    }
}

/// One variant per command; its file holds the arguments and `run`.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Make an image from trees of files, as small as possible, with the same bytes every time
    Build(Box<build::Args>),
    /// Write the content of files to standard output
    Cat(cat::Args),
    /// Verify an image, or repair it
    Check(check::Args),
    /// Change permissions in an image
    Chmod(chmod::Args),
    /// Change owners and groups in an image
    Chown(chown::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
    /// Show what differs between two images, or an image and a tree
    Diff(diff::Args),
    /// Turn an image into a directory, a tar archive or a container image
    Export(export::Args),
    /// Show how fragmented free space and files are
    Frag(frag::Args),
    /// Copy files and trees from an image to the host
    Get(get::Args),
    /// Measure allocation: workloads, reports, traces
    Lab(lab::Args),
    /// Make hard and symbolic links in an image
    Ln(ln::Args),
    /// List a directory
    Ls(ls::Args),
    /// Show where a file is stored: its extents
    Map(map::Args),
    /// Write the manual pages
    Man(completions::ManArgs),
    /// Make directories in an image
    Mkdir(mkdir::Args),
    /// Make a file system: the layout of mke2fs 1.47 for the same parameters
    Mkfs(Box<mkfs::Args>),
    /// Mount an image through FUSE
    Mount(mount::Args),
    /// Rename and move inside an image
    Mv(mv::Args),
    /// List and show allocation policies
    Policy(policy::Args),
    /// Copy files and trees of the host into an image
    Put(put::Args),
    /// Replay the journal of an image
    Recover(recover::Args),
    /// Remove names from an image
    Rm(rm::Args),
    /// Copy whatever is readable out of a damaged image
    Salvage(salvage::Args),
    /// Show the superblock and the groups, or an inode
    Stat(stat::Args),
    /// Set times in an image, make empty files
    Touch(touch::Args),
    /// Undo a repair
    Undo(undo::Args),
    /// Show the version and the supported features
    Version(version::Args),
}

impl Command {
    /// Runs the command. Returns the exit code of the process.
    pub(crate) fn run(self, output: &Output) -> anyhow::Result<ExitCode> {
        match self {
            Self::Build(args) => args.run(output),
            Self::Cat(args) => args.run(output),
            Self::Diff(args) => args.run(output),
            Self::Export(args) => args.run(output),
            Self::Frag(args) => args.run(output),
            Self::Get(args) => args.run(output),
            Self::Ln(args) => args.run(output),
            Self::Ls(args) => args.run(output),
            Self::Map(args) => args.run(output),
            Self::Put(args) => args.run(output),
            Self::Recover(args) => args.run(output),
            Self::Rm(args) => args.run(output),
            Self::Stat(args) => args.run(output),
            Self::Check(args) => args.run(output),
            Self::Chmod(args) => args.run(output),
            Self::Chown(args) => args.run(output),
            Self::Mkdir(args) => args.run(output),
            Self::Mkfs(args) if args.copies() => {
                let copy = args.into_copy()?;
                let output = Output { quiet: output.quiet || copy.is_silent, json: output.json };
                build::Build::of_mkfs(copy).run(&output)
            }
            Self::Mkfs(args) => args.run(output),
            Self::Lab(args) => args.run(output),
            Self::Mount(args) => args.run(output),
            Self::Mv(args) => args.run(output),
            Self::Policy(args) => args.run(output),
            Self::Touch(args) => args.run(output),
            Self::Salvage(args) => args.run(output),
            Self::Undo(args) => args.run(output),
            Self::Version(args) => args.run(output),
            Self::Completions(args) => args.run(),
            Self::Man(args) => args.run(),
        }
    }
}
