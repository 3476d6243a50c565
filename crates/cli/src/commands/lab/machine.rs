//! `blockyard lab machine`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use blockyard_lab::machine::{Machine, measure};
use blockyard_lab::new_file;

use crate::commands::Output;

/// The machine models of --interleave virtual: topology, costs, and the source of each number.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Print the file of a machine
    Show {
        /// kunpeng-920, amd-9654-x2, or a file
        name: String,
    },
    /// Measure cache line transfer and lock hand-over on this machine, which should be idle, and
    /// write its file
    Measure {
        /// Write to this new file instead of the terminal
        #[arg(long)]
        out: Option<PathBuf>,
    },
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        let (machine, out) = match self.command {
            Command::Show { name } => (Machine::open(&name)?, None),
            Command::Measure { out } => {
                if let Some(path) = &out {
                    new_file::check("--out", path)?;
                }
                (measure::this_machine()?, out)
            }
        };
        let text = serde_json::to_string_pretty(&machine)?;
        match out {
            Some(path) => new_file::write(&path, &(text + "\n"))?,
            None if output.quiet => {}
            None => println!("{text}"),
        }
        Ok(ExitCode::SUCCESS)
    }
}
