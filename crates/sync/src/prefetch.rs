//! Telling the CPU what will be read soon: the one place that needs an instruction that Rust offers no safe function for.

/// Bytes of a line of the CPU's cache.
const LINE: usize = 64;

/// Asks the CPU for the lines of its cache that a value lies in, so that they come while other work goes on. Only a hint: it
/// has no effect but on time, and none on CPUs for which nothing is known here. For values of a few lines.
#[inline]
pub fn prefetch<T>(soon: &T) {
    prefetch_from(core::ptr::from_ref(soon).cast(), size_of::<T>());
}

/// As [`prefetch`], for a value that may be gone by now, with the counts that lie before it.
#[inline]
pub fn prefetch_shared<T>(soon: &std::sync::Weak<T>) {
    const COUNTS: usize = 16;
    prefetch_from(soon.as_ptr().cast::<u8>().wrapping_sub(COUNTS), COUNTS + size_of::<T>());
}

#[inline]
fn prefetch_from(first: *const u8, len: usize) {
    for offset in (0..len).step_by(LINE) {
        prefetch_line(first.wrapping_add(offset));
    }
    // One line more where the value does not begin with a line.
    prefetch_line(first.wrapping_add(len.saturating_sub(1)));
}

#[inline]
fn prefetch_line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction is a hint, which reads nothing that the program sees and faults at no address; it is a part
        // of SSE, which every x86_64 CPU has.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
