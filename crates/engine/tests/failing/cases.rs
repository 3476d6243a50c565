//! The files that exist when the device fails, and the operations during which the device fails.

use super::images::Image;
use super::operations::{Op, Path};
use blockyard_engine::{Fallocate, RenameMode};

/// An operation during which the device fails, and the operations before it, during which the
/// device works.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) first: Vec<Op>,
    pub(crate) op: Op,
}

fn case(name: &'static str, op: Op) -> Case {
    Case { name, first: Vec::new(), op }
}

fn after(name: &'static str, first: Op, op: Op) -> Case {
    Case { name, first: vec![first], op }
}

fn write(file: Path, at: u64, len: u64) -> Op {
    Op::Write { file, at, len, version: 2 }
}

fn direct(file: Path, at: u64, len: u64) -> Op {
    Op::WriteDirect { file, at, len, version: 3 }
}

fn fallocate(file: Path, what: Fallocate, at: u64, len: u64) -> Op {
    Op::Fallocate { file, what, at, len }
}

fn set_xattr(file: Path, name: Path, len: usize, version: u8) -> Op {
    Op::SetXattr { file, name, len, version }
}

fn rename(from: Path, to: Path, mode: RenameMode) -> Op {
    Op::Rename { from, to, mode }
}

/// Files of several shapes, created before the device fails:
/// * `plain` has five blocks and a part of a sixth.
/// * `even` has exactly four blocks.
/// * `sparse` has single blocks with holes between them.
/// * `ahead` has two blocks, and allocated blocks behind its end.
/// * `unwritten` has one written block among unwritten ones.
/// * `many` has enough extents for a tree.
///
/// With block maps, `ahead` has no block behind its end, `unwritten` has holes instead of unwritten
/// blocks, and `many` has an indirect block.
pub(crate) fn scene(image: &Image) -> Vec<Op> {
    let block = image.block();
    let first = |file, at, len| Op::Write { file, at, len, version: 1 };
    let mut ops: Vec<Op> = ["plain", "even", "sparse", "ahead", "unwritten", "many", "small", "target"]
        .into_iter()
        .chain(["attributes", "shared", "shared too", "values"])
        .map(Op::Create)
        .collect();
    ops.extend([first("plain", 0, 5 * block + 700), first("even", 0, 4 * block)]);
    ops.extend([0, 3, 6].map(|at| first("sparse", at * block, block)));
    ops.extend([first("ahead", 0, 2 * block), first("small", 0, 40), first("target", 0, 3 * block)]);
    ops.extend([set_xattr("attributes", "small", 20, 1), set_xattr("attributes", "block", 300, 2)]);
    ops.extend(["shared", "shared too"].map(|file| set_xattr(file, "block", 400, 3)));
    ops.extend([Op::MakeDirectory("empty"), Op::MakeDirectory("full"), Op::Create("full/inside")]);
    ops.extend([Op::Symlink { name: "link", len: 30 }, Op::Link { file: "target", name: "target too" }]);
    if image.has_extents() {
        ops.push(fallocate("ahead", Fallocate::AllocateKeepSize, 0, 12 * block));
        ops.push(fallocate("unwritten", Fallocate::Allocate, 0, 8 * block));
    }
    if image.has("ea_inode") {
        ops.push(set_xattr("values", "value", 2000, 4));
    }
    ops.push(first("unwritten", 3 * block, block));
    // Each fsync maps a piece before the next one is written. The holes between the pieces keep
    // their extents apart.
    for piece in 0..9 {
        ops.extend([first("many", piece * 2 * block, block), Op::Fsync("many")]);
    }
    ops.push(Op::Sync);
    ops
}

/// All cases that are possible on an image.
pub(crate) fn cases(image: &Image) -> Vec<Case> {
    let mut all = writes(image);
    all.extend(truncations(image));
    if image.has_extents() {
        all.extend(allocations(image));
    }
    all.extend(punches(image));
    all.extend(names(image));
    all.extend(attributes(image));
    all.extend(syncs(image));
    all
}

fn writes(image: &Image) -> Vec<Case> {
    let block = image.block();
    let end = 5 * block + 700;
    vec![
        case("write over", write("plain", block / 2, 2 * block)),
        case("write behind the end", write("plain", end, 3 * block)),
        case("write far behind the end", write("plain", 12 * block + 10, block)),
        case("write into holes", write("sparse", block + 5, 2 * block)),
        case("write into blocks allocated ahead", write("ahead", 2 * block - 100, 3 * block)),
        case("write into unwritten blocks", write("unwritten", block + 1, 4 * block)),
        case("write to a small file", write("small", 30, 100)),
        case("write some", Op::WriteSome { file: "even", at: 3 * block, len: 4 * block, version: 2 }),
        case("append", Op::Append { file: "plain", len: 3 * block, version: 2 }),
        after("append again", write("plain", end, 100), Op::Append { file: "plain", len: 900, version: 4 }),
        case("direct write over", direct("plain", 0, 2 * block)),
        case("direct write behind the end", direct("even", 4 * block, 4 * block)),
        case("direct write far behind the end", direct("even", 9 * block, 2 * block)),
        case("direct write into a hole", direct("sparse", block, 2 * block)),
        case("direct write over holes", direct("sparse", 0, 9 * block)),
        case("direct write into blocks allocated ahead", direct("ahead", 2 * block, 4 * block)),
        case("direct write across the end", direct("ahead", block, 3 * block)),
        case("direct write into unwritten blocks", direct("unwritten", 2 * block, 4 * block)),
        after("direct write over what waits", write("even", 0, 6 * block), direct("even", block, 3 * block)),
    ]
}

fn truncations(image: &Image) -> Vec<Case> {
    let block = image.block();
    let to = |file, size| Op::Truncate { file, size };
    vec![
        case("truncate", to("plain", 2 * block + 10)),
        case("truncate to nothing", to("many", 0)),
        case("truncate to a block", to("many", 5 * block)),
        case("truncate a small file", to("small", 7)),
        case("truncate to more", to("plain", 9 * block)),
        case("truncate what is allocated ahead", to("ahead", 2 * block)),
        after("truncate what waits", write("plain", 0, 9 * block), to("plain", 3 * block - 1)),
    ]
}

fn allocations(image: &Image) -> Vec<Case> {
    let (block, cluster) = (image.block(), image.cluster());
    let [allocate, keep] = [Fallocate::Allocate, Fallocate::AllocateKeepSize];
    let [zero, zero_keep] = [Fallocate::ZeroRange, Fallocate::ZeroRangeKeepSize];
    let [collapse, insert] = [Fallocate::CollapseRange, Fallocate::InsertRange];
    let long = Op::Write { file: "long", at: 0, len: 4 * cluster + 100, version: 1 };
    let on_long = |name, op| Case { name, first: vec![Op::Create("long"), long], op };
    vec![
        case("allocate", fallocate("sparse", allocate, block, 9 * block + 100)),
        case("allocate over much", fallocate("many", allocate, 0, 20 * block)),
        after(
            "allocate what waits",
            write("even", 4 * block, block),
            fallocate("even", allocate, 0, 9 * block),
        ),
        case("allocate, size kept", fallocate("plain", keep, 4 * block, 9 * block)),
        case("zero", fallocate("plain", zero, block / 2, 3 * block)),
        case("zero whole blocks", fallocate("plain", zero, block, 2 * block)),
        case("zero across the end", fallocate("sparse", zero, 5 * block + 1, 6 * block)),
        after("zero what waits", write("even", 0, 3 * block), fallocate("even", zero, 5, 2 * block)),
        case("zero, size kept", fallocate("plain", zero_keep, 3 * block + 9, 6 * block)),
        on_long("collapse", fallocate("long", collapse, cluster, 2 * cluster)),
        after(
            "collapse many",
            Op::Truncate { file: "many", size: 24 * cluster },
            fallocate("many", collapse, cluster, cluster),
        ),
        on_long("insert", fallocate("long", insert, 2 * cluster, cluster)),
        case("insert into many", fallocate("many", insert, cluster, 3 * cluster)),
    ]
}

fn punches(image: &Image) -> Vec<Case> {
    let block = image.block();
    let punch = |file, at, len| fallocate(file, Fallocate::PunchHole, at, len);
    vec![
        case("punch", punch("plain", block / 2, 3 * block)),
        case("punch inside a block", punch("plain", block, 700)),
        case("punch an extent", punch("even", block, 2 * block)),
        case("punch many", punch("many", block, 14 * block)),
        case("punch to the end", punch("plain", 2 * block, 9 * block)),
        after("punch what waits", write("even", 2 * block, 4 * block), punch("even", block + 3, 3 * block)),
    ]
}

fn names(image: &Image) -> Vec<Case> {
    let [replace, no, exchange] = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
    vec![
        case("create", Op::Create("new")),
        case("create in a directory", Op::Create("full/new")),
        case("mkdir", Op::MakeDirectory("new")),
        case("mkfifo", Op::MakeFifo("new")),
        case("symlink", Op::Symlink { name: "new", len: 20 }),
        case("long symlink", Op::Symlink { name: "new", len: 400 }),
        case("link", Op::Link { file: "plain", name: "new" }),
        case("unlink", Op::Unlink("plain")),
        case("unlink one of two", Op::Unlink("target")),
        case("unlink many", Op::Unlink("many")),
        case("unlink attributes", Op::Unlink("attributes")),
        case("unlink a value", Op::Unlink("values")),
        after("unlink what waits", write("plain", 0, 9 * image.block()), Op::Unlink("plain")),
        case("unlink, open", Op::UnlinkOpen("even")),
        case("without a name", Op::Unnamed { name: "new", len: 3 * image.block(), version: 5 }),
        case("rmdir", Op::RemoveDirectory("empty")),
        case("rename", rename("plain", "new", replace)),
        case("rename into a directory", rename("plain", "full/new", replace)),
        case("rename over", rename("plain", "many", replace)),
        after("rename over what waits", write("plain", 0, 900), rename("plain", "even", replace)),
        case("rename a directory", rename("full", "new", replace)),
        case("rename over a directory", rename("full", "empty", replace)),
        case("rename without replacing", rename("even", "new", no)),
        case("rename in exchange", rename("plain", "full/inside", exchange)),
        case("rename directories in exchange", rename("full", "empty", exchange)),
    ]
}

fn attributes(image: &Image) -> Vec<Case> {
    let mut all = vec![
        case("set an attribute", set_xattr("plain", "new", 12, 1)),
        case("set an attribute in a block", set_xattr("plain", "new", 500, 2)),
        case("replace an attribute", set_xattr("attributes", "small", 25, 3)),
        case("replace an attribute in a block", set_xattr("attributes", "block", 350, 4)),
        case("change a shared attribute", set_xattr("shared", "block", 401, 5)),
        case("remove an attribute", Op::RemoveXattr { file: "attributes", name: "small" }),
        case("remove an attribute in a block", Op::RemoveXattr { file: "attributes", name: "block" }),
        case("set attributes", Op::SetAttributes("plain")),
        case("set flags", Op::SetFlags("plain")),
    ];
    if image.has("ea_inode") {
        // The hashes of some of these values have the highest bit set; those of others do not.
        all.extend([
            case("set a large attribute", set_xattr("plain", "new", 3000, 1)),
            case("set another large attribute", set_xattr("plain", "new", 5000, 2)),
            case("set one more large attribute", set_xattr("even", "new", 2500, 7)),
            case("replace a large attribute", set_xattr("values", "value", 4000, 6)),
            case("make a large attribute small", set_xattr("values", "value", 10, 6)),
            case("remove a large attribute", Op::RemoveXattr { file: "values", name: "value" }),
        ]);
    }
    all
}

fn syncs(image: &Image) -> Vec<Case> {
    let block = image.block();
    let end = 5 * block + 700;
    let dirty = || vec![write("plain", block, 2 * block), write("plain", end, 4 * block)];
    let case = |name, op| Case { name, first: dirty(), op };
    vec![
        case("fsync", Op::Fsync("plain")),
        case("fdatasync", Op::Fdatasync("plain")),
        case("write back", Op::WriteBack("plain")),
        case("sync", Op::Sync),
        Case {
            name: "sync holes",
            first: vec![write("sparse", block, 2 * block), write("unwritten", 0, 6 * block)],
            op: Op::Sync,
        },
    ]
}
