//! The binary `blockyard`: command-line definitions and their dispatch to the library crates.
//!
//! Each command has a file under `commands/` (`man` shares the file of `completions`), with its
//! arguments (clap) and a `run` that returns the exit code of the process. An error is printed as
//! one line: `blockyard:`, then the place, the problem and, if known, what to do. Its exit code is
//! 8 (operational error, as in e2fsck; 32 for the helper of mount(8)) unless a command documents
//! its own or a signal ended the work. Wrong usage is also one line, with exit code 2 (16 for
//! `check`, 1 for the helper).

#![forbid(unsafe_code)]

#[macro_use]
mod streams;
mod commands;
mod examples;
mod terminal;
mod usage;

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
    let command = examples::command();
    let helper = commands::of_helper(std::env::args_os().collect());
    let is_helper = helper.is_some();
    let given = helper.unwrap_or_else(|| std::env::args_os().collect());
    let parsed =
        command.clone().try_get_matches_from(given).and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) if is_helper => return usage::end_helper(&error, commands::EXIT_HELPER_USAGE),
        Err(error) => return usage::end(&error, &command),
    };
    terminal::holds_json(cli.output.json);
    let code = cli.command.run(&cli.output).unwrap_or_else(|error| {
        let told = commands::describe(&error);
        if is_helper {
            eprintln!("blockyard: {told}");
            let is_usage = error.is::<commands::UsageError>();
            return ExitCode::from(if is_usage {
                commands::EXIT_HELPER_USAGE
            } else {
                commands::EXIT_HELPER_FAILED
            });
        }
        if error.is::<commands::UsageError>() {
            return usage::refuse(&told, &command);
        }
        eprintln!("blockyard: {told}");
        let interrupted = error.downcast_ref::<commands::Interrupted>();
        ExitCode::from(interrupted.map_or(commands::EXIT_OPERATIONAL, |signal| signal.exit_code()))
    });
    streams::finish(code)
}
