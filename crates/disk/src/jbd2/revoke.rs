//! Revoke blocks: no copy of a listed block, logged in this transaction or an earlier one, may be
//! replayed.

use zerocopy::IntoBytes;

use super::{BlockKind, LogFormat, RawHeader};
use crate::error::{Corruption, CorruptionKind};
use crate::num::{low32, u32_from_usize, usize_from_u32};
use crate::units::{BlockNr, TxnId};

/// Offset of the first record. The four bytes before it are `r_count`: how many bytes of the block
/// are used, these 16 included.
const RECORDS: usize = 16;

/// A revoke block whose length was verified.
#[derive(Clone, Copy, Debug)]
pub struct RevokeBlock<'a> {
    records: &'a [u8],
    is_64bit: bool,
}

const fn record_size(is_64bit: bool) -> usize {
    if is_64bit { 8 } else { 4 }
}

impl<'a> RevokeBlock<'a> {
    /// Checks `r_count` against the room of the block. The caller checks header and checksum.
    ///
    /// # Errors
    /// [`CorruptionKind::JournalRevokeCount`].
    pub fn parse(format: &LogFormat, block: &'a [u8]) -> Result<Self, Corruption> {
        let bad = Corruption::at_offset(CorruptionKind::JournalRevokeCount, 12);
        let count = block.get(12..RECORDS).ok_or(bad)?;
        let used = usize_from_u32(u32::from_be_bytes([count[0], count[1], count[2], count[3]]));
        if used > format.records_end() {
            return Err(bad);
        }
        // A count too small for the header, such as 0, means that there are no records. Such a
        // count is no damage: e2fsck accepts it, too.
        let records = block.get(RECORDS..used.max(RECORDS)).ok_or(bad)?;
        Ok(Self { records, is_64bit: format.is_64bit() })
    }

    /// The revoked blocks, in the order of their records; not verified.
    pub fn blocks(&self) -> impl Iterator<Item = BlockNr> + use<'a> {
        self.records
            .chunks_exact(record_size(self.is_64bit))
            .map(|record| BlockNr::new(record.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))))
    }
}

/// Fills revoke blocks.
#[derive(Debug)]
pub struct RevokeBuilder {
    format: LogFormat,
    block: Vec<u8>,
    used: usize,
}

impl RevokeBuilder {
    /// An empty revoke block of a transaction.
    #[must_use]
    pub fn new(format: LogFormat, tid: TxnId) -> Self {
        let mut block = vec![0; format.block_size()];
        block[..RawHeader::SIZE].copy_from_slice(RawHeader::new(BlockKind::Revoke, tid).as_bytes());
        Self { format, block, used: RECORDS }
    }

    /// Whether no further record fits.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.used + record_size(self.format.is_64bit()) > self.format.records_end()
    }

    /// Adds a record.
    ///
    /// # Panics
    /// When the block [`is_full`](Self::is_full).
    pub fn push(&mut self, block: BlockNr) {
        assert!(!self.is_full(), "no room for a revoke record");
        let end = self.used + record_size(self.format.is_64bit());
        let field = &mut self.block[self.used..end];
        if self.format.is_64bit() {
            field.copy_from_slice(&block.raw().to_be_bytes());
        } else {
            field.copy_from_slice(&low32(block.raw()).to_be_bytes());
        }
        self.used = end;
    }

    /// The block with its count and checksum.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.block[12..RECORDS].copy_from_slice(&u32_from_usize(self.used).to_be_bytes());
        self.format.seal_tail(&mut self.block);
        self.block
    }
}

#[cfg(test)]
mod tests {
    use super::super::{JournalFeatures, JournalIncompat};
    use super::*;

    #[test]
    fn records_come_back_in_both_widths() {
        for incompat in [JournalIncompat::empty(), JournalIncompat::BIT64 | JournalIncompat::CSUM_V3] {
            let features = JournalFeatures { incompat, ..JournalFeatures::NONE };
            let format = LogFormat::new(1024, features, &[3; 16]);
            let mut builder = RevokeBuilder::new(format, TxnId::new(1));
            let mut expected = Vec::new();
            while !builder.is_full() {
                let high = if format.is_64bit() { 1 << 40 } else { 0 };
                let block = BlockNr::new(high + u64::try_from(expected.len()).unwrap());
                builder.push(block);
                expected.push(block);
            }
            assert_eq!(expected.len(), if format.is_64bit() { (1024 - 20) / 8 } else { (1024 - 16) / 4 });
            let mut bytes = builder.finish();
            assert!(format.verify_tail(&bytes));
            assert_eq!(RevokeBlock::parse(&format, &bytes).unwrap().blocks().collect::<Vec<_>>(), expected);

            for (count, is_right) in [
                (0u32, true),
                (15, true),
                (16, true),
                (1020, true),
                (1021, !format.is_64bit()),
                (1025, false),
            ] {
                bytes[12..16].copy_from_slice(&count.to_be_bytes());
                let parsed = RevokeBlock::parse(&format, &bytes);
                assert_eq!(parsed.is_ok(), is_right, "{count}");
                assert!(count > 16 || parsed.unwrap().blocks().next().is_none(), "{count}");
            }
        }
    }
}
