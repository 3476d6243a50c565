//! Cycles among the modules of one folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::modules::Module;

/// How many places of one arrow are printed.
const PLACES_SHOWN: usize = 4;

/// Where an arrow occurs: files and lines.
type Places = BTreeSet<(PathBuf, usize)>;
/// Arrows between the modules of one folder.
type Arrows = BTreeMap<(String, String), Places>;

/// Modules of one folder that use each other in a cycle.
#[derive(Debug)]
pub(crate) struct Ring {
    /// The path of the module whose children form the cycle; empty for the crate's root.
    folder: Vec<String>,
    pub(crate) modules: Vec<String>,
    arrows: Arrows,
}

/// The cycles of a crate.
pub(crate) fn rings(root: &Module) -> Vec<Ring> {
    let folders = arrows(root).into_iter();
    folders.flat_map(|(folder, arrows)| rings_of(&folder, &arrows)).collect()
}

/// All arrows, by the folder in which their two ends belong to different modules.
fn arrows(root: &Module) -> BTreeMap<Vec<String>, Arrows> {
    let mut arrows: BTreeMap<Vec<String>, Arrows> = BTreeMap::new();
    for (from, module) in root.all() {
        for named in &module.named {
            let Some(to) = root.definition(&from, &named.path) else { continue };
            let common = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
            let (Some(one), Some(other)) = (from.get(common), to.get(common)) else { continue };
            let folder = arrows.entry(from[..common].to_vec()).or_default();
            let places = folder.entry((one.clone(), other.clone())).or_default();
            places.insert((module.file.clone(), named.line));
        }
    }
    arrows
}

/// The cycles of one folder: the largest sets of modules that all reach each other.
fn rings_of(folder: &[String], arrows: &Arrows) -> Vec<Ring> {
    let names: BTreeSet<&String> = arrows.keys().flat_map(|(from, to)| [from, to]).collect();
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        names.iter().map(|&name| (name, reached_from(name, arrows))).collect();
    let mut rings: Vec<Ring> = Vec::new();
    for &name in &names {
        let is_known = rings.iter().any(|ring| ring.modules.contains(name));
        if is_known || !reached[name].contains(name) {
            continue;
        }
        let ring =
            names.iter().filter(|&&other| reached[name].contains(other) && reached[other].contains(name));
        let modules: Vec<String> = ring.map(|&name| name.clone()).collect();
        let inside = |(from, to): &(String, String)| modules.contains(from) && modules.contains(to);
        let arrows = arrows
            .iter()
            .filter(|(arrow, _)| inside(arrow))
            .map(|(arrow, places)| (arrow.clone(), places.clone()));
        rings.push(Ring { folder: folder.to_vec(), arrows: arrows.collect(), modules });
    }
    rings
}

fn reached_from<'a>(name: &'a String, arrows: &'a Arrows) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut left = vec![name];
    while let Some(at) = left.pop() {
        for (_, to) in arrows.keys().filter(|(from, _)| from == at) {
            if reached.insert(to) {
                left.push(to);
            }
        }
    }
    reached
}

impl Ring {
    /// The cycle, and each of its arrows with the places where it occurs.
    pub(crate) fn text(&self, workspace: &Path) -> String {
        let folder = if self.folder.is_empty() { "root".to_owned() } else { self.folder.join("::") };
        let mut text = format!("{} in {folder}\n", self.modules.join(", "));
        for ((from, to), places) in &self.arrows {
            let _ = writeln!(text, "    {from} -> {to}");
            for (file, line) in places.iter().take(PLACES_SHOWN) {
                let file = file.strip_prefix(workspace).unwrap_or(file);
                let _ = writeln!(text, "        {}:{line}", file.display());
            }
            if places.len() > PLACES_SHOWN {
                let _ = writeln!(text, "        and {} more", places.len() - PLACES_SHOWN);
            }
        }
        text
    }
}
