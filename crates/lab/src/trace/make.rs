//! Makes traces from a seed. The modules `boundaries`, `bulk`, `files` and `trees` each hold one
//! family of kinds.
//!
//! Every kind is a function of (seed, operations, space, workers): the same four give the same
//! trace on any machine.

mod boundaries;
mod bulk;
mod files;
mod pen;
mod trees;
mod workers;

use anyhow::{Result, bail, ensure};
use blockyard_trace::Line;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use pen::Pen;

/// The parameters of a trace to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Seed of every choice.
    pub seed: u64,
    /// Approximate number of operations.
    pub ops: u64,
    /// Bytes of file space that the trace may fill. The kind `near-full` exceeds the space on
    /// purpose. Some other kinds may exceed it, too, above all if the space is small.
    pub space: u64,
    /// Number of workers, which take turns and share operations and space. A player chooses the CPU
    /// by the number of the worker. If there are several workers, each has its own directory.
    pub workers: u32,
}

/// A kind of trace: its name, one sentence about it, and the function that writes it.
pub struct Kind {
    /// Name on the command line.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// The least space of a worker, in bytes; 0 for kinds that take any.
    pub least_space: u64,
    make: fn(&mut Pen, &mut ChaCha8Rng, &Recipe),
}

/// The least space, in bytes, of most kinds that divide or use up their space.
const PAGE: u64 = 4096;

/// Every kind.
pub const KINDS: &[Kind] = &[
    Kind {
        name: "tree-copy",
        least_space: PAGE,
        about: "a directory tree written once, then twice over itself",
        make: trees::tree_copy,
    },
    Kind {
        name: "untar",
        least_space: PAGE,
        about: "a burst of small files in many directories, then one sync",
        make: trees::untar,
    },
    Kind {
        name: "directory-heavy",
        least_space: 0,
        about: "large directories that grow while names are removed at random",
        make: trees::directories,
    },
    Kind {
        name: "fallocate2",
        least_space: 0,
        about: "append by fallocate to 1 MiB, truncate, repeat",
        make: bulk::fallocate2,
    },
    Kind {
        name: "append64",
        least_space: bulk::APPEND64_SPACE,
        about: "several files appended in turn by fallocate",
        make: bulk::append64,
    },
    Kind {
        name: "large-sequential",
        least_space: bulk::SEQUENTIAL_SPACE,
        about: "large files written from end to end",
        make: bulk::large_sequential,
    },
    Kind {
        name: "random-sparse",
        least_space: 0,
        about: "random writes into sparse files, with holes punched",
        make: bulk::random_sparse,
    },
    Kind {
        name: "boundaries",
        least_space: 0,
        about: "every operation that takes a range, at edges of blocks, folios, maps and files",
        make: boundaries::boundaries,
    },
    Kind {
        name: "small-fsync",
        least_space: 0,
        about: "small files, each made durable",
        make: files::small_fsync,
    },
    Kind {
        name: "log-rotate",
        least_space: PAGE,
        about: "logs appended, synced and rotated",
        make: files::log_rotate,
    },
    Kind {
        name: "ageing",
        least_space: PAGE,
        about: "fill, delete half at random, fill again",
        make: files::ageing,
    },
    Kind {
        name: "near-full",
        least_space: PAGE,
        about: "fill until no space is left, delete, fill again",
        make: files::near_full,
    },
    Kind { name: "mixed", least_space: 0, about: "most operations in random order", make: files::mixed },
];

/// Makes a trace of the named kind.
///
/// # Errors
/// For an unknown name, listing the known ones; for too little space.
pub fn make(kind: &str, recipe: &Recipe) -> Result<Vec<Line>> {
    let Some(found) = KINDS.iter().find(|known| known.name == kind) else {
        let names: Vec<_> = KINDS.iter().map(|known| known.name).collect();
        bail!("trace kind `{kind}` is unknown; kinds: {}", names.join(", "));
    };
    let least = found.least_space.saturating_mul(u64::from(recipe.workers.max(1)));
    ensure!(
        recipe.space >= least,
        "trace kind `{kind}` needs {} MiB of space with {} workers; give more --space",
        least.div_ceil(1 << 20),
        recipe.workers.max(1)
    );
    if recipe.workers < 2 {
        return Ok(found.lines(recipe));
    }
    let share = |worker: u32| Recipe {
        // The workers' seeds are 2^32 apart. So if two traces are made from different seeds below
        // 2^32, all their workers have different seeds.
        seed: recipe.seed.wrapping_add(u64::from(worker) << 32),
        ops: recipe.ops / u64::from(recipe.workers),
        space: recipe.space / u64::from(recipe.workers),
        workers: 1,
    };
    let traces = (0..recipe.workers).map(|worker| found.lines(&share(worker))).collect();
    Ok(workers::interleave(traces, recipe.seed))
}

impl Kind {
    /// The trace of one worker.
    fn lines(&self, recipe: &Recipe) -> Vec<Line> {
        let mut pen = Pen::new(recipe.ops);
        let mut rng = ChaCha8Rng::seed_from_u64(recipe.seed);
        (self.make)(&mut pen, &mut rng, recipe);
        pen.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockyard_trace::Op;
    use std::collections::BTreeSet;

    /// A regression: with little space, kinds that divide their space, or that delete files when it
    /// is used up, panicked.
    #[test]
    fn little_space_is_enough_or_refused() {
        for kind in KINDS {
            for space in [0, 1 << 12, 1 << 16, 1 << 20] {
                let recipe = Recipe { seed: 5, ops: 500, space, workers: 1 };
                let made = make(kind.name, &recipe);
                assert_eq!(made.is_ok(), space >= kind.least_space, "{} in {space}", kind.name);
            }
        }
        let shared = Recipe { seed: 5, ops: 500, space: 16 << 20, workers: 4 };
        let text = make("large-sequential", &shared).unwrap_err().to_string();
        assert!(text.contains("needs 64 MiB of space with 4 workers"), "{text}");
    }

    #[test]
    fn every_kind_is_repeatable_and_about_as_long_as_asked() {
        let recipe = Recipe { seed: 5, ops: 2000, space: 64 << 20, workers: 1 };
        for kind in KINDS {
            let lines = make(kind.name, &recipe).unwrap();
            assert_eq!(lines, make(kind.name, &recipe).unwrap(), "{}", kind.name);
            assert!((1500..=3000).contains(&lines.len()), "{}: {} lines", kind.name, lines.len());
            let mut text = Vec::new();
            blockyard_trace::write(&lines, &mut text).unwrap();
            assert_eq!(blockyard_trace::read(text.as_slice()).unwrap(), lines, "{}", kind.name);
            if !["fallocate2", "append64"].contains(&kind.name) {
                assert_ne!(lines, make(kind.name, &Recipe { seed: 6, ..recipe }).unwrap(), "{}", kind.name);
            }
        }
        assert!(make("nonsense", &recipe).is_err());
    }

    /// Files are used only while they are open, and each is closed once.
    #[test]
    fn traces_use_only_what_they_opened() {
        for (kind, workers) in KINDS.iter().flat_map(|kind| [(kind, 1), (kind, 3)]) {
            let recipe = Recipe { seed: 9, ops: 3000, space: 64 << 20, workers };
            let lines = make(kind.name, &recipe).unwrap();
            let mut open = BTreeSet::new();
            for line in &lines {
                match &line.op {
                    Op::Open { fd, .. } => assert!(open.insert(*fd), "{}", kind.name),
                    Op::Close { fd } => assert!(open.remove(fd), "{}", kind.name),
                    Op::Pwrite { fd, .. }
                    | Op::Fallocate { fd, .. }
                    | Op::Ftruncate { fd, .. }
                    | Op::Fsync { fd }
                    | Op::Fdatasync { fd } => assert!(open.contains(fd), "{}", kind.name),
                    _ => {}
                }
            }
            assert!(open.is_empty(), "{}: left open", kind.name);
            assert_eq!(lines.last().map(|line| &line.op), Some(&Op::Sync), "{}", kind.name);
        }
    }

    #[test]
    fn workers_take_turns_each_in_a_directory_of_its_own() {
        let recipe = Recipe { seed: 4, ops: 1000, space: 64 << 20, workers: 2 };
        let lines = make("mixed", &recipe).unwrap();
        assert_eq!(lines, make("mixed", &recipe).unwrap());
        let turns = lines.windows(2).filter(|pair| pair[0].worker != pair[1].worker).count();
        assert!(turns > 50, "{turns} turns");
        for line in &lines {
            let root = format!("/w{}", line.worker);
            match &line.op {
                Op::Mkdir { path, .. } | Op::Open { path, .. } | Op::Unlink { path } => {
                    assert!(path.starts_with(&root), "{line:?}");
                }
                Op::Rename { from, to } => assert!(from.starts_with(&root) && to.starts_with(&root)),
                _ => {}
            }
        }
        // Worker 0 has as many lines as a trace that is made from its share, and one more, which
        // creates its directory.
        let alone = make("mixed", &Recipe { ops: 500, space: 32 << 20, workers: 1, ..recipe }).unwrap();
        assert_eq!(lines.iter().filter(|line| line.worker == 0).count(), alone.len() + 1);
    }
}
