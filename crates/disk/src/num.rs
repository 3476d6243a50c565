//! Conversions between machine numbers, so that no other module needs `as`. Each is lossless,
//! unless its name says which bits it keeps or its documentation gives a bound.
//!
//! blockyard supports 64-bit hosts only. The assertion below makes `u64 <-> usize` lossless.

#![allow(clippy::as_conversions)]

const _: () = assert!(usize::BITS == 64, "blockyard needs a 64-bit host");

/// An index or length from a 32-bit number; lossless on every supported host.
#[inline]
#[must_use]
pub const fn usize_from_u32(n: u32) -> usize {
    n as usize
}

/// `u64::from` for constant expressions.
#[inline]
#[must_use]
pub const fn u64_from_u32(n: u32) -> u64 {
    n as u64
}

/// `u64::from` for constant expressions.
#[inline]
#[must_use]
pub const fn u64_from_u16(n: u16) -> u64 {
    n as u64
}

/// An index or length from a 64-bit number; lossless on every supported host.
#[inline]
#[must_use]
pub const fn usize_from_u64(n: u64) -> usize {
    n as usize
}

/// A 64-bit number from a length; lossless on every supported host.
#[inline]
#[must_use]
pub const fn u64_from_usize(n: usize) -> u64 {
    n as u64
}

/// A 32-bit number from a length that the caller knows to be below 2^32.
///
/// # Panics
/// When the length is 2^32 or more.
#[inline]
#[must_use]
pub const fn u32_from_usize(n: usize) -> u32 {
    assert!(n <= u32::MAX as usize);
    n as u32
}

/// A 32-bit number from a 64-bit one that the caller knows to be below 2^32.
///
/// # Panics
/// When the number is 2^32 or more.
#[inline]
#[must_use]
pub const fn u32_from_u64(n: u64) -> u32 {
    assert!(n <= u32::MAX as u64);
    n as u32
}

/// The low 32 bits, as the on-disk `_lo` fields hold them.
#[inline]
#[must_use]
pub const fn low32(n: u64) -> u32 {
    n as u32
}

/// The high 32 bits, as the on-disk `_hi` fields hold them.
#[inline]
#[must_use]
pub const fn high32(n: u64) -> u32 {
    (n >> 32) as u32
}

/// The low 16 bits.
#[inline]
#[must_use]
pub const fn low16(n: u32) -> u16 {
    n as u16
}

/// The high 16 bits of a 32-bit number.
#[inline]
#[must_use]
pub const fn high16(n: u32) -> u16 {
    (n >> 16) as u16
}

/// The low 8 bits.
#[inline]
#[must_use]
pub const fn low8(n: u32) -> u8 {
    n as u8
}

/// The low 64 bits.
#[inline]
#[must_use]
pub const fn low64(n: u128) -> u64 {
    n as u64
}

/// The high 64 bits.
#[inline]
#[must_use]
pub const fn high64(n: u128) -> u64 {
    (n >> 64) as u64
}

/// Two 32-bit halves as one number.
#[inline]
#[must_use]
pub const fn join32(hi: u32, lo: u32) -> u64 {
    ((hi as u64) << 32) | lo as u64
}

/// Two 16-bit halves as one number.
#[inline]
#[must_use]
pub const fn join16(hi: u16, lo: u16) -> u32 {
    ((hi as u32) << 16) | lo as u32
}

/// A count as a float, for computing figures; exact below 2^53.
#[inline]
#[must_use]
pub const fn count_as_f64(count: u64) -> f64 {
    count as f64
}
