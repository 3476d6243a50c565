//! What crates/ may look like: no circle of modules in any crate, and no arrow between crates that
//! docs/architecture.md does not have.
//!
//! An arrow between modules is a path that begins with `crate::` or `super::`, outside tests, from
//! the module it stands in to the module that defines what it names; `use` trees are taken apart,
//! and names that a module re-exports or imports are followed to where they are defined. Methods
//! and trait implementations leave no path and no arrow.
//!
//! Circles are counted like this: the modules of one folder are compared with each other, folder by
//! folder, from the crate's root down. A child stands for everything below it, so an arrow counts
//! once, where the two ends part. A parent and what is below it are one part and never make a
//! circle: the parent says what its children share (types, constants) and calls them. Children that
//! use each other through the parent's imports do count.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod arrows;
mod modules;
mod rings;
mod source;
mod tests;

use std::path::{Path, PathBuf};

use modules::Module;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

#[test]
fn no_crate_has_a_circle_of_modules() {
    let mut found = String::new();
    for name in arrows::crates(&workspace()) {
        let source = workspace().join("crates").join(&name).join("src");
        let roots = ["lib.rs", "main.rs"].map(|root| source.join(root));
        let roots = roots.iter().filter(|root| root.exists());
        for ring in roots.flat_map(|root| rings::rings(&Module::read(root))) {
            found += &format!("{name}: {}", ring.text(&workspace()));
        }
    }
    assert!(found.is_empty(), "circles of modules:\n{found}");
}

#[test]
fn crates_depend_on_what_the_architecture_allows() {
    let allowed = arrows::allowed(&workspace());
    let mut wrong = Vec::new();
    for name in arrows::crates(&workspace()) {
        let Some(allowed) = allowed.get(&name) else {
            wrong.push(format!("{name}: has no line in docs/architecture.md"));
            continue;
        };
        let manifest = workspace().join("crates").join(&name).join("Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).unwrap();
        wrong.extend(
            arrows::dependencies(&manifest)
                .into_iter()
                .filter(|dependency| !allowed.contains(dependency))
                .map(|dependency| format!("{name} -> {dependency}: not in docs/architecture.md")),
        );
    }
    for name in allowed.keys() {
        if !workspace().join("crates").join(name).exists() {
            wrong.push(format!("{name}: is in docs/architecture.md, but there is no such crate"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
