//! A transaction as log blocks: revoke records, then descriptors with the images that they describe, then zeroes where
//! the commit record will be, which is written after a flush.
//!
//! The zeroes are for a commit record of which only some sectors arrive. It fills one, and its checksum covers the block:
//! over what the log held before, e2fsck 1.47 takes half a record for a corrupt transaction; over zeroes it is whole, or
//! not there.

use crate::Result;
use crate::txn::Image;
use blockyard_disk::checksum::crc32_be;
use blockyard_disk::jbd2::{DescriptorBuilder, LogFormat, RevokeBuilder, descriptor, escape};
use blockyard_disk::num::usize_from_u32;
use blockyard_disk::{BlockNr, TxnId};

/// What the log holds of one transaction: its blocks in log order, encoded piece by piece, so that a large transaction is
/// not copied as a whole.
pub(super) struct Records<'a> {
    format: LogFormat,
    tid: TxnId,
    revokes: Vec<u8>,
    images: &'a [Image],
    /// Images of one descriptor.
    described: usize,
    flipped: u32,
}

impl<'a> Records<'a> {
    /// The records of a transaction. `flipped` are bits to get wrong in the checksums of tags: 0 outside tests.
    pub(super) fn new(
        format: LogFormat,
        tid: TxnId,
        images: &'a [Image],
        revoked: &[BlockNr],
        flipped: u32,
    ) -> Self {
        let mut revokes = Vec::new();
        let mut left = revoked.iter().peekable();
        while left.peek().is_some() {
            let mut builder = RevokeBuilder::new(format, tid);
            while let Some(block) = left.next_if(|_| !builder.is_full()) {
                builder.push(*block);
            }
            revokes.extend(builder.finish());
        }
        let described = usize_from_u32(descriptor::tags_per_block(&format));
        Self { format, tid, revokes, images, described, flipped }
    }

    /// Number of blocks, that of the commit record among them.
    pub(super) fn len(&self) -> usize {
        let descriptors = self.images.len().div_ceil(self.described);
        self.revokes.len() / self.format.block_size() + descriptors + self.images.len() + 1
    }

    /// Calls `write` with the blocks, in log order and some at a time. Gives what the commit record says about them, with
    /// checksums of version 1.
    pub(super) fn each_piece(&self, mut write: impl FnMut(&[u8]) -> Result<()>) -> Result<u32> {
        if !self.revokes.is_empty() {
            write(&self.revokes)?;
        }
        let mut v1_checksum = if self.format.has_v1_checksum() { !0 } else { 0 };
        let mut piece = Vec::new();
        for part in self.images.chunks(self.described) {
            piece.clear();
            self.describe(part, &mut piece);
            if self.format.has_v1_checksum() {
                v1_checksum = crc32_be(v1_checksum, &piece);
            }
            write(&piece)?;
        }
        piece.clear();
        piece.resize(self.format.block_size(), 0);
        write(&piece)?;
        Ok(v1_checksum)
    }

    /// One descriptor and the images it describes, escaped where they look like a record. Tag checksums cover what is
    /// logged.
    fn describe(&self, images: &[Image], piece: &mut Vec<u8>) {
        piece.resize(self.format.block_size(), 0);
        let mut builder = DescriptorBuilder::new(self.format, self.tid);
        for image in images {
            let at = piece.len();
            piece.extend_from_slice(&image.bytes);
            let logged = &mut piece[at..];
            let is_escaped = escape(logged);
            let has_checksum = self.format.has_block_checksums();
            let checksum = if has_checksum { self.format.data_checksum(self.tid, logged) } else { 0 };
            builder.push(image.block, is_escaped, checksum ^ self.flipped);
        }
        piece[..self.format.block_size()].copy_from_slice(&builder.finish());
    }
}
