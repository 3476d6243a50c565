//! Numbers the inodes in the order of the tree. Inodes whose first names are in the same directory
//! get consecutive numbers.

use crate::placement::Placement;
use crate::tree::{Node, NodeId, SourceInode, Tree};
use blockyard_disk::inode::FileType;
use blockyard_disk::num::{u32_from_usize, usize_from_u32};
use std::collections::HashMap;

/// Largest size in bytes of a small file, for [`Placement::SmallFirst`].
const SMALL: u64 = 64 << 10;

/// The order of the inode numbers, and the order of the content.
pub(crate) struct Order {
    /// The number of the first inode in `inodes`.
    pub(crate) first: u32,
    /// The first name of each inode, in the order of the numbers. The root is not among them.
    pub(crate) inodes: Vec<NodeId>,
    /// The directories in the order of their blocks: each before those inside it.
    pub(crate) directories: Vec<u32>,
    /// Everything that is not a directory, as indexes into `inodes`, in the order of the content.
    pub(crate) files: Vec<u32>,
    /// How many of `files` come first because the caller asked for it, whatever the placement.
    pub(crate) ahead: usize,
}

impl Order {
    /// Numbers all inodes starting at `first`, and counts their links. The content of the files in
    /// `ahead` comes first.
    pub(crate) fn number(tree: &mut Tree, first: u32, ahead: &[NodeId], placement: Placement) -> Self {
        let inodes = Vec::with_capacity(tree.names());
        let mut order = Self { first, inodes, directories: Vec::new(), files: Vec::new(), ahead: 0 };
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
                // The root also holds lost+found.
                None => tree.root.links = 3 + directories,
            }
        }
        debug_assert_eq!(order.directories.len(), tree.directories.len(), "each directory is reached once");
        order.place_files(tree, ahead, placement);
        order
    }

    fn place_files(&mut self, tree: &Tree, ahead: &[NodeId], placement: Placement) {
        let mut is_placed = vec![false; self.inodes.len()];
        for &id in ahead {
            let at = tree.node(id).inode - self.first;
            self.place_file(tree, at, &mut is_placed, |_| true);
        }
        self.ahead = self.files.len();
        let all = 0..u32_from_usize(self.inodes.len());
        if placement == Placement::SmallFirst {
            for at in all.clone() {
                self.place_file(tree, at, &mut is_placed, |node| node.size <= SMALL);
            }
        }
        for at in all {
            self.place_file(tree, at, &mut is_placed, |_| true);
        }
    }

    fn place_file(&mut self, tree: &Tree, at: u32, is_placed: &mut [bool], is_next: impl Fn(&Node) -> bool) {
        let node = tree.node(self.inodes[usize_from_u32(at)]);
        let is_placed = &mut is_placed[usize_from_u32(at)];
        if node.kind != FileType::Directory && is_next(node) && !std::mem::replace(is_placed, true) {
            self.files.push(at);
        }
    }

    /// The directory with the first name of an inode, which is given by its index in `inodes`.
    pub(crate) fn directory_of(&self, inode: u32) -> u32 {
        self.inodes[usize_from_u32(inode)].directory
    }

    /// The inodes with numbers in a range.
    pub(crate) fn within(&self, numbers: std::ops::Range<u32>) -> &[NodeId] {
        let end = self.first + u32_from_usize(self.inodes.len());
        let at = |number: u32| usize_from_u32(number.clamp(self.first, end) - self.first);
        &self.inodes[at(numbers.start)..at(numbers.end)]
    }
}
