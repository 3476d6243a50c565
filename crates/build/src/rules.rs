//! Changes to a tree before layout: excluded names, owners, permissions, times.

use crate::acl;
use crate::tree::{NO_OWNER, Node, Tree, below};
use blockyard_disk::Timestamp;
use blockyard_disk::xattr::AttributeList;
use glob::{MatchOptions, Pattern};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// A pattern for names, as in tar, with `*`, `?` and `[...]`. These wildcards also match a slash. A
/// pattern matches a path if it matches the whole path, or all that follows one of the path's
/// slashes. A pattern with a leading slash matches only whole paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(Pattern);

/// How wildcards match.
const HOW: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: false,
    require_literal_leading_dot: false,
};

impl Glob {
    /// Whether the pattern matches a path. Paths have no leading slash; only the root is `/`.
    #[must_use]
    pub fn fits(&self, path: &[u8]) -> bool {
        let path = String::from_utf8_lossy(path);
        if let Some(whole) = self.0.as_str().strip_prefix('/') {
            // Without its slash, a valid pattern is still valid.
            return Pattern::new(whole).is_ok_and(|pattern| pattern.matches_with(&path, HOW));
        }
        let after_slashes = path.match_indices('/').map(|(at, _)| &path[at + 1..]);
        std::iter::once(&*path).chain(after_slashes).any(|end| self.0.matches_with(end, HOW))
    }

    /// Whether a match must begin at the root.
    fn is_anchored(&self) -> bool {
        self.0.as_str().starts_with('/')
    }

    /// Whether the pattern may match something below a directory. It cannot if it begins with a
    /// slash and its text before the first wildcard leads elsewhere.
    fn reaches_below(&self, directory: &[u8]) -> bool {
        let Some(whole) = self.0.as_str().strip_prefix('/') else { return true };
        let start = whole.find(['*', '?', '[']).map_or(whole, |at| &whole[..at]);
        let place = format!("{}/", String::from_utf8_lossy(directory));
        start.starts_with(&place) || (start.len() < whole.len() && place.starts_with(start))
    }
}

impl FromStr for Glob {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let trimmed = text.strip_prefix("./").unwrap_or(text).trim_end_matches('/');
        Pattern::new(trimmed).map(Self).map_err(|error| format!("{text}: {error}"))
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A mapping of owners: `FROM:TO` or `FROM:TO:COUNT`. It maps the id FROM to the id TO, and with
/// COUNT also the ids after FROM to those after TO, COUNT ids in all. The prefix `u:` or `g:`
/// limits it to users or groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerMap {
    users: bool,
    groups: bool,
    from: Range<u64>,
    to: u32,
}

impl OwnerMap {
    fn map(&self, id: u32) -> Option<u32> {
        let inside = u64::from(id).checked_sub(self.from.start)?;
        let moved = u64::from(self.to).checked_add(inside)?;
        if self.from.contains(&u64::from(id)) { u32::try_from(moved).ok() } else { None }
    }
}

impl FromStr for OwnerMap {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed =
            || format!("{text}: an owner map is FROM:TO or FROM:TO:COUNT, after an optional u: or g:");
        let (users, groups, numbers) = match text.split_once(':') {
            Some(("u", rest)) => (true, false, rest),
            Some(("g", rest)) => (false, true, rest),
            _ => (true, true, text),
        };
        let numbers = numbers.split(':').map(|number| number.parse().map_err(|_| malformed()));
        let numbers = numbers.collect::<Result<Vec<u32>, String>>()?;
        let (from, to, count) = match numbers[..] {
            [from, to] => (from, to, 1),
            [from, to, count] if count > 0 => (from, to, count),
            _ => return Err(malformed()),
        };
        // The largest number is no id: it means that there is no owner.
        if to.checked_add(count - 1).is_none_or(|last| last == NO_OWNER) {
            return Err(format!("{text}: the range of new ids ends beyond the largest, {}", NO_OWNER - 1));
        }
        Ok(Self { users, groups, from: u64::from(from)..u64::from(from) + u64::from(count), to })
    }
}

/// Changes to a tree; the default changes nothing. The order is: names are left out, owners are
/// mapped, `squash` replaces all owners, then the rules with patterns apply. For each name, only
/// the last matching rule of `chown` applies, and only the last matching rule of `chmod`.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Names to leave out, with everything below them.
    pub exclude: Vec<Glob>,
    /// If not empty, only these names are kept, with everything below them and the directories that
    /// lead to them.
    pub include: Vec<Glob>,
    /// The first matching map wins. Maps also change the ids in access control lists.
    pub owners: Vec<OwnerMap>,
    /// User and group for everything.
    pub squash: Option<(u32, u32)>,
    /// The modification time for everything, and the access time with it.
    pub modified: Option<Timestamp>,
    /// Users and groups by pattern; `None` keeps the current one.
    pub chown: Vec<(Glob, Option<u32>, Option<u32>)>,
    /// Permissions by pattern; symbolic links keep theirs.
    pub chmod: Vec<(Glob, u16)>,
    /// Whether all extended attributes, access control lists included, are removed.
    pub removes_attributes: bool,
}

impl Rules {
    /// Rules with only those patterns of `exclude` that have no leading slash. Such patterns also
    /// suit a tree whose root is not the root of the image.
    #[must_use]
    pub fn anywhere(&self) -> Self {
        let exclude = self.exclude.iter().filter(|glob| !glob.is_anchored()).cloned().collect();
        Self { exclude, ..Self::default() }
    }

    pub(crate) fn changes_names(&self) -> bool {
        !self.exclude.is_empty() || !self.include.is_empty()
    }

    /// Whether a name is sure to be left out, with everything below it. Its type need not be
    /// known.
    pub(crate) fn skips(&self, path: &[u8]) -> bool {
        let may_be_kept = || {
            self.include.is_empty()
                || self.includes(path)
                || self.include.iter().any(|glob| glob.reaches_below(path))
        };
        self.excludes(path) || !may_be_kept()
    }

    fn excludes(&self, path: &[u8]) -> bool {
        self.exclude.iter().any(|glob| glob.fits(path))
    }

    /// Whether a pattern to include matches the path, or a directory above it.
    fn includes(&self, path: &[u8]) -> bool {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        ends.chain([path.len()]).any(|end| self.include.iter().any(|glob| glob.fits(&path[..end])))
    }

    fn user(&self, id: u32) -> u32 {
        self.owners.iter().filter(|map| map.users).find_map(|map| map.map(id)).unwrap_or(id)
    }

    fn group(&self, id: u32) -> u32 {
        self.owners.iter().filter(|map| map.groups).find_map(|map| map.map(id)).unwrap_or(id)
    }

    /// Applies the changes to access control lists; `mode` is the new mode if it changed.
    fn change_lists(&self, attributes: &mut AttributeList, mode: Option<u16>) {
        if !self.owners.is_empty() {
            acl::change_ids(attributes, |id| self.user(id), |id| self.group(id));
        }
        if let Some(mode) = mode {
            acl::change_mode(attributes, mode);
        }
    }

    /// Changes the owners, times and permissions of one name. `path` gives its path.
    fn change(&self, node: &mut Node, path: impl FnOnce() -> Vec<u8>) {
        node.uid = self.user(node.uid);
        node.gid = self.group(node.gid);
        if let Some((uid, gid)) = self.squash {
            (node.uid, node.gid) = (uid, gid);
        }
        if let Some(time) = self.modified {
            node.modified = time;
            node.accessed = time;
        }
        if self.chown.is_empty() && self.chmod.is_empty() {
            return;
        }
        let path = path();
        if let Some((_, uid, gid)) = self.chown.iter().rev().find(|(glob, ..)| glob.fits(&path)) {
            node.uid = uid.unwrap_or(node.uid);
            node.gid = gid.unwrap_or(node.gid);
        }
        let is_link = node.kind == blockyard_disk::inode::FileType::Symlink;
        if let Some((_, mode)) = self.chmod.iter().rev().find(|(glob, _)| glob.fits(&path) && !is_link) {
            node.permissions = *mode & 0o7777;
        }
    }
}

impl Tree {
    /// Applies rules to a tree. If different rules match the names of one file, the rules for its
    /// first name apply.
    pub fn apply(&mut self, rules: &Rules) {
        if rules.changes_names() {
            self.leave_out(rules);
        }
        if rules.removes_attributes {
            self.root_attributes = AttributeList::default();
            self.directories.iter_mut().for_each(|directory| directory.attributes.clear());
        }
        let before = self.root.permissions;
        rules.change(&mut self.root, || b"/".to_vec());
        let after = self.root.permissions;
        rules.change_lists(&mut self.root_attributes, (after != before).then_some(after));
        for number in 0..self.directories.len() {
            let place = self.directory_path(blockyard_disk::num::u32_from_usize(number));
            let directory = &mut self.directories[number];
            for at in 0..directory.nodes.len() {
                let text = directory.nodes[at].name;
                let name = directory.text(text).to_vec();
                let before = directory.nodes[at].permissions;
                rules.change(&mut directory.nodes[at], || below(&place, &name));
                let after = directory.nodes[at].permissions;
                if let Some(attributes) = directory.attributes_mut(blockyard_disk::num::u32_from_usize(at)) {
                    rules.change_lists(attributes, (after != before).then_some(after));
                }
            }
        }
    }

    fn leave_out(&mut self, rules: &Rules) {
        if rules.include.is_empty() {
            return self.retain(|path, _| !rules.excludes(path));
        }
        // At first every directory that is not excluded is kept. Afterwards a directory is removed
        // if it is not included and has no included name in it.
        self.retain(|path, is_directory| !rules.excludes(path) && (is_directory || rules.includes(path)));
        let wanted = self.directories_with(|path, _| rules.includes(path));
        self.retain(|path, is_directory| !is_directory || wanted.contains(path));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{Glob, OwnerMap};

    fn fits(pattern: &str, path: &str) -> bool {
        pattern.parse::<Glob>().unwrap().fits(path.as_bytes())
    }

    #[test]
    fn patterns_fit_as_those_of_tar() {
        for (pattern, path) in [
            ("*.o", "a.o"),
            ("*.o", "src/a.o"),
            ("src/*", "src/deep/er"),
            ("./src", "src"),
            ("deep/", "a/deep"),
            ("/a", "a"),
            ("[ab]?", "x/b1"),
        ] {
            assert!(fits(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in
            [("*.o", "a.object"), ("/a", "b/a"), ("rc", "src"), ("src", "src/a"), ("[ab]?", "c1")]
        {
            assert!(!fits(pattern, path), "{pattern} {path}");
        }
        assert!("[".parse::<Glob>().is_err());
    }

    #[test]
    fn anchored_patterns_reach_below_few_directories() {
        let reaches = |pattern: &str, directory: &str| {
            pattern.parse::<Glob>().unwrap().reaches_below(directory.as_bytes())
        };
        for (pattern, directory) in
            [("a", "b"), ("/a/b/c", "a"), ("/a/b/c", "a/b"), ("/a*/c", "ab"), ("/*c", "b"), ("/a/[bc]", "a")]
        {
            assert!(reaches(pattern, directory), "{pattern} {directory}");
        }
        for (pattern, directory) in
            [("/a", "a"), ("/a/b", "a/c"), ("/ab", "a"), ("/a/b", "ab"), ("/a/b*", "a/c"), ("/a/b", "a/b/c")]
        {
            assert!(!reaches(pattern, directory), "{pattern} {directory}");
        }
    }

    #[test]
    fn owners_are_mapped_by_ranges() {
        let map: OwnerMap = "1000:5000:10".parse().unwrap();
        assert_eq!([999, 1000, 1009, 1010].map(|id| map.map(id)), [None, Some(5000), Some(5009), None]);
        assert!(!"g:0:7".parse::<OwnerMap>().unwrap().users);
        assert_eq!("0:4294967294".parse::<OwnerMap>().unwrap().map(0), Some(4_294_967_294));
        // A file that has no owner can get one.
        assert_eq!("4294967295:0".parse::<OwnerMap>().unwrap().map(4_294_967_295), Some(0));
        for wrong in ["", "1", "a:b", "1:2:0", "x:1:2", "0:4294967296"] {
            assert!(wrong.parse::<OwnerMap>().unwrap_err().contains("FROM:TO"), "{wrong}");
        }
        for beyond in ["0:4294967295", "1:4294967295:2", "1:4294967294:2", "0:4294967290:100"] {
            assert!(beyond.parse::<OwnerMap>().unwrap_err().contains("beyond the largest"), "{beyond}");
        }
    }
}
