//! The interface for instruments: code that compares the engine's decisions with a kernel's, and
//! tests that check whether the crash tests notice broken rules. Users of a file system do not need
//! this module: the default [`Instruments`] change nothing.

mod broken_rule;
mod io_ends;

pub use broken_rule::BrokenRule;
pub use io_ends::{IoEnd, IoEndSource, IoEnds};

/// What an instance does differently for an instrument.
#[derive(Clone, Debug, Default)]
pub struct Instruments {
    /// Imitate Linux's page cache: split write-back into requests where Linux splits it, reserve
    /// what Linux reserves, and fail for lack of space where Linux fails. Costs memory for each
    /// file that is written, even after its data was written back.
    pub page_cache: bool,
    /// Reports when the I/O of write-back has ended. If this is `None`, the I/O counts as ended at
    /// once.
    pub io_ends: Option<IoEnds>,
    /// The most blocks that a transaction may change before it is committed, from 64 to three
    /// quarters of the log. `None`: a third of the log, as in Linux. The metadata cache sets
    /// another limit: three quarters of what it may hold, or 256 blocks if that is more. Without a
    /// journal, the cache's limit is the only one.
    pub transaction_blocks: Option<usize>,
    /// Stripe width in blocks, instead of the superblock's; as the mount option `stripe`.
    pub stripe: Option<u32>,
    /// A rule to break; only for tests of crash tests.
    pub broken_rule: Option<BrokenRule>,
}

impl Instruments {
    /// Imitate Linux's page cache.
    #[must_use]
    pub fn page_cache() -> Self {
        Self { page_cache: true, ..Self::default() }
    }

    /// Imitate Linux's page cache if `follow` is true.
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
