//! Block maps of ext2 and ext3: twelve direct blocks, then one, two and three levels of indirect
//! blocks.

use blockyard_disk::BlockNr;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};

use super::{Run, Walk};
use crate::code::Code;

/// Direct pointers in the inode.
const DIRECT: usize = 12;
/// The most indirect blocks that one request reads in addition to the first.
const FOLLOWERS_MAX: usize = 255;
/// The most illegal pointers that are tolerated in a map. At one more, the map is given up.
const ILLEGAL_MAX: u32 = 12;

/// An indirect block on the way from the root to where the walk is.
struct Table {
    bytes: Vec<u8>,
    next: usize,
    /// Levels of indirect blocks below: 0 means that the pointers lead to data blocks.
    level: u32,
    /// First logical block that this table covers.
    logical: u64,
}

/// Joins single pointers into runs, so that claims are made by range.
struct Joiner {
    run: Option<Run>,
    illegal: u32,
}

impl Joiner {
    fn push(&mut self, walk: &mut Walk<'_, '_>, logical: u64, physical: u64) {
        if let Some(run) = &mut self.run {
            let joins = run.logical + run.length == logical && run.physical + run.length == physical;
            if joins && !walk.owns_metadata {
                run.length += 1;
                return;
            }
        }
        self.flush(walk);
        self.run = Some(Run { logical, physical, length: 1, unwritten: false });
    }

    fn flush(&mut self, walk: &mut Walk<'_, '_>) {
        if let Some(run) = self.run.take() {
            walk.data(run);
        }
    }

    /// Reports a pointer outside of the file system. Returns false if there were too many.
    fn illegal(&mut self, walk: &mut Walk<'_, '_>, logical: u64, block: u64) -> bool {
        self.illegal += 1;
        let site = walk.site().at_logical(logical);
        walk.fault(Code::ILLEGAL_BLOCK, site, format!("block {block}"));
        self.illegal <= ILLEGAL_MAX
    }
}

/// Walks the map in the fifteen words of `i_block`.
pub(crate) fn walk_indirect(walk: &mut Walk<'_, '_>, words: &[u32; 15]) {
    let mut joiner = Joiner { run: None, illegal: 0 };
    walk_words(walk, &mut joiner, words);
    // If the map was given up, the runs found until then still count.
    joiner.flush(walk);
}

/// Walks the words of `i_block`. Returns false if the map is given up.
fn walk_words(walk: &mut Walk<'_, '_>, joiner: &mut Joiner, words: &[u32; 15]) -> bool {
    let per_table = u64_from_usize(walk.volume.block_size() / 4);
    for (logical, &word) in words[..DIRECT].iter().enumerate() {
        if !data_pointer(walk, joiner, u64_from_usize(logical), word) {
            return false;
        }
    }
    let mut logical = u64_from_usize(DIRECT);
    for (level, &word) in (0u32..).zip(&words[DIRECT..]) {
        if !walk_table(walk, joiner, word, level, logical) {
            return false;
        }
        logical += per_table.pow(level + 1);
    }
    true
}

/// Adds the data block that a pointer names, if any. Returns false if the map is given up.
fn data_pointer(walk: &mut Walk<'_, '_>, joiner: &mut Joiner, logical: u64, word: u32) -> bool {
    let block = u64::from(word);
    if block == 0 {
        return true;
    }
    if !walk.volume.contains(BlockNr::new(block)) {
        return joiner.illegal(walk, logical, block);
    }
    joiner.push(walk, logical, block);
    true
}

/// Walks one tree of indirect blocks. Returns false if the map is given up.
fn walk_table(walk: &mut Walk<'_, '_>, joiner: &mut Joiner, word: u32, level: u32, logical: u64) -> bool {
    let per_table = u64_from_usize(walk.volume.block_size() / 4);
    let mut stack: Vec<Table> = Vec::with_capacity(3);
    let mut pending = Some((word, 0, level, logical));
    loop {
        if let Some((word, more, level, logical)) = pending.take() {
            match open_table(walk, joiner, (word, more), level, logical) {
                Ok(Some(table)) => {
                    stack.push(table);
                    assert!(stack.len() <= 3, "{} levels of indirect blocks", stack.len());
                }
                Ok(None) => {}
                Err(GivenUp) => return false,
            }
        }
        let Some(table) = stack.last_mut() else { return true };
        let index = table.next;
        if index >= usize_from_u64(per_table) {
            stack.pop();
            continue;
        }
        table.next += 1;
        let at = 4 * index;
        let raw = &table.bytes[at..at + 4];
        let word = u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]);
        let logical = table.logical + u64_from_usize(index) * per_table.pow(table.level);
        if table.level > 0 {
            pending = Some((word, followers(&table.bytes[at..]), table.level - 1, logical));
        } else if word != 0 && !data_pointer(walk, joiner, logical, word) {
            return false;
        }
    }
}

/// How many blocks can be read in one request with the block that the first pointer names: the
/// pointers after the first are counted as long as each names the next block of the device. At most
/// [`FOLLOWERS_MAX`].
fn followers(pointers: &[u8]) -> u64 {
    let mut words =
        pointers.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    let first = words.next().unwrap_or(0);
    let next = (1..).map_while(|distance| first.checked_add(distance));
    u64_from_usize(words.zip(next).take(FOLLOWERS_MAX).take_while(|(word, next)| word == next).count())
}

struct GivenUp;

fn open_table(
    walk: &mut Walk<'_, '_>,
    joiner: &mut Joiner,
    (word, more): (u32, u64),
    level: u32,
    logical: u64,
) -> Result<Option<Table>, GivenUp> {
    let block = BlockNr::new(u64::from(word));
    if word == 0 {
        return Ok(None);
    }
    if !walk.volume.contains(block) {
        return if joiner.illegal(walk, logical, block.raw()) { Ok(None) } else { Err(GivenUp) };
    }
    joiner.flush(walk);
    walk.follow(block.raw(), 1);
    Ok(walk.enter(block, more).map(|bytes| Table { bytes, next: 0, level, logical }))
}
