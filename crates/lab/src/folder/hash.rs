//! A hash that is the same on every machine and in every version.

/// The 128-bit FNV-1a hash of a text, in hexadecimal digits.
pub(crate) fn hash(text: &str) -> String {
    let start = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
    let step = |hash: u128, byte: u8| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    };
    format!("{:032x}", text.bytes().fold(start, step))
}

#[cfg(test)]
mod tests {
    use super::hash;

    /// The expected values are published ones of 128-bit FNV-1a.
    #[test]
    fn hashes_are_those_of_the_definition() {
        assert_eq!(hash(""), "6c62272e07bb014262b821756295c58d");
        assert_eq!(hash("a"), "d228cb696f1a8caf78912b704e4a8964");
    }
}
