//! The CRCs of ext4, of its journal and of partition tables. The caller passes the running state,
//! and no function inverts its result.

/// crc32c (Castagnoli, reflected) continued from `state`. The result for one piece of the input is
/// the state for the next piece. The state before the first piece is `!0` or a seed.
#[must_use]
pub fn crc32c_raw(state: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!state, bytes)
}

/// CRC-16 with reflected polynomial 0xA001 continued from `state`; uninit_bg starts with `!0`.
#[must_use]
pub fn crc16(state: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(state, |state, byte| {
        let index = usize::from((state ^ u16::from(*byte)) & 0xFF);
        state >> 8 ^ CRC16_TABLE[index]
    })
}

/// CRC-32 with polynomial 0x04C11DB7, most significant bit first, continued from `state`; the
/// journal's old (v1) commit checksum starts with `!0`.
#[must_use]
pub fn crc32_be(state: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(state, |state, byte| {
        let index = crate::num::usize_from_u32(state >> 24 ^ u32::from(*byte));
        state << 8 ^ CRC32_BE_TABLE[index]
    })
}

/// CRC-32 as in zlib (reflected polynomial 0xEDB88320) continued from `state`. Partition tables
/// start with `!0` and invert the result. They are short, so no lookup table is used.
#[must_use]
pub fn crc32(state: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(state, |state, byte| {
        (0..8).fold(state ^ u32::from(*byte), |value, _| {
            if value & 1 == 1 { value >> 1 ^ 0xEDB8_8320 } else { value >> 1 }
        })
    })
}

const CRC16_TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte: u16 = 0;
    while byte < 256 {
        let mut value = byte;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { value >> 1 ^ 0xA001 } else { value >> 1 };
            bit += 1;
        }
        table[crate::num::usize_from_u64(crate::num::u64_from_u16(byte))] = value;
        byte += 1;
    }
    table
};

const CRC32_BE_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte: u32 = 0;
    while byte < 256 {
        let mut value = byte << 24;
        let mut bit = 0;
        while bit < 8 {
            value = if value >> 31 == 1 { value << 1 ^ 0x04C1_1DB7 } else { value << 1 };
            bit += 1;
        }
        table[crate::num::usize_from_u32(byte)] = value;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    // The check values are those of the catalogued CRCs over "123456789". If a catalogued CRC
    // inverts its result, the test inverts ours.

    #[test]
    fn crc32c_check_value_and_chaining() {
        assert_eq!(!crc32c_raw(!0, b"123456789"), 0xE306_9283);
        assert_eq!(crc32c_raw(crc32c_raw(!0, b"1234"), b"56789"), crc32c_raw(!0, b"123456789"));
        assert_eq!(crc32c_raw(7, b""), 7);
    }

    #[test]
    fn crc16_check_values() {
        assert_eq!(crc16(0, b"123456789"), 0xBB3D);
        assert_eq!(crc16(0xFFFF, b"123456789"), 0x4B37);
    }

    #[test]
    fn crc32_check_value() {
        assert_eq!(!crc32(!0, b"123456789"), 0xCBF4_3926);
    }

    #[test]
    fn crc32_be_check_value() {
        assert_eq!(crc32_be(!0, b"123456789"), 0x0376_E6E7);
    }
}
