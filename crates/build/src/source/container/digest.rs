//! Digests, by which parts of an image are found and compared.

use sha2::digest::DynDigest;
use sha2::{Sha256, Sha512};
use std::io::{self, Read};

/// A digest, as `sha256:` and hexadecimal digits.
#[derive(Clone)]
pub(super) struct Digest(pub(super) String);

impl Digest {
    pub(super) fn parts(&self) -> std::result::Result<(&str, &str), String> {
        let parts = self.0.split_once(':');
        let known = parts.filter(|(kind, digits)| {
            let length = match *kind {
                "sha256" => 64,
                "sha512" => 128,
                _ => return false,
            };
            digits.len() == length && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        });
        known.ok_or_else(|| format!("the digest {:?}, which is none of sha256 or sha512", self.0))
    }

    /// Where an OCI layout keeps what has this digest.
    pub(super) fn path(&self) -> std::result::Result<Vec<u8>, String> {
        let (kind, digits) = self.parts()?;
        Ok(format!("blobs/{kind}/{digits}").into_bytes())
    }

    fn hasher(&self) -> std::result::Result<Box<dyn DynDigest>, String> {
        let (kind, _) = self.parts()?;
        Ok(if kind == "sha256" { Box::new(Sha256::default()) } else { Box::new(Sha512::default()) })
    }

    /// Compares what a stream holds.
    pub(super) fn check(&self, stream: impl Read) -> std::result::Result<(), String> {
        let mut hashing = Hashing { stream, hasher: self.hasher()? };
        io::copy(&mut hashing, &mut io::sink()).map_err(|error| error.to_string())?;
        self.compare(hashing.hasher)
    }

    fn compare(&self, hasher: Box<dyn DynDigest>) -> std::result::Result<(), String> {
        let (_, wanted) = self.parts()?;
        let found: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        if found == wanted { Ok(()) } else { Err(format!("is damaged: its digest is {found}, not {wanted}")) }
    }
}

/// Hashes what is read.
struct Hashing<R> {
    stream: R,
    hasher: Box<dyn DynDigest>,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.stream.read(into)?;
        self.hasher.update(&into[..n]);
        Ok(n)
    }
}
