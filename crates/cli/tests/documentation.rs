//! Help, manual pages and completions: every command has them, and they describe every option.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn blockyard(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_blockyard")).args(arguments).output().unwrap()
}

fn pages() -> Vec<(String, String)> {
    let folder = tempfile::tempdir().unwrap();
    let output = blockyard(&["man", folder.path().join("man").to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut pages: Vec<(String, String)> = std::fs::read_dir(folder.path().join("man"))
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read_to_string(entry.path()).unwrap())
        })
        .collect();
    pages.sort();
    pages
}

#[test]
fn every_command_has_a_page_and_help() {
    let pages = pages();
    for name in ["blockyard.1", "blockyard-mkfs.1", "blockyard-lab-run.1", "blockyard-policy-show.1"] {
        assert!(pages.iter().any(|(page, _)| page == name), "{name} of {} pages", pages.len());
    }
    for (name, page) in &pages {
        let command: Vec<&str> = name.trim_end_matches(".1").split('-').skip(1).collect();
        let mut arguments = command.clone();
        arguments.push("--help");
        let help = blockyard(&arguments);
        assert!(help.status.success(), "{name}");
        let help = String::from_utf8(help.stdout).unwrap();
        // Each option in the help is also in the page.
        for line in help.lines().map(str::trim).filter(|line| line.starts_with("--") || line.starts_with("-"))
        {
            let Some(option) = line.split([' ', ',', '=', '[', '.']).find(|word| word.starts_with("--"))
            else {
                continue;
            };
            let shown = option.replace('-', "\\-");
            assert!(page.contains(&shown), "{name}: {option} is not in the page");
        }
        assert!(page.contains(".SH DESCRIPTION") && page.contains(".SH SYNOPSIS"), "{name}");
    }
}

/// Runs the examples of the help, one after the other, in a directory with a text file and a small
/// tree. Besides a shell they need only standard programs such as tar.
#[test]
fn the_examples_work() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("notes.txt"), "notes\n").unwrap();
    std::fs::create_dir_all(folder.path().join("tree/below")).unwrap();
    std::fs::write(folder.path().join("tree/below/file"), "content\n").unwrap();
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_blockyard"));
    let path = format!("{}:/usr/bin:/bin", program.parent().unwrap().display());
    let mut count = 0;
    for line in include_str!("../src/examples.rs").lines() {
        let Some((words, rest)) = line.strip_prefix("    (\"").and_then(|line| line.split_once("\", \""))
        else {
            continue;
        };
        let example = rest.trim_end_matches("\"),");
        let run = |line: &str| {
            let output = Command::new("sh")
                .args(["-e", "-c", line])
                .current_dir(folder.path())
                .env("PATH", &path)
                .output()
                .unwrap();
            assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
            assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{line}");
            String::from_utf8(output.stdout).unwrap()
        };
        run(example);
        for help in ["-h", "--help"] {
            assert!(run(&format!("blockyard {words} {help}")).contains(example), "{words} {help}: {example}");
        }
        count += 1;
    }
    assert!(count > 20, "{count}");
    assert_eq!(std::fs::read_to_string(folder.path().join("copy.txt")).unwrap(), "notes\n");
    let copied = folder.path().join("srv/www/tree/below/file");
    assert_eq!(std::fs::read_to_string(copied).unwrap(), "content\n");
}

#[test]
fn every_shell_has_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = blockyard(&["completions", shell]);
        assert!(output.status.success(), "{shell}");
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(script.contains("mkfs") && script.contains("no-clobber"), "{shell}");
    }
    let output = blockyard(&["completions", "csh"]);
    assert_eq!(output.status.code(), Some(2));
}

/// The README and the documents mention only commands and long options that exist.
#[test]
fn the_documents_name_what_exists() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let all: String = pages().into_iter().map(|(_, page)| page).collect();
    let mut documents = vec![root.join("README.md")];
    for folder in ["docs", "docs/behaviour", "docs/experiments", "docs/policies"] {
        let entries = std::fs::read_dir(root.join(folder)).unwrap();
        documents.extend(
            entries
                .map(|entry| entry.unwrap().path())
                .filter(|path| path.extension().is_some_and(|e| e == "md")),
        );
    }
    for document in documents {
        let text = std::fs::read_to_string(&document).unwrap();
        // A command is code that starts with the program's name.
        for code in text.split('`').skip(1).step_by(2).filter(|code| code.starts_with("blockyard ")) {
            let mut words = code.split_whitespace().skip(1);
            let command = words.next().unwrap();
            assert!(
                all.contains(&format!("blockyard {command}"))
                    || all.contains(&format!("blockyard\\-{command}")),
                "{}: {code}",
                document.display()
            );
            for option in words.filter(|word| word.starts_with("--")) {
                let option = option.split(['=', ',', '|', ']', ')']).next().unwrap().replace('-', "\\-");
                assert!(all.contains(&option), "{}: {code}", document.display());
            }
        }
    }
}
