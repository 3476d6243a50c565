//! A file system is not written to while another host renews its MMP block (multiple mount
//! protection), or if that block says that a check is running. If the host has stopped renewing
//! the block, the file system is written to after a wait.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use blockyard_disk::Checksums;
use blockyard_disk::mmp::{RawMmp, SEQUENCE_FSCK};
use blockyard_disk::superblock::RawSuperblock;
use blockyard_testkit::{mke2fs, require, run};
use zerocopy::{FromBytes, IntoBytes};

/// An image with an MMP block and a log to replay.
fn made(folder: &Path) -> PathBuf {
    let image = folder.join("image");
    mke2fs(&image, &["-t", "ext4", "-b", "1024", "-O", "mmp", "-E", "mmp_update_interval=1"], "32M");
    let (commands, data) = (folder.join("commands"), folder.join("data"));
    fs::write(&data, [7; 1024]).unwrap();
    fs::write(&commands, format!("jo -c\njw -b 30000 {}\njc\n", data.display())).unwrap();
    run("debugfs", &["-w", "-f", commands.to_str().unwrap(), image.to_str().unwrap()]);
    set_sequence(&image, 77);
    image
}

/// The superblock, and the byte of the image where the MMP block begins.
fn place(image: &Path) -> (RawSuperblock, u64) {
    let mut bytes = [0; RawSuperblock::SIZE];
    File::open(image).unwrap().read_exact_at(&mut bytes, 1024).unwrap();
    let sb = RawSuperblock::read_from_bytes(&bytes).unwrap();
    (sb, sb.s_mmp_block.get() << 10)
}

fn set_sequence(image: &Path, sequence: u32) {
    let (sb, at) = place(image);
    let file = File::options().read(true).write(true).open(image).unwrap();
    let mut bytes = [0; RawMmp::SIZE];
    file.read_exact_at(&mut bytes, at).unwrap();
    let mut mmp = RawMmp::read_from_bytes(&bytes).unwrap();
    (mmp.mmp_seq, mmp.mmp_check_interval) = (sequence.into(), 1.into());
    Checksums::of(&sb).seal_mmp(&mut mmp);
    file.write_all_at(mmp.as_bytes(), at).unwrap();
}

/// The image without its MMP block.
fn rest(image: &Path) -> Vec<u8> {
    let at = usize::try_from(place(image).1).unwrap();
    let mut bytes = fs::read(image).unwrap();
    bytes[at..at + RawMmp::SIZE].fill(0);
    bytes
}

const COMMANDS: [&[&str]; 5] = [
    &["check", "-p"],
    &["check", "-fp"],
    &["check", "-y", "--no-undo"],
    &["check", "-p", "-E", "journal_only"],
    &["recover"],
];

fn blockyard(command: &[&str], image: &Path) -> (Option<i32>, String) {
    let done = Command::new(env!("CARGO_BIN_EXE_blockyard")).args(command).arg(image).output().unwrap();
    (done.status.code(), String::from_utf8(done.stderr).unwrap())
}

#[test]
fn a_mounted_file_system_is_not_written() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path());
    let before = rest(&image);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for sequence in 100.. {
                set_sequence(&image, sequence);
                std::thread::sleep(Duration::from_millis(100));
                // Relaxed: no other access is ordered by the flag.
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let refused: Vec<_> = COMMANDS.iter().map(|command| blockyard(command, &image)).collect();
        done.store(true, Ordering::Relaxed);
        for (command, (code, said)) in COMMANDS.iter().zip(refused) {
            assert_eq!((command, code), (command, Some(8)), "{said}");
            assert!(said.contains("another host has the file system mounted"), "{said}");
        }
    });
    assert!(rest(&image) == before, "something was written");
    set_sequence(&image, SEQUENCE_FSCK);
    for command in COMMANDS {
        let (code, said) = blockyard(command, &image);
        assert_eq!((command, code), (command, Some(8)), "{said}");
        assert!(said.contains("clear_mmp"), "{said}");
    }
    assert!(rest(&image) == before, "something was written");
    let reads = [&["check", "-n"][..], &["recover", "-n"]];
    assert_eq!(reads.map(|command| blockyard(command, &image).0), [Some(4), Some(0)]);
}

#[test]
fn a_file_system_that_a_host_left_is_repaired_after_a_while() {
    if !require(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let left = made(folder.path());
    let image = folder.path().join("copy");
    for command in [COMMANDS[0], COMMANDS[2], COMMANDS[4]] {
        fs::copy(&left, &image).unwrap();
        let begin = std::time::Instant::now();
        let (code, said) = blockyard(command, &image);
        assert_eq!((command, code), (command, Some(0)), "{said}");
        assert!(said.contains("waiting 3 s") && begin.elapsed() >= Duration::from_secs(3), "{said}");
        blockyard_testkit::e2fsck_clean(&image);
    }
}
