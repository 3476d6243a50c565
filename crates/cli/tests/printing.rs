//! Printing: no byte of an image affects a terminal, JSON keeps every byte of a name, tables fit
//! the terminal, progress is for terminals only, and reading a mounted image gives a warning.
//!
//! The terminal comes from `script` (util-linux), which runs a command on a pseudo-terminal and
//! prints its output.

#![allow(clippy::unwrap_used)]

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use blockyard_testkit::require;
use serde_json::Value;
use tempfile::TempDir;

const BLOCKYARD: &str = env!("CARGO_BIN_EXE_blockyard");

/// Names that would clear the screen, change colours by the control character U+009B or break a
/// line, or that are not UTF-8.
const NAMES: [&[u8]; 4] = [b"esc\x1b[2J", b"c1\xc2\x9b31m", b"two\nlines", b"raw\xff\xfe"];

fn run<S: AsRef<OsStr>>(arguments: &[S]) -> Output {
    Command::new(BLOCKYARD).args(arguments).output().unwrap()
}

fn done<S: AsRef<OsStr>>(arguments: &[S]) -> Vec<u8> {
    let output = run(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Runs a shell line on a terminal of 80 columns; `$B` is the program and `$I` the image.
fn on_terminal(line: &str, image: &Path) -> String {
    let line = format!("stty cols 80 rows 24; {line}");
    let output = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("B", BLOCKYARD)
        .env("I", image)
        .env("SHELL", "/bin/sh")
        .env("TERM", "xterm")
        .env_remove("COLUMNS")
        .output()
        .unwrap();
    String::from_utf8(output.stdout).expect("a terminal gets text")
}

struct Stage {
    folder: TempDir,
    image: PathBuf,
}

/// An image with a hostile label, and for each of [`NAMES`] a file and a symbolic link to it.
fn stage() -> Stage {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    done(&[
        OsStr::new("mkfs"),
        image.as_os_str(),
        OsStr::new("16M"),
        OsStr::new("-L"),
        OsStr::new("lab\x1b[2Jel"),
    ]);
    let content = folder.path().join("content");
    std::fs::write(&content, [b"text \x1b[2J".as_slice(), &[b'x'; 6000]].concat()).unwrap();
    for name in NAMES {
        let path = path_of(name);
        done(&[OsStr::new("put"), image.as_os_str(), content.as_os_str(), &path]);
        let link = path_of(&[b"link-", name].concat());
        done(&[OsStr::new("ln"), OsStr::new("-s"), image.as_os_str(), &path, &link]);
    }
    Stage { folder, image }
}

fn path_of(name: &[u8]) -> OsString {
    OsString::from_vec([b"/", name].concat())
}

/// Asserts that a text has nothing in it that affects a terminal.
fn assert_tame(what: &str, text: &str) {
    let bad = text.chars().find(|letter| letter.is_control() && !matches!(letter, '\n' | '\r' | '\t'));
    assert_eq!(bad, None, "{what}: {text:?}");
}

/// `ls`, `map`, `frag`, `check`, `stat` and `cat` used to write names, labels and content to
/// terminals unescaped.
#[test]
fn no_byte_of_an_image_reaches_a_terminal_raw() {
    if !require(&["script", "debugfs"]) {
        return;
    }
    let stage = stage();
    for (line, part) in [
        ("$B ls $I", r"esc\u{1b}[2J"),
        ("$B ls -l $I", r"-> /two\nlines"),
        ("$B ls -R $I /", r"raw\xff\xfe"),
        ("$B frag $I", r"/c1\u{9b}31m"),
        ("$B frag --files $I", r"/two\nlines: 1 extent"),
        ("$B frag -v $I", r"File size of /esc\u{1b}[2J is"),
        ("$B stat $I", r"lab\u{1b}[2Jel"),
        ("$B cat $I '/raw'*; $B cat $I \"$(printf '/esc\\033[2J')\"", r"text \u{1b}[2Jxxx"),
        ("$B stat $I \"$(printf '/link-esc\\033[2J')\"", r"/esc\u{1b}[2J"),
        ("$B map $I \"$(printf '/esc\\033[2J')\"", "logical"),
        ("$B ls $I \"$(printf '/no\\033[2J')\"", r"/no\u{1b}[2J"),
    ] {
        let text = on_terminal(line, &stage.image);
        assert_tame(line, &text);
        assert!(text.contains(part), "{line}: {text:?}");
    }
    // JSON on a terminal stays JSON.
    let text = on_terminal("$B ls --json $I", &stage.image);
    assert_tame("ls --json", &text);
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows.iter().any(|row| row["path"] == "/c1\u{9b}31m"), "{text}");
    // A file with a wrong link count is reported with its path.
    for name in NAMES {
        let inode = inode_of(&stage.image, name);
        let request = format!("set_inode_field <{inode}> links_count 5");
        let image = stage.image.to_str().unwrap();
        assert!(
            Command::new("debugfs").args(["-w", "-R", &request, image]).output().unwrap().status.success()
        );
    }
    let text = on_terminal("$B check -n $I", &stage.image);
    assert_tame("check", &text);
    assert!(text.contains(r"[/esc\u{1b}[2J]") && text.contains(r"[/two\nlines]"), "{text:?}");
    let findings = run(&[OsStr::new("check"), OsStr::new("--json"), stage.image.as_os_str()]).stdout;
    let paths: Vec<Vec<u8>> = rows_of(&findings).iter().filter_map(|row| bytes_at(row, "path")).collect();
    for name in NAMES {
        assert!(paths.contains(&path_of(name).into_vec()), "{}", name.escape_ascii());
    }
}

fn inode_of(image: &Path, name: &[u8]) -> u64 {
    let rows = rows_of(&done(&[OsStr::new("ls"), OsStr::new("--json"), image.as_os_str()]));
    let path = path_of(name).into_vec();
    let row = rows.iter().find(|row| bytes_at(row, "path").as_deref() == Some(&path)).unwrap();
    row["inode"].as_u64().unwrap()
}

fn rows_of(text: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(text).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The bytes of the name under `key`. If the row has a key `{key}_bytes`, they are decoded from its
/// hex digits; otherwise they are the bytes of the text. `None` if the row has no `key`.
fn bytes_at(row: &Value, key: &str) -> Option<Vec<u8>> {
    let text = row[key].as_str()?;
    let Some(hex) = row[format!("{key}_bytes")].as_str() else { return Some(text.as_bytes().to_vec()) };
    let digits = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    Some((0..hex.len()).step_by(2).map(digits).collect())
}

/// Names that are not UTF-8 used to be printed with replacement characters only, so that two such
/// names could look the same.
#[test]
fn json_says_every_name_to_the_byte() {
    let stage = stage();
    let image = stage.image.as_os_str();
    let name = b"raw\xff\xfe";
    let (path, out) = (path_of(name), stage.folder.path().join("out"));
    std::fs::create_dir(&out).unwrap();
    let (other, moved) = (path_of(b"dir\xfd"), path_of(b"moved\xfc"));
    let words = |words: &[&str]| -> Vec<OsString> { words.iter().map(OsString::from).collect() };
    let all: Vec<(Vec<OsString>, &str, Vec<u8>)> = vec![
        ([words(&["ls"]), vec![image.into()]].concat(), "path", path.as_bytes().to_vec()),
        ([words(&["ls"]), vec![image.into()]].concat(), "target", path.as_bytes().to_vec()),
        ([words(&["frag", "--files"]), vec![image.into()]].concat(), "path", path.as_bytes().to_vec()),
        ([words(&["cat"]), vec![image.into(), path.clone()]].concat(), "path", path.as_bytes().to_vec()),
        (
            [words(&["get"]), vec![image.into(), path.clone(), out.clone().into()]].concat(),
            "to",
            out.join(OsStr::from_bytes(name)).into_os_string().into_vec(),
        ),
        ([words(&["mkdir"]), vec![image.into(), other.clone()]].concat(), "path", other.as_bytes().to_vec()),
        (
            [words(&["mv"]), vec![image.into(), path.clone(), moved.clone()]].concat(),
            "to",
            moved.as_bytes().to_vec(),
        ),
        ([words(&["rm"]), vec![image.into(), moved.clone()]].concat(), "path", moved.as_bytes().to_vec()),
        (
            [words(&["put", "-r"]), vec![image.into(), out.clone().into(), "/".into()]].concat(),
            "path",
            [b"/out/", &name[..]].concat(),
        ),
        (
            [words(&["stat"]), vec![image.into(), path_of(b"link-raw\xff\xfe")]].concat(),
            "target",
            path.as_bytes().to_vec(),
        ),
    ];
    for (arguments, key, wanted) in all {
        let text = done(&[words(&["--json"]), arguments.clone()].concat());
        let rows = rows_of(&text);
        let found = rows.iter().any(|row| {
            let worst = row["files"]["worst"].as_array().into_iter().flatten();
            std::iter::once(row).chain(worst).any(|row| bytes_at(row, key).as_deref() == Some(&wanted))
        });
        assert!(found, "{arguments:?}: {}", String::from_utf8_lossy(&text));
    }
    // A UTF-8 name has no `path_bytes`, and text that does not go to a terminal is not escaped.
    let rows = rows_of(&done(&[OsStr::new("--json"), OsStr::new("ls"), image]));
    assert!(rows.iter().any(|row| row["path"] == "/two\nlines" && row["path_bytes"].is_null()));
    let text = done(&[OsStr::new("ls"), image]);
    assert!(text.windows(7).any(|part| part == b"esc\x1b[2J"), "{}", text.escape_ascii());
}

const SMALL: &str = "lab run fallocate2 --interleave lockstep --ops 40 --workers 1,2,8,64 --repeat 2 --memory 4G \
                     --policy linux-6.16:scan=optimized,linux-6.18,yard";

/// Tables of `lab run` used to be up to 251 characters wide, whatever the width of the terminal.
#[test]
fn tables_fit_the_terminal() {
    // The verdict (`seed 1: ...`) is a sentence and not part of a table, so it may be wider.
    let widest = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with("seed"));
        lines.map(|line| line.trim_end_matches('\r').chars().count()).max().unwrap()
    };
    let with = |columns: Option<&str>| {
        let mut command = Command::new(BLOCKYARD);
        command.args(SMALL.split_whitespace()).env_remove("COLUMNS");
        if let Some(columns) = columns {
            command.env("COLUMNS", columns);
        }
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let text = with(None);
    assert!((60..=100).contains(&widest(&text)), "{}: {text}", widest(&text));
    for part in ["1 worker ", "8 workers", "mean extent", " KiB", "seed 1: all 24 images passed our check"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for part in ["1 workers", " KB", " us ", "busy skips     │\n"] {
        assert!(!text.contains(part), "{part}: {text}");
    }
    let narrow = with(Some("56"));
    assert!((40..=56).contains(&widest(&narrow)), "{}: {narrow}", widest(&narrow));
    assert!(narrow.matches('┌').count() > text.matches('┌').count(), "tables part: {narrow}");
    if require(&["script"]) {
        let there = on_terminal(&format!("$B {SMALL} 2>/dev/null"), Path::new("none"));
        assert!((60..=80).contains(&widest(&there)), "{}: {there}", widest(&there));
    }
}

/// The progress line used to be `put: 1234 names, 5 MiB`, without the total, the rate or the time
/// left.
#[test]
fn progress_says_how_much_is_left_and_only_on_a_terminal() {
    if !require(&["script"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (image, tree) = (folder.path().join("image"), folder.path().join("tree"));
    done(&[OsStr::new("mkfs"), image.as_os_str(), OsStr::new("1G"), OsStr::new("-i"), OsStr::new("8192")]);
    for number in 0..8000 {
        let directory = tree.join((number % 8).to_string());
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join(number.to_string()), vec![b'x'; 20_000]).unwrap();
    }
    // Progress appears after one second, so the program is stopped for longer than that.
    let stopped = |after: &str, words: &str| {
        format!("$B {words} & p=$!; sleep {after}; kill -STOP $p; sleep 1.2; kill -CONT $p; wait $p")
    };
    // On a busy machine the program may begin to copy only after the first delay, so several delays
    // are tried.
    let mut texts = ["0.1", "0.3", "0.6", "1.2"].into_iter().enumerate().map(|(nth, after)| {
        let put = stopped(after, &format!("put -r $I {} /tree{nth}", tree.display()));
        on_terminal(&put, &image)
    });
    let text = texts.find(|text| text.contains("put: ")).expect("one of four shows progress");
    for part in ["put: ", " of 8009 names, ", " of 152.", "MiB (", " %), ", "/s, ", " left"] {
        assert!(text.contains(part), "{part}: {text:?}");
    }
    assert!(text.contains("8009 names and 153 MiB of content in "), "a summary for people: {text:?}");
    // Without a terminal only the summary is printed.
    let get = format!("get -r $I /tree0 {}", folder.path().join("back").display());
    let output = Command::new("sh")
        .args(["-c", &stopped("0.1", &get)])
        .env("B", BLOCKYARD)
        .env("I", &image)
        .output()
        .unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.starts_with("8009 names and 153 MiB of content in ") && said.lines().count() == 1, "{said}");
}

/// `rm -r` used to count names without a total, and the smaller commands of `lab` used to show only
/// a spinner.
#[test]
fn progress_of_what_is_counted_says_of_how_many() {
    if !require(&["script"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (image, tree) = (folder.path().join("image"), folder.path().join("tree"));
    done(&[OsStr::new("mkfs"), image.as_os_str(), OsStr::new("64M"), OsStr::new("-N"), OsStr::new("9000")]);
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("0"), "").unwrap();
    for number in 1..60_000 {
        std::fs::hard_link(tree.join("0"), tree.join(number.to_string())).unwrap();
    }
    done(&[
        OsStr::new("put"),
        OsStr::new("-r"),
        OsStr::new("--quiet"),
        image.as_os_str(),
        tree.as_os_str(),
        OsStr::new("/"),
    ]);
    // Progress appears after one second. So the program is stopped for longer than that, soon after
    // it starts.
    let stopped = |words: &str| {
        format!("$B {words} & p=$!; sleep 0.05; kill -STOP $p; sleep 1.3; kill -CONT $p; wait $p")
    };
    let text = on_terminal(&stopped("rm -r $I /tree"), &image);
    for part in ["rm: ", " of 60,001 names (", " %), ", " left"] {
        assert!(text.contains(part), "{part}: {text:?}");
    }
    let text = on_terminal(&stopped("lab census"), &image);
    for part in ["lab census: ", " of 14: linux-6.1"] {
        assert!(text.contains(part), "{part}: {text:?}");
    }
    let text = on_terminal(
        "$B lab journal --workers 1 --ops 100 --repeat 1 --threads 2 --fsyncs 20 --flush-us 50000",
        &image,
    );
    for part in ["lab journal: ", " of ", ": 2 threads that fsync, a flush of 50.0 ms"] {
        assert!(text.contains(part), "{part}: {text:?}");
    }
}

/// Summaries used to mix sizes in blocks, bytes and MiB, and to use the plural for one thing, as in
/// "1 groups".
#[test]
fn summaries_are_for_people() {
    let stage = stage();
    let image = stage.image.as_os_str();
    let text = |arguments: &[&OsStr]| String::from_utf8(done(arguments)).unwrap();
    let other = stage.folder.path().join("other");
    let made = text(&[OsStr::new("mkfs"), other.as_os_str(), OsStr::new("64M")]);
    for part in ["made ext4 of 64.0 MiB: ", "journal of 4.00 MiB\n", " MiB free, 3.20 MiB reserved\n"] {
        assert!(made.contains(part), "{part}: {made}");
    }
    let one = text(&[OsStr::new("mkfs"), other.as_os_str(), OsStr::new("-F"), OsStr::new("4M")]);
    assert!(one.contains(", 1 group\n"), "{one}");
    assert_eq!(text(&[OsStr::new("check"), image]), "clean: 0 errors\n");
    assert!(
        text(&[OsStr::new("map"), other.as_os_str()]).contains("1 group of 8192 clusters, "),
        "one group"
    );
}

/// Reading a mounted image used to give no warning, although part of its state may not be on disk
/// yet.
#[test]
fn whoever_reads_a_mounted_image_is_told() {
    if !require(&["root", "mount", "umount"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let place = folder.path().join("place");
    std::fs::create_dir(&place).unwrap();
    done(&[OsStr::new("mkfs"), image.as_os_str(), OsStr::new("16M")]);
    let mount = |options: &str| {
        let status = Command::new("mount").args(["-o", options]).arg(&image).arg(&place).status().unwrap();
        assert!(status.success());
    };
    let unmount = || assert!(Command::new("umount").arg(&place).status().unwrap().success());
    let said = |words: &str| {
        let arguments: Vec<&OsStr> = words
            .split(' ')
            .map(|word| if word == "I" { image.as_os_str() } else { OsStr::new(word) })
            .collect();
        String::from_utf8(run(&arguments).stderr).unwrap()
    };
    let reading = ["check -n I", "ls I", "stat I", "map I", "frag I", "recover -n I", "cat I /x"];
    mount("loop");
    for words in reading {
        let said = said(words);
        let note = format!("note: is mounted at {} through /dev/loop", place.display());
        assert!(said.contains(&note) && said.contains("may be changing"), "{words}: {said}");
    }
    let refused = said("mkdir I /x");
    assert!(refused.contains("in use by /dev/loop") && !refused.contains("note"), "{refused}");
    unmount();
    // A file system that is mounted read-only does not change, so `ls` prints no note. A check
    // prints one, because a repair would change the file system.
    mount("loop,ro");
    for words in ["check -n I", "check --plan I"] {
        let said = said(words);
        let note = format!("note: is mounted read-only at {} through /dev/loop", place.display());
        assert!(said.contains(&note) && said.lines().count() == 1, "{words}: {said}");
    }
    assert_eq!(said("ls I"), "");
    let refused = said("check -fy I");
    assert!(refused.contains("in use by /dev/loop"), "{refused}");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(&format!(" {} ", place.display()))).unwrap();
    let device = line.split(' ').next().unwrap();
    let note = format!("note: is mounted read-only at {}; unmount it before a repair", place.display());
    assert!(said(&format!("check -n {device}")).contains(&note), "{device}");
    for words in ["check -fy", "check -p"] {
        let refused = said(&format!("{words} {device}"));
        let why = format!("{device}: is mounted at {}; unmount it first", place.display());
        assert!(refused.contains(&why), "{words}: {refused}");
    }
    unmount();
    assert_eq!(said("check -n I"), "");
}
