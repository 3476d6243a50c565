//! A hasher for maps keyed by block or inode number.
//!
//! The keys come from the engine's own arithmetic on verified images, and no iteration order of such a map reaches the
//! disk, so one multiplication does; the default hasher costs more than the look-up.

use std::hash::{BuildHasherDefault, Hasher};

/// Builds [`NumberHash`].
pub(crate) type NumberHasher = BuildHasherDefault<NumberHash>;

/// Fibonacci hashing of one number.
#[derive(Default)]
pub(crate) struct NumberHash(u64);

impl Hasher for NumberHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0.rotate_left(8) ^ u64::from(byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        let product = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = product ^ (product >> 32);
    }
}
