//! Dependencies between crates: those in the manifests, and those that the table in
//! docs/architecture.md allows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The crates of the workspace, by the names of their folders.
pub(crate) fn crates(workspace: &Path) -> Vec<String> {
    let folders = fs::read_dir(workspace.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let crates = folders.filter(|folder| folder.join("Cargo.toml").exists());
    let mut names: Vec<String> =
        crates.map(|folder| folder.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// Our own crates among the `[dependencies]` of a manifest.
pub(crate) fn dependencies(manifest: &str) -> BTreeSet<String> {
    let lines = manifest.lines().map(str::trim).skip_while(|line| *line != "[dependencies]").skip(1);
    lines
        .take_while(|line| !line.starts_with('['))
        .map(|line| line.split(['.', ' ', '=']).next().unwrap())
        // The library's name is `blockyard`; all other crates have that name as a prefix.
        .filter_map(|name| if name == "blockyard" { Some(name) } else { name.strip_prefix("blockyard-") })
        .map(str::to_owned)
        .collect()
}

/// What each crate may depend on.
pub(crate) fn allowed(workspace: &Path) -> BTreeMap<String, BTreeSet<String>> {
    table(&fs::read_to_string(workspace.join("docs/architecture.md")).unwrap())
}

/// Parses the indented lines `name -> a, b   what it is` of a text. `all` stands for the names of
/// all lines above.
fn table(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut table: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut everything: Vec<String> = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("    ")) {
        let Some((name, rest)) = line.trim().split_once(" -> ") else { continue };
        let named = rest.trim_start().split("  ").next().unwrap();
        let names: BTreeSet<String> = match named {
            "(nothing of ours)" => BTreeSet::new(),
            "all" => everything.iter().cloned().collect(),
            some => some.split(',').map(|name| name.trim().to_owned()).collect(),
        };
        everything.push(name.trim().to_owned());
        assert!(table.insert(name.trim().to_owned(), names).is_none(), "{name} has two lines");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn manifests_are_read_up_to_the_next_section() {
        let manifest = "[package]\nname = \"blockyard-x\"\n[dependencies]\nblockyard-disk.workspace = true\n\
                        blockyard-sync = { workspace = true }\nblockyard.workspace = true\nserde.workspace = true\n\n\
                        [dev-dependencies]\nblockyard-testkit.workspace = true\n";
        assert_eq!(dependencies(manifest), set(&["blockyard", "disk", "sync"]));
        assert_eq!(dependencies("[dev-dependencies]\nblockyard-testkit.workspace = true\n"), set(&[]));
    }

    #[test]
    fn the_table_is_read_line_by_line() {
        let text = "An arrow:\n\n    disk    -> (nothing of ours)   bytes, only\n    check   -> disk, device  no\n    \
                    cli     -> all    the binary\n    other text\n";
        let table = table(text);
        assert_eq!(table["disk"], set(&[]));
        assert_eq!(table["check"], set(&["disk", "device"]));
        assert_eq!(table["cli"], set(&["disk", "check"]));
        assert_eq!(table.len(), 3);
    }
}
