//! `blockyard completions SHELL` and `blockyard man DIR`, generated from the definitions that parse
//! the command line.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory;

/// Arguments of `blockyard completions`.
#[derive(clap::Args)]
#[command(after_help = "For bash: blockyard completions bash > /etc/bash_completion.d/blockyard")]
pub(crate) struct Args {
    /// The shell
    shell: clap_complete::Shell,
}

impl Args {
    /// Prints the script.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut crate::Cli::command(), "blockyard", &mut script);
        print!("{}", String::from_utf8_lossy(&script));
        Ok(ExitCode::SUCCESS)
    }
}

/// Arguments of `blockyard man`.
#[derive(clap::Args)]
#[command(after_help = "One page per command: blockyard.1, blockyard-mkfs.1, blockyard-lab-run.1, ...")]
pub(crate) struct ManArgs {
    /// Directory to write the pages into; made when it does not exist
    directory: PathBuf,
}

impl ManArgs {
    /// Writes the pages.
    pub(crate) fn run(self) -> Result<ExitCode> {
        std::fs::create_dir_all(&self.directory)
            .with_context(|| format!("cannot make {}", self.directory.display()))?;
        let command = crate::examples::command().disable_help_subcommand(true);
        clap_mangen::generate_to(command, &self.directory)
            .with_context(|| format!("cannot write into {}", self.directory.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}
