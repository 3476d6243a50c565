//! The modules of a crate as a tree, and to which module a path leads.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::source::{self, Named, Source};

/// The most imports that are followed for one path.
const IMPORTS_MAX: usize = 16;

/// A module and what is below it.
#[derive(Debug, Default)]
pub(crate) struct Module {
    pub(crate) file: PathBuf,
    pub(crate) children: BTreeMap<String, Module>,
    pub(crate) named: Vec<Named>,
    imports: BTreeMap<String, Vec<String>>,
}

impl Module {
    /// The tree of a crate from its `lib.rs` or `main.rs`.
    pub(crate) fn read(root: &Path) -> Self {
        let folder = root.parent().unwrap();
        Self::of_file(root, folder)
    }

    /// The module in `file`. The files of its children are in `folder`.
    fn of_file(file: &Path, folder: &Path) -> Self {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let source = source::read(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        Self::of_source(source, file, folder)
    }

    fn of_source(source: Source, file: &Path, folder: &Path) -> Self {
        let mut module = Self {
            file: file.to_owned(),
            named: source.named,
            imports: source.imports.into_iter().filter(|(name, _)| name != "_").collect(),
            ..Self::default()
        };
        for (name, given) in source.declared {
            let file = match given {
                Some(given) => file.parent().unwrap().join(given),
                None => folder.join(format!("{name}.rs")),
            };
            module.children.insert(name.clone(), Self::of_file(&file, &folder.join(name)));
        }
        for (name, inline) in source.inline {
            module.children.insert(name.clone(), Self::of_source(inline, file, &folder.join(&name)));
        }
        module
    }

    /// The module at a path of names, which must exist.
    pub(crate) fn at(&self, path: &[String]) -> &Self {
        path.iter().fold(self, |module, name| &module.children[name])
    }

    /// This module and all below it, with their paths.
    pub(crate) fn all(&self) -> Vec<(Vec<String>, &Self)> {
        let mut all = vec![(Vec::new(), self)];
        let mut at = 0;
        while let Some((path, module)) = all.get(at).cloned() {
            for (name, child) in &module.children {
                all.push(([path.as_slice(), std::slice::from_ref(name)].concat(), child));
            }
            at += 1;
        }
        all
    }

    /// The module that defines what a path in the module `from` names; `None` when another crate
    /// defines it, or when more than [`IMPORTS_MAX`] imports lead to it. Call it on the crate's
    /// root.
    pub(crate) fn definition(&self, from: &[String], path: &[String]) -> Option<Vec<String>> {
        self.follow(from, path, IMPORTS_MAX)
    }

    fn follow(&self, from: &[String], path: &[String], imports_left: usize) -> Option<Vec<String>> {
        let (mut at, rest) = self.beginning(from, path)?;
        for (index, name) in rest.iter().enumerate() {
            let module = self.at(&at);
            if module.children.contains_key(name) {
                at.push(name.clone());
                continue;
            }
            let Some(import) = module.imports.get(name) else { break };
            let whole = [import, &rest[index + 1..]].concat();
            return self.follow(&at, &whole, imports_left.checked_sub(1)?);
        }
        Some(at)
    }

    /// The module at which a path begins, and the rest of the path; `None` when the path begins in
    /// another crate.
    fn beginning<'p>(&self, from: &[String], path: &'p [String]) -> Option<(Vec<String>, &'p [String])> {
        match path[0].as_str() {
            "crate" => Some((Vec::new(), &path[1..])),
            "self" => Some((from.to_vec(), &path[1..])),
            "super" => {
                let ups = path.iter().take_while(|name| *name == "super").count();
                Some((from[..from.len().checked_sub(ups)?].to_vec(), &path[ups..]))
            }
            name => self.at(from).children.contains_key(name).then(|| (from.to_vec(), path)),
        }
    }
}
