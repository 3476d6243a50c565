//! Tells the program which commit it is built from, as `BLOCKYARD_COMMIT`.

use std::path::Path;
use std::process::Command;

fn main() {
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let commit = commit(&Path::new(&folder).join("../..")).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=BLOCKYARD_COMMIT={commit}");
}

/// The commit of a checkout, with `-dirty` if files of the checkout differ from the commit. `None`
/// outside a checkout, for example for a package from a registry.
fn commit(root: &Path) -> Option<String> {
    println!("cargo::rerun-if-changed=build.rs");
    // Git also finds a checkout above this folder, which would be somebody else's.
    if !root.join(".git").exists() {
        return None;
    }
    // Build again after a commit, which adds a line to git's log of HEAD, and after a change of the
    // sources, which makes the build dirty.
    let log = git(root, &["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"])?;
    for seen in [Path::new(&log), &root.join("crates"), &root.join("Cargo.lock")] {
        println!("cargo::rerun-if-changed={}", seen.display());
    }
    git(root, &["describe", "--always", "--dirty"])
}

/// The output of git in a checkout.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(["--no-optional-locks", "-C"])
        .arg(root)
        .args(arguments)
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
