//! Several trees merged into one: later trees are laid over earlier ones.

use super::staging::{Staged, Staging};
use crate::content;
use crate::error::Result;
use crate::tree::{Node, NodeId, Origin, SourceInode, Tree, below};
use blockyard_disk::inode::FileType;
use blockyard_disk::num::u32_from_usize;
use std::collections::HashMap;
use std::path::Path;

impl Tree {
    /// Merges trees in order. Directories with the same path become one, with the attributes of the
    /// last one. Anything else is replaced by what comes later, even a symbolic link by a
    /// directory. No content is read.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused) for a tree of one file, which needs a path
    /// ([`Tree::merge_at`]), and for too many nested directories.
    pub fn merge(trees: Vec<Self>) -> Result<Self> {
        let added = trees.into_iter().map(|tree| Added { tree, at: Vec::new() });
        Self::merge_at(added.collect())
    }

    /// As [`Tree::merge`], with a path for each tree. On the way to this path, symbolic links of
    /// earlier trees are followed, and missing directories are made with mode 0755 and owner 0.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused) for a path that no image can hold or that leads
    /// below something that is not a directory, for an empty path of a tree of one file, and for
    /// too many nested directories.
    pub fn merge_at(added: Vec<Added>) -> Result<Self> {
        let (paths, trees): (Vec<Vec<u8>>, Vec<Self>) =
            added.into_iter().map(|added| (added.at, added.tree)).unzip();
        let mut staging: Option<Staging> = None;
        for (part, (tree, at)) in trees.iter().zip(&paths).enumerate() {
            let staging = match &mut staging {
                Some(staging) => {
                    staging.begin(&tree.top);
                    staging
                }
                None => staging.insert(Staging::new(&tree.top)),
            };
            Merging { trees: &trees, part, tree, at, staging, linked: HashMap::new() }.all()?;
        }
        let staging = staging.unwrap_or_else(|| Staging::new(Path::new("")));
        staging.into_tree(Origin::Trees(trees))
    }
}

/// A tree to merge over others.
#[derive(Debug)]
pub struct Added {
    /// The tree.
    pub tree: Tree,
    /// Where the tree's root goes in the merged tree: a path without a leading slash, empty for the
    /// merged tree's own root. For a tree of one file (as from [`Tree::read_file`]), the path of
    /// the file.
    pub at: Vec<u8>,
}

/// The state of merging one tree.
struct Merging<'a> {
    trees: &'a [Tree],
    /// The index of the tree.
    part: usize,
    tree: &'a Tree,
    at: &'a [u8],
    staging: &'a mut Staging,
    /// The first path of each file with hard links.
    linked: HashMap<SourceInode, Vec<u8>>,
}

impl Merging<'_> {
    fn all(mut self) -> Result<()> {
        let tree = self.tree;
        self.staging.leave_out_of(tree);
        if tree.has_root {
            let root = Staged {
                attributes: tree.root_attributes.clone(),
                flags: tree.root_flags,
                ..staged(&tree.root)
            };
            self.staging.enter(self.at, root)?;
        }
        for (number, directory) in (0..).zip(&tree.directories) {
            for child in 0..u32_from_usize(directory.nodes.len()) {
                self.add(NodeId { directory: number, child })?;
            }
        }
        Ok(())
    }

    fn add(&mut self, id: NodeId) -> Result<()> {
        let path = self.tree.path(id);
        let path = match (self.tree.has_root, self.at.is_empty()) {
            (false, _) => self.at.to_vec(),
            (true, true) => path,
            (true, false) => below(self.at, &path),
        };
        let directory = self.tree.directory(id.directory);
        let node = self.tree.node(id);
        if let Some(inode) = directory.linked(id.child) {
            if let Some(first) = self.linked.get(&inode) {
                return self.staging.link(&path, first);
            }
            self.linked.insert(inode, path.clone());
        }
        let mut what = staged(node);
        what.target = directory.text(node.target).to_vec();
        what.attributes = self.tree.attributes(Some(id)).cloned().unwrap_or_default();
        what.flags = self.tree.flags(Some(id));
        if node.kind == FileType::Regular {
            what.data = directory.data(id.child).map(<[_]>::to_vec);
            what.stored = content::number_of(self.trees, self.part, id);
        }
        self.staging.enter(&path, what)
    }
}

/// The properties of a node, without those that its directory records.
fn staged(node: &Node) -> Staged {
    let size = if node.kind == FileType::Symlink { 0 } else { node.size };
    Staged {
        kind: node.kind,
        permissions: node.permissions,
        uid: node.uid,
        gid: node.gid,
        size,
        accessed: node.accessed,
        ..Staged::directory(node.modified)
    }
}
