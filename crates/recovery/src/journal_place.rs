//! Where a journal is and what its superblock says, for code that writes a journal.

use std::ops::Range;

use blockyard_disk::BlockNr;
use blockyard_disk::jbd2::JournalSuperblock;

use crate::journal_map::JournalMap;
use crate::session::Session;

/// A journal that was found and verified, with the place of each of its blocks. Every log block is
/// mapped. No block of an internal journal lies on a superblock or a group descriptor.
#[derive(Clone, Debug)]
pub struct JournalPlace {
    map: JournalMap,
    superblock: JournalSuperblock,
    superblock_at: u32,
}

impl JournalPlace {
    /// The block of the device that holds a log block.
    ///
    /// # Panics
    /// When the log block is beyond the map, which has at least [`JournalSuperblock::blocks`]
    /// blocks.
    #[must_use]
    pub fn physical(&self, log_block: u32) -> BlockNr {
        self.map.physical(log_block)
    }

    /// The runs of blocks that the journal has on its device.
    pub fn runs(&self) -> impl Iterator<Item = Range<BlockNr>> {
        self.map.runs()
    }

    /// The journal superblock as it was read.
    #[must_use]
    pub const fn superblock(&self) -> &JournalSuperblock {
        &self.superblock
    }

    /// Log block of the journal superblock: 0, except on external devices.
    #[must_use]
    pub const fn superblock_at(&self) -> u32 {
        self.superblock_at
    }
}

impl Session<'_> {
    /// The journal's place; `None` if the file system has no journal.
    #[must_use]
    pub fn into_journal(self) -> Option<JournalPlace> {
        self.into_log().map(|log| JournalPlace {
            map: log.map,
            superblock: log.superblock,
            superblock_at: log.superblock_at,
        })
    }
}
