//! `blockyard check`: exit codes of e2fsck; findings as text and JSON; the same result with any
//! number of threads; nothing written.

#![allow(clippy::unwrap_used, clippy::as_conversions)]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use blockyard_testkit::{mke2fs, require, run, seed};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

fn check(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_blockyard")).arg("check").args(arguments).output().unwrap()
}

fn code(arguments: &[&str]) -> i32 {
    check(arguments).status.code().unwrap()
}

/// Makes a file system, and in it a file two directories down. Then runs the requests with debugfs.
fn image(folder: &Path, name: &str, options: &str, requests: &[&str]) -> PathBuf {
    let path = folder.join(name);
    mke2fs(&path, &options.split(' ').collect::<Vec<_>>(), "20M");
    let source = folder.join("source");
    fs::write(&source, b"content").unwrap();
    let write = format!("write {} one/two/file", source.display());
    for request in ["mkdir one", "mkdir one/two", &write].into_iter().chain(requests.iter().copied()) {
        run("debugfs", &["-w", "-R", request, path.to_str().unwrap()]);
    }
    path
}

#[test]
fn exit_codes_are_those_of_e2fsck() {
    if !require(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let cases: [(&str, &[&str], i32); 5] = [
        ("-t ext4 -b 1024", &[], 0),
        ("-t ext4 -b 1024", &["set_inode_field one/two/file links_count 9"], 4),
        // The quota files do not account for the file and directories that debugfs made.
        ("-t ext4 -O quota", &[], 4),
        ("-t ext4 -b 4096", &["zap_block -p 0 0"], 8),
        ("-t ext3 -b 1024", &["set_super_value first_ino 5"], 8),
    ];
    for (options, requests, expected) in cases {
        let path = image(folder.path(), "image", options, requests);
        let before = fs::read(&path).unwrap();
        let path_text = path.to_str().unwrap();
        assert_eq!(run("e2fsck", &["-fn", path_text]).status.code(), Some(expected), "e2fsck: {requests:?}");
        for more in [&["-n"][..], &["-nf"], &["-n", "--json"], &["-n", "--quiet"]] {
            assert_eq!(code(&[more, &[path_text]].concat()), expected, "{options}: {requests:?} {more:?}");
        }
        assert!(fs::read(&path).unwrap() == before, "{requests:?}: written");
    }
    let good = image(folder.path(), "good", "-t ext4 -b 1024", &[]);
    let good = good.to_str().unwrap();
    let refused: [(&[&str], i32); 6] = [
        (&["-n", "/nonexistent/image"], 8),
        (&["-n", "-b", "5", good], 8),
        (&["-n", "-b", "8193", "-B", "4096", good], 8),
        (&["--threads", "0", good], 16),
        (&["-b", "8193", "-B", "1000", good], 16),
        (&["-b", "8193", "-B", "0", good], 16),
    ];
    for more in ["-p", "-y", "--plan"] {
        assert_eq!(code(&[more, good]), 0, "{more}: nothing to repair");
    }
    for (arguments, expected) in refused {
        let output = check(arguments);
        assert_eq!(output.status.code(), Some(expected), "{arguments:?}: {output:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.starts_with("blockyard: ") && error.lines().count() == 1, "{arguments:?}: {error}");
    }
}

#[test]
fn progress_goes_to_a_descriptor_in_lines_of_e2fsck() {
    if !require(&["mke2fs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "image", "-t ext4 -b 1024", &[]);
    let (path, lines) = (path.to_str().unwrap(), folder.path().join("lines"));
    let command = format!("{} check -n -C 3 {path} 3>{}", env!("CARGO_BIN_EXE_blockyard"), lines.display());
    let output = Command::new("sh").args(["-c", &command]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = std::fs::read_to_string(lines).unwrap();
    for pass in ["1", "2", "5"] {
        let of_pass: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
        let of_pass: Vec<_> = of_pass.into_iter().filter(|words| words[0] == pass).collect();
        assert!(of_pass.iter().all(|words| words.len() == 4 && words[3] == path), "{text}");
        assert!(of_pass.iter().any(|words| words[1] == words[2]), "pass {pass} ends: {text}");
        let done: Vec<u64> = of_pass.iter().map(|words| words[1].parse().unwrap()).collect();
        assert!(done.is_sorted_by(|a, b| a < b), "pass {pass} goes on: {text}");
    }
    assert_eq!(code(&["-n", "-C", "77", path]), 8, "no such descriptor");
}

#[test]
fn findings_have_codes_places_and_paths() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let requests = ["set_inode_field one/two/file links_count 9", "set_inode_field one/two/file size 7777"];
    let path = image(folder.path(), "image", "-t ext4 -b 1024", &requests);
    let output = check(&["-n", "--json", path.to_str().unwrap()]);
    let lines: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (summary, findings) = lines.split_last().unwrap();
    assert_eq!(summary["summary"], true);
    assert_eq!((&summary["clean"], &summary["examined"]), (&Value::Bool(false), &Value::Bool(true)));
    assert_eq!(summary["findings"].as_u64(), Some(findings.len() as u64));
    let links = findings.iter().find(|finding| finding["code"] == "0x040003").unwrap();
    assert_eq!((&links["severity"], links["pass"].as_u64()), (&Value::from("error"), Some(4)));
    assert_eq!((links["path"].as_str(), links["inode"].as_u64()), (Some("/one/two/file"), Some(14)));
    assert!(links["detail"].as_str().unwrap().contains('9') && links["message"].is_string());
    let text = check(&["-n", path.to_str().unwrap()]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.lines().any(|line| line.contains("0x040003") && line.ends_with("[/one/two/file]")),
        "{text}"
    );
    assert!(text.lines().last().unwrap().starts_with("NOT clean: "), "{text}");
}

#[test]
fn output_is_the_same_for_any_number_of_threads_and_in_order() {
    if !require(&["mke2fs", "debugfs"]) {
        return;
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed(6));
    let folder = tempfile::tempdir().unwrap();
    let mut most = 0;
    for options in ["-t ext4 -b 1024", "-t ext3 -b 1024", "-t ext4 -b 1024 -O ^metadata_csum,inline_data"] {
        let path = image(folder.path(), "image", options, &[]);
        let file = fs::File::options().write(true).open(&path).unwrap();
        // Hits the bitmaps, inode tables and directories, which come after the descriptors.
        for _ in 0..400 {
            file.write_all_at(&[random.random()], random.random_range(82 << 10..2 << 20)).unwrap();
        }
        let path = path.to_str().unwrap();
        let one = check(&["-n", "--json", "--threads", "1", path]);
        let passes: Vec<u64> = String::from_utf8_lossy(&one.stdout)
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).unwrap()["pass"].as_u64())
            .collect();
        most = most.max(passes.len());
        assert!(passes.is_sorted(), "{passes:?}");
        for threads in ["2", "3", "8"] {
            let other = check(&["-n", "--json", "--threads", threads, path]);
            assert!(one.stdout == other.stdout && one.status == other.status, "{options}: {threads} threads");
        }
    }
    assert!(most > 20, "at most {most} findings: too few to be out of order");
}
