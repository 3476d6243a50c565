//! `blockyard lab report`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use blockyard_lab::report::{Run, summary};

use crate::commands::Output;

/// Prints the tables of a run and writes `report.md`, `rows.csv` and `report.html` beside its rows.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder that `lab run --out` wrote
    folder: PathBuf,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        let run = Run::load(&self.folder)?;
        run.write_reports(&self.folder)?;
        if output.json {
            for row in &run.rows {
                println!("{}", serde_json::to_string(row)?);
            }
        } else if !output.quiet {
            for (name, value) in run.environment.lines() {
                println!("{name}: {value}");
            }
            println!();
            for table in summary::tables(&run.rows) {
                println!("{}", table.terminal());
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
