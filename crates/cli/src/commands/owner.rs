//! Owners on the command line: numbers, or names from the image's own /etc/passwd and /etc/group.

use blockyard_inspect::path::LastLink;
use std::str::FromStr;

use anyhow::{Result, bail};

use super::volume::Volume;

/// At most this many bytes of /etc/passwd or /etc/group are read.
const FILE_MAX: usize = 16 << 20;

/// Owner and group; `None` if none was given. Then chown keeps the current id, mkdir sets 0, and
/// put takes the id of the source (0 for a stream).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ids {
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
}

/// `USER`, `USER:GROUP`, `:GROUP`, or `USER:` for the user's own group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    user: Option<Who>,
    group: Group,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Who {
    Number(u32),
    Name(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Group {
    Kept,
    OfUser,
    Given(Who),
}

impl Who {
    /// Parses a user or group. Digits are always an id, even if a user or group has that name.
    fn of(text: &str) -> Option<Self> {
        if text.is_empty() || text.contains([':', '\n', '/']) {
            return None;
        }
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return number(text).map(Self::Number);
        }
        Some(Self::Name(text.to_owned()))
    }
}

impl FromStr for Owner {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not USER, USER:GROUP or :GROUP (names of the image, or numbers)");
        let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
        let user = if user.is_empty() { None } else { Some(Who::of(user).ok_or_else(wrong)?) };
        let group = match group {
            None => Group::Kept,
            Some("") => Group::OfUser,
            Some(group) => Group::Given(Who::of(group).ok_or_else(wrong)?),
        };
        if user.is_none() && !matches!(group, Group::Given(_)) {
            return Err(wrong());
        }
        Ok(Self { user, group })
    }
}

impl Owner {
    /// The numbers, looked up in the image's files if names were given.
    ///
    /// # Errors
    /// A name is not in the image's files, or a file is missing or cannot be read.
    pub(super) fn ids(&self, volume: &Volume<'_>) -> Result<Ids> {
        let is_named = |who: &Who| matches!(who, Who::Name(_));
        let needs_user = self.user.as_ref().is_some_and(is_named) || self.group == Group::OfUser;
        let users = if needs_user { Some(names_of(volume, "/etc/passwd")?) } else { None };
        let user = match (&self.user, &users) {
            (None, _) => None,
            (Some(Who::Number(number)), _) => Some(*number),
            (Some(Who::Name(name)), users) => {
                let text = users.as_deref().unwrap_or_default();
                Some(field(text, "/etc/passwd", name, |fields| fields.first() == Some(&name.as_str()), 2)?)
            }
        };
        let group = match &self.group {
            Group::Kept => None,
            Group::Given(Who::Number(number)) => Some(*number),
            Group::Given(Who::Name(name)) => {
                let text = names_of(volume, "/etc/group")?;
                Some(field(&text, "/etc/group", name, |fields| fields.first() == Some(&name.as_str()), 2)?)
            }
            Group::OfUser => {
                let number = user.unwrap_or_default().to_string();
                let text = users.as_deref().unwrap_or_default();
                Some(field(
                    text,
                    "/etc/passwd",
                    &number,
                    |fields| fields.get(2) == Some(&number.as_str()),
                    3,
                )?)
            }
        };
        Ok(Ids { uid: user, gid: group })
    }
}

/// Parses the id of a user or group. The largest number of 32 bits is refused, because to system
/// calls it means that the id does not change.
pub(super) fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number| *number != u32::MAX)
}

/// The number in field `index` of the first line that is `wanted` and has a number there.
fn field(text: &str, file: &str, name: &str, wanted: impl Fn(&[&str]) -> bool, index: usize) -> Result<u32> {
    for line in text.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        if wanted(&fields)
            && let Some(number) = fields.get(index).and_then(|text| number(text))
        {
            return Ok(number);
        }
    }
    bail!("{file} of the image does not know '{name}'; give numbers");
}

/// The text of a file in the image.
fn names_of(volume: &Volume<'_>, path: &str) -> Result<String> {
    let mut bytes = Vec::new();
    let read =
        volume.resolve(path.as_bytes(), LastLink::Follow).map_err(anyhow::Error::from).and_then(|inode| {
            let size = usize::try_from(volume.fs.attributes(inode)?.size).unwrap_or(FILE_MAX);
            bytes.resize(size.min(FILE_MAX), 0);
            let length = volume.fs.read(&volume.ctx, inode, 0, &mut bytes)?;
            bytes.truncate(length);
            Ok(())
        });
    match read {
        Ok(()) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) => bail!("{}; names are looked up there, numbers need no file", super::describe(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_numbers_or_names() {
        let owner = |user, group| Owner { user, group };
        let name = |text: &str| Some(Who::Name(text.to_owned()));
        for (text, wanted) in [
            ("1000:5", owner(Some(Who::Number(1000)), Group::Given(Who::Number(5)))),
            ("www", owner(name("www"), Group::Kept)),
            ("www:", owner(name("www"), Group::OfUser)),
            (":7", owner(None, Group::Given(Who::Number(7)))),
            ("a:b", owner(name("a"), Group::Given(Who::Name("b".to_owned())))),
        ] {
            assert_eq!(text.parse::<Owner>().unwrap(), wanted, "{text}");
        }
        for wrong in ["", ":", "a:b:c", "4294967296:0", "0:4294967296", "4294967295", ":4294967295", "a/b"] {
            assert!(wrong.parse::<Owner>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_first_line_that_has_the_name_counts() {
        let text =
            "# comment\nroot:x:0:0:root:/root:/bin/sh\nwww:x:33:44::/:/\nwww:x:34:45::/:/\nbad:x:no:1\n";
        let find = |name: &str| field(text, "f", name, |fields| fields.first() == Some(&name), 2).ok();
        assert_eq!((find("www"), find("root"), find("bad"), find("none")), (Some(33), Some(0), None, None));
    }
}
