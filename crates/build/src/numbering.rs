//! Inode numbers: in the order of the tree, the names of a directory one behind the other.

use crate::tree::{NodeId, SourceInode, Tree};
use blockyard_disk::inode::FileType;
use blockyard_disk::num::{u32_from_usize, usize_from_u32};
use std::collections::HashMap;

/// What has an inode, in the order of the numbers.
pub(crate) struct Order {
    /// The first number.
    pub(crate) first: u32,
    pub(crate) inodes: Vec<NodeId>,
    /// The directories in the order in which their blocks lie: each before those in it.
    pub(crate) directories: Vec<u32>,
    /// What is no directory, by its place among the inodes, in the order in which the content lies.
    pub(crate) files: Vec<u32>,
}

impl Order {
    /// Numbers all inodes from `first` on, and counts their links. The content of what is `ahead` comes first.
    pub(crate) fn number(tree: &mut Tree, first: u32, ahead: &[NodeId]) -> Self {
        let inodes = Vec::with_capacity(tree.names());
        let mut order = Self { first, inodes, directories: Vec::new(), files: Vec::new() };
        let mut linked: HashMap<SourceInode, NodeId> = HashMap::new();
        let mut waiting = vec![0];
        while let Some(number) = waiting.pop() {
            order.directories.push(number);
            let children = u32_from_usize(tree.directory(number).nodes.len());
            let before = waiting.len();
            let mut directories = 0;
            for child in 0..children {
                let id = NodeId { directory: number, child };
                if let Some(source) = tree.directory(number).linked(child) {
                    if let Some(&known) = linked.get(&source) {
                        tree.node_mut(known).links += 1;
                        let inode = tree.node(known).inode;
                        let node = tree.node_mut(id);
                        (node.inode, node.is_alias) = (inode, true);
                        continue;
                    }
                    linked.insert(source, id);
                }
                let inode = first + u32_from_usize(order.inodes.len());
                order.inodes.push(id);
                let node = tree.node_mut(id);
                node.inode = inode;
                node.links = 1;
                if node.kind == FileType::Directory {
                    directories += 1;
                    waiting.push(node.directory);
                }
            }
            waiting[before..].reverse();
            match tree.directory(number).own {
                Some(own) => tree.node_mut(own).links = 2 + directories,
                // lost+found is in the root, too.
                None => tree.root.links = 3 + directories,
            }
        }
        debug_assert_eq!(order.directories.len(), tree.directories.len(), "a directory is in no other");
        order.place_files(tree, ahead);
        order
    }

    fn place_files(&mut self, tree: &Tree, ahead: &[NodeId]) {
        let mut is_placed = vec![false; self.inodes.len()];
        let ahead = ahead.iter().map(|&id| tree.node(id).inode - self.first);
        for at in ahead.chain(0..u32_from_usize(self.inodes.len())) {
            let is_directory = tree.node(self.inodes[usize_from_u32(at)]).kind == FileType::Directory;
            if !is_directory && !std::mem::replace(&mut is_placed[usize_from_u32(at)], true) {
                self.files.push(at);
            }
        }
    }

    /// The inodes whose numbers lie in a range.
    pub(crate) fn within(&self, numbers: std::ops::Range<u32>) -> &[NodeId] {
        let end = self.first + u32_from_usize(self.inodes.len());
        let at = |number: u32| usize_from_u32(number.clamp(self.first, end) - self.first);
        &self.inodes[at(numbers.start)..at(numbers.end)]
    }
}
