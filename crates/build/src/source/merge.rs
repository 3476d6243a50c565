//! Several trees as one: later ones lie over earlier ones.

use super::spool::Spool;
use super::staging::{Staged, Staging};
use crate::error::{Error, Result};
use crate::tree::{Node, NodeId, SourceInode, Tree};
use blockyard_disk::inode::FileType;
use blockyard_disk::num::u32_from_usize;
use std::collections::HashMap;
use std::path::Path;

impl Tree {
    /// Lays trees over each other in order. Directories of one path become one, with the attributes of the last; anything else is
    /// replaced by what comes later. Symbolic links of earlier trees to directories are followed where later ones have names
    /// below them. The content of files is copied to a file without a name in the folder `spool`.
    ///
    /// # Errors
    /// [`Error::Source`] for what cannot be read; [`Error::Refused`] for a name below something that is no directory.
    pub fn merge(trees: Vec<Self>, spool: &Path) -> Result<Self> {
        let mut spool = Spool::new(spool)?;
        let mut staging: Option<Staging> = None;
        for tree in &trees {
            let staging = match &mut staging {
                Some(staging) => {
                    staging.begin(&tree.top);
                    staging
                }
                None => staging.insert(Staging::new(&tree.top)),
            };
            Merging { tree, staging, spool: &mut spool, linked: HashMap::new() }.all()?;
        }
        let staging = staging.unwrap_or_else(|| Staging::new(Path::new("")));
        staging.into_tree(spool.into_file())
    }
}

/// A tree that is laid over others.
struct Merging<'a> {
    tree: &'a Tree,
    staging: &'a mut Staging,
    spool: &'a mut Spool,
    /// The first path of what has several.
    linked: HashMap<SourceInode, Vec<u8>>,
}

impl Merging<'_> {
    fn all(mut self) -> Result<()> {
        let tree = self.tree;
        self.staging.enter(b"", Staged { attributes: tree.root_attributes.clone(), ..staged(&tree.root) })?;
        for (number, directory) in (0..).zip(&tree.directories) {
            for child in 0..u32_from_usize(directory.nodes.len()) {
                self.add(NodeId { directory: number, child })?;
            }
        }
        Ok(())
    }

    fn add(&mut self, id: NodeId) -> Result<()> {
        let path = self.tree.path(id);
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
        if node.kind == FileType::Regular {
            what.data = directory.data(id.child).map(<[_]>::to_vec);
            let stored = self.spool.store(&mut self.tree.content(id)?, node.size, what.data.as_deref());
            what.stored = stored.map_err(|error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => Error::Changed(self.tree.host_path_of(id)),
                _ => Error::source(&self.tree.host_path_of(id), error),
            })?;
        }
        self.staging.enter(&path, what)
    }
}

/// What a node says, without what its directory knows of it.
fn staged(node: &Node) -> Staged {
    let size = if node.kind == FileType::Symlink { 0 } else { node.size };
    Staged {
        kind: node.kind,
        permissions: node.permissions,
        uid: node.uid,
        gid: node.gid,
        size,
        ..Staged::directory(node.modified)
    }
}
