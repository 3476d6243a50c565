//! Extent nodes: a root in an inode, a block without a parent's bounds, and the same block within
//! the bounds that the root gives.

#![no_main]

use blockyard_disk::checksum::seal_extent_block;
use blockyard_disk::extent::NodeBounds;
use blockyard_disk::{ExtentNode, Geometry, LogicalBlock};
use blockyard_fuzz::{Input, superblock};
use libfuzzer_sys::fuzz_target;

fn exercise(geometry: &Geometry, node: &ExtentNode<'_>) {
    let mut last = 0;
    for position in 0..node.len() {
        if let Some(extent) = node.extent(position) {
            assert!(extent.logical.raw() >= last && extent.end() <= node.bounds().end());
            last = extent.end();
            let end = extent.physical.raw() + u64::from(extent.length);
            assert!(geometry.contains(extent.physical) && end <= geometry.blocks_count().raw());
            assert_eq!(node.find(extent.logical), Some(position));
        }
        if let Some(child) = node.child(position) {
            assert!(geometry.contains(child.block) && child.bounds.end() > child.logical.raw());
            assert_eq!(node.find(child.logical), Some(position));
        }
    }
    let _ = node.find(LogicalBlock::new(u32::MAX));
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let sb = superblock(input.byte());
    let geometry = sb.geometry();
    let root = input.block(60);
    let root: &[u8; 60] = root.first_chunk().expect("60 bytes were taken");
    let mut block = input.block(geometry.block_size());
    // The right capacity follows from the block size. It is set here, so that the input gets past
    // the check of the capacity.
    let capacity = blockyard_disk::extent::block_capacity(geometry.block_size());
    block[4..6].copy_from_slice(&capacity.to_le_bytes());
    seal_extent_block(Some(7), &mut block);
    if let Ok(node) = ExtentNode::parse_block(geometry, &block, NodeBounds::ROOT, Some(7)) {
        exercise(geometry, &node);
    }
    let Ok(node) = ExtentNode::parse_root(geometry, root) else { return };
    exercise(geometry, &node);
    for child in (0..node.len()).filter_map(|position| node.child(position)) {
        if let Ok(below) = ExtentNode::parse_block(geometry, &block, child.bounds, Some(7)) {
            exercise(geometry, &below);
        }
    }
});
