//! Level 2 on the running kernel: the same operations leave the same layout, and both sides decide
//! alike.

#![allow(clippy::unwrap_used)]

use blockyard_agree::operations::{Agreement, Loading, Other, Plan, Session};
use blockyard_lab::trace::make::{Recipe, make};
use blockyard_testkit::{full_matrix, require, seed};
use blockyard_trace::Line;

fn agree(kind: &str, mke2fs: &str, mount: &str, other: Other) -> Option<Agreement> {
    agree_on(kind, Image { mke2fs, ..Image::default() }, mount, other)
}

/// An image, and the device that it lies on.
#[derive(Clone, Copy, Default)]
struct Image<'a> {
    /// Arguments of mke2fs.
    mke2fs: &'a str,
    /// How the image is aged.
    life: Option<&'a str>,
    /// Whether the device reports itself as one with seek times.
    rotational: bool,
}

/// Compares a trace on both sides, and asserts that the outcomes of all lines are equal. Returns
/// `None` when root or a program is missing.
fn agree_on(
    kind: &str,
    Image { mke2fs, life, rotational }: Image<'_>,
    mount: &str,
    other: Other,
) -> Option<Agreement> {
    if !require(&["root", "mke2fs", "dumpe2fs", "losetup"]) {
        return None;
    }
    let scratch = tempfile::tempdir().unwrap();
    let seed = seed(1);
    let plan = Plan {
        mke2fs: mke2fs.to_owned(),
        size: 1 << 30,
        mount: mount.to_owned(),
        loading: Loading::All,
        rotational,
        seed,
        other,
        ageing: None,
        lived: life.map(|life| life.parse().unwrap()),
        scratch: scratch.path().to_owned(),
        start: None,
        keep: None,
    };
    let lines = lines_of(kind, seed);
    let agreement = Session::start().unwrap().compare(&plan, &lines).unwrap();
    println!("{kind} [{mke2fs}] [{mount}]: {}", agreement.shares.extents.text());
    assert_eq!(agreement.outcomes_differ, 0, "{kind}: {:?}", agreement.first);
    Some(agreement)
}

/// The trace that `kind` holds as text, or that the generator named `kind` makes.
fn lines_of(kind: &str, seed: u64) -> Vec<Line> {
    if kind.starts_with('{') {
        return blockyard_trace::read(kind.as_bytes()).unwrap();
    }
    let ops = if full_matrix() { 4000 } else { 500 };
    make(kind, &Recipe { seed, ops, space: 64 << 20, workers: 1 }).unwrap()
}

fn assert_equal(kind: &str, mke2fs: &str, mount: &str) {
    assert_equal_on(kind, Image { mke2fs, ..Image::default() }, mount);
}

fn assert_equal_on(kind: &str, image: Image<'_>, mount: &str) {
    let Some(agreement) = agree_on(kind, image, mount, Other::Engine) else { return };
    let mke2fs = image.mke2fs;
    let what = format!("{kind} [{mke2fs}] [{mount}]: {:?} {:#?}", agreement.first, agreement.files);
    for share in [
        agreement.shares.inodes,
        agreement.shares.extents,
        agreement.shares.tree_blocks,
        agreement.shares.block_bitmaps,
        agreement.decisions.placements,
        agreement.decisions.criteria,
    ] {
        assert_eq!(share.equal, share.of, "{what}");
    }
    assert!(agreement.decisions.placements.of > 20, "{what}");
}

#[test]
fn small_files_lie_where_linux_puts_them() {
    assert_equal("untar", "", "mb_optimize_scan=1");
    assert_equal("small-fsync", "", "mb_optimize_scan=0");
}

#[test]
fn ranges_and_sparse_writes_are_mapped_alike() {
    assert_equal("random-sparse", "", "mb_optimize_scan=1");
    assert_equal("random-sparse", "-b 1024", "mb_optimize_scan=0,nodelalloc");
    assert_equal("log-rotate", "", "mb_optimize_scan=1");
}

/// A regression: a punch that ended at the end of the file freed the last block, which Linux keeps.
/// Uniformly drawn ranges had not shown it.
#[test]
fn ranges_at_edges_are_mapped_alike() {
    assert_equal("boundaries", "", "mb_optimize_scan=1");
    assert_equal("boundaries", "-b 1024", "mb_optimize_scan=0,nodelalloc");
    assert_equal("mixed", "", "mb_optimize_scan=1");
}

/// Here the engine ages the images (`Plan::lived`). That leaves different free space than a trace
/// that the kernel plays on them (`Plan::ageing`).
#[test]
fn files_on_an_image_that_lived_lie_where_linux_puts_them() {
    let lived = |mke2fs, life| Image { mke2fs, life: Some(life), ..Image::default() };
    assert_equal_on("untar", lived("", "mail:3000:60%"), "mb_optimize_scan=1");
    assert_equal_on("mixed", lived("", "build:3000:60%"), "mb_optimize_scan=0");
    let image = lived("-b 1024", "database:2000:60%");
    assert_equal_on("random-sparse", image, "mb_optimize_scan=1,nodelalloc");
}

/// On a device with seek times the allocator looks at a few groups in order first.
#[test]
fn files_on_a_device_with_seek_times_lie_where_linux_puts_them() {
    let image = Image { mke2fs: "-g 4096", rotational: true, ..Image::default() };
    assert_equal_on("untar", image, "mb_optimize_scan=1");
    assert_equal_on("mixed", image, "mb_optimize_scan=1");
}

#[test]
fn the_kernel_agrees_with_itself() {
    if let Some(agreement) = agree("untar", "", "", Other::Kernel) {
        assert_eq!(agreement.shares.extents.equal, agreement.shares.extents.of, "{:?}", agreement.first);
    }
}

/// A trace recorded from a mount ends in the middle of work. Data that is still dirty is allocated
/// when the image is closed or unmounted. These decisions count for neither side.
#[test]
fn decisions_end_with_the_trace() {
    let lines = concat!(
        "{\"op\":\"open\",\"fd\":1,\"path\":\"/a\",\"flags\":\"rw,create\"}\n",
        "{\"op\":\"pwrite\",\"fd\":1,\"off\":0,\"len\":20000}\n",
        "{\"op\":\"fsync\",\"fd\":1}\n",
        "{\"op\":\"pwrite\",\"fd\":1,\"off\":40000,\"len\":50000}\n",
    );
    let Some(agreement) = agree(lines, "", "", Other::Engine) else { return };
    let decisions = agreement.decisions.all;
    assert!(decisions.of > 0 && decisions.equal == decisions.of, "{decisions:?}: {:?}", agreement.first);
}

/// Asserts that everything lies in the same places after a short trace, whose text is `lines`.
fn assert_same_places(lines: &str, mke2fs: &str, mount: &str) {
    let Some(agreement) = agree(lines, mke2fs, mount, Other::Engine) else { return };
    let shares = &agreement.shares;
    let what = format!("[{mke2fs}] [{mount}]: {:?} {:#?}", agreement.first, agreement.files);
    for share in [shares.inodes, shares.extents, shares.directory_extents, shares.tree_blocks] {
        assert_eq!(share.equal, share.of, "{what}");
    }
    assert_eq!(shares.block_bitmaps.equal, shares.block_bitmaps.of, "{what}");
    assert_eq!(shares.inode_bitmaps.equal, shares.inode_bitmaps.of, "{what}");
    let placements = agreement.decisions.placements;
    assert_eq!(placements.equal, placements.of, "{what}");
}

/// A file is written and deleted, then another is written. The second file can get blocks of the
/// first only if these blocks do not wait for a commit.
const WRITTEN_AGAIN: &str = concat!(
    "{\"op\":\"open\",\"fd\":1,\"path\":\"/a\",\"flags\":\"rw,create\"}\n",
    "{\"op\":\"pwrite\",\"fd\":1,\"off\":0,\"len\":40960}\n",
    "{\"op\":\"sync\"}\n",
    "{\"op\":\"pwrite\",\"fd\":1,\"off\":65536,\"len\":409600}\n",
    "{\"op\":\"close\",\"fd\":1}\n",
    "{\"op\":\"sync\"}\n",
    "{\"op\":\"unlink\",\"path\":\"/a\"}\n",
    "{\"op\":\"open\",\"fd\":2,\"path\":\"/b\",\"flags\":\"rw,create\"}\n",
    "{\"op\":\"pwrite\",\"fd\":2,\"off\":0,\"len\":81920}\n",
    "{\"op\":\"close\",\"fd\":2}\n",
    "{\"op\":\"sync\"}\n",
);

#[test]
fn mount_options_bind_both_sides() {
    for mount in ["", "data=journal", "data=writeback", "stripe=48", "stripe=48,nodelalloc"] {
        assert_same_places(WRITTEN_AGAIN, "", mount);
    }
}

/// Without a journal, both data and metadata are reusable as soon as they are freed.
#[test]
fn without_a_journal_freed_blocks_are_used_again_at_once() {
    let metadata = format!(
        "{{\"op\":\"symlink\",\"target\":\"{}\",\"path\":\"/l\"}}\n{{\"op\":\"unlink\",\"path\":\"/l\"}}\n\
         {{\"op\":\"mkdir\",\"path\":\"/d\"}}\n{{\"op\":\"sync\"}}\n",
        "s".repeat(100)
    );
    assert_same_places(&metadata, "-O ^has_journal", "");
    assert_same_places(WRITTEN_AGAIN, "-O ^has_journal", "");
    assert_equal("log-rotate", "-O ^has_journal", "mb_optimize_scan=1");
    assert_equal("mixed", "-O ^has_journal", "mb_optimize_scan=1,nodelalloc");
}

#[test]
fn direct_writes_to_block_maps_lie_where_linux_puts_them() {
    let open = "{\"op\":\"open\",\"fd\":1,\"path\":\"/n\",\"flags\":\"rw,create,direct\"}\n";
    let write = |(block, blocks): &(u64, u64)| {
        format!("{{\"op\":\"pwrite\",\"fd\":1,\"off\":{},\"len\":{}}}\n", block * 4096, blocks * 4096)
    };
    let cases: [(u64, &[(u64, u64)]); 6] = [
        (0, &[(0, 60)]),
        (0, &[(20, 30), (50, 10)]),
        (0, &[(1000, 100)]),
        (0, &[(0, 6), (4, 16)]),
        (0, &[(1030, 30), (0, 40), (900, 200)]),
        (400, &[(0, 60), (100, 20), (390, 20)]),
    ];
    for (size, writes) in cases {
        let cut = format!("{{\"op\":\"ftruncate\",\"fd\":1,\"len\":{}}}\n", size * 4096);
        let writes: String = writes.iter().map(write).collect();
        let lines = format!("{open}{cut}{writes}{{\"op\":\"close\",\"fd\":1}}\n{{\"op\":\"sync\"}}\n");
        for mount in ["", "nodelalloc"] {
            assert_same_places(&lines, "-O ^extent,^64bit", mount);
        }
    }
}

/// A trace of these operations. Each is given as JSON without its braces.
fn trace(lines: &[&str]) -> String {
    lines.iter().map(|line| format!("{{{line}}}\n")).collect()
}

/// An fsync commits if the inode counts as changed in the running transaction. An inode that was
/// read into memory during the transaction counts as changed, and a directory always does. The test
/// sees a commit by the place of `/d`: what was freed can be used again only after a commit.
#[test]
fn fsync_commits_for_what_was_loaded_meanwhile_and_for_directories() {
    let link = format!(r#""op":"symlink","target":"{}","path":"/l""#, "s".repeat(200));
    let unlink = r#""op":"unlink","path":"/l""#;
    let open = |path| format!(r#""op":"open","fd":1,"path":"{path}","flags":"r""#);
    for path in ["/a", "/m"] {
        let open = open(path);
        for (first, second) in [(unlink, open.as_str()), (open.as_str(), unlink)] {
            for how in ["fsync", "fdatasync"] {
                let mut lines: Vec<String> = vec![link.clone()];
                // Keeps the opened inode out of the inode-table block that holds `/l`.
                lines.extend((0..16).map(|n| format!(r#""op":"mknod","path":"/n{n}""#)));
                lines.extend(
                    [
                        r#""op":"mkdir","path":"/m""#,
                        r#""op":"open","fd":1,"path":"/a","flags":"rw,create""#,
                        r#""op":"close","fd":1"#,
                        r#""op":"sync""#,
                        r#""op":"remount""#,
                        first,
                        second,
                        &format!(r#""op":"{how}","fd":1"#),
                        r#""op":"mkdir","path":"/d""#,
                        r#""op":"close","fd":1"#,
                        r#""op":"sync""#,
                    ]
                    .map(str::to_owned),
                );
                let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
                assert_same_places(&trace(&lines), "", "");
            }
        }
    }
}

/// A removed directory keeps its inode while a file whose last name was in it is still open.
#[test]
fn a_removed_directory_stays_while_a_file_that_was_deleted_in_it_is_open() {
    let begin = [
        r#""op":"mkdir","path":"/p""#,
        r#""op":"mkdir","path":"/q""#,
        r#""op":"mkdir","path":"/p/s""#,
        r#""op":"mkdir","path":"/p/s/u""#,
        r#""op":"mknod","path":"/p/g""#,
        r#""op":"open","fd":4,"path":"/p/s/u/f","flags":"rw,create""#,
    ];
    let end = [
        r#""op":"mkdir","path":"/p/t""#,
        r#""op":"mkdir","path":"/p/v""#,
        r#""op":"close","fd":4"#,
        r#""op":"mkdir","path":"/p/w""#,
        r#""op":"mkdir","path":"/p/x""#,
        r#""op":"sync""#,
    ];
    let unlink = r#""op":"unlink","path":"/p/s/u/f""#;
    let rmdir = r#""op":"rmdir","path":"/p/s/u""#;
    let replaced = r#""op":"rename","from":"/q","to":"/p/s/u""#;
    let over = r#""op":"rename","from":"/p/g","to":"/p/s/u/f""#;
    let away = r#""op":"rename","from":"/p/s/u/f","to":"/q/f""#;
    for removal in [
        &[unlink, rmdir, r#""op":"rmdir","path":"/p/s""#][..],
        &[unlink, replaced],
        &[over, unlink, rmdir],
        &[away, r#""op":"unlink","path":"/q/f""#, rmdir, r#""op":"rmdir","path":"/q""#],
    ] {
        assert_same_places(&trace(&[&begin[..], removal, &end].concat()), "", "");
    }
}

/// A rename between two names of one inode does nothing. A rename that is refused writes nothing
/// back either. The last rename replaces a symbolic link, and writes the file back.
#[test]
fn a_rename_that_changes_nothing_writes_nothing_back() {
    let written = [
        r#""op":"open","fd":2,"path":"/a","flags":"rw,create""#,
        r#""op":"pwrite","fd":2,"off":0,"len":9000"#,
    ];
    let end = [r#""op":"mkdir","path":"/d""#, r#""op":"close","fd":2"#, r#""op":"sync""#];
    let to_b = r#""op":"rename","from":"/a","to":"/b""#;
    for renamed in [
        &[r#""op":"link","target":"/a","path":"/b""#, to_b][..],
        &[r#""op":"rename","from":"/a","to":"/a""#],
        &[r#""op":"mkdir","path":"/b""#, to_b],
        &[r#""op":"symlink","target":"x","path":"/b""#, to_b],
    ] {
        let lines = trace(&[&written[..], renamed, &end].concat());
        let Some(agreement) = agree(&lines, "", "", Other::Engine) else { return };
        let decisions = agreement.decisions.all;
        assert_eq!(decisions.equal, decisions.of, "{renamed:?}: {:?}", agreement.first);
    }
}

/// Zeroing a range beyond the end of a file loads pages there. A truncation that grows the file
/// drops the pages beyond the new end.
#[test]
fn a_growing_truncation_drops_the_pages_behind_the_new_end() {
    for size in [131_072, 155_648, 160_000, 300_000] {
        let lines = trace(&[
            r#""op":"open","fd":18,"path":"/a","flags":"rw,create""#,
            r#""op":"fallocate","fd":18,"mode":"zero_range,keep_size","off":159085,"len":32768"#,
            r#""op":"fallocate","fd":18,"mode":"zero_range,keep_size","off":400001,"len":5000"#,
            &format!(r#""op":"ftruncate","fd":18,"len":{size}"#),
            r#""op":"pwrite","fd":18,"off":32768,"len":512118"#,
            r#""op":"close","fd":18"#,
            r#""op":"sync""#,
        ]);
        let Some(agreement) = agree(&lines, "", "", Other::Engine) else { return };
        let decisions = agreement.decisions.all;
        assert_eq!(decisions.equal, decisions.of, "{size}: {:?}", agreement.first);
    }
}

/// Covers mknod, and links and attributes as the layers above ext4 treat them.
#[test]
fn what_linux_does_above_ext4_is_done_on_both_sides() {
    let lines = concat!(
        "{\"op\":\"mkdir\",\"path\":\"/d\"}\n",
        "{\"op\":\"mknod\",\"path\":\"/d/p\"}\n",
        "{\"op\":\"setxattr\",\"path\":\"/d/p\",\"name\":\"user.b\",\"len\":300}\n",
        "{\"op\":\"symlink\",\"target\":\"d/new\",\"path\":\"/l\"}\n",
        "{\"op\":\"setxattr\",\"path\":\"/l\",\"name\":\"user.b\",\"len\":300}\n",
        "{\"op\":\"open\",\"fd\":1,\"path\":\"/l\",\"flags\":\"rw,create\"}\n",
        "{\"op\":\"pwrite\",\"fd\":1,\"off\":0,\"len\":5000}\n",
        "{\"op\":\"close\",\"fd\":1}\n",
        "{\"op\":\"symlink\",\"target\":\"loop\",\"path\":\"/loop\"}\n",
        "{\"op\":\"open\",\"fd\":1,\"path\":\"/loop\",\"flags\":\"r\"}\n",
        "{\"op\":\"fsync\",\"fd\":1}\n",
        "{\"op\":\"unlink\",\"path\":\"/loop/f\"}\n",
        "{\"op\":\"sync\"}\n",
    );
    for mke2fs in ["", "-t ext3", "-text4"] {
        assert_same_places(lines, mke2fs, "");
    }
}
