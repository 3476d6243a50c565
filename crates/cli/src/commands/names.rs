//! Names in an image are bytes. This module puts them into text and JSON.
//!
//! On a terminal, dangerous characters are escaped. Elsewhere [`bytes`] keeps every byte of a name,
//! and [`text`] puts replacement characters for what is not UTF-8. In JSON a name is text. A name
//! that is not UTF-8 has replacement characters there, and a second key (`path_bytes` beside
//! `path`) holds its bytes in hexadecimal, so that nothing is lost.

use std::borrow::Cow;

use serde_json::Value;

use crate::terminal;

/// The second key, for the help of commands.
pub(super) const BYTES_KEYS: &str = "For a path or target that is not UTF-8, a second key (path_bytes, target_bytes, ...) has \
                                     its bytes in hexadecimal.";

/// A name as bytes for standard output.
pub(super) fn bytes(name: &[u8]) -> Cow<'_, [u8]> {
    if terminal::is_terminal() {
        return Cow::Owned(terminal::escaped(name).into_bytes());
    }
    Cow::Borrowed(name)
}

/// A name for standard output, as part of a text.
pub(super) fn text(name: &[u8]) -> String {
    if terminal::is_terminal() {
        return terminal::escaped(name);
    }
    String::from_utf8_lossy(name).into_owned()
}

/// Adds a name to a JSON object.
pub(super) fn add(object: &mut Value, key: &str, name: &[u8]) {
    object[key] = String::from_utf8_lossy(name).into();
    if std::str::from_utf8(name).is_err() {
        object[format!("{key}_bytes")] = hexadecimal(name).into();
    }
}

/// Adds a name to a JSON object and returns the object, to make objects in one expression.
pub(super) fn with(mut object: Value, key: &str, name: &[u8]) -> Value {
    add(&mut object, key, name);
    object
}

/// Two hexadecimal digits per byte.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_json_can_be_told_from_every_other() {
        let plain = with(serde_json::json!({"inode": 12}), "path", "/ü\n".as_bytes());
        assert_eq!(plain, serde_json::json!({"inode": 12, "path": "/ü\n"}));
        let (one, other) = (with(Value::Null, "path", b"/\xff"), with(Value::Null, "path", b"/\xfe"));
        assert_eq!(one["path"], other["path"]);
        assert_eq!((one["path_bytes"].as_str(), other["path_bytes"].as_str()), (Some("2fff"), Some("2ffe")));
    }
}
