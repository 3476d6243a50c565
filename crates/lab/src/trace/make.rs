//! Traces made from a seed: one file a family of kinds.
//!
//! Every kind is a function of (seed, operations, space): the same three give the same trace on any machine.

mod bulk;
mod files;
mod pen;
mod trees;

use anyhow::{Result, bail};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::Line;
use pen::Pen;

/// What a made trace is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Seed of every choice.
    pub seed: u64,
    /// Operations, about.
    pub ops: u64,
    /// Bytes of file space that the trace may fill; near-full kinds go past it.
    pub space: u64,
}

/// A kind of trace: its name, one sentence, and the function that writes it.
pub struct Kind {
    /// Name on the command line.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    make: fn(&mut Pen, &mut ChaCha8Rng, &Recipe),
}

/// Every kind.
pub const KINDS: &[Kind] = &[
    Kind {
        name: "tree-copy",
        about: "a directory tree copied three times over itself",
        make: trees::tree_copy,
    },
    Kind {
        name: "untar",
        about: "a burst of small files in many directories, then one sync",
        make: trees::untar,
    },
    Kind {
        name: "directory-heavy",
        about: "large directories filled, thinned out and filled again",
        make: trees::directories,
    },
    Kind {
        name: "fallocate2",
        about: "append by fallocate to 1 MiB, truncate, repeat",
        make: bulk::fallocate2,
    },
    Kind { name: "append64", about: "several files appended in turn by fallocate", make: bulk::append64 },
    Kind {
        name: "large-sequential",
        about: "large files written from end to end",
        make: bulk::large_sequential,
    },
    Kind {
        name: "random-sparse",
        about: "random writes into sparse files, with holes punched",
        make: bulk::random_sparse,
    },
    Kind { name: "small-fsync", about: "small files, each made durable", make: files::small_fsync },
    Kind { name: "log-rotate", about: "logs appended, synced and rotated", make: files::log_rotate },
    Kind { name: "ageing", about: "fill, delete half at random, fill again", make: files::ageing },
    Kind {
        name: "near-full",
        about: "fill until no space is left, delete, fill again",
        make: files::near_full,
    },
    Kind { name: "mixed", about: "every operation in random order", make: files::mixed },
];

/// Makes a trace of the named kind.
///
/// # Errors
/// For an unknown name, listing the known ones.
pub fn make(kind: &str, recipe: &Recipe) -> Result<Vec<Line>> {
    let Some(found) = KINDS.iter().find(|known| known.name == kind) else {
        let names: Vec<_> = KINDS.iter().map(|known| known.name).collect();
        bail!("trace kind `{kind}` is unknown; kinds: {}", names.join(", "));
    };
    let mut pen = Pen::new(recipe.ops);
    let mut rng = ChaCha8Rng::seed_from_u64(recipe.seed);
    (found.make)(&mut pen, &mut rng, recipe);
    Ok(pen.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Op;
    use std::collections::BTreeSet;

    #[test]
    fn every_kind_is_repeatable_and_about_as_long_as_asked() {
        let recipe = Recipe { seed: 5, ops: 2000, space: 64 << 20 };
        for kind in KINDS {
            let lines = make(kind.name, &recipe).unwrap();
            assert_eq!(lines, make(kind.name, &recipe).unwrap(), "{}", kind.name);
            assert!((1500..=3000).contains(&lines.len()), "{}: {} lines", kind.name, lines.len());
            let mut text = Vec::new();
            crate::trace::write(&lines, &mut text).unwrap();
            assert_eq!(crate::trace::read(text.as_slice()).unwrap(), lines, "{}", kind.name);
            if !["fallocate2", "append64"].contains(&kind.name) {
                assert_ne!(lines, make(kind.name, &Recipe { seed: 6, ..recipe }).unwrap(), "{}", kind.name);
            }
        }
        assert!(make("nonsense", &recipe).is_err());
    }

    /// Files are used while they are open and closed once; names are used while they exist.
    #[test]
    fn traces_use_only_what_they_opened() {
        for kind in KINDS {
            let lines = make(kind.name, &Recipe { seed: 9, ops: 3000, space: 64 << 20 }).unwrap();
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
}
