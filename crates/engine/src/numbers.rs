//! A hasher for maps keyed by block or inode number.
//!
//! The keys are bounded by the size of the image, and no iteration order of such a map reaches the
//! disk. So one multiplication is enough. The default hasher would take longer than the rest of a
//! lookup.

use blockyard_disk::num::usize_from_u64;
use std::hash::{BuildHasherDefault, Hasher};

/// Number of shards of in-memory data. Each has its own lock, so 64 threads seldom collide.
pub(crate) const SHARDS: usize = 64;

/// The shard of a number. Neighbouring numbers are spread over the shards, and so are numbers a
/// block group apart. The factor differs from that of [`NumberHash`]: a hash map takes the tags of
/// its entries from the upper bits of the hash, and with the same factor most of these bits would
/// be equal within a shard.
pub(crate) fn shard_of(number: u64) -> usize {
    usize_from_u64(number.wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 58)
}

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

#[cfg(test)]
mod tests {
    use super::{SHARDS, shard_of};

    /// Tries neighbouring numbers, and numbers of inodes or blocks at the same index in each group.
    #[test]
    fn numbers_at_any_distance_are_spread_evenly() {
        for distance in [1, 2, 16, 64, 1712, 2048, 8192, 32_768, 32_768 * 16] {
            let mut counts = [0u32; SHARDS];
            for number in 0..64_000 {
                counts[shard_of(11 + number * distance)] += 1;
            }
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(*least > 500 && *most < 2000, "{distance}: {least} to {most} of 1000");
        }
    }
}
