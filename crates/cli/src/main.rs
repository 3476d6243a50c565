//! The binary `blockyard`: command-line definitions and their dispatch to the library crates.
//!
//! One file per command under `commands/`: its arguments (clap), and a `run` that returns the process exit code.
//! Errors print as one line, `blockyard: what, where, what to do`, with exit code 8 (operational error, as e2fsck
//! counts) unless a command documents its own; wrong usage exits with 2.

#![forbid(unsafe_code)]

mod commands;
mod examples;

use std::process::ExitCode;

use clap::{FromArgMatches, Parser};

/// ext4 in user space, with the allocator in the open.
#[derive(Parser)]
#[command(name = "blockyard", version, about, propagate_version = true)]
struct Cli {
    #[command(flatten)]
    output: commands::Output,
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    let cli = Cli::from_arg_matches(&examples::command().get_matches()).unwrap_or_else(|error| error.exit());
    match cli.command.run(&cli.output) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("blockyard: {}", commands::describe(&error));
            ExitCode::from(commands::EXIT_OPERATIONAL)
        }
    }
}
