//! The content of files: small files in batches, large files in parts.

use crate::content::Contents;
use crate::error::Result;
use crate::layout::Content;
use crate::parallel;
use crate::plan::Plan;
use crate::tree::{NodeId, Tree};
use blockyard_device::BlockDevice;
use blockyard_disk::checksum::crc32c_raw;
use blockyard_disk::inode::FileType;
use blockyard_disk::num::{u64_from_usize, usize_from_u32, usize_from_u64};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of small files per batch.
const TOGETHER: u64 = 1 << 20;

/// Bytes of a large file per write.
const PART: u64 = 4 << 20;

/// A range that is shared with the source file (reflink) ends at a multiple of this many bytes. The
/// blocks of most host file systems are not larger. A file system with larger blocks refuses ranges
/// that do not fit its blocks.
const SHARED: u64 = 4096;

/// Ranges of fewer bytes are written, not shared, because sharing costs the host's file system a
/// transaction.
const SHARED_MIN: u64 = 64 << 10;

/// What is read and written in one step.
enum Batch {
    /// Files, by index in `Order::files`, whose data fills one part of the row of free blocks.
    Files { files: Range<usize>, row: Range<u64> },
    /// Blocks of one file, which is given by its index in `Order::inodes`. `at` is the position
    /// of the blocks in that row.
    Part { inode: usize, blocks: Range<u64>, at: u64 },
}

/// Writes the data of all files, except inline content. Returns a checksum of each batch; the
/// batches do not depend on the number of threads.
pub(super) fn write(plan: &Plan, device: &dyn BlockDevice, threads: usize) -> Result<Vec<u32>> {
    let batches = batches(plan);
    let sums: Vec<AtomicU32> = batches.iter().map(|_| AtomicU32::new(0)).collect();
    let worker = || Worker { plan, contents: Contents::new(&plan.tree), bytes: Vec::new() };
    parallel::each(threads, batches.len(), worker, |worker, number| {
        let batch = &batches[number];
        let row = worker.read(batch)?;
        // Relaxed is enough: the threads are joined before the sums are read.
        sums[number].store(crc32c_raw(0, &worker.bytes), Ordering::Relaxed);
        match batch {
            Batch::Files { .. } => plan.write_row(device, row, &worker.bytes),
            Batch::Part { inode, blocks, .. } => {
                worker.write_part(device, plan.order.inodes[*inode], blocks.start, row)
            }
        }
    })?;
    Ok(sums.into_iter().map(AtomicU32::into_inner).collect())
}

fn batches(plan: &Plan) -> Vec<Batch> {
    let content = plan.content();
    let block = plan.shape.block_size;
    let cluster = plan.shape.cluster;
    let mut batches: Vec<Batch> = Vec::new();
    for (file, inode) in plan.order.files.iter().map(|&inode| usize_from_u32(inode)).enumerate() {
        let id = plan.order.inodes[inode];
        let logical = content.logical(id);
        let len: u64 = logical.iter().map(|range| (range.end - range.start).next_multiple_of(cluster)).sum();
        if len == 0 {
            continue;
        }
        let place = plan.places[inode + 1];
        if len * block <= TOGETHER / 4 && is_plain(&content, id, &logical) {
            match batches.last_mut() {
                Some(Batch::Files { files, row })
                    if row.end == place && (row.end - row.start + len) * block <= TOGETHER =>
                {
                    files.end = file + 1;
                    row.end += len;
                }
                _ => batches.push(Batch::Files { files: file..file + 1, row: place..place + len }),
            }
            continue;
        }
        let mut at = content.place(&plan.space, Some(id), place).data_at;
        let most = (PART / block).max(1).next_multiple_of(cluster);
        for range in logical {
            let mut from = range.start;
            while from < range.end {
                let to = (from + most).min(range.end);
                batches.push(Batch::Part { inode, blocks: from..to, at });
                at += (to - from).next_multiple_of(cluster);
                from = to;
            }
        }
    }
    batches
}

/// Whether a file is known to have only data blocks. It has no holes, owns no attribute block, and
/// has at most four blocks, which the inode can map without an extent tree node.
fn is_plain(content: &Content<'_>, id: NodeId, logical: &[Range<u64>]) -> bool {
    let node = content.tree.node(id);
    let blocks = if node.kind == FileType::Regular { content.shape.blocks(node.size) } else { 1 };
    blocks <= 4 && logical == std::slice::from_ref(&(0..blocks)) && !content.homes.owns_block(Some(id))
}

/// What one thread needs for reading.
struct Worker<'a> {
    plan: &'a Plan,
    contents: Contents<'a>,
    bytes: Vec<u8>,
}

impl Worker<'_> {
    /// Reads a batch into the buffer. Returns the part of the row that it fills.
    fn read(&mut self, batch: &Batch) -> Result<Range<u64>> {
        let plan = self.plan;
        let (tree, block, cluster) = (&plan.tree, plan.shape.block_size, plan.shape.cluster);
        match batch {
            Batch::Files { files, row } => {
                self.fit((row.end - row.start) * block);
                let content = plan.content();
                for inode in plan.order.files[files.clone()].iter().map(|&inode| usize_from_u32(inode)) {
                    let id = plan.order.inodes[inode];
                    let from = usize_from_u64((plan.places[inode + 1].max(row.start) - row.start) * block);
                    if !has_data(tree, id) || content.is_inline(id) {
                        // This file takes no block; it is between files with data.
                        continue;
                    }
                    let len = self.fill(id, 0, from)?;
                    let whole = usize_from_u64(block * cluster);
                    let end = (from + len).next_multiple_of(whole).min(self.bytes.len());
                    self.bytes[from + len..end].fill(0);
                }
                Ok(row.clone())
            }
            Batch::Part { inode, blocks, at } => {
                let len = (blocks.end - blocks.start).next_multiple_of(cluster);
                self.fit(len * block);
                let read = self.fill(plan.order.inodes[*inode], blocks.start * block, 0)?;
                self.bytes[read..].fill(0);
                Ok(*at..*at + len)
            }
        }
    }

    /// Writes a part of one file. Ranges of at least [`SHARED_MIN`] bytes are shared with the
    /// source file if that is possible; their bytes in the buffer then serve only for the checksum.
    /// All other bytes are written from the buffer.
    fn write_part(&self, device: &dyn BlockDevice, id: NodeId, first: u64, row: Range<u64>) -> Result<()> {
        let (plan, block) = (self.plan, self.plan.shape.block_size);
        let mut done = 0;
        for (place, len) in plan.space.pieces(row) {
            let from = first * block + done;
            let end = (from + len * block).min(plan.tree.node(id).size) / SHARED * SHARED;
            let whole = end.saturating_sub(from);
            let file = self.contents.file_of(id, from).filter(|_| whole >= SHARED_MIN);
            let shared = match file {
                Some((file, at)) if device.share_from(place * block, whole, file, at)? => whole,
                _ => 0,
            };
            let rest = &self.bytes[usize_from_u64(done + shared)..usize_from_u64(done + len * block)];
            device.write_at(place * block + shared, rest)?;
            done += len * block;
        }
        assert_eq!(done, u64_from_usize(self.bytes.len()), "every byte was written");
        Ok(())
    }

    /// Resizes the buffer; its content is unspecified.
    fn fit(&mut self, len: u64) {
        self.bytes.resize(usize_from_u64(len), 0);
    }

    /// Reads a file from byte `offset` into the buffer at `to`, up to the end of the file or of the
    /// buffer. Returns the number of bytes.
    fn fill(&mut self, id: NodeId, offset: u64, to: usize) -> Result<usize> {
        let tree = &self.plan.tree;
        let node = tree.node(id);
        if node.kind == FileType::Symlink {
            let target = tree.directory(id.directory).text(node.target);
            self.bytes[to..to + target.len()].copy_from_slice(target);
            return Ok(target.len());
        }
        let len = (node.size - offset).min(u64_from_usize(self.bytes.len() - to));
        let into = &mut self.bytes[to..to + usize_from_u64(len)];
        self.contents.read_at(id, offset, into)?;
        Ok(into.len())
    }
}

fn has_data(tree: &Tree, id: NodeId) -> bool {
    let node = tree.node(id);
    match node.kind {
        FileType::Regular => {
            node.size > 0 && tree.directory(id.directory).data(id.child).is_none_or(|data| !data.is_empty())
        }
        FileType::Symlink => node.target.len >= 60,
        _ => false,
    }
}
