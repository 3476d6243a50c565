//! UUID and hash seed: given, or drawn from one seed, so that an image can be reproduced to the
//! byte.

use super::options::{Options, UuidChoice};

/// What distinguishes this file system from another with the same parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) uuid: [u8; 16],
    pub(super) hash_seed: [u8; 16],
}

/// 100 ns ticks between 1582-10-15, where UUID time begins, and 1970-01-01.
const UUID_EPOCH_TICKS: u64 = 0x01B2_1DD2_1381_4000;

impl Identity {
    /// The identity that the options request.
    pub(super) fn of(options: &Options) -> Self {
        let mut stream = Stream(options.seed);
        let drawn = stream.bytes();
        let seed = stream.bytes();
        let uuid = match options.uuid {
            UuidChoice::Given(uuid) => uuid,
            UuidChoice::Clear => [0; 16],
            UuidChoice::Random => with_version(drawn, 4),
            UuidChoice::Time => time_uuid(options.time, drawn),
        };
        Self { uuid, hash_seed: options.hash_seed.unwrap_or_else(|| with_version(seed, 4)) }
    }
}

fn with_version(mut bytes: [u8; 16], version: u8) -> [u8; 16] {
    bytes[6] = bytes[6] & 0x0F | version << 4;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    bytes
}

/// A version 1 UUID: the time, with clock sequence and node from random bytes (multicast bit set,
/// as for a host without a network card).
fn time_uuid(seconds: u64, random: [u8; 16]) -> [u8; 16] {
    let ticks = (seconds.wrapping_mul(10_000_000).wrapping_add(UUID_EPOCH_TICKS)).to_be_bytes();
    let mut uuid = random;
    uuid[..4].copy_from_slice(&ticks[4..]);
    uuid[4..6].copy_from_slice(&ticks[2..4]);
    uuid[6..8].copy_from_slice(&ticks[..2]);
    uuid[10] |= 1;
    with_version(uuid, 1)
}

/// SplitMix64: a small stream of well-mixed numbers from one seed.
struct Stream(u64);

impl Stream {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn bytes(&mut self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.next().to_le_bytes());
        bytes[8..].copy_from_slice(&self.next().to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::{Identity, Options, UuidChoice};

    #[test]
    fn the_seed_alone_decides_what_is_drawn() {
        let one = Identity::of(&Options::ext4().identity(7, 0));
        assert_eq!(one, Identity::of(&Options::ext4().identity(7, 99)));
        assert_ne!(one, Identity::of(&Options::ext4().identity(8, 0)));
        assert_eq!((one.uuid[6] >> 4, one.uuid[8] >> 6), (4, 2));
    }

    #[test]
    fn a_time_uuid_holds_the_time() {
        let options = Options { uuid: UuidChoice::Time, time: 0, ..Options::ext4() };
        let uuid = Identity::of(&options).uuid;
        assert_eq!(uuid[..8], [0x13, 0x81, 0x40, 0x00, 0x1D, 0xD2, 0x11, 0xB2]);
    }
}
