//! Helpers that run the command `blockyard`, read its output, and build arguments of `lab run`.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::process::{Command, Output};

pub(crate) fn blockyard(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_blockyard")).args(arguments).output().unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The arguments of a small run with two workers and a few operations, followed by `more`.
pub(crate) fn run_with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let run = words("lab run fallocate2 --memory 256M --workers 2 --ops 40 --policy yard");
    [run.as_slice(), more].concat()
}

/// Splits a line into arguments at each blank. Quotes have no meaning.
pub(crate) fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// Asserts that a command is refused as wrong usage: with exit code 2, nothing on standard output,
/// and one line on standard error, which contains `part`.
pub(crate) fn assert_wrong_usage(command: &[&str], part: &str) {
    let output = blockyard(command);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{command:?}: {text}");
    assert!(text.contains(part), "{command:?}: {text}");
    assert!(text.starts_with("blockyard: ") && text.lines().count() == 1, "{command:?}: {text}");
    assert_eq!(stdout(&output), "", "{command:?}");
}
