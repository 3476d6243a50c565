//! `blockyard lab census`: counts acquisitions of locks that the whole file system shares.

use std::process::ExitCode;

use anyhow::Result;
use blockyard_lab::census;

use crate::commands::Output;
use crate::commands::progress::Progress;
use crate::terminal;

/// Counts acquisitions of locks that the whole file system shares. Policies: linux-6.16 without and
/// with single patches of the scalability series (and the patches that these need), linux-6.18,
/// yard, and those of --policy.
#[derive(clap::Args)]
#[command(after_help = "\
Keys of --json, one object per row: arm, allocations, freed; allocating, freeing and committing (objects: md has the
acquisitions of the md lock, lists those of the locks of group lists), allocation_most and free_most (the most
acquisitions by one allocation, and by one freed extent).")]
pub(crate) struct Args {
    /// Further policy arms, comma-separated; overrides follow a colon
    #[arg(long, value_delimiter = ',')]
    policy: Vec<String>,
    /// Seed of the load
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print Markdown, as in docs/experiments/lock-census.md
    #[arg(long)]
    markdown: bool,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        if let Err(error) = census::check(&self.policy) {
            eprintln!("blockyard: {error:#}");
            return Ok(ExitCode::from(super::run::EXIT_USAGE));
        }
        let progress = Progress::parts(output, "lab census", census::ARMS_IN_ALL + self.policy.len());
        let rows = census::run(self.seed, &self.policy, |part, name| progress.begin(part, name))?;
        drop(progress);
        if output.json {
            for row in &rows {
                println!("{}", serde_json::to_string(row)?);
            }
        } else if self.markdown {
            print!("{}", census::table(&rows).markdown());
        } else if !output.quiet {
            print!("{}", census::table(&rows).terminal(terminal::columns()));
        }
        Ok(ExitCode::SUCCESS)
    }
}
