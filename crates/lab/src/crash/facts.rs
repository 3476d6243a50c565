//! What a workload was promised, by position in the log of its writes, and whether a recovered tree
//! keeps it.
//!
//! A fact is a mark in the log. A fact about a path holds for every cut after it, until another
//! fact about the path replaces it. Before an operation, the workload widens a fact to everything
//! that the operation may leave. After an fsync it narrows the fact again. The names of the whole
//! tree are a fact of their own: a recovered tree must have the names that the tree had after the
//! last durable operation, or after a later one.

use std::collections::BTreeMap;
use std::sync::Arc;

use blockyard_device::WriteLog;
use blockyard_disk::inode::FileType;
use blockyard_disk::num::usize_from_u64;

use super::walk::{Content, Node, Tree, hash_of, names_hash, shown};

/// One promise.
#[derive(Clone, Debug)]
pub(super) enum Fact {
    /// What a path holds; `None`: nothing is promised.
    Path(String, Option<Want>),
    /// The names of the whole tree ([`names_hash`]) after an operation. Operations take effect
    /// completely and in order.
    Names(u64),
    /// The newest [`Fact::Names`] is durable.
    Durable,
}

/// What a path may hold.
#[derive(Clone, Debug)]
pub(super) enum Want {
    /// One of these values.
    OneOf(Vec<Value>),
    /// A regular file that holds a prefix of these bytes, of at least this length.
    Begins(Arc<[u8]>, usize),
    /// A regular file. Each byte is that of one of these versions at the same offset (0 beyond the
    /// version's end). The size is between those of the shortest and the longest version.
    Mixed(Vec<Arc<[u8]>>),
}

/// What a path holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// Nothing.
    Absent,
    /// Something.
    Present,
    /// A regular file whose bytes have this hash.
    Holds(u64),
}

impl Value {
    /// A regular file of these bytes.
    pub(super) fn holds(bytes: &[u8]) -> Self {
        Self::Holds(hash_of(&bytes))
    }

    fn fits(self, node: Option<&Node>) -> bool {
        match (self, node) {
            (Self::Absent, None) | (Self::Present, Some(_)) => true,
            (Self::Holds(hash), Some(Node { content: Content::Bytes(bytes), .. })) => {
                hash == hash_of(&bytes.as_slice())
            }
            _ => false,
        }
    }
}

/// The facts of a run in the order of the log, each with its position.
#[derive(Debug, Default)]
pub(super) struct Facts(Vec<(usize, Fact)>);

impl Facts {
    /// Collects the facts from the marks of a log, which are indexes into `facts`.
    pub(super) fn new(log: &WriteLog, facts: &[Fact]) -> Self {
        let found =
            log.marks().filter_map(|(at, mark)| Some((at, facts.get(mark.parse::<usize>().ok()?)?.clone())));
        Self(found.collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// How many facts precede a cut at event `point`.
    pub(super) fn known_at(&self, point: usize) -> usize {
        self.0.partition_point(|(at, _)| *at < point)
    }

    /// Checks that a recovered tree keeps the newest of the first `known` facts about each path,
    /// that its names are allowed, and that no file shows data of another. The error names what is
    /// broken.
    pub(super) fn check(&self, tree: &Tree, known: usize) -> Result<(), String> {
        let mut wants = BTreeMap::new();
        for (_, fact) in &self.0[..known] {
            if let Fact::Path(path, want) = fact {
                wants.insert(path.as_str(), want.as_ref());
            }
        }
        for (path, want) in wants {
            check_path(tree, path, want)?;
        }
        self.check_names(tree, known)?;
        tree.iter().try_for_each(|(path, node)| check_stamps(path, node))
    }

    /// Checks that the names are those after some operation, from the last durable one to the one
    /// in progress. Passes if no names were recorded.
    fn check_names(&self, tree: &Tree, known: usize) -> Result<(), String> {
        let names = |facts: &'_ [(usize, Fact)]| -> Vec<u64> {
            facts
                .iter()
                .filter_map(|(_, fact)| if let Fact::Names(hash) = fact { Some(*hash) } else { None })
                .collect()
        };
        let durable =
            self.0[..known].iter().rposition(|(_, fact)| matches!(fact, Fact::Durable)).unwrap_or(0);
        let mut allowed: Vec<u64> = names(&self.0[..durable]).last().copied().into_iter().collect();
        allowed.extend(names(&self.0[durable..known]));
        allowed.extend(names(&self.0[known..]).first());
        if allowed.is_empty() || allowed.contains(&names_hash(tree)) {
            return Ok(());
        }
        let listed: Vec<String> = tree.keys().map(|path| shown(path)).collect();
        Err(format!("the names fit none of the {} allowed states: {}", allowed.len(), listed.join(" ")))
    }
}

fn check_path(tree: &Tree, path: &str, want: Option<&Want>) -> Result<(), String> {
    let node = tree.get(path.as_bytes());
    let kept = match want {
        None => true,
        Some(Want::OneOf(values)) => values.iter().any(|value| value.fits(node)),
        Some(Want::Begins(bytes, least)) => match node {
            Some(Node { content: Content::Bytes(found), .. }) => {
                found.len() >= *least && bytes.starts_with(found)
            }
            _ => false,
        },
        Some(Want::Mixed(versions)) => match node {
            Some(Node { content: Content::Bytes(found), .. }) => is_mixed(found, versions),
            _ => false,
        },
    };
    if kept {
        return Ok(());
    }
    let wanted = match want {
        Some(Want::Begins(bytes, least)) => {
            format!("{least} to {} bytes of those that were written", bytes.len())
        }
        Some(Want::Mixed(versions)) => {
            let sizes: Vec<usize> = versions.iter().map(|version| version.len()).collect();
            format!("a mixture of {} versions with sizes {sizes:?}", versions.len())
        }
        other => format!("{other:?}"),
    };
    Err(format!("/{path}: promised {wanted}; found {node:?}{}", node.map_or_else(String::new, describe)))
}

fn is_mixed(found: &[u8], versions: &[Arc<[u8]>]) -> bool {
    let sizes = versions.iter().map(|version| version.len());
    let (least, most) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
    let fits = |(at, byte): (usize, &u8)| {
        versions.iter().any(|version| version.get(at).copied().unwrap_or(0) == *byte)
    };
    (least..=most).contains(&found.len()) && found.iter().enumerate().all(fits)
}

/// The number of bytes of a file, and how many of them are 0; empty for anything else.
fn describe(node: &Node) -> String {
    let Content::Bytes(bytes) = &node.content else { return String::new() };
    let zeroes = bytes.iter().filter(|byte| **byte == 0).count();
    format!(" ({} bytes, {zeroes} of them 0)", bytes.len())
}

/// The owner in the stamps that fill the device before mkfs. Space that is free when a workload
/// begins still holds these stamps. A file that shows one was given space with old content.
pub(super) const POISON: u16 = 0xFFFF;

/// `len` bytes of the content of file `owner`, from `offset` on. `len` and `offset` are multiples
/// of 8. Each 8-byte word encodes the owner, the version and the word's own index in the file.
pub(super) fn stamps(owner: u16, version: u16, offset: u64, len: u64) -> Vec<u8> {
    assert!(offset.is_multiple_of(8) && len.is_multiple_of(8), "stamps are words");
    let mut bytes = Vec::with_capacity(usize_from_u64(len));
    for word in offset / 8..(offset + len) / 8 {
        let stamp = u64::from(owner) << 48 | u64::from(version) << 32 | word & 0xFFFF_FFFF;
        bytes.extend(stamp.to_le_bytes());
    }
    bytes
}

/// Checks that a file holds only its own stamps and zeroes. The file's user id must be the owner in
/// the stamps. Root's files hold no stamps and are not checked.
fn check_stamps(path: &[u8], node: &Node) -> Result<(), String> {
    let is_regular = FileType::from_mode(node.mode) == Some(FileType::Regular);
    let Content::Bytes(bytes) = &node.content else { return Ok(()) };
    if !is_regular || node.uid == 0 {
        return Ok(());
    }
    for (index, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        if word != 0 && word >> 48 != u64::from(node.uid) {
            return Err(format!(
                "{}: byte {} was written by file {} (this is file {})",
                shown(path),
                index * 8,
                word >> 48,
                node.uid
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn file(uid: u32, bytes: &[u8]) -> Node {
        Node {
            inode: 12,
            mode: 0o100_644,
            links: 1,
            uid,
            gid: 0,
            size: 0,
            sectors: 0,
            device: (0, 0),
            modified: (0, 0),
            changed: (0, 0),
            created: None,
            content: Content::Bytes(bytes.to_vec()),
            xattrs: BTreeMap::new(),
        }
    }

    fn facts(list: Vec<Fact>) -> Facts {
        Facts(list.into_iter().enumerate().map(|(at, fact)| (at * 10, fact)).collect())
    }

    #[test]
    fn a_later_fact_takes_the_place_of_an_earlier_one() {
        let one = |value| Fact::Path("a".into(), Some(Want::OneOf(vec![value])));
        let facts = facts(vec![one(Value::Absent), one(Value::holds(b"x")), Fact::Path("a".into(), None)]);
        let tree = Tree::from([(b"a".to_vec(), file(0, b"x"))]);
        assert_eq!((facts.known_at(0), facts.known_at(1), facts.known_at(11)), (0, 1, 2));
        assert!(facts.check(&tree, 0).is_ok());
        assert!(facts.check(&tree, 1).is_err());
        assert!(facts.check(&tree, 2).is_ok() && facts.check(&tree, 3).is_ok());
        assert!(facts.check(&Tree::new(), 2).is_err());
    }

    #[test]
    fn beginnings_have_a_least_length() {
        let begins = facts(vec![Fact::Path("a".into(), Some(Want::Begins((*b"abcdef").into(), 2)))]);
        for (bytes, fits) in
            [(&b"abc"[..], true), (b"ab", true), (b"a", false), (b"ax", false), (b"abcdefg", false)]
        {
            let tree = Tree::from([(b"a".to_vec(), file(0, bytes))]);
            assert_eq!(begins.check(&tree, 1).is_ok(), fits, "{bytes:?}");
        }
    }

    #[test]
    fn mixtures_have_each_byte_from_a_version() {
        let versions = [&b"abcd"[..], b"xy"].map(Arc::from).to_vec();
        let mixed = facts(vec![Fact::Path("a".into(), Some(Want::Mixed(versions)))]);
        for (bytes, fits) in [
            (&b"abcd"[..], true),
            (b"ay\0d", true),
            (b"xy", true),
            (b"x", false),
            (b"abcde", false),
            (b"cb", false),
        ] {
            let tree = Tree::from([(b"a".to_vec(), file(0, bytes))]);
            assert_eq!(mixed.check(&tree, 1).is_ok(), fits, "{bytes:?}");
        }
    }

    #[test]
    fn names_go_from_operation_to_operation() {
        let trees: Vec<Tree> = ["a", "b", "c", "d"]
            .iter()
            .map(|name| Tree::from([(name.as_bytes().to_vec(), file(0, b""))]))
            .collect();
        let names = |at: usize| Fact::Names(names_hash(&trees[at]));
        let facts = facts(vec![names(0), names(1), Fact::Durable, names(2), names(3)]);
        let fits =
            |known| -> Vec<bool> { trees.iter().map(|tree| facts.check(tree, known).is_ok()).collect() };
        assert_eq!(fits(1), [true, true, false, false], "the second operation may be under way");
        assert_eq!(fits(3), [false, true, true, false]);
        assert_eq!(fits(5), [false, true, true, true]);
    }

    #[test]
    fn stamps_of_others_are_noticed() {
        let facts = facts(Vec::new());
        let check = |uid, bytes: &[u8]| facts.check(&Tree::from([(b"a".to_vec(), file(uid, bytes))]), 0);
        assert!(check(7, &stamps(7, 3, 16, 64)).is_ok());
        assert!(check(7, &[0; 32]).is_ok());
        assert!(check(8, &stamps(7, 3, 16, 64)).is_err());
        assert!(check(0, &stamps(POISON, 0, 0, 64)).is_ok(), "root's files are not stamped");
    }
}
