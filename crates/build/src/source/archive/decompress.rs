//! Compressed streams. A separate thread decompresses, while the reader parses and stores what came
//! out before.
//!
//! A few buffers circulate between the thread and the reader: at most [`BUFFERS`] wait for the
//! reader while the thread fills one more. The thread ends with the stream, at the first error, or
//! when the reader is gone. If the thread expects that it must read from the stream next, it first
//! sends what it has, because the read may block for as long as the stream's writer likes.

use super::CHUNK;
use super::bomb::{AtHand, Counted, Expanding};
use flate2::bufread::GzDecoder;
use std::io::{self, BufRead, Read};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// The most buffers that may wait to be read.
const BUFFERS: usize = 4;

/// Compression formats.
#[derive(Clone, Copy)]
enum Format {
    Gzip,
    Zstd,
    Xz,
}

impl Format {
    /// Detects the format from the first bytes of a stream.
    fn of(head: &[u8]) -> Option<Self> {
        match head {
            [0x1F, 0x8B, ..] => Some(Self::Gzip),
            [0x28, 0xB5, 0x2F, 0xFD, ..] => Some(Self::Zstd),
            [0xFD, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            _ => None,
        }
    }

    /// A decoder for the stream. Reading from the decoder fails if the stream looks like a bomb.
    fn decoder<'a>(self, stream: impl BufRead + 'a, at_hand: &Rc<AtHand>) -> io::Result<impl Read + 'a> {
        let counted = Counted { inner: stream, at_hand: Rc::clone(at_hand) };
        let inner: Box<dyn Read + 'a> = match self {
            Self::Gzip => Box::new(GzipMembers(Some(GzDecoder::new(counted)))),
            Self::Zstd => Box::new(zstd::stream::Decoder::with_buffer(counted)?),
            Self::Xz => Box::new(lzma_rust2::XzReader::new(counted, true)),
        };
        Ok(Expanding { inner, compressed: Rc::clone(at_hand), bytes: 0 })
    }
}

/// Reads the members of a gzip stream, one after the other. Zeroes may follow the last member, such
/// as the padding of a tape. (gzip and tar accept them, too.) Holds the decoder of the current
/// member; `None` after the last member.
struct GzipMembers<R>(Option<GzDecoder<R>>);

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.0 {
            let n = member.read(into)?;
            if n > 0 || into.is_empty() {
                return Ok(n);
            }
            if is_last_member(member.get_mut())? {
                self.0 = None;
            } else {
                self.0 = self.0.take().map(|member| GzDecoder::new(member.into_inner()));
            }
        }
        Ok(0)
    }
}

/// Whether nothing but zeroes follows a member. Reads these zeroes; it is an error if anything
/// follows them.
fn is_last_member(stream: &mut impl BufRead) -> io::Result<bool> {
    let mut is_padded = false;
    loop {
        let there = match stream.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            there => there?,
        };
        if there.is_empty() {
            return Ok(true);
        }
        let zeroes = there.iter().take_while(|&&byte| byte == 0).count();
        if zeroes == 0 && !is_padded {
            return Ok(false);
        }
        if zeroes < there.len() {
            let reason = "something follows the zeroes after the end of the compressed stream";
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        is_padded = true;
        stream.consume(zeroes);
    }
}

/// Passes a stream to `consume`, decompressed if its first bytes show a known format. Then waits
/// for the decompressing thread to end. So this function is for streams that do not block, such as
/// files.
///
/// # Errors
/// The first bytes cannot be read. All other errors come from the stream that `consume` gets.
pub(in crate::source) fn decompressed<T>(
    mut stream: impl BufRead + Send,
    consume: impl FnOnce(&mut dyn BufRead) -> T,
) -> io::Result<T> {
    let Some(format) = Format::of(stream.fill_buf()?) else { return Ok(consume(&mut stream)) };
    Ok(thread::scope(|scope| {
        let (mut arriving, ahead) = pair(format, stream);
        scope.spawn(move || ahead.run());
        consume(&mut arriving)
    }))
}

/// As [`decompressed`], for a stream that may block, such as a pipe. If `consume` returns early, so
/// does this function. The thread then lives on until the stream delivers something or ends.
///
/// # Errors
/// As [`decompressed`]; or the thread cannot be started.
pub(super) fn decompressed_apart<T>(
    mut stream: impl BufRead + Send + 'static,
    consume: impl FnOnce(&mut dyn BufRead) -> T,
) -> io::Result<T> {
    let Some(format) = Format::of(stream.fill_buf()?) else { return Ok(consume(&mut stream)) };
    let (mut arriving, ahead) = pair(format, stream);
    thread::Builder::new().spawn(move || ahead.run())?;
    Ok(consume(&mut arriving))
}

/// Connects the decompressing thread's work to its reader.
fn pair<S: BufRead>(format: Format, stream: S) -> (Arriving, Ahead<S>) {
    let (filled, arriving) = sync_channel(BUFFERS);
    let (returned, empty) = sync_channel(BUFFERS + 2);
    let arriving = Arriving { arriving, returned, buffer: Vec::new(), at: 0, has_ended: false };
    (arriving, Ahead { format, stream, filled, empty })
}

/// The work of the decompressing thread.
struct Ahead<S> {
    format: Format,
    stream: S,
    /// Sends decompressed buffers; an empty one marks the end.
    filled: SyncSender<io::Result<Vec<u8>>>,
    empty: Receiver<Vec<u8>>,
}

impl<S: BufRead> Ahead<S> {
    /// Sends the decompressed stream, to its end or the first error.
    fn run(self) {
        let Self { format, stream, filled, empty } = self;
        let at_hand = Rc::new(AtHand::default());
        let mut decoder = match format.decoder(stream, &at_hand) {
            Ok(decoder) => decoder,
            // A failed send, here and below, means that the reader is gone.
            Err(error) => return drop(filled.send(Err(error))),
        };
        loop {
            let mut buffer: Vec<u8> = empty.try_recv().unwrap_or_default();
            buffer.resize(CHUNK, 0);
            let (len, error) = fill(&mut decoder, &at_hand, &mut buffer);
            buffer.truncate(len);
            let is_over = len == 0 || error.is_some();
            // An empty buffer marks the end.
            let content = (len > 0 || error.is_none()).then_some(Ok(buffer));
            let mut parts = content.into_iter().chain(error.map(Err));
            if parts.any(|part| filled.send(part).is_err()) || is_over {
                return;
            }
        }
    }
}

/// Reads until the buffer is full, or until it holds something and the next byte may need a read
/// from the stream. Returns the number of bytes, and the error that stopped it. 0 bytes without an
/// error mean the end.
fn fill(decoder: &mut impl Read, at_hand: &AtHand, buffer: &mut [u8]) -> (usize, Option<io::Error>) {
    let mut len = 0;
    while len < buffer.len() && (len == 0 || at_hand.has_more()) {
        match decoder.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (len, Some(error)),
        }
    }
    (len, None)
}

/// The bytes that the decompressing thread sends.
struct Arriving {
    arriving: Receiver<io::Result<Vec<u8>>>,
    /// Returns used buffers to the thread.
    returned: SyncSender<Vec<u8>>,
    buffer: Vec<u8>,
    /// How much of the buffer has been read.
    at: usize,
    /// No more buffers will come.
    has_ended: bool,
}

impl BufRead for Arriving {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.buffer.len() && !self.has_ended {
            // The sender is gone only after an error or a panic: the content is incomplete.
            let next = self.arriving.recv().unwrap_or_else(|_| Err(io::Error::other("cannot decompress")))?;
            self.has_ended = next.is_empty();
            let read = std::mem::replace(&mut self.buffer, next);
            self.at = 0;
            if read.capacity() > 0 {
                // A failed send is fine: the thread then allocates a new buffer.
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

    use super::{CHUNK, decompressed, decompressed_apart};
    use crate::stream::Compression;
    use std::io::{BufReader, Read, Write};
    use std::thread;

    /// Content for seven buffers and a part of another; and the same, compressed.
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

    /// What came through a pipe is available before the pipe's writer sends more, and a reader that
    /// has enough does not wait.
    #[test]
    fn a_silent_stream_keeps_nobody_waiting() {
        for how in [Compression::Gzip, Compression::Zstd] {
            let mut compressed = Vec::new();
            how.copy(&mut &b"text".repeat(1000)[..], &mut compressed).unwrap();
            let (reading, mut writing) = std::io::pipe().unwrap();
            writing.write_all(&compressed).unwrap();
            let (done, told) = std::sync::mpsc::channel();
            thread::spawn(move || {
                let read = decompressed_apart(BufReader::new(reading), |stream| {
                    let mut back = [0; 4000];
                    stream.read_exact(&mut back).map(|()| back == *b"text".repeat(1000))
                });
                done.send(read.unwrap().unwrap()).unwrap();
            });
            let read = told.recv_timeout(std::time::Duration::from_secs(60));
            assert_eq!(read, Ok(true), "{how:?}");
            drop(writing);
        }
    }

    #[test]
    fn zeroes_may_follow_the_last_member_of_gzip() {
        let read = |parts: &[&[u8]]| {
            // A small buffer, so that the zeroes arrive in several pieces.
            let stream = BufReader::with_capacity(16, std::io::Cursor::new(parts.concat()));
            let mut back = Vec::new();
            decompressed(stream, |stream| stream.read_to_end(&mut back)).unwrap().map(|_| back)
        };
        let mut member = Vec::new();
        Compression::Gzip.copy(&mut &b"text"[..], &mut member).unwrap();
        assert_eq!(read(&[&member]).unwrap(), b"text");
        assert_eq!(read(&[&member, &member]).unwrap(), b"texttext");
        for zeroes in [1, 16, 1000] {
            assert_eq!(read(&[&member, &member, &vec![0; zeroes]]).unwrap(), b"texttext", "{zeroes}");
        }
        for rest in [&b"no other member"[..], b"\0more", &[&[0; 100], &member[..]].concat()] {
            let error = read(&[&member, rest]).unwrap_err();
            assert_ne!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{error}");
        }
        assert!(read(&[&member, &member[..5]]).is_err());
    }

    /// Records which thread reads it.
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
            // A small buffer, so that the decompressing thread has to read the stream again.
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
