//! The interface for instruments: for comparing decisions with a kernel's, and for tests of tests.
//! Users of a file system need none of it: an instance opened without [`Instruments`] does not use
//! it.

mod broken_rule;
mod io_ends;

pub use broken_rule::BrokenRule;
pub use io_ends::{IoEnd, IoEndSource, IoEnds};

/// What an instance does differently for an instrument.
#[derive(Clone, Debug, Default)]
pub struct Instruments {
    /// Cut write-back where Linux's page cache would cut it. Costs memory for each file that is
    /// written, even once it is clean.
    pub page_cache: bool,
    /// Reports when the I/O of write-back has ended. `None`: at once.
    pub io_ends: Option<IoEnds>,
    /// Blocks that a transaction may change before it is committed: 64 to three quarters of the
    /// log. `None`: a third of the log, as in Linux. Never more than three quarters of what the
    /// cache may hold, or 256 if that is more. Without a journal this is the only limit.
    pub transaction_blocks: Option<usize>,
    /// Stripe in blocks instead of the superblock's, as the mount option `stripe`.
    pub stripe: Option<u32>,
    /// A rule to break; only for tests of crash tests.
    pub broken_rule: Option<BrokenRule>,
}

impl Instruments {
    /// Follow Linux's page cache.
    #[must_use]
    pub fn page_cache() -> Self {
        Self { page_cache: true, ..Self::default() }
    }

    /// Follow Linux's page cache if `follow`.
    #[must_use]
    pub fn page_cache_if(follow: bool) -> Self {
        Self { page_cache: follow, ..Self::default() }
    }

    /// Transactions of at most this many blocks.
    #[must_use]
    pub fn transaction_blocks(blocks: usize) -> Self {
        Self { transaction_blocks: Some(blocks), ..Self::default() }
    }

    /// Break a rule.
    #[must_use]
    pub fn breaking(rule: Option<BrokenRule>) -> Self {
        Self { broken_rule: rule, ..Self::default() }
    }
}
