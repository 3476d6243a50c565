//! Images, archives and layers as streams of bytes, plain or compressed.

use std::io::{self, BufWriter, Read, Write};
use std::str::FromStr;

/// Bytes copied at a time.
const CHUNK: usize = 1 << 20;

/// How to compress a stream. Equal input gives equal output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// As gzip does, without a name or a time.
    Gzip,
    /// As zstd does.
    Zstd,
}

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "gz" | "gzip" => Ok(Self::Gzip),
            "zst" | "zstd" => Ok(Self::Zstd),
            other => Err(format!("{other}: give gz, zst or none")),
        }
    }
}

impl Compression {
    /// A writer that compresses into `into`. Its output is complete only after [`Encoder::finish`].
    ///
    /// # Errors
    /// Those of the compression.
    pub fn encoder<W: Write>(self, into: W) -> io::Result<Encoder<W>> {
        Ok(Encoder(match self {
            Self::None => Kind::Plain(into),
            Self::Gzip => Kind::Gzip(flate2::write::GzEncoder::new(into, flate2::Compression::default())),
            Self::Zstd => {
                let mut encoder = zstd::stream::Encoder::new(into, 0)?;
                // The zstd program adds checksums, too. Without them, damage to incompressible data
                // goes unnoticed.
                encoder.include_checksum(true)?;
                Kind::Zstd(encoder)
            }
        }))
    }

    /// Copies all of `from` to `into`, compressed, and ends the compressed stream.
    ///
    /// # Errors
    /// Those of reading and writing.
    pub fn copy(self, from: &mut impl Read, into: impl Write) -> io::Result<()> {
        let mut encoder = self.encoder(BufWriter::with_capacity(CHUNK, into))?;
        io::copy(from, &mut encoder)?;
        encoder.finish()?.flush()
    }
}

/// Compresses what is written to it.
pub struct Encoder<W: Write>(Kind<W>);

enum Kind<W: Write> {
    Plain(W),
    Gzip(flate2::write::GzEncoder<W>),
    Zstd(zstd::stream::Encoder<'static, W>),
}

impl<W: Write> std::fmt::Debug for Encoder<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder").finish_non_exhaustive()
    }
}

impl<W: Write> Encoder<W> {
    /// Writes the end of the stream, and returns the inner writer.
    ///
    /// # Errors
    /// Those of writing.
    pub fn finish(self) -> io::Result<W> {
        match self.0 {
            Kind::Plain(into) => Ok(into),
            Kind::Gzip(encoder) => encoder.finish(),
            Kind::Zstd(encoder) => encoder.finish(),
        }
    }
}

impl<W: Write> Write for Encoder<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Kind::Plain(into) => into.write(bytes),
            Kind::Gzip(encoder) => encoder.write(bytes),
            Kind::Zstd(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Kind::Plain(into) => into.flush(),
            Kind::Gzip(encoder) => encoder.flush(),
            Kind::Zstd(encoder) => encoder.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::Compression;
    use std::io::Read;

    #[test]
    fn streams_hold_what_was_written() {
        let bytes = [b"text".repeat(100_000), vec![0; 3 << 20]].concat();
        for how in [Compression::None, Compression::Gzip, Compression::Zstd] {
            let mut stream = Vec::new();
            how.copy(&mut &bytes[..], &mut stream).unwrap();
            let mut back = Vec::new();
            match how {
                Compression::None => back.clone_from(&stream),
                Compression::Gzip => {
                    flate2::read::GzDecoder::new(&stream[..]).read_to_end(&mut back).unwrap();
                }
                Compression::Zstd => back = zstd::stream::decode_all(&stream[..]).unwrap(),
            }
            assert!(back == bytes && (how == Compression::None || stream.len() < 100_000), "{how:?}");
        }
    }
}
