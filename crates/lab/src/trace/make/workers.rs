//! Several workers in one trace. Each has its own trace of the same kind, below its own directory.
//! They take turns in an order drawn from the seed.

use blockyard_trace::{Line, Op};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The most operations of a worker in one turn.
const TURN_MAX: usize = 8;

/// Interleaves the traces of the workers. The files of worker 0 are below `/w0`, and so on.
pub(super) fn interleave(traces: Vec<Vec<Line>>, seed: u64) -> Vec<Line> {
    let workers = blockyard_disk::num::u32_from_usize(traces.len());
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x0077_6F72_6B65_7273);
    let mut lines: Vec<Line> = (0..workers).map(own_directory).collect();
    let mut waiting: Vec<(u32, std::vec::IntoIter<Line>)> =
        (0..workers).zip(traces.into_iter().map(Vec::into_iter)).collect();
    while !waiting.is_empty() {
        let turn = rng.random_range(0..waiting.len());
        let (worker, rest) = &mut waiting[turn];
        let worker = *worker;
        let own = rest.by_ref().take(rng.random_range(1..=TURN_MAX));
        lines.extend(own.map(|line| Line { op: moved(line.op, worker, workers), worker, ..line }));
        if rest.as_slice().is_empty() {
            waiting.remove(turn);
        }
    }
    lines
}

fn own_directory(worker: u32) -> Line {
    let op = Op::Mkdir { path: format!("/w{worker}"), mode: 0o755 };
    Line { worker, ..Line::from(op) }
}

/// An operation moved to a worker: below the worker's directory, and with numbers of open files
/// that no other worker uses.
fn moved(mut op: Op, worker: u32, workers: u32) -> Op {
    let below = |path: &mut String| path.insert_str(0, &format!("/w{worker}"));
    match &mut op {
        Op::Open { fd, path, .. } => {
            *fd = *fd * workers + worker;
            below(path);
        }
        Op::Pwrite { fd, .. }
        | Op::Fallocate { fd, .. }
        | Op::Ftruncate { fd, .. }
        | Op::Fsync { fd }
        | Op::Fdatasync { fd }
        | Op::Close { fd } => *fd = *fd * workers + worker,
        Op::Mkdir { path, .. }
        | Op::Unlink { path }
        | Op::Rmdir { path }
        | Op::Mknod { path, .. }
        | Op::Setxattr { path, .. }
        // The target of a symbolic link is text, not a name in the image.
        | Op::Symlink { path, .. } => below(path),
        Op::Rename { from, to } => {
            below(from);
            below(to);
        }
        Op::Link { target, path } => {
            below(target);
            below(path);
        }
        Op::Note { .. } | Op::Sync | Op::DropCaches | Op::Remount => {}
    }
    op
}
