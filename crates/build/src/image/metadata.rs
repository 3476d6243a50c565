//! Directories and inode tables, and the blocks that belong to inodes: mapping blocks, attribute
//! blocks, and attribute values.

use super::inline::InlineFiles;
use super::values::Values;
use crate::Result;
use crate::inline::{self, Inline};
use crate::inode::{self, Source};
use crate::layout::{Blocks, Content};
use crate::mapping::Mapped;
use crate::parallel;
use crate::plan::Plan;
use crate::shape;
use crate::tree::{Node, NodeId};
use blockyard_device::BlockDevice;
use blockyard_disk::inode::FileType;
use blockyard_disk::num::{u32_from_usize, usize_from_u32, usize_from_u64};
use blockyard_disk::whole_directory::WholeDirectory;
use blockyard_disk::xattr::AttributeList;
use blockyard_disk::{BlockNr, GroupNr, InodeNr};

/// Bytes of directories per write, roughly.
const TOGETHER: u64 = 1 << 20;

/// Writes the directories, the inode tables, and the blocks that belong to inodes.
pub(super) fn write(
    plan: &Plan,
    inline: &InlineFiles,
    device: &dyn BlockDevice,
    threads: usize,
) -> Result<()> {
    let content = plan.content();
    let values = Values::new(plan);
    let writer = Writer { plan, content: &content, inline, values, device };
    let parts = writer.directory_parts();
    parallel::each(threads, parts.len(), || (), |(), part| writer.write_directories(parts[part].clone()))?;
    let last = writer.values.numbers().end;
    let per_group = plan.filled.superblock().s_inodes_per_group.get();
    let groups = usize_from_u32((last - 1).div_ceil(per_group));
    parallel::each(threads, groups, Vec::new, |bytes, group| {
        writer.write_table(GroupNr::new(u32_from_usize(group)), bytes)
    })
}

struct Writer<'a> {
    plan: &'a Plan,
    content: &'a Content<'a>,
    inline: &'a InlineFiles,
    values: Values<'a>,
    device: &'a dyn BlockDevice,
}

impl Writer<'_> {
    /// Ranges of directories, by index in `Order::directories`, that are written together.
    fn directory_parts(&self) -> Vec<std::ops::Range<usize>> {
        let (mut parts, mut start, mut blocks) = (Vec::new(), 0, 0);
        let order = &self.plan.order.directories;
        for (at, &number) in order.iter().enumerate() {
            blocks += self.content.directories[usize_from_u32(number)].0;
            if blocks * self.plan.shape.block_size >= TOGETHER || at + 1 == order.len() {
                parts.push(start..at + 1);
                (start, blocks) = (at + 1, 0);
            }
        }
        parts
    }

    /// The position of an inode's blocks in the row of free blocks.
    fn place_of(&self, id: Option<NodeId>) -> u64 {
        match id {
            Some(id) => {
                let node = self.plan.tree.node(id);
                self.plan.places[usize_from_u32(node.inode - self.plan.order.first) + 1]
            }
            None => self.plan.places[0],
        }
    }

    fn blocks_of(&self, id: Option<NodeId>) -> Blocks {
        self.content.place(&self.plan.space, id, self.place_of(id))
    }

    fn write_directories(&self, part: std::ops::Range<usize>) -> Result<()> {
        let mut bytes: Vec<u8> = Vec::new();
        let (mut from, mut next) = (0, 0);
        for &number in &self.plan.order.directories[part] {
            if self.content.directories[usize_from_u32(number)].0 == 0 {
                // The directory is inline.
                continue;
            }
            let at = self.blocks_of(self.plan.tree.directory(number).own).data_at;
            if at != next && !bytes.is_empty() {
                self.plan.write_row(self.device, from..next, &bytes)?;
                bytes.clear();
            }
            if bytes.is_empty() {
                from = at;
            }
            let directory = self.directory(number);
            let blocks = self.content.directories[usize_from_u32(number)].0;
            next = at + blocks.next_multiple_of(self.plan.shape.cluster);
            bytes.extend_from_slice(&directory);
            bytes.resize(usize_from_u64((next - from) * self.plan.shape.block_size), 0);
        }
        self.plan.write_row(self.device, from..next, &bytes)
    }

    /// The blocks of a directory.
    fn directory(&self, number: u32) -> Vec<u8> {
        let (tree, shape) = (&self.plan.tree, &self.plan.shape);
        let directory = tree.directory(number);
        let inode_of = |number: u32| tree.directory(number).own.map_or(2, |own| tree.node(own).inode);
        let dots = (inode_of(number), directory.own.map_or(2, |own| inode_of(own.directory)));
        let names = shape::names(directory, number == 0);
        let planned = WholeDirectory::plan(&names, shape.directories, shape.indexing);
        let Some(planned) = planned else { unreachable!("it was planned before") };
        planned.write(dots, &names, self.plan.filled.checksums().inode_seed(InodeNr::new(dots.0), 0))
    }

    /// Writes the used part of a group's inode table.
    fn write_table(&self, group: GroupNr, bytes: &mut Vec<u8>) -> Result<()> {
        let plan = self.plan;
        let size = usize::from(plan.shape.inode_size);
        let per_group = plan.filled.superblock().s_inodes_per_group.get();
        let first = group.raw() * per_group + 1;
        let ids = plan.order.within(first..first + per_group);
        bytes.clear();
        // If groups have few inodes, the reserved inodes extend over several groups.
        let own = plan.filled.own_inodes();
        let before = (usize_from_u32(first - 1) * size).min(own.len());
        let end = own.len().min(before + usize_from_u32(per_group) * size);
        bytes.extend_from_slice(&own[before..end]);
        if group == GroupNr::ZERO {
            let root = size..2 * size;
            self.write_inode((2, None, &plan.tree.root), &mut bytes[root])?;
        }
        for &id in ids {
            let node = plan.tree.node(id);
            let at = bytes.len();
            bytes.resize(at + size, 0);
            debug_assert_eq!(
                usize_from_u32(node.inode - first) * size,
                at,
                "inode {} in its place",
                node.inode
            );
            self.write_inode((node.inode, Some(id), node), &mut bytes[at..])?;
        }
        for number in self.values.numbers().filter(|number| (first..first + per_group).contains(number)) {
            let at = bytes.len();
            bytes.resize(at + size, 0);
            self.values.write(number, self.content, self.device, &mut bytes[at..])?;
        }
        bytes.resize(bytes.len().next_multiple_of(usize_from_u64(plan.shape.block_size)), 0);
        let place = plan.filled.inode_table(group).raw() * plan.shape.block_size;
        Ok(self.device.write_at(place, bytes)?)
    }

    /// The content of an inline inode.
    fn inline(&self, id: NodeId, attributes: Option<&AttributeList>) -> Inline {
        let (tree, node) = (&self.plan.tree, self.plan.tree.node(id));
        match node.kind {
            FileType::Directory => {
                let parent = tree.directory(id.directory).own.map_or(2, |own| tree.node(own).inode);
                inline::of_directory((tree, &self.plan.shape), node.directory, parent, attributes)
            }
            FileType::Symlink => inline::of_bytes(tree.directory(id.directory).text(node.target), attributes),
            _ => {
                let bytes = self.inline.of(usize_from_u32(node.inode - self.plan.order.first));
                inline::of_bytes(bytes, attributes)
            }
        }
    }

    /// Writes one inode, its mapping blocks, and the attribute block that it owns.
    fn write_inode(&self, (number, id, node): (u32, Option<NodeId>, &Node), bytes: &mut [u8]) -> Result<()> {
        let (plan, block_size) = (self.plan, self.plan.shape.block_size);
        let checksums = plan.filled.checksums();
        let blocks = self.blocks_of(id);
        let of_directory = id.map_or(0, |id| id.directory);
        let placed = plan.homes.of(id).map(|placed| self.values.numbered(&placed.inode));
        let attributes = placed.as_ref().or_else(|| plan.tree.attributes(id));
        let inline = id.filter(|&id| self.content.is_inline(id)).map(|id| self.inline(id, attributes));
        let is_mapped =
            id.is_none() || inline.is_none() && inode::is_mapped(plan.tree.directory(of_directory), node);
        let map = is_mapped.then(|| Mapped::of(&blocks.runs, &blocks.nodes, plan.shape.mapping, block_size));
        if let Some(map) = map.as_ref().filter(|_| !blocks.nodes.is_empty()) {
            for (place, node) in map.blocks(block_size, checksums.inode_seed(InodeNr::new(number), 0)) {
                self.device.write_at(place * block_size, &node)?;
            }
        }
        let shared = plan.homes.block_of(id);
        if let (Some(place), Some(shared)) = (blocks.attributes, shared) {
            let mut block = vec![0; usize_from_u64(block_size)];
            let fits = self.values.numbered(&shared.list).write_block(&mut block, shared.users);
            assert!(fits, "the plan chose attributes that fit");
            checksums.seal_xattr_block(BlockNr::new(place), &mut block);
            self.device.write_at(place * block_size, &block)?;
        }
        let of_owner = || shared.and_then(|shared| self.blocks_of(shared.owner).attributes);
        let directory = if node.kind == FileType::Directory { node.directory } else { 0 };
        let source = Source {
            number,
            node,
            target: id.map_or(&[], |id| plan.tree.directory(id.directory).text(node.target)),
            attributes,
            inline: inline.as_ref(),
            attribute_block: blocks.attributes.or_else(of_owner),
            blocks_of_values: plan
                .homes
                .values_of(id)
                .map(|size| plan.shape.blocks(size).next_multiple_of(plan.shape.cluster))
                .sum(),
            flags: plan.tree.flags(id),
            blocks: &blocks,
            map: map.as_ref(),
            is_indexed: node.kind == FileType::Directory && plan.directories[usize_from_u32(directory)].1,
        };
        source.write(bytes, &plan.shape, checksums);
        Ok(())
    }
}
