//! Journals that debugfs wrote, in several formats: our replay compared with e2fsck's.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use blockyard_device::FileDevice;
use blockyard_disk::CorruptionKind;
use blockyard_recovery::{OnDamage, Options, inspect, replay_to_device};
use blockyard_testkit::{e2fsck_clean, require, run};

/// Options of mke2fs, options of debugfs's journal_open, and a text that the list of the journal's
/// features must then contain.
const CASES: &[(&[&str], &str, &str)] = &[
    (&["-b", "4096"], "-c -v 3", "journal_checksum_v3"),
    (&["-b", "1024"], "-c -v 3", "journal_64bit"),
    (&["-b", "1024", "-O", "^64bit"], "-c -v 3", "journal_checksum_v3"),
    (&["-b", "4096"], "-c -v 2", "journal_checksum_v2"),
    (&["-b", "1024", "-O", "^64bit"], "-c -v 2", "journal_checksum_v2"),
    (&["-b", "4096", "-O", "^metadata_csum"], "-c", "journal_checksum journal_incompat_revoke"),
    (&["-b", "1024", "-O", "^metadata_csum,^64bit"], "-c", "journal_checksum journal_incompat_revoke"),
    (&["-b", "4096", "-O", "^metadata_csum"], "", "journal_64bit"),
    (&["-b", "2048", "-O", "^metadata_csum,^64bit"], "", "journal_incompat_revoke"),
    (&["-b", "1024", "-O", "^metadata_csum,^64bit,^extents", "-I", "128"], "", "journal_incompat_revoke"),
];

fn debugfs(image: &Path, script: &Path, commands: &[String]) {
    fs::write(script, commands.join("\n") + "\n").unwrap();
    let output = run("debugfs", &["-w", "-f", script.to_str().unwrap(), image.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn journals_of_debugfs_replay_as_e2fsck_replays_them() {
    if !require(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    for (options, open, feature) in CASES {
        let directory = tempfile::tempdir().unwrap();
        let ours = directory.path().join("ours.img");
        let theirs = directory.path().join("theirs.img");
        let script = directory.path().join("script");
        let data = |name: &str, bytes: Vec<u8>| {
            let path = directory.path().join(name);
            fs::write(&path, bytes).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let arguments = [&["-q", "-F", "-t", "ext4"], *options, &[ours.to_str().unwrap(), "32M"]].concat();
        assert!(run("mke2fs", &arguments).status.success(), "{arguments:?}");
        // The first block begins with the journal's magic, so that its copy is escaped.
        let mut first = vec![0x11; 3 * 4096];
        first[..4].copy_from_slice(&0xC03B_3998u32.to_be_bytes());
        let (first, second, third) =
            (data("first", first), data("second", vec![0x22; 4096]), data("third", vec![0x33; 4096]));
        debugfs(
            &ours,
            &script,
            &[
                format!("jo {open}"),
                format!("jw -b 7000,7001,7002 {first}"),
                format!("jw -b 7003 {second}"),
                "jw -r 7001,7003".to_owned(),
                format!("jw -b 7001 {third}"),
                "jc".to_owned(),
            ],
        );
        fs::copy(&ours, &theirs).unwrap();

        let device = FileDevice::open(&ours).unwrap();
        let status = inspect(&device).unwrap();
        assert!(status.features.contains(feature), "{options:?} {open}: {status:?}");
        // debugfs writes a wrong v1 checksum for a transaction of revokes. e2fsck rejects it, too.
        let is_v1 = status.features.contains("journal_checksum ");
        let choice = if is_v1 { OnDamage::ReplayGood } else { OnDamage::Refuse };
        let report = replay_to_device(&device, &Options { on_damage: choice, ..Options::default() }).unwrap();
        let counts = (report.transactions, report.logged, report.revokes, report.revoked, report.written);
        if is_v1 {
            assert_eq!(counts, (2, 4, 0, 0, 4), "{options:?} {open}");
            assert_eq!(report.damage[0].kind, CorruptionKind::JournalCommitChecksum);
        } else {
            assert_eq!(counts, (4, 5, 2, 2, 3), "{options:?} {open}");
            e2fsck_clean(&ours);
        }

        let output = run("e2fsck", &["-y", "-E", "journal_only", theirs.to_str().unwrap()]);
        assert!(output.status.code().unwrap() <= 1, "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text.contains("transaction 3 was corrupt"), is_v1, "{text}");
        let (a, b) = (fs::read(&ours).unwrap(), fs::read(&theirs).unwrap());
        let differing: Vec<usize> = a
            .chunks(1024)
            .zip(b.chunks(1024))
            .enumerate()
            .filter(|(_, (a, b))| a != b)
            .map(|(number, _)| number)
            .collect();
        // The superblock (its times) and the journal's superblock may differ: two blocks of 1 KiB.
        assert!(differing.len() <= 2, "{options:?} {open}: 1 KiB blocks {differing:?}");
    }
}
