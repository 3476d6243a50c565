//! The door for instruments: for comparing decisions with a kernel's, and for tests of tests.
//! Nothing here is for users of a file system: an instance that is opened without [`Instruments`]
//! knows of none of it.

mod broken_rule;
mod io_ends;

pub use broken_rule::BrokenRule;
pub use io_ends::{IoEnd, IoEndSource, IoEnds};

/// What an instance is to do differently for an instrument.
#[derive(Clone, Debug, Default)]
pub struct Instruments {
    /// Cut write-back where Linux's page cache would make it cut. Costs memory for each file that
    /// is written, also when it is clean.
    pub page_cache: bool,
    /// Who tells when the I/O of write-back has ended. Nobody: at once.
    pub io_ends: Option<IoEnds>,
    /// Blocks that a transaction may change before it is committed, 64 to three quarters of the
    /// log; `None`: a third of it, as Linux. Never more than three quarters of what the cache may
    /// hold, which alone count without a journal.
    pub transaction_blocks: Option<usize>,
    /// A rule to break; only for tests of crash tests.
    pub broken_rule: Option<BrokenRule>,
}

impl Instruments {
    /// Linux's page cache is followed.
    #[must_use]
    pub fn page_cache() -> Self {
        Self { page_cache: true, ..Self::default() }
    }

    /// Linux's page cache is followed, if `follow`.
    #[must_use]
    pub fn page_cache_if(follow: bool) -> Self {
        Self { page_cache: follow, ..Self::default() }
    }

    /// Transactions of so many blocks.
    #[must_use]
    pub fn transaction_blocks(blocks: usize) -> Self {
        Self { transaction_blocks: Some(blocks), ..Self::default() }
    }

    /// A rule is broken.
    #[must_use]
    pub fn breaking(rule: Option<BrokenRule>) -> Self {
        Self { broken_rule: rule, ..Self::default() }
    }
}
