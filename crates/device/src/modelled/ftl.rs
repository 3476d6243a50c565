//! The flash translation layer. The pages of a block are programmed one after the other, each once,
//! until the whole block is erased.
//!
//! A write goes to the next page of the open block. The page that held the data before becomes
//! garbage. When the open block is full, the least erased free block is opened.
//!
//! If that was the last free block (the reserve), a full block is emptied (greedy collection): the
//! one with the fewest pages in use, and among equals the least erased one. The pages in use are
//! copied into the block just opened, and the emptied block is erased.
//!
//! A logical page is mapped to at most one physical page, which it owns. The physical pages that
//! are owned are those in use.

use std::collections::BTreeSet;

use blockyard_disk::num::{u32_from_u64, u64_from_u32, usize_from_u32};

use super::filled;

/// Stands for "no page" in maps.
const NONE: u32 = u32::MAX;
/// The most pages of the flash: their map and owners take 4 GiB.
const PAGES_MAX: u64 = 1 << 29;
/// The most blocks: their counts and their order take about a GiB.
const BLOCKS_MAX: u64 = 1 << 24;
/// Free blocks kept for collection.
const RESERVE: usize = 1;

/// Size of the flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FtlShape {
    /// Pages visible to a host.
    pub pages: u32,
    /// Pages of a block.
    pub block_pages: u32,
    /// Blocks, including those beyond what a host sees.
    pub blocks: u32,
}

impl FtlShape {
    /// A shape for `pages` pages. Spare flash adds `spare_thousandths` thousandths of them, and at
    /// least three blocks. `None` when the flash would have more than 2^29 pages (2 TiB of pages of
    /// 4 KiB) or 2^24 blocks: every page has its entry in memory from the start.
    #[must_use]
    pub fn with_spare(pages: u64, block_pages: u32, spare_thousandths: u64) -> Option<Self> {
        let all = pages.checked_mul(1000 + spare_thousandths)? / 1000;
        let least = pages.div_ceil(u64_from_u32(block_pages)) + 1 + 2;
        let blocks = all.div_ceil(u64_from_u32(block_pages)).max(least);
        let is_small = blocks <= BLOCKS_MAX && blocks * u64_from_u32(block_pages) <= PAGES_MAX;
        let [pages, blocks] = if is_small { [pages, blocks] } else { return None };
        Some(Self { pages: u32_from_u64(pages), block_pages, blocks: u32_from_u64(blocks) })
    }
}

/// An operation on the flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlashOperation {
    /// The data of a logical page is programmed into a physical page.
    Program {
        /// The logical page.
        logical: u32,
        /// The physical page.
        page: u32,
    },
    /// The data of a physical page is copied to another physical page.
    Copy {
        /// The old page.
        from: u32,
        /// The new page.
        to: u32,
    },
    /// All pages of a block are erased.
    Erase {
        /// The block.
        block: u32,
    },
}

/// The map and the state of every block.
pub struct Ftl {
    shape: FtlShape,
    /// The physical page of each logical page.
    map: Vec<u32>,
    /// The logical page of each physical page in use.
    owner: Vec<u32>,
    used: Vec<u32>,
    programs: Vec<u64>,
    erases: Vec<u64>,
    /// Free blocks: erasures, number.
    free: BTreeSet<(u64, u32)>,
    /// Full blocks: pages in use, erasures, number.
    full: BTreeSet<(u32, u64, u32)>,
    /// The block being written, and its next page.
    open: (u32, u32),
    host_pages: u64,
}

impl Ftl {
    /// Empty flash.
    ///
    /// # Panics
    /// When a block has no pages, or the shape has fewer than two spare blocks.
    #[must_use]
    pub fn new(shape: FtlShape) -> Self {
        let FtlShape { pages, block_pages, blocks } = shape;
        let (pages, block_pages) = (u64_from_u32(pages), u64_from_u32(block_pages));
        let blocks = u64_from_u32(blocks);
        assert!(
            block_pages > 0 && blocks * block_pages >= pages + 2 * block_pages,
            "an open block and the reserve are needed besides what a host may fill"
        );
        let free = (1..shape.blocks).map(|block| (0, block)).collect();
        Self {
            shape,
            map: filled(NONE, pages),
            owner: filled(NONE, blocks * block_pages),
            used: filled(0, blocks),
            programs: filled(0, blocks),
            erases: filled(0, blocks),
            free,
            full: BTreeSet::new(),
            open: (0, 0),
            host_pages: 0,
        }
    }

    /// Physical page of a logical page; `None` if it was never written or is trimmed.
    #[must_use]
    pub fn lookup(&self, logical: u32) -> Option<u32> {
        self.map.get(usize_from_u32(logical)).copied().filter(|page| *page != NONE)
    }

    /// Writes a logical page. Calls `each` with the operations on the flash, in order.
    ///
    /// # Panics
    /// When there is no such page.
    pub fn write(&mut self, logical: u32, each: &mut dyn FnMut(FlashOperation)) {
        self.trim(logical);
        self.make_room(each);
        let page = self.next_page(logical);
        self.host_pages += 1;
        each(FlashOperation::Program { logical, page });
    }

    /// Unmaps a logical page. Its physical page becomes garbage.
    ///
    /// # Panics
    /// When there is no such page.
    pub fn trim(&mut self, logical: u32) {
        let page = std::mem::replace(&mut self.map[usize_from_u32(logical)], NONE);
        if page == NONE {
            return;
        }
        assert_eq!(self.owner[usize_from_u32(page)], logical, "the logical page mapped to a page owns it");
        self.owner[usize_from_u32(page)] = NONE;
        let block = page / self.shape.block_pages;
        let index = usize_from_u32(block);
        let (used, erases) = (self.used[index], self.erases[index]);
        self.used[index] = used - 1;
        if self.full.remove(&(used, erases, block)) {
            self.full.insert((used - 1, erases, block));
        }
    }

    /// Pages that the host wrote.
    #[must_use]
    pub const fn host_pages(&self) -> u64 {
        self.host_pages
    }

    /// Pages programmed, by block.
    #[must_use]
    pub fn programs(&self) -> &[u64] {
        &self.programs
    }

    /// Erasures, by block.
    #[must_use]
    pub fn erases(&self) -> &[u64] {
        &self.erases
    }

    /// Pages in use, by block.
    #[must_use]
    pub fn used(&self) -> &[u32] {
        &self.used
    }

    /// Makes sure that the open block has a free page, and that [`RESERVE`] blocks are free for the
    /// next collection.
    fn make_room(&mut self, each: &mut dyn FnMut(FlashOperation)) {
        if self.open.1 < self.shape.block_pages {
            return;
        }
        self.open_next();
        while self.free.len() < RESERVE {
            self.collect(each);
        }
        // Copying left a free page, because the emptied block had garbage.
        assert!(self.open.1 < self.shape.block_pages, "collection ends with a page to write");
    }

    /// Empties the full block with the fewest pages in use: copies these pages into the open block,
    /// and erases the emptied block.
    fn collect(&mut self, each: &mut dyn FnMut(FlashOperation)) {
        let (used, erases, block) =
            self.full.pop_first().expect("blocks that are neither open nor free are full");
        assert!(used < self.shape.block_pages, "spare blocks leave garbage in some block");
        let first = block * self.shape.block_pages;
        for from in first..first + self.shape.block_pages {
            let logical = std::mem::replace(&mut self.owner[usize_from_u32(from)], NONE);
            if logical == NONE {
                continue;
            }
            self.used[usize_from_u32(block)] -= 1;
            let to = self.next_page(logical);
            each(FlashOperation::Copy { from, to });
        }
        assert_eq!(self.used[usize_from_u32(block)], 0, "every page in use has an owner");
        each(FlashOperation::Erase { block });
        self.erases[usize_from_u32(block)] = erases + 1;
        self.free.insert((erases + 1, block));
    }

    /// Closes the open block and opens the least erased free one.
    fn open_next(&mut self) {
        let (block, _) = self.open;
        let index = usize_from_u32(block);
        self.full.insert((self.used[index], self.erases[index], block));
        let (_, next) = self.free.pop_first().expect("a block is kept free");
        self.open = (next, 0);
    }

    /// Maps a logical page to the next page of the open block.
    fn next_page(&mut self, logical: u32) -> u32 {
        let (block, next) = self.open;
        assert!(next < self.shape.block_pages, "the open block has a page");
        let page = block * self.shape.block_pages + next;
        self.open.1 += 1;
        self.map[usize_from_u32(logical)] = page;
        self.owner[usize_from_u32(page)] = logical;
        self.used[usize_from_u32(block)] += 1;
        self.programs[usize_from_u32(block)] += 1;
        page
    }
}
