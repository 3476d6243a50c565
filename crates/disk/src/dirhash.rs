//! The hash functions of indexed directories: legacy, half-MD4 and TEA, each over signed or
//! unsigned characters.
//!
//! The hash of a name decides which leaf of an indexed directory holds it. It is computed often, so
//! the functions here allocate nothing and pass over the name once.
//!
//! Invariants: the low bit of a major hash is 0, because index entries use that bit for "continues
//! from the previous leaf". A major hash is never `0xFFFF_FFFE`, the end-of-directory mark of
//! readdir.

/// Hash function of an indexed directory together with the signedness of characters.
///
/// The root of a directory stores 0..=2. Whether characters are signed is a flag of the whole file
/// system (`s_flags`). The numbers 3..=5 mean 0..=2 with unsigned characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashVersion {
    /// The first hash, a multiplicative one.
    Legacy,
    /// Half of MD4, the default of mke2fs.
    HalfMd4,
    /// The tiny encryption algorithm.
    Tea,
    /// [`Self::Legacy`] over unsigned characters.
    LegacyUnsigned,
    /// [`Self::HalfMd4`] over unsigned characters.
    HalfMd4Unsigned,
    /// [`Self::Tea`] over unsigned characters.
    TeaUnsigned,
}

impl HashVersion {
    /// The version byte 6, used only by encrypted directories with case folding; not computed here.
    pub const SIPHASH_RAW: u8 = 6;

    /// The version a byte names, or `None` for an unknown one (SipHash included).
    #[must_use]
    pub const fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            0 => Self::Legacy,
            1 => Self::HalfMd4,
            2 => Self::Tea,
            3 => Self::LegacyUnsigned,
            4 => Self::HalfMd4Unsigned,
            5 => Self::TeaUnsigned,
            _ => return None,
        })
    }

    /// The byte that names this version.
    #[must_use]
    pub const fn to_raw(self) -> u8 {
        match self {
            Self::Legacy => 0,
            Self::HalfMd4 => 1,
            Self::Tea => 2,
            Self::LegacyUnsigned => 3,
            Self::HalfMd4Unsigned => 4,
            Self::TeaUnsigned => 5,
        }
    }

    /// The same function over unsigned or signed characters, as the file system's flag says. The
    /// byte that a root stores does not change.
    #[must_use]
    pub const fn with_unsigned_chars(self, unsigned: bool) -> Self {
        match (self, unsigned) {
            (Self::Legacy | Self::LegacyUnsigned, false) => Self::Legacy,
            (Self::HalfMd4 | Self::HalfMd4Unsigned, false) => Self::HalfMd4,
            (Self::Tea | Self::TeaUnsigned, false) => Self::Tea,
            (Self::Legacy | Self::LegacyUnsigned, true) => Self::LegacyUnsigned,
            (Self::HalfMd4 | Self::HalfMd4Unsigned, true) => Self::HalfMd4Unsigned,
            (Self::Tea | Self::TeaUnsigned, true) => Self::TeaUnsigned,
        }
    }

    /// The byte a directory root stores: the function without the signedness.
    #[must_use]
    pub const fn stored(self) -> u8 {
        self.to_raw() % 3
    }

    const fn is_unsigned(self) -> bool {
        matches!(self, Self::LegacyUnsigned | Self::HalfMd4Unsigned | Self::TeaUnsigned)
    }
}

/// `s_hash_seed` as the functions use it: an all-zero seed stands for the constants of MD4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashSeed([u32; 4]);

impl HashSeed {
    const DEFAULT: [u32; 4] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];

    /// The seed from the four words of the superblock.
    #[must_use]
    pub const fn new(words: [u32; 4]) -> Self {
        match words {
            [0, 0, 0, 0] => Self(Self::DEFAULT),
            _ => Self(words),
        }
    }

    /// The seed from 16 bytes, read as four little-endian words.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let (words, _) = bytes.as_chunks::<4>();
        Self::new(core::array::from_fn(|i| u32::from_le_bytes(words[i])))
    }
}

/// Hash of a name. Hashes sort in readdir's order: by major, then by minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameHash {
    /// What index entries hold; the low bit is 0.
    pub major: u32,
    /// Second word, only for the order of readdir; 0 with the legacy function.
    pub minor: u32,
}

/// A hash function with its seed, ready to hash names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirHasher {
    version: HashVersion,
    seed: HashSeed,
}

impl DirHasher {
    /// The end-of-directory mark, which no name may hash to.
    const END_OF_DIRECTORY: u32 = 0xFFFF_FFFE;

    /// A hasher for one directory.
    #[must_use]
    pub const fn new(version: HashVersion, seed: HashSeed) -> Self {
        Self { version, seed }
    }

    /// The version of this hasher.
    #[must_use]
    pub const fn version(&self) -> HashVersion {
        self.version
    }

    /// Hashes a name (any bytes, any length).
    #[must_use]
    pub fn hash(&self, name: &[u8]) -> NameHash {
        let unsigned = self.version.is_unsigned();
        let (major, minor) = match self.version {
            HashVersion::Legacy | HashVersion::LegacyUnsigned => (legacy(name, unsigned), 0),
            HashVersion::HalfMd4 | HashVersion::HalfMd4Unsigned => {
                let mut state = self.seed.0;
                let mut rest = name;
                while !rest.is_empty() {
                    half_md4_round(&mut state, &words::<8>(rest, unsigned));
                    rest = rest.get(32..).unwrap_or_default();
                }
                (state[1], state[2])
            }
            HashVersion::Tea | HashVersion::TeaUnsigned => {
                let mut state = self.seed.0;
                let mut rest = name;
                while !rest.is_empty() {
                    tea_round(&mut state, &words::<4>(rest, unsigned));
                    rest = rest.get(16..).unwrap_or_default();
                }
                (state[0], state[1])
            }
        };
        let major = major & !1;
        let major = if major == Self::END_OF_DIRECTORY { Self::END_OF_DIRECTORY - 2 } else { major };
        NameHash { major, minor }
    }
}

/// A character as 32 bits, with or without its sign.
#[inline]
fn widen(byte: u8, unsigned: bool) -> u32 {
    if unsigned { u32::from(byte) } else { i32::from(byte.cast_signed()).cast_unsigned() }
}

/// Packs the first `4 * N` bytes of `rest` into `N` words. If `rest` is shorter, the words are
/// padded with its length, repeated in each byte.
#[inline]
fn words<const N: usize>(rest: &[u8], unsigned: bool) -> [u32; N] {
    let length = u32::from_le_bytes(rest.len().to_le_bytes().first_chunk().copied().unwrap_or_default());
    let pad = length | (length << 8);
    let pad = pad | (pad << 16);
    let mut out = [pad; N];
    for (word, bytes) in out.iter_mut().zip(rest.chunks(4)) {
        *word = bytes.iter().fold(pad, |value, &byte| (value << 8).wrapping_add(widen(byte, unsigned)));
    }
    out
}

/// The steps of one round. Each step computes `a = rotl(a + f(b, c, d) + x + k, s)`. Then the roles
/// of `a` to `d` rotate.
macro_rules! half_md4_steps {
    ($f:expr, $k:expr, $state:ident, $x:ident, [$($i:literal)*], [$($s:literal)*]) => {{
        let [mut a, mut b, mut c, mut d] = $state;
        $(
            let t = a.wrapping_add($f(b, c, d)).wrapping_add($x[$i]).wrapping_add($k).rotate_left($s);
            (a, b, c, d) = (d, t, b, c);
        )*
        $state = [a, b, c, d];
    }};
}

/// Mixes eight words into the state: three rounds of eight steps.
#[inline]
fn half_md4_round(state: &mut [u32; 4], x: &[u32; 8]) {
    let select = |x: u32, y: u32, z: u32| z ^ (x & (y ^ z));
    let majority = |x: u32, y: u32, z: u32| (x & y).wrapping_add((x ^ y) & z);
    let parity = |x: u32, y: u32, z: u32| x ^ y ^ z;
    let mut s = *state;
    half_md4_steps!(select, 0u32, s, x, [0 1 2 3 4 5 6 7], [3 7 11 19 3 7 11 19]);
    half_md4_steps!(majority, 0x5A82_7999, s, x, [1 3 5 7 0 2 4 6], [3 5 9 13 3 5 9 13]);
    half_md4_steps!(parity, 0x6ED9_EBA1, s, x, [3 7 2 6 1 5 0 4], [3 9 11 15 3 9 11 15]);
    for (sum, word) in state.iter_mut().zip(s) {
        *sum = sum.wrapping_add(word);
    }
}

/// Mixes four words into the first two words of the state: sixteen rounds of TEA.
#[inline]
fn tea_round(state: &mut [u32; 4], &[p, q, r, s]: &[u32; 4]) {
    let [mut b0, mut b1, ..] = *state;
    let mut sum = 0u32;
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9E37_79B9);
        b0 = b0.wrapping_add((b1 << 4).wrapping_add(p) ^ b1.wrapping_add(sum) ^ (b1 >> 5).wrapping_add(q));
        b1 = b1.wrapping_add((b0 << 4).wrapping_add(r) ^ b0.wrapping_add(sum) ^ (b0 >> 5).wrapping_add(s));
    }
    state[0] = state[0].wrapping_add(b0);
    state[1] = state[1].wrapping_add(b1);
}

/// The multiplicative hash of the first htree.
fn legacy(name: &[u8], unsigned: bool) -> u32 {
    let (mut h0, mut h1) = (0x12A3_FE2Du32, 0x37AB_E8F9u32);
    for &byte in name {
        let mixed = h0 ^ widen(byte, unsigned).wrapping_mul(7_152_373);
        let mut h = h1.wrapping_add(mixed);
        if h & 0x8000_0000 != 0 {
            h = h.wrapping_sub(0x7FFF_FFFF);
        }
        (h1, h0) = (h0, h);
    }
    h0 << 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID_BEEF: [u8; 16] =
        [0xde, 0xad, 0xbe, 0xef, 0x12, 0x34, 0x43, 0x21, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff];
    const UUID_0123: [u8; 16] =
        [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef];

    /// A name and its legacy, half-MD4 and TEA results.
    type Vector<'a> = (&'a [u8], u32, (u32, u32), (u32, u32));

    fn hash(version: HashVersion, seed: [u8; 16], name: &[u8]) -> (u32, u32) {
        let hash = DirHasher::new(version, HashSeed::from_bytes(seed)).hash(name);
        (hash.major, hash.minor)
    }

    #[test]
    fn results_equal_those_of_debugfs_without_a_seed() {
        use HashVersion::{HalfMd4, Legacy, Tea};
        let long_x = [b"0123456789abcdef0123456789abcdef".as_slice(), b"X"].concat();
        let n200 = [b'n'; 200];
        let vectors: [Vector<'_>; 6] = [
            (b"a", 0xe74b_53e2, (0xd5fa_7d7a, 0xacb4_8187), (0x6d0e_a4c0, 0xc189_22df)),
            (b"abc", 0x75af_d992, (0xd196_a868, 0xc420_eb28), (0xb143_5ec4, 0x3f7e_aa0e)),
            (b"lost+found", 0x5e2a_ba24, (0x591d_e422, 0x6ffc_56e0), (0x2dbf_9e80, 0xbfeb_ee4f)),
            (
                b"file_with_a_rather_long_name_1",
                0x57e8_7ee0,
                (0x4fa2_121e, 0x8927_eac4),
                (0xfa94_0f86, 0xc1c4_a2da),
            ),
            (&long_x, 0x6b86_9690, (0x75e0_fd86, 0x4233_8bcb), (0x993c_84be, 0x64fe_ec4c)),
            (&n200, 0xcf72_88b6, (0x6f7d_9752, 0xe01d_e9d9), (0xa6af_85fe, 0xd4c5_f77f)),
        ];
        for (name, legacy, half, tea) in vectors {
            assert_eq!(hash(Legacy, [0; 16], name), (legacy, 0), "{name:?}");
            assert_eq!(hash(HalfMd4, [0; 16], name), half, "{name:?}");
            assert_eq!(hash(Tea, [0; 16], name), tea, "{name:?}");
            let unsigned = |version: HashVersion| version.with_unsigned_chars(true);
            assert_eq!(hash(unsigned(Legacy), [0; 16], name), (legacy, 0), "ASCII has no sign: {name:?}");
            assert_eq!(hash(unsigned(HalfMd4), [0; 16], name), half, "ASCII has no sign: {name:?}");
            assert_eq!(hash(unsigned(Tea), [0; 16], name), tea, "ASCII has no sign: {name:?}");
        }
    }

    #[test]
    fn the_sign_of_characters_matters_beyond_ascii() {
        use HashVersion::*;
        let name = "héllo".as_bytes();
        assert_eq!(hash(Legacy, [0; 16], name), (0x2399_28cc, 0));
        assert_eq!(hash(HalfMd4, [0; 16], name), (0x98e0_30c8, 0xe189_ee6e));
        assert_eq!(hash(Tea, [0; 16], name), (0x313e_cf7e, 0xedbe_6b7e));
        assert_eq!(hash(LegacyUnsigned, [0; 16], name), (0x7798_acd8, 0));
        assert_eq!(hash(HalfMd4Unsigned, [0; 16], name), (0xa5c6_7250, 0x6cd2_61bb));
        assert_eq!(hash(TeaUnsigned, [0; 16], name), (0x7472_d1be, 0x99e4_e95b));
    }

    #[test]
    fn results_equal_those_of_debugfs_with_a_seed() {
        use HashVersion::*;
        assert_eq!(hash(HalfMd4, UUID_BEEF, b"abc"), (0x1d68_c436, 0x9965_cad6));
        assert_eq!(hash(Tea, UUID_BEEF, b"abc"), (0x4511_62de, 0x82bf_fd2f));
        assert_eq!(hash(HalfMd4, UUID_BEEF, b"lost+found"), (0x976f_ea22, 0x41a1_4fdb));
        assert_eq!(hash(Tea, UUID_BEEF, b"lost+found"), (0xfb06_c560, 0xe5a4_c90a));
        let name = "héllo".as_bytes();
        assert_eq!(hash(HalfMd4, UUID_BEEF, name), (0x31f2_cefa, 0x493b_a23c));
        assert_eq!(hash(HalfMd4Unsigned, UUID_BEEF, name), (0x47ed_9af4, 0x6f39_aa03));
        assert_eq!(hash(Tea, UUID_BEEF, name), (0x88fd_ba7c, 0x9986_fdac));
        assert_eq!(hash(TeaUnsigned, UUID_BEEF, name), (0xe2b2_91e4, 0xfe0a_450c));
    }

    #[test]
    fn results_equal_those_of_the_kernel() {
        let x33 = [b'x'; 33];
        let vectors: [(&[u8], u32, u32); 6] = [
            (b"a", 0xd5fa_7d7a, 0x35dc_0cc4),
            (b"home", 0xa46f_19a4, 0x1042_f356),
            (b"usr", 0x8015_3bf2, 0x7405_7cf0),
            (b"dir0000", 0xbf48_8276, 0xe803_03b4),
            (&x33, 0xebd0_861e, 0x9a80_601e),
            (&[0xc3, 0xa9, 0x74, 0xc3, 0xa9], 0xa69a_4d3a, 0xff32_9f74),
        ];
        for (name, without, with) in vectors {
            assert_eq!(hash(HashVersion::HalfMd4, [0; 16], name).0, without, "{name:?}");
            assert_eq!(hash(HashVersion::HalfMd4, UUID_0123, name).0, with, "{name:?}");
        }
    }

    #[test]
    fn version_bytes_go_round() {
        for raw in 0..=5 {
            let version = HashVersion::from_raw(raw).unwrap();
            assert_eq!(version.to_raw(), raw);
            assert_eq!(version.with_unsigned_chars(true).stored(), raw % 3);
            // A superblock may name an unsigned form without the flag: the flag decides.
            assert_eq!(version.with_unsigned_chars(false).to_raw(), raw % 3);
        }
        assert_eq!(HashVersion::from_raw(HashVersion::SIPHASH_RAW), None);
    }

    #[test]
    fn the_low_bit_is_clear_for_names_of_every_length() {
        let bytes: Vec<u8> = (0..=255).collect();
        for length in 0..=bytes.len() {
            for raw in 0..=5 {
                let hasher = DirHasher::new(HashVersion::from_raw(raw).unwrap(), HashSeed::new([1, 2, 3, 4]));
                let hash = hasher.hash(&bytes[..length]);
                assert_eq!(hash.major & 1, 0);
                assert_ne!(hash.major, 0xFFFF_FFFE);
            }
        }
    }
}
