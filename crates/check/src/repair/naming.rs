//! The paths of the inodes and names that actions are about.

use std::collections::{BTreeMap, BTreeSet};

use blockyard_disk::InodeNr;

use super::log::{Cost, Log, OldName};
use crate::Report;
use crate::paths::Paths;

/// The most removed names that a path leads through.
const DEPTH_MAX: usize = 128;
/// The most bytes of all paths together.
const BYTES_MAX: usize = 64 << 20;

/// The inodes whose paths after the repair may be needed: the inodes of actions that cost
/// something, the directories that lost the names of these inodes, and so on upwards.
pub(super) fn wanted(log: &Log) -> BTreeSet<InodeNr> {
    let costly = log.actions.iter().filter(|action| action.cost > Cost::Nothing);
    let mut wanted = BTreeSet::new();
    for mut at in costly.filter_map(|action| action.site.inode) {
        // Terminates: no inode is inserted twice.
        while wanted.insert(at) {
            match log.remembered(at.raw()).and_then(|name| name.directory) {
                Some(directory) => at = directory,
                None => break,
            }
        }
    }
    wanted
}

/// Gives actions their paths: from the findings before the repair, from the names that directories
/// lost, or as they are `after` the repair.
pub(super) fn name(log: &mut Log, before: &Report, after: &Paths) {
    let found = before.findings.iter().filter_map(|finding| {
        let inode = finding.site.inode?;
        Some((inode, finding.path.as_deref()?))
    });
    let known = Known { before: found.collect(), lost: |inode: InodeNr| log.remembered(inode.raw()), after };
    let mut room = BYTES_MAX;
    let path_of = |action: &super::Action| {
        let inode = action.site.inode.filter(|_| room > 0)?;
        let path = match &action.name {
            Some(name) => joined(&known.directory(inode, &mut BTreeSet::new()), name),
            None => known.path(inode, &mut BTreeSet::new())?,
        };
        room = room.saturating_sub(path.len());
        Some(path)
    };
    let paths: Vec<_> = log.actions.iter().map(path_of).collect();
    for (action, path) in log.actions.iter_mut().zip(paths) {
        action.path = path;
    }
}

/// The sources of paths: the paths before the repair, the names that directories lost, and the
/// paths after the repair.
struct Known<'a, L> {
    before: BTreeMap<InodeNr, &'a [u8]>,
    /// The name of an inode that a directory lost in the repair.
    lost: L,
    after: &'a Paths,
}

impl<'a, L: Fn(InodeNr) -> Option<&'a OldName>> Known<'a, L> {
    /// The path of an inode. `met` are the inodes that the path already leads through, so that a
    /// loop of names ends.
    fn path(&self, inode: InodeNr, met: &mut BTreeSet<InodeNr>) -> Option<Vec<u8>> {
        if let Some(path) = self.before.get(&inode) {
            return Some(path.to_vec());
        }
        let lost = (self.lost)(inode).and_then(|name| Some((name.directory?, name)));
        match lost.filter(|_| met.len() < DEPTH_MAX && met.insert(inode)) {
            Some((directory, name)) => Some(joined(&self.directory(directory, met), &name.bytes)),
            None => self.after.get(&inode).cloned(),
        }
    }

    fn directory(&self, inode: InodeNr, met: &mut BTreeSet<InodeNr>) -> Vec<u8> {
        self.path(inode, met).unwrap_or_else(|| format!("<{inode}>").into_bytes())
    }
}

/// The path of a name in a directory.
fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    debug_assert!(!directory.is_empty(), "a directory without a path");
    let above = if directory == b"/" { b"" } else { directory };
    [above, b"/", name].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_through_lost_names_to_what_is_known() {
        let number = InodeNr::new;
        let lost = |directory, name: &str| OldName { directory, bytes: name.as_bytes().to_vec() };
        let names = BTreeMap::from([
            (number(13), lost(Some(number(12)), "b")),
            (number(14), lost(Some(number(13)), "c")),
            (number(20), lost(Some(number(99)), "d")),
            (number(21), lost(None, "e")),
            (number(30), lost(Some(number(31)), "f")),
            (number(31), lost(Some(number(30)), "g")),
        ]);
        let after = Paths::from([
            (number(14), b"/lost+found/#14.c".to_vec()),
            (number(21), b"/lost+found/#21.e".to_vec()),
            (InodeNr::ROOT, b"/".to_vec()),
        ]);
        let before = BTreeMap::from([(number(12), &b"/a"[..])]);
        let known = Known { before, lost: |inode| names.get(&inode), after: &after };
        let path = |inode| {
            known
                .path(number(inode), &mut BTreeSet::new())
                .map(|path| String::from_utf8_lossy(&path).into_owned())
        };
        assert_eq!(path(14).as_deref(), Some("/a/b/c"));
        assert_eq!(path(20).as_deref(), Some("<99>/d"));
        assert_eq!(path(21).as_deref(), Some("/lost+found/#21.e"), "its directory is unknown");
        assert_eq!(path(22), None);
        assert_eq!(path(30).as_deref(), Some("<30>/g/f"), "a loop ends");
        assert_eq!(joined(b"/", b"x"), b"/x");
    }
}
