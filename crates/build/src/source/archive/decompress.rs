//! Compressed streams: decompressed by a thread of its own, while whoever reads takes apart and
//! stores what came out before.
//!
//! A few buffers go round between the two: the thread never has more than [`BUFFERS`] of them
//! ahead. It ends with the stream, at the first error, or when nobody reads any more.

use super::CHUNK;
use super::bomb::{Counted, Expanding};
use std::cell::Cell;
use std::io::{self, BufRead, Read};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// Buffers that wait to be read at most.
const BUFFERS: usize = 4;

/// What streams are compressed by.
#[derive(Clone, Copy)]
enum Format {
    Gzip,
    Zstd,
    Xz,
}

impl Format {
    /// By the bytes that a stream begins with.
    fn of(head: &[u8]) -> Option<Self> {
        match head {
            [0x1F, 0x8B, ..] => Some(Self::Gzip),
            [0x28, 0xB5, 0x2F, 0xFD, ..] => Some(Self::Zstd),
            [0xFD, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            _ => None,
        }
    }

    /// What the stream holds, until it looks like a bomb.
    fn decoder<'a>(self, stream: impl BufRead + 'a) -> io::Result<impl Read + 'a> {
        let bytes = Rc::new(Cell::new(0));
        let counted = Counted { inner: stream, bytes: Rc::clone(&bytes) };
        let inner: Box<dyn Read + 'a> = match self {
            Self::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(counted)),
            Self::Zstd => Box::new(zstd::stream::Decoder::with_buffer(counted)?),
            Self::Xz => Box::new(lzma_rust2::XzReader::new(counted, true)),
        };
        Ok(Expanding { inner, compressed: bytes, bytes: 0 })
    }
}

/// Gives `consume` what a stream holds once it is decompressed, by the bytes that it begins with.
///
/// # Errors
/// The first bytes cannot be read. All other errors are those of the stream that is given.
pub(in crate::source) fn decompressed<T>(
    mut stream: impl BufRead + Send,
    consume: impl FnOnce(&mut dyn BufRead) -> T,
) -> io::Result<T> {
    let Some(format) = Format::of(stream.fill_buf()?) else { return Ok(consume(&mut stream)) };
    Ok(thread::scope(|scope| {
        let (filled, arriving) = sync_channel(BUFFERS);
        let (returned, empty) = sync_channel(BUFFERS + 2);
        scope.spawn(move || decompress(format, stream, &filled, &empty));
        consume(&mut Arriving { arriving, returned, buffer: Vec::new(), at: 0 })
    }))
}

/// Sends what a stream holds, to its end or the first error.
fn decompress(
    format: Format,
    stream: impl BufRead,
    filled: &SyncSender<io::Result<Vec<u8>>>,
    empty: &Receiver<Vec<u8>>,
) {
    let mut decoder = match format.decoder(stream) {
        Ok(decoder) => decoder,
        // An error here and below is of no use to whoever reads no more.
        Err(error) => return drop(filled.send(Err(error))),
    };
    loop {
        let mut buffer: Vec<u8> = empty.try_recv().unwrap_or_default();
        buffer.resize(CHUNK, 0);
        let (len, error) = fill(&mut decoder, &mut buffer);
        buffer.truncate(len);
        let is_end = len < CHUNK;
        if len > 0 && filled.send(Ok(buffer)).is_err() {
            return;
        }
        if let Some(error) = error {
            return drop(filled.send(Err(error)));
        }
        if is_end {
            return;
        }
    }
}

/// Reads until a buffer is full; gives the bytes that were read, and what ended it but the end.
fn fill(decoder: &mut impl Read, buffer: &mut [u8]) -> (usize, Option<io::Error>) {
    let mut len = 0;
    while len < buffer.len() {
        match decoder.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (len, Some(error)),
        }
    }
    (len, None)
}

/// The bytes that the other thread sends.
struct Arriving {
    arriving: Receiver<io::Result<Vec<u8>>>,
    /// Takes buffers back that were read.
    returned: SyncSender<Vec<u8>>,
    buffer: Vec<u8>,
    /// What of the buffer was read.
    at: usize,
}

impl BufRead for Arriving {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.buffer.len() {
            // No sender: the stream has ended.
            let next = self.arriving.recv().unwrap_or_else(|_| Ok(Vec::new()))?;
            let read = std::mem::replace(&mut self.buffer, next);
            self.at = 0;
            if read.capacity() > 0 {
                // One that is not taken is made anew.
                drop(self.returned.try_send(read));
            }
        }
        Ok(&self.buffer[self.at..])
    }

    fn consume(&mut self, n: usize) {
        self.at += n;
        debug_assert!(self.at <= self.buffer.len(), "no more than there was");
    }
}

impl Read for Arriving {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let there = self.fill_buf()?;
        let n = there.len().min(into.len());
        into[..n].copy_from_slice(&there[..n]);
        self.consume(n);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{CHUNK, decompressed};
    use crate::stream::Compression;
    use std::io::Read;
    use std::thread;

    /// Seven buffers and a part of one.
    fn compressed() -> (Vec<u8>, Vec<u8>) {
        let bytes: Vec<u8> = (0u32..).flat_map(|n| (n / 3).to_le_bytes()).take(7 * CHUNK + 5).collect();
        let mut stream = Vec::new();
        Compression::Zstd.copy(&mut &bytes[..], &mut stream).unwrap();
        (bytes, stream)
    }

    #[test]
    fn another_thread_decompresses_all() {
        let (bytes, stream) = compressed();
        let read = decompressed(&stream[..], |stream| {
            let mut back = Vec::new();
            stream.read_to_end(&mut back).map(|_| back)
        });
        assert!(read.unwrap().unwrap() == bytes);
    }

    #[test]
    fn what_lies_before_an_error_is_read() {
        let (bytes, mut stream) = compressed();
        stream.truncate(stream.len() - 1);
        let mut back = Vec::new();
        let read = decompressed(&stream[..], |stream| stream.read_to_end(&mut back)).unwrap();
        assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
        assert!(back == bytes[..back.len()] && back.len() > bytes.len() / 2, "{} bytes", back.len());
    }

    #[test]
    fn a_reader_may_leave_early() {
        let (bytes, stream) = compressed();
        let first = decompressed(&stream[..], |stream| stream.fill_buf().unwrap()[0]).unwrap();
        assert_eq!(first, bytes[0]);
    }

    /// Says which thread read it.
    struct Asked<'a>(&'a [u8], &'a std::sync::Mutex<Vec<thread::ThreadId>>);

    impl Read for Asked<'_> {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            self.1.lock().unwrap().push(thread::current().id());
            self.0.read(into)
        }
    }

    #[test]
    fn only_compressed_streams_take_a_thread() {
        let readers = |bytes: &[u8]| {
            let asked = std::sync::Mutex::new(Vec::new());
            // A small buffer, so that the stream is read again by whoever decompresses it.
            let stream = std::io::BufReader::with_capacity(512, Asked(bytes, &asked));
            let read = decompressed(stream, |stream| std::io::copy(stream, &mut std::io::sink()));
            read.unwrap().unwrap();
            asked.into_inner().unwrap()
        };
        let own = thread::current().id();
        assert!(readers(&[b'p'; 4096]).iter().all(|&reader| reader == own));
        assert!(readers(&compressed().1)[1..].iter().all(|&reader| reader != own));
    }
}
