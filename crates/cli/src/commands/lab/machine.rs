//! `blockyard lab machine`: lists the machine models of virtual time, and measures this machine.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use blockyard_lab::machine::{Machine, measure};
use blockyard_lab::new_file;
use blockyard_lab::pairs::calibrate::calibrate;

use crate::commands::Output;

/// The machine models of --interleave virtual: topology, costs, and the source of each number.
#[derive(clap::Args)]
#[command(after_help = "\
Keys of --json: for show and measure, the keys of the machine file, on one line; for list, one object per machine: name, cpus, about.")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Print the built-in machines: name, CPUs, what they are
    List,
    /// Print the file of a machine
    Show(Box<Shown>),
    /// Measure this machine, which should be idle, and write its machine file: how long cache line
    /// transfers, lock hand-overs, waits for locks and the computation of an allocation take
    Measure {
        /// Write to this new file instead of the terminal
        #[arg(long)]
        out: Option<PathBuf>,
    },
}

#[derive(clap::Args)]
struct Shown {
    /// kunpeng-920, amd-9654-x2, or a file
    #[arg(value_name = "NAME")]
    machine: Machine,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        match self.command {
            Command::List => list(output)?,
            Command::Show(shown) => print(&shown.machine, output)?,
            Command::Measure { out } => measure_to(out.as_deref(), output)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn list(output: &Output) -> Result<()> {
    for name in Machine::NAMES {
        let Machine { cpus, about, .. } = Machine::open(name)?;
        if output.json {
            println!("{}", serde_json::json!({ "name": name, "cpus": cpus, "about": about }));
        } else if !output.quiet {
            println!("{name:<14}{cpus:>4} CPUs  {about}");
        }
    }
    Ok(())
}

fn print(machine: &Machine, output: &Output) -> Result<()> {
    if output.json {
        println!("{}", serde_json::to_string(machine)?);
    } else if !output.quiet {
        println!("{}", serde_json::to_string_pretty(machine)?);
    }
    Ok(())
}

fn measure_to(out: Option<&Path>, output: &Output) -> Result<()> {
    if let Some(path) = out {
        new_file::check("--out", path)?;
    }
    let measured = measure::this_machine()?;
    let doubt = measured.doubt();
    let machine = calibrate(measured.machine)?;
    match out {
        Some(path) => new_file::write(path, &(serde_json::to_string_pretty(&machine)? + "\n"))?,
        None => print(&machine, output)?,
    }
    if let Some(doubt) = doubt.filter(|_| !output.quiet) {
        eprintln!("blockyard: note: {doubt}");
    }
    Ok(())
}
