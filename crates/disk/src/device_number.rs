//! Device numbers in `i_block` of a device inode: the old form of 16 bits in word 0, or, if that is
//! 0, the wide form of 32 bits in word 1.

use crate::num::{low8, low16};

/// Major and minor number of a device inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceNumber {
    /// Major number, 12 bits on disk.
    pub major: u32,
    /// Minor number, 20 bits on disk.
    pub minor: u32,
}

impl DeviceNumber {
    /// Reads words 0 and 1 of `i_block`.
    #[must_use]
    pub const fn from_disk(old: u32, wide: u32) -> Self {
        if old != 0 {
            return Self { major: (old >> 8) & 0xFF, minor: old & 0xFF };
        }
        Self { major: (wide >> 8) & 0xFFF, minor: (wide & 0xFF) | ((wide >> 12) & 0xF_FF00) }
    }

    /// Words 0 and 1 of `i_block`; `None` if a number has too many bits.
    #[must_use]
    pub fn to_disk(self) -> Option<(u32, u32)> {
        let Self { major, minor } = self;
        if major <= 0xFF && minor <= 0xFF {
            return Some((major << 8 | minor, 0));
        }
        let wide = minor & 0xFF | major << 8 | (minor & !0xFF) << 12;
        (major <= 0xFFF && minor <= 0xF_FFFF).then_some((0, wide))
    }

    /// Major and minor in one number of 16 bits; `None` if either is above 255.
    #[must_use]
    pub fn to_short(self) -> Option<u16> {
        let fits = self.major <= 0xFF && self.minor <= 0xFF;
        fits.then(|| u16::from(low8(self.major)) << 8 | low16(self.minor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_round_trip() {
        for (major, minor, words) in [
            (8, 1, (0x801, 0)),
            (255, 255, (0xFFFF, 0)),
            (256, 0, (0, 0x1_0000)),
            (8, 256, (0, 0x10_0800)),
            (0xFFF, 0xF_FFFF, (0, 0xFFFF_FFFF)),
        ] {
            let number = DeviceNumber { major, minor };
            assert_eq!(number.to_disk(), Some(words));
            assert_eq!(DeviceNumber::from_disk(words.0, words.1), number);
        }
        assert_eq!(DeviceNumber { major: 0x1000, minor: 0 }.to_disk(), None);
        assert_eq!(DeviceNumber { major: 8, minor: 1 }.to_short(), Some(0x801));
    }
}
