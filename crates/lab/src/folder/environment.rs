//! The environment of a run: machine, software and command. It is printed with every report, so
//! that the run can be repeated.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use serde::{Deserialize, Serialize};

/// Machine, software and command of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// Version of blockyard.
    pub version: String,
    /// Commit that the program was built from, with `-dirty` if the sources differed from that
    /// commit; `unknown` if it was not built in a checkout.
    pub commit: String,
    /// Processor model and number of CPUs.
    pub machine: String,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Operating-system kernel.
    pub kernel: String,
    /// The command that repeats the run.
    pub command: String,
    /// What the cells ran on: a device in memory with its size and mkfs options, or an image file.
    pub device: String,
    /// The seed, shown even if it is the default.
    #[serde(default)]
    pub seed: u64,
    /// The name of the experiment, if the run is one.
    #[serde(default)]
    pub experiment: Option<String>,
}

impl Environment {
    /// Describes this machine. The caller gives `command` and `device`, and later sets the seed,
    /// the experiment, and the commit, which only the `blockyard` binary knows.
    #[must_use]
    pub fn of_this_machine(command: String, device: String) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let model = fs::read_to_string("/proc/cpuinfo")
            .ok()
            .and_then(|text| line_value(&text, "model name").map(str::to_owned));
        let memory_mib = memory_mib(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
        let kernel =
            fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_else(|_| "unknown".to_owned());
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: "unknown".to_owned(),
            machine: format!("{}, {cpus} CPUs", model.as_deref().unwrap_or("unknown processor")),
            memory_mib,
            kernel: kernel.trim().to_owned(),
            command,
            device,
            seed: 0,
            experiment: None,
        }
    }

    /// The lines to print, in order: a name and a value each.
    #[must_use]
    pub fn lines(&self) -> [(&'static str, String); 7] {
        [
            ("blockyard", format!("{} ({})", self.version, self.commit)),
            ("machine", self.machine.clone()),
            ("memory", format!("{} MiB", self.memory_mib)),
            ("kernel", self.kernel.clone()),
            ("device", self.device.clone()),
            ("seed", self.seed.to_string()),
            ("command", self.command.clone()),
        ]
    }

    /// The lines of [`Self::lines`] as a Markdown list.
    #[must_use]
    pub fn markdown(&self) -> String {
        self.lines().iter().map(|(name, value)| format!("- {name}: `{value}`\n")).collect()
    }
}

/// The command that started this process, quoted so that it can be pasted into a shell. `--resume`
/// and `--force` are left out: they only say what to do with an earlier run's folder.
#[must_use]
pub fn command_line() -> String {
    let of_earlier = |word: &std::ffi::OsString| word == "--resume" || word == "--force";
    let words = std::env::args_os().skip(1).filter(|word| !of_earlier(word));
    shell_words(std::iter::once("blockyard".into()).chain(words))
}

/// Words quoted for a shell, in one line.
fn shell_words<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>) -> String {
    words.into_iter().map(|word| quoted(word.as_ref())).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &OsStr) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_=:,./^+%@".contains(letter);
    match word.to_str() {
        Some(text) if !text.is_empty() && text.chars().all(is_plain) => text.to_owned(),
        Some(text) if !text.chars().any(char::is_control) => format!("'{}'", text.replace('\'', r"'\''")),
        // A word that is not UTF-8 or has control characters is escaped byte by byte.
        _ => format!("$'{}'", word.as_bytes().escape_ascii()),
    }
}

/// The value of `name` in a text of lines `name: value`, as in `/proc/cpuinfo`.
fn line_value<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// Total memory in MiB, from the text of `/proc/meminfo`, which counts in KiB; 0 if the text does
/// not say.
fn memory_mib(text: &str) -> u64 {
    let number = line_value(text, "MemTotal").and_then(|value| value.split_whitespace().next());
    number.and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_can_be_pasted_into_a_shell() {
        assert_eq!(
            shell_words(["lab", "run", "--mkfs", "-b 1024 -O ^has_journal", "it's", "", "yard:slots=one"]),
            r"lab run --mkfs '-b 1024 -O ^has_journal' 'it'\''s' '' yard:slots=one"
        );
        let odd = [OsStr::from_bytes(b"\xff.img"), OsStr::new("two\nlines's"), OsStr::new("größe")];
        assert_eq!(shell_words(odd), r"$'\xff.img' $'two\nlines\'s' 'größe'");
    }

    #[test]
    fn this_machine_has_a_kernel_and_memory() {
        let environment = Environment::of_this_machine("blockyard lab run x".into(), "memory".into());
        assert!(environment.memory_mib > 0);
        assert!(!environment.kernel.is_empty());
        assert!(environment.markdown().contains("- command: `blockyard lab run x`\n"));
    }

    #[test]
    fn a_machine_is_told_by_the_lines_of_that_name() {
        let text = "model name short\t: no\nmodel name\t: Xeon\nMemTotalHuge: 7 kB\nMemTotal:  16777216 kB\n";
        assert_eq!(line_value(text, "model name"), Some("Xeon"));
        assert_eq!((memory_mib(text), memory_mib("")), (16_384, 0));
    }
}
