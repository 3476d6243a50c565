//! `blockyard frag` against e2freefrag, filefrag and e4defrag -c, on images that the kernel aged,
//! before and after we put files into them.

#![allow(clippy::unwrap_used)]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use blockyard_testkit::{LoopMount, full_matrix, mke2fs, require, run, seed};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Sets of mke2fs options, each with the size of an image in MiB.
const GEOMETRIES: [(&str, u64); 12] = [
    ("-t ext4", 300),
    ("-t ext4 -b 1024", 60),
    ("-t ext4 -b 2048 -O ^flex_bg", 100),
    ("-t ext4 -b 1024 -O ^flex_bg -g 2048", 50),
    ("-t ext4 -O bigalloc -C 16384", 300),
    ("-t ext4 -b 1024 -O bigalloc -C 2048", 80),
    ("-t ext4 -O inline_data -I 512", 100),
    ("-t ext4 -O ^extent,^64bit -b 1024", 60),
    ("-t ext4 -O ^has_journal -G 64", 400),
    ("-t ext4 -b 1024 -N 20000 -O ^dir_index", 64),
    ("-t ext4 -E stripe_width=32 -I 128", 200),
    ("-t ext4 -m 0 -J size=4", 24),
];

/// Makes small and large files with holes, unwritten extents and adjacent extents, and removes some
/// of them. `budget` is the size of the image in bytes.
fn age(root: &Path, rng: &mut ChaCha8Rng, budget: u64) {
    let folders = ["", "one", "one/two", "lost+found2"];
    for folder in folders {
        std::fs::create_dir_all(root.join(folder)).unwrap();
    }
    let mut names = Vec::new();
    for number in 0..rng.random_range(20..150) {
        let name = root.join(folders.choose(rng).unwrap()).join(format!("file-{number}"));
        let Ok(file) = OpenOptions::new().create(true).truncate(true).write(true).open(&name) else {
            continue;
        };
        let size = if rng.random_bool(0.2) { budget / 16 } else { rng.random_range(0..60_000) };
        let _ = shape(&file, rng, size.max(1));
        if rng.random_bool(0.3) {
            let _ = file.sync_all();
        }
        if rng.random_bool(0.1) {
            let _ = std::fs::hard_link(&name, root.join(format!("link-{number}")));
        }
        names.push(name);
        if rng.random_bool(0.3) {
            let gone = rng.random_range(0..names.len());
            std::fs::remove_file(names.swap_remove(gone)).unwrap();
        }
    }
}

/// Gives a file content in one of five random ways. Callers may ignore errors: they mean that the
/// file system is full, or that it has no extents and so refuses fallocate.
fn shape(file: &File, rng: &mut ChaCha8Rng, size: u64) -> std::io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    let bytes = vec![7u8; usize::try_from(size).unwrap()];
    match rng.random_range(0..5) {
        0 => file.write_all_at(&bytes, 0),
        1 => {
            fallocate(file, FallocateFlags::empty(), 0, size)?;
            file.write_all_at(&bytes[..bytes.len() / 2], size / 4)
        }
        2 => (0..20).try_for_each(|_| file.write_all_at(&bytes[..1], rng.random_range(0..size * 3))),
        3 => {
            file.write_all_at(&bytes, 0)?;
            file.sync_all()?;
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            Ok(fallocate(file, hole, size / 3, size / 3 + 1)?)
        }
        _ => (0..8).try_for_each(|piece| {
            file.write_all_at(&bytes[..bytes.len() / 8], piece * size / 8)?;
            file.sync_data()
        }),
    }
}

fn ours(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_blockyard")).arg("frag").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn theirs(program: &str, arguments: &[&str]) -> String {
    String::from_utf8_lossy(&run(program, arguments).stdout).into_owned()
}

/// The words of e4defrag's ranking and totals, without the `prefix` of paths. Words are compared
/// instead of lines, because long paths shift the columns.
fn words(text: &str, prefix: &str) -> Vec<String> {
    let from = text.find("<Fragmented files>").unwrap_or(0);
    let text = text[from..].replace(prefix, "");
    text.lines()
        .filter(|line| !line.contains("defragmen"))
        .flat_map(str::split_whitespace)
        .map(str::to_owned)
        .collect()
}

fn compare(image: &Path, what: &str) {
    let name = image.to_str().unwrap();
    let all = ours(&[name, "-c", "1024", "--as-e2freefrag"]);
    let free = theirs("e2freefrag", &["-c", "1024", name]);
    assert!(all.starts_with(&free), "{what}: e2freefrag prints\n{free}\nand we\n{all}");
    let mounted = LoopMount::new(image, "ro").unwrap();
    let root = mounted.path().to_str().unwrap();
    let defrag = theirs("e4defrag", &["-c", root]);
    let mine = all.split_once("\n\n").map_or("", |_| &all[all.find("<Fragmented").unwrap_or(0)..]);
    assert_eq!(words(mine, name), words(&defrag, root), "{what}: e4defrag prints\n{defrag}\nand we\n{all}");
    drop(mounted);
    // A fresh mount, because Linux joins adjacent extents in memory once it has read them.
    let mounted = LoopMount::new(image, "ro").unwrap();
    let listed = ours(&["--json", "--files", name]);
    let paths: Vec<String> = listed
        .lines()
        .filter_map(|line| {
            let object: serde_json::Value = serde_json::from_str(line).unwrap();
            object["path"].as_str().map(str::to_owned)
        })
        .collect();
    assert!(!paths.is_empty(), "{what}");
    for path in paths.chunks(1000) {
        let full: Vec<String> =
            path.iter().map(|path| format!("{}{path}", mounted.path().display())).collect();
        let mut arguments = vec!["-v"];
        arguments.extend(full.iter().map(String::as_str));
        let tables = theirs("filefrag", &arguments).replace(mounted.path().to_str().unwrap(), "");
        let mut arguments = vec!["-v", name];
        arguments.extend(path.iter().map(String::as_str));
        let mine = ours(&arguments);
        for (number, (ours, theirs)) in mine.lines().zip(tables.lines()).enumerate() {
            assert_eq!(ours, theirs, "{what}: line {number} of filefrag\n{tables}\nand we\n{mine}");
        }
        assert_eq!(mine.lines().count(), tables.lines().count(), "{what}");
    }
}

/// In the map of an image, each group has as many unused clusters as dumpe2fs lists as free.
#[test]
fn the_map_shows_the_used_clusters() {
    if !require(&["mke2fs", "dumpe2fs"]) {
        return;
    }
    for options in ["-t ext4 -b 1024", "-t ext4 -O bigalloc -C 16384", "-t ext2 -b 4096"] {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        mke2fs(&image, &options.split(' ').collect::<Vec<_>>(), "150M");
        let name = image.to_str().unwrap();
        let picture = folder.path().join("map.svg");
        let map = |arguments: &[&str]| {
            let output =
                Command::new(env!("CARGO_BIN_EXE_blockyard")).arg("map").args(arguments).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let text = theirs("dumpe2fs", &[name]);
        let free: Vec<u64> = text
            .lines()
            .map(|line| line.trim().replace(" free blocks, ", " free clusters, "))
            .filter_map(|line| line.split_once(" free clusters, ").map(|(count, _)| count.parse().unwrap()))
            .collect();
        let groups: Vec<serde_json::Value> =
            map(&["--json", name]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(groups.len(), free.len() + 1);
        for (group, free) in groups.iter().zip(&free) {
            let number = |key: &str| group[key].as_u64().unwrap();
            assert_eq!(number("clusters") - number("used"), *free, "{options}: {group}");
        }
        assert_eq!(map(&["--svg", picture.to_str().unwrap(), name]), "");
        let svg = std::fs::read_to_string(&picture).unwrap();
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
        assert!(map(&[name]).contains("clusters used"));
    }
}

#[test]
fn figures_equal_those_of_the_three_tools() {
    if !require(&["root", "mount", "mke2fs", "e2freefrag", "filefrag", "e4defrag"]) {
        return;
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed(20_260_501));
    let images = if full_matrix() { 60 } else { 4 };
    let first = rng.random_range(0..GEOMETRIES.len());
    for number in 0..images {
        let (options, mib) = GEOMETRIES[(first + number * 5) % GEOMETRIES.len()];
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        mke2fs(&image, &options.split(' ').collect::<Vec<_>>(), &format!("{mib}M"));
        let mounted = LoopMount::new(&image, "").unwrap();
        age(mounted.path(), &mut rng, mib << 20);
        drop(mounted);
        let what = format!("image {number}, {options}");
        compare(&image, &what);
        // Compare again after blockyard has put files into the image.
        let source = folder.path().join("source");
        std::fs::create_dir(&source).unwrap();
        for file in 0..30 {
            std::fs::write(source.join(format!("put-{file}")), vec![1; rng.random_range(1..100_000)])
                .unwrap();
        }
        let put = Command::new(env!("CARGO_BIN_EXE_blockyard"))
            .args(["--quiet", "put", "-r"])
            .args([&image, &source])
            .arg("/one")
            .output()
            .unwrap();
        assert!(put.status.code() != Some(8), "{}", String::from_utf8_lossy(&put.stderr));
        compare(&image, &format!("{what}, with files put into it"));
    }
}
