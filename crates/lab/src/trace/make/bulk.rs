//! Kinds of traces with large files and ranges.

use blockyard_ranges::Ranges;
use blockyard_trace::Op;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::boundaries::ranges_up_to;
use super::{Pen, Recipe};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Space for one append to each of the sixteen files of [`append64`].
pub(super) const APPEND64_SPACE: u64 = 16 * 4 * KIB;
/// Space that [`large_sequential`] needs before it creates a file. No file is larger.
pub(super) const SEQUENTIAL_SPACE: u64 = 16 * MIB;

/// Appends to four files in turn, 8 KiB at a time up to 1 MiB, truncates them, and starts again.
pub(super) fn fallocate2(pen: &mut Pen, _: &mut ChaCha8Rng, _: &Recipe) {
    let files: Vec<u32> =
        (0..4).map(|worker| pen.open(&format!("/fallocate2.{worker}"), "rw,create")).collect();
    let mut at = 0;
    while pen.wants_more() {
        for &fd in &files {
            if at == MIB {
                pen.op(Op::Ftruncate { fd, len: 0 });
            } else {
                pen.fallocate(fd, "", at, 8 * KIB);
            }
        }
        at = if at == MIB { 0 } else { at + 8 * KIB };
    }
}

/// Appends to sixteen files in turn, 4 KiB at a time. When the files fill the space, starts again
/// at offset 0. From then on, blocks are allocated already.
pub(super) fn append64(pen: &mut Pen, _: &mut ChaCha8Rng, recipe: &Recipe) {
    let files: Vec<u32> = (0..16).map(|worker| pen.open(&format!("/append.{worker}"), "rw,create")).collect();
    let most = recipe.space / 16;
    let mut at = 0;
    while pen.wants_more() {
        for &fd in &files {
            pen.fallocate(fd, "", at % most, 4 * KIB);
        }
        at += 4 * KIB;
    }
}

/// Files of megabytes, written in pieces one after the other. About half of them are synced before
/// they are closed. When too little space is left, earlier files are deleted; some of these deletes
/// name a file that does not exist.
pub(super) fn large_sequential(pen: &mut Pen, rng: &mut ChaCha8Rng, recipe: &Recipe) {
    let mut space = recipe.space;
    let mut serial = 0;
    while pen.wants_more() {
        serial += 1;
        if space < SEQUENTIAL_SPACE {
            let path = format!("/large-{}", rng.random_range(1..serial));
            pen.unlink(&path);
            space += 8 * MIB;
            continue;
        }
        let piece = [64 * KIB, 128 * KIB, MIB][rng.random_range(0..3)];
        let size = rng.random_range(MIB..12 * MIB).min(piece * 60);
        let fd = pen.open(&format!("/large-{serial}"), "rw,create");
        let mut off = 0;
        while off < size {
            pen.write(fd, off, piece.min(size - off));
            off += piece;
        }
        space = space.saturating_sub(size);
        if rng.random_range(0..2) == 0 {
            pen.op(Op::Fsync { fd });
        }
        pen.close(fd);
    }
}

/// Short writes at random offsets of sparse files, punched holes, zeroed and preallocated ranges.
/// About half of the ranges are random whole blocks. The others are mostly at edges.
pub(super) fn random_sparse(pen: &mut Pen, rng: &mut ChaCha8Rng, recipe: &Recipe) {
    let reach = recipe.space.max(64 * MIB);
    let mut files: Vec<(u32, Ranges, u64)> = (0..3)
        .map(|number| (pen.open(&format!("/sparse-{number}"), "rw,create"), ranges_up_to(reach), 0))
        .collect();
    let mut steps = 0u64;
    while pen.wants_more() {
        steps += 1;
        let file = rng.random_range(0..files.len());
        let (fd, ranges, size) = &mut files[file];
        let fd = *fd;
        let (off, len) = if rng.random_range(0..2) == 0 {
            (rng.random_range(0..reach / (4 * KIB)) * 4 * KIB, 4 * KIB * rng.random_range(1..5))
        } else {
            let range = ranges.range(rng, *size, 16 * KIB);
            (range.start, range.end - range.start)
        };
        match rng.random_range(0..10) {
            0 => pen.fallocate(fd, "keep_size,punch_hole", off, len * 8),
            1 => pen.fallocate(fd, "zero_range", off, len),
            2 => pen.fallocate(fd, "keep_size", off, len),
            _ => pen.write(fd, off, len),
        }
        *size = (*size).max(off + len);
        if steps.is_multiple_of(200) {
            pen.op(Op::Fsync { fd });
        }
    }
}
