//! Runs programs and reads what they print.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

/// Runs a program and returns its standard output. An unsuccessful exit is an error.
pub(super) fn run(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        bail!("{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The path as text. A path that is not UTF-8 is an error.
pub(super) fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}
