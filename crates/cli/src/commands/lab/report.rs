//! `blockyard lab report`: prints and writes the reports of a run.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use blockyard_lab::report::Run;

use crate::commands::Output;
use crate::terminal;

/// Prints the tables of a run, with machine, commit, seed, and the command that repeats it.
#[derive(clap::Args)]
#[command(after_help = "\
Writes beside the rows: report.md, rows.csv, report.html (one page that needs nothing else) and maps/.

Keys of --json: those of lab run.

Exit codes: 0 done, 2 wrong usage, 8 the folder cannot be read or written.")]
pub(crate) struct Args {
    /// The folder that `lab run --out` wrote
    folder: PathBuf,
    /// What to print: terminal, markdown (for a cover letter), csv or jsonl (as --json)
    #[arg(long, default_value = "terminal", value_parser = ["terminal", "markdown", "csv", "jsonl"])]
    format: String,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        let run = Run::load(&self.folder)?;
        run.write_reports(&self.folder)?;
        let format = if output.json { "jsonl" } else { self.format.as_str() };
        if !output.quiet {
            match format {
                "markdown" => print!("{}", run.markdown()),
                "csv" => print!("{}", run.csv()),
                "jsonl" => print!("{}", run.json_lines()?),
                _ => print_terminal(&run),
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn print_terminal(run: &Run) {
    for (name, value) in run.environment.lines() {
        println!("{name}: {value}");
    }
    println!();
    for table in run.tables() {
        println!("{}", table.terminal(terminal::columns()));
    }
    for timeline in &run.timelines {
        println!("{}", timeline.text(terminal::columns()));
    }
}
