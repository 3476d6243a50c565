//! `blockyard version`.

use std::process::ExitCode;

use super::Output;

/// No options of its own.
#[derive(clap::Args)]
pub(crate) struct Args {}

impl Args {
    /// Prints name and version.
    pub(crate) fn run(self, output: &Output) -> anyhow::Result<ExitCode> {
        if output.json {
            println!("{}", serde_json::json!({"name": "blockyard", "version": env!("CARGO_PKG_VERSION")}));
        } else {
            println!("blockyard {}", env!("CARGO_PKG_VERSION"));
        }
        Ok(ExitCode::SUCCESS)
    }
}
