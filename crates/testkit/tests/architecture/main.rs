//! Two rules for the sources in crates/: modules of a crate form no cycle, and crates have no
//! dependency on each other that docs/architecture.md does not list.
//!
//! A dependency is called an arrow here. An arrow between modules is a path that begins with
//! `crate::` or `super::`, outside tests. It leads from the module that contains the path to the
//! module that defines the item that the path names. A `use` tree counts as several paths, and
//! names that a module re-exports or imports are followed to where they are defined. Calls of
//! methods and uses of trait implementations need no path, so they make no arrow.
//!
//! Cycles are searched for among the modules of one folder, folder by folder, from the crate's root
//! down. A module in the folder stands for everything below it. So an arrow counts in only one
//! folder: the one in which its two ends belong to different modules. Arrows between a module and
//! the modules below it do not count: a parent defines types and constants that its children share,
//! and also calls the children. But arrows between children count even if they lead through the
//! parent's imports.

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
