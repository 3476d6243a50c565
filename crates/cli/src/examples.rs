//! Examples of most commands. `--help` and the manual pages show them, and a test runs them from
//! first to last in a directory with a few files.
//!
//! So the examples build on each other: later ones use the images that earlier ones made.

use clap::CommandFactory;

/// Pairs of a command's words and an example of it. An example that needs others comes after them.
const EXAMPLES: &[(&str, &str)] = &[
    ("build", "blockyard build tree tree.img"),
    ("build", "blockyard build --free 10% -L data -O ^has_journal tree data.img"),
    ("export", "blockyard export data.img data.tar.gz"),
    ("export", "blockyard export data.img data --as dir"),
    ("export", "blockyard export data.img - | tar -t"),
    ("diff", "blockyard diff data.img data.tar.gz"),
    ("mkfs", "blockyard mkfs disk.img 64M"),
    ("mkfs", "blockyard mkfs -b 1024 -O ^has_journal -L small small.img 8M"),
    ("mkdir", "blockyard mkdir -p disk.img /srv/www /etc"),
    ("put", "blockyard put disk.img notes.txt /etc"),
    ("put", "blockyard put -r disk.img tree /srv/www"),
    ("put", "echo hello | blockyard put disk.img - /etc/motd"),
    ("ln", "blockyard ln -s disk.img motd /etc/issue"),
    ("chmod", "blockyard chmod disk.img go-w,a+r /etc/notes.txt"),
    ("chmod", "blockyard chmod -R disk.img 755 /srv"),
    ("chown", "blockyard chown -R disk.img 33:33 /srv"),
    ("touch", "blockyard touch --time 1700000000 disk.img /etc/notes.txt /etc/empty"),
    ("mv", "blockyard mv disk.img /etc/motd /etc/welcome"),
    ("ls", "blockyard ls -l disk.img /etc"),
    ("ls", "blockyard ls -R --json disk.img"),
    ("cat", "blockyard cat disk.img /etc/notes.txt"),
    ("stat", "blockyard stat disk.img"),
    ("stat", "blockyard stat disk.img /etc/notes.txt"),
    ("get", "blockyard get disk.img /etc/notes.txt copy.txt"),
    ("get", "blockyard get -r disk.img /srv ."),
    ("get", "blockyard get disk.img /etc/notes.txt - | wc -c"),
    ("map", "blockyard map disk.img --svg map.svg"),
    ("map", "blockyard map disk.img /etc/notes.txt"),
    ("frag", "blockyard frag disk.img"),
    ("frag", "blockyard frag -v disk.img /etc/notes.txt"),
    ("rm", "blockyard rm -r disk.img /srv"),
    ("check", "blockyard check -n disk.img"),
    ("check", "blockyard check --plan disk.img"),
    ("check", "blockyard check -y --lost lost.txt disk.img"),
    ("salvage", "blockyard salvage disk.img rescued"),
    ("recover", "blockyard recover disk.img"),
    ("policy list", "blockyard policy list"),
    ("policy show", "blockyard policy show linux-6.18:busy=wait"),
    ("lab crash", "blockyard lab crash --workload names,append --states 20"),
    ("lab crash", "blockyard lab crash --mutant list"),
    ("completions", "blockyard completions bash > blockyard.bash"),
    ("man", "blockyard man pages"),
];

/// The command line definition. The help of each command ends with its examples, if it has any.
pub(crate) fn command() -> clap::Command {
    let mut command = crate::Cli::command();
    let mut done = "";
    for (words, _) in EXAMPLES {
        if *words != done {
            command = under(command, words.split(' ').collect::<Vec<_>>().as_slice(), &text(words));
            done = words;
        }
    }
    command
}

fn text(words: &str) -> String {
    let mut text = String::from("Examples:");
    for (_, line) in EXAMPLES.iter().filter(|(of, _)| *of == words) {
        text.push_str("\n  ");
        text.push_str(line);
    }
    text
}

/// Adds the text to the help of the command with these words.
fn under(command: clap::Command, words: &[&str], text: &str) -> clap::Command {
    if let Some((first, rest)) = words.split_first() {
        return command.mut_subcommand(first, |inner| under(inner, rest, text));
    }
    let join = |old: Option<&clap::builder::StyledStr>| old.map(|old| format!("{old}\n\n{text}"));
    let short = join(command.get_after_help()).unwrap_or_else(|| text.to_owned());
    let long = join(command.get_after_long_help()).unwrap_or_else(|| short.clone());
    command.after_help(short).after_long_help(long)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_understood() {
        for (words, line) in EXAMPLES {
            let (_, from) = line.split_at(line.find("blockyard").unwrap());
            let arguments = from.split_whitespace().take_while(|word| !["|", ">"].contains(word));
            command().try_get_matches_from(arguments).unwrap();
            assert!(from.starts_with(&format!("blockyard {words}")), "{line}");
        }
        command().debug_assert();
    }
}
