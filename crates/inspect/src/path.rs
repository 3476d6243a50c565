//! Paths: components separated by `/`, symbolic links followed inside the image.
//!
//! A path begins at the image's root whether it begins with `/` or not. The walk takes components
//! from a queue. At a symbolic link, it puts the components of the link's target at the front of
//! the queue. A path may pass at most [`SYMLINKS_MAX`] links. The walk works on any [`Tree`]. A
//! reader and a file system that is open for writing both use it, so a path means the same to both.

use std::borrow::Cow;
use std::collections::VecDeque;

use blockyard_disk::FileType;

/// Symbolic links that one path may pass, as on Linux.
pub const SYMLINKS_MAX: usize = 40;

/// A tree in which paths can be resolved: it looks up names and reads links.
pub trait Tree {
    /// A file, directory or link that was found.
    type Node;
    /// Why something was not found.
    type Error;

    /// The root directory.
    ///
    /// # Errors
    /// When it cannot be read.
    fn root(&self) -> Result<Self::Node, Self::Error>;

    /// What a name in `directory` refers to.
    ///
    /// # Errors
    /// When there is no such name, `directory` is not a directory, or something cannot be read.
    fn look_up(&self, directory: &Self::Node, name: &[u8]) -> Result<Self::Node, Self::Error>;

    /// The type of a node.
    ///
    /// # Errors
    /// When it cannot be read.
    fn kind(&self, node: &Self::Node) -> Result<FileType, Self::Error>;

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// When it cannot be read.
    fn read_link(&self, link: &Self::Node) -> Result<Vec<u8>, Self::Error>;

    /// The error of a path that passes more links than [`SYMLINKS_MAX`].
    fn too_many_symlinks(&self) -> Self::Error;

    /// The error of a path that needs a directory where there is none.
    fn not_directory(&self) -> Self::Error;

    /// Whether an error of [`Self::look_up`] only says that there is no such name.
    fn is_missing(&self, error: &Self::Error) -> bool;
}

/// Where a path leads, even if its last name does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located<N> {
    /// The directory of the last name; the root if that name is empty.
    pub directory: N,
    /// The last name, which may be that of a link's target; empty for the root, and for a path
    /// whose last link leads to `/` or `.`.
    pub name: Vec<u8>,
    /// What the name refers to, if it exists.
    pub node: Option<N>,
}

/// What happens to a symbolic link at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastLink {
    /// It is followed, like the links in the middle.
    Follow,
    /// It is not followed: the path names the link itself.
    Keep,
}

/// Resolves a path. A slash or `/.` at its end says that a directory is meant: then a link at the
/// end is followed whatever `last` says, and anything but a directory is an error.
///
/// # Errors
/// The errors of the tree.
pub fn resolve<T: Tree>(tree: &T, path: &[u8], last: LastLink) -> Result<T::Node, T::Error> {
    let means_directory = names_directory(path);
    let last = if means_directory { LastLink::Follow } else { last };
    let found = walk(tree, components(path), last)?;
    if means_directory && tree.kind(&found)? != FileType::Directory {
        return Err(tree.not_directory());
    }
    Ok(found)
}

/// As [`resolve`], but the last name need not exist, so that the caller can create it. If a link at
/// the end of the path is followed, the last name is that of the link's target.
///
/// # Errors
/// The errors of the tree, except for a missing last name.
pub fn locate<T: Tree>(tree: &T, path: &[u8], last: LastLink) -> Result<Located<T::Node>, T::Error> {
    let means_directory = names_directory(path);
    let last = if means_directory { LastLink::Follow } else { last };
    let found = descend(tree, components(path), last, T::is_missing)?;
    match &found.node {
        Some(node) if means_directory && tree.kind(node)? != FileType::Directory => Err(tree.not_directory()),
        _ => Ok(found),
    }
}

/// Resolves a path that is given as its components, from the root on.
///
/// # Errors
/// The errors of the tree.
pub fn walk<'p, T: Tree>(
    tree: &T,
    names: impl Iterator<Item = &'p [u8]>,
    last: LastLink,
) -> Result<T::Node, T::Error> {
    let found = descend(tree, names, last, |_, _| false)?;
    Ok(found.node.expect("a name that is missing is an error here"))
}

/// Does the walk. If the look-up of the last name fails with an error that `may_miss` accepts, the
/// result has no node.
fn descend<'p, T: Tree>(
    tree: &T,
    names: impl Iterator<Item = &'p [u8]>,
    last: LastLink,
    may_miss: impl Fn(&T, &T::Error) -> bool,
) -> Result<Located<T::Node>, T::Error> {
    let mut left: VecDeque<Cow<'p, [u8]>> = names.map(Cow::Borrowed).collect();
    let mut at = tree.root()?;
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        let next = match tree.look_up(&at, &name) {
            Err(error) if left.is_empty() && may_miss(tree, &error) => {
                return Ok(Located { directory: at, name: name.into_owned(), node: None });
            }
            found => found?,
        };
        let is_kept = left.is_empty() && last == LastLink::Keep;
        if is_kept || tree.kind(&next)? != FileType::Symlink {
            if left.is_empty() {
                return Ok(Located { directory: at, name: name.into_owned(), node: Some(next) });
            }
            at = next;
            continue;
        }
        links += 1;
        if links > SYMLINKS_MAX {
            return Err(tree.too_many_symlinks());
        }
        let target = tree.read_link(&next)?;
        if target.first() == Some(&b'/') {
            at = tree.root()?;
        }
        for component in components(&target).rev() {
            left.push_front(Cow::Owned(component.to_vec()));
        }
    }
    Ok(Located { directory: tree.root()?, name: Vec::new(), node: Some(at) })
}

/// The components of a path, without empty ones and `.`.
pub fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

/// Whether a path ends in a slash or in `/.`, so that it can only mean a directory.
#[must_use]
pub fn names_directory(path: &[u8]) -> bool {
    path.ends_with(b"/") || path.ends_with(b"/.")
}

/// The last name of a path; `None` for the root.
#[must_use]
pub fn last_name(path: &[u8]) -> Option<&[u8]> {
    components(path).next_back()
}

/// Whether the last component of a path is `.`. Such a path names a directory from inside, so the
/// directory cannot be moved or removed by this path.
#[must_use]
pub fn ends_in_dot(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').rfind(|part| !part.is_empty()) == Some(b".")
}

/// A path without slashes at its end; empty for the root.
#[must_use]
pub fn trimmed(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    &path[..end]
}

/// `directory/name`, with one slash between them.
#[must_use]
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    [trimmed(directory), b"/", name].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn paths_are_taken_apart_and_joined() {
        assert_eq!(components(b"//a/./b//").collect::<Vec<_>>(), [b"a", b"b"]);
        assert_eq!(join(b"/", b"a"), b"/a");
        assert_eq!(join(b"/x//", b"a"), b"/x/a");
        assert_eq!((trimmed(b"/"), trimmed(b"/a//")), (&b""[..], &b"/a"[..]));
        assert_eq!(last_name(b"/a/b/"), Some(&b"b"[..]));
        assert_eq!(last_name(b"/"), None);
        for (path, ends) in
            [("/a/.", true), ("a/.//", true), (".", true), ("/a/.b", false), ("/./a", false), ("/", false)]
        {
            assert_eq!(ends_in_dot(path.as_bytes()), ends, "{path}");
        }
    }

    /// A tree whose nodes are full paths. The map holds the links, with their targets, and the
    /// files. Directories are the root, `""`, and every path that has something below it.
    struct Paths(BTreeMap<&'static str, Option<&'static str>>);

    impl Tree for Paths {
        type Node = String;
        type Error = &'static str;

        fn root(&self) -> Result<String, &'static str> {
            Ok(String::new())
        }

        fn look_up(&self, directory: &String, name: &[u8]) -> Result<String, &'static str> {
            if self.kind(directory)? != FileType::Directory {
                return Err("not a directory");
            }
            let name = std::str::from_utf8(name).unwrap();
            if name == ".." {
                return Ok(directory.rsplit_once('/').map_or(String::new(), |(parent, _)| parent.to_owned()));
            }
            let path = format!("{directory}/{name}");
            let is_there =
                self.0.keys().any(|known| *known == path || known.starts_with(&format!("{path}/")));
            is_there.then_some(path).ok_or("missing")
        }

        fn kind(&self, node: &String) -> Result<FileType, &'static str> {
            Ok(match self.0.get(node.as_str()) {
                Some(Some(_)) => FileType::Symlink,
                Some(None) => FileType::Regular,
                None => FileType::Directory,
            })
        }

        fn read_link(&self, link: &String) -> Result<Vec<u8>, &'static str> {
            Ok(self.0[link.as_str()].unwrap().into())
        }

        fn too_many_symlinks(&self) -> &'static str {
            "too many links"
        }

        fn not_directory(&self) -> &'static str {
            "not a directory"
        }

        fn is_missing(&self, error: &&'static str) -> bool {
            *error == "missing"
        }
    }

    #[test]
    fn links_are_followed_inside_the_tree() {
        let tree = Paths(BTreeMap::from([
            ("/a/b/file", None),
            ("/a/up", Some("../a/b")),
            ("/absolute", Some("/a/up/file")),
            ("/loop", Some("loop")),
            ("/dots", Some("a/./b/")),
        ]));
        let follow = |path: &str| resolve(&tree, path.as_bytes(), LastLink::Follow);
        let keep = |path: &str| resolve(&tree, path.as_bytes(), LastLink::Keep);
        for (path, found) in [
            ("", ""),
            ("/", ""),
            ("a//b/./file", "/a/b/file"),
            ("/a/up/file", "/a/b/file"),
            ("/absolute", "/a/b/file"),
            ("/dots/../up", "/a/b"),
        ] {
            assert_eq!(follow(path).as_deref(), Ok(found), "{path}");
        }
        assert_eq!(keep("/a/up").as_deref(), Ok("/a/up"));
        assert_eq!(keep("/a/up/").as_deref(), Ok("/a/b"), "a slash means the directory");
        assert_eq!(keep("/loop").as_deref(), Ok("/loop"));
        for (path, error) in [
            ("/loop", "too many links"),
            ("/absolute/", "not a directory"),
            ("/a/b/file/.", "not a directory"),
            ("/a/b/file/x", "not a directory"),
            ("/a/c", "missing"),
        ] {
            assert_eq!(follow(path), Err(error), "{path}");
        }
    }

    /// [`locate`] finds the directory in which a missing name can be created. For a link to a
    /// missing name, this is the directory of that name.
    #[test]
    fn places_are_found_where_nothing_is_yet() {
        let tree = Paths(BTreeMap::from([
            ("/a/b/file", None),
            ("/a/away", Some("b/new")),
            ("/lost", Some("none/new")),
            ("/top", Some("/")),
        ]));
        let place = |path: &str, last| {
            let found = locate(&tree, path.as_bytes(), last)?;
            Ok((found.directory, String::from_utf8(found.name).unwrap(), found.node))
        };
        let at = |directory: &str, name: &str, node: Option<&str>| {
            Ok::<_, &str>((directory.to_owned(), name.to_owned(), node.map(str::to_owned)))
        };
        assert_eq!(place("/a/b/new", LastLink::Follow), at("/a/b", "new", None));
        assert_eq!(place("/a/b/file", LastLink::Follow), at("/a/b", "file", Some("/a/b/file")));
        assert_eq!(place("/a/away", LastLink::Follow), at("/a/b", "new", None));
        assert_eq!(place("/a/away", LastLink::Keep), at("/a", "away", Some("/a/away")));
        assert_eq!(place("/", LastLink::Keep), at("", "", Some("")));
        assert_eq!(place("/top", LastLink::Follow), at("", "", Some("")));
        assert_eq!(place("/a/new/", LastLink::Keep), at("/a", "new", None));
        assert_eq!(place("/lost", LastLink::Follow), Err("missing"));
        assert_eq!(place("/none/new", LastLink::Follow), Err("missing"));
        assert_eq!(place("/a/b/file/", LastLink::Follow), Err("not a directory"));
    }

    /// As on Linux, a path may pass forty links, and no more.
    #[test]
    fn forty_links_may_be_passed() {
        let names: Vec<&'static str> =
            (0..=42).map(|n| &*Box::leak(format!("/{n}").into_boxed_str())).collect();
        let mut links: BTreeMap<&str, Option<&str>> =
            names.windows(2).map(|pair| (pair[0], Some(pair[1]))).collect();
        links.insert(names[42], None);
        let tree = Paths(links);
        assert_eq!(resolve(&tree, b"/2", LastLink::Follow).as_deref(), Ok("/42"));
        assert_eq!(resolve(&tree, b"/1", LastLink::Follow), Err("too many links"));
    }
}
