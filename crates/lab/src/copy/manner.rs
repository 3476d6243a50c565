//! How a tree is copied over an earlier copy. The published experiment leaves some of this open, so
//! a plan has variants that differ in it.

use blockyard_disk::num::{u32_from_usize, u64_from_usize, usize_from_u32};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{CopyPlan, TreeFile};

/// The manner of copying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// Files after which a copying process moves to another CPU slot.
    pub files_per_cpu: usize,
    /// How the process chooses the new slot.
    pub moves: Moves,
    /// Number of copying processes. Each copies a part of the tree; after each file, the next
    /// process has its turn.
    pub processes: usize,
    /// The order in which files are copied.
    pub order: Order,
    /// What happens to existing files.
    pub old: Old,
    /// Whether the image is remounted before each copy, so that what policies remember is lost.
    pub is_mounted_anew: bool,
    /// Number of inodes that stay in memory; `None`: all of the tree.
    pub inodes_max: Option<usize>,
}

/// How a process chooses its next CPU slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    /// The next one.
    InTurn,
    /// A random one, drawn anew in each copy.
    Drawn,
}

/// An order of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The order of the tree.
    Listed,
    /// A new random order in each copy.
    Shuffled,
}

/// What a copy does with an old file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Old {
    /// It is truncated to zero and rewritten, as `cp` does.
    Truncated,
    /// A new file replaces it, as `rsync` does.
    Replaced,
}

impl Manner {
    /// One `cp` that moves from CPU to CPU.
    pub const COPYING: Self = Self {
        files_per_cpu: 1000,
        moves: Moves::InTurn,
        processes: 1,
        order: Order::Listed,
        old: Old::Truncated,
        is_mounted_anew: false,
        inodes_max: None,
    };

    /// The files of copy number `copy` (from 1) in order. Each has the number of its process, and
    /// how many files that process copied before it.
    pub(super) fn turns(&self, files: &[TreeFile], copy: u32, seed: u64) -> Vec<Turn> {
        let mut order: Vec<usize> = (0..files.len()).collect();
        if self.order == Order::Shuffled {
            order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed << 8 | u64::from(copy)));
        }
        let processes = self.processes.max(1);
        let part = order.len().div_ceil(processes).max(1);
        let parts: Vec<&[usize]> = order.chunks(part).collect();
        let mut turns = Vec::with_capacity(files.len());
        for before in 0..part {
            for (process, files) in parts.iter().enumerate() {
                turns.extend(files.get(before).map(|&file| Turn { file, process, before }));
            }
        }
        turns
    }

    /// The CPU slot that a turn of copy number `copy` runs on.
    pub(super) fn cpu(&self, turn: Turn, cpus: u32, (copy, seed): (u32, u64)) -> u32 {
        let place = turn.process + turn.before / self.files_per_cpu.max(1);
        if self.moves == Moves::InTurn {
            return u32_from_usize(place % usize_from_u32(cpus));
        }
        let drawn = seed ^ u64::from(copy) << 48 ^ u64_from_usize(place) << 16;
        ChaCha8Rng::seed_from_u64(drawn).random_range(0..cpus)
    }
}

/// One file of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    /// The number of the file.
    pub(super) file: usize,
    /// The process that copies it.
    pub(super) process: usize,
    /// Number of files that this process copied before this one.
    pub(super) before: usize,
}

impl CopyPlan {
    /// The variants of the plan: what each changes, and the changed plan. The plan itself comes
    /// first, with an empty text. The others follow only if the plan asks for them
    /// ([`CopyPlan::sensitivity`]).
    pub(super) fn variants(&self) -> Vec<(&'static str, Self)> {
        let mut variants = vec![("", self.clone())];
        if !self.sensitivity {
            return variants;
        }
        let manner = self.manner;
        // A busy process seldom moves: about ten times in a copy.
        let drawn =
            Manner { moves: Moves::Drawn, files_per_cpu: (self.tree.files.len() / 10).max(1), ..manner };
        let with = |manner: Manner| Self { manner, ..self.clone() };
        let commit = |commit_bytes: u64| Self { commit_bytes, ..self.clone() };
        let half = self.tree.files.len() / 2;
        variants.extend([
            ("commits 8 times as often", commit((self.commit_bytes / 8).max(1 << 20))),
            ("commits a third as often", commit(self.commit_bytes * 3)),
            ("one CPU slot", Self { cpus: 1, ..self.clone() }),
            ("moves after 20 files", with(Manner { files_per_cpu: 20, ..manner })),
            ("6 processes", with(Manner { processes: 6, ..manner })),
            ("each copy in another order", with(Manner { order: Order::Shuffled, ..manner })),
            ("a new file takes the name", with(Manner { old: Old::Replaced, ..manner })),
            ("mounted anew before each copy", with(Manner { is_mounted_anew: true, ..manner })),
            ("half of the inodes in memory", with(Manner { inodes_max: Some(half), ..manner })),
            ("moves 10 times, CPUs drawn", with(drawn)),
            ("mounted anew, CPUs drawn", with(Manner { is_mounted_anew: true, ..drawn })),
            ("mounted anew, 6 processes", with(Manner { is_mounted_anew: true, processes: 6, ..manner })),
            (
                "mounted anew, another order",
                with(Manner { is_mounted_anew: true, order: Order::Shuffled, ..manner }),
            ),
        ]);
        variants
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_take_turns_over_their_parts() {
        let files = [TreeFile { directory: None, bytes: 1 }; 5];
        let turns = |manner: Manner| manner.turns(&files, 2, 1);
        let of = |turns: &[Turn]| turns.iter().map(|turn| (turn.file, turn.process)).collect::<Vec<_>>();
        assert_eq!(of(&turns(Manner::COPYING)), [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]);
        let two = Manner { processes: 2, files_per_cpu: 2, ..Manner::COPYING };
        let taken = turns(two);
        assert_eq!(of(&taken), [(0, 0), (3, 1), (1, 0), (4, 1), (2, 0)]);
        let cpus: Vec<u32> = taken.iter().map(|&turn| two.cpu(turn, 3, (2, 1))).collect();
        assert_eq!(cpus, [0, 1, 0, 1, 1]);
        let drawn = Manner { moves: Moves::Drawn, files_per_cpu: 1, ..Manner::COPYING };
        let of_copy =
            |copy| (0..64).map(move |before| drawn.cpu(Turn { file: 0, process: 0, before }, 3, (copy, 1)));
        assert!(of_copy(1).any(|cpu| cpu == 2) && of_copy(1).all(|cpu| cpu < 3) && of_copy(1).eq(of_copy(1)));
        assert!(!of_copy(1).eq(of_copy(2)));
        let shuffled = turns(Manner { order: Order::Shuffled, ..Manner::COPYING });
        let mut numbers: Vec<usize> = shuffled.iter().map(|turn| turn.file).collect();
        assert_eq!(shuffled, turns(Manner { order: Order::Shuffled, ..Manner::COPYING }));
        assert_ne!(numbers, [0, 1, 2, 3, 4]);
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1, 2, 3, 4]);
    }
}
