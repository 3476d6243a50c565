//! Conventions of every command: wrong usage gives a message of one line, a reader that goes away
//! does not stop the work, and output that cannot be written is reported.

#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const BLOCKYARD: &str = env!("CARGO_BIN_EXE_blockyard");

fn blockyard<S: AsRef<OsStr>>(arguments: &[S]) -> Output {
    Command::new(BLOCKYARD).args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// Asserts wrong usage: one line that contains `what` and says where to read more.
fn wrong(arguments: &[&str], what: &str, command: &str) {
    let output = blockyard(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    let expected = if command == "blockyard check" { 16 } else { 2 };
    assert_eq!(output.status.code(), Some(expected), "{arguments:?}: {errors}");
    assert_eq!(errors.lines().count(), 1, "{arguments:?}: {errors}");
    assert!(errors.starts_with(&command.replace(' ', ": ")), "{arguments:?}: {errors}");
    assert!(errors.contains(what) && errors.contains(&format!("(see `{command} --help`)")), "{errors}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
}

/// The words of every command, from the names of the manual pages.
fn commands() -> Vec<Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    assert!(blockyard(&[OsStr::new("man"), folder.path().as_os_str()]).status.success());
    let pages = std::fs::read_dir(folder.path()).unwrap().map(|page| page.unwrap().file_name());
    let words = |page: std::ffi::OsString| -> Vec<String> {
        page.to_str().unwrap().trim_end_matches(".1").split('-').skip(1).map(str::to_owned).collect()
    };
    pages.map(words).collect()
}

#[test]
fn every_command_refuses_in_one_line() {
    let mut count = 0;
    for words in commands() {
        let command = std::iter::once("blockyard").chain(words.iter().map(String::as_str));
        let command = command.collect::<Vec<_>>().join(" ");
        let mut arguments: Vec<&str> = words.iter().map(String::as_str).collect();
        arguments.push("--no-such-option");
        wrong(&arguments, "unexpected argument '--no-such-option'", &command);
        count += 1;
    }
    assert!(count > 25, "{count}");
}

/// Under the name of mount(8)'s helper, `--help` was once an error, and messages about wrong usage
/// contained `\n` in place of line breaks.
#[test]
fn the_helper_of_mount_says_what_is_wrong_in_one_line_too() {
    let folder = tempfile::tempdir().unwrap();
    let helper = folder.path().join("mount.fuse.blockyard");
    std::os::unix::fs::symlink(BLOCKYARD, &helper).unwrap();
    let run = |arguments: &[&str]| {
        let output = Command::new(&helper).args(arguments).stdin(Stdio::null()).output().unwrap();
        let [out, errors] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), out, errors)
    };
    for (arguments, expected) in [
        (
            &["img", "mnt", "--bogus"][..],
            "unexpected argument '--bogus' found; to pass '--bogus' as a value, use '-- --bogus'",
        ),
        (&["img"], "the following required arguments were not provided: <DIR>"),
        (&["img", "mnt", "-o", "shiny"], "unknown option shiny"),
    ] {
        assert_eq!(run(arguments), (Some(1), String::new(), format!("blockyard: {expected}\n")));
    }
    for (option, part) in [("--help", "Usage: "), ("--version", env!("CARGO_PKG_VERSION"))] {
        let (code, out, errors) = run(&[option]);
        assert_eq!((code, errors.as_str()), (Some(0), ""), "{option}");
        assert!(out.contains(part), "{option}: {out}");
    }
}

#[test]
fn each_mistake_is_named() {
    for (arguments, what, command) in [
        (&["lst", "image"][..], "unrecognized subcommand 'lst'", "blockyard"),
        (&["ls"], "not provided: <IMAGE>", "blockyard ls"),
        (&["check", "-py", "image"], "cannot be used with", "blockyard check"),
        (&["put", "image", "x"], "2 values required by '<SOURCE> <DEST>...'", "blockyard put"),
        (&["stat", "image", "/x", "--groups"], "cannot be used with", "blockyard stat"),
        (&["frag", "-c", "many", "image"], "invalid value 'many' for '--chunk <KIB>'", "blockyard frag"),
        (&["completions", "csh"], "[possible values: bash, elvish", "blockyard completions"),
        (&["lab", "report", "x", "--format", "pdf"], "[possible values: terminal", "blockyard lab report"),
        (&["mkdir", "image", "/x", "--owner", "a:b:c"], "'a:b:c' is not USER", "blockyard mkdir"),
        (&["rm", "image", "x", "--policy", "nice"], "no policy \"nice\"", "blockyard rm"),
        (&["policy", "show", "nice"], "no policy \"nice\"", "blockyard policy show"),
        (&["--colour", "ls"], "unexpected argument '--colour'", "blockyard ls"),
    ] {
        wrong(arguments, what, command);
    }
    // A command that needs a subcommand lists the possible ones.
    for words in [&[][..], &["lab"], &["policy"]] {
        let output = blockyard(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("Commands:"), "{words:?}");
    }
    let raw = blockyard(&[OsStr::new("ls"), OsStr::new("image"), OsStr::from_bytes(b"--\xff")]);
    assert_eq!((raw.status.code(), raw.stderr.iter().filter(|byte| **byte == b'\n').count()), (Some(2), 1));
}

fn image(folder: &Path) -> PathBuf {
    let path = folder.join("image");
    assert!(
        blockyard(&[OsStr::new("--quiet"), OsStr::new("mkfs"), path.as_os_str(), OsStr::new("16M")])
            .status
            .success()
    );
    path
}

/// Names in messages are escaped, so that a message is one line and harmless on a terminal.
#[test]
fn names_do_not_break_messages() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path());
    for (arguments, code) in [
        (vec!["ls", path.to_str().unwrap(), "/no\nsuch\x1b[2J"], 1),
        (vec!["rm", path.to_str().unwrap(), "/no\nsuch\x1b[2J"], 1),
        (vec!["ls", "no\nsuch\x1b[2J"], 8),
    ] {
        let output = blockyard(&arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{errors}");
        assert!(errors.contains(r"no\nsuch\u{1b}[2J") && errors.lines().count() == 1, "{errors}");
    }
}

/// Runs a command whose standard output (or standard error, if `is_error`) is a pipe that the
/// reader closes after `bytes` bytes.
fn with_closed_reader(arguments: &[&str], bytes: usize, is_error: bool) -> Output {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command = Command::new(BLOCKYARD);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if is_error {
        command.stderr(writer);
    } else {
        command.stdout(writer);
    }
    let child = command.spawn().unwrap();
    // The command object holds a copy of the writing end. It is closed now, so that the reader
    // below sees the end of the output when the child ends.
    drop(command);
    let mut seen = vec![0; bytes];
    reader.read_exact(&mut seen).unwrap();
    drop(reader);
    child.wait_with_output().unwrap()
}

#[test]
fn a_reader_that_goes_away_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path());
    let image = path.to_str().unwrap();
    let tree = folder.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    for number in 0..300 {
        std::fs::write(tree.join(format!("file{number}")), "content\n").unwrap();
    }
    let put = with_closed_reader(&["--json", "put", "-r", image, tree.to_str().unwrap(), "/"], 1, false);
    assert_eq!((put.status.code(), put.stderr), (Some(0), Vec::new()));
    assert_eq!(blockyard(&["ls", image, "/tree"]).stdout.split(|byte| *byte == b'\n').count(), 301);
    let reading: &[&[&str]] = &[
        &["ls", "-lR", image],
        &["map", image],
        &["stat", "-g", image],
        &["frag", "--files", image],
        &["cat", image, "/tree/file0"],
        &["check", "-n", image],
        &["policy", "list"],
        &["policy", "show", "yard"],
        &["completions", "bash"],
        &["--help"],
        &["lab", "run", "--help"],
        &["version"],
        &["lab", "run", "fallocate2", "--memory", "64M", "--workers", "1", "--ops", "20", "--policy", "yard"],
        &["lab", "crash", "--workload", "list"],
    ];
    for arguments in reading {
        let output = with_closed_reader(arguments, 0, false);
        assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()), "{arguments:?}");
    }
    // A reader of standard error that goes away stops nothing either.
    let missing: Vec<String> = (0..300).map(|number| format!("/none{number}")).collect();
    let mut arguments = vec!["rm", "-r", image];
    arguments.extend(missing.iter().map(String::as_str));
    arguments.push("/tree");
    assert_eq!(with_closed_reader(&arguments, 1, true).status.code(), Some(1));
    assert_eq!(blockyard(&["ls", image]).stdout, b"lost+found\n");
    assert!(blockyard(&["check", "-n", image]).status.success());
}

/// A full disk behind standard output is reported as such, with exit code 8.
#[test]
fn output_that_cannot_be_written_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path());
    let image = path.to_str().unwrap();
    for arguments in
        [&["ls", image][..], &["stat", image], &["policy", "list"], &["--json", "mkdir", image, "/dir"]]
    {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = Command::new(BLOCKYARD).args(arguments).stdout(full).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(8), "{arguments:?}: {errors}");
        assert_eq!(
            errors, "blockyard: standard output: No space left on device (os error 28)\n",
            "{arguments:?}"
        );
    }
    // The requested work was done all the same.
    assert_eq!(blockyard(&["ls", image]).stdout, b"dir\nlost+found\n");
}

/// Without any standard stream, a command still does its work.
#[test]
fn closed_streams_are_no_reason_to_stop() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path());
    let script = format!("exec '{BLOCKYARD}' --json mkdir '{}' /dir <&- >&- 2>&-", path.display());
    assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
    assert_eq!(blockyard(&["ls", path.to_str().unwrap()]).stdout, b"dir\nlost+found\n");
    let script = format!("exec '{BLOCKYARD}' put '{}' - /empty <&-", path.display());
    assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
    assert!(blockyard(&["cat", path.to_str().unwrap(), "/empty"]).stdout.is_empty());
}

/// With --quiet, commands that only show something print nothing but errors. With --json, too, the
/// objects are still printed.
#[test]
fn quiet_is_quiet() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path());
    let image = path.to_str().unwrap();
    for arguments in
        [&["ls", image][..], &["stat", image], &["map", image], &["map", image, "/"], &["frag", image]]
    {
        let quiet = blockyard(&[&["--quiet"], arguments].concat());
        assert_eq!(
            (quiet.status.code(), quiet.stdout.len(), quiet.stderr.len()),
            (Some(0), 0, 0),
            "{arguments:?}"
        );
        assert!(!blockyard(&[&["--quiet", "--json"], arguments].concat()).stdout.is_empty(), "{arguments:?}");
    }
    assert_eq!(blockyard(&["--quiet", "ls", image, "/none"]).status.code(), Some(1));
    assert_eq!(blockyard(&["--quiet", "get", image, "/lost+found", "-"]).status.code(), Some(1));
}
