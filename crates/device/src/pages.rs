//! Sparse page store: holds the content of the memory device and the overlay.
//!
//! Pages of 4 KiB are grouped into stripes of 64 KiB, and stripes are spread over shards, each with
//! its own reader-writer lock. So there is no lock that every operation takes, and an empty store
//! costs a few KiB whatever its logical size. A page is *absent* (the owner decides what it reads
//! as), *zero*, or holds data.
//!
//! The owner must make a page present before it writes to a part of the page, unless its absent
//! pages read as zeroes. A whole page may be written while it is absent.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use blockyard_disk::num::{u64_from_usize, usize_from_u64};

use blockyard_sync::{RwLock, rank};

use crate::stripe::{Page, Stripe};

pub(crate) use crate::stripe::{PAGE_SIZE, PageData, zero_page};

const PAGE_BYTES: u64 = 4096;
const STRIPE_BYTES: u64 = 64 << 10;
const SHARDS: usize = 256;

#[derive(Default)]
struct Shard {
    stripes: HashMap<u64, Stripe, BuildHasherDefault<StripeHasher>>,
    pages_resident: u64,
}

/// Spreads stripe numbers by one multiplication, which is enough for the numbers that follow from
/// the layout of an image.
#[derive(Default)]
struct StripeHasher(u64);

impl Hasher for StripeHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// What happens to the whole pages of a zeroed range.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Zeroing {
    /// They become absent. This is for an owner whose absent pages read as zeroes.
    Drop,
    /// They are marked as zero. This is for an owner whose absent pages show the device below.
    Remember,
}

/// One page or one zero range, as [`PageStore::for_each_present`] reports it.
pub(crate) enum Present<'a> {
    /// A range of bytes that reads as zeroes.
    Zero(Range<u64>),
    /// The page that starts at this byte.
    Data(u64, &'a [u8; PAGE_SIZE]),
}

/// The store; every method may be called by any number of threads.
pub(crate) struct PageStore {
    shards: Box<[RwLock<Shard>]>,
}

/// One page's part of a byte range: the index of the page in its stripe, the bytes inside the page,
/// and the same bytes in the caller's buffer.
struct Piece {
    page: usize,
    inside: Range<usize>,
    outside: Range<usize>,
}

impl Piece {
    fn is_whole(&self) -> bool {
        self.inside.len() == PAGE_SIZE
    }
}

impl PageStore {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| RwLock::new(rank::DEVICE, Shard::default())).collect() }
    }

    /// Copies what is present into `buf`. Returns the ranges of `buf` (merged) that belong to
    /// absent pages; they keep their old content.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Vec<Range<usize>> {
        let mut holes: Vec<Range<usize>> = Vec::new();
        for (stripe, bytes) in stripes_of(offset, u64_from_usize(buf.len())) {
            let shard = self.shard(stripe).read();
            let content = shard.stripes.get(&stripe);
            for piece in pieces_of(stripe, bytes, offset) {
                match page_of(content, piece.page) {
                    Page::Data(data) => buf[piece.outside].copy_from_slice(&data[piece.inside]),
                    Page::Zero => buf[piece.outside].fill(0),
                    Page::Absent => match holes.last_mut() {
                        Some(last) if last.end == piece.outside.start => last.end = piece.outside.end,
                        _ => holes.push(piece.outside),
                    },
                }
            }
        }
        holes
    }

    /// Stores `data`. The rest of an absent page that is written in part becomes zero.
    ///
    /// With `keep_holes`, an absent page that would receive only zeroes stays absent.
    pub(crate) fn write(&self, offset: u64, data: &[u8], keep_holes: bool) {
        for (stripe, bytes) in stripes_of(offset, u64_from_usize(data.len())) {
            let mut guard = self.shard(stripe).write();
            let shard = &mut *guard;
            for piece in pieces_of(stripe, bytes, offset) {
                let source = &data[piece.outside];
                if keep_holes
                    && matches!(page_of(shard.stripes.get(&stripe), piece.page), Page::Absent)
                    && is_zero(source)
                {
                    continue;
                }
                let (page, is_new) = shard.page_mut(stripe, piece.page);
                page[piece.inside].copy_from_slice(source);
                shard.pages_resident += u64::from(is_new);
            }
        }
    }

    /// Makes a range zero. Pages covered only in part must be present, unless `zeroing` is `Drop`.
    pub(crate) fn zero(&self, offset: u64, length: u64, zeroing: Zeroing) {
        if zeroing == Zeroing::Drop && length / STRIPE_BYTES > self.stripes_held() {
            return self.zero_held(offset, length);
        }
        for (stripe, bytes) in stripes_of(offset, length) {
            self.zero_stripe(stripe, bytes, zeroing);
        }
    }

    /// As [`zero`](Self::zero) with `Drop`, at a cost that depends on the stripes held, not on the
    /// range.
    fn zero_held(&self, offset: u64, length: u64) {
        let end = offset + length;
        for stripe in self.stripe_numbers() {
            let start = (stripe * STRIPE_BYTES).max(offset);
            let stop = ((stripe + 1) * STRIPE_BYTES).min(end);
            if start < stop {
                self.zero_stripe(stripe, start..stop, Zeroing::Drop);
            }
        }
    }

    fn zero_stripe(&self, stripe: u64, bytes: Range<u64>, zeroing: Zeroing) {
        let mut guard = self.shard(stripe).write();
        let shard = &mut *guard;
        let is_whole = bytes.end - bytes.start == STRIPE_BYTES;
        if is_whole || !shard.stripes.contains_key(&stripe) && zeroing == Zeroing::Drop {
            let old = match zeroing {
                Zeroing::Drop => shard.stripes.remove(&stripe),
                Zeroing::Remember => shard.stripes.insert(stripe, Stripe::zero()),
            };
            shard.pages_resident -= old.map_or(0, |old| old.resident());
            return;
        }
        let origin = bytes.start;
        let content = shard.stripes.entry(stripe).or_default();
        for piece in pieces_of(stripe, bytes, origin) {
            if piece.is_whole() {
                let had_data = content.clear(piece.page, zeroing == Zeroing::Remember);
                shard.pages_resident -= u64::from(had_data);
            } else if let Some(data) = content.data_mut(piece.page) {
                data[piece.inside].fill(0);
            }
        }
    }

    /// Whether the page that holds this byte is absent.
    pub(crate) fn is_absent(&self, offset: u64) -> bool {
        let stripe = offset / STRIPE_BYTES;
        let shard = self.shard(stripe).read();
        matches!(page_of(shard.stripes.get(&stripe), page_index(offset)), Page::Absent)
    }

    /// Sets the content of the page that starts at `offset`, unless it is present by now.
    pub(crate) fn insert_if_absent(&self, offset: u64, data: PageData) {
        let stripe = offset / STRIPE_BYTES;
        let mut guard = self.shard(stripe).write();
        let shard = &mut *guard;
        let content = shard.stripes.entry(stripe).or_default();
        if matches!(content.page(page_index(offset)), Page::Absent) {
            content.insert(page_index(offset), data);
            shard.pages_resident += 1;
        }
    }

    /// Forgets everything: every page is absent.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            *shard.write() = Shard::default();
        }
    }

    /// Bytes held in data pages.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read().pages_resident).sum::<u64>() * PAGE_BYTES
    }

    /// Visits what is present, in ascending order of position. No lock is held during a visit: each
    /// stripe is copied first.
    pub(crate) fn for_each_present<E>(
        &self,
        mut visit: impl FnMut(Present<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        for stripe in self.stripe_numbers() {
            let content = self.shard(stripe).read().stripes.get(&stripe).cloned();
            let start = stripe * STRIPE_BYTES;
            let Some(content) = content else { continue };
            if content.is_zero() {
                visit(Present::Zero(start..start + STRIPE_BYTES))?;
                continue;
            }
            for (at, page) in (start..).step_by(PAGE_SIZE).zip(content.pages()) {
                match page {
                    Page::Absent => {}
                    Page::Zero => visit(Present::Zero(at..at + PAGE_BYTES))?,
                    Page::Data(data) => visit(Present::Data(at, data))?,
                }
            }
        }
        Ok(())
    }

    fn shard(&self, stripe: u64) -> &RwLock<Shard> {
        let mut hasher = StripeHasher::default();
        hasher.write_u64(stripe);
        // The map inside the shard uses the low bits, so the shard is chosen by high ones.
        &self.shards[usize_from_u64(hasher.finish() >> 32) % SHARDS]
    }

    fn stripes_held(&self) -> u64 {
        self.shards.iter().map(|shard| u64_from_usize(shard.read().stripes.len())).sum()
    }

    fn stripe_numbers(&self) -> Vec<u64> {
        let mut numbers = Vec::new();
        for shard in &self.shards {
            numbers.extend(shard.read().stripes.keys());
        }
        numbers.sort_unstable();
        numbers
    }
}

impl Shard {
    /// The content of a page, mutable, and whether it had to be created.
    fn page_mut(&mut self, stripe: u64, index: usize) -> (&mut [u8; PAGE_SIZE], bool) {
        let content = self.stripes.entry(stripe).or_default();
        let is_new = !matches!(content.page(index), Page::Data(_));
        if is_new {
            return (content.insert(index, zero_page()), true);
        }
        (content.data_mut(index).expect("a data page"), false)
    }
}

/// Whether all bytes are zero.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(256).all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
}

fn page_index(offset: u64) -> usize {
    usize_from_u64(offset % STRIPE_BYTES) / PAGE_SIZE
}

fn page_of(stripe: Option<&Stripe>, index: usize) -> Page<'_> {
    stripe.map_or(Page::Absent, |stripe| stripe.page(index))
}

/// The stripes of a byte range and the bytes of the range in each.
fn stripes_of(offset: u64, length: u64) -> impl Iterator<Item = (u64, Range<u64>)> {
    let end = offset + length;
    let first = offset / STRIPE_BYTES;
    let last = if length == 0 { first } else { (end - 1) / STRIPE_BYTES + 1 };
    (first..last).map(move |stripe| {
        let start = stripe * STRIPE_BYTES;
        (stripe, start.max(offset)..(start + STRIPE_BYTES).min(end))
    })
}

/// The pages of a byte range inside one stripe. `origin` is the position of the caller's first
/// buffer byte.
fn pieces_of(stripe: u64, bytes: Range<u64>, origin: u64) -> impl Iterator<Item = Piece> {
    let base = stripe * STRIPE_BYTES;
    let first = page_index(bytes.start);
    let last = page_index(bytes.end - 1);
    (first..=last).map(move |page| {
        let start = base + u64_from_usize(page) * PAGE_BYTES;
        let from = bytes.start.max(start);
        let to = bytes.end.min(start + PAGE_BYTES);
        Piece {
            page,
            inside: usize_from_u64(from - start)..usize_from_u64(to - start),
            outside: usize_from_u64(from - origin)..usize_from_u64(to - origin),
        }
    })
}
