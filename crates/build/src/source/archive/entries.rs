//! The entries of an archive, each with what its preceding headers say: long names and pax
//! extensions. Pax records are split by their lengths, because names, attributes and access control
//! lists may contain newlines.

use super::pax::{self, Extensions};
use blockyard_disk::Timestamp;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use std::io::{self, BufRead, Read};
use std::ops::Range;
use tar::{EntryType, GnuExtSparseHeader, GnuSparseHeader, Header};

/// Size in bytes of a header, and of the units that content is padded to.
const RECORD: usize = 512;
/// The most bytes that a long name or a list of extensions may have.
const LONG_MAX: u64 = 16 << 20;
/// Largest file in bytes that system calls support.
const FILE_MAX: u64 = i64::MAX.unsigned_abs();

/// The type of a volume label. This entry holds the archive's own name, and is not a file.
const VOLUME_LABEL: u8 = b'V';
/// The type of a directory in GNU's incremental archives. Its content lists the names that the
/// directory had, even those that are not in the archive.
pub(super) const LISTED_DIRECTORY: u8 = b'D';
/// The type of the rest of a file that began on another volume.
pub(super) const CONTINUATION: u8 = b'M';

/// One entry. Its content is read from [`Entries`].
pub(super) struct Entry {
    pub(super) header: Header,
    pub(super) path: Vec<u8>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) extensions: Extensions,
}

/// What the headers before an entry say about it.
#[derive(Default)]
struct Said {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    extensions: Vec<u8>,
}

/// A stream of entries.
pub(super) struct Entries<R> {
    stream: R,
    /// The lists of all global pax headers so far, which apply to all later entries. The last value
    /// of a key counts.
    global: Vec<u8>,
    /// Content bytes that have not been read.
    left: u64,
    /// Padding bytes after the content, up to whole records.
    filling: u64,
}

impl<R: Read> Entries<R> {
    pub(super) fn new(stream: R) -> Self {
        Self { stream, global: Vec::new(), left: 0, filling: 0 }
    }

    /// The next entry; `None` at the end. Skips the rest of the previous one.
    pub(super) fn next(&mut self) -> io::Result<Option<Entry>> {
        let mut said = Said::default();
        loop {
            self.pass(self.left + self.filling)?;
            (self.left, self.filling) = (0, 0);
            let Some(header) = self.header()? else { return Ok(None) };
            let size = header.entry_size()?;
            if size > FILE_MAX {
                return Err(pax::malformed("a size"));
            }
            match header.entry_type() {
                EntryType::XHeader => said.extensions = self.whole(size)?,
                EntryType::XGlobalHeader => {
                    // A later list adds to those before it. It replaces only the values of its own
                    // keys.
                    let mut list = self.whole(size)?;
                    self.global.append(&mut list);
                    if u64_from_usize(self.global.len()) > LONG_MAX {
                        return Err(pax::malformed("lists for all entries"));
                    }
                }
                EntryType::GNULongName => said.path = Some(text(self.whole(size)?)),
                EntryType::GNULongLink => said.link = Some(text(self.whole(size)?)),
                kind if kind.as_byte() == VOLUME_LABEL => {
                    self.expect(size);
                    said = Said::default();
                }
                _ => return self.entry(header, size, said).map(Some),
            }
        }
    }

    fn entry(&mut self, header: Header, size: u64, said: Said) -> io::Result<Entry> {
        let mut extensions = Extensions::default();
        extensions.read(&self.global)?;
        extensions.read(&said.extensions)?;
        if header.entry_type() == EntryType::GNUSparse {
            self.read_old_map(&header, &mut extensions)?;
        }
        if extensions.modified.is_none() {
            extensions.modified = Some(modified(&header)?);
        }
        // Links and the like have no content, whatever their headers claim.
        let kind = header.entry_type();
        let has_content = matches!(kind, EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse)
            || kind.as_byte() == LISTED_DIRECTORY;
        let size = extensions.size.unwrap_or(size);
        if size > FILE_MAX {
            return Err(pax::malformed("a size"));
        }
        self.expect(if has_content { size } else { 0 });
        // For a file with holes, the header has only a stand-in for the name.
        let path = extensions.sparse_name.take().or(extensions.path.take()).or(said.path);
        let path = below_root(path.unwrap_or_else(|| header.path_bytes().into_owned()));
        let link = extensions.link.take().or(said.link);
        let link = link.or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned));
        let link = if kind == EntryType::Link { link.map(below_root) } else { link };
        Ok(Entry { header, path, link, extensions })
    }

    /// Notes that `size` bytes of content come next.
    fn expect(&mut self, size: u64) {
        self.left = size;
        self.filling = size.next_multiple_of(u64_from_usize(RECORD)) - size;
    }

    /// Content bytes that have not been read yet.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// The next header; `None` at the end, which is a record of zeroes or the end of the stream
    /// between entries.
    fn header(&mut self) -> io::Result<Option<Header>> {
        let mut record = [0; RECORD];
        let mut read = 0;
        while read < RECORD {
            match self.stream.read(&mut record[read..])? {
                0 if read == 0 => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => read += n,
            }
        }
        if record == [0; RECORD] {
            // Read to the last byte: only there does a compressed stream show that it is complete.
            io::copy(&mut self.stream, &mut io::sink())?;
            return Ok(None);
        }
        let mut header = Header::from_byte_slice(&record).clone();
        let (before, behind) = (&record[..148], &record[156..]);
        // The checksum counts its own field as blanks.
        let sum: u32 = before.iter().chain(behind).map(|&byte| u32::from(byte)).sum::<u32>() + 8 * 32;
        if header.cksum().ok() != Some(sum) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a tar archive, or a damaged one"));
        }
        zero_empty_numbers(&mut header);
        Ok(Some(header))
    }

    /// Reads a list of extensions or a long name.
    fn whole(&mut self, size: u64) -> io::Result<Vec<u8>> {
        if size > LONG_MAX {
            return Err(pax::malformed("a list"));
        }
        let mut bytes = vec![0; usize_from_u64(size)];
        self.stream.read_exact(&mut bytes)?;
        self.pass(size.next_multiple_of(u64_from_usize(RECORD)) - size)?;
        Ok(bytes)
    }

    fn pass(&mut self, bytes: u64) -> io::Result<()> {
        let passed = io::copy(&mut (&mut self.stream).take(bytes), &mut io::sink())?;
        if passed == bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Reads the map of holes in GNU's old format. It begins in the header, and may continue in
    /// records after the header.
    fn read_old_map(&mut self, header: &Header, extensions: &mut Extensions) -> io::Result<()> {
        let gnu = header.as_gnu().ok_or_else(|| pax::malformed("a map of holes"))?;
        let mut map = Vec::new();
        add_ranges(&gnu.sparse, &mut map)?;
        let mut more = gnu.is_extended();
        while more {
            let mut record = GnuExtSparseHeader::new();
            self.stream.read_exact(record.as_mut_bytes())?;
            add_ranges(record.sparse(), &mut map)?;
            if u64_from_usize(map.len()) > pax::RANGES_MAX {
                return Err(pax::malformed("a map of holes"));
            }
            more = record.is_extended();
        }
        extensions.real_size = Some(gnu.real_size()?);
        extensions.sparse_map = Some(map);
        Ok(())
    }
}

impl<R: BufRead> BufRead for Entries<R> {
    /// The available content of the current entry.
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.left == 0 {
            return Ok(&[]);
        }
        let there = self.stream.fill_buf()?;
        if there.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(&there[..usize::try_from(self.left).unwrap_or(usize::MAX).min(there.len())])
    }

    fn consume(&mut self, n: usize) {
        debug_assert!(u64_from_usize(n) <= self.left, "no more than fill_buf gave");
        self.left = self.left.saturating_sub(u64_from_usize(n));
        self.stream.consume(n);
    }
}

impl<R: BufRead> Read for Entries<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let there = self.fill_buf()?;
        let n = there.len().min(into.len());
        into[..n].copy_from_slice(&there[..n]);
        self.consume(n);
        Ok(n)
    }
}

fn add_ranges(headers: &[GnuSparseHeader], map: &mut Vec<Range<u64>>) -> io::Result<()> {
    for header in headers.iter().filter(|header| !header.is_empty()) {
        map.push(pax::range(header.offset()?, header.length()?)?);
    }
    Ok(())
}

/// Writes zeroes into empty number fields: some programs write no digits if a number is zero.
fn zero_empty_numbers(header: &mut Header) {
    let zero = |field: &mut [u8]| {
        if field.iter().all(|byte| matches!(byte, 0 | b' ')) {
            field.fill(b'0');
        }
    };
    let old = header.as_old_mut();
    let fields: [&mut [u8]; 5] = [&mut old.mode, &mut old.uid, &mut old.gid, &mut old.size, &mut old.mtime];
    fields.into_iter().for_each(zero);
    if let Some(ustar) = header.as_ustar_mut() {
        zero(&mut ustar.dev_major);
        zero(&mut ustar.dev_minor);
    } else if let Some(gnu) = header.as_gnu_mut() {
        zero(&mut gnu.dev_major);
        zero(&mut gnu.dev_minor);
    }
}

/// Removes leading slashes from a name, as tar does on extraction.
fn below_root(mut name: Vec<u8>) -> Vec<u8> {
    let slashes = name.iter().take_while(|&&byte| byte == b'/').count();
    name.drain(..slashes);
    name
}

/// Removes the zero that ends a long name.
fn text(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    bytes.truncate(end);
    bytes
}

/// The time in a header. GNU tar writes times before 1970 as a signed binary number.
fn modified(header: &Header) -> io::Result<Timestamp> {
    let field = header.as_old().mtime;
    let seconds = if field[0] == 0xFF {
        let [.., a, b, c, d, e, f, g, h] = field;
        i64::from_be_bytes([a, b, c, d, e, f, g, h])
    } else {
        i64::try_from(header.mtime()?).map_err(|_| pax::malformed("a time"))?
    };
    Ok(Timestamp { seconds, nanoseconds: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: EntryType, content: &[u8]) -> Vec<u8> {
        let mut header = Header::new_ustar();
        header.as_old_mut().name[..4].copy_from_slice(b"name");
        header.set_entry_type(kind);
        header.set_mtime(7);
        header.set_size(u64_from_usize(content.len()));
        header.set_cksum();
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(RECORD), 0);
        bytes
    }

    /// In POSIX, a value of a global header applies until another global header gives the same key
    /// a value. An earlier version kept only the values of the last global header.
    #[test]
    fn global_headers_add_up() {
        let modified = |globals: &[&[u8]]| {
            let headers = globals.iter().flat_map(|list| record(EntryType::XGlobalHeader, list));
            let stream: Vec<u8> = headers.chain(record(EntryType::Regular, b"")).collect();
            let entry = Entries::new(&stream[..]).next().unwrap().unwrap();
            entry.extensions.modified
        };
        let hundred = modified(&[b"13 mtime=100\n"]);
        assert_ne!(hundred, modified(&[]));
        assert_eq!(hundred, modified(&[b"13 mtime=100\n", b"13 comment=x\n"]));
        assert_eq!(hundred, modified(&[b"13 mtime=200\n", b"13 mtime=100\n"]));
    }
}
