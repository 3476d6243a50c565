//! `blockyard lab trace`: makes operation traces.

use std::io::{BufWriter, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use blockyard_lab::e4;
use blockyard_lab::trace::{make, record};
use blockyard_trace::write;

/// Prints traces on standard output, as JSON Lines with one operation per line.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Generate a trace of one kind from a seed
    Make {
        /// tree-copy, untar, directory-heavy, fallocate2, append64, large-sequential,
        /// random-sparse, boundaries, small-fsync, log-rotate, ageing, near-full or mixed
        kind: String,
        /// Seed of every choice
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Approximate number of operations
        #[arg(long, default_value_t = 10_000)]
        ops: u64,
        /// MiB of file space that the trace may fill
        #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(..=1 << 24))]
        space: u64,
        /// Number of workers. They take turns, each on its own CPU slot and in its own directory
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
        workers: u32,
    },
    /// Print the trace of copying the tree of `lab run e4`
    E4 {
        /// Factor for the published sizes, from 0.005 to 1
        #[arg(long, default_value_t = 1.0)]
        scale: f64,
        /// Seed of the tree
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// MiB of data between two syncs
        #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
        sync: u64,
    },
    /// Record a directory tree as the trace of copying it
    Record {
        /// The directory
        directory: PathBuf,
    },
}

impl Args {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let lines = match self.command {
            Command::Make { kind, seed, ops, space, workers } => {
                make::make(&kind, &make::Recipe { seed, ops, space: space << 20, workers })?
            }
            Command::E4 { scale, seed, sync } => match e4::trace(scale, seed, sync << 20) {
                Ok(lines) => lines,
                Err(error) => {
                    eprintln!("blockyard: {error:#}");
                    return Ok(ExitCode::from(super::run::EXIT_USAGE));
                }
            },
            Command::Record { directory } => record::record(&directory)?,
        };
        let mut out = BufWriter::new(std::io::stdout().lock());
        match write(&lines, &mut out).and_then(|()| out.flush()) {
            Ok(()) => Ok(ExitCode::SUCCESS),
            // A reader that closed the pipe is not an error.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
            Err(error) => Err(error).context("write the trace"),
        }
    }
}
