//! The kind `boundaries` of traces: every operation that takes a range, at the edges of blocks,
//! clusters, folios and maps.

use blockyard_ranges::{Edges, Ranges};
use blockyard_trace::Op;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::{Pen, Recipe};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Alignment of direct writes: a multiple of every block size up to 4 KiB.
const DIRECT: u64 = 4 * KIB;

/// Usual alignment of collapsed and inserted ranges: the largest cluster size of the images on
/// which traces are played.
const SHIFT: u64 = 64 * KIB;

/// A file, and the source of its ranges.
struct File {
    fd: u32,
    size: u64,
    direct: bool,
    ranges: Ranges,
}

impl File {
    fn open(pen: &mut Pen, name: &str, edges: Edges) -> Self {
        let direct = name.ends_with("direct");
        let flags = if direct { "rw,create,direct" } else { "rw,create" };
        let fd = pen.open(&format!("/boundaries-{name}"), flags);
        Self { fd, size: 0, direct, ranges: Ranges::new(edges) }
    }

    fn step(&mut self, pen: &mut Pen, rng: &mut ChaCha8Rng) {
        match rng.random_range(0..20) {
            0..8 => self.write(pen, rng),
            8..10 => {
                self.size = self.ranges.offset(rng, self.size);
                pen.op(Op::Ftruncate { fd: self.fd, len: self.size });
            }
            10 => self.allocate(pen, rng, "", 512 * KIB),
            11 => self.allocate(pen, rng, "keep_size", 512 * KIB),
            12 => self.allocate(pen, rng, "zero_range", 512 * KIB),
            13 => self.allocate(pen, rng, "zero_range,keep_size", 512 * KIB),
            14..17 => self.allocate(pen, rng, "keep_size,punch_hole", u64::MAX),
            17 => self.shift(pen, rng, "collapse_range"),
            18 => self.shift(pen, rng, "insert_range"),
            _ => pen.op(Op::Fsync { fd: self.fd }),
        }
    }

    fn write(&mut self, pen: &mut Pen, rng: &mut ChaCha8Rng) {
        let longest = if rng.random_range(0..16) == 0 { 2 * MIB + DIRECT } else { 64 * KIB };
        let range = if self.direct {
            self.ranges.aligned(rng, self.size, longest, DIRECT)
        } else {
            self.ranges.range(rng, self.size, longest)
        };
        pen.write(self.fd, range.start, range.end - range.start);
        self.size = self.size.max(range.end);
    }

    fn allocate(&mut self, pen: &mut Pen, rng: &mut ChaCha8Rng, mode: &str, longest: u64) {
        let range = self.ranges.range(rng, self.size, longest);
        pen.fallocate(self.fd, mode, range.start, range.end - range.start);
        if !mode.contains("keep_size") {
            self.size = self.size.max(range.end);
        }
    }

    /// Collapses or inserts a range. The file system refuses some of these calls. That is fine: a
    /// trace lists calls, whether they succeed or not.
    fn shift(&mut self, pen: &mut Pen, rng: &mut ChaCha8Rng, mode: &str) {
        let unit = if rng.random_range(0..8) == 0 { DIRECT } else { SHIFT };
        let range = self.ranges.aligned(rng, self.size, MIB, unit);
        let len = range.end - range.start;
        pen.fallocate(self.fd, mode, range.start, len);
        if mode == "collapse_range" && range.end < self.size {
            self.size -= len;
        } else if mode == "insert_range" && range.start < self.size {
            self.size += len;
        }
    }
}

/// Operations on ranges at edges: in files of a few folios, in a sparse file, and with direct I/O.
pub(super) fn boundaries(pen: &mut Pen, rng: &mut ChaCha8Rng, recipe: &Recipe) {
    let near = (recipe.space / 8).clamp(MIB, 5 * MIB);
    let mut files = [
        ("4k", Edges::extents(4 * KIB).clusters(64 * KIB).up_to(near)),
        ("1k", Edges::extents(KIB).up_to(near)),
        ("direct", Edges::extents(4 * KIB).up_to(near)),
        ("sparse", Edges::extents(4 * KIB).up_to(16 << 30)),
    ]
    .map(|(name, edges)| File::open(pen, name, edges));
    while pen.wants_more() {
        let file = rng.random_range(0..files.len());
        files[file].step(pen, rng);
        // Now and then the file is truncated to nothing, so that it and its extent tree do not grow
        // for ever.
        if rng.random_range(0..100) == 0 {
            files[file].size = 0;
            pen.op(Op::Ftruncate { fd: files[file].fd, len: 0 });
        }
    }
}

/// The source of ranges of a file for the kinds `random-sparse` and `mixed`. Ranges are within the
/// file's first `reach` bytes (or one byte more), mostly at edges, with blocks of 4 KiB.
pub(super) fn ranges_up_to(reach: u64) -> Ranges {
    Ranges::new(Edges::extents(4 * KIB).up_to(reach))
}
