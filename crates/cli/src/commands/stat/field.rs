//! A list of labelled values, printed as text or as one JSON object.

use std::io::Write;

use serde_json::{Map, Value};

use super::super::calendar::ctime;
use super::super::names;

/// Labelled values in the order in which they print.
#[derive(Default)]
pub(super) struct Fields {
    lines: Vec<String>,
    json: Map<String, Value>,
}

impl Fields {
    /// Adds a line and a JSON value.
    pub(super) fn add(&mut self, label: &str, text: &str, json: impl Into<Value>) {
        let with_colon = format!("{label}:");
        self.lines.push(format!("{with_colon:<26}{text}"));
        self.json.insert(key(label), json.into());
    }

    /// Adds a number, shown equally in text and JSON.
    pub(super) fn number(&mut self, label: &str, number: u64) {
        self.add(label, &number.to_string(), number);
    }

    /// Adds a text, shown equally in text and JSON.
    pub(super) fn text(&mut self, label: &str, text: &str) {
        self.add(label, text, text);
    }

    /// Adds bytes of the image that are usually text. If they are not, a second JSON key holds the
    /// bytes.
    pub(super) fn bytes(&mut self, label: &str, bytes: &[u8]) {
        let mut object = Value::Object(std::mem::take(&mut self.json));
        names::add(&mut object, &key(label), bytes);
        if let Value::Object(json) = object {
            self.json = json;
        }
        self.lines.push(format!("{:<26}{}", format!("{label}:"), names::text(bytes)));
    }

    /// Adds a point in time.
    pub(super) fn time(&mut self, label: &str, seconds: u64) {
        let text = ctime(i64::try_from(seconds).unwrap_or(i64::MAX));
        self.add(label, &text, seconds);
    }

    /// Adds a line that does not have the form `label: text`.
    pub(super) fn line(&mut self, key: &str, line: String, json: impl Into<Value>) {
        self.lines.push(line);
        self.json.insert(key.to_owned(), json.into());
    }

    /// Prints all lines, or the JSON object.
    pub(super) fn print(self, json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
        if json {
            writeln!(out, "{}", Value::Object(self.json))?;
        } else {
            for line in self.lines {
                writeln!(out, "{line}")?;
            }
        }
        Ok(())
    }
}

/// A label as a JSON key.
fn key(label: &str) -> String {
    let words: Vec<String> = label
        .split(|letter: char| !letter.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    words.join("_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_become_keys() {
        assert_eq!(key("Filesystem revision #"), "filesystem_revision");
        assert_eq!(key("RAID stride"), "raid_stride");
    }
}
