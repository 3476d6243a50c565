//! The pages of one stripe: bits for the state of each, and the existing data pages in order.
//!
//! In a sparse image many stripes hold only one or two pages. Such a stripe allocates nothing
//! besides its pages.

use blockyard_disk::num::{u64_from_usize, usize_from_u32};
use smallvec::SmallVec;

/// Bytes of one page.
pub(crate) const PAGE_SIZE: usize = 4096;
/// Pages per stripe: one bit of a mask each.
pub(crate) const STRIPE_PAGES: usize = 16;

/// Content of one page.
pub(crate) type PageData = Box<[u8; PAGE_SIZE]>;

/// What a page of the store holds.
#[derive(Clone, Copy)]
pub(crate) enum Page<'a> {
    Absent,
    Zero,
    Data(&'a [u8; PAGE_SIZE]),
}

/// The pages of one stripe; all absent at first. No page has a bit in both masks, and `held` has
/// one page for each bit of `data`.
#[derive(Clone, Default)]
pub(crate) struct Stripe {
    data: u16,
    zero: u16,
    held: SmallVec<[PageData; 2]>,
}

/// A page of zeroes on the heap.
pub(crate) fn zero_page() -> PageData {
    Box::new([0; PAGE_SIZE])
}

impl Stripe {
    /// A stripe whose pages are all marked as zero.
    pub(crate) const fn zero() -> Self {
        Self { data: 0, zero: u16::MAX, held: SmallVec::new_const() }
    }

    /// Whether all pages are marked as zero.
    pub(crate) const fn is_zero(&self) -> bool {
        self.zero == u16::MAX
    }

    /// What a page holds.
    pub(crate) fn page(&self, index: usize) -> Page<'_> {
        if self.data & bit(index) != 0 {
            Page::Data(&self.held[self.rank(index)])
        } else if self.zero & bit(index) != 0 {
            Page::Zero
        } else {
            Page::Absent
        }
    }

    /// All pages, in their order.
    pub(crate) fn pages(&self) -> impl Iterator<Item = Page<'_>> {
        (0..STRIPE_PAGES).map(|index| self.page(index))
    }

    /// The content of a data page, mutable; `None` if the page holds no data.
    pub(crate) fn data_mut(&mut self, index: usize) -> Option<&mut [u8; PAGE_SIZE]> {
        let rank = self.rank(index);
        (self.data & bit(index) != 0).then(|| &mut *self.held[rank])
    }

    /// Gives content to a page that holds no data.
    pub(crate) fn insert(&mut self, index: usize, content: PageData) -> &mut [u8; PAGE_SIZE] {
        debug_assert!(self.data & bit(index) == 0, "page {index} has content");
        let rank = self.rank(index);
        self.data |= bit(index);
        self.zero &= !bit(index);
        self.held.insert(rank, content);
        &mut self.held[rank]
    }

    /// Makes a page absent or zero. Returns whether it was a data page.
    pub(crate) fn clear(&mut self, index: usize, is_zero: bool) -> bool {
        let rank = self.rank(index);
        let had_data = self.data & bit(index) != 0;
        if had_data {
            self.held.remove(rank);
        }
        self.data &= !bit(index);
        self.zero = if is_zero { self.zero | bit(index) } else { self.zero & !bit(index) };
        had_data
    }

    /// The number of data pages.
    pub(crate) fn resident(&self) -> u64 {
        u64_from_usize(self.held.len())
    }

    /// The number of data pages before a page.
    fn rank(&self, index: usize) -> usize {
        usize_from_u32((self.data & (bit(index) - 1)).count_ones())
    }
}

fn bit(index: usize) -> u16 {
    1 << index
}

#[cfg(test)]
mod tests {
    use super::{Page, STRIPE_PAGES, Stripe, zero_page};

    /// Compares with a plain array, in an order that inserts pages before, between and after
    /// others.
    #[test]
    fn a_stripe_is_an_array_of_pages() {
        let mut stripe = Stripe::default();
        let mut model = [None; STRIPE_PAGES];
        for step in 0..400usize {
            let index = step * 7 % 16;
            match (step * step / 3 % 4, model[index]) {
                (0 | 1, None | Some(0)) => {
                    let mut content = zero_page();
                    content[5] = u8::try_from(step % 250 + 1).unwrap();
                    stripe.insert(index, content);
                    model[index] = Some(u8::try_from(step % 250 + 1).unwrap());
                }
                (2, Some(1..)) => {
                    stripe.data_mut(index).unwrap()[5] = 77;
                    model[index] = Some(77);
                }
                (kind, before) => {
                    let is_zero = kind % 2 == 1;
                    assert_eq!(stripe.clear(index, is_zero), matches!(before, Some(1..)));
                    model[index] = is_zero.then_some(0);
                }
            }
            let found: Vec<Option<u8>> = stripe
                .pages()
                .map(|page| match page {
                    Page::Absent => None,
                    Page::Zero => Some(0),
                    Page::Data(content) => Some(content[5]),
                })
                .collect();
            assert_eq!(found, model, "step {step}");
            let held = model.iter().filter(|page| matches!(page, Some(1..))).count();
            assert_eq!(stripe.resident(), u64::try_from(held).unwrap());
            for (index, page) in model.iter().enumerate() {
                assert_eq!(stripe.data_mut(index).is_some(), matches!(page, Some(1..)));
            }
        }
        assert!(!stripe.is_zero() && Stripe::zero().is_zero());
        assert!(Stripe::zero().pages().all(|page| matches!(page, Page::Zero)));
    }
}
