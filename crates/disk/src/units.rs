//! Newtypes for numbers of the format that could be confused with each other.
//!
//! For blocks and clusters, `*Nr` is a position and `*Count` a length: position plus count is a
//! position, and the difference of two positions is a count. Blocks, clusters and groups are
//! numbered from 0, inodes from 1.

use core::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($raw:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name($raw);

        impl $name {
            /// The number zero.
            pub const ZERO: Self = Self(0);

            /// Wraps a raw number.
            #[inline]
            #[must_use]
            pub const fn new(raw: $raw) -> Self {
                Self(raw)
            }

            /// The raw number.
            #[inline]
            #[must_use]
            pub const fn raw(self) -> $raw {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

macro_rules! position_and_count {
    ($nr:ident, $count:ident) => {
        impl core::ops::Add<$count> for $nr {
            type Output = $nr;
            #[inline]
            fn add(self, n: $count) -> $nr {
                $nr(self.0 + n.0)
            }
        }

        impl core::ops::Sub<$nr> for $nr {
            type Output = $count;
            #[inline]
            fn sub(self, earlier: $nr) -> $count {
                $count(self.0 - earlier.0)
            }
        }

        impl core::ops::Add for $count {
            type Output = $count;
            #[inline]
            fn add(self, n: $count) -> $count {
                $count(self.0 + n.0)
            }
        }

        impl core::ops::Sub for $count {
            type Output = $count;
            #[inline]
            fn sub(self, n: $count) -> $count {
                $count(self.0 - n.0)
            }
        }

        impl core::ops::AddAssign for $count {
            #[inline]
            fn add_assign(&mut self, n: $count) {
                self.0 += n.0;
            }
        }

        impl core::ops::SubAssign for $count {
            #[inline]
            fn sub_assign(&mut self, n: $count) {
                self.0 -= n.0;
            }
        }

        impl core::iter::Sum for $count {
            fn sum<I: Iterator<Item = $count>>(iter: I) -> $count {
                iter.fold($count::ZERO, |a, b| a + b)
            }
        }

        impl $nr {
            /// This position moved up by `n`, or `None` when that leaves the number range.
            #[inline]
            #[must_use]
            pub const fn checked_add(self, n: $count) -> Option<$nr> {
                match self.0.checked_add(n.0) {
                    Some(raw) => Some($nr(raw)),
                    None => None,
                }
            }
        }
    };
}

number! {
    /// Physical block number in the file system, in units of the block size.
    BlockNr(u64)
}
number! {
    /// A number of physical blocks.
    BlockCount(u64)
}
number! {
    /// Physical cluster number in the file system: `(block - first_data_block) / cluster ratio`.
    ClusterNr(u64)
}
number! {
    /// A number of clusters.
    ClusterCount(u64)
}
number! {
    /// Cluster offset inside one block group: the bit number in its block bitmap.
    ClusterOffset(u32)
}
number! {
    /// Block group number.
    GroupNr(u32)
}
number! {
    /// Flex group number: `group >> log_groups_per_flex`.
    FlexNr(u32)
}
number! {
    /// Inode number, one-based; 0 means "none" on disk.
    InodeNr(u32)
}
number! {
    /// Logical block number of a file, in units of the block size.
    LogicalBlock(u32)
}
number! {
    /// jbd2 transaction id. Ids wrap at 2^32: compare them with [`TxnId::is_after`]. `<` compares
    /// the raw numbers.
    TxnId(u32)
}

position_and_count!(BlockNr, BlockCount);
position_and_count!(ClusterNr, ClusterCount);

impl InodeNr {
    /// The bad-blocks inode.
    pub const BAD_BLOCKS: Self = Self(1);
    /// The root directory.
    pub const ROOT: Self = Self(2);
    /// The resize inode, which owns the reserved descriptor blocks.
    pub const RESIZE: Self = Self(7);
    /// The internal journal.
    pub const JOURNAL: Self = Self(8);
}

impl TxnId {
    /// The transaction id that follows, wrapping at 2^32.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Whether this transaction comes after `other` (signed 32-bit distance, as jbd2 compares).
    #[inline]
    #[must_use]
    pub const fn is_after(self, other: Self) -> bool {
        let distance = self.0.wrapping_sub(other.0);
        distance != 0 && distance < 1 << 31
    }
}

#[cfg(test)]
mod tests {
    use super::TxnId;

    #[test]
    fn transaction_ids_compare_across_the_wrap() {
        assert!(TxnId::new(1).is_after(TxnId::new(u32::MAX)));
        assert!(!TxnId::new(u32::MAX).is_after(TxnId::new(1)));
        assert!(!TxnId::new(7).is_after(TxnId::new(7)));
        assert_eq!(TxnId::new(u32::MAX).next(), TxnId::ZERO);
    }
}
