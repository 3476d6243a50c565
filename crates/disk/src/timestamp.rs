//! Time stamps: signed 32-bit seconds, extended by two bits that share an extra word with the
//! nanoseconds.
//!
//! Seconds = sign-extended low word + (extra & 3) * 2^32, which covers 1901-12-13 to 2446-05-10.

use crate::num::{high32, low32};

/// A point in time since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp {
    /// Unix seconds, negative before 1970.
    pub seconds: i64,
    /// Nanoseconds, below 10^9. In a time read from a damaged inode, any 30-bit value is possible.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// Earliest seconds that can be stored.
    pub const SECONDS_MIN: i64 = -(1 << 31);
    /// Latest seconds that can be stored with an extra word.
    pub const SECONDS_MAX: i64 = (3 << 32) + (1 << 31) - 1;
    /// Latest seconds that can be stored without an extra word.
    pub const SECONDS_MAX_SHORT: i64 = (1 << 31) - 1;

    /// A time of whole seconds.
    #[must_use]
    pub const fn from_seconds(seconds: i64) -> Self {
        Self { seconds, nanoseconds: 0 }
    }

    /// Joins the two words of a time. Pass 0 as `extra` if the inode has no extra word.
    #[must_use]
    pub fn from_disk(low: u32, extra: u32) -> Self {
        let seconds = i64::from(low.cast_signed()) + (i64::from(extra & 3) << 32);
        Self { seconds, nanoseconds: extra >> 2 }
    }

    /// The two words of a time, clamped to [`Self::SECONDS_MIN`] and [`Self::SECONDS_MAX`].
    #[must_use]
    pub fn to_disk(self) -> (u32, u32) {
        let seconds = self.seconds.clamp(Self::SECONDS_MIN, Self::SECONDS_MAX);
        let low = low32(seconds.cast_unsigned());
        let above = seconds - i64::from(low.cast_signed());
        let epoch = high32(above.cast_unsigned()) & 3;
        (low, self.nanoseconds << 2 | epoch)
    }

    /// The only word of a time in an inode without extra words, clamped to 32 signed bits.
    #[must_use]
    pub fn to_disk_short(self) -> u32 {
        low32(self.seconds.clamp(Self::SECONDS_MIN, Self::SECONDS_MAX_SHORT).cast_unsigned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_edges_of_every_epoch_round_trip() {
        for seconds in [
            Timestamp::SECONDS_MIN,
            -1,
            0,
            (1 << 31) - 1,
            1 << 31,
            (1 << 32) - 1,
            1 << 32,
            (1 << 32) + (1 << 31),
            Timestamp::SECONDS_MAX,
        ] {
            let time = Timestamp { seconds, nanoseconds: 999_999_999 };
            let (low, extra) = time.to_disk();
            assert_eq!(Timestamp::from_disk(low, extra), time);
        }
    }

    #[test]
    fn known_encodings() {
        // 2038-01-19 03:14:08 is the first second that needs one of the two extra bits.
        assert_eq!(Timestamp::from_seconds(1 << 31).to_disk(), (0x8000_0000, 1));
        assert_eq!(Timestamp::from_seconds(-1).to_disk(), (0xFFFF_FFFF, 0));
        assert_eq!(Timestamp::from_seconds(1 << 40).to_disk_short(), 0x7FFF_FFFF);
    }
}
