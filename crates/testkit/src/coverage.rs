//! Which combinations of operation, feature, block size and way of testing are tested, and by which
//! test.
//!
//! [`TRIED`] lists what each test tries. Every listed test asserts that its entries are true:
//! - The images in the entries are those of the test's own tables ([`assert_images`]).
//! - The operations in the entries are those of the test's own tables ([`assert_operations`]), or
//!   those that worked when the test ran ([`assert_done`]). A short run asserts only that no other
//!   operation worked ([`assert_done_within`]).
//!
//! From the entries, [`page()`] makes a part of docs/testing.md, which also lists what no test has
//! tried.

mod page;
mod tried;

pub use page::page;
pub use tried::TRIED;

use std::collections::BTreeSet;

/// A way of testing an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// Answers and contents are compared with a model.
    Model,
    /// The power is cut.
    Crash,
    /// Calls to the device fail.
    Faults,
    /// Many threads at once.
    Threads,
}

impl Way {
    /// All ways.
    pub const ALL: [Self; 4] = [Self::Model, Self::Crash, Self::Faults, Self::Threads];

    /// The way in one word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Crash => "crash",
            Self::Faults => "faults",
            Self::Threads => "threads",
        }
    }
}

/// All operations.
pub const OPERATIONS: [&str; 35] = [
    "create",
    "mkdir",
    "mknod",
    "symlink",
    "link",
    "unlink",
    "unlink open",
    "tmpfile",
    "rmdir",
    "rename",
    "rename exchange",
    "rename no-replace",
    "write",
    "write some",
    "append",
    "direct write",
    "read",
    "direct read",
    "truncate",
    "allocate",
    "allocate keep",
    "punch",
    "zero",
    "zero keep",
    "collapse",
    "insert",
    "set xattr",
    "set large xattr",
    "remove xattr",
    "set attributes",
    "set flags",
    "fsync",
    "fdatasync",
    "sync",
    "write back",
];

/// Features of images, or options to open them with. `plain` has none of the others. `folios`
/// imitates how Linux's page cache asks for blocks, and `at once` is Linux's `nodelalloc`.
pub const FEATURES: [&str; 14] = [
    "plain",
    "no journal",
    "data=journal",
    "data=writeback",
    "bigalloc",
    "ea_inode",
    "inodes 128",
    "inline data",
    "block maps",
    "orphan file",
    "no checksums",
    "folios",
    "at once",
    "full",
];

/// Block sizes in KiB.
pub const BLOCKS: [u32; 5] = [1, 2, 4, 16, 64];

/// A kind of image of a test: its name in that test, its block sizes in KiB, and its features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image(pub &'static str, pub &'static [u32], pub &'static [&'static str]);

/// What a test has tried: each of its operations on each of its images on which the operation can
/// work.
#[derive(Clone, Copy, Debug)]
pub struct Tried {
    /// The letter that stands for the test in the tables. Entries of one test share it if they have
    /// the same ways.
    pub letter: char,
    /// The name of the test, or `test: part` for one part of it.
    pub test: &'static str,
    /// The ways in which the test tries its operations.
    pub ways: &'static [Way],
    /// The operations, from [`OPERATIONS`].
    pub operations: &'static [&'static str],
    /// The images, with block sizes from [`BLOCKS`] and features from [`FEATURES`].
    pub images: &'static [Image],
}

/// The entries of a test: one for all of it, or one for each part (`test: part`).
fn said_of(test: &str) -> impl Iterator<Item = &'static Tried> {
    TRIED.iter().filter(move |tried| tried.test.split(':').next() == Some(test))
}

/// Asserts that [`TRIED`] and a test's own tables have the same images. `images` are those of the
/// test, each with its name and a block size in bytes.
///
/// # Panics
/// When they differ.
pub fn assert_images<'a>(test: &str, images: impl IntoIterator<Item = (&'a str, u64)>) {
    let each =
        |Image(name, blocks, _): &'static Image| blocks.iter().map(|kib| (*name, u64::from(*kib) << 10));
    let said: BTreeSet<(&str, u64)> =
        said_of(test).flat_map(|tried| tried.images.iter().flat_map(each)).collect();
    let has: BTreeSet<(&str, u64)> = images.into_iter().collect();
    assert_eq!(said, has, "coverage/tried.rs against the images of {test}");
}

/// As [`assert_images`], for operations.
///
/// # Panics
/// When they differ.
pub fn assert_operations<'a>(test: &str, operations: impl IntoIterator<Item = &'a str>) {
    let said: BTreeSet<&str> = said_of(test).flat_map(|tried| tried.operations).copied().collect();
    let has: BTreeSet<&str> = operations.into_iter().collect();
    assert_eq!(said, has, "coverage/tried.rs against the operations of {test}");
}

/// The operations that [`TRIED`] lists for a test and that are possible on one of the named images.
fn said_of_images(test: &str, images: &[&str]) -> BTreeSet<&'static str> {
    let mut said = BTreeSet::new();
    for tried in said_of(test) {
        for image in tried.images.iter().filter(|image| images.contains(&image.0)) {
            said.extend(tried.operations.iter().filter(|operation| image.allows(operation)));
        }
    }
    said
}

/// Asserts that [`TRIED`] lists exactly the operations in `done` for these images of a test. `done`
/// holds the operations that worked when the test ran on the images.
///
/// # Panics
/// When an operation is missing from `done` or from [`TRIED`].
pub fn assert_done<'a>(test: &str, images: &[&str], done: impl IntoIterator<Item = &'a str>) {
    let done: BTreeSet<&str> = done.into_iter().collect();
    let said = said_of_images(test, images);
    let missing: Vec<_> = said.difference(&done).collect();
    let untold: Vec<_> = done.difference(&said).collect();
    assert!(
        missing.is_empty() && untold.is_empty(),
        "coverage/tried.rs: {test} on {images:?} did not do {missing:?}, and did {untold:?}, which the table does not list"
    );
}

/// As [`assert_done`], but for a run that is too short to do everything.
///
/// # Panics
/// When an operation worked that [`TRIED`] does not list.
pub fn assert_done_within<'a>(test: &str, images: &[&str], done: impl IntoIterator<Item = &'a str>) {
    let said = said_of_images(test, images);
    let untold: BTreeSet<&str> = done.into_iter().filter(|name| !said.contains(name)).collect();
    assert!(
        untold.is_empty(),
        "coverage/tried.rs: {test} on {images:?} did {untold:?}, which the table does not list"
    );
}

impl Image {
    /// Whether an operation can work on this image.
    fn allows(&self, operation: &str) -> bool {
        match operation {
            "set large xattr" => self.2.contains(&"ea_inode"),
            _ => self.2.iter().all(|feature| is_possible(operation, feature)),
        }
    }
}

/// Whether an operation is possible on images with a feature. `set large xattr` counts only under
/// the features `ea_inode` and `inodes 128`.
#[must_use]
pub fn is_possible(operation: &str, feature: &str) -> bool {
    let needs_extents = ["allocate", "allocate keep", "zero", "zero keep", "collapse", "insert"];
    match feature {
        "block maps" => !needs_extents.contains(&operation) && operation != "set large xattr",
        "ea_inode" | "inodes 128" => true,
        _ => operation != "set large xattr",
    }
}

/// The entries that tried an operation on images with a feature and a block size.
pub fn who_tried(operation: &str, feature: &str, block_kib: u32) -> impl Iterator<Item = &'static Tried> {
    TRIED.iter().filter(move |tried| {
        tried.operations.contains(&operation)
            && tried.images.iter().any(|image| {
                image.allows(operation) && image.1.contains(&block_kib) && image.2.contains(&feature)
            })
    })
}
