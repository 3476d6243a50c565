//! Which CPUs this process may use, and pinning a thread to one of them. The kernel's allocators
//! use per-CPU state, so a run on the kernel is repeatable only if each worker stays on its CPU.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The numbers of the CPUs that the calling thread may use now, ascending; `[0]` if the kernel does
/// not tell.
#[must_use]
pub fn allowed() -> Vec<usize> {
    let Ok(mask) = sched_getaffinity(None) else {
        return vec![0];
    };
    (0..CpuSet::MAX_CPU).filter(|&cpu| mask.is_set(cpu)).collect()
}

/// Pins the calling thread to one of `allowed`: worker `n` to the `n`-th, starting over after the
/// last.
///
/// A thread that cannot be pinned still works, and its figures are only noisier: callers may ignore
/// the error.
///
/// # Errors
/// When the kernel refuses the CPU.
pub fn stay_on(allowed: &[usize], worker: usize) -> rustix::io::Result<()> {
    let mut one = CpuSet::new();
    if let Some(&cpu) = allowed.get(worker % allowed.len().max(1)) {
        one.set(cpu);
    }
    sched_setaffinity(None, &one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_go_round_the_allowed_cpus() {
        let before = allowed();
        for worker in 0..2 * before.len() {
            stay_on(&before, worker).unwrap();
            assert_eq!(allowed(), [before[worker % before.len()]]);
        }
    }
}
