//! The crc32c of ext4: a running state without inversion at either end.

/// Continues the crc32c state over `bytes`; a fresh sum starts from `u32::MAX`.
#[inline]
pub(crate) fn crc32c_raw(state: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!state, bytes)
}
