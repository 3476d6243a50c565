//! Memory in CPU cache lines. From 2 MiB on, the memory is in huge pages if the kernel has them.
//!
//! A lookup in a large directory reads one line out of tens of megabytes. With pages of 4 KiB such
//! a read usually misses the TLB, too. Under nested paging that can cost as much as the cache miss.

use memmap2::{Advice, MmapMut};

/// Bytes of a line.
pub(super) const LINE: usize = 64;
/// From this size on, memory is requested in huge pages of this size.
pub(super) const HUGE: usize = 2 << 20;

/// Memory of a number of lines, zeroed at first.
pub(super) enum Lines {
    /// Less than a huge page, or more if the kernel gave no mapping.
    Heap(Box<[Aligned]>),
    /// Whole huge pages, or what the kernel provides instead.
    Huge(MmapMut),
}

/// One line, aligned as the CPU's lines are.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Aligned([u8; LINE]);

impl Lines {
    /// Bytes of memory for `count` lines. From one huge page on, this is rounded up to whole huge
    /// pages: the kernel uses a huge page only where a whole one is mapped.
    pub(super) const fn memory(count: usize) -> usize {
        let bytes = count * LINE;
        if bytes < HUGE { bytes } else { bytes.next_multiple_of(HUGE) }
    }

    /// `count` zeroed lines.
    pub(super) fn zeroed(count: usize) -> Self {
        if count * LINE >= HUGE
            && let Ok(map) = MmapMut::map_anon(Self::memory(count))
        {
            // A kernel without huge pages refuses; small pages will do.
            drop(map.advise(Advice::HugePage));
            return Self::Huge(map);
        }
        Self::Heap(vec![Aligned([0; LINE]); count].into_boxed_slice())
    }

    /// One line.
    #[inline]
    pub(super) fn line(&self, number: usize) -> &[u8; LINE] {
        match self {
            Self::Heap(lines) => &lines[number].0,
            Self::Huge(map) => &map.as_chunks().0[number],
        }
    }

    /// One line, mutable.
    #[inline]
    pub(super) fn line_mut(&mut self, number: usize) -> &mut [u8; LINE] {
        match self {
            Self::Heap(lines) => &mut lines[number].0,
            Self::Huge(map) => &mut map.as_chunks_mut().0[number],
        }
    }

    /// Zeroes all lines.
    pub(super) fn clear(&mut self) {
        match self {
            Self::Heap(lines) => lines.fill(Aligned([0; LINE])),
            Self::Huge(map) => map.fill(0),
        }
    }
}
