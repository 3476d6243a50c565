//! The names of inodes, as far as the kernel was told of them.
//!
//! The two maps of [`Names`] agree: `inodes` maps a name to an inode exactly if `names` lists that
//! name for the inode.

use std::collections::HashMap;

/// The kernel's number for the root directory.
const ROOT: u64 = 1;

/// The number of a directory, and a name in it.
pub(super) type Name = (u64, Vec<u8>);

/// All known names.
#[derive(Default)]
pub(super) struct Names {
    /// An inode's names, the most recent one last.
    names: HashMap<u64, Vec<Name>>,
    inodes: HashMap<Name, u64>,
}

impl Names {
    /// Adds a name of an inode.
    pub(super) fn add(&mut self, inode: u64, name: Name) {
        if inode == ROOT {
            return;
        }
        match self.inodes.insert(name.clone(), inode) {
            Some(before) if before == inode => return,
            Some(before) => self.strike(before, &name),
            None => {}
        }
        self.names.entry(inode).or_default().push(name);
    }

    /// Removes a name.
    pub(super) fn remove(&mut self, name: &Name) {
        if let Some(inode) = self.inodes.remove(name) {
            self.strike(inode, name);
        }
    }

    /// Renames `from` to `to`, replacing `to` if it exists. If both are names of one inode, both
    /// stay, as in rename(2). If `from` is not known, only removes `to`.
    pub(super) fn rename(&mut self, from: &Name, to: Name) {
        let Some(inode) = self.inodes.get(from).copied() else {
            self.remove(&to);
            return;
        };
        if self.inodes.get(&to) != Some(&inode) {
            self.remove(from);
            self.add(inode, to);
        }
    }

    /// Exchanges two names.
    pub(super) fn exchange(&mut self, one: Name, other: Name) {
        let inodes = (self.inodes.get(&one).copied(), self.inodes.get(&other).copied());
        self.remove(&one);
        self.remove(&other);
        if let Some(inode) = inodes.0 {
            self.add(inode, other);
        }
        if let Some(inode) = inodes.1 {
            self.add(inode, one);
        }
    }

    /// Removes the names of an inode that the kernel has forgotten.
    pub(super) fn forget(&mut self, inode: u64) {
        for name in self.names.remove(&inode).unwrap_or_default() {
            self.inodes.remove(&name);
        }
    }

    fn strike(&mut self, inode: u64, name: &Name) {
        let Some(names) = self.names.get_mut(&inode) else { return };
        names.retain(|known| known != name);
        if names.is_empty() {
            self.names.remove(&inode);
        }
    }

    /// The path of an inode, if one is known.
    pub(super) fn path(&self, inode: u64) -> Option<String> {
        let (mut names, mut at) = (Vec::new(), inode);
        while at != ROOT {
            let (parent, name) = self.names.get(&at)?.last()?;
            names.push(String::from_utf8_lossy(name));
            // This bound ends the loop if a bug here puts a directory inside itself.
            if names.len() > 4096 {
                return None;
            }
            at = *parent;
        }
        let path = names.iter().rev().fold(String::new(), |path, name| path + "/" + name);
        Some(if path.is_empty() { "/".to_owned() } else { path })
    }

    /// The path of a name, if a path of its directory is known.
    pub(super) fn join(&self, (parent, name): &Name) -> Option<String> {
        let parent = self.path(*parent)?;
        let slash = if parent == "/" { "" } else { "/" };
        Some(format!("{parent}{slash}{}", String::from_utf8_lossy(name)))
    }

    /// The number of known names.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.inodes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::{Name, Names};

    fn name(parent: u64, text: &str) -> Name {
        (parent, text.as_bytes().to_vec())
    }

    #[test]
    fn a_file_of_two_names_keeps_the_one_that_is_left() {
        let mut names = Names::default();
        names.add(12, name(1, "a"));
        names.add(12, name(1, "b"));
        names.remove(&name(1, "b"));
        assert_eq!(names.path(12).as_deref(), Some("/a"));
        names.rename(&name(1, "a"), name(1, "c"));
        assert_eq!(names.path(12).as_deref(), Some("/c"));
        names.remove(&name(1, "c"));
        assert_eq!((names.path(12), names.len()), (None, 0));
    }

    #[test]
    fn what_is_replaced_has_no_name() {
        let mut names = Names::default();
        names.add(12, name(1, "a"));
        names.add(13, name(1, "b"));
        names.rename(&name(1, "a"), name(1, "b"));
        assert_eq!((names.path(12).as_deref(), names.path(13)), (Some("/b"), None));
        names.forget(12);
        assert_eq!(names.len(), 0);
    }

    #[test]
    fn two_names_of_one_inode_stay_when_one_is_moved_over_the_other() {
        let mut names = Names::default();
        names.add(12, name(1, "a"));
        names.add(12, name(1, "b"));
        names.rename(&name(1, "a"), name(1, "b"));
        assert_eq!(names.len(), 2);
    }

    #[test]
    fn exchanged_names_lead_to_each_other() {
        let mut names = Names::default();
        names.add(12, name(1, "d"));
        names.add(13, name(12, "f"));
        names.add(14, name(1, "g"));
        names.exchange(name(12, "f"), name(1, "g"));
        assert_eq!(names.path(14).as_deref(), Some("/d/f"));
        assert_eq!(names.path(13).as_deref(), Some("/g"));
    }
}
