//! The content of the files that are stored in their inodes. The UUID depends on this content, so
//! it is read before any metadata is written, and kept until the inode tables are written.

use crate::content::Contents;
use crate::error::Result;
use crate::parallel;
use crate::plan::Plan;
use blockyard_disk::checksum::crc32c_raw;
use blockyard_disk::inode::FileType;
use blockyard_disk::num::{u32_from_usize, u64_from_usize, usize_from_u32, usize_from_u64};
use std::sync::{Mutex, PoisonError};

/// The number of consecutive inodes for which a [`Part`] is read in one step.
const TOGETHER: usize = 4096;

/// The inline content of all files.
pub(super) struct InlineFiles(Vec<Part>);

/// The inline content of [`TOGETHER`] consecutive inodes.
#[derive(Default)]
struct Part {
    /// The index of each inode with inline content, and where its content starts in `bytes`.
    /// Ascending.
    starts: Vec<(u32, u32)>,
    bytes: Vec<u8>,
}

impl InlineFiles {
    pub(super) fn read(plan: &Plan, threads: usize) -> Result<Self> {
        let count = if plan.shape.has_inline_data { plan.order.inodes.len().div_ceil(TOGETHER) } else { 0 };
        let parts: Vec<Mutex<Part>> = (0..count).map(|_| Mutex::default()).collect();
        let worker = || Contents::new(&plan.tree);
        parallel::each(threads, count, worker, |contents, number| {
            let part = Part::read(plan, contents, number * TOGETHER)?;
            *parts[number].lock().unwrap_or_else(PoisonError::into_inner) = part;
            Ok(())
        })?;
        let parts = parts.into_iter().map(|part| part.into_inner().unwrap_or_else(PoisonError::into_inner));
        Ok(Self(parts.collect()))
    }

    /// A checksum of each part; the parts do not depend on the number of threads.
    pub(super) fn sums(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|part| crc32c_raw(0, &part.bytes))
    }

    /// The content of the inode with this index.
    ///
    /// # Panics
    /// If the inode is not a regular file, or its content is in blocks.
    pub(super) fn of(&self, inode: usize) -> &[u8] {
        let part = &self.0[inode / TOGETHER];
        let at = part.starts.binary_search_by_key(&u32_from_usize(inode), |(inode, _)| *inode);
        let Ok(at) = at else { unreachable!("inode {inode} was not read") };
        let end = part.starts.get(at + 1).map_or(part.bytes.len(), |(_, start)| usize_from_u32(*start));
        &part.bytes[usize_from_u32(part.starts[at].1)..end]
    }
}

impl Part {
    fn read(plan: &Plan, contents: &mut Contents<'_>, first: usize) -> Result<Self> {
        let (content, mut part) = (plan.content(), Self::default());
        for (inode, &id) in plan.order.inodes.iter().enumerate().skip(first).take(TOGETHER) {
            let node = plan.tree.node(id);
            if node.kind == FileType::Regular && content.is_inline(id) {
                let start = part.bytes.len();
                part.starts.push((u32_from_usize(inode), u32_from_usize(start)));
                part.bytes.resize(start + usize_from_u64(node.size), 0);
                for range in plan.tree.data_of(id) {
                    let range = start + usize_from_u64(range.start)..start + usize_from_u64(range.end);
                    contents.read_at(id, u64_from_usize(range.start - start), &mut part.bytes[range])?;
                }
            }
        }
        Ok(part)
    }
}
