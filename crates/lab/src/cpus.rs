//! Which CPUs this process may use, and keeping a thread on one of them: the kernel's allocators
//! read per-CPU state, so its side of a comparison repeats only when each worker stays where it is.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The numbers of the CPUs that the calling thread may use now, ascending.
#[must_use]
pub fn allowed() -> Vec<usize> {
    let Ok(mask) = sched_getaffinity(None) else {
        return vec![0];
    };
    (0..CpuSet::MAX_CPU).filter(|&cpu| mask.is_set(cpu)).collect()
}

/// Keeps the calling thread on one of `allowed`: worker `n` on the `n`-th, again from the first
/// when there are no more.
///
/// A thread that cannot be pinned still does its work, and its figures are only noisier: callers
/// may pass that over.
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
