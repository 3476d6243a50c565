//! A transaction as log blocks: revoke records, then descriptors with the images that they
//! describe, then zeroes at the position of the commit record, which is written after a flush.
//!
//! The zeroes guard against a torn write of the commit record. The record fills only the first
//! sector of its block, but its checksum covers the whole block. If only that sector were written,
//! over old log content, the checksum would be wrong, and e2fsck 1.47 would report a corrupt
//! transaction. Over zeroes, the record is either complete or absent.

use crate::txn::Image;
use blockyard_disk::jbd2::{DescriptorBuilder, LogFormat, RevokeBlock, RevokeBuilder, descriptor, escape};
use blockyard_disk::num::usize_from_u32;
use blockyard_disk::{BlockNr, TxnId};

/// The most bytes of images that one descriptor describes: they are encoded in one buffer.
const PIECE_BYTES: usize = 4 << 20;

/// The most images that one descriptor describes.
pub(super) fn images_per_descriptor(format: &LogFormat) -> usize {
    let room = PIECE_BYTES / format.block_size();
    usize_from_u32(descriptor::tags_per_block(format)).min(room.max(1))
}

/// The revoke records of a transaction.
pub(super) fn revokes(format: LogFormat, tid: TxnId, revoked: &[BlockNr]) -> Vec<u8> {
    let mut records = Vec::new();
    let mut left = revoked.iter().peekable();
    while left.peek().is_some() {
        let mut builder = RevokeBuilder::new(format, tid);
        while let Some(block) = left.next_if(|_| !builder.is_full()) {
            builder.push(*block);
        }
        records.extend(builder.finish());
    }
    debug_assert!(
        records
            .chunks(format.block_size())
            .flat_map(|record| revoked_by(&format, record))
            .eq(revoked.iter().copied()),
        "the records revoke other blocks"
    );
    records
}

/// The blocks that a revoke record lists, as recovery reads it; none if recovery would refuse it.
fn revoked_by(format: &LogFormat, record: &[u8]) -> Vec<BlockNr> {
    let sound = format.verify_tail(record);
    let parsed = RevokeBlock::parse(format, record).ok().filter(|_| sound);
    parsed.map_or_else(Vec::new, |record| record.blocks().collect())
}

/// Encodes a descriptor and the images that it describes into `piece`. Images that begin with the
/// magic number of log records are escaped. Calls `note` with each image's block, its checksum (0
/// if the log has none) and whether it was escaped. The checksum covers the image as logged, so
/// after escaping. The bits of `flipped` are inverted in the tags' checksums; it is 0 outside
/// tests.
pub(super) fn describe(
    format: LogFormat,
    tid: TxnId,
    images: &[Image],
    flipped: u32,
    piece: &mut Vec<u8>,
    mut note: impl FnMut(BlockNr, u32, bool),
) {
    debug_assert!(!images.is_empty() && images.len() <= images_per_descriptor(&format), "{}", images.len());
    piece.clear();
    piece.resize(format.block_size(), 0);
    let mut builder = DescriptorBuilder::new(format, tid);
    for image in images {
        let at = piece.len();
        piece.extend_from_slice(&image.bytes);
        let logged = &mut piece[at..];
        let is_escaped = escape(logged);
        let checksum = if format.has_block_checksums() { format.data_checksum(tid, logged) } else { 0 };
        builder.push(image.block, is_escaped, checksum ^ flipped);
        note(image.block, checksum, is_escaped);
    }
    piece[..format.block_size()].copy_from_slice(&builder.finish());
    let record = &piece[..format.block_size()];
    debug_assert!(format.verify_tail(record), "a descriptor that recovery would not believe");
    debug_assert!(
        descriptor::tags(&format, record).map(|tag| tag.target).eq(images.iter().map(|image| image.block)),
        "a descriptor names other blocks than it describes"
    );
}
