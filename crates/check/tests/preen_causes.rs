//! Exit codes of our `-p`, and of `-y` in some tests, compared with those of e2fsck. Most of the
//! damages caused a difference that runs of `oracle_repair.rs` found.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};

use blockyard_check::{Code, Options, RepairOptions, check, is_marked_clean, plan};
use blockyard_device::{BlockDevice, FileDevice};
use blockyard_testkit::{mke2fs, require, run};
use support::small::{debugfs, repair, slot_at};

/// An image with two directories, and a third directory of 300 long names that has an index.
fn made(folder: &Path, options: &[&str]) -> PathBuf {
    let tree = folder.join("tree");
    std::fs::create_dir_all(tree.join("many")).unwrap();
    for n in 0..300 {
        std::fs::write(tree.join("many").join(format!("{n:0>200}")), b"").unwrap();
    }
    let image = folder.join("image");
    let tree = tree.to_str().unwrap();
    mke2fs(&image, &[options, &["-b", "1024", "-d", tree]].concat(), "32M");
    run("e2fsck", &["-fyD", image.to_str().unwrap()]);
    debugfs(&image, "mkdir one");
    debugfs(&image, "mkdir one/two");
    image
}

/// Exit codes of our `-p` and of e2fsck's. If e2fsck found errors before it gave up, it ends with
/// 12 (8 and 4); that counts as 8 here.
fn exits(image: &Path) -> (u8, Option<i32>) {
    let device = FileDevice::open_read_only(image).unwrap();
    let how = RepairOptions { now: 1_700_000_000, ..RepairOptions::default() };
    let ours = plan(&device, &how).map_or(8, |plan| plan.preened_ending().exit_code());
    let theirs = run("e2fsck", &["-fp", image.to_str().unwrap()]).status.code();
    (ours, theirs.map(|code| code.min(8)))
}

fn write(image: &Path, at: u64, bytes: &[u8]) {
    FileDevice::open(image).unwrap().write_at(at, bytes).unwrap();
}

/// Byte offset of the first block of a file.
fn place_of(image: &Path, path: &str) -> u64 {
    let blocks = debugfs(image, &format!("blocks {path}"));
    blocks.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

const EXT4: &[&str] = &["-t", "ext4"];
const PLAIN: &[&str] = &["-t", "ext4", "-O", "^metadata_csum"];
const UNINIT: &[&str] = &["-t", "ext4", "-O", "^metadata_csum,uninit_bg"];

/// Damaged images on one theme, with our exit code and e2fsck's for each. When this is dropped, it
/// asserts that the two codes of each image are equal.
struct Judged {
    folder: tempfile::TempDir,
    all: Vec<(String, (u8, Option<i32>))>,
}

impl Judged {
    /// `None` where a tool is missing.
    fn start() -> Option<Self> {
        let folder = require(&["mke2fs", "debugfs", "e2fsck"]).then(|| tempfile::tempdir().unwrap())?;
        Some(Self { folder, all: Vec::new() })
    }

    /// Damages a new image, and lets both judge it.
    fn judge(&mut self, name: impl Into<String>, options: &[&str], damage: impl FnOnce(&Path)) {
        let image = made(self.folder.path(), options);
        damage(&image);
        self.all.push((name.into(), exits(&image)));
    }
}

impl Drop for Judged {
    fn drop(&mut self) {
        let is_wrong = |(ours, theirs): &(u8, Option<i32>)| Some(i32::from(*ours)) != *theirs;
        let wrong: Vec<_> = self.all.iter().filter(|(_, codes)| is_wrong(codes)).collect();
        assert!(std::thread::panicking() || wrong.is_empty(), "ours and theirs: {wrong:#?}");
    }
}

#[test]
fn inodes_and_descriptors() {
    let Some(mut judged) = Judged::start() else { return };
    judged.judge("checksum of the list of bad blocks", EXT4, |image| {
        let stats = debugfs(image, "stats");
        let (_, place) = stats.split_once("inode table at ").unwrap();
        let place: String = place.chars().take_while(char::is_ascii_digit).collect();
        write(image, (place.parse::<u64>().unwrap() << 10) + 16, &[1, 2, 3]);
    });
    judged.judge("a deletion time that is an inode number", EXT4, |image| {
        debugfs(image, "set_inode_field one dtime 16");
    });
    for kind in ["ext2", "ext3", "ext4"] {
        let name = format!("descriptors of {kind} are gone");
        judged.judge(name, &["-t", kind], |image| write(image, 2048, &[0; 1024]));
    }
    judged.judge("the block bitmap of a descriptor is gone", &["-t", "ext3"], |image| {
        write(image, 2048, &[0; 4]);
    });
    judged.judge("an attribute says that its value is in an inode", &["-t", "ext4", "-I", "128"], |image| {
        debugfs(image, "ea_set one user.a value");
        let stat = debugfs(image, "stat one");
        let block = stat.split("File ACL:").nth(1).unwrap().split_whitespace().next().unwrap();
        write(image, (block.parse::<u64>().unwrap() << 10) + 36, &[0xFF; 4]);
    });
    // In the first and last case the extents flag is missing: the extent root is read as a block
    // map, and this map claims blocks of other files.
    for (name, options, flags) in [
        ("an inode without the flag of its extents", EXT4, "0"),
        ("an index without its flag", EXT4, "0x80000"),
        ("an index without the flag of extents, no checksums", PLAIN, "0x1000"),
    ] {
        judged.judge(name, options, |image| {
            debugfs(image, &format!("set_inode_field many flags {flags}"));
        });
    }
}

#[test]
fn indexes_of_directories() {
    let Some(mut judged) = Judged::start() else { return };
    for (with, options) in [("with checksums", EXT4), ("without", PLAIN)] {
        // The last change is to the block number in the second entry.
        for (what, at, bytes) in [
            ("version of hashes", 0x1C, &[0xFF][..]),
            ("depth of an index", 0x1E, &[4]),
            ("entry of a root", 0x20 + 12, &[0xFF, 0xFF, 0xFF, 0]),
        ] {
            judged.judge(format!("{what} {with}"), options, |image| {
                write(image, place_of(image, "many") + at, bytes);
            });
        }
    }
}

#[test]
fn numbers_in_the_superblock() {
    let Some(mut judged) = Judged::start() else { return };
    let fields = |field: &'static str, values: &'static [u32]| values.iter().map(move |value| (field, value));
    // Block counts that are too small (some even for the journal or the inodes), or larger than the
    // device.
    let blocks = fields("blocks_count", &[4095, 8194, 32_000, 32_769, 40_000, 1_000_000]);
    let inodes = fields("inodes_count", &[0, 5, 999_999]);
    for (options, (field, value)) in blocks
        .map(|field| (EXT4, field))
        .chain(inodes.clone().map(|field| (EXT4, field)))
        .chain(inodes.map(|field| (&["-t", "ext2"][..], field)))
    {
        judged.judge(format!("{field} {value} {options:?}"), options, |image| {
            debugfs(image, &format!("set_super_value {field} {value}"));
        });
    }
}

/// An orphan list whose head cannot be an orphan.
#[test]
fn heads_of_the_orphan_list() {
    let Some(mut judged) = Judged::start() else { return };
    for (options, head) in [(EXT4, u32::MAX), (PLAIN, 9), (&["-t", "ext2"][..], u32::MAX)] {
        judged.judge(format!("{head} {options:?}"), options, |image| {
            debugfs(image, &format!("set_super_value last_orphan {head}"));
        });
    }
}

/// Features in a superblock of revision 0, which cannot have any.
#[test]
fn revisions() {
    let Some(mut judged) = Judged::start() else { return };
    for options in [&["-t", "ext3", "-I", "128"][..], &["-t", "ext2", "-I", "128"], EXT4] {
        judged.judge(format!("{options:?}"), options, |image| {
            debugfs(image, "set_super_value rev_level 0");
        });
    }
}

/// Names of inodes that are not in use, or that are in use although their group has INODE_UNINIT.
#[test]
fn names_of_inodes_that_are_none() {
    let Some(mut judged) = Judged::start() else { return };
    let typeless = &["-t", "ext4", "-O", "^metadata_csum,uninit_bg,^filetype"][..];
    for options in [UNINIT, typeless] {
        judged.judge(format!("a name of an inode that is none, {options:?}"), options, |image| {
            debugfs(image, &format!("link many/{:0>200} one/name", 7));
            // The new entry follows `.`, `..` and `two`; inode 5000 is in the third group.
            write(image, place_of(image, "one") + 36, &5000u32.to_le_bytes());
        });
    }
    for options in [EXT4, UNINIT] {
        judged.judge(format!("the group of the root has no inodes, {options:?}"), options, |image| {
            debugfs(image, "set_block_group 0 flags 5");
            debugfs(image, "set_block_group 0 checksum calc");
        });
    }
}

/// e2fsck removes a journal with an unusable inode before its first pass, and corrects a
/// directory's size in that pass. Its later passes look at neither the journal nor the size again.
#[test]
fn a_lost_journal_inode_and_a_high_size_are_mended() {
    let Some(mut judged) = Judged::start() else { return };
    for options in [EXT4, PLAIN] {
        judged.judge("no journal inode", options, |image| drop(debugfs(image, "clri <8>")));
        judged.judge("no mode of the journal inode", options, |image| drop(debugfs(image, "sif <8> mode 0")));
        judged.judge("encrypted journal", options, |image| drop(debugfs(image, "sif <8> flags 0x80800")));
        for size in [1_u64 << 32 | 1024, 64 << 32 | 1024] {
            judged.judge(format!("directory of {size} bytes"), options, |image| {
                debugfs(image, &format!("sif one size {size}"));
            });
        }
    }
    for version in [3, 4, 5, 7] {
        judged.judge(format!("hash {version}"), PLAIN, |image| {
            write(image, place_of(image, "many") + 28, &[version]);
        });
    }
}

/// A regression: a file system in which nothing was wrong kept its error mark, and nobody could
/// write to it.
#[test]
fn marks_of_errors_go_when_nothing_is_wrong() {
    let Some(mut judged) = Judged::start() else { return };
    let commands = judged.folder.path().join("commands");
    let data = judged.folder.path().join("data");
    std::fs::write(&data, [7; 3 * 1024]).unwrap();
    let log = format!("jo -c\njw -b 9000 {0}\njw -b 9001 {0}\njc\n", data.display());
    for (options, log) in [(&["-t", "ext2"][..], ""), (EXT4, ""), (EXT4, &log)] {
        for state in [0, 1, 2, 3, 5] {
            let name = format!("state {state} {options:?} {log}");
            judged.judge(name, options, |image| {
                std::fs::write(&commands, log).unwrap();
                run("debugfs", &["-w", "-f", commands.to_str().unwrap(), image.to_str().unwrap()]);
                debugfs(image, &format!("set_super_value state {state}"));
                debugfs(image, "set_super_value error_count 5");
                let copy = image.with_extension("copy");
                std::fs::copy(image, &copy).unwrap();
                let device = FileDevice::open(&copy).unwrap();
                let plan = plan(&device, &RepairOptions::default()).unwrap();
                assert!(plan.is_complete() && !plan.is_empty());
                plan.apply(&device).unwrap();
                assert!(is_marked_clean(&device));
                let shown = run("dumpe2fs", &["-h", copy.to_str().unwrap()]).stdout;
                assert!(!String::from_utf8_lossy(&shown).contains("FS Error"));
                let code = run("e2fsck", &["-fy", image.to_str().unwrap()]).status.code();
                assert_eq!(Some(i32::from(plan.ending().exit_code())), code, "{state} {options:?}");
                std::fs::copy(&copy, image).unwrap();
                debugfs(image, &format!("set_super_value state {state}"));
            });
        }
    }
}

/// The names `.` and `..` end with a zero byte. A repair restores that byte and leaves the rest of
/// the block as it is.
#[test]
fn zero_bytes_end_the_names_of_a_directory_and_its_parent() {
    let Some(mut judged) = Judged::start() else { return };
    // A directory with an index, one without, and the root.
    for (path, at) in [("many", 9), ("many", 22), ("one", 9), ("one", 22), ("", 9)] {
        judged.judge(format!("byte {at} of /{path}"), PLAIN, |image| {
            let place = place_of(image, &format!("/{path}"));
            let whole = std::fs::read(image).unwrap();
            write(image, place + at, b"X");
            let code = run("e2fsck", &["-fn", image.to_str().unwrap()]).status.code();
            let device = FileDevice::open_read_only(image).unwrap();
            assert_eq!((check(&device, &Options::default()).unwrap().is_clean(), code), (false, Some(4)));
            let copy = image.with_extension("copy");
            std::fs::copy(image, &copy).unwrap();
            repair(&copy);
            let start = usize::try_from(place).unwrap();
            let repaired = std::fs::read(&copy).unwrap();
            assert!(whole[start..start + 1024] == repaired[start..start + 1024], "byte {at} of /{path}");
        });
    }
}

/// `e2fsck -p` corrects the checksum of an inode only if all its extents are in the inode. There
/// are two exceptions: a journal is made anew, and in an inode that is not in use the extents are
/// not looked at.
#[test]
fn checksums_of_inodes_with_blocks_of_extents() {
    let Some(mut judged) = Judged::start() else { return };
    // Small groups, so that the journal has more extents than fit in its inode.
    let small = &["-t", "ext4", "-O", "^flex_bg,^resize_inode", "-g", "256", "-J", "size=1"][..];
    let data = judged.folder.path().join("data");
    let pieces = std::fs::File::create(&data).unwrap();
    for n in 0..9 {
        std::os::unix::fs::FileExt::write_all_at(&pieces, b"piece", (n * 20) << 10).unwrap();
    }
    for damage in [
        &["sif pieces checksum 0x1234"][..],
        &["sif pieces checksum 0x1234", "sif one checksum 0x1234"],
        &["sif pieces links_count 0", "sif pieces dtime 0x60000000", "sif pieces checksum 0x1234"],
        &["sif pieces flags 0", "sif pieces checksum 0x1234"],
        &["sif pieces mode 0", "sif pieces checksum 0x1234"],
        &["sif one checksum 0x1234"],
        &["sif many checksum 0x1234"],
        &["sif <8> checksum 0x1234"],
    ] {
        judged.judge(format!("{damage:?}"), small, |image| {
            debugfs(image, &format!("write {} pieces", data.display()));
            damage.iter().for_each(|request| drop(debugfs(image, request)));
        });
    }
}

#[test]
fn attributes_that_go_or_are_there_after_all() {
    let Some(mut all) = Judged::start() else { return };
    all.judge("a value in an inode without its flag, behind a wrong checksum", EXT4, |image| {
        let value = image.with_extension("value");
        std::fs::write(&value, [b'x'; 600]).unwrap();
        debugfs(image, &format!("ea_set -f {} one user.x", value.to_str().unwrap()));
        let shown = debugfs(image, "stat one");
        let block = shown.split("File ACL: ").nth(1).unwrap().split_whitespace().next().unwrap();
        write(image, (block.parse::<u64>().unwrap() << 10) + 32 + 4, &12u32.to_le_bytes());
    });
    all.judge("the extra size of an encrypted file", ENCRYPTED, |image| {
        encrypt_with_a_wrong_extra_size(image);
    });
}

/// Gives `one` three attributes. Returns the byte offset of its attribute block.
fn with_attributes(image: &Path) -> u64 {
    for request in ["user.aa first-value", "user.bbb second-value", "user.cccc third-value"] {
        debugfs(image, &format!("ea_set one {request}"));
    }
    let shown = debugfs(image, "stat one");
    let block = shown.split("File ACL: ").nth(1).unwrap().split_whitespace().next().unwrap();
    block.parse::<u64>().unwrap() << 10
}

#[test]
fn numbers_of_unused_inodes_and_flags_that_hide_the_root() {
    let Some(mut judged) = Judged::start() else { return };
    for options in [EXT4, UNINIT] {
        for (field, seal) in [
            ("itable_unused 9999", true),
            ("itable_unused 2048", true),
            ("itable_unused 2000", true),
            ("flags 7", true),
            ("flags 5", true),
            ("flags 7", false),
        ] {
            judged.judge(format!("{field}, {options:?}, sealed: {seal}"), options, |image| {
                let script = image.with_extension("script");
                let seal = if seal { "set_bg 0 checksum calc\n" } else { "" };
                std::fs::write(&script, format!("set_bg 0 {field}\n{seal}")).unwrap();
                run("debugfs", &["-w", "-f", script.to_str().unwrap(), image.to_str().unwrap()]);
            });
        }
    }
}

/// INODE_UNINIT hides the inode table with the root, and no directory outside the table leads
/// there. e2fsck makes a new root. We read the table, keep the names in it, and count that as a
/// correction.
#[test]
fn a_hidden_root_counts_if_no_directory_leads_there() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for options in [EXT4, UNINIT] {
        let image = made(folder.path(), options);
        let whole = debugfs(&image, "ls -p many");
        let script = image.with_extension("script");
        std::fs::write(&script, "set_bg 0 flags 5\nset_bg 0 checksum calc\n").unwrap();
        run("debugfs", &["-w", "-f", script.to_str().unwrap(), image.to_str().unwrap()]);
        let theirs = image.with_extension("theirs");
        std::fs::copy(&image, &theirs).unwrap();
        let code = run("e2fsck", &["-fy", theirs.to_str().unwrap()]).status.code();
        let device = FileDevice::open_read_only(&image).unwrap();
        let how = RepairOptions { now: 1_700_000_000, ..RepairOptions::default() };
        let ours = plan(&device, &how).unwrap().ending().exit_code();
        assert_eq!((ours, code), (1, Some(1)), "{options:?}");
        repair(&image);
        assert!(debugfs(&image, "ls -p many") == whole, "{options:?}");
    }
}

type Damage = fn(&Path);

/// What `-y` takes from a backup counts as a correction, and so does a resize inode without its
/// feature.
#[test]
fn exit_codes_of_whole_repairs_that_change_only_the_head() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let damages: [(&str, Damage); 4] = [
        ("superblock", |image| write(image, 1024, &[0; 1024])),
        ("descriptors", |image| write(image, 2048, &[0; 1024])),
        ("a place", |image| drop(debugfs(image, "set_bg 1 block_bitmap 5"))),
        ("resize_inode", |image| drop(debugfs(image, "feature -resize_inode"))),
    ];
    for (name, damage) in damages {
        for kind in ["ext3", "ext4"] {
            let image = made(folder.path(), &["-t", kind]);
            damage(&image);
            let device = FileDevice::open_read_only(&image).unwrap();
            let how = RepairOptions { now: 1_700_000_000, ..RepairOptions::default() };
            let ours = plan(&device, &how).unwrap().ending().exit_code();
            let theirs = run("e2fsck", &["-fy", image.to_str().unwrap()]).status.code();
            assert_eq!(Some(i32::from(ours)), theirs, "{name} of {kind}");
        }
    }
}

/// Offset in an attribute block, and what is written there.
type Write = (u64, &'static [u8]);

#[test]
fn faults_of_an_attribute_block_count_in_the_order_of_its_entries() {
    let Some(mut all) = Judged::start() else { return };
    let (first, second, third) = (32, 32 + 20, 32 + 40);
    let (name_index, value_offset, hash) = (1, 2, 12);
    let damages: [(&str, &[Write]); 10] = [
        ("the first value overlaps an entry that comes later", &[(first + value_offset, &[88, 0])]),
        ("the first value overlaps its own entry", &[(first + value_offset, &[36, 0])]),
        ("a wrong hash before an overlap", &[(first + hash, &[7]), (second + value_offset, &[0, 0])]),
        ("an overlap before a wrong hash", &[(first + value_offset, &[0, 0]), (second + hash, &[7])]),
        ("a wrong hash before a value outside", &[(first + hash, &[7]), (third + value_offset, &[0, 4])]),
        ("a value outside before a wrong hash", &[(second + value_offset, &[0, 4]), (third + hash, &[7])]),
        ("a wrong hash before a name index of 0", &[(first + hash, &[7]), (second + name_index, &[0])]),
        (
            "a name index of 0, a wrong hash, and a value outside",
            &[(first + name_index, &[0]), (second + hash, &[7]), (third + value_offset, &[0, 4])],
        ),
        (
            "a name index of 0 with a wrong hash before an overlap",
            &[(first + name_index, &[0]), (first + hash, &[7]), (second + value_offset, &[0, 0])],
        ),
        ("a name index of 0 before a wrong hash", &[(first + name_index, &[0]), (second + hash, &[7])]),
    ];
    for (name, writes) in damages {
        all.judge(name, &["-t", "ext4", "-I", "128", "-O", "^metadata_csum"], |image| {
            let block = with_attributes(image);
            writes.iter().for_each(|(at, bytes)| write(image, block + at, bytes));
        });
    }
}

const ENCRYPTED: &[&str] = &["-t", "ext4", "-O", "^metadata_csum,encrypt"];

/// Gives a file the flag and the attribute of encrypted files, and then a wrong extra size, so that
/// the attribute is not found. Returns the file.
fn encrypt_with_a_wrong_extra_size(image: &Path) -> String {
    let file = format!("many/{:0>200}", 7);
    debugfs(image, &format!("ea_set {file} user.c value"));
    let slot = slot_at(image, &file, 1024);
    // The name index becomes that of encryption contexts.
    write(image, slot + 128 + 32 + 4 + 1, &[9]);
    let mut flags = [0];
    FileDevice::open_read_only(image).unwrap().read_at(slot + 33, &mut flags).unwrap();
    write(image, slot + 33, &[flags[0] | 8]);
    write(image, slot + 128, &0x8020u16.to_le_bytes());
    file
}

/// The context of an encrypted file claims that its value is in an impossible inode. Once, the
/// repair kept both the flag and the entry, so it never ended clean.
#[test]
fn a_context_with_its_value_in_an_impossible_inode_is_none() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), ENCRYPTED);
    let file = encrypt_with_a_wrong_extra_size(&image);
    let slot = slot_at(&image, &file, 1024);
    write(&image, slot + 128, &32u16.to_le_bytes());
    write(&image, slot + 128 + 32 + 4 + 4, &0x0080_0000u32.to_le_bytes());
    repair(&image);
    blockyard_testkit::e2fsck_clean(&image);
}

/// Once, the correction of the extra size also cleared the encryption flag.
#[test]
fn an_encrypted_file_stays_encrypted_when_its_extra_size_is_corrected() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), ENCRYPTED);
    let file = encrypt_with_a_wrong_extra_size(&image);
    repair(&image);
    let shown = debugfs(&image, &format!("stat {file}"));
    assert!(shown.contains("Flags: 0x80800"), "{shown}");
}

/// Features that contradict each other, or other fields of the superblock.
#[test]
fn features_in_conflict() {
    let Some(mut judged) = Judged::start() else { return };
    let inline = &["-t", "ext4", "-O", "inline_data"][..];
    for (options, requests) in [
        (EXT4, &["feature ^extent"][..]),
        (PLAIN, &["feature ^extent"]),
        (inline, &["feature ^inline_data"]),
        (EXT4, &["feature ^has_journal"]),
        (PLAIN, &["feature ^has_journal"]),
        (&["-t", "ext3"], &["feature ^has_journal"]),
        (&["-t", "ext2"], &["feature metadata_csum_seed"]),
        (UNINIT, &["feature metadata_csum_seed"]),
        (EXT4, &["feature uninit_bg"]),
        (EXT4, &["feature ^resize_inode"]),
        (EXT4, &["feature ^resize_inode", "ssv reserved_gdt_blocks 0"]),
        (PLAIN, &["feature ^resize_inode"]),
        (EXT4, &["feature ^dir_index"]),
        (PLAIN, &["feature ^dir_index"]),
        (EXT4, &["ssv journal_inum 9"]),
        (PLAIN, &["ssv journal_inum 9"]),
        (&["-t", "ext3"], &["ssv journal_inum 9"]),
        (EXT4, &["ssv prj_quota_inum 3"]),
        (EXT4, &["ssv usr_quota_inum 4"]),
        (EXT4, &["ssv prj_quota_inum 5"]),
        (&["-t", "ext4", "-O", "quota"], &["ssv prj_quota_inum 3"]),
        (EXT4, &["ssv usr_quota_inum 5"]),
        (&["-t", "ext2"], &["ssv prj_quota_inum 3"]),
    ] {
        judged.judge(format!("{requests:?} {options:?}"), options, |image| {
            requests.iter().for_each(|request| drop(debugfs(image, request)));
            let copy = image.with_extension("copy");
            std::fs::copy(image, &copy).unwrap();
            repair(&copy);
        });
    }
}

/// Images that were cut short, some of them before the end of the journal.
#[test]
fn images_that_were_cut_short() {
    let Some(mut judged) = Judged::start() else { return };
    for (options, megabytes) in [(EXT4, 1), (EXT4, 8), (EXT4, 16), (EXT4, 24), (EXT4, 31), (PLAIN, 20)] {
        for dirty in [false, true] {
            judged.judge(format!("{megabytes} MiB, dirty: {dirty}, {options:?}"), options, |image| {
                if dirty {
                    debugfs(image, "feature needs_recovery");
                }
                let file = std::fs::File::options().write(true).open(image).unwrap();
                file.set_len(megabytes << 20).unwrap();
            });
        }
    }
}

/// Sets bits of a byte of the superblock. For images without checksums.
fn set_bits(image: &Path, at: u64, bits: u8) {
    let mut byte = [0];
    FileDevice::open_read_only(image).unwrap().read_at(1024 + at, &mut byte).unwrap();
    assert_eq!(byte[0] & bits, 0, "already set");
    write(image, 1024 + at, &[byte[0] | bits]);
}

/// A wrong bit in the features. bigalloc does no harm, because a cluster is one block here. With
/// casefold, but without an encoding, e2fsck gives up.
#[test]
fn wrong_bits_in_the_features() {
    let Some(mut judged) = Judged::start() else { return };
    for options in [PLAIN, UNINIT] {
        judged.judge(format!("bigalloc {options:?}"), options, |image| {
            set_bits(image, 0x65, 2);
            let device = FileDevice::open_read_only(image).unwrap();
            assert!(check(&device, &Options::default()).unwrap().is_clean(), "{options:?}");
            blockyard_testkit::e2fsck_clean(image);
        });
        judged.judge(format!("casefold {options:?}"), options, |image| {
            set_bits(image, 0x62, 2);
            let copy = image.with_extension("copy");
            std::fs::copy(image, &copy).unwrap();
            repair(&copy);
        });
    }
}

/// Faults at which `e2fsck -p` gives up. Our `-p` repairs them and loses nothing.
#[test]
fn faults_at_which_only_e2fsck_gives_up() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let damages: [(&str, &[&str], Damage); 2] = [
        ("feature orphan_file without a file", PLAIN, |image| set_bits(image, 0x5D, 0x10)),
        ("checksum of a journal inode without a copy", EXT4, |image| {
            debugfs(image, "sif <8> checksum 0x1234");
            debugfs(image, "ssv jnl_backup_type 0");
        }),
    ];
    for (name, options, damage) in damages {
        let image = made(folder.path(), options);
        let whole = debugfs(&image, "ls -p many");
        damage(&image);
        let copy = image.with_extension("copy");
        std::fs::copy(&image, &copy).unwrap();
        assert_eq!(exits(&image), (1, Some(8)), "{name}");
        assert_ne!(run("e2fsck", &["-fn", image.to_str().unwrap()]).status.code(), Some(0), "{name}");
        repair(&copy);
        assert!(debugfs(&copy, "ls -p many") == whole, "{name}");
    }
}

/// If e2fsck cannot read the journal's inode, it needs the copy in the superblock, and gives up
/// without one. The inode cannot be read if the only descriptor is lost, or if `mke2fs -S` changed
/// the seed of all checksums.
#[test]
fn journal_inodes_that_cannot_be_read() {
    let Some(mut judged) = Judged::start() else { return };
    judged.judge("mke2fs -S", EXT4, |image| {
        let name = image.to_str().unwrap();
        let options = ["-q", "-F", "-S", "-E", "nodiscard", "-t", "ext4", "-b", "1024"];
        assert!(run("mke2fs", &[&options[..], &[name, "32M"]].concat()).status.success());
    });
    let maps = &["-t", "ext3", "-b", "4096"][..];
    let extents = &["-t", "ext4", "-O", "^metadata_csum", "-b", "4096"][..];
    for (options, has_copy) in [(maps, true), (maps, false), (extents, true), (extents, false)] {
        judged.judge(format!("no descriptor, copy: {has_copy}, {options:?}"), PLAIN, |image| {
            mke2fs(image, options, "32M");
            if !has_copy {
                write(image, 1024 + 0xFD, &[0]);
            }
            write(image, 4096, &[0; 64]);
        });
    }
}

/// `e2fsck -p` continues although the bitmap of a group has fewer bits than the group has inodes.
#[test]
fn more_inodes_in_a_group_than_a_bitmap_has_bits() {
    let Some(mut judged) = Judged::start() else { return };
    for count in [8200, 16384, 32752, 32753] {
        judged.judge(format!("{count} inodes"), &["-t", "ext4", "-i", "1024"], |image| {
            debugfs(image, &format!("set_super_value inodes_per_group {count}"));
        });
    }
}

/// A resize inode is rebuilt if it is not in use, is no regular file, or has no double-indirect
/// block.
#[test]
fn resize_inodes_that_are_no_files_in_use() {
    let Some(mut judged) = Judged::start() else { return };
    let is_rebuilt = |image: &Path| {
        let copy = image.with_extension("copy");
        std::fs::copy(image, &copy).unwrap();
        repair(&copy);
        let shown = debugfs(&copy, "stat <7>");
        assert!(shown.contains("Type: regular") && shown.contains("(DIND):"), "{shown}");
        assert!(shown.contains("Links: 1"), "{shown}");
    };
    for options in [EXT4, &["-t", "ext2"]] {
        for change in ["mode 0", "links_count 0", "block[DIND] 0"] {
            judged.judge(format!("{change} {options:?}"), options, |image| {
                debugfs(image, &format!("sif <7> {change}"));
                is_rebuilt(image);
            });
        }
    }
    judged.judge("block 0 is part of the first group", EXT4, |image| {
        mke2fs(image, &["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "65536"], "64M");
        debugfs(image, "sif <7> block[DIND] 0");
        is_rebuilt(image);
    });
}

/// A flag says that the table with the root and most directories was never used. A directory in
/// another group has a `..` that names a directory in this table.
#[test]
fn a_parent_in_a_table_that_a_flag_hides() {
    let Some(mut judged) = Judged::start() else { return };
    let tree = judged.folder.path().join("nested");
    std::fs::create_dir_all(tree.join("above")).unwrap();
    for n in 0..100 {
        std::fs::write(tree.join(format!("above/{n}")), b"").unwrap();
    }
    for options in [EXT4, UNINIT, &["-t", "ext4", "-O", "inline_data"]] {
        judged.judge(format!("{options:?}"), options, |image| {
            // 32 inodes a group, so that the new directory is in another group than `above`.
            let more = ["-b", "1024", "-N", "128", "-d", tree.to_str().unwrap()];
            mke2fs(image, &[options, &more[..]].concat(), "32M");
            debugfs(image, "mkdir above/below");
            assert!(slot_at(image, "above/below", 1024) > slot_at(image, "above", 1024) + 32 * 256);
            let script = image.with_extension("script");
            std::fs::write(&script, "set_bg 0 flags 5\nset_bg 0 checksum calc\n").unwrap();
            run("debugfs", &["-w", "-f", script.to_str().unwrap(), image.to_str().unwrap()]);
            let device = FileDevice::open_read_only(image).unwrap();
            let found = check(&device, &Options::default()).unwrap().findings;
            let leads = |finding: &blockyard_check::Finding| finding.code == Code::UNINIT_INODE;
            assert!(found.iter().any(leads), "{options:?}: {found:?}");
            let copy = image.with_extension("copy");
            std::fs::copy(image, &copy).unwrap();
            repair(&copy);
            assert!(debugfs(&copy, "stat above/below").contains("Type: directory"), "{options:?}");
        });
    }
}

/// Directory entries that are not in use name inode 0. Once, a finding about inode 0 was given the
/// path of such an entry.
#[test]
fn inode_0_has_no_path() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), PLAIN);
    // The feature orphan_file, although there is no such file.
    set_bits(&image, 0x5D, 0x10);
    let device = FileDevice::open_read_only(&image).unwrap();
    let found = check(&device, &Options::default()).unwrap().findings;
    let about = found.iter().filter(|finding| finding.site.inode.is_some_and(|inode| inode.raw() == 0));
    let paths: Vec<_> = about.map(|finding| &finding.path).collect();
    assert_eq!(paths, [&None], "{found:?}");
}
