//! `blockyard version`: prints the version, and the features that mkfs can make.

use std::process::ExitCode;

use blockyard_engine::mkfs;

use super::Output;

/// No arguments.
#[derive(clap::Args)]
#[command(after_help = "JSON: one object: name, version, features (that mkfs can make).")]
pub(crate) struct Args {}

impl Args {
    /// Prints name and version, and the features that mkfs can make.
    pub(crate) fn run(self, output: &Output) -> anyhow::Result<ExitCode> {
        let (version, features) = (env!("CARGO_PKG_VERSION"), mkfs::supported_features());
        if output.json {
            let features: Vec<&str> = features.split([',', ' ']).filter(|name| !name.is_empty()).collect();
            println!(
                "{}",
                serde_json::json!({"name": "blockyard", "version": version, "features": features})
            );
        } else if !output.quiet {
            println!("blockyard {version}\nfeatures: {features}");
        }
        Ok(ExitCode::SUCCESS)
    }
}
