//! A transaction as log blocks: revoke records, then descriptors with the images that they describe, then zeroes where
//! the commit record will be, which is written after a flush.
//!
//! The zeroes are for a commit record of which only some sectors arrive. It fills one, and its checksum covers the block:
//! over what the log held before, e2fsck 1.47 takes half a record for a corrupt transaction; over zeroes it is whole, or
//! not there.

use crate::txn::Image;
use blockyard_disk::checksum::crc32_be;
use blockyard_disk::jbd2::{DescriptorBuilder, LogFormat, RevokeBuilder, descriptor, escape};
use blockyard_disk::num::usize_from_u32;
use blockyard_disk::{BlockNr, TxnId};

/// The blocks of one transaction, in log order.
pub(super) struct Records {
    bytes: Vec<u8>,
    block_size: usize,
    v1_checksum: u32,
}

impl Records {
    /// Encodes a transaction. `flipped` are bits to get wrong in the checksums of tags: 0 outside tests.
    pub(super) fn new(
        format: LogFormat,
        tid: TxnId,
        images: &[Image],
        revoked: &[BlockNr],
        flipped: u32,
    ) -> Self {
        let block_size = format.block_size();
        let mut bytes = Vec::with_capacity((images.len() + images.len() / 32 + 4) * block_size);
        let mut revokes = revoked.iter().peekable();
        while revokes.peek().is_some() {
            let mut builder = RevokeBuilder::new(format, tid);
            while let Some(block) = revokes.next_if(|_| !builder.is_full()) {
                builder.push(*block);
            }
            bytes.extend(builder.finish());
        }
        let revokes_end = bytes.len();
        let per_descriptor = usize_from_u32(descriptor::tags_per_block(&format));
        for part in images.chunks(per_descriptor) {
            push_described(&mut bytes, format, tid, part, flipped);
        }
        let v1_checksum = if format.has_v1_checksum() { crc32_be(!0, &bytes[revokes_end..]) } else { 0 };
        bytes.resize(bytes.len() + block_size, 0);
        Self { bytes, block_size, v1_checksum }
    }

    /// Number of blocks, that of the commit record among them.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() / self.block_size
    }

    /// The blocks, one after the other.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What the commit record says about the rest, with checksums of version 1.
    pub(super) const fn v1_checksum(&self) -> u32 {
        self.v1_checksum
    }
}

/// One descriptor and the images it describes, escaped where they look like a record. Tag checksums cover what is
/// logged.
fn push_described(bytes: &mut Vec<u8>, format: LogFormat, tid: TxnId, images: &[Image], flipped: u32) {
    let descriptor_at = bytes.len();
    bytes.resize(descriptor_at + format.block_size(), 0);
    let mut builder = DescriptorBuilder::new(format, tid);
    for image in images {
        let at = bytes.len();
        bytes.extend_from_slice(&image.bytes);
        let logged = &mut bytes[at..];
        let is_escaped = escape(logged);
        let checksum = if format.has_block_checksums() { format.data_checksum(tid, logged) } else { 0 };
        builder.push(image.block, is_escaped, checksum ^ flipped);
    }
    bytes[descriptor_at..descriptor_at + format.block_size()].copy_from_slice(&builder.finish());
}
