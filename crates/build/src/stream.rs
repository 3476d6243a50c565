//! An image as a stream of bytes, plain or compressed.

use std::io::{self, BufWriter, Read, Write};
use std::str::FromStr;

/// Bytes that are copied at a time.
const CHUNK: usize = 1 << 20;

/// How a stream is compressed. The same bytes give the same stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// As gzip does, without a name or time.
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
            other => Err(format!("{other}: streams are compressed by gz, zst or none")),
        }
    }
}

impl Compression {
    /// Copies all of `from` to `into`, compressed, to its last byte.
    ///
    /// # Errors
    /// Those of reading and writing.
    pub fn copy(self, from: &mut impl Read, into: impl Write) -> io::Result<()> {
        let mut into = BufWriter::with_capacity(CHUNK, into);
        match self {
            Self::None => drop(io::copy(from, &mut into)?),
            Self::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(&mut into, flate2::Compression::default());
                io::copy(from, &mut encoder)?;
                encoder.finish()?;
            }
            Self::Zstd => {
                let mut encoder = zstd::stream::Encoder::new(&mut into, 0)?;
                io::copy(from, &mut encoder)?;
                encoder.finish()?;
            }
        }
        into.flush()
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
