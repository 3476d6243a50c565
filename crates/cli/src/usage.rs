//! Reports wrong usage in one line. The line names the command, says what is wrong, and says where
//! to read more.
//!
//! The words are clap's: the paragraphs before its usage text (the message, and sometimes a tip),
//! joined into one line.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;

/// Exit code of wrong usage.
const EXIT_USAGE: u8 = 2;
/// Exit code of wrong usage for `check`, which uses the codes of e2fsck.
const EXIT_USAGE_CHECK: u8 = 16;

/// Prints clap's message, and returns the exit code. Requested help goes to standard output. If a
/// command needs a subcommand and none is given, the message is the command's help.
pub(crate) fn end(error: &clap::Error, command: &clap::Command) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => show(error),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            exit_code(&words(command, std::env::args_os().skip(1)))
        }
        _ => refuse(&message(error), command),
    }
}

/// Like [`end`], for the helper of mount(8): after wrong usage the exit code is `code`.
pub(crate) fn end_helper(error: &clap::Error, code: u8) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return show(error);
    }
    eprintln!("blockyard: {}", message(error));
    ExitCode::from(code)
}

/// Prints the requested help or version.
fn show(requested: &clap::Error) -> ExitCode {
    // A failure is ignored: usually the reader has closed the pipe.
    let _ = requested.print();
    ExitCode::SUCCESS
}

/// Reports in one line what is wrong with the usage of the running command, and returns the exit
/// code.
pub(crate) fn refuse(told: &str, command: &clap::Command) -> ExitCode {
    let words = words(command, std::env::args_os().skip(1));
    eprintln!("{}: {told} (see `{} --help`)", words.join(": "), words.join(" "));
    exit_code(&words)
}

fn exit_code(words: &[String]) -> ExitCode {
    let is_check = words.get(1).is_some_and(|word| word == "check");
    ExitCode::from(if is_check { EXIT_USAGE_CHECK } else { EXIT_USAGE })
}

/// The message and the tips, in one line.
pub(crate) fn message(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let mut parts = Vec::new();
    for paragraph in text.split("\n\n") {
        let line = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        if line.starts_with("Usage: ") || line.starts_with("For more information") {
            break;
        }
        let line = line.trim_start_matches("error: ").trim_start_matches("tip: ");
        parts.push(line.replace(" tip: ", "; "));
    }
    parts.join("; ")
}

/// The name of the program, and the names of the subcommands that the arguments contain.
fn words(command: &clap::Command, arguments: impl Iterator<Item = OsString>) -> Vec<String> {
    let (mut at, mut words) = (command, vec![command.get_name().to_owned()]);
    for argument in arguments {
        if let Some(below) = at.find_subcommand(&argument) {
            words.push(below.get_name().to_owned());
            at = below;
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(arguments: &[&str]) -> (String, String) {
        let command = crate::examples::command();
        let all = std::iter::once("blockyard").chain(arguments.iter().copied());
        let error = command.clone().try_get_matches_from(all).unwrap_err();
        let words = words(&command, arguments.iter().map(OsString::from));
        (words.join(" "), message(&error))
    }

    #[test]
    fn each_kind_of_mistake_is_one_line_that_names_it() {
        for (arguments, command, parts) in [
            (&["frag", "--fi", "x"][..], "blockyard frag", &["'--fi'", "'--files'"][..]),
            (&["frob"], "blockyard", &["unrecognized subcommand 'frob'"]),
            (&["lss"], "blockyard", &["'lss'", "'ls'"]),
            (&["put", "image"], "blockyard put", &["required arguments were not provided: <SOURCE> <DEST>"]),
            (&["mkdir", "-m", "9", "image", "/x"], "blockyard mkdir", &["'9'", "--mode", "octal digits"]),
            (&["mkdir", "image", "/x", "-m"], "blockyard mkdir", &["a value is required for '--mode"]),
            (
                &["mkdir", "--policy", "linux-9", "image", "/x"],
                "blockyard mkdir",
                &["'linux-9'", "no policy \"linux-9\""],
            ),
            (&["mv", "-n", "--exchange", "image", "/x", "/y"], "blockyard mv", &["cannot be used with"]),
            (&["ls", "-l", "-l", "image"], "blockyard ls", &["'--long' cannot be used multiple times"]),
            (
                &["lab", "run", "x", "--beside", "windows"],
                "blockyard lab run",
                &["'windows'", "[possible values: kernel]"],
            ),
            (&["lab", "run", "x", "--in-place"], "blockyard lab run", &["--image <IMAGE>"]),
            (&["lab", "run", "x", "--workers", "two"], "blockyard lab run", &["'two'", "--workers"]),
            (&["ls", "image", "a", "b\n\nUsage: x"], "blockyard ls", &["unexpected argument 'b"]),
        ] {
            let (words, line) = refused(arguments);
            assert_eq!(words, command, "{line}");
            for part in parts {
                assert!(line.contains(part), "{arguments:?}: {part} is not in: {line}");
            }
            assert!(!line.contains('\n') && !line.contains("error:"), "{line}");
        }
    }
}
