//! The kinds of image on which agreement is measured.

/// How an image is made and mounted.
#[derive(Clone, Copy, Debug)]
pub struct ImageKind {
    /// Name in tables and on the command line.
    pub name: &'static str,
    /// Size in MiB; the file is sparse.
    pub mib: u64,
    /// Arguments of `mke2fs`, blank-separated.
    pub mke2fs: &'static str,
    /// Mount options, comma-separated.
    pub mount: &'static str,
    /// Whether the device reports itself as rotational.
    pub rotational: bool,
    /// Per cent of the free space that one file takes before the load starts.
    pub filled: u32,
    /// Whether the allocator reads the bitmaps of groups on demand, as right after a mount.
    /// Otherwise the allocator has read all bitmaps when the load starts.
    pub lazy: bool,
}

impl ImageKind {
    const fn new(name: &'static str, mib: u64, mke2fs: &'static str, mount: &'static str) -> Self {
        Self { name, mib, mke2fs, mount, rotational: false, filled: 0, lazy: false }
    }

    const fn rotational(self) -> Self {
        Self { rotational: true, ..self }
    }

    const fn filled(self, percent: u32) -> Self {
        Self { filled: percent, ..self }
    }

    const fn lazy(self) -> Self {
        Self { lazy: true, ..self }
    }

    /// Whether files are mapped by indirect blocks.
    #[must_use]
    pub fn indirect(&self) -> bool {
        self.mke2fs.contains("^extent")
    }

    /// Whether blocks of data may be reused before the transaction that freed them commits.
    #[must_use]
    pub fn writeback(&self) -> bool {
        self.mount.contains("data=writeback")
    }
}

/// All kinds. They differ in size, block size, group size, flex groups, stripe, scan mode,
/// bigalloc, number of inodes, resize inode, journal, data mode, delayed allocation, mapping,
/// blocks reserved for root, how full they are, whether the device is rotational, and whether
/// groups are read on demand.
pub const IMAGES: [ImageKind; 23] = [
    ImageKind::new("flex16", 4096, "", "mb_optimize_scan=1"),
    ImageKind::new("flex16-linear", 4096, "", "mb_optimize_scan=0"),
    ImageKind::new("flex16-disk", 4096, "", "mb_optimize_scan=1").rotational(),
    ImageKind::new("flex8-nojournal", 3000, "-G 8 -O ^has_journal", "mb_optimize_scan=1"),
    ImageKind::new("noflex", 3072, "-O ^flex_bg", "mb_optimize_scan=1"),
    ImageKind::new("noflex-linear", 3072, "-O ^flex_bg", "mb_optimize_scan=0"),
    ImageKind::new("1k", 400, "-b 1024", "mb_optimize_scan=1"),
    ImageKind::new("1k-noflex-disk", 400, "-b 1024 -O ^flex_bg", "mb_optimize_scan=1").rotational(),
    ImageKind::new("1k-linear", 300, "-b 1024 -O ^has_journal", "mb_optimize_scan=0"),
    ImageKind::new("2k", 1000, "-b 2048", "mb_optimize_scan=1"),
    ImageKind::new("stripe48", 4096, "", "mb_optimize_scan=1,stripe=48"),
    ImageKind::new("stripe96-linear", 4096, "-O ^has_journal", "mb_optimize_scan=0,stripe=96"),
    ImageKind::new("bigalloc16k", 8192, "-O bigalloc -C 16384", "mb_optimize_scan=1"),
    ImageKind::new("bigalloc64k", 34816, "-O bigalloc -C 65536 -N 40000", "mb_optimize_scan=1"),
    ImageKind::new(
        "bigalloc64k-linear",
        16384,
        "-O bigalloc,^has_journal -C 65536 -N 40000",
        "mb_optimize_scan=0",
    ),
    ImageKind::new("small-groups", 256, "-g 1024 -O ^resize_inode", "mb_optimize_scan=1"),
    ImageKind::new("near-full", 400, "-g 4096 -m 0", "mb_optimize_scan=1").filled(97),
    ImageKind::new("near-full-linear", 256, "-g 8192 -m 2 -O ^has_journal", "mb_optimize_scan=0").filled(95),
    ImageKind::new("nodelalloc-writeback", 4096, "", "mb_optimize_scan=1,nodelalloc,data=writeback"),
    ImageKind::new("indirect", 2500, "-O ^extent,^64bit,^flex_bg", "mb_optimize_scan=1"),
    ImageKind::new("lazy-flex16", 4096, "-O ^has_journal", "mb_optimize_scan=1").lazy(),
    ImageKind::new("lazy-noflex-disk", 4096, "-O ^has_journal,^flex_bg", "mb_optimize_scan=1")
        .rotational()
        .lazy(),
    ImageKind::new("lazy-1k", 512, "-b 1024 -O ^has_journal", "mb_optimize_scan=1").lazy(),
];
