//! The extensions of pax, and those of GNU tar and star: times, owners, attributes, holes.

use crate::fflags::{self, SOCKET};
use blockyard_disk::Timestamp;
use blockyard_disk::inode::InodeFlags;
use std::io::{self, Read};
use std::ops::Range;

/// The most ranges that a map of holes may have.
pub(super) const RANGES_MAX: u64 = 1 << 24;
/// Block size of an archive in bytes. A map before the content is padded to a multiple of it.
const RECORD: usize = 512;

/// What the extensions of an entry say.
#[derive(Debug)]
pub(super) struct Extensions {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    /// Bytes of content in the archive.
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u64>,
    pub(super) gid: Option<u64>,
    pub(super) modified: Option<Timestamp>,
    pub(super) accessed: Option<Timestamp>,
    /// Full names and values of the attributes.
    pub(super) attributes: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) access_list: Option<Vec<u8>>,
    pub(super) default_list: Option<Vec<u8>>,
    pub(super) flags: InodeFlags,
    /// The entry is a socket, for which tar has no entry type.
    pub(super) is_socket: bool,
    /// The name of a file with holes; the header has another name.
    pub(super) sparse_name: Option<Vec<u8>>,
    /// Size in bytes of a file with holes.
    pub(super) real_size: Option<u64>,
    /// The ranges that are not holes.
    pub(super) sparse_map: Option<Vec<Range<u64>>>,
    /// The map of holes precedes the content.
    pub(super) has_map_in_content: bool,
    /// The start of a range whose length comes next.
    offset: Option<u64>,
}

impl Default for Extensions {
    fn default() -> Self {
        Self {
            path: None,
            link: None,
            size: None,
            uid: None,
            gid: None,
            modified: None,
            accessed: None,
            attributes: Vec::new(),
            access_list: None,
            default_list: None,
            flags: InodeFlags::empty(),
            is_socket: false,
            sparse_name: None,
            real_size: None,
            sparse_map: None,
            has_map_in_content: false,
            offset: None,
        }
    }
}

impl Extensions {
    /// Parses records: each is a length, a blank, a key, `=`, a value, and a newline.
    pub(super) fn read(&mut self, mut records: &[u8]) -> io::Result<()> {
        while !records.is_empty() {
            let blank = records.iter().take(20).position(|&byte| byte == b' ');
            let blank = blank.ok_or_else(|| malformed("a record"))?;
            let length = usize::try_from(number(&records[..blank])?).unwrap_or(usize::MAX);
            let record = records.get(blank + 1..length).and_then(|record| record.strip_suffix(b"\n"));
            let record = record.ok_or_else(|| malformed("a record"))?;
            let equals = record.iter().position(|&byte| byte == b'=');
            let equals = equals.ok_or_else(|| malformed("a record"))?;
            self.take(&record[..equals], &record[equals + 1..])?;
            records = &records[length..];
        }
        Ok(())
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let text = || Some(value.to_vec()).filter(|value| !value.is_empty());
        match key {
            b"path" => self.path = text(),
            b"linkpath" => self.link = text(),
            b"size" => self.size = Some(number(value)?),
            b"uid" => self.uid = Some(number(value)?),
            b"gid" => self.gid = Some(number(value)?),
            b"mtime" => self.modified = Some(time(value)?),
            b"atime" => self.accessed = Some(time(value)?),
            b"SCHILY.acl.access" => self.access_list = text(),
            b"SCHILY.acl.default" => self.default_list = text(),
            b"SCHILY.fflags" => self.flags = fflags::read(value),
            b"SCHILY.filetype" => self.is_socket = value == SOCKET,
            b"GNU.sparse.name" => self.sparse_name = text(),
            b"GNU.sparse.size" | b"GNU.sparse.realsize" => self.real_size = Some(number(value)?),
            b"GNU.sparse.major" => self.has_map_in_content = value == b"1",
            b"GNU.sparse.map" => self.sparse_map = Some(map(value)?),
            b"GNU.sparse.offset" => self.offset = Some(number(value)?),
            b"GNU.sparse.numbytes" => {
                let start = self.offset.take().ok_or_else(|| malformed("a map of holes"))?;
                self.sparse_map.get_or_insert_default().push(range(start, number(value)?)?);
            }
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.attributes.push((unescaped(name), value.to_vec()));
                }
            }
        }
        Ok(())
    }
}

/// Reads the map that precedes the content of a file with holes. It has one number per line: the
/// count of ranges, then the offset and the length of each range. It is padded to whole blocks of
/// the archive.
pub(super) fn map_in_content(content: &mut impl Read) -> io::Result<Vec<Range<u64>>> {
    let mut read = 0;
    let mut line = || -> io::Result<u64> {
        let mut text = Vec::new();
        loop {
            let mut byte = [0];
            content.read_exact(&mut byte)?;
            read += 1;
            match byte {
                [b'\n'] => return number(&text),
                [digit] if text.len() < 20 => text.push(digit),
                _ => return Err(malformed("a map of holes")),
            }
        }
    };
    let count = line()?;
    if count > RANGES_MAX {
        return Err(malformed("a map of holes"));
    }
    let mut ranges = Vec::new();
    for _ in 0..count {
        let start = line()?;
        ranges.push(range(start, line()?)?);
    }
    let mut rest = vec![0; read_up(read)];
    content.read_exact(&mut rest)?;
    Ok(ranges)
}

/// The name of an attribute. GNU tar writes `=`, which would end the key, as `%3D`, and `%` as
/// `%25`.
fn unescaped(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&byte, behind)) = rest.split_first() {
        let (byte, behind) = match rest.first_chunk() {
            Some(b"%3D") => (b'=', &rest[3..]),
            Some(b"%25") => (b'%', &rest[3..]),
            _ => (byte, behind),
        };
        plain.push(byte);
        rest = behind;
    }
    plain
}

/// Bytes up to the next block boundary.
fn read_up(read: usize) -> usize {
    read.next_multiple_of(RECORD) - read
}

/// Parses `offset,length,offset,length`.
fn map(text: &[u8]) -> io::Result<Vec<Range<u64>>> {
    let numbers = text.split(|&byte| byte == b',').map(number).collect::<io::Result<Vec<u64>>>()?;
    if !numbers.len().is_multiple_of(2) {
        return Err(malformed("a map of holes"));
    }
    numbers.chunks_exact(2).map(|pair| range(pair[0], pair[1])).collect()
}

pub(super) fn range(start: u64, length: u64) -> io::Result<Range<u64>> {
    let end = start.checked_add(length).filter(|end| i64::try_from(*end).is_ok());
    end.map(|end| start..end).ok_or_else(|| malformed("a map of holes"))
}

fn number(text: &[u8]) -> io::Result<u64> {
    let text = std::str::from_utf8(text).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(|| malformed("a number"))
}

/// Parses seconds since 1970 with a fraction. Digits beyond nanoseconds are dropped.
fn time(text: &[u8]) -> io::Result<Timestamp> {
    let text = std::str::from_utf8(text).map_err(|_| malformed("a time"))?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().map_err(|_| malformed("a time"))?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(malformed("a time"));
    }
    let nine = format!("{:0<9}", fraction.get(..9).unwrap_or(fraction));
    let nanoseconds: u32 = nine.parse().map_err(|_| malformed("a time"))?;
    // -0.25 is a quarter of a second before 1970.
    if whole.starts_with('-') && nanoseconds > 0 {
        let seconds = seconds.checked_sub(1).ok_or_else(|| malformed("a time"))?;
        return Ok(Timestamp { seconds, nanoseconds: 1_000_000_000 - nanoseconds });
    }
    Ok(Timestamp { seconds, nanoseconds })
}

pub(super) fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{what} in a header of the archive is malformed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_nanoseconds() {
        let at = |text: &str| time(text.as_bytes()).map(|time| (time.seconds, time.nanoseconds)).ok();
        assert_eq!(at("12"), Some((12, 0)));
        assert_eq!(at("12.5"), Some((12, 500_000_000)));
        assert_eq!(at("12.1234567899"), Some((12, 123_456_789)));
        assert_eq!(at("-0.25"), Some((-1, 750_000_000)));
        for wrong in ["", "x", "1.x", "1e3", "99999999999999999999", "-9223372036854775808.5"] {
            assert_eq!(at(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn records_are_taken_by_their_lengths() {
        let mut all = Extensions::default();
        all.read(b"31 SCHILY.xattr.user.a=1\n2=3\n\x00\n12 path=a/b\n10 uid=77\n").unwrap();
        assert_eq!(all.attributes, [(b"user.a".to_vec(), b"1\n2=3\n\0".to_vec())]);
        assert_eq!((all.path, all.uid), (Some(b"a/b".to_vec()), Some(77)));
        for wrong in ["5 a=1\n", "99 path=a\n", "path=a\n", "9 path a\n", "0 a=1\n", "10 path=ab"] {
            assert!(Extensions::default().read(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn names_of_attributes_may_hold_what_ends_a_key() {
        for (written, name) in [("a%3Db%25c", "a=b%c"), ("%253D", "%3D"), ("%3d%2", "%3d%2")] {
            assert_eq!(unescaped(written.as_bytes()), name.as_bytes());
        }
    }

    #[test]
    fn maps_are_read_in_both_forms() {
        assert_eq!(map(b"0,5,10,0").unwrap(), [0..5, 10..10]);
        assert!(map(b"0,5,10").is_err() && map(b"0,18446744073709551615").is_err());
        let mut text = b"2\n0\n5\n512\n7\n".to_vec();
        text.resize(512, 0);
        text.extend_from_slice(b"content");
        let mut content = &text[..];
        assert_eq!(map_in_content(&mut content).unwrap(), [0..5, 512..519]);
        assert_eq!(content, b"content");
        assert!(map_in_content(&mut &b"99999999999\n"[..]).is_err());
        assert!(map_in_content(&mut &b"2\n1\n"[..]).is_err());
    }
}
